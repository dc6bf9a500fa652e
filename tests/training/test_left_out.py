"""Episodes that paid what is not finite teach nothing, are counted and named; the others teach as if alone.

The long case compiles two games; the short ones name an episode of one game.
"""

import dataclasses
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.methods.several_games import together
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training import step
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.left_out import leave_out, mean_of_kept
from jaxmarl_llm.training.recipe import Recipe, component_returns, mean_return
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.training.watch import NonFiniteError
from tests.support.toys import Erratic

BAD = (float("nan"), float("inf"), float("-inf"), 3e38)


@dataclass(frozen=True)
class PaysFor(Around):
    """A game that pays everybody `value` for one action of a seat."""

    value: float
    seat: int = 1
    action: int = 1

    def step(self, state, action, key):
        state, view, reward = self.game.step(state, action, key)
        return state, view, jnp.where(action[self.seat] == self.action, self.value, reward)


PLAIN = estimator(advantages.rloo, per_agent=True)
RECIPE = Recipe(SixTurns(turns=2), seats=(("a", "b"),), advantage=PLAIN, groups=2, group_size=8)


ONE = dataclasses.replace(RECIPE, seats=(("a", "a"),))  # one policy: half the program, where no policy matters


def trainer_of(game, base=RECIPE, **settings):
    recipe = dataclasses.replace(base, game=game)
    return Trainer(recipe, [recipe.all_hparams], [3], **settings)


def updates(trainer, number):
    state, history = trainer.init(), []
    for i in range(number):
        state, metrics = trainer.update(state, i)
        history.append({name: x[0].item() for name, x in metrics.items()})
    return state, history


def test_an_episode_that_pays_what_is_not_finite_is_left_out_and_named():
    trainer = trainer_of(PaysFor(RECIPE.game, float("nan")), ONE)
    with pytest.warns(
        UserWarning, match=r"PaysFor paid seat 0 what is not finite, or beyond 1e30, in turn 1 of episode \d+"
    ) as told:
        state, history = updates(trainer, 3)
    assert "after seat 1 said 'B' (episodes with such rewards: left out: " in str(told[0].message)
    assert all(0 < metrics["left_out"] < 16 and not metrics["skipped"] for metrics in history)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.learners.weights))
    assert not any("left_out/" in name for name in history[0])


def test_of_several_seeds_the_one_that_paid_is_named():
    def told_by(trainer):
        trainer.watch.tell = (told := []).append
        places = {"episode": 5, "turn": 1, "seat": 0, "speaker": 1, "action": 1}
        metrics = {f"left_out/{name}": np.array([*[-1] * (runs - 1), place]) for name, place in places.items()}
        metrics |= {"left_out": np.array([0] * (runs - 1) + [2]), "skipped": np.zeros(runs, int)}
        for number in range(3):
            trainer.watch(number, metrics, None)
        return told

    for runs, words in ((3, "Update 1 of seed 568406: SixTurns paid seat 0"), (1, "Update 1: SixTurns paid seat 0")):
        (sentence,) = told_by(Trainer(ONE, [ONE.all_hparams] * runs, [9, 0, 568406][-runs:]))
        assert sentence.startswith(words) and "turn 1 of episode 5, after seat 1 said 'B'" in sentence


@pytest.mark.long
def test_the_mean_return_is_that_of_the_other_episodes():
    trainer = trainer_of(RECIPE.game, ONE)
    run = jax.tree.map(lambda x: x[0], trainer.init())
    played = step.play(trainer.parts, run.learners.weights, jax.random.key(0))
    returns = np.asarray(played.episodes.reward.sum((1, 3)))
    bad = np.arange(len(returns)) % 3 == 0
    reward = jnp.where(bad[:, None, None, None], jnp.nan, played.episodes.reward)
    kept, counted = leave_out(played.replace(episodes=played.episodes.replace(reward=reward)))
    assert counted["left_out"] == bad.sum() and returns[~bad].mean() != returns.mean()
    np.testing.assert_allclose(mean_return(kept.episodes)["return"], returns[~bad].mean(), rtol=1e-6)
    paid = np.asarray(played.episodes.reward[..., 0].sum(1))
    np.testing.assert_allclose(component_returns(kept.episodes, paid=0)["paid"], paid[~bad].mean(), rtol=1e-6)
    np.testing.assert_allclose(mean_return(played.episodes)["return"], returns.mean(), rtol=1e-6)


def test_a_mean_without_an_episode_left_out_is_the_plain_one_bit_for_bit():
    """XLA multiplies by the rounded inverse of a constant count, and divides by any other count."""
    drawn = np.random.default_rng(0).normal(size=(50, 12, 3)).astype(np.float32)
    acted = jnp.ones((12, 1, 1), bool)

    @jax.jit
    def both(x):
        episodes = SimpleNamespace(acted=acted & (x[:, :1, None] < jnp.inf))
        return mean_of_kept(episodes, x), x.mean(), mean_of_kept(episodes, x, axis=0), x.mean(0)

    ours, plain, ours_by_seat, plain_by_seat = zip(*map(both, drawn), strict=True)
    np.testing.assert_array_equal(ours, plain)
    np.testing.assert_array_equal(ours_by_seat, plain_by_seat)


@pytest.mark.long
def test_the_other_episodes_teach_what_they_teach_without_it():
    """The gradient is that of a batch in which the episode's acts are taken away by hand."""
    trainer = trainer_of(RECIPE.game, ONE)
    parts, run = trainer.parts, jax.tree.map(lambda x: x[0], trainer.init())
    key = jax.random.key(0)

    @jax.jit
    def learn(value, hidden):
        played = step.play(parts, run.learners.weights, key)
        episodes = played.episodes
        gone = jnp.arange(16) == 5
        reward = jnp.where(gone[:, None, None, None], value, 0) + episodes.reward
        acted = episodes.acted & ~(gone & hidden)[:, None, None]
        rows = {
            name: own.replace(loss_mask=own.loss_mask & ~(gone & hidden)[own.episode, None])
            for name, own in played.rows.items()
        }
        played = played.replace(episodes=episodes.replace(reward=reward, acted=acted), rows=rows)
        hparams = {name: x[0] for name, x in trainer.hparams_at(0).items()}
        return step.learn(parts, run, hparams, played, key, {})

    (by_hand, _), (whole, _) = learn(0.0, True), learn(0.0, False)
    for value in BAD:
        left, metrics = learn(value, False)
        jax.tree.map(np.testing.assert_array_equal, left.learners.weights, by_hand.learners.weights)
        assert metrics["left_out"] == 1 and metrics["left_out/episode"] == 5
    leaves = zip(jax.tree.leaves(left.learners.weights), jax.tree.leaves(whole.learners.weights), strict=True)
    assert any((a != b).any() for a, b in leaves)


@pytest.mark.long
def test_where_all_episodes_are_bad_the_update_is_skipped_and_a_script_ends():
    trainer = trainer_of(Erratic(RECIPE.game, float("nan")), ONE, max_skipped=3)
    state = trainer.init()
    with (
        pytest.raises(NonFiniteError, match="Up to step 2, updates of lanes"),
        pytest.warns(UserWarning, match="all of them, so the update is skipped"),
    ):
        for number in range(9):
            state, metrics = trainer.update(state, number)
            assert metrics["skipped"][0] == 1 and metrics["left_out"][0] == 0
    assert number == 3  # metrics come one update later
    never = trainer_of(trainer.recipe.game, ONE, max_skipped=0)
    trainer.watch = never.watch  # the same program
    assert len(updates(trainer, 12)[1]) == 12


def test_finite_games_stay_bit_for_bit():
    trainer = trainer_of(RECIPE.game, ONE)
    played = jax.tree.map(lambda x: x[0], trainer.play(trainer.init()))
    kept, metrics = leave_out(played)
    jax.tree.map(np.testing.assert_array_equal, kept, played)
    assert metrics["left_out"] == 0 and metrics["left_out/turn"] == -1


@pytest.mark.long
def test_of_several_games_the_one_that_pays_it_is_named():
    dilemma = dataclasses.replace(RECIPE, game=PaysFor(MatrixGame(rounds=2), float("nan")), seats=(("a", "a"),))
    letters = dataclasses.replace(RECIPE, seats=(("a", "a"),))
    recipe = together({"letters": letters, "dilemma": dilemma})
    with pytest.warns(
        UserWarning, match=r"Update 1: dilemma paid seat 0 what is not finite, or beyond 1e30, in turn \d of episode"
    ):
        updates(Trainer(recipe, [recipe.all_hparams], [3]), 2)
