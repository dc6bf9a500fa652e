"""What the games of a batch would have paid for other joint actions: the rules are stepped again, nothing is decoded.

A state is a pure value and chance is a key, so that the state in which a group began is dealt again, bit for bit, and
every other joint action meets the same chance in it. This holds for games of one turn: all members of a group then
stand at one state and were told the same. After that they do not, and their words could have been others.
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
"""Joint actions of a group: a table of more is refused."""


@jax.named_scope(scopes.ENVIRONMENT)
def crossed_rewards(rollout: Rollout, key: jax.Array, action: jax.Array, deal: Any = None) -> jax.Array:
    """float32 [n, G, ..., G, A, C], one axis of G for each seat: entry [g, i_0, ..., i_(A-1), s] is what seat s is paid
    if each seat r plays what member i_r of group g played. The diagonal i_0 = ... = i_(A-1) is what was paid.

    `key` and `deal` are those that the rollout was given, action int32 [B, 1, A] is `Episodes.action`.
    Raises ValueError for a game of more than one turn, and for more than `MOST` joint actions of a group.
    """
    size, seats = rollout.lineup.group_size, rollout.environment.agents
    if size**seats > MOST:
        raise ValueError(
            f"{size} members and {seats} seats have {size**seats} joint actions a group, at most {MOST} are stepped: "
            "choose a smaller group_size."
        )
    state, chance = _start(rollout, key, deal)
    own = action[:, 0].reshape(-1, size, seats)
    member = jnp.indices((size,) * seats).reshape(seats, -1).T  # [G^A, A]
    joint = own[:, member, jnp.arange(seats)[None]]  # [n, G^A, A]
    paid = jax.vmap(jax.vmap(_paid(rollout), (None, None, 0)))(state, chance, joint)
    return paid.reshape(len(own), *(size,) * seats, *paid.shape[2:])


@jax.named_scope(scopes.ENVIRONMENT)
def alternative_rewards(rollout: Rollout, key: jax.Array, action: jax.Array, deal: Any = None) -> jax.Array:
    """float32 [B, A, N, C]: what a seat is paid if it plays each of the actions while the others' actions stay; the
    entry of its own action is what was paid, that of an action that is not legal may be anything.

    Arguments as for `crossed_rewards`. Raises ValueError for a game of more than one turn.
    """
    state, chance = _start(rollout, key, deal)
    members = lambda x: jnp.repeat(x, rollout.lineup.group_size, 0)  # noqa: E731
    step, numbers = _paid(rollout), jnp.arange(rollout.environment.actions, dtype=jnp.int32)

    def of_seat(state: Any, chance: jax.Array, action: jax.Array, seat: jax.Array) -> jax.Array:
        return jax.vmap(lambda number: step(state, chance, action.at[seat].set(number))[seat])(numbers)

    of_episode = jax.vmap(jax.vmap(of_seat, (None, None, None, 0)), (0, 0, 0, None))
    seats = jnp.arange(rollout.environment.agents)
    return of_episode(jax.tree.map(members, state), members(chance), action[:, 0], seats)


def _paid(rollout: Rollout) -> Any:
    return lambda state, chance, action: rollout.environment.step(state, action, chance)[2]


def _start(rollout: Rollout, key: jax.Array, deal: Any) -> tuple[Any, jax.Array]:
    """The states in which the groups began and the keys of their turn's chance, [n, ...] each."""
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
