"""Tabular players of a 2x2 game who choose partners, fine each other and have reputations: who meets, one round.

n agents share a table of 20 states each: 16 of play (`situation`) and 4 of judging, in which an agent that saw a game
may fine one of its players. An act of play is 0 (cooperate) or 1 (defect), of judging 0 or 1 (fine). The row after all
agents' stands for a judge who does not exist. All numbers of `Customs` may be traced, so that societies with other
customs are mapped in one program.
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
    reputation: Any  # 1: all see whose reputation is good
    just: Any  # what a fine of a defector earns who makes it
    unjust: Any  # what a fine of a cooperator earns who makes it
    fine: Any  # what it takes


class Society(NamedTuple):
    table: jax.Array  # float32 [n STATES + 1, 2], values of acts
    met: jax.Array  # float32 [n, n + 2]: mean reward of a meeting with each agent, with one of bad, of good reputation
    last: jax.Array  # int32 [n], everybody's last act of play
    points: jax.Array  # float32 [n], reputations: `GOOD_DEEDS` added up


def begin(last: jax.Array) -> Society:
    """A society of agents who know nothing, with last acts int32 [n]."""
    n = len(last)
    return Society(jnp.zeros((n * STATES + 1, 2)), jnp.zeros((n, n + 2)), last, jnp.zeros(n))


def standing(society: Society) -> jax.Array:
    """int32 [n]: 1 for a reputation that is at least the mean."""
    return (society.points >= society.points.mean()).astype(jnp.int32)


def situation(society: Society, own: jax.Array, other: jax.Array, customs: Customs) -> jax.Array:
    """int32 [...], 0 to 15: 8 [other is good] + 4 [own is good] + 2 [other's last act] + [own last act]; without
    reputations nobody is good."""
    good = standing(society) * jnp.asarray(customs.reputation, jnp.int32)
    return 8 * good[other] + 4 * good[own] + 2 * society.last[other] + society.last[own]


def column(society: Society, other: jax.Array, customs: Customs) -> jax.Array:
    """int32 [...]: the column of `met` for an agent: its own, or with reputations that of all who stand alike."""
    return jnp.where(customs.reputation > 0, len(society.last) + standing(society)[other], other)


def partners(society: Society, key: jax.Array, customs: Customs, temperature: Number) -> jax.Array:
    """int32 [n]: whom each of all meets: by Boltzmann's rule in what such meetings brought, or anyone alike."""
    n = len(society.last)
    value = society.met[:, column(society, jnp.arange(n), customs)]
    wanted = jnp.where(customs.choose > 0, boltzmann(value, temperature), 0.0)
    return jax.random.categorical(key, jnp.where(jnp.eye(n, dtype=bool), -jnp.inf, wanted))


def outsiders(key: jax.Array, pair: jax.Array, agents: int) -> jax.Array:
    """int32 [2]: an agent outside the pair for each of it, at random, perhaps the same one."""
    inside = (jnp.arange(agents)[None] == pair[:, None]).any(0)
    return jax.random.categorical(key, jnp.where(inside, -jnp.inf, 0.0), shape=(2,))


BITS = np.concatenate([np.ones((PLAY, 1)), 1 - 2 * (np.arange(PLAY)[:, None] >> np.arange(4) & 1)], 1)  # of situations
ALIKE = (BITS @ BITS.T / BITS.shape[1]).astype(np.float32)  # [16, 16]


def linear_in_bits(old: jax.Array, new: jax.Array) -> jax.Array:
    """The table after an update of values of play that are linear in the situation: `new` is that of tables alone.

    The value of an act is w . x with x = (1, and 1 or -1 for each of the situation's four bits) / sqrt 5. The step
    w += change x, which changes the value of the situation itself by `change`, changes that of another one by change
    (x . x'): what is learned in one situation is learned for like ones, as by a network.
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
    """(the society after a round, {cooperation, reward, fines}): `pair` int32 [2] plays, `judges` int32 [2] watch one
    of them each; `payoff` float32 [own act, other's act].

    Both act; then each may fine the other, and a judge the one it watches. A player's reward is its payoff less its
    fines, its next state that of a further round with the same partner. To judge is a bandit: reward `just` or `unjust`
    if it fines, else 0, no next state. All learn by `q_learning`; the first of the pair also learns what its partner
    was worth. `reward`: mean of the two, with what the round's fines earned; `cooperation`: share of act 0; `fines`: a
    count. With `linear` above 0 the values of play are `linear_in_bits`, no table.

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
