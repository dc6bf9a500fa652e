"""The release's rankers against plain programs of players that are objects in lists, and the judge's errors."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.preferences.tournaments import ARMS, STUDY, WORLDS, eliminate_released, match_scores, swiss_released
from jaxmarl_llm.rl import rankings


class Player:
    def __init__(self, number):
        self.number, self.points, self.met, self.scores = number, 0.0, set(), []


def in_order(strength):
    return [1 + sum(other > x for other in strength) for x in strength]


@pytest.mark.parametrize("size", [5, 6, 7, 8])
def test_the_released_swiss_pays_whoever_lies_at_a_place(size):
    ranker = jax.jit(swiss_released)
    for number in range(10):
        scores, key = np.random.default_rng(number).normal(size=(size, size)), jax.random.key(number)
        players = [Player(i) for i in range(size)]
        for order_key in jax.random.split(key, math.ceil(math.log2(size))):
            players = [players[i] for i in jax.random.permutation(order_key, size).tolist()]
            waiting = sorted(players, key=lambda player: -player.points)
            paid = []
            if size % 2:
                paid.append((waiting.pop().number, None))
            while waiting:
                first = waiting.pop(0)
                second = next((x for x in waiting if x.number not in first.met), waiting[0])
                waiting.remove(second)
                paid.append((first.number, second.number))
            for i, j in paid:
                if j is None:
                    players[i].points += 1
                    continue
                winner = i if scores[i, j] > scores[j, i] else j
                players[winner].points += 1
                players[i].met.add(j)
                players[j].met.add(i)
        strength = {p.number: (p.points, sum(players[j].points for j in p.met)) for p in players}
        assert ranker(jnp.asarray(scores), key).tolist() == in_order([strength[i] for i in range(size)])


def test_the_released_bracket_of_six_gives_no_bye_to_a_top_seed():
    """Seeds 1-4, 5-2, 3-6 meet; then the last winner goes on, before the others. Of eight there is no difference."""
    rng, ranker = np.random.default_rng(0), jax.jit(eliminate_released)
    for _ in range(20):
        scores, seeding = rng.normal(size=(6, 6)), np.arange(6.0)[::-1].copy()
        play = lambda i, j, scores=scores: (i, j) if scores[i, j] >= scores[j, i] else (j, i)
        met, defeat = {i: [seeding[i]] for i in range(6)}, {}
        alive, number = [0, 3, 4, 1, 2, 5], 0
        while len(alive) > 1:
            goes_on = [alive.pop()] if len(alive) % 2 else []
            for i, j in zip(alive[::2], alive[1::2], strict=True):
                met[i].append(scores[i, j])
                met[j].append(scores[j, i])
                winner, loser = play(i, j)
                goes_on.append(winner)
                defeat[loser] = number
            alive, number = goes_on, number + 1
        defeat[alive[0]] = number
        want = in_order([(defeat[i], float(np.float32(np.mean(met[i])))) for i in range(6)])
        assert ranker(jnp.asarray(scores), jnp.asarray(seeding)).tolist() == want
    for _ in range(5):
        scores, seeding = jnp.asarray(rng.normal(size=(8, 8))), jnp.asarray(rng.normal(size=8))
        same = rankings.single_elimination(scores, seeding)
        assert eliminate_released(scores, seeding).tolist() == same.tolist()


def test_a_match_has_shared_and_single_errors_and_a_cycle():
    """The shared error cancels in a difference; scores are sums over two calls."""
    keys, quality = jax.random.split(jax.random.key(0), 4000), jnp.array([0.5, -0.5, 1.0])
    draw = jax.vmap(lambda key: match_scores(quality, key, 2.0, 0.5, 0.0))
    scores = np.asarray(draw(keys))
    assert (scores[:, 0, 1] - scores[:, 1, 0]).std() == pytest.approx(1, rel=0.05)  # 0.5 sqrt(2) sqrt(2)
    assert scores[:, 0, 1].std() == pytest.approx((2 * (4 + 0.25)) ** 0.5, rel=0.05)
    np.testing.assert_allclose(scores[:, 0, 1].mean(), 1.0, atol=0.2)
    cycle = np.asarray(match_scores(jnp.zeros(3), keys[0], 0.0, 0.0, 1.0))
    assert (np.sign(cycle - cycle.T) == [[0, -1, 1], [1, 0, -1], [-1, 1, 0]]).all()


def test_every_ranker_has_every_world():
    assert tuple(STUDY.arms) == ARMS and STUDY.metrics == tuple(WORLDS)
