"""The first ratio of an update is 1 in every dtype, and the sampler's log-probabilities are kept beside it. Forms
of a micro-batch have equal gradients.

The long cases compile updates in bfloat16, which XLA rounds after every operation on a CPU; the short ones compile
scorers or trace.
"""

import dataclasses
from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.training import step
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import TinySize
from jaxmarl_llm.training.scoring import buckets_of, by_micro_batch, scored_again
from jaxmarl_llm.training.setup import Model
from jaxmarl_llm.training.trainer import Trainer


def ppo_with_ratios(scores, batch, hparams):
    """PPO, and the largest and mean distance of a ratio from 1."""
    total, metrics = losses.ppo(scores, batch, hparams)
    distance = jnp.where(batch.mask, jnp.abs(jnp.exp(scores.logp - batch.behaviour_logp) - 1), 0)
    tokens = batch.mask.sum().astype(jnp.float32)
    largest = jnp.where(tokens > 0, distance.max(), 0)
    return total, {**metrics, "largest": Mean(largest, jnp.float32(1)), "mean": Mean(distance.sum(), tokens)}


PLAIN = estimator(advantages.rloo, per_agent=True)
SETTINGS = {"groups": 4, "group_size": 4, "updates": 3, "hparams": {"learning_rate": 1e-2}}
SHIFT = 0.125
RECIPE = Recipe(SixTurns(turns=4), seats=(("a", "b"),), advantage=PLAIN, loss=ppo_with_ratios, **SETTINGS)


def trainer_of(recipe, dtype, **options):
    models = {name: Model(dtype=dtype) for name in recipe.learners}
    return Trainer(recipe, [recipe.all_hparams], [3], models, **options)


def metrics_of(recipe, dtype, updates=3):
    trainer, history = trainer_of(recipe, dtype), []
    state = trainer.init()
    for number in range(updates):
        state, metrics = trainer.update(state, number)
        history.append({name: float(x[0]) for name, x in metrics.items()})
    return history


def with_targets(experience, hparams, state):
    return PLAIN(experience, hparams, state)._replace(value_target=experience.turn_value)


ALL = {"grad_accumulation": 2, "remat": "dots", "buckets": 2, "critic": True, "advantage": with_targets}


@pytest.mark.long
@pytest.mark.parametrize(
    "change", [pytest.param({}, id="plain"), pytest.param({"seats": (("a", "a"),), **ALL}, id="all settings")]
)
def test_in_bfloat16_the_first_ratio_is_one_and_the_mismatch_is_reported(change, monkeypatch):
    """Of a sampler that is wrong by SHIFT: on some processors a tiny one rounds as its update does."""
    recipe, play = dataclasses.replace(RECIPE, **change), step.play

    def shifted(*given):
        played = play(*given)
        rows = {name: x.replace(logp=x.logp + SHIFT * x.loss_mask) for name, x in played.rows.items()}
        return played.replace(rows=rows)

    monkeypatch.setattr(step, "play", shifted)
    history = metrics_of(recipe, "bfloat16")
    for metrics in history:
        for name in recipe.learners:
            assert metrics[f"largest/{name}"] <= 1e-2 and metrics[f"mean/{name}"] <= 1e-3
            assert 0.9 < metrics[f"effective_sample_size/{name}"] <= 1
            np.testing.assert_allclose(metrics[f"mismatch/{name}"], SHIFT, atol=0.01)


def test_in_float32_nothing_is_scored_again():
    trainer = trainer_of(RECIPE, "float32")
    assert not any(scored_again(trainer.parts, name) for name in ("a", "b"))
    _, batches = jax.eval_shape(trainer.functions.sample, trainer.base, trainer.hparams_at(0), jax.random.key(0))
    assert all(part.sampled.sampler_logp is None for part in batches.values())


@pytest.mark.long
def test_what_the_sampler_said_is_kept_and_games_of_older_weights_have_nothing_else():
    trainer = trainer_of(RECIPE, "bfloat16")
    key = jax.random.key(0)

    @jax.jit
    def look(key):
        run = jax.tree.map(lambda x: x[0], state)
        played = step.play(trainer.parts, run.learners.weights, key)
        older = dataclasses.replace(trainer.parts, ahead=True)
        again, never = (step.make_experience(parts, run, played, key) for parts in (trainer.parts, older))
        return again.sampled["a"], never.sampled["a"], again.score("a").logp

    state = trainer.init()
    again, never, scores = look(key)
    np.testing.assert_array_equal(again.sampler_logp, never.behaviour_logp)
    np.testing.assert_allclose(again.behaviour_logp, scores, atol=1e-2)
    assert never.sampler_logp is None
    ahead = trainer_of(RECIPE, "bfloat16", rollout_mesh="data=1")
    assert trainer.parts.ahead is False and ahead.parts.ahead is True


@cache
def scores_at_once():
    """(score, a batch, its scores at once), sampled and compiled once."""
    trainer = trainer_of(RECIPE, "float32")
    run, batches = trainer.sample_batch()
    given, score = (batches["a"].rows, batches["a"].sampled), trainer.parts.scorer("a")
    weights = jax.tree.map(lambda x: 3 * x, run.learners.weights["a"]["policy"])
    logp = lambda rows, sampled: score(weights, rows, sampled).logp
    return logp, given, jax.jit(logp)(*given)


@pytest.mark.parametrize(("minibatches", "grad_accumulation"), [(1, 4), (2, 2)])
@pytest.mark.long
def test_scores_by_micro_batch_are_those_of_all_rows(minibatches, grad_accumulation):
    recipe = dataclasses.replace(RECIPE, minibatches=minibatches, grad_accumulation=grad_accumulation)
    parts, (logp, given, whole) = trainer_of(recipe, "float32").parts, scores_at_once()
    found = jax.jit(lambda rows, sampled: by_micro_batch(parts, logp, rows, sampled))(*given)
    np.testing.assert_allclose(found, whole, atol=1e-5)
    assert len(np.unique(np.asarray(found))) > 3


@pytest.mark.long
@pytest.mark.parametrize("change", [{}, {"seats": (("a", "b"),)}])
def test_equal_rows_are_computed_once_and_change_nothing(change):
    """In a game of two letters a turn a group has few different rows; gradients of its distinct rows are those of
    all."""
    recipe = Recipe(
        KuhnPoker(), **{"seats": (("a", "a"),), **change}, advantage=with_targets, critic=True,
        groups=2, group_size=8, distinct=4, buckets=2, size=TinySize(layers=1),
    )  # fmt: skip
    trainer = Trainer(recipe, [recipe.all_hparams], [0], "tiny_base")
    state = trainer.init()
    batches = jax.tree.map(lambda x: x[0], trainer.replay_update(state, 0)[1])
    weights = jax.tree.map(lambda x: x[0], state.learners.weights)
    parts = dataclasses.replace(trainer.parts, base=trainer.base)
    forms = buckets_of(parts)
    needed = np.asarray(forms.needed(batches))
    assert forms.number == 3 and (needed == 0).all()

    @partial(jax.jit, static_argnums=1)
    def gradient(weights, form):
        cut = forms.cut(batches, form)
        total = lambda weights: sum(
            x.sum for x in step.joint_loss(parts, recipe.all_hparams, {}, weights, cut)[0].values()
        )
        return jax.value_and_grad(total)(weights)

    shared, whole = gradient(weights, 0), gradient(weights, 2)
    chex.assert_trees_all_close(shared, whole, rtol=1e-4, atol=1e-5)
    assert max(abs(x).max() for x in jax.tree.leaves(whole[1])) > 0.01
    fewer = buckets_of(dataclasses.replace(parts, recipe=dataclasses.replace(recipe, distinct=1)))
    assert (np.asarray(fewer.needed(batches)) > 0).any()
