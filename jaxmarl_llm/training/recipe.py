"""What a method is: a game, a team, a credit, a loss and their settings. `trainer` runs it.

A method is a `Recipe`, an ablation a dict of them, {arm: replace(base, ...)}. Everything that a recipe holds is fixed
when its programs are compiled, but for `hparams`: those are traced, so that arms that differ in numbers alone share one
program with all their seeds.

Shapes: B episodes, T turns, A seats; of one family R rows and M spoken tokens a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.models.config import Remat
from jaxmarl_llm.rl import losses, rewards
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout import policy
from jaxmarl_llm.rollout.policy import PLAIN, Sampling
from jaxmarl_llm.rollout.team import strings
from jaxmarl_llm.rollout.trajectory import Episodes, Rows, SampledTokens
from jaxmarl_llm.text.tokenizers import SymbolTokenizer

if TYPE_CHECKING:
    from jaxmarl_llm.training.trainer import Trainer

Hparams = Mapping[str, jax.Array]


class Experience(NamedTuple):
    """What credit is computed from."""

    episodes: Episodes
    rows: dict[str, Rows]  # by family
    sampled: dict[str, SampledTokens]  # by family
    token_value: dict[
        str, jax.Array
    ]  # by family, float32 [R, M]: what the critic expects before each token; 0 without one
    turn_value: jax.Array  # float32 [B, T, A]: the same before the first token of each turn
    groups: int

    @property
    def acts(self) -> tuple[jax.Array, jax.Array, int]:
        """What follows the reward in the arguments of a preset."""
        return self.episodes.acted, self.episodes.group, self.groups


class Advantages(NamedTuple):
    """By turn, [B, T, A], or by token, [R, M] for each family."""

    advantage: jax.Array | dict[str, jax.Array]
    value_target: jax.Array | dict[str, jax.Array] | None = None  # what the critic should have expected
    state: Any = ()  # what the credit of the next update needs of this one's


class Batch(struct.PyTreeNode):
    """What a policy said, and what came of it; its loss counts the tokens `where`."""

    sampled: SampledTokens
    advantage: jax.Array  # float32 [R, M]
    value_target: jax.Array  # float32 [R, M], of the critic
    old_value: jax.Array  # float32 [R, M], by the critic when the game was played
    mask: jax.Array  # bool [R, M]
    reference_logp: jax.Array | None = (
        None  # float32 [R, M], log-probabilities before training, if the recipe asks for them
    )


AdvantageFn = Callable[[Experience, Hparams, Any], Advantages]
Loss = Callable[[policy.Scores, Batch, Hparams], losses.Loss]


def clipped(scores: policy.Scores, batch: Batch, hparams: Hparams) -> losses.Loss:
    """PPO's clipped surrogate, less the weighted entropy, plus the weighted error of the critic if there is one."""
    total, metrics = losses.ppo_clip(
        scores.logp, batch.sampled.behaviour_logp, batch.advantage, batch.mask,
        clip_low=hparams["clip_low"], clip_high=hparams["clip_high"],
    )  # fmt: skip
    bonus, more = losses.entropy_bonus(scores.entropy, batch.mask)
    metrics |= more
    total = Mean(total.sum + hparams["entropy"] * bonus.sum, total.count)
    if scores.value is not None:
        error, more = losses.value_squared(scores.value, batch.value_target, batch.mask)
        total = Mean(total.sum + hparams["value"] * error.sum, total.count)
        metrics |= more
    return total, metrics


def preset(
    played: Experience, hparams: Hparams, memory: Any, *, of: Callable, traced: tuple[str, ...] = (), **options: Any
) -> Advantages:
    """The credit of a preset of `credit.py` that needs rewards and acts alone, to be completed with `partial`: of the
    sum of the reward's components, with these options and the numbers named in `traced`. For one that takes roles, a
    memory or weights as well, a recipe writes its own (`spiral.running`, `mars.by_turn`)."""
    reward = rewards.weigh(played.episodes.reward, jnp.ones(played.episodes.reward.shape[-1]))
    return Advantages(of(reward, *played.acts, **options, **{name: hparams[name] for name in traced}))


def returns(episodes: Episodes) -> dict[str, jax.Array]:
    """Mean return of an episode and seat, components added."""
    return {"return": episodes.reward.sum((1, 3)).mean()}


SNAPSHOT = "snapshots"
DEFAULT_HPARAMS = {"learning_rate": 1e-3, "entropy": 0.01, "value": 0.5, "clip_low": 0.2, "clip_high": 0.2}
"""A policy may have a rate of its own, "learning_rate/NAME"."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    game: Any
    seats: tuple[tuple[str, ...], ...]
    """Line-ups in turn: group g plays seats[g % len(seats)]. Who is no script of the game learns, but for
    `snapshots`."""
    advantage: AdvantageFn
    loss: Loss = clipped
    hparams: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Beside or instead of NUMBERS; credit and loss are given all of them."""
    init_state: Callable[[], Any] = tuple
    """What the first credit is given."""
    critic: bool = False
    """Every policy has a value head on its trunk."""
    reference: bool = False
    """The loss is given what the policies said before training: a real model's base, without its adapter."""
    warm_start: tuple[tuple[str, ...], ...] = ()
    """Line-ups of scripts whose play a tiny policy is first trained to imitate, each in the seats that it will take."""
    warm_start_updates: int = 100
    """Updates of that."""
    sampling: Sampling = PLAIN
    """How its policies speak, where nothing else is said of them."""
    masked: bool = True
    """Only legal answers can be said; otherwise the game must say what an illegal one does (wrappers.Illegal)."""
    tokenizer: Callable[[Any], Any] = lambda game: SymbolTokenizer(strings(game))
    """Of a tiny policy, made from the game."""
    budget: int | tuple[int, ...] = 8
    """Most tokens of an utterance, of all grammars or each."""
    updates: int = 200
    groups: int = 16
    """Deals an update."""
    group_size: int = 8
    """Episodes of a deal."""
    epochs: int = 1
    minibatches: int = 1
    grad_accumulation: int = 1
    max_grad_norm: float = 1.0
    """Bound of each policy's gradient norm."""
    buckets: int = 1
    """Widths at which rows are trained, 1/n, 2/n ... of the longest possible: each micro-batch takes the least that
    holds it, with `grad_accumulation` > 1 of rows of like width, and every width is compiled. Of no use to tiny
    policies side by side: they compute them all."""
    remat: Remat = "none"
    """What the backward pass computes again: nothing, all but matrix products, or everything."""
    measure: Callable[[Episodes], dict[str, jax.Array]] = returns
    """Metrics of what was played, a scalar each."""
    snapshots: int = 0
    """Snapshots kept of the only learner: `snapshots` in a line-up is one of them, drawn anew for every update."""
    snapshot_every: int = 10
    """Updates between two of them."""
    evaluate: Callable[[Trainer], Callable[[dict], dict[str, float]]] | None = None
    """Made once; then of what one lane plays with, by family: metrics that need the host."""
    eval_every: int = 50
    """Updates between two judgements; the last is always judged."""
    pretrained: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings that are different for a real model; of `hparams`, those that are."""

    def check(self) -> None:
        """Raises ValueError for settings that cannot work."""
        counts = (
            "updates",
            "groups",
            "group_size",
            "epochs",
            "minibatches",
            "grad_accumulation",
            "eval_every",
            "snapshot_every",
            "buckets",
        )
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.groups % len(self.seats):
            raise ValueError(
                f"{self.groups} groups do not divide over the {len(self.seats)} line-ups: choose a multiple."
            )
        if bool(self.snapshots) != any(SNAPSHOT in seats for seats in self.seats):
            raise ValueError(f"{self.snapshots} past selves are kept, but the line-ups are {self.seats}.")
        if self.snapshots and len(self.learners) > 1:
            raise ValueError(f"Past selves are those of one learner, but {', '.join(self.learners)} learn.")

    @property
    def structure(self) -> Recipe:
        """The recipe but for its numbers: arms that agree in it share a program."""
        return dataclasses.replace(self, hparams=dict.fromkeys(self.all_hparams, 0.0))

    @property
    def all_hparams(self) -> dict[str, float]:
        return {**DEFAULT_HPARAMS, **self.hparams}

    @property
    def learners(self) -> tuple[str, ...]:
        names = dict.fromkeys(name for seats in self.seats for name in seats)
        return tuple(name for name in names if name not in self.game.scripts and name != SNAPSHOT)


def for_pretrained(recipe: Recipe) -> Recipe:
    """The same recipe, without past selves, as `pretrained` says, and at a size at which a 135M model makes an update
    in well under a minute on two CPU cores."""
    own = {name: x for name, x in recipe.pretrained.items() if name != "hparams"}
    seats = own.get("seats", tuple(dict.fromkeys(seats for seats in recipe.seats if SNAPSHOT not in seats)))
    if not seats:
        raise ValueError(
            "In every line-up somebody is a past self, which a real model has none of: give real['seats']."
        )
    few: dict[str, Any] = {"groups": len(seats) * max(1, 2 // len(seats)), "group_size": 4, "updates": 3}
    few |= {
        "epochs": 1,
        "minibatches": 1,
        "grad_accumulation": 1,
        "remat": "dots",
        "warm_start": (),
        "snapshots": 0,
        "evaluate": None,
    }
    hparams = {name: x for name, x in recipe.hparams.items() if not name.startswith("learning_rate")}
    hparams |= {"learning_rate": 3e-4, **recipe.pretrained.get("hparams", {})}
    return dataclasses.replace(recipe, **{**few, **own, "seats": seats, "hparams": hparams})
