"""Partial rollouts: copied turns, independent continuations, and exact log-probabilities.

All cases are long, as they compile rollouts with copied turns; `test_contract` traces the studies that branch.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from jaxmarl_llm.environments.classic.board_games import TicTacToe
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.branching import BranchState, at_turns, by_entropy, fill_free, first_by_probe
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings, words
from jaxmarl_llm.rollout.trajectory import gather_sampled
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, TinySize
from jaxmarl_llm.training.setup import tiny
from jaxmarl_llm.training.trainer import Trainer
from tests.support.families import recurrent, sharing

pytestmark = pytest.mark.long

GAMES = {
    "one seat": (LockChain(locks=3, turns=5), ("me",), 1),
    "one seat at a time": (TicTacToe(), ("me", "me"), 1),
    "with a script": (TicTacToe(), ("me", "random"), 1),
    "free text": (MatrixGame(rounds=2, talk=True), ("me", "me"), (2, 2, 4)),
    "with a state": (TicTacToe(), ("me", "me"), 1),
    "with shared keys": (LockChain(locks=3, turns=5), ("me",), 1),
    "two seats with shared keys": (TicTacToe(), ("me", "me"), 1),
}


def sharing_in_four_layers(vocab_size):
    config = sharing(vocab_size)
    return replace(config, num_hidden_layers=4, layer_types=config.layer_types[:2] * 2, num_kv_shared_layers=2)


SIZES = {"with a state": recurrent, "with shared keys": sharing}
SIZES["two seats with shared keys"] = sharing_in_four_layers
MEMBERS, AT = 4, 2


def third_of_first(standing):
    """In turn AT, member 3 goes on from member 1, and member 2 from member 0."""
    own = jnp.arange(MEMBERS)
    copies = jnp.where(standing.turn == AT, jnp.array([0, 1, 0, 1]), own)
    return jnp.broadcast_to(copies, standing.going.shape)


def nobody(standing):
    return jnp.broadcast_to(jnp.arange(MEMBERS), standing.going.shape)


MARKS = {"one seat": [], "free text": [pytest.mark.slow]}  # the others compile longer, and are long


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=MARKS.get(name, [pytest.mark.long])) for name in GAMES]
)
def both(request):
    """The same games without a branch, with a branch that copies nothing, and with two copies."""
    game, seats, budget = GAMES[request.param]
    tokenizer = words(game, "ab") if request.param == "free text" else SymbolTokenizer(strings(game))
    policy_set = PolicySet(tokenizer, ("me",), SIZES.get(request.param, tiny)(tokenizer.vocab_size))
    rollout = Rollout(game, {"all": policy_set}, Lineup((seats, seats), MEMBERS), budget)
    weights = {"all": {"params": decoder.init(policy_set.config, jax.random.key(1))}}
    key = jax.random.key(2)
    plain = jax.jit(rollout)(weights, key)
    still, forked = (jax.jit(partial(rollout, branch=branch))(weights, key) for branch in (nobody, third_of_first))
    return rollout, weights, *(jax.tree.map(np.asarray, x) for x in (plain, still, forked))


def test_a_branch_without_copies_plays_the_same_bits(both):
    """Products of other shapes round otherwise, and in Gemma 4 more of them follow one another."""
    rollout, _, plain, still, _ = both
    episodes = still.episodes.replace(branches=None)
    # a row is computed with all rows where it is else computed with those of its seat: the last bit may differ
    close = 3e-7 if rollout.layouts["all"].alternating_seats > 1 else 0
    absolute = 1e-5 if close and rollout.policy_sets["all"].config.num_kv_shared_layers else 0
    for x, y in zip(
        jax.tree.leaves((plain.episodes, plain.rows)), jax.tree.leaves((episodes, still.rows)), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=close, atol=absolute)
    own = np.arange(len(episodes.group))[:, None]
    assert (still.episodes.branches.origin == own).all() and not still.episodes.branches.branched.any()


def test_a_fork_has_the_others_beginning_and_its_own_end(both):
    _, _, plain, _, forked = both
    rows, of = forked.rows["all"], {}
    for row, (episode, seat) in enumerate(zip(rows.episode, rows.seat, strict=True)):
        of[int(episode), int(seat)] = row
    own_ends, branches = 0, forked.episodes.branches
    for group in range(2):
        for source, copy in ((0, 2), (1, 3)):
            source, copy = source + MEMBERS * group, copy + MEMBERS * group
            early = slice(None, AT)
            for field in ("reward", "acted", "action", "legal", "valid", "role", "told"):
                x = getattr(forked.episodes, field)
                np.testing.assert_array_equal(x[copy, early], x[source, early])
                np.testing.assert_array_equal(x[source], getattr(plain.episodes, field)[source])  # untouched by it
            assert (branches.origin[copy] == [source] * AT + [copy] * (branches.origin.shape[1] - AT)).all()
            assert (
                branches.branched[copy].tolist()
                == branches.branched[source].tolist()
                == [t == AT for t in range(branches.origin.shape[1])]
            )
            for seat in {seat for _, seat in of}:
                if (copy, seat) not in of:
                    continue
                a, b = (np.arange(rows.tokens.shape[1]) < rows.length[of[e, seat]] for e in (copy, source))
                a, b = a & (rows.turn[of[copy, seat]] < AT), b & (rows.turn[of[source, seat]] < AT)
                assert a.sum() == b.sum() > 0
                for field in ("tokens", "loss_mask", "logp", "grammar_state", "tokens_left"):
                    x = getattr(rows, field)
                    np.testing.assert_array_equal(x[of[copy, seat]][a], x[of[source, seat]][b])
            own_ends += (forked.episodes.action[copy, AT:] != forked.episodes.action[source, AT:]).any()
    assert own_ends >= 1


def test_log_probabilities_and_entropies_are_those_of_scoring_the_rows_afresh(both):
    rollout, weights, _, _, forked = both
    rows = forked.rows["all"]
    sampled = gather_sampled(rows, jnp.asarray(forked.episodes.legal), rollout.max_sampled_tokens("all"))
    scores = rollout.layouts["all"].scorer()(weights["all"]["params"], rows, sampled)
    mask = np.asarray(sampled.mask)
    assert mask.sum() > 20
    np.testing.assert_allclose(np.asarray(scores.logp)[mask], np.asarray(sampled.behaviour_logp)[mask], atol=2e-5)
    first = mask & (np.diff(np.asarray(sampled.turn), axis=1, prepend=-1) != 0)
    r, m = np.nonzero(first)
    # no entropy is recorded of a turn in which the first token was forced, or its seat had one legal answer
    recorded = forked.episodes.branches.entropy[rows.episode[r], np.asarray(sampled.turn)[r, m], rows.seat[r]]
    free = np.asarray(sampled.tokens_left)[r, m] == np.asarray(sampled.tokens_left)[r, m].max()
    assert free.sum() > 10
    np.testing.assert_allclose(recorded[free], np.asarray(scores.entropy)[r, m][free], atol=2e-5)


def test_branches_are_taken_in_order_and_no_more_than_there_is_room_for():
    free = jnp.array([[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]], bool)
    wants = jnp.array([[0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]], bool)
    np.testing.assert_array_equal(fill_free(free, wants), [[0, 1, 1, 3], [0, 1, 0, 1], [0, 1, 2, 0], [0, 1, 2, 3]])


def test_vines_start_before_their_turn_from_a_game_in_progress():
    """Members 2 and 3 continue members 0 and 1 from turn 2 on, member 4 never; member 1 of the second group is over."""
    going = jnp.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 1]], bool)
    for turn in range(4):
        state = BranchState(jax.random.key(0), jnp.int32(turn), going, None, None, None)
        found = at_turns(state, at=jnp.array([0, 0, 2, 2, 0]), source=jnp.array([0, 0, 0, 1, 0]))
        want = [[0, 1, 0, 1, 4], [0, 1, 0, 3, 4]] if turn == 2 else [[0, 1, 2, 3, 4]] * 2
        assert found.tolist() == want and found.dtype == jnp.int32


def test_by_entropy_is_its_formula():
    """Against loops, the chance taken as the share of many keys in which a lone candidate is copied."""
    entropy = jnp.array([0.9, 1.1, 0.4, 1.3])  # of the candidate, by turn
    by_turn, origin = jnp.tile(entropy[:, None], (1, 2, 1, 1)), jnp.zeros((1, 2, 4), jnp.int32)
    cases = ((1, 0, 0.0, 0.5), (2, 0, 0.0, 0.5), (3, 2, 0.3, 0.5), (3, 2, 0.3, 0.0), (0, 0, 0, 1))
    for turn, in_a_row, penalty, weight in cases:
        branched = np.zeros((1, 2, 4), bool)
        branched[0, 0, turn - in_a_row : turn] = True
        settings = {"first": 1, "base": 0.3, "weight": weight, "penalty": penalty}
        standing = BranchState(jax.random.key(0), turn, jnp.ones((1, 2), bool), by_turn, branched, origin)
        one = lambda key, x=standing, settings=settings: by_entropy(x._replace(key=key), **settings)
        member = jax.vmap(one)(jax.random.split(jax.random.key(turn), 4000))
        assert (member[:, 0, 0] == 0).all()
        chance = float(np.clip(0.3 + weight * (entropy[turn] - entropy[0]), 0, 1)) * max(0, 1 - penalty * in_a_row)
        assert float((member[:, 0, 1] == 0).mean()) == pytest.approx(chance * (turn > 0), abs=0.03)


def test_turns_that_are_not_due_neither_branch_nor_count():
    """The chance as above, of turns 1, 3 and 5 of six, with the entropy of now or of `lag` turns before."""
    due, turns = jnp.arange(6) % 2 == 1, 6
    entropy = jnp.tile(jnp.array([0.2, 0.9, 0.1, 0.7, 0.3, 1.1])[:, None], (1, 2, 1, 1))
    cases = ((2, (), 0, 0), (5, (1, 3), 2, 0), (5, (1,), 0, 2), (5, (3,), 1, 0), (3, (1, 2), 1, 2), (1, (), 0, 2))
    for turn, touched, n, lag in cases:
        branched = np.zeros((1, 2, turns), bool)
        branched[0, 0, list(touched)] = True
        standing = BranchState(None, jnp.int32(turn), jnp.ones((1, 2), bool), entropy, branched, None)
        settings = {"first": 1, "base": 0.4, "weight": 0.5, "penalty": 0.4, "due": due, "lag": lag}
        one = lambda key, x=standing, settings=settings: by_entropy(x._replace(key=key), **settings)
        member = jax.vmap(one)(jax.random.split(jax.random.key(turn), 4000))
        chance = (0.4 + 0.5 * float(entropy[0, 0, max(turn - lag, 0), 0] - 0.2)) * (1 - 0.4 * n)
        assert float((member[:, 0, 1] == 0).mean()) == pytest.approx(chance if turn % 2 else 0, abs=0.03)


def test_groups_begin_with_members_of_their_own_number_and_stay_whole():
    """A group that begins with all its members never branches, one that begins with three ends with five copies."""
    members, turns = 8, 12
    branched, origin = np.zeros((2, members, turns), bool), np.tile(np.arange(members), (2, 1))
    branch = jax.jit(partial(by_entropy, first=jnp.array([[3], [8]]), base=0.5, weight=0.0))
    state = BranchState(None, None, jnp.ones((2, members), bool), jnp.zeros((2, members, turns, 1)), None, None)
    for turn in range(1, turns):
        found = branch(state._replace(key=jax.random.key(turn), turn=jnp.int32(turn), branched=jnp.asarray(branched)))
        for g, source in enumerate(np.asarray(found)):
            copied = source != np.arange(members)
            branched[g, copied, turn] = branched[g, source[copied], turn] = True
            origin[g] = origin[g][source]
    assert origin[1].tolist() == [*range(members)] and (origin[0] < 3).all() and len({*origin[0]}) > 1


def test_the_probe_leaves_more_members_for_branches_where_replies_raise_the_entropy():
    root, replies = jnp.array([0.0, 1.0, 0.0, 9.0, -40.0]), jnp.array([1.0, 0.0, 0.0, -9.0, 40.0])
    want = [min(int(16 / (1 + np.exp(-0.5 * (a - b)))) + 1, 16) for a, b in zip(root, replies, strict=True)]
    found = first_by_probe(root, replies, 16)
    assert found.shape == (5, 1) and found[:, 0].tolist() == want and want == [7, 10, 9, 16, 1]


def branching_recipe(**changed):
    arrange = lambda hparams, state, key, number: Arranged(
        branch=Partial(by_entropy, first=2, base=hparams["base"], weight=0.5)
    )
    settings = {"groups": 2, "group_size": MEMBERS, "budget": 1, "hparams": {"base": 0.6}, "arrange": arrange}
    settings["size"] = TinySize(layers=1)
    return Recipe(
        LockChain(locks=3, turns=5), (("me",),), **{"advantage": estimator(advantages.rloo), **settings, **changed}
    )


def test_seeds_side_by_side_branch_as_they_do_alone():
    recipe = branching_recipe()
    many = Trainer(recipe, [recipe.all_hparams] * 2, [0, 1])
    together, metrics = many.update(many.init(), 0)
    for i in range(2):
        alone = Trainer(recipe, [recipe.all_hparams], [i])
        one, own = alone.update(alone.init(), 0)
        np.testing.assert_allclose(metrics["entropy/me"][i], own["entropy/me"][0], rtol=1e-5)
        pairs = zip(jax.tree.leaves(together.learners.weights), jax.tree.leaves(one.learners.weights), strict=True)
        for x, y in pairs:
            np.testing.assert_allclose(x[i], y[0], atol=2e-5)


def test_mean_advantages_of_shared_turns_have_the_gradient_of_each_episodes():
    """ARPO's hard and soft estimation: n copies of a turn with n advantages have the gradient of n with their mean."""

    def hard(experience, hparams, state):
        episodes, acts = experience.episodes, experience.acts
        name = episodes.branches.turns[..., None]
        own = advantages.grpo(episodes.reward[..., 0], *acts, scale="none")
        mean = advantages.shared_steps(
            episodes.reward[..., 0], *acts, observation=name, action=jnp.zeros_like(name), scale="none"
        )
        return Advantages(select(hparams, "estimation", soft=own, hard=mean))

    choices = {"estimation": ("soft", "hard")}
    recipe = branching_recipe(advantage=hard, hparams={"base": 0.9}, groups=4, choices=choices)
    trainer = Trainer(recipe, [recipe.all_hparams, recipe.with_choice(estimation="hard").all_hparams], [0, 0])
    _, parts, metrics = trainer.replay_update(trainer.init(), 0)
    (part,) = parts.values()
    soft, mean = np.asarray(part.batch.advantage)
    assert np.abs(soft - mean).max() > 0.1
    norms = {name: np.asarray(x) for name, x in metrics.items() if name.startswith("gradient_norm")}
    assert len(norms) > 3 and max(x.max() for x in norms.values()) > 0
    for name, (a, b) in norms.items():
        assert a == pytest.approx(b, rel=1e-4, abs=1e-7), name


def test_shown_games_of_a_run_have_branches():
    recipe = branching_recipe()
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    examined = trainer.examine(trainer.init(), (0,), 0)
    origin = np.asarray(examined.trajectory.episodes.branches.origin)[0]
    assert (origin != np.arange(len(origin))[:, None]).any()


def test_a_function_is_no_branch():
    recipe = branching_recipe(arrange=lambda *_: Arranged(branch=lambda standing: jnp.zeros((2, 2), jnp.int32)))
    with pytest.raises(ValueError, match=r"jax\.tree_util\.Partial"):
        trainer = Trainer(recipe, [recipe.all_hparams], [0])
        trainer.update(trainer.init(), 0)


def test_a_branch_of_another_shape_is_one_sentence():
    recipe = branching_recipe(arrange=lambda *_: Arranged(branch=Partial(lambda standing: jnp.zeros(3, jnp.int32))))
    with pytest.raises(ValueError, match="names a member for each of"):
        trainer = Trainer(recipe, [recipe.all_hparams], [0])
        trainer.update(trainer.init(), 0)
