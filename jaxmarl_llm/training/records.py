"""The records of training: what an estimator sees and returns, how games are arranged, and what a run carries.

Shapes: B episodes, T turns, A seats; of one policy set R rows and M sampled tokens a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from flax import struct

from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.losses import Hparams
from jaxmarl_llm.rollout.branching import Branch
from jaxmarl_llm.rollout.trajectory import Episodes, Rows, SampledTokens
from jaxmarl_llm.training.update import Learners


class Snapshots(NamedTuple):
    """How many snapshots of each learner are kept, the newest in place of the oldest; and the updates between two."""

    kept: int
    every: int = 10


@dataclasses.dataclass(frozen=True)
class Common:
    """A warm start of tiny policies: one policy imitates the scripts of these line-ups in all seats that they take, and
    each of them begins as its copy."""

    line_ups: tuple[tuple[str, ...], ...]
    group_size: int = 8  # of the 8 groups or more that an update imitates


class Arranged(NamedTuple):
    """What an update is played with, beside the recipe's own settings."""

    deal: Any = None  # a tree of leaves [groups, ...]: each group's own is the third argument of the game's `reset`
    turns: jax.Array | None = None  # int32 [groups]: games are cut off after so many turns; a number is all groups'
    snapshot: jax.Array | None = None  # int32: which snapshot plays, 0 the first of all; None: a random one
    branch: Branch | None = None  # which episodes go on from another's beginning, turn by turn


class Given(dict):
    """A recipe's hparams as estimator and loss are given them: one that is missing is named in a sentence."""

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"The recipe has no hparam {name!r}, but {', '.join(self)}: put it into Recipe.hparams.")


class Experience(NamedTuple):
    """What an advantage estimator sees.

    `score(policy_set, weights=..., rows=..., sampled=...)` gives the `Scores` of a policy set's sampled tokens [R, M],
    under the weights that played and of what was played unless others are given; gradients flow through given weights.
    """

    episodes: Episodes
    rows: dict[str, Rows]  # by policy set
    sampled: dict[str, SampledTokens]  # by policy set
    token_value: dict[
        str, jax.Array
    ]  # by policy set, float32 [R, M]: the critic's value before each token, 0 without one
    turn_value: jax.Array  # float32 [B, T, A]: the same before the first token of each turn
    groups: int
    learns: jax.Array  # bool [B, A], a seat is taken by a policy that learns
    key: jax.Array  # of this update, for chance of the estimator's own
    arranged: Arranged  # what `Recipe.arrange` gave
    reference_logp: dict[str, jax.Array]  # by policy set, float32 [R, M]; {} unless the recipe asks for a reference
    score: Callable[..., losses.Scores]
    left_out: Mapping[str, jax.Array]  # metrics of episodes that paid what is not finite

    @property
    def acts(self) -> tuple[jax.Array, jax.Array, int]:
        """The arguments of an estimator that follow the reward: acted, group, groups."""
        return self.episodes.acted, self.episodes.group, self.groups

    @property
    def learning_acts(self) -> tuple[jax.Array, jax.Array, int]:
        """The same, of the seats that learn: for statistics over all of them."""
        return self.episodes.acted & self.learns[:, None], self.episodes.group, self.groups


ByTurnOrToken = jax.Array | dict[str, jax.Array]


class Advantages(NamedTuple):
    """What an estimator returns; arrays by turn, [B, T, A], or by token, {policy set: [R, M]}."""

    advantage: ByTurnOrToken
    value_target: ByTurnOrToken | None = None  # None: what the critic said, so that it learns nothing
    state: Any = ()  # of the estimator, after this update
    metrics: Mapping[str, jax.Array] = {}  # scalars, reported
    hparams: Mapping[str, jax.Array] = {}  # beside or instead of the recipe's, in the loss of this update
    extra: Mapping[str, ByTurnOrToken] = {}  # further arrays for the loss, as `Batch.extra`
    trained: ByTurnOrToken | None = None  # bool: False leaves tokens out of the loss
    remember: Callable[[Any, dict[str, jax.Array]], Any] | None = None
    """(state, metrics of the update) -> state: for an estimator that goes by what the loss measured."""


AdvantageFn = Callable[[Experience, Hparams, Any], Advantages]


class Run(struct.PyTreeNode):
    """What one run carries from update to update."""

    learners: Learners
    state: Any  # of the advantage estimator, and what a method's own step adds: `Recipe.init_state` makes it
    snapshots: dict = struct.field(default_factory=dict)  # by learner, weights at earlier updates [snapshots, ...]
    averages: dict = struct.field(default_factory=dict)  # by learner, the exponential average of its weights
    initial: dict = struct.field(default_factory=dict)  # by learner, the policy's weights before training
