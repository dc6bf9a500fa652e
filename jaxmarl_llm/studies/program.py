"""Training of one program of a study: its lanes, evaluations, logs, checkpoints and saved policies."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.devices import distributed, sharding
from jaxmarl_llm.keys import EVALUATE, key_for
from jaxmarl_llm.models import loading, lora
from jaxmarl_llm.rollout.policy import PLAIN
from jaxmarl_llm.rollout.policy_files import POLICIES, save_policy
from jaxmarl_llm.runs.checkpoint import Checkpoints, digests, seal
from jaxmarl_llm.runs.log import RunLog
from jaxmarl_llm.runs.loop import resume, train
from jaxmarl_llm.runs.nonfinite import save_nonfinite
from jaxmarl_llm.studies.identity import describe, describe_whole
from jaxmarl_llm.studies.lanes import Program, homes_of
from jaxmarl_llm.studies.pages.format import duration
from jaxmarl_llm.studies.pages.results import write_atomically
from jaxmarl_llm.studies.prepared import Preparation
from jaxmarl_llm.studies.settings import Settings, select_models
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.setup import TINY_BASE, playing_mesh, setup
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.view import page, records

BEFORE, AFTER = "before.json", "after.json"  # results of `Recipe.evaluate` before the first and after the last update
Games = dict[str, list[np.ndarray]]  # {metric: a list with the values [games] of each lane or seed}


def trainer_of(settings: Settings, program: Program) -> Trainer:
    """The trainer of a program's lanes."""
    hparams = [program.arms[arm].all_hparams for arm, _ in program.lanes]
    seeds = [seed for _, seed in program.lanes]
    models = select_models(settings, program.recipe)
    # `train` counts skipped updates, also over restarts, and `progress` tells what is compiled
    return Trainer(
        program.recipe, hparams, seeds, models, settings.mesh, settings.rollout_mesh, max_skipped=0, quiet=True
    )


def check(settings: Settings, recipe: Recipe) -> None:
    """Raises ValueError for settings with which a recipe cannot train: makes its parts, with no weights of models."""
    mesh = sharding.mesh(settings.mesh)
    parts = setup(recipe, select_models(settings, recipe), mesh, loading.abstract)
    playing_mesh(parts, mesh, settings.rollout_mesh)


def saved_updates(out: Path, program: Program) -> int:
    """The number of a program's updates that its latest checkpoint holds; 0 without a checkpoint."""
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
    """Trains a program from its last checkpoint in `out`; False if `stop` ended it early. Logs go to `home`.

    `Recipe.evaluate` runs before the first update, every `eval_every` updates and after the last one. Its first result
    is written once, and a continued run keeps it. `on_names` receives the names of all metrics after the first update;
    a ValueError from it ends the run.
    """
    training = Training(settings, home, program, on_step, on_text, on_names, preparation)
    checkpoints = Checkpoints(
        out / "checkpoints" / program.name, identity(settings, program), settings.keep, resume=True, may_differ=(),
        beside=[arm_home / "metrics.jsonl" for arm_home in training.homes.values()],
    )  # fmt: skip
    whole = saved_updates(out, program) == program.recipe.updates and training.is_written()
    if distributed.broadcast(whole):
        return True
    trainer = training.prepare()
    if settings.keep.best and program.recipe.evaluate is None and (names := trainer.metric_names()):
        on_names(names)  # a misspelt metric ends the run before its first update
    if distributed.any_process(stop.is_set()):
        return False
    with ExitStack() as stack:
        stack.enter_context(sharding.use(trainer.mesh))
        start, state = resume(trainer, checkpoints, training.first_state)
        training.open_logs(stack, start)
        training.write_before(start, state, stop)
        with save_nonfinite(trainer, program.lane_names, home):
            state, done = train(
                training.step, state, start=start, steps=program.recipe.updates, checkpoints=checkpoints,
                every=settings.checkpoint_every, on_step=training.report, stop=stop, patience=settings.max_skipped,
                streak=np.concatenate([log.streak for log in training.logs.values()]),
            )  # fmt: skip
        if done:
            training.write_after(state)
        else:
            training.end_logs()
    preparation.forget()
    return done


def identity(settings: Settings, program: Program) -> dict[str, Any]:
    """The settings in a checkpoint of the program; a run with other settings, or with other files of its frozen
    policies, cannot continue from it."""
    frozen = program.recipe.frozen
    return {
        "arms": describe(program.arms),
        "seeds": list(program.seeds),
        "models": describe(select_models(settings, program.recipe)),
        "rollout_mesh": bool(settings.rollout_mesh),
        **({"frozen": {name: seal(digests(Path(home))) for name, home in frozen.items()}} if frozen else {}),
    }


class Training:
    """One training of a program, for `train_program`: its trainer, and its logs, evaluations and files."""

    def __init__(
        self,
        settings: Settings,
        home: Path,
        program: Program,
        on_step: Callable[[int, Mapping[str, Any]], None],
        on_text: Callable[[str], None],
        on_names: Callable[[set[str]], None],
        preparation: Preparation,
    ):
        self.settings, self.program, self.recipe, self.preparation = settings, program, program.recipe, preparation
        self.on_step, self.on_text, self.on_names, self.home = on_step, on_text, on_names, home
        self.homes = {arm: home / name for arm, name in program.names.items()}
        self.began = time.monotonic()  # start of the warm start or of the current update, seconds
        self.logs: dict[str, RunLog] = {}
        self.before: Games = {}  # evaluations before the first update
        self.latest: Games = {}  # the latest evaluations after it

    def is_written(self) -> bool:
        """True if every arm has all files of a finished training, with as many games as are asked for now."""
        files = (page.GAMES, "transcript.md", POLICIES, *((BEFORE, AFTER) if self.recipe.evaluate is not None else ()))
        return all(self._exists(file) for file in files) and all(map(self._has_games, self.homes.values()))

    def _has_games(self, arm_home: Path) -> bool:
        """True if as many games after training are recorded as the settings ask for."""
        after = [game for game in page.read(arm_home / page.GAMES) if game["update"] == self.recipe.updates]
        return len(after) >= len(records.select_games(self.recipe, self.settings.games))

    def prepare(self) -> Trainer:
        """Waits for the preparation of the program, and returns its trainer."""
        self.ready = self.preparation.prepare(self.program)
        trainer = self.trainer = self.ready.trainer
        trainer.watch.tell = prefix_texts(self.on_text, self.program.name)
        if len(self.program.arms) > 1:
            trainer.watch.names = self.program.lane_names
        if trainer.on_host:
            trainer.rollout.wrong_rewards.tell = trainer.watch.tell
        return trainer

    def init(self) -> Any:
        return self.trainer.init(self.tell_warm_start, self.preparation.warm_starts.get(self.trainer))

    def first_state(self) -> Any:
        """The initial state, which training donates."""
        return self.init() if self.ready.state is None else self.ready.state

    def open_logs(self, stack: ExitStack, start: int) -> None:
        """Opens each arm's log until `stack` closes, and removes its lines from update `start` on."""
        for arm, arm_home in self.homes.items():
            tell = prefix_texts(self.on_text, self.program.names[arm])
            config, sinks = describe_whole(self.program.arms[arm]), self.settings.log
            drift = not self.trainer.tiny or bool(self.recipe.warm_start)
            log = RunLog(arm_home, self.program.seeds, config, tell, sinks, drift)
            self.logs[arm] = stack.enter_context(log)
        for log in self.logs.values():
            log.truncate(start)

    def end_logs(self) -> None:
        """Marks each arm's log as stopped by a signal."""
        for log in self.logs.values():
            log.end("stopped", "SIGTERM or SIGINT; the same command continues.")

    def write_before(self, start: int, state: Any, stop: threading.Event) -> None:
        """Writes evaluations and games of the initial state, unless an earlier start of the run wrote them.

        A stop ends it between the two; they are minutes with a pretrained model.
        """
        if distributed.any_process(stop.is_set()):
            return
        if self.ready.evaluate is not None and self._lacks(BEFORE, start):
            self.before |= self.evaluate(self.init() if start else state)
            self._write(BEFORE, self.before)
        if self._lacks(page.GAMES, start) and not distributed.any_process(stop.is_set()):
            self.write_games(self.init() if start else state, 0)
        if distributed.is_main_process():
            with suppress(ValueError):  # a file of another arm that is damaged ends no run here
                page.write(self.home, self.home)  # it follows the files of games while the run lasts

    def write_after(self, state: Any) -> None:
        """Writes evaluations, games and policies of the final state."""
        if self.ready.evaluate is not None:
            self._write(AFTER, self.latest or self.evaluate(state))
        self.write_games(state, self.recipe.updates)
        for i, arm_home in enumerate(self.homes.values()):
            save_policies(self.trainer, state, i * len(self.program.seeds), arm_home / POLICIES)

    def step(self, number: int, state: dict) -> tuple[dict, dict[str, Any]]:
        """Runs update `number`, and an evaluation every `eval_every` updates and after the last: (state, metrics).

        Metrics include the evaluation's means over games if there was one. Games are written every `games_every`
        updates.
        """
        state, metrics = self.trainer.update(state, number)
        if number == 0:
            self.on_names({*metrics, *self.before})
        between = self.settings.games_every and (number + 1) % self.settings.games_every == 0
        if between and number + 1 < self.recipe.updates:
            self.write_games(state, number + 1)
        due = (number + 1) % self.recipe.eval_every == 0 or number + 1 == self.recipe.updates
        if self.ready.evaluate is None or not due:
            return state, metrics
        self.latest |= self.evaluate(state)
        means = {name: np.array([mean_of_games(games) for games in x]) for name, x in self.latest.items()}
        return state, metrics | means

    def evaluate(self, state: dict) -> Games:
        """{metric: a list with the values [games] of each lane}, from `Recipe.evaluate`."""
        assert self.ready.evaluate is not None
        keys = [key_for(jax.random.key(seed), EVALUATE) for _, seed in self.program.lanes]
        results = [self.ready.evaluate(self.trainer.weights(state, lane), key) for lane, key in enumerate(keys)]
        return {name: [np.atleast_1d(np.asarray(lane[name], np.float64)) for lane in results] for name in results[0]}

    def report(self, number: int, metrics: Mapping[str, Any]) -> None:
        """Logs the metrics of an update."""
        took, self.began = (time.monotonic() - self.began) / len(self.logs), time.monotonic()
        for i, log in enumerate(self.logs.values()):
            of_arm = {name: np.asarray(x)[self._lanes(i)] for name, x in metrics.items()}
            log.scalars(number, of_arm | {"seconds": took})
        self.on_step(number, metrics)

    def tell_warm_start(self, number: int, metrics: Mapping[str, Any]) -> None:
        """Prints the progress of a pretrained model's warm start: after updates 1 and 2, then five times."""
        updates = self.recipe.warm_start_updates
        if number in (0, 1) or (number + 1) % max(1, updates // 5) == 0:
            left = (time.monotonic() - self.began) / (number + 1) * (updates - number - 1)
            entropy = np.mean([x for name, x in metrics.items() if name.startswith("cross_entropy/")])
            self.on_text(
                f"{self.program.name}: warm start, update {number + 1} of {updates}: cross-entropy "
                f"{entropy:.3f} a token, about {duration(left)} left"
            )

    def write_games(self, state: Any, update: int) -> None:
        """Writes recorded games of the first seed of each arm; those of earlier updates stay."""
        about = [
            {"study": self.settings.study, "arm": arm, "seed": seed, "update": update}
            for arm, seed in self.program.lanes
        ]
        runs = {i: about[i] for i in self.program.display_lanes}
        shown = self.ready.record(state, runs, self.settings.games)
        if not distributed.is_main_process():
            return
        for (arm, arm_home), games in zip(self.homes.items(), shown, strict=True):
            for name, values in records.token_values(games).items():
                self.logs[arm].histogram(max(0, update - 1), f"games/{name}", values, self.program.seeds[0])
            if update:
                games = [game for game in page.read(arm_home / page.GAMES) if game["update"] < update] + games
            if update == self.recipe.updates:
                ends = [game for game in games if not game["member"] and game["update"] in (0, update)]
                text = records.transcript(ends)
                (arm_home / "transcript.md").write_text(text, encoding="utf-8")
                self.logs[arm].text(update - 1, "transcript", text, self.program.seeds[0])
            write_atomically(arm_home / page.GAMES, page.lines_of(games))

    def _write(self, file: str, games: Games) -> None:
        for i, arm_home in enumerate(self.homes.values()):
            of_arm = {name: x[self._lanes(i)] for name, x in games.items()}
            write_atomically(arm_home / file, json_of(of_arm))

    def _lanes(self, arm: int) -> slice:
        count = len(self.program.seeds)
        return slice(arm * count, (arm + 1) * count)

    def _exists(self, file: str) -> bool:
        return all((arm_home / file).exists() for arm_home in self.homes.values())

    def _lacks(self, file: str, start: int) -> bool:
        return bool(distributed.broadcast(start == 0 or not self._exists(file)))


def prefix_texts(on_text: Callable[[str], None], name: str) -> Callable[[str], None]:
    """`on_text` with the name of a run before each text."""
    return lambda text: on_text(f"{name}: {text}")


def save_policies(trainer: Trainer, state: Any, run: int, directory: Path) -> None:
    """Writes each learner of the lane `run` to directory/NAME.

    A pretrained model without an adapter is left out: all its weights are trained, and the checkpoint holds them. An
    adapter of a tiny base, which no file holds, is added to it, so that a whole tiny policy is written.
    """
    parts = trainer.parts
    small = {name: home for name, home in parts.policy_set_of.items()
             if name in parts.learners and (home not in parts.base or parts.policy_sets[home].lora)}  # fmt: skip

    weights = {name: jax.tree.map(lambda x: x[run], state.learners.weights[name]["policy"]) for name in small}
    taken = jax.jit(sharding.everywhere)(weights)
    if distributed.is_main_process():
        directory.mkdir(exist_ok=True)
        for name, home in small.items():
            policy_set = parts.policy_sets[home]
            number, weights_of = policy_set.policies.index(name), taken[name]
            if home == TINY_BASE:
                joined = lora.concatenate([weights_of], [policy_set.loras[number]])
                assert joined is not None  # one adapter is given
                weights_of = lora.merge(parts.base[home], joined)
                policy_set = replace(policy_set, policies=(name,), lora=None, sampling=PLAIN)
                number = 0
            save_policy(directory / name, policy_set, number, weights_of, home)


def mean_of_games(games: np.ndarray) -> float:
    """The mean of values [games] without NaN entries; NaN if all are."""
    measured = games[~np.isnan(games)]
    return float(measured.mean()) if len(measured) else np.nan


def json_of(games: Games) -> bytes:
    """{metric: [seeds][games]} as JSON, with null for a value that is not finite."""
    clean = {name: [[x if np.isfinite(x) else None for x in row.tolist()] for row in x] for name, x in games.items()}
    return (json.dumps(clean) + "\n").encode()


def read_curves(out: Path, arm: str, seeds: Sequence[int], updates: int, alone: bool) -> dict[str, np.ndarray]:
    """An arm's curves, {metric: [seeds, updates]}, from metrics.jsonl; NaN for a missing or non-finite value.

    Raises ValueError unless the file holds one line for every seed and update.
    """
    columns = []  # the lines of each seed
    for seed, home in homes_of(out, arm, seeds, alone).items():
        file = home / "metrics.jsonl"
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
    """An arm's results of `Recipe.evaluate` in `file`, {metric: [seeds, games]}; {} without an evaluation.

    Raises ValueError for a damaged file.
    """
    files = [home / file for home in dict.fromkeys(homes_of(out, arm, seeds, alone).values())]
    if not files[0].exists():
        return {}
    try:
        parts = [json.loads(path.read_text(encoding="utf-8")) for path in files]
        return {name: np.array([row for part in parts for row in part[name]], np.float64) for name in parts[0]}
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{files[0].parent} holds a damaged {file}: name another --out.") from None
