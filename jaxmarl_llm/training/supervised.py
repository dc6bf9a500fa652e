"""Rows from a JSONL file of dialogues, for supervised training: a warm start (`Recipe.warm_start=Path(...)`), pairs.

A line is {"messages": [{"role", "content"}, ...], "policy": ...} in OpenAI's form, or for pairs {"prompt", "chosen",
"rejected"}, each such messages; the command `dialogues` writes both from runs. What the assistant says is learnt, its
end token included, among all tokens of the vocabulary. A system message comes first or not at all, which is an empty
one; then user and assistant take turns. Lines with a "policy" are for the policy of that name if it has any; otherwise
it learns from those that name none.
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
    """Dialogues as rows of one policy set, each with a prompt of its own."""

    rows: Rows
    sampled: SampledTokens  # what the assistant says
    of: tuple[np.ndarray, ...]  # int [D] by policy: the dialogues that it learns from

    def draw(self, key: jax.Array, n: int, together: int = 1) -> tuple[Rows, SampledTokens]:
        """For every policy n rows, with replacement, `together` neighbours at a time, which share a prompt;
        `Rows.policy` is whose they are. In order of the policies."""
        keys = jax.random.split(key, len(self.of))
        ids, beside = [], np.arange(together)[None]
        for own, of in zip(keys, self.of, strict=True):
            first = jnp.asarray(of)[jax.random.randint(own, (n // together,), 0, len(of) // together) * together]
            ids.append((first[:, None] + beside).ravel())
        at = jnp.concatenate(ids)
        rows, sampled = jax.tree.map(lambda x: jnp.asarray(x)[at], (self.rows, self.sampled))
        order, prompts = jnp.arange(len(at), dtype=jnp.int32), jax.tree.map(lambda x: x[::together], rows.prompts)
        rows = rows.replace(prompts=prompts, prompt=order // together, episode=order, policy=order // n)
        return rows, sampled


def read(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The numbered lines of a JSONL file, but for empty ones. Raises ValueError without the file, and for a line that
    is no JSON object."""
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

    Raises ValueError with the line's number for one that is none or does not fit the context, and for a policy without
    a dialogue.
    """
    return _dialogues(path, policy_set, names, lambda line: [line["messages"]])


def pairs(path: Path, policy_set: PolicySet, names: Sequence[str]) -> Dialogues:
    """The preference pairs of a file, the chosen dialogue before the rejected one; raises as `dialogues` does."""
    return _dialogues(
        path, policy_set, names, lambda line: [[*line["prompt"], *line[name]] for name in ("chosen", "rejected")]
    )


def rows_of(tokenizer: Tokenizer, messages: Messages) -> tuple[list[int], list[tuple[int, bool, int]]]:
    """The tokens of a dialogue's prompt; then for each token after it: the token, whether the assistant says it, and
    the number of the answer that it belongs to or comes before. Raises ValueError for messages in another order."""
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
    found: list[tuple[list[int], list[tuple[int, bool, int]]]] = []
    owners: list[str | None] = []
    limit = policy_set.config.max_position_embeddings
    for number, line in read(path):
        try:
            own = [rows_of(policy_set.tokenizer, messages) for messages in dialogues_of(line)]
            if any(first != own[0][0] for first, _ in own):
                raise ValueError("both dialogues of a pair begin with the same prompt")
        except (KeyError, TypeError, ValueError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{path}, line {number}: {what}") from None
        if (longest := max(len(first) + len(cells) for first, cells in own)) > limit:
            raise ValueError(f"{path}, line {number} has {longest} tokens: the context holds {limit}.")
        found += own
        owners += [line.get("policy")] * len(own)
    if not found:
        raise ValueError(f"{path} has no lines.")
    of = tuple(np.flatnonzero([owner == (name if name in owners else None) for owner in owners]) for name in names)
    for name, own_lines in zip(names, of, strict=True):
        if not len(own_lines):
            raise ValueError(f"{path} has no dialogue for {name!r}: its lines are for others.")
    return Dialogues(*_arrays(found), of)


def _arrays(found: Sequence[tuple[list[int], list[tuple[int, bool, int]]]]) -> tuple[Rows, SampledTokens]:
    """The record of dialogues. Nothing was sampled: log-probabilities are 0."""
    shape = len(found), max(len(cells) for _, cells in found)
    tokens, said, turn = np.zeros(shape, np.int32), np.zeros(shape, bool), np.zeros(shape, np.int32)
    prompts = np.zeros((len(found), max(len(first) for first, _ in found)), np.int32)
    for row, (first, cells) in enumerate(found):
        prompts[row, : len(first)] = first
        tokens[row, : len(cells)], said[row, : len(cells)], turn[row, : len(cells)] = zip(*cells, strict=True)
    order, nothing = jnp.arange(len(found), dtype=jnp.int32), jnp.zeros(len(found), jnp.int32)
    rows = Rows(
        prompts=Prompts(jnp.asarray(prompts), jnp.asarray([len(first) for first, _ in found], jnp.int32)),
        prompt=order,
        tokens=jnp.asarray(tokens),
        length=jnp.asarray([len(cells) for _, cells in found], jnp.int32),
        loss_mask=jnp.asarray(said),
        turn=jnp.asarray(turn),
        logp=jnp.zeros(shape),
        grammar_state=jnp.zeros(shape, jnp.int16),
        tokens_left=jnp.zeros(shape, jnp.int16),
        episode=order,
        seat=nothing,
        policy=nothing,
    )
    legal = jnp.ones((len(found), int(turn.max()) + 1, 1, 1), bool)
    return rows, gather_sampled(rows, legal, int(said.sum(1).max()))
