"""The programs of a study: arms of one structure train side by side with all seeds, pretrained models one by one."""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from jaxmarl_llm.devices import distributed, sharding
from jaxmarl_llm.rollout.policy_files import save_policy
from jaxmarl_llm.runs.checkpoint import Checkpoints
from jaxmarl_llm.runs.log import RunLog
from jaxmarl_llm.runs.loop import resume, train
from jaxmarl_llm.runs.nonfinite import inspected
from jaxmarl_llm.studies.lanes import Program, run_name
from jaxmarl_llm.studies.pages.results import write_atomically
from jaxmarl_llm.studies.prepared import Preparation
from jaxmarl_llm.studies.settings import Settings, select_models
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.view import page, records

POLICIES = "policies"
BEFORE, AFTER = "before.json", "after.json"  # what `Recipe.evaluate` found before the first update, after the last
Games = dict[str, list[np.ndarray]]  # {metric: for each lane or seed its values [games]}


def describe(value: Any) -> Any:
    """Settings as JSON can hold them: functions by name, with what is bound to them; of a dataclass what repr shows."""
    if isinstance(value, functools.partial):
        return {"function": describe(value.func), **{name: describe(bound) for name, bound in value.keywords.items()}}
    if isinstance(value, Recipe):
        numbers: Mapping[str, Any] = value.hparams
        if any(map(callable, numbers.values())):  # a schedule by its numbers, not by its name
            numbers = {name: x for name, x in value.all_hparams.items() if name not in value.choices}
        value = dataclasses.replace(value, hparams=cast(Any, numbers), choices=cast(Any, value.all_choices))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value) if field.repr}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): describe(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [describe(inner) for inner in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if callable(value):
        return _described(value)
    return value if isinstance(value, str | int | float | None) else type(value).__qualname__


def _described(function: Any) -> Any:
    """A function by name; one that is nameless, or made by another, also by its code and what it closes over."""
    name = f"{function.__module__}.{function.__qualname__}"
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    if code is None or not ("<lambda>" in name or cells):
        return name
    constants = [x for x in code.co_consts if not hasattr(x, "co_code")]
    digest = zlib.crc32(repr((code.co_code, constants, code.co_names)).encode())
    return {"function": f"{name} {digest:08x}", **{
        inner: describe(cell.cell_contents) for inner, cell in zip(code.co_freevars, cells, strict=True)
    }}  # fmt: skip


def trainer_of(settings: Settings, program: Program) -> Trainer:
    """A trainer of a program's lanes."""
    hparams = [program.arms[arm].all_hparams for arm, _ in program.lanes]
    seeds = [seed for _, seed in program.lanes]
    models = select_models(settings, program.recipe)
    return Trainer(
        program.recipe, hparams, seeds, models, settings.mesh, settings.rollout_mesh, max_skipped=0
    )  # `train` counts what is skipped, over starts too


def saved_updates(out: Path, program: Program) -> int:
    """Updates of a program that are made and saved."""
    steps = (out / "checkpoints" / program.name).glob("*")
    return max((int(path.name) for path in steps if path.name.isdigit()), default=0)


def train_program(
    settings: Settings,
    out: Path,
    home: Path,
    program: Program,
    stop: threading.Event,
    on_step: Callable[[int, Mapping[str, Any]], None],
    on_text: Callable[[str], None],
    on_names: Callable[[set[str]], None],
    preparation: Preparation,
) -> bool:
    """Trains a program from its last checkpoint in `out`, and returns whether it reached the end. Logs go to `home`.

    `Recipe.evaluate` is called before the first update, every `eval_every` updates and after the last one. The first
    result is written once, so that a continued run keeps it. `on_names` is given the names of all metrics with the
    first update; a ValueError that it raises ends the run before the second one. `preparation` makes it ready. Long
    because what is written depends on where the run was stopped.
    """
    began, recipe, lanes, count = time.monotonic(), program.recipe, program.lanes, len(program.seeds)
    homes = {arm: home / name for arm, name in program.names.items()}
    identity = {
        "arms": describe(program.arms),
        "seeds": list(program.seeds),
        "models": describe(select_models(settings, recipe)),
        "rollout_mesh": bool(settings.rollout_mesh),
    }
    checkpoints = Checkpoints(
        out / "checkpoints" / program.name, identity, settings.keep, resume=True, may_differ=(),
        beside=[own / "metrics.jsonl" for own in homes.values()],
    )  # fmt: skip
    files = (page.GAMES, "transcript.md", POLICIES, *((BEFORE, AFTER) if recipe.evaluate is not None else ()))
    whole = saved_updates(out, program) == recipe.updates
    whole &= all((own / file).exists() for own in homes.values() for file in files)
    if distributed.broadcast(whole):
        return True
    trainer, found, record, begun = preparation.of(program)
    trainer.watch.tell = lambda text: on_text(f"{program.name}: {text}")
    if trainer.on_host:
        trainer.rollout.wrong_rewards.tell = trainer.watch.tell
    before: Games = {}
    latest: Games = {}

    def evaluated(state: dict) -> Games:
        assert found is not None
        each = [found(trainer.weights(state, lane)) for lane in range(len(lanes))]
        return {name: [np.atleast_1d(np.asarray(one[name], np.float64)) for one in each] for name in each[0]}

    def step(number: int, state: dict) -> tuple[dict, dict[str, Any]]:
        state, metrics = trainer.update(state, number)
        if number == 0:
            on_names({*metrics, *before})
        if found is None or not ((number + 1) % recipe.eval_every == 0 or number + 1 == recipe.updates):
            return state, metrics
        latest.update(evaluated(state))
        return state, metrics | {name: np.array([mean_of_games(games) for games in x]) for name, x in latest.items()}

    def write(file: str, games: Games) -> None:
        for i, own in enumerate(homes.values()):
            of_arm = {name: x[i * count : (i + 1) * count] for name, x in games.items()}
            write_atomically(own / file, json_of(of_arm))

    def taught(number: int, metrics: Mapping[str, Any]) -> None:
        """Says how far the warm start of a pretrained model is."""
        if number in (0, 1) or (number + 1) % max(1, recipe.warm_start_updates // 5) == 0:
            left = (time.monotonic() - began) / (number + 1) * (recipe.warm_start_updates - number - 1)
            entropy = np.mean([x for name, x in metrics.items() if name.startswith("cross_entropy/")])
            on_text(
                f"{program.name}: warm start, update {number + 1} of {recipe.warm_start_updates}: cross-entropy "
                f"{entropy:.3f} a token, about {left / 60:.1f} minutes left"
            )

    def init() -> Any:
        return trainer.init(taught, preparation.warm_starts.of(trainer))

    def write_shown(state: Any, update: int) -> None:
        """Adds games of the first seed of each arm to those of before training."""
        about = [{"study": settings.study, "arm": arm, "seed": seed, "update": update} for arm, seed in lanes]
        runs = {i: about[i] for i in program.shown}
        found = record(state, runs, settings.games)
        for (arm, own), games in zip(homes.items(), found, strict=True) if distributed.is_main_process() else ():
            if update:
                games = [game for game in page.read(own / page.GAMES) if game["update"] == 0] + games
                text = records.transcript([game for game in games if not game["member"]])
                (own / "transcript.md").write_text(text, encoding="utf-8")
                logs[arm].text(update - 1, "transcript", text, program.seeds[0])
            write_atomically(own / page.GAMES, page.lines_of(games))

    of = lambda name: lambda text: on_text(f"{name}: {text}")  # noqa: E731
    with ExitStack() as stack:
        stack.enter_context(sharding.use(trainer.mesh))
        start, state = resume(trainer, checkpoints, init if begun is None else lambda: begun)
        logs = {
            arm: stack.enter_context(
                RunLog(homes[arm], program.seeds, describe(program.arms[arm]), of(program.names[arm]), settings.log)
            )
            for arm in homes
        }
        for log in logs.values():
            log.truncate(start)

        def lacks(file: str) -> bool:
            return bool(distributed.broadcast(start == 0 or not all((own / file).exists() for own in homes.values())))

        if found is not None and lacks(BEFORE):
            before |= evaluated(init() if start else state)
            write(BEFORE, before)
        if lacks(page.GAMES):
            write_shown(init() if start else state, 0)

        def report(number: int, metrics: Mapping[str, Any]) -> None:
            nonlocal began
            took, began = (time.monotonic() - began) / len(logs), time.monotonic()
            for i, log in enumerate(logs.values()):
                own = {name: np.asarray(x)[i * count : (i + 1) * count] for name, x in metrics.items()}
                log.scalars(number, own | {"seconds": took})
            on_step(number, {**metrics, "arms": "+".join(logs)})

        with inspected(trainer, [f"{arm}, seed {seed}" for arm, seed in lanes], home):
            state, done = train(
                step, state, start=start, steps=recipe.updates, checkpoints=checkpoints,
                every=settings.checkpoint_every, on_step=report, stop=stop, patience=settings.max_skipped,
                streak=np.concatenate([log.streak for log in logs.values()]),
            )  # fmt: skip
        for log in logs.values() if not done else ():
            log.end("stopped", "SIGTERM or SIGINT; the same command continues.")
        if done and found is not None:
            write(AFTER, latest or evaluated(state))
        if done:
            write_shown(state, recipe.updates)
            for i, own in enumerate(homes.values()):
                save_policies(trainer, state, i * count, own / POLICIES)
    trainer.base.clear()  # jit's caches hold on to the trainer, which would hold a model for every seed
    preparation.forget()
    return done


def save_policies(trainer: Trainer, state: Any, run: int, directory: Path) -> None:
    """Writes each learner of a run to directory/NAME, but for pretrained models of which all weights are trained: they
    stand in the checkpoint."""
    parts = trainer.parts
    small = {name: home for name, home in parts.policy_set_of.items()
             if name in parts.learners and (home not in parts.base or parts.policy_sets[home].lora)}  # fmt: skip

    own = {name: jax.tree.map(lambda x: x[run], state.learners.weights[name]["policy"]) for name in small}
    taken = jax.jit(sharding.everywhere)(own)
    if distributed.is_main_process():
        directory.mkdir(exist_ok=True)
        for name, home in small.items():
            policy_set = parts.policy_sets[home]
            save_policy(directory / name, policy_set, policy_set.policies.index(name), taken[name], home)


def mean_of_games(games: np.ndarray) -> float:
    """The mean of the games [n] that were measured; NaN without any."""
    measured = games[~np.isnan(games)]
    return float(measured.mean()) if len(measured) else np.nan


def json_of(games: Games) -> bytes:
    """{metric: [seeds][games]}; what is not finite is null."""
    clean = {name: [[x if np.isfinite(x) else None for x in one.tolist()] for one in x] for name, x in games.items()}
    return (json.dumps(clean) + "\n").encode()


def read_curves(out: Path, arm: str, seeds: Sequence[int], updates: int, alone: bool) -> dict[str, np.ndarray]:
    """An arm's curves, {metric: [seeds, updates]}; NaN where a metric was not measured or not finite.

    Raises ValueError unless there is one line for every seed and update.
    """
    columns = []  # one a seed
    for seed in seeds:
        file = out / run_name(arm, seed, alone) / "metrics.jsonl"
        try:
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError):
            lines = []
        columns.append([line for line in lines if line["seed"] == seed])
        if [line["step"] for line in columns[-1]] != list(range(updates)):
            raise ValueError(f"{file} does not hold {updates} updates of seed {seed}, each once: name another --out.")
    names = dict.fromkeys(name for column in columns for line in column for name in line)
    return {
        name: np.array([[line.get(name) for line in column] for column in columns], np.float64)
        for name in names
        if name not in ("step", "seed")
    }


def read_games(out: Path, file: str, arm: str, seeds: Sequence[int], alone: bool) -> dict[str, np.ndarray]:
    """What `Recipe.evaluate` found of an arm, {metric: [seeds, games]}; nothing where the recipe has no evaluation.

    Raises ValueError for a damaged file.
    """
    names = dict.fromkeys(run_name(arm, seed, alone) for seed in seeds)
    files = [out / name / file for name in names]
    if not files[0].exists():
        return {}
    try:
        parts = [json.loads(one.read_text(encoding="utf-8")) for one in files]
        return {name: np.array([row for part in parts for row in part[name]], np.float64) for name in parts[0]}
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{files[0].parent} holds a damaged {file}: name another --out.") from None
