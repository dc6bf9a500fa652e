"""The distribution of a policy: mask, filters, sampling, and the tokens that a grammar allows."""

from collections.abc import Iterator
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import chisquare

from jaxmarl_llm.rollout import policy
from jaxmarl_llm.rollout.policy import Sampling, per_row
from tests.support.policies import BYTES, SAMPLINGS, by_loop, tables_with

LARGEST = 1000
sample = jax.jit(policy.sample)


@jax.jit
def filtered(logits, mask, which, keep=None):
    """`policy.distribution` with row r sampled as SAMPLINGS[which[r]]."""
    return policy.distribution(logits, mask, per_row(SAMPLINGS, which), keep)


def same(found: np.ndarray, expected: np.ndarray, atol: float = 1e-5) -> None:
    """The same tokens are kept, with the same log-probabilities; the others have probability 0 and -1e30."""
    found, kept = np.asarray(found), np.isfinite(expected)
    np.testing.assert_array_equal(found > -1e29, kept)
    np.testing.assert_allclose(found[kept], expected[kept], atol=atol, rtol=1e-5)
    assert found.dtype == np.float32 and (found[~kept] == np.float32(policy.NEVER)).all()
    assert (np.exp(found)[~kept] == 0).all()


def patterns(size: int, generator: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Logits and masks [size] at which rounding bites."""
    everything, at = np.ones(size, bool), np.arange(size)
    half = generator.random(size) < 0.5
    half[generator.integers(size)] = True
    tiny = np.full(size, np.log(1e-8))
    one = generator.integers(size)
    yield generator.normal(size=size) * 3, half
    yield np.zeros(size), everything
    yield np.zeros(size), half
    yield np.where(at == one, 0, tiny), everything  # one mass of about 1, all others of 1e-8
    yield np.where(at == 0, 0, tiny), half | (at == 0)
    yield np.where(at == size - 1, 0, tiny), half | (at == size - 1)
    yield np.zeros(size), at == 0  # all mass on the first or the last index
    yield np.zeros(size), at == size - 1
    yield np.zeros(size), (at == 0) | (at == size - 1)
    yield -0.3 * at, everything  # masses down to the smallest float and past it
    yield -0.3 * at[::-1], half
    yield np.where(half, -200.0, 0) * (~half).any(), everything  # allowed, and still without mass


def extremes(mass: np.ndarray, generator: np.random.Generator, count: int) -> np.ndarray:
    """Uniforms at both ends, and at up to `count` cumulative boundaries, as summed up in two ways, and beside them."""
    ends = [0, np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).tiny, 1 - 2.0**-24, 1]
    chosen = generator.choice(len(mass), min(count, len(mass)), replace=False)
    sums = [np.cumsum(mass)[chosen], np.cumsum(mass, dtype=np.float64)[chosen].astype(np.float32)]
    beside = [np.nextafter(x, np.float32(to)) for x in sums for to in (0, 1)]
    return np.clip(np.concatenate([ends, *sums, *beside]).astype(np.float32), 0, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 17, 255, 256, 257, 511, 513, 768, LARGEST])
def test_extreme_uniforms_never_draw_a_masked_token(size):
    generator = np.random.default_rng(size)
    for logits, mask in patterns(size, generator):
        logp = policy.distribution(jnp.asarray(logits, jnp.float32), jnp.asarray(mask))
        mass = np.exp(np.asarray(logp))
        uniform = extremes(mass, generator, 200)
        token = np.asarray(sample(jnp.broadcast_to(logp[None], (len(uniform), size)), jnp.asarray(uniform)))
        assert ((token >= 0) & (token < size)).all()
        assert mask[token].all() and (mass[token] > 0).all()
        assert (np.diff(token[np.argsort(uniform, kind="stable")]) >= 0).all()  # the inverse of a CDF


def test_every_vocabulary_up_to_the_largest_is_sampled_within():
    """Row v allows the first v tokens only, and then the last v only."""
    allowed = np.tri(LARGEST, dtype=bool)
    generator = np.random.default_rng(0)
    for mask in (allowed, allowed[:, ::-1]):
        for logits in (np.zeros(LARGEST), generator.normal(size=LARGEST) * 5, -0.1 * np.arange(LARGEST)):
            spread = jnp.asarray(np.broadcast_to(logits, mask.shape), jnp.float32)
            logp = policy.distribution(spread, jnp.asarray(mask))
            for uniform in (0.0, 1e-45, 1e-8, 0.5, 1 - 2.0**-24, 1.0):
                token = np.asarray(sample(logp, jnp.full(LARGEST, uniform, jnp.float32)))
                assert mask[np.arange(LARGEST), token].all()


def test_uniforms_on_a_grid_draw_every_token_as_often_as_it_is_probable():
    size, parts, rows = 300, 10, 20_000
    count = parts * rows
    generator = np.random.default_rng(0)
    mask = generator.random(size) < 0.7
    logp = policy.distribution(jnp.asarray(generator.normal(size=size) * 2, jnp.float32), jnp.asarray(mask))
    expected = np.exp(np.asarray(logp, np.float64))
    grid = jnp.asarray((np.arange(count) + 0.5) / count, jnp.float32).reshape(rows, parts).T
    draw = lambda uniform: policy.sample(jnp.broadcast_to(logp[None], (rows, size)), uniform)
    drawn = np.bincount(np.asarray(jax.jit(lambda grid: jax.lax.map(draw, grid))(grid)).ravel(), minlength=size)
    assert drawn[~mask].sum() == 0
    assert np.abs(drawn - count * expected).max() < 2  # a grid leaves a rounded count, not a random one
    likely = count * expected > 5
    assert (
        chisquare(drawn[likely], count * expected[likely] * drawn[likely].sum() / (count * expected[likely]).sum())[1]
        > 0.99
    )


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_distribution_is_the_masked_softmax_at_a_temperature(temperature):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(4, 3, 37)).astype(np.float32) * 5
    mask = generator.random(logits.shape) < 0.4
    mask[..., 5] = True
    how = Sampling(temperature)
    logp = np.asarray(policy.distribution(jnp.asarray(logits), jnp.asarray(mask), how))
    expected = log_softmax(np.where(mask, logits.astype(np.float64) / temperature, -np.inf), -1)
    np.testing.assert_allclose(logp[mask], expected[mask], atol=2e-5)
    assert logp.dtype == np.float32 and (logp[~mask] < -1e29).all()
    assert (np.exp(logp)[~mask] == 0).all() and np.isfinite(logp).all()
    unmasked = np.asarray(policy.distribution(jnp.asarray(logits, jnp.bfloat16), None, how))
    rounded = np.asarray(jnp.asarray(logits, jnp.bfloat16), np.float64)
    np.testing.assert_allclose(unmasked, log_softmax(rounded / temperature, -1), atol=2e-5)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_gradients_stay_finite_and_masked_logits_get_none(scale):
    generator = np.random.default_rng(0)
    logits = jnp.asarray(generator.normal(size=(5, 11)) * scale, jnp.float32)
    mask = jnp.asarray(generator.random((5, 11)) < 0.5).at[:, 3].set(True).at[0].set(jnp.arange(11) == 3)

    def both(logits):
        logp = policy.distribution(logits, mask, Sampling(0.7))
        return logp[:, 3].sum() - (jnp.exp(logp) * logp).sum()

    gradient = np.asarray(jax.grad(both)(logits))
    assert np.isfinite(gradient).all() and (gradient[~np.asarray(mask)] == 0).all()
    assert (gradient[0] == 0).all()  # nothing to choose
    assert scale > 1 or np.abs(gradient[1:]).max() > 0.1


def hard_cases(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits and masks [C, size]: smooth, of all magnitudes, both signs, and with many equal values."""
    generator = np.random.default_rng(seed)
    normal = lambda scale, shift=0.0: generator.normal(size=size) * scale + shift
    smooth = [normal(0.1), normal(3), normal(1, -40), normal(5, 200), normal(1000), normal(1e-2, 1), normal(1e-30)]
    equal = [np.zeros(size), np.round(normal(1)), np.round(normal(2)) / 2 - 3, np.where(normal(1) > 1, 4.0, -0.0)]
    logits = np.array([*smooth, *equal], np.float32)
    mask = generator.random(logits.shape) < generator.choice([0.2, 0.6, 1.0], (len(logits), 1))
    mask[np.arange(len(logits)), generator.integers(0, size, len(logits))] = True
    return logits, mask


@pytest.mark.parametrize("size", [1, 2, 23, 400])
def test_filters_keep_what_a_loop_keeps_each_row_its_own(size):
    logits, mask = hard_cases(size, seed=size)
    count = len(logits)
    which = np.repeat(np.arange(len(SAMPLINGS)), count)
    logits, mask = np.tile(logits, (len(SAMPLINGS), 1)), np.tile(mask, (len(SAMPLINGS), 1))
    expected = np.stack([by_loop(x, m, SAMPLINGS[i]) for x, m, i in zip(logits, mask, which, strict=True)])
    same(filtered(logits, mask, which), expected)
    # the same as rows of several tokens, [R, M, V]
    rows = lambda x: x.reshape(len(SAMPLINGS), count, size)
    same(filtered(rows(logits), rows(mask), np.arange(len(SAMPLINGS))), rows(expected))
    assert size < 23 or len(set(np.isfinite(expected).sum(1))) > 8  # the filters bite


@pytest.mark.parametrize("around", [1.0, -3.0, 1e-30, -1e30 / 7, 20000.0])
def test_neighbouring_numbers_are_told_apart(around):
    """Rows of 40 floats, each next to the one before, in any order: top-k keeps k of them, for each k."""
    ladder = np.float32(around).view(np.int32) + np.arange(40, dtype=np.int32)
    logits = np.random.default_rng(0).permuted(np.tile(ladder.view(np.float32), (40, 1)), axis=1)
    how = per_row(tuple(Sampling(top_k=k) for k in range(1, 41)), np.arange(40))
    kept = np.asarray(jax.jit(lambda logits: policy.distribution(logits, None, how))(logits)) > -1e29
    rank = (logits[:, None, :] > logits[:, :, None]).sum(-1)
    np.testing.assert_array_equal(kept, rank < np.arange(1, 41)[:, None])


def test_settings_known_beforehand_equal_those_looked_up_in_the_program():
    logits, mask = map(jnp.asarray, hard_cases(40, seed=0))
    run = jax.jit(policy.distribution, static_argnums=2)
    for index, how in enumerate(SAMPLINGS):
        looked_up = filtered(logits, mask, jnp.full(len(logits), index))
        np.testing.assert_array_equal(run(logits, mask, how) > -1e29, looked_up > -1e29)
        np.testing.assert_allclose(run(logits, mask, how), looked_up, atol=2e-6, rtol=1e-6)
    which = np.arange(len(logits)) % len(SAMPLINGS)
    static = jax.jit(lambda logits: policy.distribution(logits, mask, per_row(SAMPLINGS, which)))(logits)
    np.testing.assert_allclose(static, filtered(logits, mask, which), atol=2e-6, rtol=1e-6)


def test_filters_that_no_row_uses_are_not_compiled():
    def program(how):
        return str(jax.make_jaxpr(partial(policy.distribution, mask=None, sampling=how))(jnp.zeros((3, 8))))

    several = (Sampling(0.7), Sampling(0.7, top_k=3), Sampling(0.7, top_p=0.5), Sampling(0.7, min_p=0.5), Sampling(0))
    plain = program(Sampling(0.7))
    assert not any(name in plain for name in ("scan", "while", "argmax", "iota", "cumsum"))
    assert program(Sampling(0)).count("scan[") == program(several[3]).count("scan[") == 0
    assert program(several[1]).count("scan[") == program(several[2]).count("scan[") == 1
    assert program(Sampling(0, top_k=2, top_p=0.5, min_p=0.5)) == program(Sampling(0))
    for index, how in enumerate(several):  # only the policies that occur count, and equal settings stay one number
        assert program(per_row(several, np.full(3, index))) == program(how)
        assert program(per_row((how,) * 2, jnp.array([0, 1, 1]))) == program(how)
    everything = program(per_row(several, np.array([1, 2, 4])))
    assert everything.count("scan[") == 2 and "argmax" in everything
    assert "sort" not in everything and "top_k[" not in everything
    rows = per_row(several, np.array([4, 2, 2]))
    assert rows.temperature.tolist() == pytest.approx([1, 0.7, 0.7]) and rows.greedy.tolist() == [True, False, False]
    assert (rows.top_k, rows.min_p) == (0, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": 1e-9},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_k": 2.5},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"min_p": -0.1},
        {"min_p": 1.5},
    ],
)
def test_a_sampling_that_means_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_several_samplings_need_the_policies_of_the_rows():
    with pytest.raises(ValueError, match="one for each policy"):
        per_row((Sampling(), Sampling(0)))
    with pytest.raises(ValueError, match="one for each policy"):
        per_row((), np.array([0]))
    with pytest.raises(ValueError, match="2 Samplings, but rows of policy 2"):
        per_row((Sampling(), Sampling(0)), np.array([0, 2]))


@pytest.mark.parametrize("how", [how for how in SAMPLINGS if how.temperature])
def test_parity_of_filters_with_transformers(how):
    torch = pytest.importorskip("torch")
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    generator = np.random.default_rng(1)
    for size, scale in ((13, 1.0), (300, 3.0), (2000, 2.0)):
        logits = (generator.normal(size=(6, size)) * scale).astype(np.float32)
        mask = generator.random(logits.shape) < np.array([0.3, 0.6, 1, 1, 1, 1])[:, None]
        mask[:, 0] = True
        scores = torch.tensor(np.where(mask, logits, -np.inf))
        warpers = [TemperatureLogitsWarper(how.temperature)]
        warpers += [TopKLogitsWarper(how.top_k)] if how.top_k else []
        warpers += [TopPLogitsWarper(how.top_p)] if how.top_p < 1 else []
        warpers += [MinPLogitsWarper(how.min_p)] if how.min_p else []
        for warper in warpers:
            scores = warper(None, scores)
        expected = torch.log_softmax(scores, -1).numpy()
        same(filtered(logits, mask, np.full(6, SAMPLINGS.index(how))), expected)


def test_tokens_of_a_loss_are_kept_and_change_nothing_where_they_were_kept_anyway():
    logits, mask = hard_cases(30, seed=3)
    generator = np.random.default_rng(0)
    which = np.repeat(np.arange(len(SAMPLINGS)), len(logits))
    logits, mask = np.tile(logits, (len(SAMPLINGS), 1)), np.tile(mask, (len(SAMPLINGS), 1))
    before = np.asarray(filtered(logits, mask, which))
    inside = np.array([generator.choice(np.flatnonzero(row > -1e29)) for row in before], np.int32)
    same(filtered(logits, mask, which, inside), np.where(before > -1e29, before, -np.inf), atol=2e-6)
    anywhere = np.array([generator.choice(np.flatnonzero(row)) for row in mask], np.int32)
    found = np.asarray(filtered(logits, mask, which, anywhere))
    rows = zip(logits, mask, which, anywhere, strict=True)
    same(found, np.stack([by_loop(x, m, SAMPLINGS[i], token) for x, m, i, token in rows]))
    at = np.arange(len(logits)), anywhere
    assert (before[at] < -1e29).sum() > 20 and (found[at] > -1e29).all()
    forbidden = np.array([np.argmin(row) for row in mask], np.int32)  # the grammar has the last word
    out = ~mask[np.arange(len(mask)), forbidden]
    np.testing.assert_array_equal(
        (np.asarray(filtered(logits, mask, which, forbidden)) > -1e29)[out], before[out] > -1e29
    )


def test_the_gradient_is_that_of_the_softmax_over_the_kept_tokens():
    """d logp[token] / d logits = (one at the token - probability) / temperature on kept tokens, exactly 0 elsewhere."""
    generator = np.random.default_rng(2)
    count, size = len(SAMPLINGS), 19
    logits, mask = generator.normal(size=(count, size)).astype(np.float32) * 2, generator.random((count, size)) < 0.7
    mask[:, 4], token = True, np.full(count, 4, np.int32)

    def logp(logits):
        return filtered(logits, mask, np.arange(count), token)

    found = np.asarray(jax.grad(lambda logits: logp(logits)[:, 4].sum())(jnp.asarray(logits)))
    chances, temperature = np.exp(np.asarray(logp(logits))), np.array([how.temperature or 1 for how in SAMPLINGS])
    np.testing.assert_allclose(found, ((np.arange(size) == 4) - chances) / temperature[:, None], atol=1e-6)
    assert (found[chances == 0] == 0).all()
    entropy = lambda logits: -(jnp.exp(logp(logits)) * logp(logits)).sum()
    assert np.isfinite(jax.grad(entropy)(jnp.asarray(logits))).all()


@pytest.mark.parametrize("size", [1, 17, 257, LARGEST])
def test_extreme_uniforms_never_draw_a_filtered_token(size):
    generator = np.random.default_rng(size)
    which = np.arange(len(SAMPLINGS))
    for logits, mask in patterns(size, generator):
        spread = lambda x: np.broadcast_to(x, (len(SAMPLINGS), size))
        logp = filtered(spread(logits.astype(np.float32)), spread(mask), which)
        for uniform in (0.0, 1e-45, 1e-8, 0.5, 1 - 2.0**-24, 1.0):
            token = np.asarray(sample(logp, jnp.full(len(SAMPLINGS), uniform, jnp.float32)))
            assert (np.exp(np.asarray(logp))[which, token] > 0).all() and mask[token].all()
            for row in (4, 10):  # greedy: the lowest id of the most probable, whatever the uniform
                assert token[row] == np.argmax(np.where(mask, logits.astype(np.float32), -np.inf))
                assert logp[row, token[row]] == 0


@pytest.mark.parametrize("end", [True, False])
def test_allowed_equals_trying_every_continuation(end):
    tables = tables_with(end)
    states, actions = tables.distance.shape

    @cache
    def reachable(state: int, left: int) -> frozenset[int]:
        """The actions with which an utterance can be over in at most so many more tokens."""
        if tables.ended[state]:
            return frozenset([int(tables.action[state])])
        if left == 0:
            return frozenset()
        return frozenset().union(*(reachable(int(after), left - 1) for after in set(tables.next[state].tolist())))

    generator = np.random.default_rng(0)
    state, left = generator.integers(0, states, 400), generator.integers(1, 9, 400)
    legal = generator.random((400, actions)) < 0.5
    found = np.asarray(jax.jit(partial(policy.allowed, tables))(*map(jnp.asarray, (state, legal, left))))
    assert found.shape == (400, len(BYTES)) and found.any() and not found.all()
    for row in range(400):
        sayable = set(np.flatnonzero(legal[row]).tolist())
        able = [bool(reachable(s, int(left[row]) - 1) & sayable) for s in tables.next[state[row]].tolist()]
        np.testing.assert_array_equal(found[row], np.array(able)[tables.token_class])
    reshaped = policy.allowed(tables, *(jnp.asarray(x).reshape(20, 20, *x.shape[1:]) for x in (state, legal, left)))
    np.testing.assert_array_equal(reshaped.reshape(found.shape), found)
