"""The corpus: the gate, who is asked what, what is paid, and what a seat may not see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.judged.corpus import Corpus
from jaxmarl_llm.environments.judged.relation_chains import Question
from jaxmarl_llm.rl.rewards import challenge
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup

CORRECT, PROPOSAL, VALID, HOPS, FALSE, REPLACED = range(6)  # components, then measures
GAME = Corpus()
PLAYERS = ("correct", "random", "correct", "random", "correct")


def many(given, games=48):
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (games, *x.shape)), given)


def played(game=GAME, players=PLAYERS, given=None, games=48):
    rollout = Rollout(game, {}, Lineup((players,) * games, 1))
    return jax.device_get(jax.jit(rollout)({}, jax.random.key(0), given).episodes)


def facts(episodes):
    """What is paid, then what is measured [B, T, A, C + M]."""
    return np.concatenate([episodes.reward, episodes.measured], -1)


def step(game, state, *actions):
    """The states and what is paid and measured after these actions of the proposer, or rows of those of solvers."""
    seen = []
    for action in actions:
        row = jnp.asarray([action] * game.agents if isinstance(action, int) else [0, *action], jnp.int32)
        state, view, reward = jax.jit(game.step)(state, row, jax.random.key(0))
        seen.append((state, view, np.concatenate([reward, view.measured], 1)))
    return seen


def by_hand(game, proposal, seed=0, given=None):
    """After the proposer has walked back by relations, named the start where it is, and posed `proposal`."""
    state, _ = game.reset(jax.random.key(seed), jnp.int32(0), given)
    (walked, *_) = step(game, state, 1, 0)[-1]
    return step(game, walked, game.relations + int(walked.at), proposal)[-1]


HONEST = int(GAME.chains.index(jnp.array([0, 1, 0]), jnp.int32(2)))  # walked back by 1, then by 0


@pytest.mark.long
def test_a_true_chain_passes_the_gate_and_others_do_not():
    for chain in range(len(GAME.chains.lists)):
        state, view, reward = by_hand(GAME, chain)
        if chain == HONEST:
            assert state.valid and view.acting[1:].all() and not view.acting[0]
        else:  # in these documents no other chain leads there over what was shown
            assert not state.valid and view.terminated and not view.acting.any()
            assert reward[0, PROPOSAL] == 0 and reward[0, VALID] == 0


def test_what_is_paid_by_hand():
    for pays in ("hard", "intermediate"):
        game = Corpus(pays=pays)
        state, *_ = by_hand(game, HONEST)
        right, wrong = (game.relations + (int(state.answer) + k) % game.keys for k in (0, 1))
        (_, view, reward), *_ = step(game, state, [right, wrong, wrong, wrong])
        assert view.terminated
        np.testing.assert_array_equal(reward[1:, CORRECT], [1, 0, 0, 0])
        assert reward[0, PROPOSAL] == {"hard": 0.75, "intermediate": 0.75}[pays] == challenge(jnp.array(0.25), pays)
        assert reward[0].tolist()[2:] == [1, 2, 0, 0]


def test_a_solver_walks_from_the_start_and_must_answer_at_last():
    state, *_ = by_hand(GAME, HONEST)
    key = int(state.start)
    for relation in (0, 1, 1):
        (state, view, reward), *_ = step(GAME, state, [relation] * 4)
        key = int(state.documents[relation, key])
        assert (state.reached == key).all() and not view.terminated and not np.asarray(reward).any()
    assert not view.legal[1:, : GAME.relations].any() and view.legal[1:, GAME.relations :].sum() == 4 * GAME.keys


def test_an_invalid_proposal_reaches_no_solver():
    question = Question(GAME.chains.documents(jax.random.key(9)), jnp.int32(3), jnp.int32(5), jnp.int32(0))
    question = question.replace(answer=GAME.chains.truth(question))
    documents = jnp.full((GAME.relations, GAME.keys), -1)
    given = GAME.stand_in(documents, question, jnp.bool_(True))
    for chain in (HONEST, (HONEST + 1) % 14):
        state, view, _ = by_hand(GAME, chain, given=given)
        start = state.start if chain == HONEST else question.start
        assert view.acting[1:].all() and (view.phrases[1:, 0] == GAME.keys + start).all()
        asked = state.asked
        assert int(asked.answer) == int(GAME.chains.truth(asked))
        if chain != HONEST:
            jax.tree.map(np.testing.assert_array_equal, asked, question)
            *_, (_, view, reward) = step(GAME, state, [GAME.relations + int(asked.answer)] * 4)
            assert reward[0].tolist() == [0, 0, 0, GAME.chains.length(jnp.int32(chain)), 0, 1]
            assert reward[1:, CORRECT].all()
    none = GAME.stand_in(documents, question, jnp.bool_(False))
    assert by_hand(GAME, HONEST + 1, given=none)[1].terminated


@pytest.mark.parametrize("proposer", ("random", "correct"))
def test_a_group_of_solvers_is_whole_or_nobody(proposer):
    question = Question(GAME.chains.documents(jax.random.key(9)), jnp.int32(3), jnp.int32(5), jnp.int32(0))
    drawn = jnp.full((GAME.relations, GAME.keys), -1)
    found = jnp.arange(48) % 2 == 0
    given = jax.vmap(lambda found: GAME.stand_in(drawn, question, found))(found)
    episodes = played(players=(proposer, *PLAYERS[1:]), given=given)
    asked = episodes.acted[..., 1:].any(1)  # [B, solvers]
    valid = facts(episodes)[:, :, 0, VALID].sum(1) > 0
    assert (asked.sum(1) == np.where(valid | np.asarray(found), 4, 0)).all()
    assert valid.all() if proposer == "correct" else not valid.all()
    if proposer == "correct":
        assert (episodes.reward[..., CORRECT].sum(1)[:, [2, 4]] == 1).all()


def test_solvers_are_told_whose_answer_pays():
    """Without the gate an answer that the documents do not give is the one that pays."""
    gated, open_ = (game.rules[0][1] for game in (GAME, Corpus(gate=False)))
    assert "a right answer is 1 point" in gated and "given that answer" not in gated
    assert "1 point if whoever posed the question was given that answer" in open_


def test_without_the_gate_everything_is_asked():
    episodes = played(Corpus(gate=False), ("random",) + ("correct",) * 4)
    found = facts(episodes)[:, :, 0].sum(1)
    assert episodes.acted[..., 1:].any(1).all() and found[:, FALSE].mean() > 0.5
    right = episodes.reward[..., CORRECT].sum(1)[:, 1:]
    assert (right.all(1) == (found[:, FALSE] == 0)).all()  # they follow the documents
    np.testing.assert_allclose(found[:, PROPOSAL], 1 - right.mean(1))


def test_the_ladder_has_each_number_of_hops_alike_and_a_silent_proposer():
    episodes = played(players=("random",) + ("correct",) * 4, given=many(GAME.ladder()))
    found = facts(episodes)[:, :, 0].sum(1)
    np.testing.assert_array_equal(found[:, HOPS], 1 + np.arange(48) % 3)
    assert not episodes.acted[..., 0].any() and (episodes.reward[..., CORRECT].sum(1)[:, 1:] == 1).all()
    assert not found[:, [PROPOSAL, VALID, FALSE, REPLACED]].any()


def test_solvers_are_told_neither_the_answer_nor_what_the_proposer_saw():
    """The same question about other documents, with another answer, is told and asked in the same words."""
    game = Corpus(gate=False)
    told = []
    for seed in range(6):
        state, _ = game.reset(jax.random.key(seed), jnp.int32(0))
        walked = step(game, state, seed % 2)[-1][0] if seed % 3 else state
        posed, view, _ = step(game, walked, game.relations + 3, HONEST)[-1]
        told.append((game.prompt(posed)[1:], view.phrases[1:], view.legal[1:], view.grammar[1:]))
    for other in told[1:]:
        jax.tree.map(np.testing.assert_array_equal, told[0], other)


def test_what_was_posed_is_read_from_actions():
    episodes = played(players=("correct",) * 5)
    documents = jnp.stack([GAME.chains.documents(key) for key in jax.random.split(jax.random.key(4), 48)])
    question = jax.vmap(GAME.pose_question)(documents, jnp.asarray(episodes.action[..., 0]))
    hops = jax.vmap(GAME.chains.length)(question.chain)
    np.testing.assert_array_equal(hops, facts(episodes)[:, :, 0, HOPS].sum(1))
    for b in range(48):
        says = [int(a) for a, acts in zip(episodes.action[b, :, 0], episodes.acted[b, :, 0], strict=True) if acts]
        assert [int(question.start[b]) + GAME.relations, int(question.chain[b])] == says[-2:]


def test_settings_that_cannot_work():
    check_game(Corpus(keys=3, relations=1, hops=1, solvers=1))
    wrong = {"keys": 2, "relations": 5, "hops": 0, "solvers": 0, "pays": "most", "penalty": -1.0}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=name):
            Corpus(**{name: value})
