"""Tabular players of a 2x2 game that choose partners, fine each other and have reputations: partners, and one round.

The table holds 20 states for each of n agents: 16 of play (`situation`) and 4 of judging. In these an agent that saw a
game may fine one of its players. Acts of play are 0 (cooperate) and 1 (defect), of judging 0 (nothing) and 1 (fine). A
last row stands for absent judges. All numbers of `Customs` may be traced, so a vmapped program can hold many customs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.rl.returns import Number
from jaxmarl_llm.tabular.q_learning import boltzmann, q_learning

PLAY, STATES = 16, 20  # states of play, and all states of an agent
GOOD_DEEDS = {"cooperate": 1.0, "defect": -1.0, "just": 2.0, "unjust": -3.0}  # points of reputation


class Customs(NamedTuple):
    choose: Any  # 1: partners are chosen, 0: drawn
    direct: Any  # 1: players may fine each other
    third: Any  # 1: outsiders may fine them
    reputation: Any  # 1: agents see who has a good reputation
    just: Any  # reward of an agent that fines a defector
    unjust: Any  # reward of an agent that fines a cooperator
    fine: Any  # loss of the fined agent


class Society(NamedTuple):
    table: jax.Array  # float32 [n STATES + 1, 2], action values
    met: jax.Array  # float32 [n, n + 2]: mean reward with each partner, then with one of bad and of good reputation
    last: jax.Array  # int32 [n], last acts of play
    points: jax.Array  # float32 [n], reputations: sums of `GOOD_DEEDS`


def begin(last: jax.Array) -> Society:
    """A society of agents with values and reputations 0, and last acts int32 [n]."""
    n = len(last)
    return Society(jnp.zeros((n * STATES + 1, 2)), jnp.zeros((n, n + 2)), last, jnp.zeros(n))


def standing(society: Society) -> jax.Array:
    """int32 [n]: 1 for a good reputation, i.e. at least the mean, else 0."""
    return (society.points >= society.points.mean()).astype(jnp.int32)


def situation(society: Society, agent: jax.Array, other: jax.Array, customs: Customs) -> jax.Array:
    """int32 [...], 0 to 15: 8 [other is good] + 4 [own is good] + 2 [other's last act] + [own last act].

    Without reputations no agent is good.
    """
    good = standing(society) * jnp.asarray(customs.reputation, jnp.int32)
    return 8 * good[other] + 4 * good[agent] + 2 * society.last[other] + society.last[agent]


def column(society: Society, other: jax.Array, customs: Customs) -> jax.Array:
    """int32 [...]: the column of `met` for a partner: the partner's own, or with reputations that of its `standing`."""
    return jnp.where(customs.reputation > 0, len(society.last) + standing(society)[other], other)


def partners(society: Society, key: jax.Array, customs: Customs, temperature: Number) -> jax.Array:
    """int32 [n]: a partner for each agent, never itself.

    It is drawn by Boltzmann over `society.met`, the mean rewards with partners; uniformly if `customs.choose` is 0.
    """
    n = len(society.last)
    value = society.met[:, column(society, jnp.arange(n), customs)]
    wanted = jnp.where(customs.choose > 0, boltzmann(value, temperature), 0.0)
    return jax.random.categorical(key, jnp.where(jnp.eye(n, dtype=bool), -jnp.inf, wanted))


def outsiders(key: jax.Array, pair: jax.Array, agents: int) -> jax.Array:
    """int32 [2]: a random agent outside the pair for each of its two players; both may be the same."""
    inside = (jnp.arange(agents)[None] == pair[:, None]).any(0)
    return jax.random.categorical(key, jnp.where(inside, -jnp.inf, 0.0), shape=(2,))


BITS = np.concatenate([np.ones((PLAY, 1)), 1 - 2 * (np.arange(PLAY)[:, None] >> np.arange(4) & 1)], 1)  # [16, 5]
ALIKE = (BITS @ BITS.T / BITS.shape[1]).astype(np.float32)  # [16, 16]


def linear_in_bits(old: jax.Array, new: jax.Array) -> jax.Array:
    """The table after the step from `old` to `new`, for values of play that are linear in the situation's bits.

    The value of an act is w . x, with x = (1, and 1 or -1 for each of the four bits) / sqrt 5. The step w += change x
    changes the value of x by `change`, and the value of x' by change (x . x'). Values thus generalise to similar
    situations, as with a network.
    """
    change = (new - old)[:-1].reshape(-1, STATES, 2)
    shared = change.at[:, :PLAY].set(jnp.einsum("ij,njk->nik", jnp.asarray(ALIKE), change[:, :PLAY]))
    return old + jnp.concatenate([shared.reshape(-1, 2), (new - old)[-1:]])


def play(
    society: Society,
    pair: jax.Array,
    judges: jax.Array,
    key: jax.Array,
    *,
    payoff: jax.Array,
    customs: Customs,
    temperature: Number,
    rate: Number,
    discount: Number,
    linear: Number = 0,
) -> tuple[Society, dict[str, jax.Array]]:
    """(the society after a round, {cooperation, reward, fines}) of the players `pair` int32 [2].

    Both players act by `payoff` float32 [own act, other's act]. Then each may fine the other, and each of the `judges`
    int32 [2] may fine the player it watches. A player's reward is its payoff minus its fines; its next state is that of
    a further round with the same partner. Judging is a bandit: a fine has the reward `just` or `unjust`, no fine 0.

    All learn by `q_learning`; the first player also updates `met`. With `linear` above 0 the values of play are
    `linear_in_bits` instead of a table. `cooperation` is the share of act 0, `fines` their number, and `reward` the
    players' mean reward plus half of the rewards of fines.

    The order of a round and the points are those of Dasgupta & Musolesi (2023), https://arxiv.org/abs/2301.08278.
    """
    play_key, fine_key = jax.random.split(key)
    n, other, victim = len(society.last), pair[::-1], jnp.array([0, 1, 0, 1])
    cell = STATES * pair + situation(society, pair, other, customs)
    act = jax.random.categorical(play_key, boltzmann(society.table[cell], temperature))
    judge = jnp.concatenate([other, judges])
    may = jnp.stack([customs.direct, customs.direct, customs.third, customs.third]) > 0
    seen = jnp.where(may, STATES * judge + PLAY + 2 * act[victim] + act[1 - victim], n * STATES)
    fined = (jax.random.categorical(fine_key, boltzmann(society.table[seen], temperature)) == 1) & may
    just = act[victim] == 1
    reward = payoff[act, act[::-1]] - customs.fine * jnp.zeros(2).at[victim].add(fined)
    earned = jnp.where(fined, jnp.where(just, customs.just, customs.unjust), 0.0)
    deeds = jnp.where(act == 0, GOOD_DEEDS["cooperate"], GOOD_DEEDS["defect"])
    judged = jnp.where(fined, jnp.where(just, GOOD_DEEDS["just"], GOOD_DEEDS["unjust"]), 0.0)
    after = society._replace(
        last=society.last.at[pair].set(act), points=society.points.at[pair].add(deeds).at[judge].add(judged)
    )
    table = q_learning(
        society.table,
        jnp.concatenate([cell, seen]),
        jnp.concatenate([act, fined.astype(act.dtype)]),
        jnp.concatenate([reward, earned]),
        jnp.concatenate([STATES * pair + situation(after, pair, other, customs), seen]),
        rate=rate,
        discount=discount * jnp.array([1.0] * 2 + [0.0] * 4),
    )
    table = jnp.where(linear > 0, linear_in_bits(society.table, table), table)
    at = pair[0], column(society, pair[1], customs)
    met = society.met.at[at].add(rate * (reward[0] - society.met[at]))
    measured = {
        "cooperation": 1 - act.mean(),
        "reward": (reward.sum() + earned.sum()) / 2,
        "fines": fined.sum().astype(jnp.float32),
    }
    return after._replace(table=table, met=met), measured
