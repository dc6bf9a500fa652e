"""What a seat reads: where its dialogue stands, which chat marker comes next, and the pieces of a prompt or an
observation.

The same table of markers and the same three stages serve two forms. `prompt`, `hear` and `transcript` write one row as
a list of tokens on the host. `prompt_pieces` and `heard_pieces` write all rows in a compiled program, as ragged pieces
that `join` puts one after the other.
Shapes: R rows, L tokens of a piece, S tokens of a row, K fields of an observation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.base import View
from jaxmarl_llm.rollout.layout import RowLayout
from jaxmarl_llm.text.tokenizers import Markers, Phrases, widest

RULES_ONLY, LISTENING, SPOKE = range(3)  # the stages of a dialogue

Piece = tuple[jax.Array, jax.Array]  # ragged: tokens int32 [R, L], of which the first n int32 [R] count


def markers_before(markers: Markers) -> dict[int, tuple[int, ...]]:
    """The marker in front of what is heard, by stage; a dialogue that is LISTENING gets none."""
    return {RULES_ONLY: markers.hear_first, SPOKE: markers.hear}


def hear(
    markers: Markers, encode: Callable[[str], list[int]], stage: int, pieces: Sequence[str], acting: bool
) -> tuple[list[int], int]:
    """The tokens of what a seat is told now, markers and the call to speak included; and the next stage.

    Each piece of text is encoded for itself.
    """
    if not (any(pieces) or acting):
        return [], stage
    told = [token for piece in pieces for token in encode(piece)]
    tokens = [*markers_before(markers).get(stage, ()), *told, *(markers.speak if acting else ())]
    return tokens, SPOKE if acting else LISTENING


def prompt(markers: Markers, encode: Callable[[str], list[int]], rules: Sequence[str]) -> list[int]:
    """The tokens of the rules, before anything is heard."""
    return [*markers.before_rules, *(token for piece in rules for token in encode(piece))]


def transcript(
    markers: Markers,
    encode: Callable[[str], list[int]],
    rules: Sequence[str],
    turns: Iterable[tuple[Sequence[str], bool]],
    answers: Sequence[list[int]],
) -> list[int]:
    """The tokens of a whole dialogue.

    `turns` are the pieces told in each turn and whether the seat acts in it. `answers` are the seat's answers so far,
    as they were sampled; the last call to speak may have none yet.
    """
    tokens, stage, said = prompt(markers, encode, rules), RULES_ONLY, iter(answers)
    for pieces, acting in turns:
        heard, stage = hear(markers, encode, stage, pieces, acting)
        tokens += [*heard, *(next(said, []) if acting else [])]
    return tokens


def in_progress(view: View) -> jax.Array:
    """bool [B]: the games that are not over."""
    return ~(view.terminated | view.truncated)


def prompt_pieces(layout: RowLayout, rules: jax.Array) -> list[Piece]:
    """The rules as pieces, from their phrase ids int32 [R, K]."""
    before = layout.policy_set.tokenizer.markers.before_rules
    return [_marker(before, jnp.ones(len(rules), bool)), *_phrases(layout.rules, rules)]


def heard_pieces(
    layout: RowLayout, view: View, episode: Any, seat: Any, stage: jax.Array, messages: dict[int, Piece]
) -> tuple[list[Piece], jax.Array]:
    """What the rows of `episode` and `seat`, int [R], are told now, as pieces; and the next stage int32 [R].

    The pieces are the marker, the phrases, and where a row acts the call to speak and the forced beginning of its
    answer. `messages` replace the fields of the observation that hold what another seat said.
    """
    markers, tables = layout.policy_set.tokenizer.markers, layout.tables
    text, acting = view.phrases[episode, seat], view.acting[episode, seat]
    fields = [messages.get(k, piece) for k, piece in enumerate(_phrases(layout.observation, text))]
    told = acting | jnp.stack([n > 0 for _, n in fields], -1).any(-1)
    start = jnp.asarray(tables.start)[view.grammar[episode, seat]]
    forced = jnp.asarray(tables.forced_length)[start].astype(jnp.int32)
    pieces = [
        *(_marker(tokens, told & (stage == before)) for before, tokens in markers_before(markers).items()),
        *fields,
        _marker(markers.speak, acting),
        (jnp.asarray(tables.forced)[start], jnp.where(acting, forced, 0)),
    ]
    return pieces, jnp.where(acting, SPOKE, jnp.where(told, LISTENING, stage))


def join(pieces: list[Piece]) -> Piece:
    """Ragged pieces (tokens [R, L], n [R]) one after the other: tokens [R, sum of L], n [R]."""
    pieces = [(tokens, n) for tokens, n in pieces if tokens.shape[1]]
    rows, width = len(pieces[0][1]), sum(tokens.shape[1] for tokens, _ in pieces)
    joined, length = jnp.zeros((rows, width), jnp.int32), jnp.zeros((rows,), jnp.int32)
    for tokens, n in pieces:
        joined = place(joined, tokens, length, n)
        length = length + n
    return joined, length


def place(into: jax.Array, values: jax.Array, at: jax.Array, n: jax.Array) -> jax.Array:
    """`into` [R, S] with the first n[r] of `values` [R, L] at position at[r] of row r."""
    offset = jnp.arange(into.shape[1])[None] - at[:, None]
    moved = jnp.take_along_axis(values, jnp.clip(offset, 0, values.shape[1] - 1), 1)
    return jnp.where((offset >= 0) & (offset < n[:, None]), moved.astype(into.dtype), into)


def _marker(tokens: tuple[int, ...], where: jax.Array) -> Piece:
    table = jnp.broadcast_to(jnp.asarray(tokens, jnp.int32)[None], (len(where), len(tokens)))
    return table, jnp.where(where, len(tokens), 0)


def _phrases(phrases: Phrases, ids: jax.Array) -> list[Piece]:
    """The tokens of phrase ids [R, K], a piece for each field, empty where the id is negative."""
    pieces = []
    for k, width in enumerate(widest(phrases).tolist()):
        at = int(phrases.offset[k]) + jnp.maximum(ids[:, k], 0)
        n = jnp.where(ids[:, k] >= 0, jnp.asarray(phrases.length)[at].astype(jnp.int32), 0)
        pieces.append((jnp.asarray(phrases.tokens)[:, :width][at], n))
    return pieces
