"""The records of a rollout: the events of games, and the tokens that every seat heard and said.

Shapes: B episodes, T turns, A seats, N actions, C reward components; R rows, S tokens, O prompts, M sampled tokens. In
`Episodes.measured`, M is the number of measures of a game.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.text.tokenizers import Tokenizer


class Branches(struct.PyTreeNode):
    """The origin of every turn in episodes that branch (`branching`). A copied episode copies its record."""

    origin: jax.Array  # int32 [B, T]: the episode that played the turn; after a copy, the copied episode
    branched: jax.Array  # bool [B, T]: the episode was copied or became a copy in that turn
    entropy: jax.Array  # float32 [B, T, A]: entropy in nats before a seat's first token in that turn

    @property
    def turns(self) -> jax.Array:
        """int32 [B, T]: a number for every played turn, equal in all episodes that share the turn."""
        return self.origin * self.origin.shape[1] + jnp.arange(self.origin.shape[1], dtype=jnp.int32)[None]


class Episodes(struct.PyTreeNode):
    """The events of a batch of games. The values of a turn after the end are 0 or false."""

    reward: jax.Array  # float32 [B, T, A, C], of turn t
    acted: jax.Array  # bool [B, T, A]
    action: jax.Array  # int32 [B, T, A], 0 where not acted, -1 where the answer was no legal action
    legal: jax.Array  # bool [B, T, A, N]
    valid: jax.Array  # bool [B, T, A]: the answer was parsed and legal
    role: jax.Array  # int32 [B, T, A]
    told: jax.Array  # int32 [B, T, A], the name of the observation before the turn; the first includes the rules
    group: jax.Array  # int32 [B]
    game: jax.Array  # int32 [B], the number of the batch's environment
    terminated: jax.Array  # bool [B]
    truncated: jax.Array  # bool [B]
    measured: Any = None  # float32 [B, T, A, M], facts about turn t that are not paid; None in a game without measures
    branches: Branches | None = None  # None without branches

    @property
    def total_reward(self) -> jax.Array:
        """The sum of the components, float32 [B, T, A]; a single component is unchanged."""
        return self.reward[..., 0] if self.reward.shape[-1] == 1 else self.reward.sum(-1)

    @property
    def team_reward(self) -> jax.Array:
        """The common reward of a team, float32 [B, T]: the total reward of seat 0."""
        return self.total_reward[..., 0]


class Rows(struct.PyTreeNode):
    """Rows of one policy set, ordered by prompt: row o * G + g is member g of the group of prompt o."""

    prompts: Prompts  # [O, So]
    prompt: jax.Array  # int32 [R], index into prompts
    tokens: jax.Array  # int32 [R, S], right-padded, after the prompt
    length: jax.Array  # int32 [R], without the prompt
    loss_mask: jax.Array  # bool [R, S]: trained tokens, sampled by this seat from several possible ones
    turn: jax.Array  # int32 [R, S]: the turn of a sampled token, or the turn after a heard token
    logp: jax.Array  # float32 [R, S]: log-probability of a `loss_mask` token as sampled, else 0
    grammar_state: jax.Array  # int16 [R, S]: grammar state that a `loss_mask` token was sampled in
    tokens_left: jax.Array  # int16 [R, S]: tokens left to the utterance when a `loss_mask` token was sampled
    episode: jax.Array  # int32 [R]
    seat: jax.Array  # int32 [R]
    policy: jax.Array  # int32 [R], index into the policies of the set


class Trajectory(struct.PyTreeNode):
    """The result of a rollout; dicts are by policy set."""

    episodes: Episodes
    rows: dict[str, Rows]
    utilisation: dict[str, jax.Array]  # float32: share of the tokens computed after the prompts that are no padding
    truncated_message_tokens: dict[str, jax.Array]  # int32: tokens cut off messages
    kinds: Any = None
    """int8 [R, So + S], the kind of message of each token of a row with its prompt, without padding in between
    (`text_rows.kind_of`). None for games that tell rules, then observations."""


class SampledTokens(struct.PyTreeNode):
    """The `loss_mask` tokens of rows, gathered to the front, with all the inputs of a loss."""

    at: jax.Array  # int32 [R, M], index into S
    mask: jax.Array  # bool [R, M]
    token: jax.Array  # int32 [R, M]
    turn: jax.Array  # int32 [R, M]
    behaviour_logp: jax.Array  # float32 [R, M], log-probability as sampled, or as scored again (`sampler_logp`)
    grammar_state: jax.Array  # int32 [R, M]
    tokens_left: jax.Array  # int32 [R, M]
    legal: jax.Array  # bool [R, M, N]
    sampler_logp: jax.Array | None = None
    """float32 [R, M], log-probability as sampled, if behaviour_logp was scored again (`scoring.scored_again`)."""


def gather_sampled(rows: Rows, legal: jax.Array, max_tokens: int) -> SampledTokens:
    """Gathers the trained tokens of every row, at most `max_tokens` = M; legal bool [B,T,A,N] is `Episodes.legal`."""
    at = jnp.argsort(~rows.loss_mask, axis=1, stable=True)[:, :max_tokens]
    take = lambda x: jnp.take_along_axis(x, at, axis=1)
    turn = take(rows.turn)
    return SampledTokens(
        at=at,
        mask=take(rows.loss_mask),
        token=take(rows.tokens),
        turn=turn,
        behaviour_logp=take(rows.logp),
        grammar_state=take(rows.grammar_state).astype(jnp.int32),
        tokens_left=take(rows.tokens_left).astype(jnp.int32),
        legal=legal[rows.episode[:, None], turn, rows.seat[:, None]],
    )


def per_token(values: jax.Array, rows: Rows, sampled: SampledTokens) -> jax.Array:
    """Values [B, T, A] of turns, e.g. advantages, at every sampled token [R, M]; 0 without a token."""
    return jnp.where(sampled.mask, values[rows.episode[:, None], sampled.turn, rows.seat[:, None]], 0)


def first_of_turn(sampled: SampledTokens) -> jax.Array:
    """The first sampled token of each turn, bool [R, M]."""
    return sampled.mask.at[:, 1:].set(sampled.mask[:, 1:] & (sampled.turn[:, 1:] != sampled.turn[:, :-1]))


def last_of_turn(sampled: SampledTokens) -> jax.Array:
    """The last sampled token of each turn, bool [R, M]."""
    continues = sampled.mask[:, 1:] & (sampled.turn[:, 1:] == sampled.turn[:, :-1])
    return sampled.mask & ~jnp.pad(continues, ((0, 0), (0, 1)))


def phrase_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> np.ndarray:
    """The tokens int32 [P, L] of P texts that can stand for each other in a row. Raises ValueError for texts of unlike
    numbers of tokens, after which other tokens of a row would move."""
    tokens = [tokenizer.encode(text) for text in texts]
    if len({len(ids) for ids in tokens}) != 1 or not tokens[0]:
        counts = ", ".join(f"{text!r} has {len(ids)}" for text, ids in zip(texts, tokens, strict=True))
        raise ValueError(f"Texts that are exchanged have equal numbers of tokens, and {counts}.")
    return np.array(tokens, np.int32)


def exchange_told(rows: Rows, phrases: np.ndarray | jax.Array, into: jax.Array) -> Rows:
    """The rows as if a seat had been told another one of these phrases: a privileged one for a neutral one, or back.

    The `phrases` are int32 [P, L], from `phrase_tokens`. Each that a seat was told before turn t becomes the phrase of
    number `into` int32 [B, T, A], or one number for all. A negative number leaves it. All other tokens, positions and
    masks stay, so `Experience.score(rows=...)` has the log-probabilities of the same words after other texts. Phrases
    are recognised by their tokens: none of them may stand within another text. Sampled tokens are never written over.

    Rows that share a prompt share what is told before turn 0: the number of the first of them.
    """
    share = len(rows.tokens) // len(rows.prompts.tokens)
    by_turn = jnp.asarray(into, jnp.int32)
    number = lambda episode, turn, seat: by_turn[episode, turn, seat] if by_turn.ndim else by_turn
    first = jnp.broadcast_to(number(rows.episode[::share], 0, rows.seat[::share]), len(rows.prompts.tokens))
    later = jnp.broadcast_to(number(rows.episode[:, None], rows.turn, rows.seat[:, None]), rows.turn.shape)
    heard = (jnp.arange(rows.tokens.shape[1])[None] < rows.length[:, None]) & ~rows.loss_mask
    prompts, length = rows.prompts.tokens, rows.prompts.length
    told = jnp.arange(prompts.shape[1])[None] < length.reshape(len(prompts), -1).max(1, keepdims=True)
    return rows.replace(
        prompts=Prompts(_exchange(prompts, told, phrases, jnp.broadcast_to(first[:, None], told.shape)), length),
        tokens=_exchange(rows.tokens, heard, phrases, later),
    )


def _exchange(tokens: jax.Array, heard: jax.Array, phrases: np.ndarray | jax.Array, into: jax.Array) -> jax.Array:
    """Tokens [R, S] with the phrases in `heard` [R, S] written over with the phrases `into` [R, S], by their start."""
    size = tokens.shape[1]
    ahead = lambda x, k: jnp.pad(x[:, k:], ((0, 0), (0, k)))
    behind = lambda x, k: jnp.pad(x[:, : size - k], ((0, 0), (k, 0)))
    begins = jnp.broadcast_to(into[..., None] >= 0, (*tokens.shape, len(phrases)))
    for k, nth in enumerate(phrases.T):
        begins &= (ahead(tokens, k)[..., None] == nth[None, None]) & ahead(heard, k)[..., None]
    start, chosen = begins.any(-1), jnp.asarray(phrases)[jnp.maximum(into, 0)]
    for k in range(phrases.shape[1]):
        tokens = jnp.where(behind(start, k), behind(chosen[..., k], k), tokens)
    return tokens
