"""A plan: the memory, FLOPs, collectives and step time of a recipe on hardware that you don't have.

python -m PACKAGE plan mars --model qwen3-8b --mesh data=8,fsdp=8
python -m PACKAGE plan mars --model smollm2 --device cpu
python -m PACKAGE plan dr_mas --model qwen3-4b --mesh fsdp=8 --device a100 --rank 0 --no-compile
python -m PACKAGE plan prompts --data questions.jsonl --budget 256 --model qwen3-1.7b

Nothing is allocated. The whole step is compiled on simulated CPU devices with abstract arrays, in a minute or two for
36 layers. Its figures stand beside the arithmetic of `cost_model`. XLA's compiler for CPUs keeps bfloat16 weights a
second time in float32, so the float32 program is compiled; memory of another dtype is arithmetic alone.

Assumptions: games are as long as they can be. Memory traffic counts the arrays that a step has to read and write.
Products reach half of the matrix rate; reading and sending reach 70% of every bandwidth. A collective waits 10 us on
links and 25 us on a network. Nothing overlaps. Collectives are those of XLA's compiler for CPUs. Other compilers may
join several, or scatter gradients instead of summing them everywhere, for half the bytes. Training with
`--rollout-mesh` cannot be planned.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.table import Table

from jaxmarl_llm.devices import hlo, scopes, sharding, surroundings, target
from jaxmarl_llm.models import loading
from jaxmarl_llm.models.config import Dtypes
from jaxmarl_llm.models.hf_families import KNOWN
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.planning import cost_model
from jaxmarl_llm.planning.accelerators import (
    ACCELERATORS,
    PHASES,
    USABLE,
    Accelerator,
    collective_seconds,
    seconds,
    this_machine,
)
from jaxmarl_llm.planning.changes import changes
from jaxmarl_llm.planning.cost_model import Job
from jaxmarl_llm.rollout.text_rows import power_of_two
from jaxmarl_llm.runs.profile import SCOPE
from jaxmarl_llm.studies import registry
from jaxmarl_llm.studies.study import Study
from jaxmarl_llm.text.arguments import read_arguments
from jaxmarl_llm.text.console import lasting
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.setup import LORA, TINY, Model, for_pretrained, learner_shapes
from jaxmarl_llm.training.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Settings:
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
    """Name of the study; its method is planned, at the size of a run with this model."""
    model: str = "smollm2"
    """A name, a directory with config.json, a GGUF file or a hub id. Names are smollm2, gemma3-270m, qwen3-0.6b to
    qwen3-32b, qwen3.5-0.8b to qwen3.5-27b and gemma4-e2b, -e4b, -26b-a4b and -31b. Or tiny, for one run of the study's
    tiny policies."""
    width: int = 0
    """Width of tiny policies; 0: the recipe's."""
    layers: int = 0
    """Number of layers of tiny policies; 0: the recipe's."""
    mesh: str = ""
    """Devices by axis, e.g. data=8,fsdp=8; the default is one device."""
    device: Literal["a100", "h100", "h200", "v5e", "v5p", "v6e", "cpu"] = "h100"
    """cpu: this machine, measured."""
    arm: str | None = None
    """Another arm than the study's method."""
    groups: int = 0
    """Groups per update; 0: the recipe's number, or one for every part of the batch if the mesh needs more."""
    group_size: int = 0
    """Episodes of a group; 0: the recipe's number."""
    rank: Annotated[int | None, tyro.conf.arg(help_behavior_hint="")] = None
    """Rank of each policy's adapter; 0: all weights are trained. Default: the recipe's, which is 32 if it says
    nothing."""
    grad_accumulation: int = 0
    """Micro-batches; 0: the recipe's number."""
    remat: Literal["recipe", "none", "dots", "full"] = "recipe"
    dtype: Annotated[Literal["float32", "bfloat16"] | None, tyro.conf.arg(help_behavior_hint="")] = None
    """The default is float32 on a cpu, else bfloat16."""
    compile: bool = True
    """False: arithmetic alone, which takes seconds. Tiny policies and questions have no other plan."""
    data: Path | None = None
    """The questions of `plan prompts`, a file as the command `prompts` reads it."""
    system: str = ""
    """The system message of questions without one."""
    budget: int = 0
    """The most tokens of an answer to a question; 0: the number of the command `prompts`."""
    slots: int = 0
    """Answers to questions that are computed at a time; 0: the number of the command `prompts`."""

    @property
    def is_tiny(self) -> bool:
        return self.model == TINY


def recipe_of(settings: Settings, study: Study) -> Recipe:
    """The recipe with the settings applied. Raises ValueError for settings that cannot work."""
    for name in ("groups", "group_size", "rank", "grad_accumulation"):
        if (getattr(settings, name) or 0) < 0:
            raise ValueError(f"{name} must not be negative, got {getattr(settings, name)}.")
    arm = settings.arm or study.method
    if arm in study.all_arms and arm not in study.recipes:
        raise ValueError(f"The arm {arm} of {settings.recipe} is computed, without policies: there is nothing to plan.")
    if arm not in study.recipes:
        raise ValueError(f"{settings.recipe} has no arm {arm!r}: choose from {', '.join(study.recipes)}.")
    size = {n: getattr(settings, n) for n in ("width", "layers") if getattr(settings, n)}
    if size and not settings.is_tiny:
        raise ValueError(f"--width and --layers are of tiny policies, and {settings.model} has its own size.")
    recipe = study.recipes[arm] if settings.is_tiny else for_pretrained(study.recipes[arm])
    recipe = dataclasses.replace(recipe, size=dataclasses.replace(recipe.size, **size))
    given: dict[str, Any] = {
        n: getattr(settings, n) for n in ("group_size", "grad_accumulation") if getattr(settings, n)
    }
    if settings.remat != "recipe":
        given["remat"] = settings.remat
    if settings.rank is not None:
        given["lora"] = Lora(settings.rank, 2.0 * settings.rank, LORA.targets) if settings.rank else None
    recipe = dataclasses.replace(recipe, **given)
    sizes = sharding.counts(settings.mesh)
    unit = math.lcm(len(recipe.seats), sizes["data"] * sizes["fsdp"] * recipe.grad_accumulation * recipe.minibatches)
    groups = settings.groups or (recipe.groups if recipe.groups % unit == 0 else unit)
    return dataclasses.replace(recipe, groups=groups)


def trainer_of(settings: Settings, recipe: Recipe, dtype: str) -> Trainer:
    """A trainer with abstract weights."""
    models = {name: Model(settings.model, recipe.lora, recipe.sampling, dtype) for name in recipe.learners}
    return Trainer(recipe, [recipe.all_hparams], [0], models, settings.mesh, load=loading.abstract)


def jobs_of(trainer: Trainer) -> list[Job]:
    """The jobs of a step, one for each policy set."""
    recipe, jobs = trainer.recipe, []
    for name, layout in trainer.rollout.layouts.items():
        policy_set = layout.policy_set
        assert policy_set.config is not None  # only models have plans
        jobs.append(
            Job(
                policy_set.config,
                policy_set.loras,
                **_row_sizes(trainer, name),
                prompts=len(layout.assignments),
                group_size=layout.group_size,
                forced=layout.tables.forced.shape[1],
                max_sampled_tokens=trainer.rollout.max_sampled_tokens(name),
                epochs=recipe.epochs,
                parts=recipe.minibatches * recipe.grad_accumulation,
                grad_accumulation=recipe.grad_accumulation,
                moments=_moments(trainer, policy_set.policies),
                scorings=recipe.reference + recipe.critic,
                remat=recipe.remat,
                mesh=dict(trainer.mesh.shape),
            )
        )
    return jobs


def _row_sizes(trainer: Trainer, policy_set: str) -> dict[str, int]:
    """The fields of a job that the rows of a rollout decide. Answers to questions are padded to powers of two."""
    rollout = trainer.rollout
    if trainer.on_host:
        if not hasattr(rollout, "prompt_width"):
            raise ValueError("Only questions have a plan among games in plain Python: other rows have no known width.")
        answer = rollout.budget - 1  # the end takes no place of its own
        said = {"max_said": answer, "max_sampled": answer, "slots": power_of_two(answer)}
        once = {"turns": 1, "alternating_seats": 1, "max_heard": 0, "chunk": 1}
        at_once = power_of_two(rollout.game.slots, 1)
        return {"prompt_width": rollout.prompt_width(policy_set), "at_once": at_once, **said, **once}
    sizes = "prompt_width", "max_heard", "max_said", "max_sampled", "chunk", "slots", "alternating_seats"
    layout = rollout.layouts[policy_set]
    return {"turns": trainer.recipe.game.turns, **{name: getattr(layout, name) for name in sizes}}


def _moments(trainer: Trainer, policies: Sequence[str]) -> float:
    """Bytes of the optimisers' states of a policy set per byte of its trainable weights, without counters."""
    weights = {name: shapes for name, shapes in learner_shapes(trainer.parts).items() if name in policies}
    states = jax.eval_shape(trainer.parts.optimiser.init, weights).optimiser
    size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree) if x.ndim)
    return size(states) / size(weights)


def compile_step(trainer: Trainer) -> Any:
    """The compiled program of a whole step, with abstract weights and states: nothing is allocated."""
    # LLVM's optimisations change neither buffers nor collectives
    return trainer.lower_update().compile({"xla_backend_optimization_level": 0})


def bytes_of(program: Any, jobs: Sequence[Job], reference: bool = False) -> float:
    """Peak bytes of a device by XLA's figures. The base counts once, as in a trainer, also if several jobs read it."""
    memory, job = program.memory_analysis(), jobs[0]
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    read = len(jobs) if job.loras or reference else 0
    return held + memory.temp_size_in_bytes + (1 - read) * job.bytes_of(job.base)


def count_step(program: Any, jobs: Sequence[Job]) -> dict[str, hlo.Work]:
    """{phase: work of a device} of a program; loops of unknown length count with their most iterations."""
    iterations = {name: max(cost_model.loops(job)[name] for job in jobs) for name in cost_model.loops(jobs[0])}

    def phase(path: str) -> str | None:
        inner = SCOPE.findall(path)
        return ("update" if inner[-1] in scopes.UPDATE_PARTS else "rollout") if inner else None

    trips = lambda path: next(n for end, n in iterations.items() if path.endswith(end))
    works = hlo.count_work(program.as_text(), trips, jobs[0].mesh, phase, "rollout")
    return {name: works.get(name, hlo.Work()) for name in PHASES}


def plan(settings: Settings, study: Study, console: Console) -> None:
    """Prints the plan. Raises ValueError, before anything compiles, for settings that cannot work."""
    with target.as_on("cpu" if settings.device == "cpu" else "accelerator"):
        _plan(settings, study, console)


def _plan(settings: Settings, study: Study, console: Console) -> None:
    recipe = recipe_of(settings, study)
    dtype = settings.dtype or ("float32" if settings.device == "cpu" else "bfloat16")
    trainer = trainer_of(settings, recipe, "float32")
    full = jobs_of(trainer)
    jobs = [_as(job, dtype) for job in full]
    mesh, devices = jobs[0].mesh, math.prod(jobs[0].mesh.values())
    accelerator = ACCELERATORS[settings.device] if settings.device in ACCELERATORS else this_machine(devices)
    rows, longest = sum(job.rows for job in jobs), max(job.prompt_width + job.slots for job in jobs)
    console.print(
        f"{settings.recipe} with {settings.model} in {dtype} on {devices} x {settings.device} "
        f"({', '.join(f'{name}={size}' for name, size in mesh.items())}): "
        f"{recipe.groups} groups of {recipe.group_size}, {rows} rows of at most {longest} tokens, "
        f"remat {recipe.remat}, "
        f"{f'adapters of rank {recipe.lora.rank}' if recipe.lora and not settings.is_tiny else 'all weights trained'}."
    )
    if settings.model in KNOWN:
        console.print("Its tokenizer is not here: text lengths are measured with SmolLM2's tokenizer.")
    measured = works = None
    if settings.compile and not settings.is_tiny and not trainer.on_host:
        with console.status("Compiling"):
            program = compile_step(trainer)
        measured, works = bytes_of(program, full, recipe.reference), count_step(program, full)
    _show_memory(console, jobs, full, measured, accelerator, dtype)
    _show_step(console, jobs, works, accelerator, jnp.dtype(dtype).itemsize)


def _as(job: Job, dtype: str) -> Job:
    dtypes = Dtypes(dtype if job.loras else "float32", dtype, dtype)  # as a trainer has them
    return dataclasses.replace(job, config=dataclasses.replace(job.config, dtypes=dtypes))


def _show_memory(
    console: Console, jobs: list[Job], full: list[Job], measured: float | None, accelerator: Accelerator, dtype: str
) -> None:
    table = Table(title="Memory of a device in the longest games, GB")
    columns = {dtype: jobs} | ({"float32": full} if measured is not None else {})
    for name in ("", "", *columns, *(["compiled, float32"] if measured is not None else [])):
        table.add_column(name, justify="left" if not name else "right")
    phases = {name: cost_model.memory(those) for name, those in columns.items()}
    for phase, parts in phases[dtype].items():
        for i, what in enumerate(name for name, size in parts.items() if size):
            table.add_row("" if i else phase, what, *(f"{phases[name][phase][what] / 1e9:.3f}" for name in columns))
    total = {name: cost_model.peak(parts) for name, parts in phases.items()}
    sums = [f"{size / 1e9:.3f}" for size in total.values()]
    table.add_section()
    table.add_row("at most", "held and one of the others", *sums, *([f"{measured / 1e9:.3f}"] if measured else []))
    console.print(table)
    room, more = USABLE * accelerator.memory, max(1.0, measured / total["float32"]) if measured else 1.0
    how = f"arithmetic, times {more:.2f} for what is compiled" if measured else "arithmetic alone, to about 20%"
    size = more * total[dtype]
    if size <= room:
        console.print(f"It fits: {size / 1e9:.1f} of {room / 1e9:.1f} GB ({USABLE:.0%} of a device's), by {how}.")
        return
    console.print(f"It does not fit: {size / 1e9:.1f} GB of {room / 1e9:.1f} ({USABLE:.0%} of a device's), by {how}.")
    fitting = changes(jobs, room / more)
    for name, bytes_ in fitting:
        console.print(f"It would fit with {name}: {more * bytes_ / 1e9:.1f} GB.")
    if not fitting:
        console.print("No change tried would make it fit: use a smaller model, or devices with more memory.")


def _show_step(
    console: Console, jobs: list[Job], works: Mapping[str, hlo.Work] | None, accelerator: Accelerator, width: int
) -> None:
    table = Table(title="A step of one device: longest games, least traffic")
    for name in ("", *PHASES):
        table.add_column(name, justify="right" if name else "left")
    spent = seconds(jobs, works, accelerator, width)
    operations, moved = (
        [sum(f(job)[p] for job in jobs) for p in PHASES] for f in (cost_model.operations, cost_model.bytes_moved)
    )
    lines = {"TFLOP": [x / 1e12 for x in operations], "GB read and written": [x / 1e9 for x in moved]}
    if works:
        lines["TFLOP counted in the program"] = [works[phase].operations / 1e12 for phase in PHASES]
        lines["GB counted in the float32 program"] = [works[phase].moved / 1e9 for phase in PHASES]
    for i, what in enumerate(("products", "memory", "collectives") if works else ("products", "memory")):
        lines[f"seconds of {what}"] = [spent[phase][i] for phase in PHASES]
    lines["seconds"] = [max(products, memory) + sent for products, memory, sent in spent.values()]
    for name, values in lines.items():
        table.add_row(name, *(f"{value:.3g}" for value in values))
    console.print(table)
    without = "launches and the host" if works else "launches, the host and collectives"
    console.print(f"Expected: {sum(lines['seconds']):.3g} s a step, without {without}.")
    for phase, expected in zip(PHASES, operations, strict=True):
        if works and not 0.8 < works[phase].operations / expected < 1.25:
            console.print(f"In the {phase} the program's operations and those of the arithmetic differ.")
        if works and works[phase].hidden:
            console.print(f"In the {phase} the program calls a library's products, whose operations are not counted.")
    if works is None or not any(work.collectives for work in works.values()):
        return
    table = Table(title="Collectives of a step, as XLA's compiler for CPUs places them")
    for name in ("", "kind", "axes", "times", "GB, float32", "seconds"):
        table.add_column(name, justify="left" if name in ("", "kind", "axes") else "right")
    for phase, work in works.items():
        for key, (times, size) in sorted(work.collectives.items(), key=lambda item: -item[1][1]):
            figures = size / 1e9, collective_seconds(phase, key, (times, size), jobs[0], accelerator, width)
            table.add_row(phase, *key, f"{times:.0f}", *(f"{number:.3g}" for number in figures))
    console.print(table)


def study_of(package: str, settings: Settings) -> Study:
    """The study of a package to plan. The study `prompts` is that of its command `prompts`, with the questions of
    `data`. Raises ValueError for an unknown study, and for questions without a file or without `prompts`."""
    if settings.recipe != "prompts":
        for name in ("data", "system", "budget", "slots"):
            if getattr(settings, name):
                raise ValueError(f"--{name} is of `plan prompts`, and {settings.recipe} is a study.")
        return registry.load(package, settings.recipe).study
    if settings.data is None:
        raise ValueError("plan prompts takes --data FILE, the questions.")
    module = importlib.import_module(f"{package}.prompts")
    given = {name: getattr(settings, name) for name in ("budget", "slots") if getattr(settings, name)}
    # the reward costs nothing that is planned; a pattern reads no field of the questions
    return module.study_of(module.Options(settings.data, ("regex:.",), system=settings.system, **given)).study


def command(package: str, arguments: Sequence[str]) -> None:
    """The command `plan` of a package of studies. It simulates the devices first."""
    with lasting():
        try:
            prog = f"python -m {package} plan"
            settings = read_arguments(Settings, prog, str(__doc__), arguments)
            surroundings.settle()
            sharding.simulate(math.prod(sharding.counts(settings.mesh).values()))
            plan(settings, study_of(package, settings), Console())
        except (ValueError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(2) from None
