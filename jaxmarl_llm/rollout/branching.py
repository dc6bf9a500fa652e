"""Episodes that, at a turn's start, go on from where another of their group stands: partial rollouts.

What another has seen and said is copied with its caches, not computed again; what follows is the episode's own. Shapes:
G groups of N members, T turns, A seats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices.lanes import any_lane
from jaxmarl_llm.keys import BRANCH, key_for
from jaxmarl_llm.rollout.decode import LiveRows, catch_up, next_entropy
from jaxmarl_llm.rollout.dialogue import in_progress
from jaxmarl_llm.rollout.trajectory import Branches

Branch = Callable[["Standing"], jax.Array]
"""What `Arranged.branch` is: of every episode, int32 [G, N], the member of its group that it goes on from in this turn,
its own number for one that goes on from itself. A pytree, so that it can be arranged: `jax.tree_util.Partial` of a
function and arrays."""


class Standing(NamedTuple):
    """What a branch is decided by, before anybody speaks in turn `turn`."""

    key: jax.Array
    turn: jax.Array  # int32
    going: jax.Array  # bool [G, N]: not over
    entropy: jax.Array  # float32 [G, N, T, A]: of the first token of each utterance, this turn's included, before it
    branched: jax.Array  # bool [G, N, T]: in that turn the episode was copied, or became a copy
    origin: jax.Array  # int32 [G, N, T]: the member that played that turn, itself or the one it is a copy of

    @property
    def untouched(self) -> jax.Array:
        """bool [G, N]: neither a copy nor copied so far."""
        return ~self.branched.any(-1)


def by_entropy(
    standing: Standing, *, first: Any, base: Any, weight: Any, penalty: Any = 0.0, seat: int = 0
) -> jax.Array:
    """Members below `first` play on their own; the others are for branches, and as long as they are not needed play
    on their own as well. From its second turn on, whoever has taken part so far is copied with the probability

      clip(base + weight (H_t - H_first), 0, 1) max(0, 1 - penalty n)

    H_t is the entropy, in nats, of the token that `seat`, which speaks in every turn, is about to say, H_first that of
    its first utterance, n the turns in a row just before this one in which it has branched. A copy takes the place of
    the next unused member; with none left nobody branches. `weight` 0 branches by chance.

    Dong et al., Agentic Reinforced Policy Optimization (2025), https://arxiv.org/abs/2507.19849; penalty: Dong et al.,
    Agentic Entropy-Balanced Policy Optimization (2025), https://arxiv.org/abs/2510.14545, whose release counts the
    branches in a row of a question, not of an episode.
    """
    turn, entropy, members = standing.turn, standing.entropy[..., seat], jnp.arange(standing.going.shape[1])
    change = jnp.take(entropy, turn, 2) - entropy[..., 0]
    later = (jnp.arange(entropy.shape[2]) >= turn)[None, None]
    in_a_row = (standing.branched | later)[..., ::-1].astype(jnp.int32).cumprod(-1).sum(-1) - later.sum()
    chance = jnp.clip(base + weight * change, 0, 1) * jnp.maximum(0, 1 - penalty * in_a_row)
    free = (members >= first)[None] & standing.untouched
    wants = ~free & standing.going & (turn > 0) & (jax.random.uniform(standing.key, chance.shape) < chance)
    return into(free, wants)


def into(free: jax.Array, wants: jax.Array) -> jax.Array:
    """A branch: the nth free member goes on from the nth that wants a copy; both bool [G, N]."""
    nth = free.cumsum(1) - 1
    wanting = jnp.take_along_axis(jnp.argsort(~wants, 1, stable=True), jnp.maximum(nth, 0), 1)
    taken = free & (nth < wants.sum(1, keepdims=True))
    return jnp.where(taken, wanting, jnp.arange(free.shape[1])).astype(jnp.int32)


def arrays(branch: Branch | None) -> Branch | None:
    """A branch whose numbers are arrays. Raises ValueError for a function that JAX cannot see into."""
    if any(callable(leaf) for leaf in jax.tree.leaves(branch)):
        raise ValueError("A branch is a pytree that is called: jax.tree_util.Partial(by_entropy, ...).")
    return jax.tree.map(jnp.asarray, branch)


def unbranched(batch: int, turns: int, agents: int) -> Branches:
    return Branches(
        origin=jnp.broadcast_to(jnp.arange(batch, dtype=jnp.int32)[:, None], (batch, turns)),
        branched=jnp.zeros((batch, turns), bool),
        entropy=jnp.zeros((batch, turns, agents)),
    )


def go_on(rollout: Any, branch: Branch, prepared: dict, key: jax.Array, carry: tuple, branches: Branches) -> tuple:
    """The carry of `Rollout`'s loop after the branches of this turn, and their record."""
    turn, state, view, told, live, record = carry
    batch, entropy = rollout.lineup.episodes, jnp.zeros((rollout.lineup.episodes, rollout.environment.agents))
    live = dict(live)
    for name, layout in rollout.layouts.items():
        if prepared[name] is not None:
            live[name] = catch_up(layout, prepared[name], live[name], in_progress(view)[layout.episode])
            own = next_entropy(layout, prepared[name], live[name], view)
            entropy = entropy.at[layout.episode, layout.seat].set(own)
    branches = branches.replace(entropy=branches.entropy.at[:, turn].set(entropy))
    members = rollout.lineup.group_size
    apart = lambda x: x.reshape(-1, members, *x.shape[1:])  # noqa: E731
    start = jnp.arange(0, batch, members, dtype=jnp.int32)[:, None]
    standing = Standing(
        key=key_for(key, BRANCH, turn),
        turn=turn,
        going=apart(in_progress(view)),
        entropy=apart(branches.entropy),
        branched=apart(branches.branched),
        origin=apart(branches.origin) - start[..., None],
    )
    member = branch(standing)
    if jnp.shape(member) != (batch // members, members):
        raise ValueError(f"A branch names a member for each of {[batch // members, members]}, got {jnp.shape(member)}.")
    source = (jnp.clip(member, 0, members - 1).astype(jnp.int32) + start).ravel()
    copies = source != jnp.arange(batch)
    copied = jnp.zeros((batch,), bool).at[source].max(copies)

    def copy(carry: tuple) -> tuple:
        _, of_episode, live = carry
        rows = {name: rollout.row_of[name] for name in live}
        taken = {
            name: _take(own, jnp.asarray(rows[name])[source[layout.episode], layout.seat])
            for (name, own), layout in zip(live.items(), rollout.layouts.values(), strict=True)
        }
        return jnp.zeros_like(copies), jax.tree.map(lambda x: x[source], of_episode), taken

    # a loop that runs once or not at all: a `cond` would copy every cache
    begun = copies, (state, view, told, record, branches), live
    _, (state, view, told, record, branches), live = jax.lax.while_loop(lambda carry: any_lane(carry[0]), copy, begun)
    played = jnp.arange(branches.origin.shape[1]) < turn
    branches = branches.replace(
        origin=jnp.where(played, branches.origin, jnp.arange(batch, dtype=jnp.int32)[:, None]),
        branched=branches.branched.at[:, turn].set(copies | copied),
    )
    return (turn, state, view, told, live, record), branches


def _take(live: LiveRows, row: jax.Array) -> LiveRows:
    """The rows `row` int32 [R]; what was computed so far stays counted where it was computed."""
    prompt = None if live.cache is None else live.cache.prompt
    bare = live if live.cache is None else live.replace(cache=live.cache.replace(prompt=None))
    taken = jax.tree.map(lambda x: x[row] if jnp.ndim(x) else x, bare).replace(used=live.used)
    return taken if taken.cache is None else taken.replace(cache=taken.cache.replace(prompt=prompt))
