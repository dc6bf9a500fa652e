"""Fresh seats for every answer: the same game, and rows that hold the rules and the present alone.

The long cases score again and train; the short ones read the rows of the same games.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.forgetful import Forgetful
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.environments.teams.discussion import Discussion
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, words
from jaxmarl_llm.rollout.trajectory import gather_sampled
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Advantages
from jaxmarl_llm.training.setup import tiny
from jaxmarl_llm.training.trainer import Trainer

DILEMMA = MatrixGame(rounds=3, talk=True, exchange=False)
GAMES = [DILEMMA, KuhnPoker(), Discussion(rounds=1)]


def episodes_of(game, line_up, seed=0):
    return jax.device_get(jax.jit(Rollout(game, {}, Lineup((line_up,) * 2, 4)))({}, jax.random.key(seed)).episodes)


@pytest.mark.parametrize("game", GAMES, ids=lambda game: type(game).__name__)
def test_scripts_play_the_same_game(game):
    deterministic = {MatrixGame: "tit_for_tat", KuhnPoker: "always_bet", Discussion: "correct"}
    names = (deterministic[type(game)],) * game.agents
    if names[0] not in game.scripts:
        names = (next(name for name in game.scripts if name != "random"),) * game.agents
    fresh = Forgetful(game)
    check_game(fresh)
    inside, outside = episodes_of(game, names), episodes_of(fresh, fresh.line_up(*names))
    for field in ("reward", "acted", "action", "legal", "valid"):
        got = np.asarray(fresh.whole(jnp.asarray(getattr(outside, field))))
        np.testing.assert_array_equal(got, getattr(inside, field), err_msg=field)
    assert outside.acted.sum() == inside.acted.sum()  # nobody else acts
    np.testing.assert_allclose(outside.reward.sum(), inside.reward.sum(), rtol=1e-6)


def test_whole_and_parts_against_a_loop():
    fresh = Forgetful(KuhnPoker())
    turns, agents = fresh.turns, 2
    x = jax.random.normal(jax.random.key(0), (3, turns, agents * turns, 2))
    whole = fresh.whole(x)
    assert whole.shape == (3, turns, agents, 2)
    for t in range(turns):
        for a in range(agents):
            np.testing.assert_array_equal(whole[:, t, a], x[:, t, a * turns + t])
    back = fresh.parts(whole)
    np.testing.assert_array_equal(fresh.whole(back), whole)
    assert np.count_nonzero(back) == whole.size


@pytest.fixture(scope="module")
def talked():
    fresh = Forgetful(DILEMMA)
    tokenizer = words(fresh, "abc")
    policy_set = PolicySet(tokenizer, ("me",), tiny(tokenizer.vocab_size))
    rollout = Rollout(fresh, {"all": policy_set}, Lineup((fresh.line_up("me", "me"),), 8), (2, 2, 4))
    params = decoder.init(policy_set.config, jax.random.key(1))
    return fresh, rollout, params, jax.jit(rollout)({"all": {"params": params}}, jax.random.key(2))


def test_a_row_holds_the_rules_and_the_present_alone(talked):
    fresh, rollout, _, trajectory = talked
    rows, tokenizer = jax.device_get(trajectory.rows["all"]), rollout.policy_sets["all"].tokenizer
    text = {}
    for row, (episode, seat) in enumerate(zip(rows.episode, rows.seat, strict=True)):
        prompt = rows.prompts.tokens[rows.prompt[row]][: rows.prompts.length[rows.prompt[row]]]
        said = [int(x) for x in rows.tokens[row][: rows.length[row]]]
        text[int(episode), *divmod(int(seat), fresh.turns)] = tokenizer.decode([*prompt.tolist(), *said])
    for (episode, seat, turn), own in text.items():
        told = own.split("Answer A or B. Before each answer you both say one line to each other. ")[1]
        theirs = text[episode, 1 - seat, turn - 1] if turn else ""
        said = theirs.removesuffix(" <end>").rpartition("to them.")[2].strip() if turn % 2 else ""  # letters
        if turn == 0:
            assert told.startswith("Say one line to them.")
        elif turn % 2:  # the other's words of the turn before, and nothing else
            wanted = f"They say:\n {said} \nChoose.".replace("  ", " ") if said else "They say:\n \nChoose."
            assert told.startswith(wanted), (told, wanted)
        else:
            assert told.startswith("They chose ") and told.count("They") == 1
        assert own.count("<end>") == 1


@pytest.mark.long
def test_log_probabilities_as_sampled_are_those_of_scoring(talked):
    _, rollout, params, trajectory = talked
    rows = trajectory.rows["all"]
    sampled = gather_sampled(rows, trajectory.episodes.legal, rollout.max_sampled_tokens("all"))
    scores = rollout.layouts["all"].scorer()(params, rows, sampled)
    mask = np.asarray(sampled.mask)
    assert mask.sum() > 100
    np.testing.assert_allclose(np.asarray(scores.logp)[mask], np.asarray(sampled.behaviour_logp)[mask], atol=2e-5)


@pytest.mark.long
def test_a_forgetful_player_learns_what_needs_no_memory():
    """A chain of two locks: the player is told which is next. Leave-one-out advantages of turns."""
    game = Forgetful(LockChain(2, 3))

    def advantage(experience, hparams, state):
        episodes, (_, group, groups) = experience.episodes, experience.acts
        whole = game.whole(episodes.reward[..., 0])
        return Advantages(game.parts(advantages.round_leave_one_out(whole, game.whole(episodes.acted), group, groups)))

    recipe = Recipe(
        game,
        (game.line_up("me"),),
        advantage,
        hparams={"learning_rate": 1e-2},
        budget=1,
        groups=4,
        updates=40,
        measure=lambda episodes: {"solved": episodes.reward[..., 0].sum((1, 2)).mean()},
    )
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    state, found = trainer.init(), []
    for number in range(40):
        state, metrics = trainer.update(state, number)
        found.append(float(metrics["solved"][0]))
    assert np.mean(found[:3]) < 0.6 and np.mean(found[-3:]) > 0.9
