"""Ordered updates against a loop that masks, scores and multiplies by hand; one unit of all tokens is the plain one.

All cases are long, as they compile an update for each order; `test_contract` traces the study of turn orders. A third
order is slow.
"""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.keys import SHUFFLE, key_for
from jaxmarl_llm.methods.sequential import by_seat, by_turn, in_order
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training import step
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import TinySize
from jaxmarl_llm.training.scoring import score_policies
from jaxmarl_llm.training.setup import TINY_BASE, Model
from jaxmarl_llm.training.trainer import Trainer

RECIPE = Recipe(
    SixTurns(turns=4),
    seats=(("a", "b"),),
    advantage=estimator(advantages.rloo, per_agent=True),
    hparams={"learning_rate": 0.02},
    groups=2,
    group_size=4,
    updates=2,
    size=TinySize(layers=1),
)
TRAINER = Trainer(RECIPE, [RECIPE.all_hparams], [3])
PARTS, KEY = TRAINER.parts, jax.random.key(5)
FIELDS = [
    "prompt",
    "tokens",
    "length",
    "turn",
    "loss_mask",
    "logp",
    "episode",
    "seat",
    "policy",
    "grammar_state",
    "tokens_left",
]  # of rows
HPARAMS = {name: jnp.float32(x) for name, x in RECIPE.all_hparams.items()}


@pytest.fixture(scope="module")
def start():
    return TRAINER.sample_batch(3)


@jax.jit
def scored(weights, batches):
    return {n: score_policies(PARTS, weights, n, p.rows, p.sampled)[0].logp for n, p in batches.items()}


@jax.jit
def plain(learners, batches, key):
    return step.apply_update(PARTS, learners, HPARAMS, batches, key, {})


@cache
def ordered(**given):
    """`in_order` of learners, batches and an order, compiled once for the same options."""

    @jax.jit
    def update(learners, batches, units):
        return in_order(PARTS, learners, HPARAMS, batches, KEY, {}, order=lambda hparams, key: units, **given)

    return update


TURNS = {"unit": by_turn, "carry": 1.0, "product": False}


def by_hand(run, batches, order, unit, carried, product, within=None, idle_waits=False):
    """(weights, M [episodes, steps]) after the updates of `order`, each by the plain update of a masked batch.

    A policy has a set of its own."""
    learners, multiplier = run.learners, np.ones((8, 4))
    after = scored(learners.weights, batches)
    for number, which in enumerate(order):
        before, own = after, {}
        for name, part in batches.items():
            mask = np.asarray(part.batch.mask) & (np.asarray(unit(part.batch)) == which)
            at = np.asarray(part.batch.episode)[:, None], steps_of(part.batch, within)
            advantage = np.asarray(part.batch.advantage) * multiplier[at]
            changed = part.batch.replace(mask=mask, behaviour_logp=before[name], advantage=advantage.astype(np.float32))
            own[name] = part.replace(batch=changed)
        old, (learners, _) = learners, plain(learners, own, key_for(KEY, SHUFFLE, number))
        for name in [name for name, part in own.items() if idle_waits and not part.batch.mask.any()]:
            learners.weights[name], learners.optimiser[name] = old.weights[name], old.optimiser[name]
        after = scored(learners.weights, batches)
        for place in np.ndindex(*multiplier.shape):
            logs = []
            for name, part in own.items():
                here = np.asarray(part.batch.episode)[:, None] == place[0]
                here = here & (steps_of(part.batch, within) == place[1]) & np.asarray(part.batch.mask)
                logs += list((after[name] - before[name])[here])
            ratio = np.exp(np.sum(logs) if product else np.mean(logs)) if logs else 1.0
            if carried:
                multiplier[place] = np.clip(multiplier[place] * np.clip(ratio, 0.8, 1.2), 0.8, 1.2)
    return learners.weights, multiplier


def steps_of(batch, within):
    return np.zeros(batch.turn.shape, int) if within is None else np.asarray(within(batch))


IN_PAIRS = {"within": lambda batch: batch.turn // 2, "idle_waits": True}


@pytest.mark.long
@pytest.mark.parametrize(
    "order, unit, carry, product, more",
    [
        ([3, 2, 1, 0], by_turn, 1.0, False, {}),
        ([1, 0], by_seat, 1.0, True, IN_PAIRS),
        pytest.param([0, 1, 2, 3], by_turn, 0.0, False, {}, marks=pytest.mark.slow),
    ],
)
def test_each_unit_sees_what_those_before_it_changed(start, order, unit, carry, product, more):
    run, batches = start
    update = ordered(unit=unit, carry=carry, product=product, **more)
    learners, metrics = update(run.learners, batches, jnp.array(order))
    weights, multiplier = by_hand(run, batches, order, unit, carry, product, **more)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), learners.weights, weights)
    assert metrics["skipped"] == 0
    assert (multiplier != 1).any() == bool(carry)


@pytest.mark.long
def test_rows_in_another_order_are_multiplied_alike(start):
    """As released, the multiplier went by the row, and rows of another turn may lie in another order."""
    run, batches = start
    update = lambda batches: ordered(**TURNS)(run.learners, batches, jnp.array([3, 2, 1, 0]))[0].weights
    moved = {}
    for name, part in batches.items():
        rows = np.array([3, 2, 1, 0, 5, 4, 7, 6])  # within their prompts
        moved[name] = part.replace(
            rows=part.rows.replace(**{f: getattr(part.rows, f)[rows] for f in FIELDS}),
            sampled=jax.tree.map(lambda x, rows=rows: x[rows], part.sampled),
            batch=jax.tree.map(lambda x, rows=rows: x[rows], part.batch),
        )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), update(batches), update(moved))


@pytest.mark.long
def test_orders_that_update_nothing_are_said(start):
    run, batches = start
    update = lambda **given: in_order(PARTS, run.learners, HPARAMS, batches, KEY, {}, **given)
    for wrong in ([], [0.5, 1.5], 3):
        with pytest.raises(ValueError, match=r"An order is int \[n\]"):
            update(order=lambda hparams, key, wrong=wrong: jnp.array(wrong))
    with pytest.raises(ValueError, match="no hparam 'carri'"):
        update(order=lambda hparams, key: jnp.array([0]), carry="carri")
    _, metrics = ordered(**TURNS)(run.learners, batches, jnp.array([7, 3, 2, 7]))
    assert metrics["idle"] == 0.5  # there is no turn 7


AT_ONCE = [0], {"unit": lambda batch: jnp.zeros_like(batch.turn)}
SEPARATE = [0, 1], {"unit": by_seat, "carry": 0.0, "idle_waits": True}


@pytest.mark.long
@pytest.mark.parametrize(("order", "given"), [AT_ONCE, SEPARATE])
def test_one_unit_of_everything_and_seats_without_a_multiplier_are_the_plain_update(start, order, given):
    """A policy learns from its own words alone, so that only M tells it that another one has learnt before."""
    run, batches = start
    one_by_one = ordered(**given)(run.learners, batches, jnp.array(order))[0].weights
    at_once = plain(run.learners, batches, KEY)[0].weights
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), one_by_one, at_once)


@pytest.mark.long
def test_an_adapter_waits_though_its_policy_set_learns():
    """Seat 0 alone has its turn. The other seat's adapter, of the same base, has momentum from an update of both."""
    models = dict.fromkeys("ab", Model(TINY_BASE, Lora(2, 4.0)))
    trainer = Trainer(RECIPE, [RECIPE.all_hparams], [3], models)
    assert len(trainer.policy_sets) == 1
    run, batches = trainer.sample_batch(3)
    order = {"order": lambda hparams, key: jnp.zeros(1, int), "unit": by_seat, "carry": 0.0}

    @jax.jit
    def ends(base):
        moving, _ = step.apply_update(trainer.parts, run.learners, HPARAMS, batches, KEY, base)
        waits = [in_order(trainer.parts, moving, HPARAMS, batches, KEY, base, **order, idle_waits=x)[0] for x in (0, 1)]
        return moving, *waits

    moving, moved, waited = jax.device_get(ends(trainer.base))
    for kind in ("weights", "optimiser"):
        before, other, same = (getattr(learners, kind) for learners in (moving, moved, waited))
        jax.tree.map(np.testing.assert_array_equal, same["b"], before["b"])
        jax.tree.map(np.testing.assert_array_equal, same["a"], other["a"])
    changes = [jax.tree.map(lambda a, b: abs(a - b).max(), x.weights, moving.weights) for x in (moved, waited)]
    (a, b), (a_waiting, _) = ([max(jax.tree.leaves(change[name])) for name in "ab"] for change in changes)
    assert min(a, b, a_waiting) > 1e-4


@pytest.mark.long
def test_a_recipe_trains_in_order_and_its_runs_equal_each_alone():
    order = lambda hparams, key: jax.random.permutation(key, 4)
    recipe = replace(
        RECIPE, seats=(("a", "a"),), step=partial(step.on_policy_step, apply=partial(in_order, order=order))
    )
    found = []
    for seeds in ([3], [3, 4]):
        trainer = Trainer(recipe, [recipe.all_hparams] * len(seeds), seeds)
        state = trainer.init()
        for number in range(2):
            state, metrics = trainer.update(state, number)
        found.append(trainer.weights(state, 0))
        assert np.isfinite(np.asarray(metrics["loss"])).all() and not np.asarray(metrics["skipped"]).any()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), *found)
