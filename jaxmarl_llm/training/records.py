"""The records of training: the input and output of an estimator, the arrangement of games, and the state of a run.

Shapes: B episodes, T turns, A seats; of one policy set R rows and M sampled tokens a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from flax import struct

from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.losses import Hparams
from jaxmarl_llm.rollout.branching import Branch
from jaxmarl_llm.rollout.trajectory import Episodes, Rows, SampledTokens
from jaxmarl_llm.training.update import Learners


class Snapshots(NamedTuple):
    """The number of snapshots kept per learner, where the newest replaces the oldest, and the updates between two."""

    kept: int
    every: int = 10


LORA = Lora(32, 64.0, ("*",))
NEW = {"described": "if changed"}  # metadata of a field that is younger than settings of published results
WIDTHS, LAYERS = range(8, 1025, 8), range(1, 33)


@dataclasses.dataclass(frozen=True)
class TinySize:
    """The size of a tiny policy: the width of its layers, which have 4 heads and an MLP of twice the width, and their
    number. Raises ValueError for a size that cannot work."""

    width: int = 32
    layers: int = 2

    def __post_init__(self):
        if self.width not in WIDTHS or self.layers not in LAYERS:
            raise ValueError(
                f"A tiny policy has a width of 8 to {WIDTHS[-1]}, a multiple of 8, and 1 to {LAYERS[-1]} layers, got "
                f"width {self.width!r} and {self.layers!r} layers."
            )


TINY_SIZE = TinySize()


@dataclasses.dataclass(frozen=True)
class Common:
    """A warm start of tiny policies: one policy imitates the scripts of these line-ups in all seats that learners take.
    Each learner begins as its copy."""

    line_ups: tuple[tuple[str, ...], ...]
    group_size: int = 8  # episodes of a group; an update imitates at least 8 groups


class Arranged(NamedTuple):
    """The arrangement of an update's games, beside the recipe's own settings."""

    deal: Any = None  # leaves [groups, ...]; the game's `reset` takes its group's entry as third argument
    turns: jax.Array | None = None  # int32 [groups]: games end after so many turns; a scalar applies to all groups
    snapshot: jax.Array | None = None  # int32: index of the snapshot that plays, 0 the first; None: a random one
    branch: Branch | None = None  # the episodes that continue another's beginning, turn by turn


class Given(dict):
    """A recipe's hparams as estimator and loss receive them. A missing name raises a ValueError with the known
    names."""

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"The recipe has no hparam {name!r}, but {', '.join(self)}: put it into Recipe.hparams.")


class Experience(NamedTuple):
    """The input of an advantage estimator.

    `score(policy_set, weights=..., rows=..., sampled=...)` gives the `Scores` of a policy set's sampled tokens, [R, M].
    By default it scores the batch's tokens under the weights that played; gradients flow through given weights.
    """

    episodes: Episodes
    """reward float32 [B, T, A, C]; total_reward float32, acted bool, action int32 and role int32, each [B, T, A].
    For all fields see `trajectory.Episodes`."""
    rows: dict[str, Rows]  # by policy set
    sampled: dict[str, SampledTokens]  # by policy set
    token_value: dict[
        str, jax.Array
    ]  # by policy set, float32 [R, M]: the critic's value before each token, 0 without one
    turn_value: jax.Array  # float32 [B, T, A]: the same before the first token of each turn
    groups: int
    learns: jax.Array  # bool [B, A], true for a seat of a policy that learns
    key: jax.Array  # this update's, for the estimator's own randomness
    arranged: Arranged  # the result of `Recipe.arrange`
    reference_logp: dict[str, jax.Array]  # by policy set, float32 [R, M]; {} unless the recipe asks for a reference
    score: Callable[..., losses.Scores]
    left_out: Mapping[str, jax.Array]  # metrics of episodes with rewards that are not finite

    @property
    def acts(self) -> tuple[jax.Array, jax.Array, int]:
        """(acted, group, groups): the arguments of an estimator after the reward."""
        return self.episodes.acted, self.episodes.group, self.groups

    @property
    def learning_acts(self) -> tuple[jax.Array, jax.Array, int]:
        """`acts` for the seats that learn alone; estimators use it for statistics over all learning seats."""
        return self.episodes.acted & self.learns[:, None], self.episodes.group, self.groups


ByTurnOrToken = jax.Array | dict[str, jax.Array]


class Advantages(NamedTuple):
    """The output of an estimator; arrays are by turn, [B, T, A], or by token, {policy set: [R, M]}."""

    advantage: ByTurnOrToken
    value_target: ByTurnOrToken | None = None  # None: the critic's own values, so that it learns nothing
    state: Any = ()  # the estimator's, after this update
    metrics: Mapping[str, jax.Array] = {}  # scalars, reported
    hparams: Mapping[str, jax.Array] = {}  # added to the recipe's or replacing them, in this update's loss
    extra: Mapping[str, ByTurnOrToken] = {}  # further arrays for the loss, as `Batch.extra`
    trained: ByTurnOrToken | None = None  # bool: False leaves tokens out of the loss
    remember: Callable[[Any, dict[str, jax.Array]], Any] | None = None
    """(state, metrics of the update) -> state: for an estimator that adapts to metrics of the loss."""


AdvantageFn = Callable[[Experience, Hparams, Any], Advantages]


class Run(struct.PyTreeNode):
    """The state of one run, carried from update to update."""

    learners: Learners  # weights and optimiser state by policy, number of skipped updates
    state: Any  # the estimator's, with additions of the method's own step; from `Recipe.init_state`
    snapshots: dict = struct.field(default_factory=dict)  # by learner, weights at earlier updates [snapshots, ...]
    averages: dict = struct.field(default_factory=dict)  # by learner, the exponential average of its weights
    initial: dict = struct.field(default_factory=dict)  # by learner, the policy's weights before training
