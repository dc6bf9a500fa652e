"""Rankers against plain loops over lists, for all sizes from 2 to 9, and their laws."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import rankings

SIZES = range(2, 10)


def tables(size, count=20):
    """Random tables with ties: half of them have integer scores of few values."""
    rng = np.random.default_rng(size)
    return [
        rng.integers(0, 3, (size, size)).astype(float) if k % 2 else rng.normal(size=(size, size)) for k in range(count)
    ]


def in_order(strength):
    """Competition ranks of tuples."""
    return [1 + sum(other > x for other in strength) for x in strength]


def result(scores, i, j):
    return 1.0 if scores[i, j] > scores[j, i] else 0.5 if scores[i, j] == scores[j, i] else 0.0


def eliminate(scores, seeding):
    """Single elimination on a list; a player without an opponent goes on."""
    size = len(scores)
    order = sorted(range(size), key=lambda i: -seeding[i])
    slots = 1 << math.ceil(math.log2(size))

    points = {i: [seeding[i]] for i in range(size)}
    defeat = dict.fromkeys(range(size), math.inf)
    alive = {s: order[s] if s < size else None for s in range(slots)}
    number = 0
    while slots > 1:
        winners = {}
        for s in range(slots // 2):
            one, other = alive[s], alive[slots - 1 - s]
            if other is None:
                winners[s] = one
                continue
            points[one].append(scores[one, other])
            points[other].append(scores[other, one])
            better = scores[one, other] > scores[other, one]
            tie = scores[one, other] == scores[other, one] and order.index(one) < order.index(other)
            winners[s], lost = (one, other) if better or tie else (other, one)
            defeat[lost] = number
        slots, alive, number = slots // 2, winners, number + 1
    return in_order([(defeat[i], np.mean(points[i])) for i in range(size)])


@pytest.mark.parametrize("size", SIZES)
def test_elimination_round_robin_and_anchor_against_loops(size):
    ranker = jax.jit(
        lambda s, seeding: (rankings.single_elimination(s, seeding), rankings.round_robin(s), rankings.anchor(s))
    )
    for scores in tables(size):
        seeding = np.random.default_rng(1).permutation(size).astype(float)
        wins = [sum(result(scores, i, j) for j in range(size) if j != i) for i in range(size)]
        beside = [np.mean([scores[0, j] for j in range(1, size)]), *(scores[i, 0] for i in range(1, size))]
        wanted = eliminate(scores, seeding), in_order(wins), in_order([float(np.float32(x)) for x in beside])
        for ranks, want in zip(ranker(jnp.asarray(scores), jnp.asarray(seeding)), wanted, strict=True):
            assert ranks.tolist() == want


def swiss_by_hand(scores, orders):
    size = len(scores)
    points, met = [0.0] * size, [set() for _ in range(size)]
    for order in orders:
        standing = sorted(order, key=[-x for x in points].__getitem__)
        gained = [0.0] * size
        if size % 2:
            gained[standing.pop()] = 1.0
        while standing:
            first = standing.pop(0)
            second = next((j for j in standing if j not in met[first]), standing[0])
            standing.remove(second)
            gained[first], gained[second] = result(scores, first, second), result(scores, second, first)
            met[first].add(second), met[second].add(first)
        points = [a + b for a, b in zip(points, gained, strict=True)]
    return in_order([(points[i], sum(points[j] for j in met[i])) for i in range(size)])


@pytest.mark.parametrize("size", SIZES)
def test_swiss_against_a_loop(size):
    ranker, rounds = jax.jit(rankings.swiss), math.ceil(math.log2(size))
    for number, scores in enumerate(tables(size)):
        key = jax.random.key(number)
        orders = [jax.random.permutation(k, size).tolist() for k in jax.random.split(key, rounds)]
        assert ranker(jnp.asarray(scores), key).tolist() == swiss_by_hand(scores, orders)


@pytest.mark.parametrize("size", [*SIZES, 16])
def test_without_noise_every_ranker_names_the_best(size):
    rank = jax.jit(
        lambda scores, key: (
            rankings.anchor(scores),
            rankings.round_robin(scores),
            rankings.single_elimination(scores, rankings.anchor_scores(scores)),
            rankings.swiss(scores, key),
        )
    )
    for number in range(5):
        quality = np.random.default_rng(number).normal(size=size)
        scores = jnp.asarray(np.broadcast_to(quality[:, None], (size, size)))
        for ranks in rank(scores, jax.random.key(number)):
            assert ranks[quality.argmax()] == 1


@pytest.mark.parametrize("size", [5, 6, 7])
def test_the_best_seeds_have_the_byes(size):
    """A seed with a bye is never beaten in the first round, even if it loses to all."""
    byes = 8 - size
    first = [set(pair) for pair in zip(*[iter(rankings.bracket(size))] * 2, strict=True)]
    assert {min(pair) for pair in first if max(pair) >= size} == set(range(byes))


@pytest.mark.parametrize("size", SIZES)
def test_relabelling_the_candidates_relabels_the_ranks(size):
    knock_out, everyone = jax.jit(rankings.single_elimination), jax.jit(rankings.round_robin)
    for scores in tables(size, 6)[::2]:
        order = np.random.default_rng(2).permutation(size)
        moved = jnp.asarray(scores[np.ix_(order, order)])
        seeding = np.random.default_rng(3).normal(size=size)
        plain = np.asarray(everyone(jnp.asarray(scores)))
        assert everyone(moved).tolist() == plain[order].tolist()
        plain = np.asarray(knock_out(jnp.asarray(scores), jnp.asarray(seeding)))
        assert knock_out(moved, jnp.asarray(seeding[order])).tolist() == plain[order].tolist()


@pytest.mark.parametrize("size", SIZES)
def test_rewards_of_ranks(size):
    """Without ties N - 1 equal steps; a tie shares the mean; win rates add up to N / 2."""
    rewards = np.arange(size - 1, -1, -1) / (size - 1)
    ranks = jnp.arange(1, size + 1)
    np.testing.assert_allclose(rankings.mean_rank_rewards(ranks), rewards, atol=1e-6)
    np.testing.assert_allclose(rankings.least_rank_rewards(ranks), rewards, atol=1e-6)
    equal = jnp.ones((size,), jnp.int32)
    np.testing.assert_allclose(rankings.mean_rank_rewards(equal), 0.5)
    np.testing.assert_array_equal(rankings.least_rank_rewards(equal), 0)
    for scores in tables(size, 4):
        rate = rankings.win_rate(jnp.asarray(scores))
        assert float(rate.sum()) == pytest.approx(size / 2, abs=1e-5)


def test_one_candidate_is_refused():
    with pytest.raises(ValueError, match="at least two candidates"):
        rankings.round_robin(jnp.zeros((1, 1)))
