"""Rows of free text: their static layout, and their records as arrays.

Games in plain Python and agent programs write such rows on the host, token by token.
Shapes: of one policy set R rows, S tokens a row, O prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from jaxmarl_llm.keys import batch_keys
from jaxmarl_llm.models.config import Remat
from jaxmarl_llm.models.lora import PolicyOf
from jaxmarl_llm.rollout import decode
from jaxmarl_llm.rollout.layout import row_fields
from jaxmarl_llm.rollout.policy import PerRow, Scorer
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.text.grammar import Free, TokenTables, lift
from jaxmarl_llm.text.tokenizers import speller

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, eq=False)
class TextRowLayout:
    """The static facts about the rows of one policy set: `rollout.layouts[name]`; names as in `RowLayout`."""

    policy_set: PolicySet
    tables: TokenTables  # any text, then the end token
    encode: Callable[[str], list[int]]  # any text as tokens
    context: int  # the largest number of tokens of a row, prompt included
    assignments: np.ndarray  # int [O, 3]: group, seat and policy of each prompt
    group_size: int
    episode: np.ndarray  # int [R]
    seat: np.ndarray  # int [R]
    policy: np.ndarray  # int [R]
    sampling: PerRow

    def adapter(self, step: int = 1) -> PolicyOf | None:
        """The adapter of every row, or of every `step`-th row."""
        return decode.adapter_of(self.policy_set, self.policy[::step])

    def scorer(self, remat: Remat = "none") -> Scorer:
        """A scorer for the rows of this set under any of its weights."""
        return self.policy_set.scorer(self.tables, remat)


def text_layout(name: str, policy_set: PolicySet, lineup: Lineup, context: int | None) -> TextRowLayout:
    """The layout of the policy set `name`, for rows of at most `context` tokens; None: the model's context.

    Raises ValueError for an unmasked set, a context beyond the model's, and a tokenizer without "?" or end token.
    """
    if not policy_set.masked:
        raise ValueError(
            f"Policy set {name!r} is unmasked, but Python games accept any text anyway, and a control token is no "
            "text: leave it masked."
        )
    limit = 2**30 if policy_set.config is None else policy_set.config.max_position_embeddings
    if context is not None and context > limit:
        raise ValueError(f"context is {context} tokens, but the context of {name} holds {limit}.")
    encode = speller(policy_set.tokenizer)
    tables = lift(((Free(),),), policy_set.tokenizer.token_bytes, policy_set.tokenizer.end)
    room = limit if context is None else context
    return TextRowLayout(policy_set, tables, encode, room, **row_fields(lineup, policy_set))


def kind_of(role: str, number: int) -> int:
    """The kind of the tokens of message `number`, from 1 on: its role, and whether the number is odd. So two messages
    side by side differ."""
    return 1 + ROLES.index(role) + len(ROLES) * (number % 2)


def role_of(kind: int) -> str:
    """The role of a kind, which is not 0."""
    return ROLES[(kind - 1) % len(ROLES)]


def seeds(key: jax.Array, purpose: int, n: int) -> list[int]:
    """Seeds of n named events, from 0 to 2^31 - 1."""
    bits = jax.vmap(jax.random.bits)(batch_keys(key, purpose, np.arange(n)))
    return (np.asarray(bits) >> 1).tolist()


def power_of_two(n: int, least: int = 32) -> int:
    """The smallest power of two that is at least n and `least`."""
    return 1 << (max(n, least) - 1).bit_length()


def pad(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(int32 [R, a power of two], the lists of tokens padded with zeros at the end; their lengths int32 [R])."""
    length = np.array([len(row) for row in rows], np.int32)
    tokens = np.zeros((len(rows), power_of_two(int(length.max()))), np.int32)
    for padded_row, row in zip(tokens, rows, strict=True):
        padded_row[: len(row)] = row
    return tokens, length
