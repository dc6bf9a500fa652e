from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmarl_llm.rl.masked import Mean, mean_of
from jaxmarl_llm.training.update import Buckets, Learners, Optimiser, update

OPENINGS, MEMBERS, WIDTH = 12, 3, 4
KEY = jax.random.key(0)
NAMES = ("one", "two")
optimise = jax.jit(update, static_argnums=(0, 1, 4))


def start(names=NAMES) -> dict:
    generator = np.random.default_rng(0)
    value = lambda *shape: jnp.asarray(generator.normal(size=shape), jnp.float32)
    return {name: {"slope": value(WIDTH), "inner": {"offset": value()}} for name in names}


def batch_of(seed: int) -> dict:
    """Data of rows, three to a prompt, and of prompts; the number of rows that count differs between prompts."""
    generator = np.random.default_rng(seed)
    rows = OPENINGS * MEMBERS
    return {
        "x": jnp.asarray(generator.normal(size=(rows, WIDTH)), jnp.float32),
        "where": jnp.asarray(generator.random(rows) < np.repeat(np.linspace(0.1, 0.9, OPENINGS), MEMBERS))
        .at[0]
        .set(True),
        "aim": jnp.asarray(generator.normal(size=OPENINGS) * 3, jnp.float32),
        "prompt": jnp.arange(OPENINGS),
        "row": jnp.arange(rows),
    }


def loss(weights: dict, batch: dict) -> tuple[Mean, dict[str, Mean]]:
    """Each policy's regression on the rows that count; the policies' gradients differ in size by a factor."""
    aim = jnp.repeat(batch["aim"], MEMBERS)
    error = jnp.zeros(len(aim))
    for scale, own in enumerate(weights.values(), start=1):
        error += 3**scale * (batch["x"] @ own["slope"] + own["inner"]["offset"] - aim) ** 2
    return mean_of(error, batch["where"]), {"first": mean_of(batch["x"][:, 0], batch["where"])}


def by_hand(settings: Optimiser, weights: dict, batches: list[dict], rate: float) -> dict:
    """One optax optimiser for each policy, stepped on the mean over each batch as a whole."""
    adam = optax.adam(rate, settings.b1, settings.b2, settings.eps)
    optimiser = optax.chain(optax.clip_by_global_norm(settings.max_grad_norm), adam)
    states = {name: optimiser.init(own) for name, own in weights.items()}
    for batch in batches:
        gradient = jax.grad(lambda weights, batch=batch: loss(weights, batch)[0].value)(weights)
        for name in weights:
            step, states[name] = optimiser.update(gradient[name], states[name])
            weights = {**weights, name: optax.apply_updates(weights[name], step)}
    return weights


def close(actual, expected, tolerance: float = 1e-6) -> None:
    chex.assert_trees_all_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("names", [NAMES[:1], NAMES])
@pytest.mark.parametrize("max_grad_norm", [0.5, 1e6])
def test_updates_equal_a_loop_of_optax(names, max_grad_norm):
    settings = Optimiser(max_grad_norm=max_grad_norm, b1=0.8, b2=0.95, eps=1e-3)
    learners = settings.init(start(names))
    batches = [batch_of(seed) for seed in range(3)]
    for batch in batches:
        before = learners.weights
        learners, metrics = optimise(settings, loss, learners, batch, OPENINGS, 0.1, KEY)
        value, gradient = jax.value_and_grad(lambda w, batch=batch: loss(w, batch)[0].value)(before)
        close(metrics["loss"], value, 1e-5)
        for name in names:  # the norm before clipping
            close(metrics[f"gradient_norm/{name}"], optax.tree.norm(gradient[name]), 1e-5)
        close(metrics["first"], np.asarray(batch["x"])[np.asarray(batch["where"]), 0].mean())
        assert metrics["skipped"] == 0
    close(learners.weights, by_hand(settings, start(names), batches, 0.1))
    assert learners.skipped == 0


@pytest.mark.parametrize("grad_accumulation", [2, 3, 12])
def test_micro_batches_equal_one_batch(grad_accumulation):
    whole, parts = Optimiser(eps=1e-3), Optimiser(eps=1e-3, grad_accumulation=grad_accumulation)
    batch = batch_of(0)
    counts = np.asarray(batch["where"]).reshape(OPENINGS, MEMBERS).sum(1)
    assert len(set(counts.tolist())) > 2  # a mean of means would differ
    one = optimise(whole, loss, whole.init(start()), batch, OPENINGS, 0.1, KEY)
    several = optimise(parts, loss, parts.init(start()), batch, OPENINGS, 0.1, KEY)
    close(several, one)


@pytest.mark.parametrize(("epochs", "minibatches", "grad_accumulation"), [(1, 1, 3), (2, 4, 1), (3, 3, 2), (2, 12, 1)])
def test_every_epoch_visits_every_group_once_and_whole(epochs, minibatches, grad_accumulation):
    settings = Optimiser(epochs=epochs, minibatches=minibatches, grad_accumulation=grad_accumulation)
    visits: list[tuple[list[int], list[int]]] = []

    def watched(weights, batch):
        note = lambda prompt, row: visits.append((prompt.tolist(), row.tolist()))
        jax.debug.callback(note, batch["prompt"], batch["row"], ordered=True)
        return loss(weights, batch)

    def play(key):
        visits.clear()
        jax.block_until_ready(
            update(settings, watched, settings.init(start()), batch_of(0), OPENINGS, jnp.float32(0.1), key)
        )
        jax.effects_barrier()
        return list(visits)

    seen = play(KEY)
    parts = minibatches * grad_accumulation
    assert len(seen) == epochs * parts
    orders = []
    for epoch in range(epochs):
        order = []
        for prompts, rows in seen[epoch * parts : (epoch + 1) * parts]:
            assert len(prompts) == OPENINGS // parts
            assert rows == [prompt * MEMBERS + member for prompt in prompts for member in range(MEMBERS)]
            order += prompts
        assert sorted(order) == list(range(OPENINGS))
        orders.append(tuple(order))
    if minibatches > 1:
        assert len(set(orders)) == epochs  # shuffled anew in every epoch, and with every key
        assert play(jax.random.key(1)) != seen
        assert play(KEY) == seen


def test_minibatches_and_epochs_are_further_steps_of_the_same_optimiser():
    settings = Optimiser(eps=1e-3, epochs=3)
    learners, _ = optimise(settings, loss, settings.init(start()), batch_of(0), OPENINGS, 0.1, KEY)
    close(learners.weights, by_hand(settings, start(), [batch_of(0)] * 3, 0.1))


@pytest.mark.parametrize("grad_accumulation", [1, 3])
@pytest.mark.parametrize("fault", ["nan loss", "infinite loss", "nan gradient of one policy"])
def test_what_is_not_finite_changes_nothing_and_is_counted(fault, grad_accumulation):
    settings = Optimiser(grad_accumulation=grad_accumulation)
    good, batch = batch_of(0), batch_of(1)
    counts = int(np.flatnonzero(batch["where"])[0])
    if "loss" in fault:
        bad = batch | {"x": batch["x"].at[counts].set(jnp.nan if "nan" in fault else jnp.inf)}
        faulty = loss
    else:
        bad = batch

        def faulty(weights, batch):
            total, metrics = loss(weights, batch)
            zero = weights["two"]["inner"]["offset"] - jax.lax.stop_gradient(weights["two"]["inner"]["offset"])
            return Mean(total.sum + jnp.sqrt(zero), total.count), metrics  # sqrt has an infinite slope at 0

        value, gradient = jax.value_and_grad(lambda w: faulty(w, bad)[0].value)(start())
        assert jnp.isfinite(value) and not jnp.isfinite(gradient["two"]["inner"]["offset"])
    learners, _ = optimise(settings, loss, settings.init(start()), good, OPENINGS, 0.1, KEY)
    after, metrics = optimise(settings, faulty, learners, bad, OPENINGS, 0.1, KEY)
    chex.assert_trees_all_equal(after.replace(skipped=jnp.int32(0)), learners)
    assert after.skipped == 1 and metrics["skipped"] == 1
    onward, metrics = optimise(settings, loss, after, good, OPENINGS, 0.1, KEY)
    expected, _ = optimise(settings, loss, learners, good, OPENINGS, 0.1, KEY)
    assert onward.skipped == 1 and metrics["skipped"] == 0 and metrics["loss"] > 0
    chex.assert_trees_all_equal(onward.replace(skipped=jnp.int32(0)), expected)


def test_weights_that_would_not_be_finite_are_not_taken():
    settings = Optimiser()
    learners = settings.init(start())
    after, metrics = optimise(settings, loss, learners, batch_of(0), OPENINGS, jnp.inf, KEY)
    assert jnp.isfinite(metrics["loss"]) and metrics["skipped"] == 1
    chex.assert_trees_all_equal(after.replace(skipped=jnp.int32(0)), learners)


def test_one_bad_minibatch_leaves_the_others_to_learn():
    settings = Optimiser(minibatches=4, epochs=2)
    batch = batch_of(0)
    bad = batch | {"aim": batch["aim"].at[OPENINGS - 1].set(jnp.nan), "where": jnp.ones(OPENINGS * MEMBERS, bool)}
    learners, metrics = optimise(settings, loss, settings.init(start()), bad, OPENINGS, 0.1, KEY)
    assert learners.skipped == metrics["skipped"] == 2
    moved = jax.tree.map(lambda a, b: bool(jnp.isfinite(a).all() & (a != b).all()), learners.weights, start())
    assert all(jax.tree.leaves(moved))


def test_metrics_are_the_mean_over_the_updates_made():
    settings = Optimiser(minibatches=OPENINGS)
    batch = batch_of(0) | {"where": jnp.ones(OPENINGS * MEMBERS, bool)}
    _, metrics = optimise(settings, loss, settings.init(start()), batch, OPENINGS, 0.0, KEY)
    value, (_, expected) = loss(start(), batch)[0].value, loss(start(), batch)
    close(metrics["loss"], value, 1e-5)  # equal counts and no step in between: the mean of all rows
    close(metrics["first"], expected["first"].value)


def test_one_compilation_for_every_learning_rate():
    settings = Optimiser()
    chex.clear_trace_counter()

    @partial(jax.jit, donate_argnums=0)
    @chex.assert_max_traces(n=1)
    def step(learners, batch, rate):
        return update(settings, loss, learners, batch, OPENINGS, rate, KEY)

    learners = settings.init(start())
    for rate in (0.1, 0.01, 1e-5):
        learners, _ = step(learners, batch_of(0), rate)
    assert learners.skipped == 0


def test_arms_with_their_own_rates_equal_single_runs():
    settings = Optimiser(minibatches=2, grad_accumulation=2)
    rates = jnp.asarray([0.0, 0.03, 0.3])
    arms = jax.vmap(lambda rate: update(settings, loss, settings.init(start()), batch_of(0), OPENINGS, rate, KEY))
    together = jax.jit(arms)(rates)
    for i, rate in enumerate(rates):
        alone = optimise(settings, loss, settings.init(start()), batch_of(0), OPENINGS, rate, KEY)
        close(jax.tree.map(lambda leaf, i=i: leaf[i], together), alone, 1e-5)
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[0], together[0].weights), start())


def test_new_learners_hold_each_policy_and_its_optimiser():
    learners = Optimiser().init(start())
    assert isinstance(learners, Learners) and set(learners.weights) == set(learners.optimiser) == set(NAMES)
    assert learners.skipped.dtype == jnp.int32 and learners.skipped == 0


@pytest.mark.parametrize(
    "change", [{"epochs": 0}, {"minibatches": 0}, {"grad_accumulation": 0}, {"max_grad_norm": 0.0}]
)
def test_settings_that_cannot_be_are_refused(change):
    with pytest.raises(ValueError, match="at least 1 and max_grad_norm positive"):
        replace(Optimiser(), **change)


def test_prompts_that_do_not_divide_are_refused():
    settings = Optimiser(minibatches=2, grad_accumulation=3)
    settings.check([6, 12])
    with pytest.raises(ValueError, match=r"^8 prompts .* 2 minibatches of 3 micro-batches: choose a multiple of 6\.$"):
        settings.check([6, 8])


def each_loss(weights: dict, batch: dict) -> tuple[dict[str, Mean], dict[str, Mean]]:
    """Every policy's own regression, on rows of its own number."""
    aim, totals = jnp.repeat(batch["aim"], MEMBERS), {}
    for name, own in weights.items():
        where = batch["where"] if name == "one" else ~batch["where"]
        totals[name] = mean_of((batch["x"] @ own["slope"] + own["inner"]["offset"] - aim) ** 2, where)
    return totals, {}


@pytest.mark.parametrize("grad_accumulation", [1, 3])
def test_policies_with_losses_rates_and_optimisers_of_their_own_learn_as_if_alone(grad_accumulation):
    other = lambda rate: optax.chain(optax.clip(0.3), optax.trace(0.9), optax.scale(-rate))
    rates = {"one": jnp.float32(0.1), "two": jnp.float32(0.02)}
    settings = Optimiser(1.0, eps=1e-3, grad_accumulation=grad_accumulation, make={"two": other})
    learners = settings.init(start())
    for seed in range(2):
        learners, metrics = optimise(settings, each_loss, learners, batch_of(seed), OPENINGS, rates, KEY)
    assert set(metrics) == {"loss", "gradient_norm/one", "gradient_norm/two", "skipped"}
    for name, inner in {"one": optax.adam(0.1, eps=1e-3), "two": other(0.02)}.items():
        optimiser = optax.chain(optax.clip_by_global_norm(1.0), inner)
        alone = {name: start()[name]}
        state = optimiser.init(alone)
        for seed in range(2):
            gradient = jax.grad(lambda w, s=seed, n=name: each_loss(w, batch_of(s))[0][n].value)(alone)
            step, state = optimiser.update(gradient, state)
            alone = optax.apply_updates(alone, step)
        close(learners.weights[name], alone[name], 1e-5)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_every_microbatch_is_as_wide_as_its_longest(minibatches):
    length = jnp.array([6, 1, 2, 5, 2, 1, 4, 3])
    x = jnp.where(jnp.arange(6)[None] < length[:, None], jax.random.normal(jax.random.key(0), (8, 6)), 0)

    def loss(weights, batch):
        where = jnp.arange(batch["x"].shape[1])[None] < batch["length"][:, None]
        error = mean_of((weights["a"] - batch["x"]) ** 2, where)
        return error, {"width": Mean(jnp.float32(batch["x"].shape[1]), jnp.float32(1))}

    thirds = Buckets(
        3, lambda batch: (batch["length"] + 1) // 2 - 1, lambda batch, i: {**batch, "x": batch["x"][:, : 2 * (i + 1)]}
    )
    settings = Optimiser(minibatches=minibatches, grad_accumulation=4 // minibatches)
    results = []
    for buckets in (None, thirds):
        learners = settings.init({"a": jnp.float32(0.3)})
        step = jax.jit(partial(update, settings, loss, prompts=8, rate=0.1, key=jax.random.key(1), buckets=buckets))
        results.append(step(learners=learners, batch={"x": x, "length": length}))
    (plain, wide), (sorted_, narrow) = results
    assert wide.pop("width") == 6
    if minibatches == 1:  # lengths 1 1, 2 2, 3 4, 5 6
        assert narrow.pop("width") == (2 + 2 + 4 + 6) / 4
    else:
        assert narrow.pop("width") < 5
    for name, value in wide.items():
        np.testing.assert_allclose(value, narrow[name], rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(plain.weights["a"], sorted_.weights["a"], rtol=1e-6)
