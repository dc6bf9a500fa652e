"""Exact values of repeated 2x2 games with memory-one players: earnings of two players, and best responses.

A memory-one player is `chances` [5], as in `environments.around.opponents.memory_one`. They are the probabilities of
action 0 in the first round, and after the joint actions 00, 01, 10, 11, own action first. All functions are traced and
may be mapped over players. Payoffs are those of a round, [own action, other's action].
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.rl.returns import Number

SEEN_BY_OTHER = np.array([0, 1, 3, 2, 4])  # the other's situation, by a player's own


class BestResponse(NamedTuple):
    value: jax.Array  # float32, the expected sum of discounted payoffs
    moves: jax.Array  # int32 [rounds, 5], the best action in every round and situation; 0 in a tie


def best_response(payoff: jax.Array, chances: jax.Array, rounds: int, discount: Number = 1.0) -> BestResponse:
    """The best response to a known memory-one player: the value, and the moves by round and situation.

        V_t(s) = max_a sum_b P(b | s) (payoff[a, b] + discount V_{t+1}(a, b)),   V_rounds = 0

    where s is the last round and P the other's chances. More memory than the other's earns no more (Press & Dyson 2012,
    https://arxiv.org/abs/1206.4050). A learner that must identify the other player earns less.
    Raises ValueError unless payoff is [2, 2], chances [5], and there is a round.
    """
    _check(payoff, chances, rounds)
    plays = _plays(chances)[SEEN_BY_OTHER]  # [5, 2]

    def before(value: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        q = plays @ (payoff + discount * value[1:].reshape(2, 2)).T  # [5, 2]
        return q.max(1), q.argmax(1).astype(jnp.int32)

    value, moves = jax.lax.scan(before, jnp.zeros(5), None, length=rounds, reverse=True)
    return BestResponse(value[0], moves)


def shortfall(payoff: jax.Array, chances: jax.Array, moves: jax.Array) -> jax.Array:
    """The best response's earnings a round minus those of the games played, by opponent: float32 [players].

    `chances` [players, 5] are the opponents. `moves` int32 [2, players, games, rounds, 2] holds both seats' actions.
    The opponent has seat 1 in the first half, seat 0 in the second. `payoff` [2, 2, 2] is as in `earnings`. The result
    is the mean over both halves; luck can make it negative. Raises ValueError as `best_response` does.
    """
    rounds, lost = moves.shape[-2], []
    for seat, mine in enumerate((payoff[..., 0], payoff[..., 1].T)):
        best = jax.vmap(lambda who, mine=mine: best_response(mine, who, rounds).value)(chances)
        lost.append(best / rounds - mine[moves[seat, ..., seat], moves[seat, ..., 1 - seat]].mean((1, 2)))
    return jnp.stack(lost).mean(0)


def shortfall_unknown(payoff: jax.Array, chances: jax.Array, rounds: int) -> jax.Array:
    """`shortfall`, float32 [players], of the best player that does not know its opponent, drawn uniformly.

    It maximises the sum over opponents of its expected payoff, by backward induction over all 4^rounds histories h:

        U_t(h) = u(a*),   u(a)[p] = sum_b P_p(b | h) (payoff[a, b] + U_{t+1}(h, a, b)[p]),
        a* = argmax_a sum_p W_t(h)[p] u(a)[p],   W_t(h)[p] = product of p's probabilities of its actions in h

    Raises ValueError as `best_response` does.
    """
    lost = []
    for mine in (payoff[..., 0], payoff[..., 1].T):
        best = jax.vmap(lambda who, mine=mine: best_response(mine, who, rounds).value)(chances)
        likely = jax.vmap(_plays)(chances)[:, SEEN_BY_OTHER].swapaxes(0, 1)  # [5, players, 2], by the own situation
        first = likely[None, 0]
        plays = [first] + [jnp.tile(likely[1:], (4**t, 1, 1)) for t in range(rounds - 1)]  # [4^t, players, 2]
        weight = [jnp.ones((1, len(chances)))]
        for now in plays[:-1]:  # histories in the order of their last joint actions 00, 01, 10, 11
            after = (weight[-1][:, :, None] * now).swapaxes(1, 2)  # [4^t, 2, players]
            weight.append(jnp.tile(after, (1, 2, 1)).reshape(-1, len(chances)))
        value = jnp.zeros((4**rounds, len(chances)))
        for now, known in zip(plays[::-1], weight[::-1], strict=True):
            gain = mine[None, :, :, None] + value.reshape(-1, 2, 2, len(chances))  # [4^t, own action, other's, players]
            values = (now.swapaxes(1, 2)[:, None] * gain).sum(2)  # [4^t, own action, players]
            action = (known[:, None] * values).sum(2).argmax(1)
            value = jnp.take_along_axis(values, action[:, None, None], 1)[:, 0]
        lost.append((best - value[0]) / rounds)
    return jnp.stack(lost).mean(0)


def earnings(payoff: jax.Array, first: jax.Array, second: jax.Array, rounds: int, discount: Number = 1.0) -> jax.Array:
    """Expected earnings float32 [2] of two memory-one players; payoff is [action of first, of second, player].

    They follow from the Markov chain of joint actions: sum_t discount^t sum_ab P_t(a, b) payoff[a, b].
    Raises ValueError as `best_response` does.
    """
    _check(payoff[..., 0], first, rounds)
    _check(payoff[..., 1], second, rounds)
    joint = (_plays(first)[:, :, None] * _plays(second)[SEEN_BY_OTHER][:, None, :]).reshape(5, 4)

    def next_round(now: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        return now @ joint[1:], weight * now @ payoff.reshape(4, 2)

    weights = jnp.asarray(discount, jnp.float32) ** jnp.arange(rounds)
    return jax.lax.scan(next_round, joint[0], weights)[1].sum(0)


def _plays(chances: jax.Array) -> jax.Array:
    """The probabilities of both actions in each situation, [5, 2]."""
    return jnp.stack([chances, 1 - chances], 1)


def _check(payoff: jax.Array, chances: jax.Array, rounds: int) -> None:
    if jnp.shape(payoff) != (2, 2) or jnp.shape(chances) != (5,) or rounds < 1:
        raise ValueError(
            "A repeated game has payoffs [2, 2], a player five chances, and one round at least is played: got "
            f"{list(jnp.shape(payoff))}, {list(jnp.shape(chances))} and {rounds}."
        )
