"""The one definition of a policy's distribution, used by the sampler and by the loss alike.

logits / temperature, then the grammar's mask, then log-softmax in float32. Entropy, divergences and ratios are of
that distribution, the reference's included. Shapes: R rows, M spoken tokens of a row, V vocabulary, N actions.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm import model
from jaxmarl_llm.adapters import Adapters
from jaxmarl_llm.grammar import TokenTables
from jaxmarl_llm.model import Config
from jaxmarl_llm.trajectory import Rows, Spoken

NEVER = -1e30  # the logit of a masked token: finite, so that no gradient is NaN; its probability is exactly 0


class Scores(struct.PyTreeNode):
    logp: jax.Array  # float32 [R, M], 0 where there is no spoken token
    entropy: jax.Array  # float32 [R, M], of the masked distribution, in nats


def allowed(tables: TokenTables, state: jax.Array, legal: jax.Array, left: jax.Array) -> jax.Array:
    """bool [..., V]: tokens after which a legal action [..., N] can still be completed in the tokens left [...]."""
    after = jnp.asarray(tables.next)[state].astype(jnp.int32)  # [..., classes]
    distance = jnp.asarray(tables.distance)[after]  # [..., classes, N]
    need = jnp.min(jnp.where(legal[..., None, :], distance, jnp.iinfo(jnp.int16).max), -1)
    fits = need.astype(jnp.int32) <= left[..., None] - 1
    return jnp.take(fits, jnp.asarray(tables.token_class), axis=-1)


def distribution(logits: jax.Array, mask: jax.Array | None, temperature: float | jax.Array = 1.0) -> jax.Array:
    """Log-probabilities float32 [..., V]; a masked token's is below -1e29 and its probability exactly 0."""
    scaled = logits.astype(jnp.float32) / temperature
    return jax.nn.log_softmax(scaled if mask is None else jnp.where(mask, scaled, NEVER), -1)


def sample(logp: jax.Array, uniform: jax.Array, block: int = 256) -> jax.Array:
    """Token int32 [R] of log-probabilities [R, V] at uniforms float32 [R] in [0, 1], by inverse CDF in two levels.

    A block is chosen first, then a token in it: Gumbel noise over a large vocabulary costs ten times as much. Rounding
    can carry the target past the last sum or onto an entry without mass: the nearest earlier one with mass is taken.
    """
    rows, size = logp.shape
    mass = jnp.pad(jnp.exp(logp), ((0, 0), (0, -size % block))).reshape(rows, -1, block)

    def invert(mass, target):
        """First index whose running sum exceeds the target, moved to one with mass; and the sum before it."""
        running = jnp.cumsum(mass, -1)
        beyond = jnp.sum(running <= target[:, None], -1, keepdims=True)
        index = jnp.arange(mass.shape[-1])[None]
        index = jnp.max(jnp.where((mass > 0) & (index <= beyond), index, -1), -1)
        index = jnp.where(index < 0, jnp.argmax(mass > 0, -1), index)
        return index, jnp.take_along_axis(running - mass, index[:, None], -1)[:, 0]

    blocks = mass.sum(-1)
    target = uniform * blocks.sum(-1)
    chosen, before = invert(blocks, target)
    inside, _ = invert(jnp.take_along_axis(mass, chosen[:, None, None], 1)[:, 0], jnp.maximum(target - before, 0))
    return (chosen * block + inside).astype(jnp.int32)


def score(
    config: Config,
    params: dict,
    rows: Rows,
    said: Spoken,
    tables: TokenTables,
    adapters: Adapters | None = None,
    policy: jax.Array | None = None,
    temperature: float | jax.Array = 1.0,
    masked: bool = True,
    remat: model.Remat = "none",
    chunk: int = 2**24,
) -> Scores:
    """Log-probabilities and entropies of the spoken tokens under these weights.

    Of the logits, at most `chunk` numbers stand in memory at once (one position of every row if that is more).
    """
    hidden, opened = model.forward(config, params, rows.tokens, rows.openings, adapters, policy, remat)
    assert opened is not None  # the rows have openings
    members = rows.tokens.shape[0] // rows.openings.tokens.shape[0]
    last = jnp.take_along_axis(opened, rows.openings.length[:, None, None] - 1, 1)  # predicts each row's first token
    before = jnp.concatenate([jnp.repeat(last, members, 0), hidden[:, :-1]], 1)
    before = jnp.take_along_axis(before, said.at[:, :, None], 1)  # [R, M, D]

    @jax.checkpoint
    def positions(inputs):
        before, token, state, legal, left = inputs
        mask = allowed(tables, state, legal, left) if masked else None
        logp = distribution(model.logits(params, before), mask, temperature)
        entropy = -jnp.sum(jnp.exp(logp) * logp, -1)
        return jnp.take_along_axis(logp, token[..., None], -1)[..., 0], entropy

    inputs = (before, said.token, said.state, said.legal, said.left)
    spoken = said.token.shape[1]
    step = max(1, min(spoken, chunk // (len(rows.tokens) * config.vocab_size)))
    if step == spoken:
        logp, entropy = positions(inputs)
    else:
        count = -(-spoken // step)
        pad = lambda x: jnp.pad(x, ((0, 0), (0, count * step - spoken), *((0, 0),) * (x.ndim - 2)))  # noqa: E731
        split = lambda x: pad(x).reshape(len(x), count, step, *x.shape[2:]).swapaxes(0, 1)  # noqa: E731
        join = lambda x: x.swapaxes(0, 1).reshape(x.shape[1], -1)[:, :spoken]  # noqa: E731
        logp, entropy = jax.tree.map(join, jax.lax.map(positions, jax.tree.map(split, inputs)))
    return Scores(jnp.where(said.where, logp, 0), jnp.where(said.where, entropy, 0))
