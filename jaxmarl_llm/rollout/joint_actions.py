"""Rewards of other joint actions in the games of a batch: the rules are stepped again, nothing is decoded.

States are pure values and chance is a key. The initial state of a group is thus dealt again bit for bit, and every
joint action meets the same chance. This holds only for games of one turn, where all members of a group stand at one
state with the same observations. In later turns states and words depend on earlier actions.
Shapes: n groups of G members, B = n G episodes, A seats, N actions, C reward components.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices import scopes
from jaxmarl_llm.keys import CHANCE, DEAL, batch_keys
from jaxmarl_llm.rollout.rollout import Rollout

MOST = 2**16
"""The largest number of joint actions of a group; larger tables raise ValueError."""


@jax.named_scope(scopes.ENVIRONMENT)
def crossed_rewards(rollout: Rollout, key: jax.Array, action: jax.Array, deal: Any = None) -> jax.Array:
    """Rewards of all joint actions of the members' actions: float32 [n, G, ..., G, A, C], one axis of G for each seat.

    Entry [g, i_0, ..., i_(A-1), s] is the reward of seat s if each seat r plays the action of member i_r of group g.
    The diagonal i_0 = ... = i_(A-1) holds the rewards of the rollout.

    `key` and `deal` are the arguments of the rollout, action int32 [B, 1, A] is `Episodes.action`.
    Raises ValueError for a game of more than one turn, and for more than `MOST` joint actions of a group.
    """
    size, seats = rollout.lineup.group_size, rollout.environment.agents
    if size**seats > MOST:
        raise ValueError(
            f"{size} members and {seats} seats have {size**seats} joint actions a group, at most {MOST} are stepped: "
            "choose a smaller group_size."
        )
    state, chance = _initial_states(rollout, key, deal)
    by_member = action[:, 0].reshape(-1, size, seats)
    member = jnp.indices((size,) * seats).reshape(seats, -1).T  # [G^A, A]
    joint = by_member[:, member, jnp.arange(seats)[None]]  # [n, G^A, A]
    reward = jax.vmap(jax.vmap(_reward_function(rollout), (None, None, 0)))(state, chance, joint)
    return reward.reshape(len(by_member), *(size,) * seats, *reward.shape[2:])


@jax.named_scope(scopes.ENVIRONMENT)
def alternative_rewards(rollout: Rollout, key: jax.Array, action: jax.Array, deal: Any = None) -> jax.Array:
    """Rewards of a seat for each of its actions, with the other seats' actions fixed: float32 [B, A, N, C].

    The entry of the played action is the reward of the rollout; the entry of an illegal action is arbitrary.

    Arguments as for `crossed_rewards`. Raises ValueError for a game of more than one turn.
    """
    state, chance = _initial_states(rollout, key, deal)
    per_member = lambda x: jnp.repeat(x, rollout.lineup.group_size, 0)
    step, numbers = _reward_function(rollout), jnp.arange(rollout.environment.actions, dtype=jnp.int32)

    def of_seat(state: Any, chance: jax.Array, action: jax.Array, seat: jax.Array) -> jax.Array:
        return jax.vmap(lambda number: step(state, chance, action.at[seat].set(number))[seat])(numbers)

    of_episode = jax.vmap(jax.vmap(of_seat, (None, None, None, 0)), (0, 0, 0, None))
    seats = jnp.arange(rollout.environment.agents)
    return of_episode(jax.tree.map(per_member, state), per_member(chance), action[:, 0], seats)


def _reward_function(rollout: Rollout) -> Any:
    return lambda state, chance, action: rollout.environment.step(state, action, chance)[2]


def _initial_states(rollout: Rollout, key: jax.Array, deal: Any) -> tuple[Any, jax.Array]:
    """(initial states of the groups, chance keys of the turn of each group), [n, ...] each."""
    game = rollout.environment
    if game.turns != 1:
        raise ValueError(
            f"{type(game).__name__} has up to {game.turns} turns: other joint actions can be stepped only in games of "
            "one turn, where all members of a group stand at one state and were told the same."
        )
    group = jnp.arange(len(rollout.lineup.seats), dtype=jnp.int32)
    given = () if deal is None else (deal,)
    state, _ = jax.vmap(game.reset)(batch_keys(key, DEAL, group), group, *given)
    return state, batch_keys(key, CHANCE, group, jnp.int32(0))
