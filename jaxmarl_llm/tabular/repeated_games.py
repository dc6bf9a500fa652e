"""Repeated 2x2 games against a player that remembers one round, exactly: what two such players earn, a best response.

Such a player is five probabilities of action 0, `chances` [5]: in the first round, and after both played 0, after it
played 0 and the other 1, after 1 and 0, and after both played 1, as in `environments.opponents.memory_one`. All
functions are traced and may be mapped over players. Payoffs are those of a round, [own action, the other's action].
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.rl.returns import Number

SEEN_BY_OTHER = np.array([0, 1, 3, 2, 4])  # a situation of one player is this one of the other


class BestResponse(NamedTuple):
    value: jax.Array  # float32, the expected sum of discounted payoffs
    moves: jax.Array  # int32 [rounds, 5], the best action in every round and situation; of equals 0


def best_response(own: jax.Array, chances: jax.Array, rounds: int, discount: Number = 1.0) -> BestResponse:
    """The best that any player can earn, also one that remembers everything, of a player that it knows.

        V_t(s) = max_a sum_b P(b | s) (own[a, b] + discount V_{t+1}(a, b)),   V_rounds = 0

    with s the last round and P the other's chances: as the other remembers a round, so need a best response (Press &
    Dyson 2012, https://arxiv.org/abs/1206.4050). A learner that has to find out who it plays earns less.
    Raises ValueError unless own is [2, 2], the chances are five, and a round is played.
    """
    _check(own, chances, rounds)
    plays = _plays(chances)[SEEN_BY_OTHER]  # [5, 2]

    def before(value: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        q = plays @ (own + discount * value[1:].reshape(2, 2)).T  # [5, 2]
        return q.max(1), q.argmax(1).astype(jnp.int32)

    value, moves = jax.lax.scan(before, jnp.zeros(5), None, length=rounds, reverse=True)
    return BestResponse(value[0], moves)


def shortfall(payoff: jax.Array, chances: jax.Array, moves: jax.Array) -> jax.Array:
    """What the best response to each player would have earned more, a round, than who played it: float32 [players].

    `chances` [players, 5], moves int32 [2, players, games, rounds, 2] of both seats' actions, in the first of which the
    player had seat 1 and in the second seat 0; payoff [2, 2, 2] as in `earnings`. The mean over both; it may be below 0
    where the player's dice were kind. Raises ValueError as `best_response`.
    """
    rounds, lost = moves.shape[-2], []
    for seat, own in enumerate((payoff[..., 0], payoff[..., 1].T)):
        best = jax.vmap(lambda who, own=own: best_response(own, who, rounds).value)(chances)
        lost.append(best / rounds - own[moves[seat, ..., seat], moves[seat, ..., 1 - seat]].mean((1, 2)))
    return jnp.stack(lost).mean(0)


def shortfall_unknown(payoff: jax.Array, chances: jax.Array, rounds: int) -> jax.Array:
    """`shortfall` of the best player that does not know which of the players, drawn alike, it meets: float32 [players].

    It maximises the sum over players of its expected payoff, by backward induction over all 4^rounds histories h:

        U_t(h) = u(a*),   u(a)[p] = sum_b P_p(b | h) (own[a, b] + U_{t+1}(h, a, b)[p]),
        a* = argmax_a sum_p W_t(h)[p] u(a)[p],   W_t(h)[p] = prod of p's chances of what it did in h

    Raises ValueError as `best_response`.
    """
    lost = []
    for own in (payoff[..., 0], payoff[..., 1].T):
        best = jax.vmap(lambda who, own=own: best_response(own, who, rounds).value)(chances)
        likely = jax.vmap(_plays)(chances)[:, SEEN_BY_OTHER].swapaxes(0, 1)  # [5, players, 2], by the own situation
        first = likely[None, 0]
        plays = [first] + [jnp.tile(likely[1:], (4**t, 1, 1)) for t in range(rounds - 1)]  # [4^t, players, 2]
        weight = [jnp.ones((1, len(chances)))]
        for now in plays[:-1]:  # histories in the order of their last joint actions 00, 01, 10, 11
            after = (weight[-1][:, :, None] * now).swapaxes(1, 2)  # [4^t, 2, players]
            weight.append(jnp.tile(after, (1, 2, 1)).reshape(-1, len(chances)))
        value = jnp.zeros((4**rounds, len(chances)))
        for now, known in zip(plays[::-1], weight[::-1], strict=True):
            gain = own[None, :, :, None] + value.reshape(-1, 2, 2, len(chances))  # [4^t, own action, other's, players]
            each = (now.swapaxes(1, 2)[:, None] * gain).sum(2)  # [4^t, own action, players]
            action = (known[:, None] * each).sum(2).argmax(1)
            value = jnp.take_along_axis(each, action[:, None, None], 1)[:, 0]
        lost.append((best - value[0]) / rounds)
    return jnp.stack(lost).mean(0)


def earnings(payoff: jax.Array, one: jax.Array, other: jax.Array, rounds: int, discount: Number = 1.0) -> jax.Array:
    """What two players of five chances each earn, float32 [2]; payoff [action of one, action of other, player].

    The chain of joint actions, from the first round on: sum over rounds of discount^t sum_ab P_t(a, b) payoff[a, b].
    Raises ValueError as `best_response`.
    """
    _check(payoff[..., 0], one, rounds)
    _check(payoff[..., 1], other, rounds)
    joint = (_plays(one)[:, :, None] * _plays(other)[SEEN_BY_OTHER][:, None, :]).reshape(5, 4)

    def next_round(now: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        return now @ joint[1:], weight * now @ payoff.reshape(4, 2)

    weights = jnp.asarray(discount, jnp.float32) ** jnp.arange(rounds)
    return jax.lax.scan(next_round, joint[0], weights)[1].sum(0)


def _plays(chances: jax.Array) -> jax.Array:
    """[5, 2]: the probability of either action in each situation."""
    return jnp.stack([chances, 1 - chances], 1)


def _check(own: jax.Array, chances: jax.Array, rounds: int) -> None:
    if jnp.shape(own) != (2, 2) or jnp.shape(chances) != (5,) or rounds < 1:
        raise ValueError(
            "A repeated game has payoffs [2, 2], a player five chances, and one round at least is played: got "
            f"{list(jnp.shape(own))}, {list(jnp.shape(chances))} and {rounds}."
        )
