"""Runs a study: trains every arm with every seed, then writes and prints the results.

Tiny policies: all seeds, and arms that differ only in numbers, train side by side in one program. Pretrained models:
one run after the other, with a few updates of a few games. The same command continues a stopped run (Ctrl-C, SIGTERM,
SIGKILL, a crash) from its last checkpoint, and ends with the same table. With more `--seeds` it adds seeds to a
finished run, whose numbers stay; a frozen table never grows. A run refuses other settings, fewer seeds, changed code
that the study imports, and a second process.

With `--sweep learning_rate=1e-3,3e-3,1e-2` each value is an arm, e.g. `centred[learning_rate=0.003]`, of the method or
of `--arms`, and tiny policies train all of them in one program. Several names make a grid. No prediction is judged, and
the last sentence names the best value on these seeds by the first main metric.

The run directory holds:

- results.json, and curves.svg, its learning curves
- games.html, games from before and after training to click through

For each arm it holds:

- metrics.jsonl and TensorBoard files
- the versions and the commit of the run
- the evaluations before and after training
- games.jsonl, the games of games.html (`view/records.py`), and transcript.md, some of them as text
- policies, the trained weights, for `play --against`
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from jaxmarl_llm.devices import distributed
from jaxmarl_llm.models.hf_config import read_config
from jaxmarl_llm.models.loading import ABOUT, locate
from jaxmarl_llm.runs.log import run_directory
from jaxmarl_llm.studies import catalogue, frozen, program, sweep
from jaxmarl_llm.studies.claim import claim_directory
from jaxmarl_llm.studies.computed import LABEL, Computed
from jaxmarl_llm.studies.identity import describe, source_digest
from jaxmarl_llm.studies.lanes import Program, programs, split_seeds
from jaxmarl_llm.studies.pages import figures, report, results
from jaxmarl_llm.studies.pages.about import read_lines
from jaxmarl_llm.studies.predictions import record_of
from jaxmarl_llm.studies.prepared import Preparation, warm_starts
from jaxmarl_llm.studies.profiled import profile
from jaxmarl_llm.studies.program import read_curves, read_games, saved_updates
from jaxmarl_llm.studies.progress import progress
from jaxmarl_llm.studies.registry import Entry
from jaxmarl_llm.studies.settings import Settings, is_shorter, select_arms, select_models
from jaxmarl_llm.studies.study import ANY, Study
from jaxmarl_llm.text.plots import sparkline
from jaxmarl_llm.text.refusals import suggest
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.setup import TINY, TINY_BASE
from jaxmarl_llm.view import page


def run(entry: Entry, settings: Settings, stop: threading.Event, console: Console) -> bool:
    """Trains every program to its end, then writes and prints the results; False if a signal stopped it early.

    Long because it is the whole command in order.
    """
    study, package = entry.study, entry.module.partition(".")[0]
    study.check(entry.name)
    lines = read_lines(catalogue.home(package) / "results" / entry.name, entry.name)
    if settings.profile:
        settings = dataclasses.replace(settings, arms=(study.method,))
    settings.check()
    freeze: dict[str, Any] = {}
    if settings.frozen:
        freeze = frozen.check_run(package, entry.name, study)
        first, *others = freeze["seeds"]
        settings = dataclasses.replace(settings, frozen=False, first_seed=first, seeds=1 + len(others))
    settings = settings.for_study(study)
    every = select_arms(settings, study)
    arms = {name: arm for name, arm in every.items() if isinstance(arm, Recipe)}
    seeds = tuple(range(settings.first_seed, settings.first_seed + settings.seeds))
    out = settings.out
    if out is None:
        words = (entry.name, "frozen" if freeze else Path(settings.label).name, *(["sweep"] if settings.sweep else []))
        out = Path("runs") / "-".join(words)
    alone, judged = not settings.tiny, settings.judges(study)
    if settings.profile:
        if study.method not in arms:
            raise ValueError(f"{study.method} trains nothing: there is nothing to profile.")
        recipe = arms[study.method]
        with run_directory(out) as out:
            profile(program.trainer_of(settings, Program({study.method: recipe}, seeds[:1], alone)), out, console)
        return True
    shorter = is_shorter(settings, study, every)
    info = {
        "study": entry.name,
        "question": study.question,
        "claim": study.claim,
        "paper": study.paper and dataclasses.asdict(study.paper),
        # predictions are about the study's policies, and judge no others
        "predictions": [record_of(x) for x in study.predictions if judged and all(arm in every for arm in x.arms)],
        "checks": [record_of(x) for x in study.checks if judged and all(arm in every for arm in x.arms)],
        "counts": study.counts,
        "x": study.x,
        "shorter": shorter,
        "metrics": study.metrics,
        "settings": describe(every),
        "seeds": seeds,
        "updates": max(arm.updates for arm in every.values()),
        "model": settings.label if arms else LABEL,
        "policies": {arm: describe(select_models(settings, recipe)) for arm, recipe in arms.items()},
        "censored": study.censored_after({sweep.arm_of(name): arm.updates for name, arm in every.items()}),
        "rollout_mesh": bool(settings.rollout_mesh),
        **({"scope": study.scope} if study.scope != TINY else {}),
        **({"sweep": {"grid": sweep.read(settings.sweep), "best": sweep.best_end(study)}} if settings.sweep else {}),
        **({"frozen": {name: freeze[name] for name in ("commit", "digest")}} if freeze else {}),
    }
    sources = {model.source for arm in arms.values() for model in select_models(settings, arm).values()}
    for source in sorted(sources - {TINY, TINY_BASE}):
        read_config(
            locate(source, ABOUT) / "config.json"
        )  # a wrong model ends the run before anything is told or compiled
    for recipe in arms.values():
        program.check(settings, recipe)
    results.check(info)
    main = next((name for name in study.metrics if name not in study.derived), "return")
    seen: dict[str, list[float]] = {}  # values of the main metric, by program

    def tell(part: Program, metrics: Mapping[str, Any]) -> str:
        if main not in metrics:
            return escape(part.name)
        if settings.sweep and len(part.arms) > 1:
            means = np.mean(np.reshape(metrics[main], (len(part.arms), -1)), 1)  # lanes are ordered by arm
            return escape(sweep.standing([*part.arms], main, means.tolist()))
        values = seen.setdefault(part.name, [])
        values.append(float(np.mean(metrics[main])))
        return f"{escape(part.name)}: {main} {values[-1]:.3f} {sparkline(values)}"

    def title(part: Program) -> str:
        return sweep.title([*part.arms]) if settings.sweep and len(part.arms) > 1 else part.name

    with (
        run_directory(out) as out,
        distributed.output_directory(out) as home,
        claim_directory(home, json.loads(json.dumps(info | {"code": code_of(entry)})), freeze.get("head")) as claimed,
    ):
        begun, added = claimed[0], distributed.agree(claimed[1])
        plan = programs(arms, seeds, alone, added)
        updates = [part.recipe.updates for part in plan]
        claim = f"Claim, written before the run: {study.claim}"
        if study.scope != ANY and (shorter or not judged):
            about = "a whole run" if judged else "tiny policies" if study.scope == TINY else study.scope
            claim = f"Claim about {about}, not tested by this run: {study.claim}"
        if settings.sweep:
            claim = "This is a sweep: no prediction is judged."
        elif len(arms) == 1 and not settings.updates:
            claim = study.expected.get((settings.label, next(iter(arms))), claim)
        amount = f"{sum(updates)} updates" if plan else "computed"
        amount += f" in {len(plan)} programs" * (len(plan) > 1)
        console.print(f"{escape(claim)} This run: {amount}, in {escape(str(out))}")
        began = time.monotonic()
        computed = {name: arm.curves(seeds) for name, arm in every.items() if isinstance(arm, Computed)}
        took = time.monotonic() - began
        names = {name: {*curves} for name, curves in computed.items()}
        check_metrics(entry, every, names)
        saved = lambda part: saved_updates(out, part)
        imitating = warm_starts(plan, [*map(saved, plan)])
        with (
            Preparation(plan, lambda part: program.trainer_of(settings, part), saved, stop) as preparation,
            progress(console, [*map(title, plan)], updates, [*map(saved, plan)], imitating) as shown,
        ):
            for number, part in enumerate(plan):
                shown.begin(number)
                count = lambda number, metrics, part=part: shown.step(tell(part, metrics))

                def check(measured: set[str], part: Program = part) -> None:
                    check_best(settings.keep.best, measured)
                    names.update(dict.fromkeys(part.arms, measured))
                    check_metrics(entry, every, names)

                text = lambda said: console.print(escape(said))
                if not program.train_program(settings, out, home, part, stop, count, text, check, preparation):
                    console.print("Stopped and saved: the same command continues the run.")
                    return False
        if distributed.is_main_process():
            collected = collect_results(out, study, arms, seeds, alone, computed, added)
            collected["seconds"] += took
            written = results.write(out, info, **collected, provenance=begun)
            drawn = figures.draw(written, lines, written["metrics"])
            for name, image in drawn.items():
                if image is not None:
                    results.write_atomically(out / name, image)
            report.show(written, console)
            if arms:
                page.write(out, out)
                console.print(f"Games to look at: {escape(str(out / page.PAGE))}")
            if not drawn:
                console.print("No figures were drawn: they need matplotlib, `pip install matplotlib`.")
            if images := [escape(str(out / name)) for name, image in drawn.items() if image is not None]:
                console.print(f"Figures: {', '.join(images)}")
        return True


def code_of(entry: Entry) -> dict[str, str]:
    """{module: digest of its code and of what it imports} of a study, and of further modules such as a reward's."""
    further = {module: source_digest([module]) for module in entry.further}
    return further | {entry.module: source_digest([entry.module, program.__name__])}


def collect_results(
    out: Path,
    study: Study,
    arms: Mapping[str, Recipe],
    seeds: Sequence[int],
    alone: bool,
    computed: Mapping[str, Mapping[str, np.ndarray]],
    added: Sequence[int] = (),
) -> dict[str, Any]:
    """The arguments of `results.write`: curves and evaluations from the logs of a finished run, and computed curves."""
    curves = {arm: read_curves(out, arm, seeds, recipe.updates, alone) for arm, recipe in arms.items()}
    times = [curve.pop("seconds") for curve in curves.values()]
    # lanes of one program share their seconds; pretrained models run one after the other
    shared = split_seeds(seeds, seeds if alone else added)
    seconds = sum(float(np.nansum(time[np.isin(seeds, part)].mean(0))) for time in times for part in shared)
    curves |= {arm: dict(curve) for arm, curve in computed.items()}
    final = {arm: {name: f(curve) for name, f in study.derived.items()} for arm, curve in curves.items()}
    before, after = (
        {arm: read_games(out, file, arm, seeds, alone) for arm in arms} for file in (program.BEFORE, program.AFTER)
    )
    return {"curves": curves, "seconds": seconds, "final": final, "before": before, "after": after}


def check_best(best: str, measured: Collection[str]) -> None:
    """Raises ValueError if no checkpoint could be the best by this metric, since no update measures it."""
    if best and best not in measured:
        names = sorted(measured)
        raise ValueError(
            f"No update measures {best!r} of --keep.best. {suggest(best, names)}Known: {', '.join(names)}."
        )


def check_metrics(entry: Entry, arms: Mapping[str, Recipe | Computed], names: Mapping[str, set[str]]) -> None:
    """Raises ValueError if an arm lacks a predicted metric, or if every arm lacks a main metric.

    `names` is {arm: names of metrics} after the first update of each arm. A main metric may belong to a few arms. Its
    absence is an error once all arms have made their first update. An arm of a pretrained model is exempt if its
    evaluation or its measure differs from the tiny arm's.
    """
    study = entry.study

    def same(a: Recipe | Computed, b: Recipe | Computed) -> bool:
        if isinstance(a, Recipe) and isinstance(b, Recipe):
            return a.evaluate == b.evaluate and a.measure == b.measure
        return True

    stated = {arm: metrics for arm, metrics in names.items() if arm in study.all_arms}  # the arms of a sweep are not
    known = {arm: metrics | {*study.derived} for arm, metrics in stated.items() if same(arms[arm], study.all_arms[arm])}
    for prediction in (*study.predictions, *study.checks):
        for arm in prediction.arms:
            if arm in known and prediction.metric not in known[arm]:
                listed = ", ".join(sorted(known[arm]))
                raise ValueError(f"{entry.name} states {prediction}, but the first update of {arm} measured {listed}.")
    if set(known) == set(study.arms):
        every = set().union(*known.values())
        for metric in study.metrics:
            if metric not in every:
                listed = ", ".join(sorted(every))
                raise ValueError(f"{entry.name} shows the metric {metric!r}, but the first updates measured {listed}.")
