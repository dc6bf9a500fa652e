"""Votes: the answers of several samples as a label for all of them. Arrays in, arrays out.

  answer  int [...]   0..answers-1, and -1 for an empty or unreadable answer
  key     int [...]   0..num_keys-1: samples under one key vote together, e.g. those of a question (`statistics.key_of`)
  where   bool [...]  the samples that vote; others may hold anything

A vote gives each key a label, int32 [num_keys]; `reward` is 1 for answers equal to their label.

Ties: the answer with the largest total weight wins, and the lowest number among equal ones. Totals within one part in
10^5 are equal, so that rounding breaks no tie. Released code takes the answer that was sampled first.
Empty answers: -1 has no vote. A key without answers has the label -1, and all its samples get reward 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxmarl_llm.rl.masked import segment_count
from jaxmarl_llm.rl.shapes import check_shapes

ROUNDING = 1e-5


def tally(answer: Array, where: Array, key: Array, num_keys: int, answers: int, weight: Array | None = None) -> Array:
    """The total weight of each answer under each key, float32 [num_keys, answers]; ``weight`` [...] is 1 by default."""
    check_shapes("where answer key weight [...]", where, answer, key, weight)
    counts = where & (answer >= 0)
    index = key * answers + jnp.where(counts, answer, 0)
    votes = jnp.where(counts, 1.0 if weight is None else weight, 0.0).astype(jnp.float32)
    return jax.ops.segment_sum(votes.ravel(), index.ravel(), num_keys * answers).reshape(num_keys, answers)


def winner(total: Array) -> Array:
    """The answer with the largest weight, the lowest among ties, -1 without any: float32 [..., N] -> int32 [...]."""
    largest = total.max(-1, keepdims=True)
    first = jnp.argmax(total >= largest * (1 - ROUNDING), -1).astype(jnp.int32)
    return jnp.where(largest[..., 0] > 0, first, -1)


def plurality(answer: Array, where: Array, key: Array, num_keys: int, answers: int) -> Array:
    """The most common answer under each key: int32 [num_keys].

    With a key for each policy this is the label of TTRL: Zuo et al., TTRL: Test-Time Reinforcement Learning (2025),
    https://arxiv.org/abs/2504.16084
    """
    check_shapes("where answer key [...]", where, answer, key)
    return winner(tally(answer, where, key, num_keys, answers))


def self_consistency(answer: Array, where: Array, key: Array, num_keys: int, answers: int) -> Array:
    """The share of a key's samples with its most common answer, float32 [num_keys], 0 without samples.

    Empty answers count among the samples: a policy that often fails to answer is less consistent.
    """
    check_shapes("where answer key [...]", where, answer, key)
    largest = tally(answer, where, key, num_keys, answers).max(-1)
    return largest / jnp.maximum(segment_count(key, num_keys, where), 1)


def by_consistency(
    answer: Array, where: Array, key: Array, num_keys: int, answers: int, *, member: Array, members: int
) -> Array:
    """The label by votes weighted with self-consistency, argmax_a sum_n sum_k SC_n 1[o_nk = a]: int32 [num_keys].

    ``member`` int [...] in 0..members-1 is the member that answered, and SC_n is the `self_consistency` of member n
    under that key. The weight is confidence, not truth: a consistently wrong member has the largest weight. With one
    member this is `plurality`.

    Yuan et al., Wisdom of the Crowd: Reinforcement Learning from Coevolutionary Collective Feedback (2025, RLCCF),
    https://arxiv.org/abs/2508.12338; from descriptions, its rule for ties is not known.
    """
    check_shapes("where answer key member [...]", where, answer, key, member)
    member_key = key * members + member
    weight = self_consistency(answer, where, member_key, num_keys * members, answers)[member_key]
    return winner(tally(answer, where, key, num_keys, answers, weight))


def cross_view(
    answer: Array, where: Array, key: Array, num_keys: int, answers: int, *, view: Array, views: int = 2
) -> Array:
    """The label of each view under each key, the plurality of the next view: int32 [num_keys, views].

    With two views each gets the other's plurality. ``view`` int [...] in 0..views-1 is the wording of the question.

    Zhang et al., Co-rewarding: Stable Self-supervised RL for Eliciting Reasoning in Large Language Models (2025),
    https://arxiv.org/abs/2508.00410; formula as in the released code.
    """
    check_shapes("where answer key view [...]", where, answer, key, view)
    label = plurality(answer, where, key * views + view, num_keys * views, answers)
    return jnp.roll(label.reshape(num_keys, views), -1, axis=1)


def reward(answer: Array, label: Array) -> Array:
    """1 for an answer equal to its label, else 0, also for an empty answer: [...] -> float32 [...]."""
    check_shapes("answer label [...]", answer, label)
    return ((answer == label) & (answer >= 0)).astype(jnp.float32)


def answer_entropy(answer: Array, where: Array, key: Array, num_keys: int, answers: int) -> Array:
    """The entropy of all answers under each key, in nats, float32 [num_keys], 0 without any.

    With a key for each policy over many questions, near 0 means the same answer to every question.
    """
    check_shapes("where answer key [...]", where, answer, key)
    total = tally(answer, where, key, num_keys, answers)
    share = total / jnp.maximum(total.sum(-1, keepdims=True), 1)
    return -(share * jnp.log(jnp.where(share > 0, share, 1))).sum(-1)
