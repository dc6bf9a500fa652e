"""Scores and values of sampled tokens equal those of all logits of whole rows, in value and gradient.

The long cases compile all logits for each way of sampling; the short ones compare scores with the probabilities sampled
with.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.devices import target
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout import policy
from jaxmarl_llm.rollout.policy import Sampling, per_row
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens, gather_sampled, per_token
from tests.support.policies import BYTES, SAMPLINGS, by_loop, tables_with

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
LENGTH = (2, 4, 3)  # prompts


def a_batch():
    """Weights, adapters, rows of three prompts in groups of two, and their sampled tokens; none in row 4."""
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
    integers = lambda x: jnp.asarray(x, jnp.int32)
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
    fixed = {name: settings.pop(name) for name in ("sampling", "masked", "chunk") if name in settings}
    scorer = policy.Scorer(CONFIG, tables_with(True), **fixed)
    return scorer(params, rows, sampled, joined, ADAPTER, **settings)


@jax.jit
def states_of(params, several, rows):
    """Final hidden states [R, S, D] of the token before each of rows.tokens, no prompt shared."""
    length = np.asarray(LENGTH)[np.arange(6) // 2]
    texts = [jnp.concatenate([rows.prompts.tokens[r // 2, :n], rows.tokens[r]]) for r, n in enumerate(length)]
    whole = jnp.stack([jnp.pad(text, (0, 13 - len(text))) for text in texts])
    hidden, _ = decoder.forward(CONFIG, params, whole, adapters=lora.concatenate(several, (LORA, LORA)), policy=ADAPTER)
    return jnp.stack([hidden[r, n - 1 : n + 8] for r, n in enumerate(length)])


def logits_of(params, several, rows):
    return decoder.logits(CONFIG, params, states_of(params, several, rows))


@pytest.mark.long
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
    in_chunks = run((params, several), 2 * 6 * CONFIG.vocab_size)  # two of five, so that the last chunk is padded
    for a, b in zip(jax.tree.leaves(in_chunks), jax.tree.leaves(at_once), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6 * max(1, np.abs(b).max()))


def test_a_chunk_has_the_number_of_logits_that_suits_the_device(monkeypatch):
    """More on an accelerator, and the scorer asks for no more positions of its six rows than that."""
    with target.as_on("cpu"):
        few = policy.logits_at_once()
    with target.as_on("gpu"):
        assert policy.logits_at_once() > few
    seen = []
    logits = decoder.logits
    monkeypatch.setattr(policy, "logits_at_once", lambda: 2 * 6 * CONFIG.vocab_size)
    monkeypatch.setattr(decoder, "logits", lambda *of: seen.append(of[2].shape[1]) or logits(*of))
    scores_of(*a_batch()[:4])
    assert set(seen) == {2}


def a_head(seed: int = 0) -> dict:
    generator = np.random.default_rng(seed)
    return {"w": jnp.asarray(generator.normal(size=CONFIG.hidden_size), jnp.float32), "b": jnp.float32(0.3)}


def values_of(params, several, rows, sampled, head, config=CONFIG):
    return policy.values(config, params, rows, sampled, head, lora.concatenate(several, (LORA, LORA)), ADAPTER)


jitted_values = jax.jit(values_of)


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
    np.testing.assert_allclose(jitted_values(params, several, rows, sampled, head), expected, atol=1e-5)
    assert np.abs(expected).max() > 1 and not shared[4].any()
    fresh = policy.init_value(CONFIG)
    assert jax.tree.map(jnp.shape, fresh) == jax.tree.map(jnp.shape, head)
    assert not jitted_values(params, several, rows, sampled, fresh).any()


def test_each_row_may_have_its_value_head():
    params, several, rows, sampled, _ = a_batch()
    heads = a_head(), jax.tree.map(lambda x: 1 - 2 * x, a_head())
    which = np.arange(len(rows.policy)) % 2
    own = jax.tree.map(lambda *x: jnp.stack(x)[which], *heads)
    alone = np.stack([jitted_values(params, several, rows, sampled, head) for head in heads])
    found = jitted_values(params, several, rows, sampled, own)
    np.testing.assert_allclose(found, alone[which, np.arange(len(which))], atol=1e-6)
    assert np.abs(alone[0] - alone[1]).max() > 1


def test_the_gradient_of_a_value_reaches_the_trunk_unless_it_is_detached():
    params, several, rows, sampled, _ = a_batch()

    @partial(jax.jit, static_argnums=1)
    def gradient(weights, detach):
        total = lambda w: (scores_of(*w[:2], rows, sampled, value=w[2], detach=detach).value ** 2).sum()
        return jax.grad(total)(weights)

    whole, cut = (gradient((params, several, a_head()), detach) for detach in (False, True))
    assert all(not leaf.any() for leaf in jax.tree.leaves(cut[:2]))
    assert all(leaf.any() for leaf in jax.tree.leaves(whole[0]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), whole[2], cut[2])
    assert all(leaf.any() for leaf in jax.tree.leaves(cut[2]))


def test_a_value_depends_on_nothing_at_or_after_its_token():
    """Every token of the batch is another one, so that the gradient of its embedding belongs to its place alone."""
    params, several, rows, sampled, _ = a_batch()
    prompt, tokens = np.arange(12).reshape(3, 4), 12 + np.arange(54).reshape(6, 9)
    rows = rows.replace(
        prompts=rows.prompts.replace(tokens=jnp.asarray(prompt, jnp.int32)), tokens=jnp.asarray(tokens, jnp.int32)
    )
    embed = jax.random.normal(jax.random.key(1), (66, CONFIG.hidden_size))
    config = replace(CONFIG, vocab_size=66)
    run = lambda embed: values_of(params | {"embed_tokens": embed}, several, rows, sampled, a_head(), config)
    reach = np.abs(np.asarray(jax.jit(jax.jacrev(run))(embed))).max(-1) > 0  # [R, M, 66]
    for r, m in np.ndindex(*sampled.mask.shape):
        heard = prompt[r // 2, : LENGTH[r // 2]].tolist() + tokens[r, : int(sampled.at[r, m])].tolist()
        assert np.flatnonzero(reach[r, m]).tolist() == (heard if sampled.mask[r, m] else [])


def test_padding_changes_no_score_and_no_value():
    params, several, rows, sampled, _ = a_batch()
    run = jax.jit(lambda rows, sampled: scores_of(params, several, rows, sampled, sampling=SAMPLINGS, value=a_head()))
    expected = run(rows, sampled)
    generator = np.random.default_rng(5)
    junk = lambda *shape: jnp.asarray(generator.integers(0, CONFIG.vocab_size, shape), jnp.int32)
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
    shape, most = (4, 3, 2), 7
    where = np.arange(most)[None] < np.array([7, 3, 1, 5, 0, 6])[:, None]
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
