"""Rows from a JSONL file of dialogues, for supervised training: a warm start (`Recipe.warm_start=Path(...)`) or pairs.

A line is {"messages": [{"role", "content"}, ...], "policy": ...} in OpenAI's form. A line of pairs is {"prompt",
"chosen", "rejected"}, each with such messages. The command `dialogues` writes both from runs.

Policies learn the assistant's messages with their end token, as a choice among all tokens of the vocabulary. A system
message comes first; without one it is empty. Then user and assistant take turns. A policy learns from the lines with
its name in "policy", or, if none has it, from the lines without a name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.rollout.dialogue import RULES_ONLY, hear, prompt
from jaxmarl_llm.rollout.team import PolicySet
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens, gather_sampled
from jaxmarl_llm.text.tokenizers import Tokenizer

Messages = Sequence[Mapping[str, str]]


class Dialogues(NamedTuple):
    """Dialogues as rows of one policy set, each with its own prompt."""

    rows: Rows
    sampled: SampledTokens  # the assistant's tokens
    by_policy: tuple[np.ndarray, ...]  # int [D] for each policy: the indices of its dialogues

    def draw(self, key: jax.Array, n: int, together: int = 1) -> tuple[Rows, SampledTokens]:
        """Draws n rows for every policy, with replacement, in order of the policies; `Rows.policy` is a row's policy.
        Each draw takes `together` neighbours, which share a prompt."""
        keys = jax.random.split(key, len(self.by_policy))
        ids, beside = [], np.arange(together)[None]
        for subkey, members in zip(keys, self.by_policy, strict=True):
            first = jnp.asarray(members)[
                jax.random.randint(subkey, (n // together,), 0, len(members) // together) * together
            ]
            ids.append((first[:, None] + beside).ravel())
        at = jnp.concatenate(ids)
        rows, sampled = jax.tree.map(lambda x: jnp.asarray(x)[at], (self.rows, self.sampled))
        order, prompts = jnp.arange(len(at), dtype=jnp.int32), jax.tree.map(lambda x: x[::together], rows.prompts)
        rows = rows.replace(prompts=prompts, prompt=order // together, episode=order, policy=order // n)
        return rows, sampled


def read(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The non-empty lines of a JSONL file, each as (line number, JSON object). Raises ValueError for a missing file and
    for a line that is no JSON object."""
    if not Path(path).is_file():
        raise ValueError(f"There is no file of dialogues {path}.")
    for number, text in enumerate(Path(path).read_text(encoding="utf-8-sig").split("\n"), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number} is no JSON: {error}.") from None
        if not isinstance(line, dict):
            raise ValueError(f"{path}, line {number} is no JSON object: {text[:60]}")
        yield number, line


def dialogues(path: Path, policy_set: PolicySet, names: Sequence[str]) -> Dialogues:
    """The dialogues of a file, for policies of these names.

    Raises ValueError for a line that is no dialogue or exceeds the context, with its number, and for a policy without a
    dialogue.
    """
    return _dialogues(path, policy_set, names, lambda line: [line["messages"]])


def pairs(path: Path, policy_set: PolicySet, names: Sequence[str]) -> Dialogues:
    """The preference pairs of a file, the chosen dialogue before the rejected one. Raises as `dialogues` does."""
    return _dialogues(
        path, policy_set, names, lambda line: [[*line["prompt"], *line[name]] for name in ("chosen", "rejected")]
    )


def rows_of(tokenizer: Tokenizer, messages: Messages) -> tuple[list[int], list[tuple[int, bool, int]]]:
    """The tokens of a dialogue's prompt, and (token, spoken, answer) for each later token. `spoken` is true if the
    assistant says the token. `answer` is the number of the answer that the token belongs to or precedes. Raises
    ValueError for messages in another order."""
    roles = [message["role"] for message in messages]
    rest = roles[1:] if roles[:1] == ["system"] else roles
    if not rest or len(rest) % 2 or rest != ["user", "assistant"] * (len(rest) // 2):
        raise ValueError(f"user and assistant take turns, the assistant last, after a system message or none: {roles}")
    texts = [message["content"] for message in messages]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("the content of a message is a text")
    rules, told = (texts[:1], texts[1:]) if len(rest) < len(roles) else ([], texts)
    first, stage = prompt(tokenizer, tokenizer.encode, rules), RULES_ONLY
    cells: list[tuple[int, bool, int]] = []
    for turn, (heard, said) in enumerate(zip(told[::2], told[1::2], strict=True)):
        tokens, stage, _ = hear(tokenizer, tokenizer.encode, stage, [heard], True)
        if turn == 0:
            first += tokens
        else:
            cells += [(token, False, turn) for token in tokens]
        trims = tokenizer.trims
        text = said if trims.said is None else trims.said + said.strip()
        text = trims.lead + text.lstrip() if trims.lead else text
        answer = [*tokenizer.encode(text), *([] if tokenizer.end is None else [tokenizer.end])]
        if not first or not answer:
            raise ValueError("the assistant is told and says at least a word")
        cells += [(token, True, turn) for token in answer]
    return first, cells


def _dialogues(path: Path, policy_set: PolicySet, names: Sequence[str], dialogues_of: Any) -> Dialogues:
    assert policy_set.config is not None
    all_rows: list[tuple[list[int], list[tuple[int, bool, int]]]] = []
    owners: list[str | None] = []
    limit = policy_set.config.max_position_embeddings
    for number, line in read(path):
        try:
            line_rows = [rows_of(policy_set.tokenizer, messages) for messages in dialogues_of(line)]
            if any(first != line_rows[0][0] for first, _ in line_rows):
                raise ValueError("both dialogues of a pair begin with the same prompt")
        except (KeyError, TypeError, ValueError) as error:
            problem = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{path}, line {number}: {problem}") from None
        if (longest := max(len(first) + len(cells) for first, cells in line_rows)) > limit:
            raise ValueError(f"{path}, line {number} has {longest} tokens: the context holds {limit}.")
        all_rows += line_rows
        owners += [line.get("policy")] * len(line_rows)
    if not all_rows:
        raise ValueError(f"{path} has no lines.")
    indices = tuple(np.flatnonzero([owner == (name if name in owners else None) for owner in owners]) for name in names)
    for name, own_lines in zip(names, indices, strict=True):
        if not len(own_lines):
            raise ValueError(f"{path} has no dialogue for {name!r}: its lines are for others.")
    return Dialogues(*_arrays(all_rows), indices)


def _arrays(dialogues: Sequence[tuple[list[int], list[tuple[int, bool, int]]]]) -> tuple[Rows, SampledTokens]:
    """The record of dialogues. Nothing was sampled: log-probabilities are 0."""
    shape = len(dialogues), max(len(cells) for _, cells in dialogues)
    tokens, said, turn = np.zeros(shape, np.int32), np.zeros(shape, bool), np.zeros(shape, np.int32)
    prompts = np.zeros((len(dialogues), max(len(first) for first, _ in dialogues)), np.int32)
    for row, (first, cells) in enumerate(dialogues):
        prompts[row, : len(first)] = first
        tokens[row, : len(cells)], said[row, : len(cells)], turn[row, : len(cells)] = zip(*cells, strict=True)
    order, nothing = jnp.arange(len(dialogues), dtype=jnp.int32), jnp.zeros(len(dialogues), jnp.int32)
    rows = Rows(
        prompts=Prompts(jnp.asarray(prompts), jnp.asarray([len(first) for first, _ in dialogues], jnp.int32)),
        prompt=order,
        tokens=jnp.asarray(tokens),
        length=jnp.asarray([len(cells) for _, cells in dialogues], jnp.int32),
        loss_mask=jnp.asarray(said),
        turn=jnp.asarray(turn),
        logp=jnp.zeros(shape),
        grammar_state=jnp.zeros(shape, jnp.int16),
        tokens_left=jnp.zeros(shape, jnp.int16),
        episode=order,
        seat=nothing,
        policy=nothing,
    )
    legal = jnp.ones((len(dialogues), int(turn.max()) + 1, 1, 1), bool)
    return rows, gather_sampled(rows, legal, int(said.sum(1).max()))
