"""The command-line options of a run: arms, seeds, models, sizes and devices."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import tyro

from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.runs import sinks
from jaxmarl_llm.runs.checkpoint import LAST_TWO, Keep
from jaxmarl_llm.studies import sweep
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import ANY, Study
from jaxmarl_llm.text.refusals import suggest
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.setup import LORA, TINY, Model, for_pretrained

Value = TypeVar("Value")
Words = Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="")]  # the text says the default
Word = Annotated[str, tyro.conf.arg(help_behavior_hint="")]
# options that change no number of a run
FREE = ("study", "frozen", "out", "checkpoint_every", "keep", "log", "games", "games_every", "max_skipped")


@dataclasses.dataclass(frozen=True)
class Settings:
    """An option that may differ between policies takes words: `VALUE` for all policies, `NAME=VALUE` for one."""

    study: Annotated[str, tyro.conf.Positional]
    """Name of the study."""
    seeds: int = 10
    first_seed: int = 0
    arms: Annotated[tuple[str, ...] | None, tyro.conf.arg(help_behavior_hint="")] = None
    """Names of arms. Default: all arms; with a pretrained model or a sweep, the arm of the method."""
    sweep: Annotated[tuple[str, ...] | None, tyro.conf.arg(help_behavior_hint="")] = None
    """Values of hparams, e.g. learning_rate=1e-3,3e-3,1e-2 entropy=0,0.01. Each value, or each pair of a grid, is
    an arm, and tiny policies train them side by side. The table ends with the best value on these seeds. A sweep
    judges no prediction."""
    model: str = TINY
    """`tiny`, or a pretrained model: smollm2, gemma3-270m, qwen3-0.6b to qwen3-32b, qwen3.5-0.8b to qwen3.5-27b,
    gemma4-e2b to gemma4-31b, a directory, a GGUF file or a hub id. A study that is about a pretrained model trains
    it."""
    models: Words = ()
    """Models of single policies, e.g. seat_0=smollm2 seat_1=gemma3-270m; other policies take --model."""
    rank: Words = ()
    """Rank of a pretrained model's adapter, e.g. 8, or seat_0=8 seat_1=32; 0: all weights are trained. Default: 32."""
    learning_rate: Words = ()
    """E.g. 1e-4, or seat_0=1e-4. Default: the recipe's."""
    temperature: Words = ()
    """Sampling temperature, e.g. 0.7, or seat_0=0.7. Default: the recipe's."""
    dtype: Words = ()
    """float32 or bfloat16, for matrix products, the cache and a pretrained model's weights. Default: float32."""
    attention: Words = ()
    """plain or fused: attention in a pretrained model's updates. Fused needs a GPU and bfloat16. Default: plain."""
    width: int = 0
    """Width of tiny policies; 0: the recipe's, which is 32 if it says nothing."""
    layers: int = 0
    """Number of layers of tiny policies; 0: the recipe's, which is 2 if it says nothing."""
    updates: int = 0
    """Number of updates; 0: the recipe's (a pretrained model: 3)."""
    groups: int = 0
    """Groups an update, for every arm; 0: the recipe's. On a mesh, a multiple of data times fsdp."""
    group_size: int = 0
    """Episodes a group, for every arm; 0: the recipe's."""
    mesh: Word = ""
    """Devices by axis, e.g. data=2,fsdp=4,tensor=2. Default: one device."""
    rollout_mesh: Word = ""
    """Further devices, by axis, that play the next games during an update. Default: play and update take turns."""
    checkpoint_every: int = 50
    keep: Keep = LAST_TWO
    max_skipped: int = 10
    """The run ends after this many consecutive skipped updates (a loss or gradient was not finite); 0: never."""
    log: tuple[str, ...] = ("tensorboard",)
    """Trackers that receive the metrics, besides the files of the run directory: tensorboard, trackio, wandb."""
    games: int = 16
    """Number of recorded games of an arm at most, before training and again after it; 0: all games of an update. The
    same command with another number records the last games of a finished run again."""
    games_every: int = 0
    """Updates between games that are recorded in between, which cost about an update each; 0: none."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="")] = None
    """Run directory. Default: runs/STUDY-MODEL."""
    frozen: bool = False
    """Run the frozen table (`freeze`): all arms, with the seeds of its digest."""
    profile: bool = False
    """Only profiles one update of the study's method with one seed; writes a trace to `out`/profile."""

    def check(self) -> None:
        """Raises ValueError for options that cannot work."""
        sinks.check(self.log)
        self.keep.check()
        for name, least in (
            ("seeds", 1),
            ("checkpoint_every", 1),
            ("max_skipped", 0),
            ("games", 0),
            ("games_every", 0),
            ("groups", 0),
            ("group_size", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}.")
        if self.updates < 0 or not 0 <= self.first_seed <= 2**31 - self.seeds:
            raise ValueError(
                f"updates and first_seed must not be negative, and all seeds below 2^31, got {self.updates} updates "
                f"and {self.seeds} seeds from {self.first_seed}."
            )
        others = {field.name: field.default for field in dataclasses.fields(self) if field.name not in FREE}
        if self.frozen and (given := [name for name, default in others.items() if getattr(self, name) != default]):
            raise ValueError(f"--frozen runs the frozen table as it is: leave out --{given[0].replace('_', '-')}.")
        if self.sweep == ():
            raise ValueError("--sweep takes NAME=NUMBER,NUMBER,... for each hparam, and was given none.")
        if self.sweep and self.profile:
            raise ValueError("--profile runs one arm with its own hparams: leave out --sweep.")
        if sweep.RATE in sweep.read(self.sweep or ()) and self.learning_rate:
            raise ValueError("--sweep and --learning-rate both give the learning rate: leave out one of them.")

    @property
    def tiny(self) -> bool:
        """True if every policy is a tiny one, without a pretrained model."""
        return {self.model, *self.sources.values()} == {TINY}

    def for_study(self, study: Study) -> Settings:
        """These settings with the pretrained model that the study is about, and then with all of its arms."""
        if study.scope in (TINY, ANY) or not self.tiny:
            return self
        arms = self.arms if self.arms is not None or self.sweep else tuple(study.arms)
        return dataclasses.replace(self, model=study.scope, arms=arms)

    def judges(self, study: Study) -> bool:
        """True if the study's predictions are about these models."""
        return self.label == study.scope or (study.scope == ANY and self.tiny)

    @property
    def sources(self) -> dict[str, str]:
        """{policy: model} of the option --models. Raises ValueError for a model without a policy."""
        common, by_policy = per_policy("models", self.models, str)
        if common is not None:
            raise ValueError(f"--models takes NAME=MODEL, got {common!r}: the model of all policies is --model.")
        return by_policy

    @property
    def label(self) -> str:
        """The models, joined by +, for titles and directories."""
        common = () if self.model == TINY else (self.model,)
        names = tuple(dict.fromkeys((*common, *self.sources.values())))
        return "+".join(Path(name).name for name in names) if len(names) > 1 else (*names, self.model)[0]


def per_policy(
    option: str, words: tuple[str, ...], convert: Callable[[str], Value]
) -> tuple[Value | None, dict[str, Value]]:
    """(value for all or None, {policy: value}) from words `VALUE` and `NAME=VALUE`. Raises ValueError for others."""
    common: Value | None = None
    by_policy: dict[str, Value] = {}
    for word in words:
        parts = re.fullmatch(r"(?:(?P<name>\w+)=)?(?P<value>.+)", word)
        try:
            if parts is None:
                raise ValueError
            value = convert(parts["value"])
        except ValueError:
            kind = {int: "a whole number", float: "a number"}.get(cast(Any, convert), "a value")
            raise ValueError(
                f"--{option.replace('_', '-')} takes {kind}, or NAME={kind.split()[-1].upper()} for one policy, "
                f"got {word!r}."
            ) from None
        if parts["name"]:
            by_policy[parts["name"]] = value
        else:
            common = value
    return common, by_policy


CONVERT: dict[str, Callable] = {"rank": int, "learning_rate": float, "temperature": float, "dtype": str,
                                "attention": str}  # fmt: skip
ALLOWED = {"dtype": ("float32", "bfloat16"), "attention": ("plain", "fused")}


def is_shorter(settings: Settings, study: Study, arms: Mapping[str, Recipe | Computed]) -> bool:
    """True if an arm makes fewer updates than its study gives it, with policies of the same kind."""
    whole = {name: arm for name, arm in study.all_arms.items() if name in arms}
    if not settings.tiny:
        whole |= {name: for_pretrained(arm) for name, arm in whole.items() if isinstance(arm, Recipe)}
    return any(arms[name].updates < arm.updates for name, arm in whole.items())


def select_arms(settings: Settings, study: Study) -> dict[str, Recipe | Computed]:
    """{arm: recipe or computed arm} of the run. Raises ValueError for an unknown arm or policy, or a wrong option."""
    settings.check()
    every = settings.tiny and not settings.sweep
    names = settings.arms if settings.arms is not None else tuple(study.arms) if every else (study.method,)
    unknown = [arm for arm in names if arm not in study.all_arms]
    if unknown or not names:
        what = f"has no arm {unknown[0]!r}" if unknown else "was given no arm"
        hint = suggest(unknown[0], [*study.all_arms]) if unknown else ""
        choose = f". {hint}Choose" if hint else ": choose"
        raise ValueError(f"{settings.study} {what}{choose} from {', '.join(study.all_arms)}.")
    arms = {name: study.recipes[name] for name in names if name in study.recipes}
    computed = [name for name in names if name not in arms]
    if computed and not settings.tiny:
        raise ValueError(f"The arm {computed[0]} is computed, without policies: it takes no model.")
    if computed and settings.sweep:
        raise ValueError(f"The arm {computed[0]} is computed, without policies: --sweep takes arms that train.")
    if not settings.tiny:
        arms = {name: for_pretrained(recipe) for name, recipe in arms.items()}
    check_policies(settings, {policy for recipe in arms.values() for policy in recipe.learners})
    if (settings.width or settings.layers) and TINY not in {settings.model, *settings.sources.values()}:
        raise ValueError("--width and --layers are of tiny policies, and a pretrained model has its own size.")
    size = {name: getattr(settings, name) for name in ("width", "layers") if getattr(settings, name)}
    given: dict[str, Any] = {  # those of every arm
        name: getattr(settings, name) for name in ("updates", "groups", "group_size") if getattr(settings, name)
    }
    arms = {
        name: dataclasses.replace(
            recipe, **given, size=dataclasses.replace(recipe.size, **size), hparams=_hparams(settings, recipe)
        )
        for name, recipe in arms.items()
    }
    if settings.sweep:
        return {**sweep.sweep_arms(arms, sweep.read(settings.sweep))}
    return {name: arms.get(name, study.all_arms[name]) for name in names}


def check_policies(settings: Settings, learners: set[str]) -> None:
    """Raises ValueError for an option of an unknown learner, a wrong value, or an option that tiny policies lack."""
    known = ", ".join(sorted(learners))
    named = {"models": settings.sources}
    for option, convert in CONVERT.items():
        common, named[option] = per_policy(option, getattr(settings, option), convert)
        for value in [*named[option].values(), *([] if common is None else [common])]:
            if option == "learning_rate" and not 0 < value < math.inf:
                raise ValueError(f"learning_rate must be a positive number, got {value}.")
            if option == "rank" and value < 0:
                raise ValueError(f"rank must be at least 0, got {value}.")
            if value not in ALLOWED.get(option, (value,)):
                raise ValueError(f"{option} is one of {', '.join(ALLOWED[option])}, got {value!r}.")
        if settings.tiny and getattr(settings, option) and option in ("rank", "attention"):
            raise ValueError(f"--{option} is of pretrained models, and all policies here are tiny: give --model.")
    for option, values in named.items():
        for name in values:
            if name not in learners:
                raise ValueError(
                    f"--{option.replace('_', '-')} names the policy {name!r}: those that learn are {known}."
                )


def _hparams(settings: Settings, recipe: Recipe) -> Mapping[str, Any]:
    """The recipe's hparams with the learning rates of the options."""
    common, by_policy = per_policy("learning_rate", settings.learning_rate, float)
    hparams = dict(recipe.hparams)
    if common is not None:
        hparams = {name: x for name, x in hparams.items() if not name.startswith("learning_rate/")}
        hparams["learning_rate"] = common
    return hparams | {f"learning_rate/{name}": x for name, x in by_policy.items() if name in recipe.learners}


def select_models(settings: Settings, recipe: Recipe) -> dict[str, Model]:
    """{learner: the model that it starts from}, with its adapter, sampling, dtype and attention."""
    models = {}
    given = {name: per_policy(name, getattr(settings, name), convert) for name, convert in CONVERT.items()}
    for policy in recipe.learners:
        fields: dict[str, Any] = {}
        for option, (common, values) in given.items():
            value = values.get(policy, common)
            if value is None or option == "learning_rate":
                continue
            if option == "rank":
                fields["lora"] = Lora(value, 2.0 * value, LORA.targets) if value else None
            elif option == "temperature":
                fields["sampling"] = dataclasses.replace(recipe.sampling, temperature=value)
            else:
                fields[option] = value
        models[policy] = Model(
            settings.sources.get(policy, settings.model), **{"lora": recipe.lora, "sampling": recipe.sampling, **fields}
        )
    return models
