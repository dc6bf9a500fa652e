"""Partial rollouts: at the start of a turn, an episode may become a copy of another episode of its group.

The copy includes game state, rows and caches, so nothing is computed again. Both episodes then continue independently.
Shapes: G groups of N members, T turns, A seats; B = G N episodes.
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

Branch = Callable[["BranchState"], jax.Array]
"""A function that chooses the copies of a turn, the type of `Arranged.branch`: BranchState -> int32 [G, N].

The result is, for every episode, the member of its group that it continues; its own number means no copy. A branch is a
pytree, since it is an argument of the compiled program: `jax.tree_util.Partial` of a function and arrays."""


class BranchState(NamedTuple):
    """The inputs of a branch, before the first utterance of turn `turn`."""

    key: jax.Array
    turn: jax.Array  # int32
    going: jax.Array  # bool [G, N]: the game is in progress
    entropy: jax.Array  # float32 [G, N, T, A], before the first token of each utterance, this turn included
    branched: jax.Array  # bool [G, N, T]: the episode was copied or became a copy in that turn
    origin: jax.Array  # int32 [G, N, T]: the member that played that turn; after a copy, the copied member

    @property
    def untouched(self) -> jax.Array:
        """bool [G, N]: the episode is no copy and was never copied."""
        return ~self.branched.any(-1)


def by_entropy(
    state: BranchState,
    *,
    first: Any,
    base: Any,
    weight: Any,
    penalty: Any = 0.0,
    seat: int = 0,
    due: Any = None,
    lag: Any = 0,
) -> jax.Array:
    """Branches where the entropy of a seat's next token has risen since its first utterance: int32 [G, N].

    Members below `first`, a number or one for each group, int32 [G, 1], are never replaced. The other members are free
    until they become copies or are copied. From its second turn on, a member that is not free is copied with the
    probability

        clip(base + weight (H_t - H_first), 0, 1) max(0, 1 - penalty n)

    H_t is the entropy, in nats, of the next token of `seat`, which must speak in every turn. H_first is the entropy
    before its first utterance, and n counts the turns just before this one with a branch. A copy replaces the next free
    member; without free members there is no branch. With `weight` 0 the probability does not depend on entropy. With
    `due` bool [T] or longer, e.g. the turns after replies of a tool, other turns neither branch nor count. With a `lag`
    H_t is the entropy of so many turns before, the first turn's at least.

    Dong et al., Agentic Reinforced Policy Optimization (2025), https://arxiv.org/abs/2507.19849. Its release copies an
    episode before the reply is read, so its entropy is that of one reply before.
    Penalty: Dong et al., Agentic Entropy-Balanced Policy Optimization (2025), https://arxiv.org/abs/2510.14545. Its
    release counts consecutive branches of a question, not of an episode.
    """
    turn, entropy, members = state.turn, state.entropy[..., seat], jnp.arange(state.going.shape[1])
    turns = entropy.shape[2]
    counts = jnp.ones(turns, bool) if due is None else jnp.asarray(due)[:turns]
    seen = jnp.maximum(turn - jnp.asarray(lag, jnp.int32), 0)
    change = jnp.take(entropy, seen, 2) - entropy[..., 0]
    earlier = ((jnp.arange(turns) < turn) & counts)[None, None]
    in_a_row = ((state.branched | ~earlier)[..., ::-1].astype(jnp.int32).cumprod(-1)[..., ::-1] * earlier).sum(-1)
    chance = jnp.clip(base + weight * change, 0, 1) * jnp.maximum(0, 1 - penalty * in_a_row)
    free = (members[None] >= first) & state.untouched
    wants = ~free & state.going & (turn > 0) & counts[turn] & (jax.random.uniform(state.key, chance.shape) < chance)
    return fill_free(free, wants)


def first_by_probe(root: jax.Array, replies: jax.Array, members: int, *, sensitivity: Any = 0.5) -> jax.Array:
    """The members of each group that begin at the first turn, from a probe's entropies: int32 [G, 1] in 1 to N.

        min(floor(N sigmoid(sensitivity (root - replies))) + 1, N)

    `root` and `replies` float32 [G] are the probe's entropy before its first utterance and its mean entropy after
    replies of a tool. The other members are left for branches, as `first` of `by_entropy`.

    Dong et al., Agentic Entropy-Balanced Policy Optimization (2025), https://arxiv.org/abs/2510.14545; the rounding is
    that of its release, whose mean includes the first utterance.
    """
    share = jax.nn.sigmoid(sensitivity * (root - replies))
    return jnp.clip(jnp.floor(members * share) + 1, 1, members).astype(jnp.int32)[:, None]


def at_turns(state: BranchState, *, at: Any, source: Any) -> jax.Array:
    """Vines from given turns: before turn at[i] member i becomes a copy of member source[i], int32 [G, N].

    `at` and `source` are int32 [N] or longer. A game that is over is not copied. An `at` of 0 or less is
    never, since all members of a group begin in the same state. A member that is copied should not become a copy later.

    Schulman et al., Trust Region Policy Optimization (2015), https://arxiv.org/abs/1502.05477, section 5.2.
    """
    members = state.going.shape[1]
    at, source = jnp.asarray(at)[None, :members], jnp.asarray(source)[:members]
    vine = (at == state.turn) & (at > 0) & state.going[:, source]
    return jnp.where(vine, source[None], jnp.arange(members)[None]).astype(jnp.int32)


def fill_free(free: jax.Array, wants: jax.Array) -> jax.Array:
    """A branch: the nth free member becomes a copy of the nth member that wants a copy; both bool [G, N]."""
    nth = free.cumsum(1) - 1
    wanting = jnp.take_along_axis(jnp.argsort(~wants, 1, stable=True), jnp.maximum(nth, 0), 1)
    taken = free & (nth < wants.sum(1, keepdims=True))
    return jnp.where(taken, wanting, jnp.arange(free.shape[1])).astype(jnp.int32)


def branch_arrays(branch: Branch | None) -> Branch | None:
    """The branch with its numbers as arrays. Raises ValueError for a function that is no pytree."""
    if any(callable(leaf) for leaf in jax.tree.leaves(branch)):
        raise ValueError("A branch is a pytree that is called: jax.tree_util.Partial(by_entropy, ...).")
    return jax.tree.map(jnp.asarray, branch)


def empty_branches(batch: int, turns: int, agents: int) -> Branches:
    """The record of episodes before the first turn, for B = batch."""
    return Branches(
        origin=jnp.broadcast_to(jnp.arange(batch, dtype=jnp.int32)[:, None], (batch, turns)),
        branched=jnp.zeros((batch, turns), bool),
        entropy=jnp.zeros((batch, turns, agents)),
    )


def apply_branch(
    rollout: Any, branch: Branch, prepared: dict, key: jax.Array, carry: tuple, branches: Branches
) -> tuple:
    """Applies the branch of this turn to the carry of `Rollout`'s loop; returns the new carry and the new record."""
    turn, state, view, told, live, record = carry
    batch, entropy = rollout.lineup.episodes, jnp.zeros((rollout.lineup.episodes, rollout.environment.agents))
    live = dict(live)
    for name, layout in rollout.layouts.items():
        if prepared[name] is not None:
            live[name] = catch_up(layout, prepared[name], live[name], in_progress(view)[layout.episode])
            of_rows = next_entropy(layout, prepared[name], live[name], view)
            entropy = entropy.at[layout.episode, layout.seat].set(of_rows)
    branches = branches.replace(entropy=branches.entropy.at[:, turn].set(entropy))
    members = rollout.lineup.group_size
    by_group = lambda x: x.reshape(-1, members, *x.shape[1:])
    start = jnp.arange(0, batch, members, dtype=jnp.int32)[:, None]
    branch_state = BranchState(
        key=key_for(key, BRANCH, turn),
        turn=turn,
        going=by_group(in_progress(view)),
        entropy=by_group(branches.entropy),
        branched=by_group(branches.branched),
        origin=by_group(branches.origin) - start[..., None],
    )
    member = branch(branch_state)
    if jnp.shape(member) != (batch // members, members):
        raise ValueError(f"A branch names a member for each of {[batch // members, members]}, got {jnp.shape(member)}.")
    source = (jnp.clip(member, 0, members - 1).astype(jnp.int32) + start).ravel()
    copies = source != jnp.arange(batch)
    copied = jnp.zeros((batch,), bool).at[source].max(copies)

    def copy(carry: tuple) -> tuple:
        _, of_episode, live = carry
        row_of = {name: rollout.row_of[name] for name in live}
        taken = {
            name: _take_rows(rows_of_set, jnp.asarray(row_of[name])[source[layout.episode], layout.seat])
            for (name, rows_of_set), layout in zip(live.items(), rollout.layouts.values(), strict=True)
        }
        return jnp.zeros_like(copies), jax.tree.map(lambda x: x[source], of_episode), taken

    # a loop of at most one iteration: a `cond` would copy every cache
    begun = copies, (state, view, told, record, branches), live
    _, (state, view, told, record, branches), live = jax.lax.while_loop(lambda carry: any_lane(carry[0]), copy, begun)
    played = jnp.arange(branches.origin.shape[1]) < turn
    branches = branches.replace(
        origin=jnp.where(played, branches.origin, jnp.arange(batch, dtype=jnp.int32)[:, None]),
        branched=branches.branched.at[:, turn].set(copies | copied),
    )
    return (turn, state, view, told, live, record), branches


def _take_rows(live: LiveRows, row: jax.Array) -> LiveRows:
    """The rows with the numbers `row` int32 [R]; counts of computed tokens stay with the rows that computed them."""
    prompt = None if live.cache is None else live.cache.prompt
    bare = live if live.cache is None else live.replace(cache=live.cache.replace(prompt=None))
    taken = jax.tree.map(lambda x: x[row] if jnp.ndim(x) else x, bare).replace(used=live.used)
    return taken if taken.cache is None else taken.replace(cache=taken.cache.replace(prompt=prompt))
