from collections.abc import Iterator
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import chisquare

from jaxmarl_llm import adapters, model, policy
from jaxmarl_llm.adapters import Lora
from jaxmarl_llm.grammar import Choice, Free, Literal, TokenTables, lift
from jaxmarl_llm.model import Config, Openings
from jaxmarl_llm.trajectory import Rows, spoken

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
    logp = np.asarray(policy.distribution(jnp.asarray(logits), jnp.asarray(mask), temperature))
    expected = log_softmax(np.where(mask, logits.astype(np.float64) / temperature, -np.inf), -1)
    np.testing.assert_allclose(logp[mask], expected[mask], atol=2e-5)
    assert logp.dtype == np.float32 and (logp[~mask] < -1e29).all()
    assert (np.exp(logp)[~mask] == 0).all() and np.isfinite(logp).all()
    unmasked = np.asarray(policy.distribution(jnp.asarray(logits, jnp.bfloat16), None, temperature))
    rounded = np.asarray(jnp.asarray(logits, jnp.bfloat16), np.float64)
    np.testing.assert_allclose(unmasked, log_softmax(rounded / temperature, -1), atol=2e-5)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_gradients_stay_finite_and_masked_logits_get_none(scale):
    generator = np.random.default_rng(0)
    logits = jnp.asarray(generator.normal(size=(5, 11)) * scale, jnp.float32)
    mask = jnp.asarray(generator.random((5, 11)) < 0.5).at[:, 3].set(True).at[0].set(jnp.arange(11) == 3)

    def both(logits):
        logp = policy.distribution(logits, mask, 0.7)
        return logp[:, 3].sum() - (jnp.exp(logp) * logp).sum()

    gradient = np.asarray(jax.grad(both)(logits))
    assert np.isfinite(gradient).all() and (gradient[~np.asarray(mask)] == 0).all()
    assert (gradient[0] == 0).all()  # nothing to choose
    assert scale > 1 or np.abs(gradient[1:]).max() > 0.1


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


def a_batch():
    """Weights, adapters, rows of three openings with two members each, and what they say; nothing said in row 4."""
    generator = np.random.default_rng(0)
    params = model.init(CONFIG, jax.random.key(0))
    params["embed_tokens"] = params["embed_tokens"] * 30
    shape = jax.eval_shape(partial(adapters.init, lora=LORA), jax.random.key(0), params)
    several = [
        jax.tree.map(lambda x: jnp.asarray(generator.normal(size=x.shape) * 0.3, jnp.float32), shape) for _ in "ab"
    ]
    tables, (count, size) = tables_with(True), (6, 9)
    mine = generator.random((count, size)) < 0.4
    mine[0, 0], mine[4] = True, False
    mine &= np.cumsum(mine, 1) <= MOST
    live = np.flatnonzero((tables.distance < 8).any(1) & ~tables.ended)
    state, left = generator.choice(live, mine.shape), np.full(mine.shape, 8)
    turn = np.sort(generator.integers(0, 3, mine.shape), 1)
    legal = generator.random((4, 3, 2, tables.distance.shape[1])) < 0.6
    episode, seat = generator.integers(0, 4, count), generator.integers(0, 2, count)
    tokens = generator.integers(0, CONFIG.vocab_size, mine.shape)
    mask = np.zeros((*mine.shape, CONFIG.vocab_size), bool)
    for r, s in zip(*np.nonzero(mine), strict=True):
        legal[episode[r], turn[r, s], seat[r]] |= tables.distance[state[r, s]] < 8  # something can be said
    for r, s in zip(*np.nonzero(mine), strict=True):
        allowed_here = legal[episode[r], turn[r, s], seat[r]]
        after = tables.distance[tables.next[state[r, s], tables.token_class]]
        mask[r, s] = np.where(allowed_here[None], after, 99).min(1) <= 7
        tokens[r, s] = generator.choice(np.flatnonzero(mask[r, s]))
    integers = lambda x: jnp.asarray(x, jnp.int32)  # noqa: E731
    rows = Rows(
        openings=Openings(integers(generator.integers(0, CONFIG.vocab_size, (3, 4))), integers([2, 4, 3])),
        opening=integers(np.repeat(np.arange(3), 2)),
        tokens=integers(tokens),
        length=jnp.full(count, size, jnp.int32),
        mine=jnp.asarray(mine),
        turn=integers(turn),
        logp=jnp.asarray(np.where(mine, -1.0, 0), jnp.float32),
        state=jnp.asarray(state, jnp.int16),
        left=jnp.asarray(left, jnp.int16),
        episode=integers(episode),
        seat=integers(seat),
        policy=integers([0, 0, 1, 1, -1, -1]),
    )
    return params, several, rows, spoken(rows, jnp.asarray(legal), MOST), mask


def scores_of(params, several, rows, said, **settings):
    joined = adapters.concatenate(several, LORA)
    return policy.score(CONFIG, params, rows, said, tables_with(True), joined, rows.policy, **settings)


@pytest.mark.parametrize(("temperature", "masked"), [(1.0, True), (0.6, True), (1.7, False)])
def test_scores_equal_all_logits_of_whole_rows(temperature, masked):
    params, several, rows, said, mask = a_batch()
    found = jax.jit(partial(scores_of, temperature=temperature, masked=masked))(params, several, rows, said)
    run = jax.jit(partial(model.forward, CONFIG))
    joined = adapters.concatenate(several, LORA)
    length = np.asarray(rows.openings.length)[rows.opening]
    texts = [
        np.r_[rows.openings.tokens[o, :n], row] for o, n, row in zip(rows.opening, length, rows.tokens, strict=True)
    ]
    whole = jnp.asarray(np.stack([np.pad(text, (0, 13 - len(text))) for text in texts]))
    logits = np.asarray(model.logits(params, run(params, whole, adapters=joined, policy=rows.policy)[0]), np.float64)
    for r in range(6):
        places = np.flatnonzero(rows.mine[r])
        logp = logits[r, length[r] + places - 1] / temperature
        logp = log_softmax(np.where(mask[r, places] | (not masked), logp, -np.inf), -1)
        entropy = -(np.exp(logp) * np.where(np.isfinite(logp), logp, 0)).sum(-1)
        n, token = len(places), np.asarray(rows.tokens[r, places])
        np.testing.assert_allclose(found.logp[r, :n], logp[np.arange(n), token], atol=1e-5)
        np.testing.assert_allclose(found.entropy[r, :n], entropy, atol=1e-5)
        assert not found.logp[r, n:].any() and not found.entropy[r, n:].any()
    assert len(np.flatnonzero(rows.mine[4])) == 0 and rows.mine.sum() > 12


def test_scores_in_chunks_equal_scores_at_once_in_value_and_gradient():
    params, several, rows, said, _ = a_batch()

    def number(weights, chunk):
        params, several = weights
        found = scores_of(params, several, rows, said, chunk=chunk)
        return (found.logp * 0.3 + found.entropy**2).sum(), found

    run = jax.jit(jax.value_and_grad(number, has_aux=True), static_argnums=1)
    at_once = run((params, several), 2**24)
    assert float(np.abs(at_once[1][1][1]["q_proj"]["b"]).max()) > 0
    for positions in (0, 2):  # one position of every row; two of five, so that the last chunk is padded
        in_chunks = run((params, several), positions * 6 * CONFIG.vocab_size)
        for a, b in zip(jax.tree.leaves(in_chunks), jax.tree.leaves(at_once), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6 * max(1, np.abs(b).max()))
