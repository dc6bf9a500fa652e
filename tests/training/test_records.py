"""What an estimator sees and what it may pass on: scores, keys, references, extras, masks, metrics, memory.

The long cases compile whole updates; `test_contract` traces every estimator, and `test_scoring` compiles scores.
"""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.masked import mean_of
from jaxmarl_llm.training import step
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Advantages, TinySize
from jaxmarl_llm.training.trainer import Trainer

PLAIN = estimator(advantages.rloo, per_agent=True)
RECIPE = Recipe(
    SixTurns(turns=4), seats=(("a", "b"),), advantage=PLAIN, groups=2, group_size=4, updates=3, size=TinySize(layers=1)
)


def once(recipe: Recipe, updates: int = 1):
    trainer = Trainer(recipe, [recipe.all_hparams], [3])
    state = trainer.init()
    for number in range(updates):
        state, metrics = trainer.update(state, number)
    return trainer, state, jax.tree.map(lambda x: np.asarray(x[0]), metrics)


@cache
def plainly():
    """`once` of the recipe itself."""
    return once(RECIPE)


def same(one, other) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.long
def test_scores_are_those_that_sampled_and_of_any_weights():
    trainer = Trainer(RECIPE, [RECIPE.all_hparams], [3])
    parts, run = trainer.parts, jax.tree.map(lambda x: x[0], trainer.init())
    zeros = jax.tree.map(jnp.zeros_like, run.learners.weights)
    order = np.array([2, 2, 1, 0, 7, 6, 6, 5])  # every prompt keeps as many rows

    @jax.jit
    def look(key):
        found = step.make_experience(parts, run, step.play(parts, run.learners.weights, key), key)
        own, flat = found.score("a"), found.score("a", weights=zeros)
        rows, sampled = found.rows["a"], found.sampled["a"]
        some = (
            rows.replace(tokens=rows.tokens[order], length=rows.length[order]),
            jax.tree.map(lambda x: x[order], sampled),
        )
        of_some = found.score("a", rows=some[0], sampled=some[1])
        return sampled, own, flat, of_some

    sampled, own, flat, of_some = look(jax.random.key(0))
    np.testing.assert_allclose(own.logp, sampled.behaviour_logp, atol=1e-5)
    np.testing.assert_allclose(of_some.logp, sampled.behaviour_logp[order], atol=1e-5)
    choices = sampled.legal.sum(-1)  # a token a letter: without weights all legal ones are alike
    np.testing.assert_allclose(
        jnp.where(sampled.mask, flat.logp, 0), jnp.where(sampled.mask, -jnp.log(choices), 0), 1e-5
    )


@pytest.mark.long
def test_a_loss_is_given_extras_and_numbers_of_the_estimator():
    """An advantage that comes as an extra, times a number that is passed on, gives the bits of the advantage itself."""

    def advantage(experience, hparams, state):
        found = PLAIN(experience, hparams, state).advantage
        by_token = {"a": jnp.ones_like(experience.token_value["a"]), "b": jnp.ones_like(experience.token_value["b"])}
        return Advantages(
            jnp.zeros_like(found),
            extra={"own": found, "one": by_token},
            hparams={"scale": jnp.float32(1)},
            metrics={"sum": found.sum()},
        )

    def loss(scores, batch, hparams):
        return losses.ppo(
            scores, batch.replace(advantage=hparams["scale"] * batch.extra["own"] * batch.extra["one"]), hparams
        )

    _, state, metrics = once(dataclasses.replace(RECIPE, advantage=advantage, loss=loss))
    _, plain, _ = plainly()
    assert same(state.learners.weights, plain.learners.weights) and "sum" in metrics
    _, still, _ = once(dataclasses.replace(RECIPE, advantage=advantage, hparams={"entropy": 0.0}))
    assert not same(still.learners.weights, plain.learners.weights)


@pytest.mark.long
def test_tokens_that_are_not_trained_are_left_out():
    """Those of seat 1 here: its policy stays where it is, entropy and all."""
    seat = jnp.array([True, False])
    left_out = lambda experience, *more: PLAIN(experience, *more)._replace(
        trained=jnp.broadcast_to(seat, experience.episodes.acted.shape)
    )
    trainer, state, _ = once(dataclasses.replace(RECIPE, advantage=left_out))
    start, (_, plain, _) = trainer.init(), plainly()
    assert same(state.learners.weights["b"], start.learners.weights["b"])
    assert same(state.learners.weights["a"], plain.learners.weights["a"])


@pytest.mark.long
def test_what_a_loss_measured_is_remembered():
    """A running mean of the entropy that the loss reports, against one of the reported numbers."""

    def advantage(experience, hparams, state):
        remember = lambda state, metrics: 0.5 * state + 0.5 * metrics["entropy/a"]
        return PLAIN(experience, hparams, state)._replace(state=state, remember=remember)

    recipe = dataclasses.replace(RECIPE, advantage=advantage, init_state=lambda parts, key: jnp.float32(0))
    trainer, expected = Trainer(recipe, [recipe.all_hparams], [0]), 0.0
    state = trainer.init()
    for number in range(3):
        state, metrics = trainer.update(state, number)
        expected = 0.5 * expected + 0.5 * float(metrics["entropy/a"][0])
        assert float(state.state[0]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.long
def test_an_estimator_of_the_state_before_learns_from_its_own_key_and_reference():
    """The key is the update's own; the reference says before training what the policy says."""

    def advantage(experience, hparams, state):
        gap = jnp.abs(experience.reference_logp["a"] - experience.sampled["a"].behaviour_logp)
        drawn = jax.random.uniform(experience.key)
        found = PLAIN(experience, hparams, state)
        return found._replace(metrics={"gap": mean_of(gap, experience.sampled["a"].mask).value, "drawn": drawn})

    recipe = dataclasses.replace(RECIPE, advantage=advantage, reference=True)
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    state, found = trainer.init(), []
    for number in range(3):
        state, metrics = trainer.update(state, number)
        found.append((float(metrics["gap"][0]), float(metrics["drawn"][0])))
    assert found[0][0] < 1e-5 < found[2][0] and len({drawn for _, drawn in found}) == 3


def test_statistics_are_those_of_the_seats_that_learn():
    """Whitened over the batch, the learners' advantages have mean 0 and deviation 1, scripts or not."""
    whitened = estimator(partial(advantages.grpo), per_agent=False)
    game = MatrixGame(rounds=2)
    recipe = Recipe(game, seats=(("a", "always_defect"),), advantage=whitened, groups=4, group_size=8)
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    parts, run = trainer.parts, jax.tree.map(lambda x: x[0], trainer.init())

    def look(key):
        found = step.make_experience(parts, run, step.play(parts, run.learners.weights, key), key)
        return found.episodes, found.learns, step.estimate(parts, run, {}, found).advantage

    episodes, learns, advantage = jax.jit(look)(jax.random.key(1))
    assert learns.tolist() == [[True, False]] * 32
    own = np.asarray(episodes.total_reward.sum(1))[:, 0].reshape(4, 8)
    expected = (own - own.mean(1, keepdims=True)) / np.maximum(own.std(1, keepdims=True), 1e-9)
    np.testing.assert_allclose(advantage[:, 0, 0].reshape(4, 8), expected, atol=1e-3)
    assert not advantage[..., 1].any()
