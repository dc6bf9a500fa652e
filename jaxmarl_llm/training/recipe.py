"""A method as a recipe: a game, line-ups, an advantage estimator, a loss and their settings. `trainer` runs it.

A method is a `Recipe`, an ablation a dict of recipes, {arm: replace(base, ...)}. Only `hparams` and the options of
`choices` are traced; all else is fixed at compilation. Arms that differ in these alone share one program with all
seeds.

Shapes: B episodes, T turns, A seats; of one policy set R rows and M sampled tokens a row.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.bridges.python_games import HostGame
from jaxmarl_llm.environments.check import check_learners, check_object
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.models.config import Remat
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.choices import Choices, Option, check_choices
from jaxmarl_llm.rl.losses import Hparams
from jaxmarl_llm.rollout.policy import PLAIN, Sampling, Scorer, Shaping
from jaxmarl_llm.rollout.team import PolicySet, strings
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.estimator import check_advantage
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.optimiser import check_hparams, check_optimiser
from jaxmarl_llm.training.records import LORA, NEW, TINY_SIZE, AdvantageFn, Arranged, Common, Snapshots, TinySize
from jaxmarl_llm.training.update import Optimiser, OptimiserFn

SNAPSHOT, INITIAL, AVERAGE = "snapshot", "initial", "average"
"""Prefixes of the names of past selves. Player snapshot/NAME has a learner's weights of an earlier update, initial/NAME
its weights before training. Player average/NAME has their exponential average (hparam `average`: the share of the old
value). With a single learner the prefix alone is a name."""
FROZEN = "policy"
"""Prefix of frozen policies: player policy/DIRECTORY is a saved policy, never trained; also a key of `Parts.base`."""
DEFAULT_BUDGET = 8
"""The most tokens of an utterance, unless a recipe says otherwise."""
Schedule = Callable[[int], Any]  # the number of an update -> the value of an hparam in it
DEFAULT_HPARAMS = {"learning_rate": 1e-3, "entropy": 0.01, "value": 0.5, "clip_low": 0.2, "clip_high": 0.2}
"""The hparam "learning_rate/NAME" gives one policy its own rate."""


def no_state(parts: Parts, key: jax.Array) -> tuple[()]:
    """The state of an estimator without state."""
    return ()


def mean_return(episodes: Episodes) -> dict[str, jax.Array]:
    """Mean return over episodes and seats, with the reward's components added. Episodes without an act do not count:
    they were left out."""
    return {"return": mean_of_kept(episodes, episodes.reward.sum((1, 3)))}


def component_returns(episodes: Episodes, /, **components: int) -> dict[str, jax.Array]:
    """Mean return over episodes and seats of single components of the reward: {metric: index of the component}. Raises
    ValueError for an index out of range."""
    return _means(episodes, episodes.reward, components, "components")


def measure_totals(episodes: Episodes, /, **measures: int) -> dict[str, jax.Array]:
    """Mean total over episodes and seats of single measures, which are not paid: {metric: index of the measure}. Raises
    ValueError for an index out of range."""
    return _means(episodes, episodes.measured, measures, "measures")


def _means(episodes: Episodes, given: jax.Array | None, columns: dict[str, int], kind: str) -> dict[str, jax.Array]:
    count = 0 if given is None else given.shape[-1]
    for name, i in columns.items():
        if not 0 <= i < count:  # JAX would clamp the index
            raise ValueError(f"{name} is at index {i}, and the game has {count} {kind}, from 0 on.")
    return {} if given is None else {name: mean_of_kept(episodes, given[..., i].sum(1)) for name, i in columns.items()}


def always(hparams: Hparams, state: Any, key: jax.Array, number: jax.Array, *, deal: Any) -> Arranged:
    """An arrangement with the same deal for all groups in all updates: `arrange=partial(always, deal=...)`."""
    return Arranged(deal=jax.tree.map(jnp.asarray, deal))


@dataclasses.dataclass(frozen=True)
class Recipe:
    game: Any
    seats: tuple[tuple[str, ...], ...]
    """Line-ups, cycled over groups: group g uses seats[g % len(seats)]. Every player in them is trained, except
    scripted players of the game, past selves of a learner (`SNAPSHOT`) and saved policies (`FROZEN`)."""
    advantage: AdvantageFn | None = None
    """None if `step` needs no estimator, or if games are only read or imitated."""
    loss: losses.LossFn = losses.ppo
    hparams: Mapping[str, float | Schedule] = dataclasses.field(default_factory=dict)
    """Values added to DEFAULT_HPARAMS or replacing them; estimator and loss receive all. A value is a number or a
    schedule of optax, e.g. `optax.linear_schedule(1e-3, 0.0, 200)`: a function of the update's number."""
    choices: Choices = dataclasses.field(default_factory=dict)
    """Switches between algorithms by name, {"credit": ("ppo", "grpo")}; the first option is the default. `with_choice`
    takes another option. An estimator, a loss or an arrangement reads it with `select` of `rl.choices`:
    `select(hparams, "credit", ppo=..., grpo=...)`. All values are computed, and gradients of each must be finite."""
    selection: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """{choice: option} as set by `with_choice`; other choices have their default."""
    init_state: Callable[[Parts, jax.Array], Any] = no_state
    """(parts, key) -> the estimator's state before the first update, with additions for the recipe's own `step`."""
    arrange: Callable[[Hparams, Any, jax.Array, jax.Array], Arranged] | None = None
    """(hparams, state, key, number) -> the arrangement of update `number`: deal data and horizons by group, a snapshot.
    The estimator receives it as `Experience.arranged`."""
    step: Callable | None = None
    """(parts, run, hparams, key, number) -> (run, metrics), written from the functions of `step.py`. None stands for
    `step.on_policy_step`; a method with another order of operations has its own. A step with past selves ends with
    `past.keep`, which updates snapshots and averages; otherwise they stay as they were before training."""
    games: Mapping[str, Recipe] = dataclasses.field(default_factory=dict)
    """The games, by name, that `step` plays in place of `game`."""
    critic: bool = False
    """Gives every policy a value head on its trunk."""
    reference: bool = False
    """Gives the loss the log-probabilities of the policy before training. A pretrained model's reference is its base
    without the adapter."""
    warm_start: tuple[tuple[str, ...], ...] | Common | Path | Recipe = ()
    """Imitation before the first update; empty: none. Line-ups of scripts: each policy imitates the scripts in the
    seats that it will take. `Common`: one policy imitates all seats, and each policy is its copy. A path: policies
    imitate a JSONL file of dialogues (`supervised`). Another recipe of the same tiny policies: this one starts from its
    final weights."""
    warm_start_updates: int = 100
    warm_start_deal: Callable[[jax.Array], Any] | None = None
    """(key) -> the deal of all scripted games in a run's warm start, e.g. what the scripts know. The key follows from
    the run's seed. None: games draw their own deals."""
    sampling: Sampling = PLAIN
    """The sampling of all policies, unless a `Model` has its own."""
    masked: bool = True
    """True: only legal answers can be sampled. False: the game must define the effect of an illegal answer
    (wrappers.Illegal)."""
    size: TinySize = dataclasses.field(default=TINY_SIZE, metadata=NEW)
    """The size of tiny policies, unless a `Model` has its own."""
    lora: Lora | None = dataclasses.field(default=LORA, metadata=NEW)
    """The adapter of a pretrained model's policies, unless a `Model` has its own. None trains all weights."""
    tokenizer: Callable[[Any], Any] = lambda game: SymbolTokenizer(strings(game))
    """(game) -> the tokenizer of its tiny policies."""
    budget: int | tuple[int, ...] = DEFAULT_BUDGET
    """Maximum tokens of an utterance, for all grammars or for each."""
    updates: int = 200
    groups: int = 16
    """Groups per update; the episodes of a group start from the same state."""
    group_size: int = 8
    """Episodes per group."""
    epochs: int = 1
    minibatches: int = 1
    grad_accumulation: int = 1
    """Micro-batches per minibatch."""
    max_grad_norm: float = 1.0
    """Bound on each policy's gradient norm, applied before its optimiser; math.inf is no bound."""
    optimiser: OptimiserFn | Mapping[str, OptimiserFn] | None = None
    """A function of the learning rate as optax has them, e.g. `optax.sgd`, for all policies or as {policy:
    function}. None is Adam. The rate is the traced hparam. `optimiser.py` has masks by path, for frozen weights and
    weight decay."""
    buckets: int = 1
    """Number n of row widths in training: 1/n, 2/n ... of the longest possible row. Each micro-batch takes the smallest
    width that holds it, and every width is compiled. With `grad_accumulation` > 1, rows of similar width share a
    micro-batch. Runs that are computed at once take one width."""
    distinct: int = dataclasses.field(default=0, metadata=NEW)
    """Rows of each prompt that a micro-batch computes, if none of its prompts has more different ones: equal rows, as
    games of short answers have many, share one. 0: all rows. A second program computes a micro-batch with more. All
    rows are computed where tokens are scored again before the update: in half precision, or with another attention."""
    remat: Remat = "none"
    """Recomputation in the backward pass: nothing, all but matrix products, or everything."""
    measure: Callable[[Episodes], dict[str, jax.Array]] = mean_return
    """Scalar metrics of the episodes of an update."""
    snapshots: Snapshots | None = None
    """Settings for snapshots of the learners with `SNAPSHOT` in a line-up. Each update draws one moment, and all
    snapshots that play are from it."""
    evaluate: Callable[[Parts], Callable[[dict, jax.Array], dict[str, Any]]] | None = None
    """(parts) -> a function of one run's weights by policy set and a random key, which returns metrics that need the
    host. It is called once, with parts whose `base` holds arrays. The key follows from the run's seed alone, so all
    evaluations of a run share it."""
    eval_every: int = 50
    """Updates between two evaluations. The policy is also evaluated before the first update and after the last."""
    pretrained: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields with another value for a pretrained model; its `hparams` hold only the differences."""

    def __post_init__(self):
        if not isinstance(self.game, HostGame):
            check_object(self.game)
        check_line_ups("seats", self.seats)
        if not self.seats:
            raise ValueError("A recipe needs a line-up: seats=(('a', 'b'),).")
        if isinstance(self.warm_start, Common):
            check_line_ups("Common.line_ups", self.warm_start.line_ups)
        elif not isinstance(self.warm_start, Path | Recipe | str):
            check_line_ups("warm_start", self.warm_start)
        elif self.warm_start_deal is not None:
            raise ValueError("warm_start_deal deals games of scripts, and this warm start plays none.")

    def check(self) -> None:
        """Raises ValueError for settings that cannot work."""
        counts = ("updates", "groups", "group_size", "epochs", "minibatches", "grad_accumulation", "eval_every")
        for name in (*counts, "buckets"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.distinct < 0:
            raise ValueError(f"distinct is a number of rows, 0 for all, got {self.distinct}.")
        for name in self.hparams:
            near = difflib.get_close_matches(name, DEFAULT_HPARAMS, n=1, cutoff=0.9)
            if near and name not in DEFAULT_HPARAMS and not name.startswith(f"{near[0]}/"):
                raise ValueError(f"Nothing reads an hparam {name!r}: did you mean {near[0]!r}?")
            policy = name.partition("learning_rate/")[2]
            if policy and policy not in self.learners:
                raise ValueError(f"The hparam {name!r} is of no policy that learns: those are {self.learners}.")
        if not isinstance(self.lora, Lora | None):
            raise ValueError(f"lora is a Lora, e.g. Lora(4, 8.0, ('*',)), or None, got {self.lora!r}.")
        check_optimiser(self.optimiser, self.learners)
        check_hparams(self.hparams)
        check_choices(self.choices, self.selection)
        for name in self.choices:
            if name in DEFAULT_HPARAMS or name in self.hparams or name.startswith("learning_rate/"):
                raise ValueError(f"{name!r} is a choice and an hparam: give one of them another name.")
        check_learners(self.learners, self.game)
        check_advantage(self.advantage, self.group_size)
        if isinstance(self.warm_start, Recipe) and set(self.warm_start.learners) != set(self.learners):
            raise ValueError(f"Warm start of {self.warm_start.learners}, but other learners begin: {self.learners}.")
        if isinstance(self.warm_start, Recipe) and self.warm_start.past:
            raise ValueError("A recipe with past selves is no warm start of another.")
        if isinstance(self.warm_start, str):
            raise ValueError(f"A warm start from a file is a Path: Path({self.warm_start!r}).")
        if self.advantage is None and self.step is None:
            raise ValueError("A recipe without a step of its own needs an advantage estimator.")
        if self.games:
            check_games(self.games)
            if self.step is None:
                raise ValueError("The standard step plays the recipe's game alone: games need a step of their own.")
        if self.groups % len(self.seats):
            raise ValueError(
                f"{self.groups} groups do not divide over the {len(self.seats)} line-ups: choose a multiple."
            )
        period = Extras(self.game).group_period
        met: dict[tuple[str, ...], list[int]] = {seats: [0] * period for seats in self.seats}
        for group in range(self.groups):
            met[self.seats[group % len(self.seats)]][group % period] += 1
        if len(met) > 1 and any(len({*counts}) > 1 for counts in met.values()):
            raise ValueError(
                f"Groups take turns with what is dealt, {period} ways, and with the {len(met)} line-ups, so that some "
                f"line-up does not meet each way alike: write every line-up {period} times in a row."
            )
        for name, (_, learner) in self.past.items():
            if learner not in self.learners:
                raise ValueError(f"{name!r} is in a line-up, but {', '.join(self.learners)} learn: name one of them.")
        kinds = {kind for kind, _ in self.past.values()}
        if (self.snapshots is not None) != (SNAPSHOT in kinds):
            raise ValueError(f"snapshots is {self.snapshots}, but the line-ups are {self.seats}.")
        if self.snapshots is not None and min(self.snapshots) < 1:
            raise ValueError(f"At least one snapshot is kept, one update apart or more, got {self.snapshots}.")
        if AVERAGE in kinds and "average" not in self.hparams:
            raise ValueError("An average of a learner needs the hparam 'average', the share of the old that it keeps.")

    def with_hparams(self, **changed: float | Schedule) -> Recipe:
        """The recipe with these hparams added or replaced."""
        return dataclasses.replace(self, hparams={**self.hparams, **changed})

    def with_choice(self, **options: str) -> Recipe:
        """The recipe with these options of its choices. Raises ValueError for an unknown choice or option."""
        check_choices(self.choices, options)
        return dataclasses.replace(self, selection={**self.selection, **options})

    @property
    def structure(self) -> Recipe:
        """The recipe without hparams and options: arms with equal structure share a program."""
        return dataclasses.replace(self, hparams=dict.fromkeys({**DEFAULT_HPARAMS, **self.hparams}, 0.0), selection={})

    @property
    def all_choices(self) -> dict[str, str]:
        """The current option of each choice."""
        return {name: self.selection.get(name, options[0]) for name, options in self.choices.items()}

    @property
    def all_hparams(self) -> dict[str, float | tuple[float, ...] | str]:
        """The value of each hparam: a number, or for a schedule one number for each update. The value of a choice is
        the name of its option."""
        at = range(self.updates)
        every = {**DEFAULT_HPARAMS, **self.hparams}
        numbers = {name: tuple(float(x(i)) for i in at) if callable(x) else x for name, x in every.items()}
        return {**numbers, **self.all_choices}

    @property
    def traced_hparams(self) -> dict[str, jax.Array | Option]:
        """`all_hparams` in the form that a step receives: float32, with shape [updates] for a schedule; an `Option` for
        a choice."""
        return {
            name: Option.from_names(str(x), self.choices[name]) if name in self.choices else jnp.asarray(x, jnp.float32)
            for name, x in self.all_hparams.items()
        }

    @property
    def learners(self) -> tuple[str, ...]:
        others = {*self.game.scripts, *self.frozen}
        return tuple(name for name in self._players if name not in others and not is_past(name))

    @property
    def _players(self) -> dict[str, None]:
        return dict.fromkeys(name for seats in self.seats for name in seats)

    @property
    def frozen(self) -> dict[str, str]:
        """{name: directory} of the frozen policies in the line-ups."""
        split = {name: name.partition("/") for name in self._players}
        return {name: directory for name, (kind, _, directory) in split.items() if kind == FROZEN and directory}

    @property
    def past(self) -> dict[str, tuple[str, str]]:
        """{name: (kind, learner)} of the past selves in the line-ups, with kind SNAPSHOT, INITIAL or AVERAGE."""
        split = {name: name.partition("/") for name in self._players if is_past(name)}
        only = self.learners[0] if len(self.learners) == 1 else ""
        return {name: (kind, learner or only) for name, (kind, _, learner) in split.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """Input of the functions of `step`: static, except `base`, which is traced inside a program."""

    recipe: Recipe
    policy_sets: dict[str, PolicySet]
    base: dict[str, dict]  # by policy set: weights that pretrained models start from; at FROZEN: see `frozen`
    rollout: Any  # a Rollout, or a PythonRollout for a game in plain Python
    optimiser: Optimiser
    ahead: bool = False  # the weights that play differ from the weights that learn
    shaping: Shaping | None = None
    """A hook on the distribution of all policies, traced, for sampling and scores alike: a step of the recipe's own
    plays and learns with `replace(parts, shaping=...)`."""

    @property
    def learners(self) -> tuple[str, ...]:
        return self.recipe.learners

    @property
    def frozen(self) -> dict[str, Any]:
        """Weights of the frozen policies by name, {"policy": tree} each."""
        return self.base.get(FROZEN, {})

    @property
    def policy_set_of(self) -> dict[str, str]:
        """{policy: the policy set that contains it}."""
        return {name: policy_set for policy_set, members in self.policy_sets.items() for name in members.policies}

    @property
    def learner_sets(self) -> list[str]:
        """The policy sets that contain a learner."""
        return [name for name, members in self.policy_sets.items() if set(members.policies) & set(self.learners)]

    def scorer(self, policy_set: str) -> Scorer:
        """The scorer of a policy set's rows, for any weights of its model."""
        scorer = self.policy_sets[policy_set].scorer(self.rollout.layouts[policy_set].tables, self.recipe.remat)
        return scorer if self.shaping is None else dataclasses.replace(scorer, shaping=self.shaping)

    @property
    def prompts(self) -> int:
        """The number of prompts that every policy set's batch divides into."""
        return math.gcd(*(len(self.rollout.layouts[name].assignments) for name in self.learner_sets))


def check_line_ups(field: str, line_ups: Any) -> None:
    """Raises ValueError unless these are line-ups, a tuple of tuples of names. A text would be read by letters."""
    named = lambda name: isinstance(name, str) and name.strip()
    line_up = lambda names: isinstance(names, tuple) and names and all(map(named, names))
    if not (isinstance(line_ups, tuple) and all(map(line_up, line_ups))):
        raise ValueError(f"Line-ups are tuples of names, (('a', 'b'),), none of them empty: got {field}={line_ups!r}.")


def is_past(name: str) -> bool:
    """True for the name of a past self (`SNAPSHOT`)."""
    return name.partition("/")[0] in (SNAPSHOT, INITIAL, AVERAGE)


def check_games(games: Any) -> None:
    """Raises ValueError unless `games` maps at least one name to a recipe, all of games that compile."""
    if not (isinstance(games, Mapping) and games and all(isinstance(recipe, Recipe) for recipe in games.values())):
        raise ValueError(
            f"Several games are given as their recipes, {{name: Recipe}}, at least one, and not {games!r}."
        )
    for recipe in games.values():
        check_object(recipe.game)
