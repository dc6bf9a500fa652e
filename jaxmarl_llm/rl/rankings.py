"""Ranks and rewards of a group of candidates from a table of pairwise judgements: tournaments, and the win rate.

`scores` is float [N, N] throughout: scores[i, j] is candidate i's score when it is judged beside candidate j, the sum
over both orders of the two. Candidate i beats j if scores[i, j] > scores[j, i]. The diagonal is never read. N is at
least 2. Ranks are int32 [N], 1 for the best; equal candidates share the least rank of theirs.

| ranker               | matches                  |
|----------------------|--------------------------|
| `anchor`             | N - 1                    |
| `single_elimination` | N - 1, after its seeding |
| `swiss`              | N // 2 a round           |
| `round_robin`        | N (N - 1) / 2            |

ArenaRL (Zhang et al.) 2026, https://arxiv.org/abs/2601.06487, and its release, https://github.com/Alibaba-NLP/qqr.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.shapes import check_shapes


def win_rate(scores: jax.Array) -> jax.Array:
    """Share of the others that each candidate beats, float32 [N]; a tie counts one half.

    The rates of a group add up to N / 2. As rewards they are those of SPO (https://arxiv.org/abs/2401.04056).
    """
    size = _size(scores)
    result = (jnp.sign(scores - scores.T) + 1) / 2
    return jnp.where(jnp.eye(size, dtype=bool), 0.0, result).sum(1).astype(jnp.float32) / (size - 1)


def round_robin(scores: jax.Array) -> jax.Array:
    """Ranks by wins of all matches; a tie is half a win."""
    return ranks_of(win_rate(scores))


def anchor_scores(scores: jax.Array) -> jax.Array:
    """Scores beside candidate 0, float [N]. Its own one is its mean beside the others."""
    others = scores[1:, 0]
    _size(scores)
    return jnp.concatenate([scores[0, 1:].mean(keepdims=True), others])


def anchor(scores: jax.Array) -> jax.Array:
    """Ranks by `anchor_scores`."""
    return ranks_of(anchor_scores(scores))


def single_elimination(scores: jax.Array, seeding: jax.Array) -> jax.Array:
    """Ranks by the round of the defeat, within a round by the mean of the seeding and the scores of all matches.

    `seeding`, float [N], decides who meets whom: the best and the second best can meet in the final alone. The release
    seeds by `anchor_scores`. If N is no power of two, the best of the seeding have byes in the first round. The higher
    seed wins a tie.
    """
    size = _size(scores)
    order = jnp.argsort(-seeding, stable=True)
    seed = jnp.zeros((size,), jnp.int32).at[order].set(jnp.arange(size, dtype=jnp.int32))
    places = jnp.array(bracket(size))
    alive = jnp.where(places < size, order[jnp.minimum(places, size - 1)], -1)
    rounds = math.ceil(math.log2(size))
    defeat, total, count = jnp.full((size,), rounds), seeding, jnp.ones((size,))
    for number in range(rounds):
        first, other = alive[::2], alive[1::2]
        meets = (first >= 0) & (other >= 0)
        score, beside = scores[first, other], scores[other, first]
        wins = meets & ((score > beside) | ((score == beside) & (seed[first] < seed[other])))
        wins |= other < 0
        defeat = defeat.at[jnp.where(meets, jnp.where(wins, other, first), size)].set(number, mode="drop")
        for player, points in ((first, score), (other, beside)):
            place = jnp.where(meets, player, size)
            total, count = total.at[place].add(points, mode="drop"), count.at[place].add(1, mode="drop")
        alive = jnp.where(wins, first, other)
    return ranks_of(defeat, total / count)


def bracket(size: int) -> list[int]:
    """Seeds, 0 for the best, in the order of a bracket whose neighbours meet; seeds from `size` on are byes."""
    places = [0]
    while len(places) < size:
        places = [seed for place in places for seed in (place, 2 * len(places) - 1 - place)]
    return places


def swiss(scores: jax.Array, key: jax.Array) -> jax.Array:
    """Ranks by points, then by the sum of the opponents' points (Buchholz), after ceil(log2 N) rounds of `swiss_pairs`.

    A win is a point, a tie half of one, a bye one. The order among equal points is drawn anew before each round.
    """
    size = _size(scores)
    points, met = jnp.zeros((size,)), jnp.zeros((size, size), bool)
    for order_key in jax.random.split(key, swiss_rounds(size)):
        opponent = swiss_pairs(points, met, jax.random.permutation(order_key, size))
        points += swiss_points(scores, opponent)
        met |= opponent[:, None] == jnp.arange(size)[None]
    return ranks_of(points, met @ points)


def swiss_rounds(size: int) -> int:
    return min(math.ceil(math.log2(size)), size - 1)


def swiss_pairs(points: jax.Array, met: jax.Array, order: jax.Array) -> jax.Array:
    """Opponents of a round, int32 [N], -1 for a bye: the last one of an odd number has it.

    Candidates stand by points, float [N], equal ones in this order, int32 [N]. From the first on, each meets the next
    one that it has not met (bool [N, N]), or if there is none the next one.
    """
    size = len(points)
    standing, place = order[jnp.argsort(-points[order], stable=True)], jnp.arange(size)
    even = size - size % 2

    def pair(at: jax.Array, opponent: jax.Array) -> jax.Array:
        first = standing[at]
        free = (opponent[standing] < 0) & (place > at) & (place < even)
        new = free & ~met[first, standing]
        second = standing[jnp.where(new.any(), new.argmax(), free.argmax())]
        paired = opponent.at[first].set(second).at[second].set(first)
        return jnp.where((opponent[first] < 0) & free.any(), paired, opponent)

    return jax.lax.fori_loop(0, even, pair, jnp.full((size,), -1, jnp.int32))


def swiss_points(scores: jax.Array, opponent: jax.Array) -> jax.Array:
    """Points of a round of `swiss`, float32 [N]."""
    candidate = jnp.arange(len(opponent))
    result = (jnp.sign(scores[candidate, opponent] - scores[opponent, candidate]) + 1) / 2
    return jnp.where(opponent < 0, 1.0, result).astype(jnp.float32)


def least_rank_rewards(ranks: jax.Array) -> jax.Array:
    """Rewards of a round robin or an anchor, float32 [N]: (worst - rank) / (worst - 1), or 0 if all are equal."""
    worst = ranks.max()
    return jnp.where(worst > 1, (worst - ranks) / jnp.maximum(worst - 1, 1), 0.0).astype(jnp.float32)


def mean_rank_rewards(ranks: jax.Array) -> jax.Array:
    """Rewards of elimination and Swiss, float32 [N]: (N - rank) / (N - 1), the mean of it over a tie."""
    size = len(ranks)
    tied = (ranks[:, None] == ranks[None]).sum(1)
    return ((size - ranks - (tied - 1) / 2) / (size - 1)).astype(jnp.float32)


def ranks_of(*keys: jax.Array) -> jax.Array:
    """int32 [N]: 1 plus the number of candidates that are better, by the first key in which two differ."""
    better = jnp.zeros((len(keys[0]),) * 2, bool)
    for key in reversed(keys):
        better = (key[None] > key[:, None]) | ((key[None] == key[:, None]) & better)
    return 1 + better.sum(1, dtype=jnp.int32)


def _size(scores: jax.Array) -> int:
    check_shapes("scores [N,N]", scores)
    if len(scores) < 2:
        raise ValueError(f"A ranking needs at least two candidates, got {len(scores)}.")
    return len(scores)
