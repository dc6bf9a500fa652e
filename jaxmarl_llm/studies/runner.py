"""Runs a study, every arm and seed of it, and writes what came out.

  python -m experiments dr_mas --seeds 10
  python -m experiments mars --arms centred to_go/role_turn --updates 50
  python -m experiments spiral --model smollm2 --seeds 1

Tiny policies: all seeds, and arms that differ in numbers alone, run side by side in one program. Real models: one run
after the other, a few updates of a few games. A run that was stopped (Ctrl-C, SIGTERM, SIGKILL, a crash) goes on where
its last checkpoint is when the same command is given again, and ends with the same table; other settings, other code
or a second process are refused.

Writes into the run directory results.json, curves.png, and for each arm metrics.jsonl, TensorBoard files, the versions
and commit it ran with, and a transcript, of a real model also from before training. The table of all results is made
with `python -m jaxmarl_llm.studies.results`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape

import experiments
import jaxmarl_llm
from jaxmarl_llm.devices import distributed, sharding
from jaxmarl_llm.evaluation.statistics import MOST_PAIRS
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.studies import results
from jaxmarl_llm.studies.cli import execute, locked, progress
from jaxmarl_llm.studies.profiled import profile
from jaxmarl_llm.studies.study import Study
from jaxmarl_llm.training.checkpoint import LAST_TWO, Checkpoints, Keep, compare
from jaxmarl_llm.training.log import RunLog, provenance, writable_directory
from jaxmarl_llm.training.loop import train
from jaxmarl_llm.training.nonfinite import inspected
from jaxmarl_llm.training.recipe import Recipe, for_pretrained
from jaxmarl_llm.training.setup import TINY
from jaxmarl_llm.training.trainer import Trainer, resume, transcript


@dataclasses.dataclass(frozen=True)
class Settings:
    recipe: Annotated[str, tyro.conf.Positional]
    """Module under `experiments` that holds the study."""
    seeds: int = 10
    first_seed: int = 0
    arms: tuple[str, ...] | None = None
    """Some of the arms; the default is all, and with a real model the one that is the method."""
    model: str = TINY
    """`tiny`, or a real model: smollm2, gemma3-270m, a directory, a GGUF file or a hub id."""
    updates: int = 0
    """0: as many as the recipe says (a real model: 3)."""
    groups: int = 0
    """Deals an update, of every arm; 0: as many as the recipe says. With model seats, a multiple of data times fsdp."""
    group_size: int = 0
    """Episodes of a deal, of every arm; 0: as the recipe says."""
    mesh: str = ""
    """Devices by axis, e.g. data=2,fsdp=4,tensor=2; the default is one device."""
    rollout_mesh: str = ""
    """Further devices, by axis, that play the next games while these are learned from; without, play and update take
    turns."""
    checkpoint_every: int = 50
    keep: Keep = LAST_TWO
    max_skipped: int = 10
    """Ends the run when so many updates in a row were left out because something was not finite; 0: never."""
    out: Path = Path()
    """Run directory; the default is runs/RECIPE-MODEL."""
    profile: bool = False
    """Only shows where the time of one update of the study's method goes, one seed; leaves a trace in `out`/profile."""


@dataclasses.dataclass(frozen=True)
class Program:
    """Lanes that run side by side: arms of one structure, each with the seeds."""

    arms: Mapping[str, Recipe]
    seeds: tuple[int, ...]
    alone: bool
    """One arm and one seed, because the model is a real one."""

    @property
    def recipe(self) -> Recipe:
        return next(iter(self.arms.values()))

    @property
    def lanes(self) -> list[tuple[str, int]]:
        return [(arm, seed) for arm in self.arms for seed in self.seeds]

    @property
    def name(self) -> str:
        return "+".join(folder(arm, self.seeds[0], self.alone) for arm in self.arms)


def folder(arm: str, seed: int, alone: bool) -> str:
    return f"{arm}-{seed}" if alone else arm


def modules() -> dict[str, str]:
    """The module of every study, by its name."""
    home = Path(experiments.__path__[0])
    files = [path for path in sorted(home.rglob("*.py")) if "\nSTUDY = " in path.read_text()]
    return {path.stem: ".".join(("experiments", *path.relative_to(home).with_suffix("").parts)) for path in files}


def load(name: str) -> Study:
    """The study of a recipe. Raises ValueError if there is none of that name."""
    known = modules()
    if name not in known:
        raise ValueError(f"There is no recipe {name!r}: choose one of {', '.join(known)}.")
    study = importlib.import_module(known[name]).STUDY
    if study.method not in study.arms:
        raise ValueError(f"{name} says that its method is {study.method!r}, but its arms are {', '.join(study.arms)}.")
    for stated in study.stated:
        if not set(results.named(stated)) <= set(study.arms):
            raise ValueError(f"{name} states {dict(stated)}, but its arms are {', '.join(study.arms)}.")
    return study


def chosen(settings: Settings, study: Study) -> dict[str, Recipe]:
    """The arms that are run, at the size of the model. Raises ValueError for unknown arms or settings."""
    for name, least in (("seeds", 1), ("checkpoint_every", 1), ("max_skipped", 0), ("groups", 0), ("group_size", 0)):
        if getattr(settings, name) < least:
            raise ValueError(f"{name} must be at least {least}, got {getattr(settings, name)}.")
    if settings.updates < 0 or not 0 <= settings.first_seed < 2**31:
        raise ValueError(
            f"updates and first_seed must not be negative, and first_seed below 2^31, got {settings.updates} and "
            f"{settings.first_seed}."
        )
    if settings.seeds > MOST_PAIRS:
        raise ValueError(f"An exact test takes at most {MOST_PAIRS} seeds, got {settings.seeds}.")
    tiny = settings.model == TINY
    names = settings.arms if settings.arms is not None else tuple(study.arms) if tiny else (study.method,)
    unknown = [arm for arm in names if arm not in study.arms]
    if unknown or not names:
        what = f"has no arm {unknown[0]!r}" if unknown else "was given no arm"
        raise ValueError(f"{settings.recipe} {what}: choose from {', '.join(study.arms)}.")
    arms = {name: study.arms[name] for name in names}
    if not tiny:
        arms = {name: for_pretrained(recipe) for name, recipe in arms.items()}
    given = {name: getattr(settings, name) for name in ("updates", "groups", "group_size") if getattr(settings, name)}
    return {name: dataclasses.replace(recipe, **given) for name, recipe in arms.items()}


def programs(arms: Mapping[str, Recipe], seeds: Sequence[int], alone: bool) -> list[Program]:
    """Lanes put together where they can share a program, or each alone."""
    if alone:
        return [Program({arm: recipe}, (seed,), True) for arm, recipe in arms.items() for seed in seeds]
    shared: list[dict[str, Recipe]] = []
    for arm, recipe in arms.items():
        same = [part for part in shared if next(iter(part.values())).structure == recipe.structure]
        if same:
            same[0][arm] = recipe
        else:
            shared.append({arm: recipe})
    return [Program(part, tuple(seeds), False) for part in shared]


def describe(value: Any) -> Any:
    """Settings as JSON can hold them: functions by name, with what is bound to them."""
    if isinstance(value, functools.partial):
        return {"function": describe(value.func), **{name: describe(bound) for name, bound in value.keywords.items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): describe(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [describe(inner) for inner in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else value


def run(settings: Settings, stop: threading.Event, console: Console) -> bool:
    """Trains what is not trained yet, then writes and shows the results; False if it was stopped before the end."""
    study = load(settings.recipe)
    if settings.profile:
        settings = dataclasses.replace(settings, arms=(study.method,))
    arms = chosen(settings, study)
    seeds = tuple(range(settings.first_seed, settings.first_seed + settings.seeds))
    out = settings.out
    if out == Path():
        out = Path("runs") / f"{settings.recipe}-{Path(settings.model).name}"
    out = writable_directory(out)
    if settings.profile:
        recipe = arms[study.method]
        trainer = Trainer(recipe, [recipe.all_hparams], seeds[:1], settings.model, settings.mesh, settings.rollout_mesh)
        profile(trainer, out, console)
        return True
    info = {
        "recipe": settings.recipe,
        "claim": study.claim,
        "paper": study.paper,
        "direction": [stated for stated in study.stated if all(arm in arms for arm in results.named(stated))],
        "metrics": study.metrics,
        "settings": describe(arms),
        "seeds": seeds,
        "updates": max(recipe.updates for recipe in arms.values()),
        "model": settings.model,
        "ahead": bool(settings.rollout_mesh),
    }
    results.check(info)
    plan = programs(arms, seeds, alone=settings.model != TINY)
    total, done = sum(program.recipe.updates for program in plan), 0
    shown = next((name for name in study.metrics if name not in study.derived), "return")

    def tell(metrics: Mapping[str, Any]) -> str:
        return escape(metrics["arms"]) + (f": {shown} {np.mean(metrics[shown]):.3f}" if shown in metrics else "")

    with (
        distributed.output_directory(out) as home,
        owned(home, json.loads(json.dumps(info | {"code": code()}))) as begun,
    ):
        console.print(f"Stated before the run: {escape(study.claim)} Run directory: {escape(str(out))}")
        with progress(console, total, sum(saved(out, program) for program in plan), tell) as on_step:
            for program in plan:
                count = lambda number, metrics, before=done: on_step(before + number, metrics)  # noqa: E731
                if not advance(settings, out, home, program, stop, count, lambda said: console.print(escape(said))):
                    console.print("Stopped and saved: the same command goes on.")
                    return False
                done += program.recipe.updates
        if not distributed.is_main_process():
            return True
        curves = {arm: read(out, arm, seeds, recipe.updates, settings.model != TINY) for arm, recipe in arms.items()}
        times = [curve.pop("seconds") for curve in curves.values()]
        # lanes side by side share their time, real models take it one after the other
        seconds = sum(float(np.nansum(time if settings.model != TINY else time.mean(0))) for time in times)
        final = {arm: {name: f(curve) for name, f in study.derived.items()} for arm, curve in curves.items()}
        if settings.model != TINY:  # whom nobody judges (`for_pretrained`)
            measured = {arm: {*curves[arm], *final[arm]} for arm in arms}
            kept = lambda stated: all(stated["metric"] in measured[arm] for arm in results.named(stated))  # noqa: E731
            info["direction"] = [stated for stated in info["direction"] if kept(stated)]
        results.show(results.write(out, info, curves, seconds=seconds, final=final, provenance=begun), console)
        return True


def code() -> str:
    """A digest of all code that a run may use: with other code a run is another run."""
    digest = hashlib.sha256()
    for package in (experiments, jaxmarl_llm):
        home = Path(package.__path__[0])
        for file in sorted(home.rglob("*.py")):
            digest.update(f"{file.relative_to(home)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def owned(out: Path, info: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Keeps a run directory to one study and one process at a time; yields what it was begun with, versions and commit.

    Raises ValueError if the directory is for something else already, or in use.
    """
    kept = out / "study.json"
    with locked(out):
        if kept.exists():
            try:
                old = json.loads(kept.read_text())
                begun = old.pop("provenance")
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{kept} is damaged: name another --out.") from None
            if old.get("code") != info["code"]:
                raise ValueError(f"{out} holds a run of other code, begun at {begun['commit']}: name another --out.")
            compare(out, old, info, ())
            yield begun
            return
        begun = provenance()
        results.replace(kept, (json.dumps({**info, "provenance": begun}, indent=1) + "\n").encode())
        try:
            yield begun
        except ValueError:
            if not any(out.rglob("metrics.jsonl")):
                kept.unlink()  # settings that cannot work claim no directory
            raise


def saved(out: Path, program: Program) -> int:
    """Updates of a program that are done and saved."""
    steps = (out / "checkpoints" / program.name).glob("*")
    return max((int(path.name) for path in steps if path.name.isdigit()), default=0)


def advance(
    settings: Settings,
    out: Path,
    home: Path,
    program: Program,
    stop: threading.Event,
    on_step: Callable,
    tell: Callable,
) -> bool:
    """Trains a program to its end, from its last checkpoint in `out`; whether it got there. Logs go to `home`."""
    began, recipe, lanes, count = time.monotonic(), program.recipe, program.lanes, len(program.seeds)
    homes = {arm: home / folder(arm, program.seeds[0], program.alone) for arm in program.arms}
    identity = {
        "arms": describe(program.arms),
        "seeds": list(program.seeds),
        "model": settings.model,
        "ahead": bool(settings.rollout_mesh),
    }
    checkpoints = Checkpoints(
        out / "checkpoints" / program.name, identity, settings.keep, resume=True, may_differ=(),
        beside=[own / "metrics.jsonl" for own in homes.values()],
    )  # fmt: skip
    whole = saved(out, program) == recipe.updates and all((own / "transcript.md").exists() for own in homes.values())
    if distributed.broadcast(whole):
        return True
    hparams, seeds = [program.arms[arm].all_hparams for arm, _ in lanes], [seed for _, seed in lanes]
    trainer = Trainer(recipe, hparams, seeds, settings.model, settings.mesh, settings.rollout_mesh)
    evaluate = recipe.evaluate(trainer) if recipe.evaluate is not None else None

    def step(number: int, state: dict) -> tuple[dict, dict[str, Any]]:
        state, metrics = trainer.update(state, number)
        if evaluate is None or not ((number + 1) % recipe.eval_every == 0 or number + 1 == recipe.updates):
            return state, metrics
        judged = [evaluate(trainer.weights(state, i)) for i in range(len(lanes))]
        return state, metrics | {name: np.array([values[name] for values in judged]) for name in judged[0]}

    of = lambda arm: lambda said: tell(f"{folder(arm, program.seeds[0], program.alone)}: {said}")  # noqa: E731
    with ExitStack() as stack:
        stack.enter_context(sharding.use(trainer.mesh))
        start, state = resume(trainer, checkpoints)
        logs = {
            arm: stack.enter_context(RunLog(homes[arm], count, describe(program.arms[arm]), of(arm))) for arm in homes
        }
        for log in logs.values():
            log.truncate(start)

        def report(number: int, metrics: Mapping[str, Any]) -> None:
            nonlocal began
            took, began = (time.monotonic() - began) / len(logs), time.monotonic()
            for i, log in enumerate(logs.values()):
                loss_mask = {name: np.asarray(x)[i * count : (i + 1) * count] for name, x in metrics.items()}
                log.scalars(number, loss_mask | {"seconds": took})
            on_step(number, {**metrics, "arms": "+".join(logs)})

        with inspected(trainer, [f"{arm}, seed {seed}" for arm, seed in lanes], home):
            state, done = train(
                step, state, start=start, steps=recipe.updates, checkpoints=checkpoints,
                every=settings.checkpoint_every, on_step=report, stop=stop, patience=settings.max_skipped,
                streak=np.concatenate([log.streak for log in logs.values()]),
            )  # fmt: skip
        for log in logs.values() if not done else ():
            log.end("stopped", "SIGTERM or SIGINT; the same command goes on.")
        texts = games(trainer, state, range(0, len(lanes), count), program.alone) if done else []
        for own, text in zip(homes.values(), texts, strict=False):
            (own / "transcript.md").write_text(text)
    trainer.base.clear()  # jit's caches hold on to the trainer, which would hold a model for every seed
    jax.clear_caches()
    return done


def games(trainer: Trainer, state: dict, lanes: Sequence[int], several: bool) -> list[str]:
    """Of each of the lanes a game after training; or `several`, of two deals before and after. One game of each line-up
    is played."""
    recipe, seats = trainer.recipe, tuple(dict.fromkeys(trainer.recipe.seats))
    few = Rollout(recipe.game, trainer.policy_sets, Lineup(seats if len(seats) > 1 else 2 * seats, 1), recipe.budget)
    after = trainer.play(state, few)
    if not several:
        return [transcript(trainer, after, lane) for lane in lanes]
    texts = dict.fromkeys(lanes, "")
    for when, played in (("before", trainer.play(trainer.init(), few)), ("after", after)):
        for lane in lanes:
            for deal in range(2):
                texts[lane] += f"# Deal {deal + 1}, {when} training\n\n{transcript(trainer, played, lane, deal)}\n"
    return list(texts.values())


def read(out: Path, arm: str, seeds: Sequence[int], updates: int, alone: bool) -> dict[str, np.ndarray]:
    """An arm's curves, {metric: [seeds, updates]}; NaN where a metric was not measured or not finite.

    Raises ValueError unless there is one line for every seed and update.
    """
    columns = []  # a seed each
    for i, seed in enumerate(seeds):
        file = out / folder(arm, seed, alone) / "metrics.jsonl"
        try:
            lines = [json.loads(line) for line in file.read_text().splitlines()]
        except (OSError, ValueError):
            lines = []
        columns.append([line for line in lines if alone or line["seed"] == i])
        if [line["step"] for line in columns[-1]] != list(range(updates)):
            raise ValueError(f"{file} does not hold {updates} updates of seed {seed}, each once: name another --out.")
    names = dict.fromkeys(name for column in columns for line in column for name in line)
    return {
        name: np.array([[line.get(name) for line in column] for column in columns], np.float64)
        for name in names
        if name not in ("step", "seed")
    }


if __name__ == "__main__":
    execute(lambda stop, console: run(tyro.cli(Settings, description=__doc__), stop, console))
