from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import chisquare

from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout import policy
from jaxmarl_llm.rollout.policy import Sampling, per_row
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens, gather_sampled, per_token
from jaxmarl_llm.text.grammar import Choice, Free, Literal, TokenTables, lift

BYTES = (*(bytes([b]) for b in b"Igo hldme.\n!"), b"go", b" home", b"hold", b"ld.", b"\n\n", b"", None, None)
END = len(BYTES) - 1
GRAMMARS = (
    (Literal("I "), Choice(((0, "hold"), (1, "go"), (2, "go home")))),
    (Choice(((2, "hold"), (1, "hole"))), Literal("."), Free(b"\n")),
    (Free(b"Igo"), Literal("me")),
)
# no utterance goes on where another one stops, so these need no end token
SELF_ENDING = ((Choice(((0, "go."), (1, "hold."), (3, "home!"))),), (Literal("old"), Choice(((1, "!"), (2, ".")))))

LARGEST = 1000
sample = jax.jit(policy.sample)

SAMPLINGS = (
    Sampling(),
    Sampling(0.7, top_k=3),
    Sampling(top_p=0.83),
    Sampling(1.3, min_p=0.1),
    Sampling(0),
    Sampling(0.5, top_k=5, top_p=0.91, min_p=0.02),
    Sampling(2.0, top_k=10_000, top_p=0.96),
    Sampling(top_k=1),
    Sampling(top_p=1e-6),
    Sampling(0.9, min_p=1.0),
    Sampling(0, top_k=2, top_p=0.5, min_p=0.5),
)


@jax.jit
def filtered(logits, mask, which, keep=None):
    """`policy.distribution` with row r sampled as SAMPLINGS[which[r]]."""
    return policy.distribution(logits, mask, per_row(SAMPLINGS, which), keep)


def by_loop(logits: np.ndarray, mask: np.ndarray, how: Sampling, keep: int | None = None) -> np.ndarray:
    """Log-probabilities float64 [V] of one row, minus infinity where removed: one filter after the other."""
    scaled = logits.astype(np.float32) / np.float32(how.temperature or 1)
    odds = np.exp(np.where(mask, scaled.astype(np.float64) - scaled[mask].max(), -np.inf))
    left = [v for v in range(len(logits)) if mask[v]]
    if how.temperature == 0:
        left = [max(left, key=lambda v: (logits[v], -v))]
    else:
        if how.top_k:
            last = sorted((scaled[v] for v in left), reverse=True)[: how.top_k][-1]
            left = [v for v in left if scaled[v] >= last]
        if how.top_p < 1:
            wanted, mass = how.top_p * sum(odds[v] for v in left), 0.0
            for value in sorted({scaled[v] for v in left}, reverse=True):
                if mass >= wanted:
                    break
                mass, last = mass + sum(odds[v] for v in left if scaled[v] == value), value
            left = [v for v in left if scaled[v] >= last]
        if how.min_p:
            left = [v for v in left if odds[v] >= how.min_p * max(odds[v] for v in left)]
    if keep is not None and mask[keep]:
        left = sorted({*left, keep})
    logp = np.full(len(logits), -np.inf)
    logp[left] = log_softmax(scaled[left].astype(np.float64))
    return logp


def same(found: np.ndarray, expected: np.ndarray, atol: float = 1e-5) -> None:
    """The same tokens are kept, with the same log-probabilities; the others have probability 0 and -1e30."""
    found, kept = np.asarray(found), np.isfinite(expected)
    np.testing.assert_array_equal(found > -1e29, kept)
    np.testing.assert_allclose(found[kept], expected[kept], atol=atol, rtol=1e-5)
    assert found.dtype == np.float32 and (found[~kept] == np.float32(policy.NEVER)).all()
    assert (np.exp(found)[~kept] == 0).all()


@cache
def tables_with(end: bool) -> TokenTables:
    return lift(GRAMMARS, BYTES, END) if end else lift(SELF_ENDING, BYTES, None)


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
    draw = lambda uniform: policy.sample(jnp.broadcast_to(logp[None], (rows, size)), uniform)  # noqa: E731
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
    normal = lambda scale, shift=0.0: generator.normal(size=size) * scale + shift  # noqa: E731
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
    rows = lambda x: x.reshape(len(SAMPLINGS), count, size)  # noqa: E731
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
    entropy = lambda logits: -(jnp.exp(logp(logits)) * logp(logits)).sum()  # noqa: E731
    assert np.isfinite(jax.grad(entropy)(jnp.asarray(logits))).all()


@pytest.mark.parametrize("size", [1, 17, 257, LARGEST])
def test_extreme_uniforms_never_draw_a_filtered_token(size):
    generator = np.random.default_rng(size)
    which = np.arange(len(SAMPLINGS))
    for logits, mask in patterns(size, generator):
        spread = lambda x: np.broadcast_to(x, (len(SAMPLINGS), size))  # noqa: E731
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
        after = tables.next[state[row], tables.token_class]
        able = [bool(reachable(int(s), int(left[row]) - 1) & set(np.flatnonzero(legal[row]))) for s in after]
        np.testing.assert_array_equal(found[row], able)
    reshaped = policy.allowed(tables, *(jnp.asarray(x).reshape(20, 20, *x.shape[1:]) for x in (state, legal, left)))
    np.testing.assert_array_equal(reshaped.reshape(found.shape), found)


CONFIG = Config(
    vocab_size=len(BYTES),
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=6,
    max_position_embeddings=64,
)
LORA = Lora(2, 4.0, ("q_proj", "down_proj"))
MOST = 5
ADAPTER = np.array([0, 0, 1, 1, -1, -1], np.int32)
LENGTH = (2, 4, 3)  # of the openings


def a_batch():
    """Weights, adapters, rows of three openings with two members each, and what they say; nothing said in row 4."""
    generator = np.random.default_rng(0)
    params = decoder.init(CONFIG, jax.random.key(0))
    params["embed_tokens"] = params["embed_tokens"] * 30
    shape = jax.eval_shape(partial(lora.init, lora=LORA), jax.random.key(0), params)
    several = [
        jax.tree.map(lambda x: jnp.asarray(generator.normal(size=x.shape) * 0.3, jnp.float32), shape) for _ in "ab"
    ]
    tables, (count, size) = tables_with(True), (6, 9)
    loss_mask = generator.random((count, size)) < 0.4
    loss_mask[0, 0], loss_mask[4] = True, False
    loss_mask &= np.cumsum(loss_mask, 1) <= MOST
    live = np.flatnonzero((tables.distance < 8).any(1) & ~tables.ended)
    state, left = generator.choice(live, loss_mask.shape), np.full(loss_mask.shape, 8)
    turn = np.sort(generator.integers(0, 3, loss_mask.shape), 1)
    legal = generator.random((4, 3, 2, tables.distance.shape[1])) < 0.6
    episode, seat = divmod(generator.permutation(8)[:count], 2)
    tokens = generator.integers(0, CONFIG.vocab_size, loss_mask.shape)
    mask = np.zeros((*loss_mask.shape, CONFIG.vocab_size), bool)
    for r, s in zip(*np.nonzero(loss_mask), strict=True):
        legal[episode[r], turn[r, s], seat[r]] |= tables.distance[state[r, s]] < 8  # something can be said
    for r, s in zip(*np.nonzero(loss_mask), strict=True):
        allowed_here = legal[episode[r], turn[r, s], seat[r]]
        after = tables.distance[tables.next[state[r, s], tables.token_class]]
        mask[r, s] = np.where(allowed_here[None], after, 99).min(1) <= 7
        tokens[r, s] = generator.choice(np.flatnonzero(mask[r, s]))
    integers = lambda x: jnp.asarray(x, jnp.int32)  # noqa: E731
    rows = Rows(
        prompts=Prompts(integers(generator.integers(0, CONFIG.vocab_size, (3, 4))), integers(LENGTH)),
        prompt=integers(np.repeat(np.arange(3), 2)),
        tokens=integers(tokens),
        length=jnp.full(count, size, jnp.int32),
        loss_mask=jnp.asarray(loss_mask),
        turn=integers(turn),
        logp=jnp.asarray(np.where(loss_mask, -1.0, 0), jnp.float32),
        grammar_state=jnp.asarray(state, jnp.int16),
        tokens_left=jnp.asarray(left, jnp.int16),
        episode=integers(episode),
        seat=integers(seat),
        policy=integers([1, 2, 3, 4, 0, 5]),
    )
    return params, several, rows, gather_sampled(rows, jnp.asarray(legal), MOST), mask


def scores_of(params, several, rows, sampled, **settings):
    joined = lora.concatenate(several, (LORA, LORA))
    return policy.score(CONFIG, params, rows, sampled, tables_with(True), joined, ADAPTER, **settings)


@jax.jit
def states_of(params, several, rows):
    """Final hidden states [R, S, D] of the token before each of rows.tokens, no opening shared."""
    length = np.asarray(LENGTH)[np.arange(6) // 2]
    texts = [jnp.concatenate([rows.prompts.tokens[r // 2, :n], rows.tokens[r]]) for r, n in enumerate(length)]
    whole = jnp.stack([jnp.pad(text, (0, 13 - len(text))) for text in texts])
    hidden, _ = decoder.forward(CONFIG, params, whole, adapters=lora.concatenate(several, (LORA, LORA)), policy=ADAPTER)
    return jnp.stack([hidden[r, n - 1 : n + 8] for r, n in enumerate(length)])


def logits_of(params, several, rows):
    return decoder.logits(CONFIG, params, states_of(params, several, rows))


@pytest.mark.parametrize(
    ("sampling", "masked"), [(Sampling(), True), (Sampling(1.7), False), (SAMPLINGS, True), (SAMPLINGS, False)]
)
def test_scores_equal_all_logits_of_whole_rows(sampling, masked):
    params, several, rows, sampled, mask = a_batch()
    found = jax.jit(partial(scores_of, sampling=sampling, masked=masked))(params, several, rows, sampled)
    logits = np.asarray(logits_of(params, several, rows))
    for r in range(6):
        how = sampling if isinstance(sampling, Sampling) else sampling[int(rows.policy[r])]
        places, n = np.flatnonzero(rows.loss_mask[r]), int(rows.loss_mask[r].sum())
        for m, place in enumerate(places):
            token = int(rows.tokens[r, place])
            logp = by_loop(logits[r, place], mask[r, place] | (not masked), how, token)
            np.testing.assert_allclose(found.logp[r, m], logp[token], atol=1e-5)
            entropy = -sum(np.exp(x) * x for x in logp if np.isfinite(x))
            np.testing.assert_allclose(found.entropy[r, m], entropy, atol=1e-5)
        assert not found.logp[r, n:].any() and not found.entropy[r, n:].any()
    assert not rows.loss_mask[4].any() and rows.loss_mask.sum() > 12 and found.value is None


def test_scores_are_the_log_probabilities_sampled_with():
    """Tokens drawn one after the other, the settings known beforehand; scored at once, the settings looked up."""
    params, several, rows, sampled, mask = a_batch()
    generator, which = np.random.default_rng(4), np.asarray(rows.policy)

    @jax.jit
    def draw(rows, mask, uniform, place):
        logits = jnp.take_along_axis(logits_of(params, several, rows), place[None, None, None], 1)[:, 0]
        logp = policy.distribution(logits, mask, per_row(SAMPLINGS, which))
        return logp, policy.sample(logp, uniform)

    tokens, behaviour_logp = np.array(rows.tokens), np.zeros(rows.tokens.shape, np.float32)
    for place in range(tokens.shape[1]):
        loss_mask = np.asarray(rows.loss_mask[:, place])
        here = mask[:, place] | ~loss_mask[:, None]
        uniform = jnp.asarray(generator.random(6), jnp.float32)
        logp, token = draw(rows.replace(tokens=jnp.asarray(tokens)), jnp.asarray(here), uniform, jnp.int32(place))
        tokens[loss_mask, place] = np.asarray(token)[loss_mask]
        behaviour_logp[loss_mask, place] = np.asarray(logp)[loss_mask, tokens[loss_mask, place]]
    sampled = sampled.replace(token=jnp.take_along_axis(jnp.asarray(tokens), sampled.at, 1))
    rows = rows.replace(tokens=jnp.asarray(tokens))
    scores = jax.jit(partial(scores_of, sampling=SAMPLINGS))(params, several, rows, sampled)
    expected = jnp.where(sampled.mask, jnp.take_along_axis(jnp.asarray(behaviour_logp), sampled.at, 1), 0)
    np.testing.assert_allclose(scores.logp, expected, atol=1e-5)
    plain = jax.jit(scores_of)(params, several, rows, sampled)
    assert (np.abs(plain.logp - scores.logp).max(1) > 0.01).sum() >= 4  # the filters matter
    assert not scores.logp[3].any() and not scores.entropy[3].any() and sampled.mask[3].any()  # greedy


def test_scores_in_chunks_equal_scores_at_once_in_value_and_gradient():
    params, several, rows, sampled, _ = a_batch()

    def number(weights, chunk):
        params, several = weights
        found = scores_of(params, several, rows, sampled, sampling=SAMPLINGS, chunk=chunk)
        return (found.logp * 0.3 + found.entropy**2).sum(), found

    run = jax.jit(jax.value_and_grad(number, has_aux=True), static_argnums=1)
    at_once = run((params, several), 2**24)
    assert float(np.abs(at_once[1][1][1]["q_proj"]["b"]).max()) > 0
    for positions in (0, 2):  # one position of every row; two of five, so that the last chunk is padded
        in_chunks = run((params, several), positions * 6 * CONFIG.vocab_size)
        for a, b in zip(jax.tree.leaves(in_chunks), jax.tree.leaves(at_once), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6 * max(1, np.abs(b).max()))


def a_head(seed: int = 0) -> dict:
    generator = np.random.default_rng(seed)
    return {"w": jnp.asarray(generator.normal(size=CONFIG.hidden_size), jnp.float32), "b": jnp.float32(0.3)}


def values_of(params, several, rows, sampled, head, config=CONFIG):
    return policy.values(config, params, rows, sampled, head, lora.concatenate(several, (LORA, LORA)), ADAPTER)


def test_a_value_is_read_from_the_state_in_which_the_token_is_chosen():
    params, several, rows, sampled, _ = a_batch()
    head = a_head()
    states = np.asarray(states_of(params, several, rows), np.float64)
    expected = np.zeros(sampled.mask.shape)
    for r in range(6):
        for m, place in enumerate(np.flatnonzero(rows.loss_mask[r])):
            expected[r, m] = states[r, place] @ np.asarray(head["w"], np.float64) + 0.3
    shared = jax.jit(lambda *a: scores_of(*a, value=head).value)(params, several, rows, sampled)
    np.testing.assert_allclose(shared, expected, atol=1e-5)
    np.testing.assert_allclose(jax.jit(values_of)(params, several, rows, sampled, head), expected, atol=1e-5)
    assert np.abs(expected).max() > 1 and not shared[4].any()
    fresh = policy.init_value(CONFIG)
    assert jax.tree.map(jnp.shape, fresh) == jax.tree.map(jnp.shape, head)
    assert not values_of(params, several, rows, sampled, fresh).any()


def test_each_row_may_have_a_head_of_its_own():
    params, several, rows, sampled, _ = a_batch()
    heads = a_head(), jax.tree.map(lambda x: 1 - 2 * x, a_head())
    which = np.arange(len(rows.policy)) % 2
    own = jax.tree.map(lambda *x: jnp.stack(x)[which], *heads)
    alone = np.stack([values_of(params, several, rows, sampled, head) for head in heads])
    found = jax.jit(values_of)(params, several, rows, sampled, own)
    np.testing.assert_allclose(found, alone[which, np.arange(len(which))], atol=1e-6)
    assert np.abs(alone[0] - alone[1]).max() > 1


def test_the_gradient_of_a_value_reaches_the_trunk_unless_it_is_detached():
    params, several, rows, sampled, _ = a_batch()

    @partial(jax.jit, static_argnums=1)
    def gradient(weights, detach):
        total = lambda w: (scores_of(*w[:2], rows, sampled, value=w[2], detach=detach).value ** 2).sum()  # noqa: E731
        return jax.grad(total)(weights)

    whole, cut = (gradient((params, several, a_head()), detach) for detach in (False, True))
    assert all(not leaf.any() for leaf in jax.tree.leaves(cut[:2]))
    assert all(leaf.any() for leaf in jax.tree.leaves(whole[0]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), whole[2], cut[2])
    assert all(leaf.any() for leaf in jax.tree.leaves(cut[2]))


def test_a_value_depends_on_nothing_at_or_after_its_token():
    """Every token of the batch is another one, so that the gradient of its embedding is that of its place alone."""
    params, several, rows, sampled, _ = a_batch()
    prompt, tokens = np.arange(12).reshape(3, 4), 12 + np.arange(54).reshape(6, 9)
    rows = rows.replace(
        prompts=rows.prompts.replace(tokens=jnp.asarray(prompt, jnp.int32)), tokens=jnp.asarray(tokens, jnp.int32)
    )
    embed = jax.random.normal(jax.random.key(1), (66, CONFIG.hidden_size))
    config = replace(CONFIG, vocab_size=66)
    run = lambda embed: values_of(params | {"embed_tokens": embed}, several, rows, sampled, a_head(), config)  # noqa: E731
    reach = np.abs(np.asarray(jax.jit(jax.jacrev(run))(embed))).max(-1) > 0  # [R, M, 66]
    for r, m in np.ndindex(*sampled.mask.shape):
        heard = prompt[r // 2, : LENGTH[r // 2]].tolist() + tokens[r, : int(sampled.at[r, m])].tolist()
        assert np.flatnonzero(reach[r, m]).tolist() == (heard if sampled.mask[r, m] else [])


def test_padding_changes_no_score_and_no_value():
    params, several, rows, sampled, _ = a_batch()
    run = jax.jit(lambda rows, sampled: scores_of(params, several, rows, sampled, sampling=SAMPLINGS, value=a_head()))
    expected = run(rows, sampled)
    generator = np.random.default_rng(5)
    junk = lambda *shape: jnp.asarray(generator.integers(0, CONFIG.vocab_size, shape), jnp.int32)  # noqa: E731
    wide = rows.replace(
        tokens=jnp.concatenate([rows.tokens, junk(6, 3)], 1),
        prompts=rows.prompts.replace(tokens=jnp.concatenate([rows.prompts.tokens, junk(3, 2)], 1)),
    )
    # one more place to speak in, unused, that points into the padding
    more = jax.tree.map(lambda x: jnp.concatenate([x, x[:, -1:]], 1), sampled)
    more = more.replace(mask=more.mask.at[:, -1].set(False), at=more.at.at[:, -1].set(11))
    for found, before in zip(jax.tree.leaves(run(wide, more)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found[:, :-1], before, atol=1e-5)
        assert not found[:, -1].any()


def test_the_value_of_a_turn_is_that_before_its_first_token():
    generator = np.random.default_rng(6)
    _, _, rows, _, _ = a_batch()
    shape, spoken_most = (4, 3, 2), 7
    where = np.arange(spoken_most)[None] < np.array([7, 3, 1, 5, 0, 6])[:, None]
    turn = np.sort(generator.integers(0, 3, where.shape), 1)
    integers, empty = jnp.asarray(turn, jnp.int32), jnp.zeros(where.shape, jnp.int32)
    sampled = SampledTokens(
        at=empty, mask=jnp.asarray(where), token=empty, turn=integers, behaviour_logp=empty, grammar_state=empty,
        tokens_left=empty, legal=jnp.ones((*where.shape, 1), bool),
    )  # fmt: skip
    tokens = generator.normal(size=where.shape).astype(np.float32)
    expected, there = np.zeros(shape, np.float32), np.zeros(shape, bool)
    first = np.zeros(where.shape, bool)
    for r in range(6):
        e, a = int(rows.episode[r]), int(rows.seat[r])
        for m in reversed(range(int(where[r].sum()))):
            expected[e, turn[r, m], a], there[e, turn[r, m], a] = tokens[r, m], True
        for m in range(int(where[r].sum())):
            first[r, m] = turn[r, m] not in turn[r, :m]
    values, exists = policy.by_turn(jnp.asarray(tokens), rows, sampled, shape)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(exists, there)
    assert first.sum() == there.sum() and 6 < there.sum() < 16
    back = np.asarray(per_token(values, rows, sampled))
    np.testing.assert_array_equal(back[first], tokens[first])
    gradient = jax.grad(lambda x: policy.by_turn(x, rows, sampled, shape)[0].sum())(jnp.asarray(tokens))
    np.testing.assert_array_equal(gradient, first)
