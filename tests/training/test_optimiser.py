"""A recipe's optimiser is any of optax's: each is compared with optax applied by hand, or with NumPy.

The long case compiles a whole program of arms; the short ones make the same steps of each optimiser without play.
"""

import dataclasses
import math
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.planning.plan import jobs_of
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.runs.checkpoint import Checkpoints
from jaxmarl_llm.studies.identity import describe
from jaxmarl_llm.training.begin import init_run
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.optimiser import all_but, check_common, freeze, matches, matrices, only
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.setup import Model, learner_shapes
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.training.update import Optimiser, update

KEY = jax.random.key(0)
NAMES = ("one", "two")
ADAMW = partial(optax.adamw, weight_decay=0.1, mask=all_but("*norm"))
MUON = partial(optax.contrib.muon, muon_weight_dimension_numbers=matrices("*_proj"))
MOMENTUM = partial(optax.sgd, momentum=0.9)
RECIPE = Recipe(
    SixTurns(turns=2),
    seats=(("one", "two"),),
    advantage=estimator(advantages.rloo, per_agent=True),
    groups=2,
    group_size=4,
    updates=2,
)
ADAPTED = Model("tiny_base", Lora(4, 8.0))


def start(dtype=jnp.float32) -> dict:
    generator = np.random.default_rng(0)
    value = lambda *shape: jnp.asarray(generator.normal(size=shape), dtype)
    own = lambda: {"policy": {"embed_tokens": value(6, 4), "layers": {"q_proj": value(2, 4, 2), "norm": value(2, 4)}}}
    return {name: own() for name in NAMES}


def loss(weights: dict, batch: jax.Array) -> tuple[dict[str, Mean], dict[str, Mean]]:
    """Each policy's sum of fourth powers of what it is away from the batch's numbers."""
    one = lambda own: sum(((leaf - batch.mean()) ** 4).sum() for leaf in jax.tree.leaves(own))
    return {name: Mean(one(own).astype(jnp.float32), jnp.float32(7)) for name, own in weights.items()}, {}


def gradient(weights: dict, name: str, batch: jax.Array) -> dict:
    return jax.grad(lambda own: loss({name: own}, batch)[0][name].value)(weights)


BATCHES = [jnp.asarray(np.random.default_rng(seed).normal(size=6), jnp.float32) for seed in range(3)]
step = jax.jit(update, static_argnums=(0, 1, 4))


def learnt(settings: Optimiser, rate=0.05, dtype=jnp.float32):
    learners = settings.init(start(dtype))
    for batch in BATCHES:
        learners, metrics = step(settings, loss, learners, batch.astype(dtype), 6, rate, KEY)
        assert metrics["skipped"] == 0
    return learners


def by_hand(transform: optax.GradientTransformation, name: str, bound: float = 1.0) -> dict:
    weights = start()[name]
    state = transform.init(weights)
    for batch in BATCHES:
        slope = gradient(weights, name, batch)
        norm = math.sqrt(sum(float((np.asarray(leaf, np.float64) ** 2).sum()) for leaf in jax.tree.leaves(slope)))
        slope = jax.tree.map(lambda x, norm=norm: x * min(1.0, bound / norm), slope)
        change, state = transform.update(slope, state, weights)
        weights = optax.apply_updates(weights, change)
    return weights


def dims(weights: dict) -> dict:
    """Written out: Muon for the matrices of the layers."""
    number = optax.contrib.MuonDimensionNumbers(reduction_axis=2, output_axis=1)
    return {"policy": {"embed_tokens": None, "layers": {"q_proj": number, "norm": None}}}


DECAYING = {"policy": {"embed_tokens": True, "layers": {"q_proj": True, "norm": False}}}
CASES = {
    "adamw": (ADAMW, lambda rate: optax.adamw(rate, weight_decay=0.1, mask=DECAYING)),
    "momentum": (MOMENTUM, lambda rate: optax.sgd(rate, momentum=0.9)),
    "sgd": (optax.sgd, optax.sgd),
    "muon": (MUON, lambda rate: optax.contrib.muon(rate, muon_weight_dimension_numbers=dims)),
    "chain": (lambda rate: optax.chain(optax.scale_by_rms(), optax.scale(-rate)),) * 2,
    "schedule of its own": (lambda rate: optax.sgd(optax.linear_schedule(0.1, 0.0, 4)),) * 2,
}


@pytest.mark.parametrize("case", CASES)
def test_an_optimiser_equals_optax_by_hand(case):
    make, expected = CASES[case]
    for bound in (1.0, math.inf) if case == "momentum" else (1.0,):
        weights = learnt(Optimiser(bound, make=make), 0.001).weights
        for name in NAMES:
            chex.assert_trees_all_close(weights[name], by_hand(expected(0.001), name, bound), rtol=1e-5, atol=1e-6)


def test_policies_have_optimisers_and_rates_of_their_own_or_adam():
    settings = Optimiser(make={"two": MOMENTUM}, eps=1e-3)
    weights = learnt(settings, {"one": jnp.float32(0.1), "two": jnp.float32(0.02)}).weights
    chex.assert_trees_all_close(weights["one"], by_hand(optax.adam(0.1, eps=1e-3), "one"), rtol=1e-5)
    chex.assert_trees_all_close(weights["two"], by_hand(MOMENTUM(0.02), "two"), rtol=1e-5)


def test_sgd_with_decay_in_numpy():
    """Three steps of w - rate (g + 0.5 w), without decay of what the mask leaves out."""
    make = lambda rate: optax.chain(optax.add_decayed_weights(0.5, all_but("norm")), optax.sgd(rate))
    weights, expected = learnt(Optimiser(math.inf, make=make), 0.01).weights["one"], start()["one"]["policy"]
    expected = {"norm": np.asarray(expected["layers"]["norm"]), "embed_tokens": np.asarray(expected["embed_tokens"])}
    for batch in BATCHES:
        for name, decay in (("norm", 0.0), ("embed_tokens", 0.5)):
            slope = 4 * (expected[name] - np.asarray(batch).mean()) ** 3 / 7
            expected[name] = expected[name] - 0.01 * (slope + decay * expected[name])
    np.testing.assert_allclose(weights["policy"]["layers"]["norm"], expected["norm"], rtol=1e-5)
    np.testing.assert_allclose(weights["policy"]["embed_tokens"], expected["embed_tokens"], rtol=1e-5)


@pytest.mark.parametrize("make", [ADAMW, MUON, MOMENTUM], ids=["adamw", "muon", "momentum"])
def test_frozen_weights_keep_their_bits_and_have_no_state(make):
    frozen = freeze(make, "embed_tokens", "norm") if make is not ADAMW else freeze(ADAMW, "embed_tokens")
    learners, begun = learnt(Optimiser(make=frozen)), start()
    for name in NAMES:
        own, old = learners.weights[name]["policy"], begun[name]["policy"]
        assert np.asarray(own["embed_tokens"]).tobytes() == np.asarray(old["embed_tokens"]).tobytes()
        assert (np.asarray(own["layers"]["q_proj"]) != np.asarray(old["layers"]["q_proj"])).all()
    shapes = [leaf.shape for leaf in jax.tree.leaves(learners.optimiser)]
    assert (2, 4, 2) in shapes and (6, 4) not in shapes


@pytest.mark.parametrize("make", [ADAMW, MUON, MOMENTUM], ids=["adamw", "muon", "momentum"])
def test_what_is_not_finite_changes_no_state_either(make):
    settings = Optimiser(make=make)
    learners = learnt(settings)
    after, metrics = step(settings, loss, learners, BATCHES[0].at[0].set(jnp.nan), 6, 0.05, KEY)
    assert metrics["skipped"] == 1
    chex.assert_trees_all_equal(after.replace(skipped=jnp.int32(0)), learners)


@pytest.mark.parametrize("make", [ADAMW, MUON, MOMENTUM], ids=["adamw", "muon", "momentum"])
def test_weights_and_state_keep_their_types_in_bfloat16(make):
    settings = Optimiser(make=make)
    learners, whole = learnt(settings, 0.01, jnp.bfloat16), learnt(settings, 0.01)
    begun = settings.init(start(jnp.bfloat16))
    assert jax.tree.map(lambda x: x.dtype, learners) == jax.tree.map(lambda x: x.dtype, begun)
    for one, other in zip(jax.tree.leaves(learners.weights), jax.tree.leaves(whole.weights), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), other, atol=0.05)


def test_muon_takes_the_matrices_of_every_layer_alone():
    """The step of each matrix, one of a layer, has singular values near 1 before it is scaled."""
    make = lambda rate: optax.chain(MUON(1.0), optax.scale(rate))
    change = jax.tree.map(jnp.subtract, start()["one"], learnt_once(make)["one"])
    for matrix in np.asarray(change["policy"]["layers"]["q_proj"]):
        values = np.linalg.svd(matrix, compute_uv=False)
        assert (values > 0.6).all() and (values < 1.5).all()
    plain = Optimiser(make=optax.contrib.muon).init(start()).optimiser["one"]  # optax's own rule: two axes
    ours = Optimiser(make=MUON).init(start()).optimiser["one"]
    first = lambda state: jax.tree.leaves(state[1].inner_states["muon"].inner_state[0].mu)
    assert [x.shape for x in first(ours)] == [(2, 4, 2)] and (2, 4, 2) not in [x.shape for x in first(plain)]


def learnt_once(make) -> dict:
    settings = Optimiser(make=make)
    return step(settings, loss, settings.init(start()), BATCHES[0], 6, 1.0, KEY)[0].weights


@pytest.mark.parametrize(
    ("path", "pattern", "found"),
    [
        ("policy/layers/q_proj", "q_proj", True),
        ("policy/layers/q_proj", "layers", True),
        ("policy/layers/q_proj", "layers/*_proj", True),
        ("policy/layers/q_proj", "policy/layers/q_proj", True),
        ("policy/layers/q_proj", "proj", False),
        ("policy/layers/q_proj", "q_*", True),
        ("policy/layers/q_norm", "norm", False),
        ("policy/q_proj/a", "q_proj", True),
        ("value/w", "value", True),
        ("policy/norm", "value", False),
    ],
)
def test_a_pattern_is_like_whole_names_of_a_path(path, pattern, found):
    assert matches(path, pattern) is found


def test_masks_are_trees_of_bools():
    weights = start()["one"]
    assert all_but("*norm")(weights) == DECAYING
    assert only("*norm")(weights) == jax.tree.map(lambda x: not x, DECAYING)
    assert matrices("q_proj")(weights)["policy"]["embed_tokens"] is None
    with pytest.raises(ValueError, match="freeze"):
        optax.transforms.selective_transform(optax.sgd(0.1), freeze_mask=only("norm")).init(weights)


REFUSED = [
    (optax.sgd(0.1), "function of the learning rate.*optax.sgd for optax.sgd"),
    ({"on": optax.sgd}, "'on': did you mean 'one'.*learn are one, two"),
    ({"one": optax.sgd(0.1)}, "function of the learning rate"),
    ("sgd", "not 'sgd'"),
    (optax.linear_schedule(1.0, 0.0, 9), "schedule is given as the hparam"),
    (lambda rate: optax.MultiSteps(optax.sgd(rate), 2), "call its gradient_transformation"),
    (lambda: optax.sgd(0.1), "takes 0 positional"),
    (lambda rate: optax.sgd(rate) if rate > 0 else optax.adam(rate), "traced"),
]


@pytest.mark.parametrize(("optimiser", "sentence"), REFUSED)
def test_a_recipe_refuses_what_is_no_optimiser(optimiser, sentence):
    with pytest.raises(ValueError, match=f"(?s){sentence}"):
        dataclasses.replace(RECIPE, optimiser=optimiser).check()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (only, "patterns of paths.*at least one"),
        (lambda: only(["norm"]), "patterns of paths"),
        (lambda: freeze(optax.adam), "at least one"),
        (lambda: freeze(optax.adam, only("norm")), "patterns of paths"),
        (lambda: freeze("norm"), "not 'norm'|patterns"),
        (lambda: freeze(optax.adam(0.1), "norm"), "function of the learning rate"),
        (lambda: Optimiser(None), "max_grad_norm positive"),
    ],
)
def test_masks_and_bounds_of_other_types_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


IMPOSSIBLE = [
    (freeze(optax.sgd, "embed_token"), "'embed_token': did you mean 'embed_tokens'.*policy/layers/q_proj"),
    (partial(optax.adamw, mask=all_but("*norms")), "No weights have a path like"),
    (lambda rate: optax.inject_hyperparams(optax.sgd)(learning_rate=rate), "keeps the learning rate in its state"),
    (lambda rate: optax.polyak_sgd(), "makes no step of a gradient and weights.*value"),
    ({"two": freeze(optax.sgd, "value")}, "'value'"),
    (lambda rate: optax.lookahead(optax.sgd(rate), 2, 0.5), "'one' makes no step"),
]


@pytest.mark.parametrize(("optimiser", "sentence"), IMPOSSIBLE)
def test_what_does_not_fit_the_weights_is_refused_before_anything_compiles(optimiser, sentence):
    with pytest.raises(ValueError, match=f"(?s){sentence}"):
        Trainer(dataclasses.replace(RECIPE, optimiser=optimiser), [RECIPE.all_hparams], [0])


@pytest.mark.parametrize("critic", [False, True])
@pytest.mark.parametrize("models", ["tiny", {"one": ADAPTED, "two": ADAPTED}], ids=["tiny", "adapters"])
def test_abstract_weights_are_like_those_that_learn(models, critic):
    parts = Trainer(dataclasses.replace(RECIPE, critic=critic), [RECIPE.all_hparams], [0], models).parts
    begun = jax.eval_shape(lambda base: init_run(dataclasses.replace(parts, base=base), KEY), parts.base)
    assert learner_shapes(parts) == begun.learners.weights
    paths = {jax.tree_util.keystr(at, simple=True, separator="/") for at, _ in
             jax.tree.leaves_with_path(learner_shapes(parts)["one"])}  # fmt: skip
    assert any(matches(path, "value") for path in paths) is critic


def test_settings_name_the_optimiser():
    found = describe(dataclasses.replace(RECIPE, optimiser={"one": ADAMW, "two": freeze(optax.sgd, "norm")}))
    own = found["optimiser"]
    assert own["one"]["function"].endswith("adamw") and own["one"]["weight_decay"] == 0.1
    assert own["one"]["mask"] == {"kind": "Mask", "patterns": ["*norm"], "matched": False}
    assert own["two"]["function"].endswith("sgd") and own["two"]["mask"]["patterns"] == ["norm"]
    assert describe(RECIPE)["optimiser"] is None


def test_states_are_split_over_a_mesh_and_come_back_from_a_checkpoint(tmp_path):
    """The state is that of one device, and that of the checkpoint bit for bit, each leaf where it was."""
    settings, mesh = (
        Optimiser(make={"one": MUON, "two": freeze(ADAMW, "embed_tokens")}),
        sharding.mesh("fsdp=2,tensor=2"),
    )
    alone = learnt(settings)
    begun = settings.init(start())
    where = sharding.shardings(begun, mesh)
    with sharding.use(mesh), Checkpoints(tmp_path, {}) as checkpoints:
        split = jax.jit(lambda *given: sharding.weights(update(settings, loss, *given, 6, 0.05, KEY)[0]))
        learners = jax.device_put(begun, where)
        for batch in BATCHES:
            learners = split(learners, batch)
        momenta = [x for x in jax.tree.leaves(learners.optimiser) if x.shape == (2, 4, 2)]
        assert len(momenta) == 3 and all({d.data.size for d in x.addressable_shards} == {4} for x in momenta)
        checkpoints.save(3, learners)
        checkpoints.wait()
        shapes = jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), begun, where)
        number, again = checkpoints.restore(shapes)
    assert number == 3
    chex.assert_trees_all_equal(again, learners)
    chex.assert_trees_all_close(jax.device_get(again), jax.device_get(alone), rtol=1e-4, atol=1e-5)
    assert all(
        x.sharding.is_equivalent_to(at, x.ndim) for x, at in zip(*map(jax.tree.leaves, (again, where)), strict=True)
    )


@pytest.mark.long
def test_arms_of_other_rates_share_a_program_and_rates_follow_schedules():
    """SGD: the first step is the rate times the clipped gradient, so that steps are as the rates are."""
    recipe = dataclasses.replace(RECIPE, seats=(("one", "one"),), optimiser=optax.sgd, max_grad_norm=math.inf)
    rates = [optax.linear_schedule(0.0, 0.02, 1), 0.01, 0.03]
    arms = [recipe.with_hparams(learning_rate=rate).all_hparams for rate in rates]
    trainer = Trainer(recipe, arms, [0, 0, 0])
    begun = jax.tree.map(np.asarray, (state := trainer.init()).learners.weights)
    state, _ = trainer.update(state, 0)
    steps = jax.tree.map(lambda new, old: np.asarray(new) - old, state.learners.weights, begun)
    largest = max(np.abs(x[1]).max() for x in jax.tree.leaves(steps))
    assert largest > 1e-5
    for moved in jax.tree.leaves(steps):
        assert not moved[0].any()
        np.testing.assert_allclose(moved[2], 3 * moved[1], atol=1e-3 * largest + 1e-7)


@pytest.mark.parametrize(
    ("optimiser", "moments"),
    [(None, 2.0), (optax.sgd, 0.0), (MOMENTUM, 1.0), (optax.adamw, 2.0), ({"one": MOMENTUM}, 1.5), (MUON, None)],
)
def test_a_plan_knows_the_size_of_the_state(optimiser, moments):
    trainer = Trainer(dataclasses.replace(RECIPE, optimiser=optimiser), [RECIPE.all_hparams], [0])
    found = sum(job.moments for job in jobs_of(trainer)) / 2
    if moments is None:  # one number for a matrix's weight, two for the others'
        shapes = learner_shapes(trainer.parts)["one"]["policy"]
        size = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
        matrix = sum(x.size for name, x in shapes["layers"].items() if name.endswith("_proj"))
        moments = 2 - matrix / size(shapes)
        assert abs(found - moments) < 1e-3  # and three coefficients
    else:
        assert found == moments


def test_policies_that_exchange_weights_have_one_optimiser():
    with pytest.raises(ValueError, match="have one optimiser, not one for each of"):
        check_common({"one": optax.sgd, "two": optax.sgd})
    check_common(optax.sgd)
