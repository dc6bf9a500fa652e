"""Information gain of replies as a reward for the turn that asked, and its sum with an outcome: InfoPO.

The gain of a reply is log pi(a | history) less the same with this reply exchanged for one that tells nothing. The
utterance a is the seat's next one, and the gain is a mean over its tokens. It is credited to the turn that asked.

Kong et al., InfoPO: Information-Driven Policy Optimization for User-Centric Agents (2026),
https://arxiv.org/abs/2603.00656. Formulas of the released code.

Shapes: B episodes, T turns, A seats; K kinds of P phrases of L tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.rl.masked import keep, segment_variance
from jaxmarl_llm.rl.statistics import estimate, group_index, key_of
from jaxmarl_llm.rollout.policy import by_turn
from jaxmarl_llm.rollout.trajectory import SampledTokens, exchange_told, phrase_tokens
from jaxmarl_llm.text.tokenizers import Tokenizer
from jaxmarl_llm.training.records import Experience


def phrases_of_kinds(tokenizer: Tokenizer, kinds: Sequence[Sequence[str]]) -> jax.Array:
    """The tokens int32 [K, P, L] of replies; those of a kind stand for each other, the last tells nothing."""
    return jnp.asarray(np.stack([phrase_tokens(tokenizer, texts) for texts in kinds]))


def mean_by_utterance(values: jax.Array, sampled: SampledTokens) -> jax.Array:
    """Values [R, M] of tokens as the mean of their utterance, 0 where nothing was sampled."""
    same = (sampled.turn[:, :, None] == sampled.turn[:, None]) & sampled.mask[:, None] & sampled.mask[:, :, None]
    count = jnp.maximum(same.sum(2), 1)
    return (same * jnp.where(sampled.mask, values, 0)[:, None]).sum(2) / count


def information_gain(
    experience: Experience, name: str, phrases: jax.Array, answered: Mapping[int, int]
) -> tuple[jax.Array, jax.Array]:
    """(gain float32 [B, T, A] of each turn that asked, True for such turns) of a policy set; no gradient.

    `answered` maps the turn that asks to the seat's turn that hears the reply, and only this reply is exchanged for the
    last one of its kind. Turns after which the game ends before that have no gain.
    """
    rows, sampled = experience.rows[name], experience.sampled[name]
    batch, turns, seats = experience.episodes.acted.shape
    shape = (batch, turns, seats)
    logp = experience.score(name).logp
    gain, asked = jnp.zeros(shape), jnp.zeros(shape, bool)
    for asks, hears in answered.items():
        into = jnp.where(jnp.arange(turns)[None, :, None] == hears, phrases.shape[1] - 1, -1)
        silent = rows
        for kind in phrases:
            silent = exchange_told(silent, kind, jnp.broadcast_to(into, shape))
        shift = mean_by_utterance(logp - experience.score(name, rows=silent).logp, sampled)
        shift, acted = by_turn(shift, rows, sampled, shape)
        gain, asked = gain.at[:, asks].set(shift[:, hears]), asked.at[:, asks].set(acted[:, hears])
    return jax.lax.stop_gradient(gain), asked


def scale_gain(
    gain: jax.Array, *, asked: jax.Array, outcome: jax.Array, acts: tuple[jax.Array, jax.Array, int]
) -> jax.Array:
    """c (gain - mean) / std of the turns that asked in a group, 0 elsewhere: c = min(1, max(std of outcome, 1) / std)
    with deviations over all acts of the batch. `outcome` [B, T, A] is its advantage, `acts` (acted, group, groups)."""
    acted, group, groups = acts
    key = key_of(asked.shape, group=group_index(group, groups))
    whitened = estimate(gain, asked, *key, baseline="mean", scale="std")
    spread = lambda x: jnp.std(keep(x, acted), where=acted)
    return whitened * jnp.minimum(1, jnp.maximum(spread(outcome), 1) / jnp.maximum(spread(whitened), 1e-6))


def gate(score: jax.Array, group: jax.Array, groups: int, temperature: float | jax.Array) -> jax.Array:
    """sigmoid(-std of the group's scores / temperature) [B, 1, 1] of episodes' scores [B]: 0.5 if all are equal."""
    variance = segment_variance(score, group, groups, jnp.ones_like(group, bool))[group]
    return jax.nn.sigmoid(-jnp.sqrt(variance) / temperature)[:, None, None]


def to_the_end(outcome: jax.Array, acted: jax.Array, success: jax.Array, gamma: float | jax.Array) -> jax.Array:
    """The outcome's advantage [B, T, A] in shares gamma^k, k acts of the seat before its last, whose mean is 1. An
    episode without `success` (bool [B]) has none: its credits are 0, and the release leaves its advantage at 0."""
    later = jnp.flip(jnp.cumsum(jnp.flip(acted, 1), 1), 1) - 1
    share = jnp.where(acted, jnp.asarray(gamma, jnp.float32) ** later, 0)
    share *= acted.sum(1, keepdims=True) / jnp.maximum(share.sum(1, keepdims=True), 1e-6)
    return jnp.where(success[:, None, None], outcome * share, 0)
