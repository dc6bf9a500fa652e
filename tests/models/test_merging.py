"""Merges against loops in NumPy, weight by weight; sums of adapters are exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.models import decoder, lora, merging
from jaxmarl_llm.models.lora import Lora
from tests.support.families import CONFIG

SHAPES = {"a": (3, 4), "b": {"c": (5,), "d": (2, 2, 2)}}


def tree(seed: int, deviation: float = 1.0) -> dict:
    generator = np.random.default_rng(seed)
    of = lambda shape: jnp.asarray(deviation * generator.normal(size=shape), jnp.float32)
    return jax.tree.map(of, SHAPES, is_leaf=lambda x: isinstance(x, tuple))


BASE = tree(0)
MODELS = [jax.tree.map(jnp.add, BASE, tree(seed, 0.1)) for seed in (1, 2, 3)]


def flat(weights: dict) -> list[float]:
    return [float(x) for leaf in jax.tree.leaves(weights) for x in np.asarray(leaf, np.float64).ravel()]


def vectors() -> list[list[float]]:
    return [[x - b for x, b in zip(flat(own), flat(BASE), strict=True)] for own in MODELS]


def test_task_arithmetic_adds_what_was_learnt():
    for scale in (0.0, 0.4, 1.0):
        wanted = [b + scale * sum(own) for b, *own in zip(flat(BASE), *vectors(), strict=True)]
        np.testing.assert_allclose(flat(merging.task_arithmetic(BASE, MODELS, scale)), wanted, atol=1e-6)


def test_the_average_is_task_arithmetic_at_one_over_the_models():
    wanted = [sum(own) / 3 for own in zip(*map(flat, MODELS), strict=True)]
    np.testing.assert_allclose(flat(merging.average(MODELS)), wanted, atol=1e-6)
    np.testing.assert_allclose(flat(merging.task_arithmetic(BASE, MODELS, 1 / 3)), wanted, atol=1e-6)


def looped_ties(keep: float, scale: float) -> list[float]:
    """The three steps of the paper, with the release's threshold: the k-th smallest size itself stays."""
    trimmed = []
    for vector in vectors():
        k = max(int(len(vector) * (1 - keep) + 1e-9), 1)
        bound = sorted(abs(x) for x in vector)[k - 1]
        trimmed.append([x if abs(x) >= bound * (1 - 1e-6) else 0.0 for x in vector])
    signs = [np.sign(sum(own)) for own in zip(*trimmed, strict=True)]
    most = np.sign(sum(signs))
    found = []
    for b, sign, *own in zip(flat(BASE), signs, *trimmed, strict=True):
        elected = sign if sign != 0 else most
        kept = [x for x in own if x * elected > 0]
        found.append(b + scale * (sum(kept) / len(kept) if kept else 0.0))
    return found


@pytest.mark.parametrize(("keep", "scale"), [(0.2, 1.0), (0.5, 0.7), (1.0, 1.0)])
def test_ties_trims_elects_and_averages(keep, scale):
    np.testing.assert_allclose(flat(merging.ties(BASE, MODELS, keep, scale)), looped_ties(keep, scale), atol=1e-6)


def test_ties_of_one_model_or_of_three_alike_is_that_model():
    for models in (MODELS[:1], [MODELS[0]] * 3):
        np.testing.assert_allclose(flat(merging.ties(BASE, models, keep=1.0)), flat(MODELS[0]), atol=1e-6)
    with pytest.raises(ValueError, match="keeps a share of each task vector"):
        merging.ties(BASE, MODELS, keep=0.0)


@pytest.mark.parametrize("how", [lambda base, every: merging.average(every), merging.task_arithmetic, merging.ties])
def test_weights_in_bfloat16_are_merged_in_float32_and_rounded_once(how):
    coarse = lambda weights: jax.tree.map(lambda x: x.astype(jnp.bfloat16), weights)
    fine = lambda weights: jax.tree.map(lambda x: x.astype(jnp.float32), weights)
    base, every = coarse(tree(0)), [coarse(jax.tree.map(jnp.add, BASE, tree(seed, 0.1))) for seed in range(1, 9)]
    found, wanted = how(base, every), coarse(how(fine(base), [fine(own) for own in every]))
    assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(found))
    assert flat(fine(found)) == flat(fine(wanted))
    vectors = merging.task_vectors(base, every)
    assert (vectors == merging.task_vectors(fine(base), [fine(own) for own in every])).all()


def test_geometry_by_hand():
    base = {"x": jnp.array([1.0, 1.0, 1.0, 0.0])}
    first, second = ({"x": base["x"] + jnp.array(change)} for change in ([0.5, 0.5, 1e-6, 0.0], [0.5, -0.5, 0.0, 1.0]))
    found = {name: float(x) for name, x in merging.geometry(base, [first, second]).items()}
    wanted = {"cosine": 0.0, "changed": 5 / 8, "overlap": 2 / 3, "against": 1 / 2}
    assert found == pytest.approx(wanted, abs=1e-6)
    assert float(merging.geometry(base, [first] * 3)["cosine"]) == pytest.approx(1)


def test_too_few_models_are_refused():
    with pytest.raises(ValueError, match="one model at least"):
        merging.average([])
    with pytest.raises(ValueError, match="got 1 of two models"):
        merging.geometry({"x": jnp.ones(2)}, [{"x": jnp.ones(2)}])


PARAMS = decoder.init(CONFIG, jax.random.key(0))
LORAS = (Lora(3, 12.0), Lora(2, 4.0, ("q_proj", "v_proj")), Lora(1, 3.0, ("gate*", "q_proj")))


def adapters() -> list[dict]:
    """Three, whose b are not zero."""
    found = []
    for seed, settings in enumerate(LORAS):
        generator = np.random.default_rng(seed)
        new = lora.init(jax.random.key(seed), PARAMS, settings)
        found.append(jax.tree.map(lambda x, g=generator: jnp.asarray(0.3 * g.normal(size=x.shape), jnp.float32), new))
    return found


def test_adapters_joined_along_the_rank_are_the_sum_of_their_task_vectors():
    """W + sum_i s_i B_i A_i = W + [s_1 B_1, s_2 B_2, ...] [A_1; A_2; ...]: no weight of the base is touched for it."""
    every = adapters()
    alone = [lora.merge(PARAMS, lora.concatenate([one], [how])) for one, how in zip(every, LORAS, strict=True)]
    joined = lora.concatenate(every, LORAS)
    wanted = merging.task_arithmetic(PARAMS, alone)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), lora.merge(PARAMS, joined), wanted)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, CONFIG.vocab_size, (2, 6)), jnp.int32)
    spoken = decoder.forward(CONFIG, PARAMS, tokens, adapters=joined)[0]  # all ranks at once, as one adapter
    np.testing.assert_allclose(spoken, decoder.forward(CONFIG, wanted, tokens)[0], atol=2e-4)


def test_the_mean_of_the_factors_is_not_the_average_of_adapters():
    every, settings = adapters()[:1] * 2, LORAS[:1] * 2
    every[1] = jax.tree.map(lambda x: x[::-1], every[1])
    mean = jax.tree.map(lambda a, b: (a + b) / 2, *every)
    alone = [lora.merge(PARAMS, lora.concatenate([one], settings[:1])) for one in every]
    wrong = lora.merge(PARAMS, lora.concatenate([mean], settings[:1]))["layers"]["q_proj"]
    exact = lora.merge(PARAMS, lora.concatenate([jax.tree.map(lambda x: x / 2**0.5, one) for one in every], settings))
    right = merging.average(alone)["layers"]["q_proj"]
    np.testing.assert_allclose(exact["layers"]["q_proj"], right, atol=2e-5)  # each product halved
    assert np.abs(wrong - right).max() > 0.1
