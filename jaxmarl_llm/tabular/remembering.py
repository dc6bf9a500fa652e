"""Tabular learners of repeated 2x2 games that remember the other's answers; many games in parallel, in a second.

A *situation* is the round before, own move first: 0 before any round, then CC, CD, DC, DD, with C action 0. A learner's
memory holds the other's last answer in each situation: unknown, C or D. A player with five deterministic answers is
then fully known, so a table over memory, situation and a flag can adapt to it within a game. It is the tabular
counterpart of a policy that sees the whole game so far. Shapes: G games, T rounds, L learners, F flags.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.rl.returns import Number, gae

SITUATIONS = 5
MEMORIES = 3**SITUATIONS
POWERS = 3 ** np.arange(SITUATIONS)
SEEN_BY_OTHER = np.array([0, 1, 3, 2, 4])  # the other's situation, by a player's own


class Tables(NamedTuple):
    logit: jax.Array  # float32 [L, F, memories, situations], of C
    value: jax.Array  # float32 of the same shape, the critic's


class Games(NamedTuple):
    learner: jax.Array  # int32 [G, 2]: the learner in each seat, -1: the player of five `chances`
    flag: jax.Array  # int32 [G, 2]: a number that the seat sees
    memory: jax.Array  # int32 [G, 2]: the seat's memory before the game, 0: empty
    chances: jax.Array  # float32 [G, 5]: probabilities of C in its situations, for a seat without a learner


class Played(NamedTuple):
    context: tuple[jax.Array, ...]  # four int32 [G, T + 1, 2], indices into the tables, also after the last round
    action: jax.Array  # int32 [G, T, 2]
    reward: jax.Array  # float32 [G, T, 2]


def fresh(learners: int, flags: int = 1) -> Tables:
    """Tables of learners that cooperate with probability 0.5 and have value 0."""
    nothing = jnp.zeros((learners, flags, MEMORIES, SITUATIONS))
    return Tables(nothing, nothing)


def memory_of(answers: jax.Array) -> jax.Array:
    """The memory int32 [...] about a player with these answers [..., 5] in its situations; -1: unknown."""
    return ((1 + answers[..., SEEN_BY_OTHER]) @ jnp.asarray(POWERS)).astype(jnp.int32)


def remember(memory: jax.Array, situation: jax.Array, answer: jax.Array) -> jax.Array:
    """The memory after the other's answer in a situation; arrays of the same shape."""
    power = jnp.asarray(POWERS, jnp.int32)[situation]
    return memory + power * (1 + answer - memory // power % 3)


def play(tables: Tables, games: Games, payoff: jax.Array, rounds: int, key: jax.Array) -> Played:
    """Plays the games. `payoff` is [action of seat 0, action of seat 1, seat]."""
    seats, who = jnp.arange(2), jnp.maximum(games.learner, 0)

    def play_round(now: tuple, key: jax.Array) -> tuple[tuple, tuple]:
        memory, situation = now
        context = (who, games.flag, memory, situation)
        chance = jnp.take_along_axis(games.chances, situation, 1)
        chance = jnp.where(games.learner < 0, chance, jax.nn.sigmoid(tables.logit[context]))
        action = (jax.random.uniform(key, chance.shape) >= chance).astype(jnp.int32)
        other = action[:, ::-1]
        reward = payoff[action[:, :1], action[:, 1:], seats]
        return (remember(memory, situation, other), 1 + 2 * action + other), (context, action, reward)

    start = games.memory, jnp.zeros_like(games.memory)
    (memory, situation), (context, action, reward) = jax.lax.scan(play_round, start, jax.random.split(key, rounds))
    after = (who, games.flag, memory, situation)
    whole = [jnp.moveaxis(jnp.concatenate([x, y[None]]), 0, 1) for x, y in zip(context, after, strict=True)]
    return Played(tuple(whole), jnp.moveaxis(action, 0, 1), jnp.moveaxis(reward, 0, 1))


def learn(
    tables: Tables,
    played: Played,
    learns: jax.Array,
    *,
    rate: Number,
    entropy: Number,
    gamma: Number,
    lam: Number = 0.95,
    prior: float = 10.0,
) -> Tables:
    """The tables after a step of advantage actor-critic on the seats in `learns`, bool [G, 2].

    With A the generalised advantage, over the n acts of an entry:
        logit += rate (sum A (1[C] - p) / (n + prior) - entropy logit p (1 - p) n / (n + prior)),   p = sigmoid(logit)
        value += sum (A + value - value) / (n + prior) = sum A / (n + prior)
    The second term is the gradient of the entropy, weighted by `entropy`. `prior` damps the step of rarely visited
    entries. Returns continue after the last round with the critic's value.
    """
    now = tuple(x[:, :-1] for x in played.context)
    value = tables.value[tuple(played.context)]
    where = jnp.broadcast_to(learns[:, None], played.reward.shape)
    advantage = gae(played.reward, value[:, :-1], where, gamma=gamma, lam=lam, last=value[:, -1]).advantage
    total = lambda x: jnp.zeros_like(tables.logit).at[now].add(jnp.where(where, x, 0))
    p = jax.nn.sigmoid(tables.logit)
    count = total(jnp.ones_like(advantage))
    towards = total(advantage * ((played.action == 0) - p[now])) - entropy * tables.logit * p * (1 - p) * count
    shared = count + prior
    return Tables(tables.logit + rate * towards / shared, tables.value + total(advantage) / shared)


def draw_chances(key: jax.Array, number: int, *, coins: Number) -> jax.Array:
    """Random probabilities of C, float32 [number, 5]: uniform in [0, 1], or 0 or 1 alike if `coins` is above 0."""
    chances = jax.random.uniform(key, (number, SITUATIONS))
    return jnp.where(coins > 0, (chances > 0.5).astype(jnp.float32), chances)


def meetings(pairs: int, chances: jax.Array, told: jax.Array) -> Games:
    """Line-ups of `pairs` games between learners 0 and 1, and of n games of a learner with a player of `chances`.

    Player i, with probabilities of C float32 [5] in its situations, meets learner i % 2. If `told`, that learner's
    memory starts with the player's likelier answers (unknown at 0.5), and flag 1 marks the games between learners.
    Otherwise memories are empty and flags are 0.
    """
    seat, nobody = jnp.arange(len(chances)) % 2, jnp.full(len(chances), -1)
    learner = jnp.concatenate([jnp.tile(jnp.array([[0, 1]]), (pairs, 1)), jnp.stack([seat, nobody], 1)])
    answers = jnp.where(chances > 0.5, 0, jnp.where(chances < 0.5, 1, -1))
    memory = jnp.concatenate([jnp.zeros(pairs, jnp.int32), jnp.where(told, memory_of(answers), 0)])
    flag = (told & (jnp.arange(len(learner)) < pairs)).astype(jnp.int32)
    every = jnp.concatenate([jnp.zeros((pairs, SITUATIONS)), chances])
    return Games(learner, jnp.stack([flag, flag], 1), jnp.stack([memory, jnp.zeros_like(memory)], 1), every)


def line_ups(seats: Sequence[tuple[int, int]], number: int, chances: Sequence[float] = (0.5,) * SITUATIONS) -> Games:
    """`number` games of each pair of learners, without flags or memory; -1 is a player of these five chances."""
    learner = jnp.tile(jnp.array(seats, jnp.int32), (number, 1))
    nothing = jnp.zeros_like(learner)
    return Games(learner, nothing, nothing, jnp.tile(jnp.array(chances, jnp.float32), (len(learner), 1)))


def improve(
    key: jax.Array,
    tables: Tables,
    meet: Callable[[jax.Array], tuple[Games, jax.Array]],
    payoff: jax.Array,
    measure: Callable[[Played], dict[str, jax.Array]],
    *,
    updates: int,
    rounds: int,
    rate: Number,
    entropy: Number,
    gamma: Number,
) -> tuple[Tables, dict[str, jax.Array]]:
    """(the tables after `updates` steps of `learn`, {metric: [updates]}).

    `meet` (key) gives the games of an update and the seats that learn from them, bool [G, 2]. A learner without such a
    seat stays frozen.
    """

    def update(now: Tables, number: jax.Array) -> tuple[Tables, dict[str, jax.Array]]:
        draws, dice = jax.random.split(jax.random.fold_in(key, number))
        games, learns = meet(draws)
        played = play(now, games, payoff, rounds, dice)
        return learn(now, played, learns, rate=rate, entropy=entropy, gamma=gamma), measure(played)

    return jax.lax.scan(update, tables, jnp.arange(updates))


def train(
    key: jax.Array,
    draw: Callable[[jax.Array, int], jax.Array],
    payoff: jax.Array,
    measure: Callable[[jax.Array, jax.Array], dict[str, jax.Array]],
    *,
    updates: int,
    rounds: int,
    pairs: int,
    from_pairs: jax.Array,
    from_others: jax.Array,
    told: jax.Array,
    rate: Number,
    entropy: Number,
    gamma: Number,
) -> tuple[Tables, dict[str, jax.Array]]:
    """(tables of two learners after `updates` of `meetings`, {metric: [updates]}).

    Half of each learner's games are with the other learner, half with players whose chances `draw` (key, n) gives. The
    bools `from_pairs` and `from_others` say from which of these games they learn. `measure` gets the actions of pairs
    [pairs, T, 2] and the rewards against the other players [2 pairs, T].
    """

    def meet(key: jax.Array) -> tuple[Games, jax.Array]:
        games = meetings(pairs, draw(key, 2 * pairs), told)
        kept = jnp.where(jnp.arange(3 * pairs) < pairs, from_pairs, from_others)
        return games, kept[:, None] & (games.learner >= 0)

    def measure_pairs(played: Played) -> dict[str, jax.Array]:
        return measure(played.action[:pairs], played.reward[pairs:, :, 0])

    options: dict[str, Any] = {"updates": updates, "rounds": rounds, "rate": rate, "entropy": entropy, "gamma": gamma}
    return improve(key, fresh(2, 2), meet, payoff, measure_pairs, **options)


def rise(points: jax.Array) -> jax.Array:
    """Mean points [n, T] in the last third of the rounds less the first third."""
    third = points.shape[1] // 3
    return points[:, -third:].mean() - points[:, :third].mean()


def measure(action: jax.Array, points: jax.Array) -> dict[str, jax.Array]:
    """Metrics of learners' actions with each other, [n, T, 2], and of their points against others, [m, T]."""
    kind, third = action == 0, action.shape[1] // 3
    metrics = {"cooperation": kind.mean(), "points": points.mean(), "rise": rise(points)}
    return metrics | {"first third": kind[:, :third].mean(), "last third": kind[:, -third:].mean()}


def exact_earnings(
    logit: jax.Array, payoff: jax.Array, rounds: int, chances: jax.Array | None = None, discount: Number = 1.0
) -> jax.Array:
    """Exact expected earnings float32 [2] of both seats: a player in seat 0, a table that does not learn in seat 1.

    `chances` are the player's P(C) in the five situations; without them it is the best response. It sees the whole
    game, so it knows the table's memory m and situation s. With P the table's policy, the best response solves

        V_t(m, s) = max_a sum_b P(b | m, s) (payoff[a, b, 0] + discount V_{t+1}(m', s')),   V_rounds = 0

    where m' = `remember` (m, s, a) and s' = (b, a); a tie counts as C. `logit` [memories, situations] is of C, `payoff`
    as in `play`.
    """
    m, s, a, b = jnp.meshgrid(*map(jnp.arange, (MEMORIES, SITUATIONS, 2, 2)), indexing="ij")
    plays = jax.nn.sigmoid(jnp.where(b == 0, 1, -1) * logit[m, s])[..., None]

    def before(value: jax.Array, _: None) -> tuple[jax.Array, None]:
        either = plays * (payoff[a, b] + discount * value[remember(m, s, a), 1 + 2 * b + a])
        q = either[..., 0, :] + either[..., 1, :]  # [m, s, a, seat]; jaxlib 0.10.2 crashes on .sum(3) in nested vmaps
        first = q[..., 0, 0] >= q[..., 1, 0] if chances is None else chances[SEEN_BY_OTHER][s[..., 0, 0]]
        share = first.astype(jnp.float32)[..., None]
        return share * q[..., 0, :] + (1 - share) * q[..., 1, :], None

    return jax.lax.scan(before, jnp.zeros((*logit.shape, 2)), None, length=rounds)[0][0, 0]
