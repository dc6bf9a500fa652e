"""The dialogue of a seat as tokens: chat markers, prompts and observations.

One table of markers and three stages serve two forms. `prompt`, `hear` and `transcript` write a row as a list of tokens
on the host. `prompt_pieces` and `heard_pieces` write all rows in a compiled program, as ragged pieces for `join`.
Shapes: R rows, L tokens of a piece, S tokens of a row, K fields of an observation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.base import View
from jaxmarl_llm.rollout.layout import RowLayout
from jaxmarl_llm.text.templates import check_edges
from jaxmarl_llm.text.tokenizers import Markers, Phrases, Tokenizer, widest

RULES_ONLY, LISTENING, SPOKE = range(3)  # the stages of a dialogue

Piece = tuple[jax.Array, jax.Array]  # ragged: tokens int32 [R, L], of which the first n int32 [R] count


def markers_before(markers: Markers) -> dict[int, tuple[int, ...]]:
    """The marker in front of an observation, by stage; a dialogue that is LISTENING needs none."""
    return {RULES_ONLY: markers.hear_first, SPOKE: markers.hear}


class Heard(NamedTuple):
    """The observation of a seat as tokens, and the state of its dialogue after it."""

    tokens: list[int]  # markers and the call to speak included
    stage: int
    blank: str = ""  # trailing spaces, which the template strips unless more text follows


def hear(
    tokenizer: Tokenizer,
    encode: Callable[[str], list[int]],
    stage: int,
    pieces: Sequence[str],
    acting: bool,
    blank: str = "",
) -> Heard:
    """The tokens of an observation, for a dialogue at `stage` with the trailing spaces `blank`.

    Each piece of text is encoded separately, without the spaces that the template strips. Raises ValueError for a text
    that the template would change otherwise.
    """
    markers, trims = tokenizer.markers, tokenizer.trims
    pieces = [blank, *pieces] if any(pieces) else []
    if trims.odd:
        check_edges(trims, [], [[piece] for piece in pieces if piece])
    if {RULES_ONLY: trims.first, SPOKE: trims.later}.get(stage, False):
        pieces = strip_start(pieces, trims.lead)
    blank = "" if any(pieces) else blank
    if trims.heard_end:
        text = "".join(pieces)
        blank = text[len(text.rstrip()) :] or blank
        pieces = strip_end(pieces)
    if not (any(pieces) or acting):
        return Heard([], stage, blank)
    before = markers_before(markers).get(stage, ())
    if stage == RULES_ONLY and trims.hear_nothing is not None and not any(pieces):
        before = trims.hear_nothing
    told = [token for piece in pieces for token in encode(piece)]
    tokens = [*before, *told, *(markers.speak if acting else ())]
    return Heard(tokens, SPOKE, "") if acting else Heard(tokens, LISTENING, blank)


def strip_start(pieces: Sequence[str], lead: str = "") -> list[str]:
    """Pieces of a text without its leading spaces, with `lead` in front."""
    first = next((i for i, piece in enumerate(pieces) if piece.strip()), len(pieces))
    return [lead + piece.lstrip() for piece in pieces[first : first + 1]] + list(pieces[first + 1 :])


def strip_end(pieces: Sequence[str]) -> list[str]:
    """Pieces of a text without its trailing spaces."""
    return [piece[::-1] for piece in strip_start([piece[::-1] for piece in pieces[::-1]])][::-1]


def prompt(tokenizer: Tokenizer, encode: Callable[[str], list[int]], rules: Sequence[str]) -> list[int]:
    """The tokens of the rules, without the spaces that the template strips.

    Raises ValueError for rules that the template would change otherwise.
    """
    trims = tokenizer.trims
    check_edges(trims._replace(rules_end=False), [[piece] for piece in rules if piece], [])
    rules = strip_start(rules, trims.lead) if trims.rules else rules
    rules = strip_end(rules) if trims.rules_end else rules
    return [*tokenizer.markers.before_rules, *(token for piece in rules for token in encode(piece))]


def transcript(
    tokenizer: Tokenizer,
    encode: Callable[[str], list[int]],
    rules: Sequence[str],
    turns: Iterable[tuple[Sequence[str], bool]],
    answers: Sequence[list[int]],
) -> list[int]:
    """The tokens of a whole dialogue.

    `turns` holds, for each turn, the pieces of the observation and a bool for an acting seat. `answers` are the sampled
    answers of the seat so far; the last acting turn may lack its answer.
    """
    tokens, said, heard = prompt(tokenizer, encode, rules), iter(answers), Heard([], RULES_ONLY)
    for pieces, acting in turns:
        heard = hear(tokenizer, encode, heard.stage, pieces, acting, heard.blank)
        tokens += [*heard.tokens, *(next(said, []) if acting else [])]
    return tokens


def in_progress(view: View) -> jax.Array:
    """bool [B]: games that are neither terminated nor truncated."""
    return ~(view.terminated | view.truncated)


def prompt_pieces(layout: RowLayout, rules: jax.Array) -> list[Piece]:
    """The rules as pieces, from their phrase ids int32 [R, K]."""
    tokenizer, every = layout.policy_set.tokenizer, jnp.ones(len(rules), bool)
    stripped = every & tokenizer.trims.rules
    return [_marker(tokenizer.markers.before_rules, every), *_phrases(layout.rules, rules, stripped, {})]


def heard_pieces(
    layout: RowLayout, view: View, episode: Any, seat: Any, stage: jax.Array, messages: dict[int, Piece]
) -> tuple[list[Piece], jax.Array]:
    """(pieces of the observations, next stage int32 [R]) of the rows of `episode` and `seat`, int [R].

    The pieces are the marker and the phrases, and for acting rows the call to speak and the forced beginning of the
    answer. `messages` replaces the fields of the observation that hold another seat's words.
    """
    markers, trims, tables = layout.policy_set.tokenizer.markers, layout.policy_set.tokenizer.trims, layout.tables
    text, acting = view.phrases[episode, seat], view.acting[episode, seat]
    stripped = (stage == RULES_ONLY) & trims.first | (stage == SPOKE) & trims.later
    fields = _phrases(layout.observation, text, stripped, messages)
    heard = jnp.stack([n > 0 for _, n in fields], -1).any(-1)
    told = acting | heard
    before = {stage: (tokens, told) for stage, tokens in markers_before(markers).items()}
    if trims.hear_nothing is not None:
        before[RULES_ONLY] = markers.hear_first, heard
    start = jnp.asarray(tables.start)[view.grammar[episode, seat]]
    forced = jnp.asarray(tables.forced_length)[start].astype(jnp.int32)
    pieces = [
        *(_marker(tokens, where & (stage == now)) for now, (tokens, where) in before.items()),
        _marker(trims.hear_nothing or (), acting & ~heard & (stage == RULES_ONLY)),
        *fields,
        _marker(markers.speak, acting),
        (jnp.asarray(tables.forced)[start], jnp.where(acting, forced, 0)),
    ]
    return pieces, jnp.where(acting, SPOKE, jnp.where(told, LISTENING, stage))


def join(pieces: list[Piece]) -> Piece:
    """Concatenates ragged pieces (tokens [R, L], n [R]): tokens [R, sum of L], n [R]."""
    pieces = [(tokens, n) for tokens, n in pieces if tokens.shape[1]]
    rows, width = len(pieces[0][1]), sum(tokens.shape[1] for tokens, _ in pieces)
    joined, length = jnp.zeros((rows, width), jnp.int32), jnp.zeros((rows,), jnp.int32)
    for tokens, n in pieces:
        joined = place(joined, tokens, length, n)
        length = length + n
    return joined, length


def place(into: jax.Array, values: jax.Array, at: jax.Array, n: jax.Array) -> jax.Array:
    """`into` [R, S] with the first n[r] of `values` [R, L] written at position at[r] of row r."""
    offset = jnp.arange(into.shape[1])[None] - at[:, None]
    moved = jnp.take_along_axis(values, jnp.clip(offset, 0, values.shape[1] - 1), 1)
    return jnp.where((offset >= 0) & (offset < n[:, None]), moved.astype(into.dtype), into)


def _marker(tokens: tuple[int, ...], where: jax.Array) -> Piece:
    table = jnp.broadcast_to(jnp.asarray(tokens, jnp.int32)[None], (len(where), len(tokens)))
    return table, jnp.where(where, len(tokens), 0)


def _phrases(phrases: Phrases, ids: jax.Array, stripped: jax.Array, messages: dict[int, Piece]) -> list[Piece]:
    """The tokens of phrase ids [R, K], a piece for each field, empty for a negative id; `messages` replaces some.

    For rows in `stripped`, bool [R], the text has no leading spaces, if the phrases were also compiled that way.
    """
    pieces, fields = [], ids.shape[1]
    for k, width in enumerate(widest(phrases, fields).tolist()):
        as_is, *bare = phrases.offset[k::fields].tolist()
        at = (jnp.where(stripped, bare[0], as_is) if bare else as_is) + jnp.maximum(ids[:, k], 0)
        n = jnp.where(ids[:, k] >= 0, jnp.asarray(phrases.length)[at].astype(jnp.int32), 0)
        pieces.append(messages.get(k, (jnp.asarray(phrases.tokens)[:, :width][at], n)))
        stripped = stripped & (pieces[-1][1] == 0)
    return pieces
