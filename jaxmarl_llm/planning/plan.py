"""A plan before paying: what a recipe would hold, do and take with a model, on a mesh that is not there.

python -m PACKAGE plan mars --model qwen3-8b --mesh data=8,fsdp=8
python -m PACKAGE plan mars --model smollm2 --device cpu
python -m PACKAGE plan dr_mas --model qwen3-4b --mesh fsdp=8 --device a100 --rank 0 --no-compile

Nothing is allocated: the whole step is compiled on simulated CPU devices with abstract arrays, a minute or two for 36
layers, and stands beside the arithmetic of `estimate`. XLA's compiler for CPUs keeps bfloat16 weights a second time, in
float32, so that what is compiled is always the float32 program; memory of another dtype is that of the arithmetic.
Games are as long as they can be; of the memory's traffic only what has to be read and written is counted. Seconds
suppose half of the matrix rate, 70% of every bandwidth, that a collective waits 10 us on links and 25 on a network, and
that nothing overlaps. Collectives are those that XLA's compiler for CPUs places; others may join them, and scatter
gradients where it sums them everywhere, for half the bytes. Training with `--ahead` cannot be planned.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from jaxmarl_llm.devices import hlo, sharding
from jaxmarl_llm.models import loading
from jaxmarl_llm.models.config import Dtypes
from jaxmarl_llm.models.hf_config import KNOWN
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.planning import cost_model
from jaxmarl_llm.planning.cost_model import Job
from jaxmarl_llm.studies import registry
from jaxmarl_llm.training.profile import SCOPE

if TYPE_CHECKING:
    from jaxmarl_llm.studies.study import Study
    from jaxmarl_llm.training.recipe import Recipe
    from jaxmarl_llm.training.trainer import Trainer

PHASES = "rollout", "update"
MATRIX, BANDWIDTH, USABLE = 0.5, 0.7, 0.9  # shares of the rates that are reached, of the memory that is free for us


@dataclasses.dataclass(frozen=True)
class Accelerator:
    operations: float  # a second, in products of bfloat16, dense
    reading: float  # bytes a second from its memory
    memory: float  # bytes
    link: float = math.inf  # bytes a second, one way, to devices of the same node,
    node: int = 1  # of which there are so many,
    network: float = math.inf  # and to others, each device by an adapter of its own
    single: float = 1.0  # share of its operations that products of float32 reach
    waits: tuple[float, float] = (10e-6, 25e-6)  # seconds of a collective beside sending, in a node and between nodes


# NVIDIA's data sheets of the SXM modules, NVLink one way, the usual adapter of 200 or 400 Gbit/s a GPU between nodes,
# and TF32 for float32. Google's pages "TPU v5e", "v5p", "v6e": a node is a pod, whose network its chips share; its
# links one way, and those of one axis of the torus alone, as a ring may have no more: half of them, of v5p a third.
ACCELERATORS = {
    "a100": Accelerator(312e12, 2.04e12, 80e9, 300e9, 8, 25e9, 0.5),
    "h100": Accelerator(989e12, 3.35e12, 80e9, 450e9, 8, 50e9, 0.5),
    "h200": Accelerator(989e12, 4.8e12, 141e9, 450e9, 8, 50e9, 0.5),
    "v5e": Accelerator(197e12, 0.82e12, 16e9, 100e9, 256, 3.1e9),
    "v5p": Accelerator(459e12, 2.77e12, 95e9, 200e9, 8960, 6.25e9),
    "v6e": Accelerator(918e12, 1.64e12, 32e9, 200e9, 256, 12.5e9),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    recipe: tyro.conf.Positional[str]
    """Name of the study; its method is planned, at a pretrained model's size."""
    model: str = "smollm2"
    """A name (smollm2, gemma3-270m, qwen3-0.6b to qwen3-32b), a directory with config.json, a GGUF file or a hub id."""
    mesh: str = ""
    """Devices by axis, e.g. data=8,fsdp=8; the default is one device."""
    device: Literal["a100", "h100", "h200", "v5e", "v5p", "v6e", "cpu"] = "h100"
    """cpu: this machine, measured."""
    arm: str | None = None
    """Another arm than the method."""
    groups: int = 0
    """Deals an update; 0: the recipe's, or as many as the mesh needs: one for every part of the batch."""
    group_size: int = 0
    """Episodes of a deal; 0: the recipe's."""
    rank: int = 32
    """Of each policy's adapter; 0: all weights are trained."""
    grad_accumulation: int = 0
    """Micro-batches; 0: the recipe's."""
    remat: Literal["recipe", "none", "dots", "full"] = "recipe"
    dtype: Literal["float32", "bfloat16"] | None = None
    """The default is float32 on a cpu, else bfloat16."""
    compile: bool = True
    """False: arithmetic alone, in seconds."""


def recipe_of(settings: Settings, study: Study) -> Recipe:
    """The recipe as it would run. Raises ValueError for settings that cannot work."""
    from jaxmarl_llm.training.recipe import for_pretrained

    for name in ("groups", "group_size", "rank", "grad_accumulation"):
        if getattr(settings, name) < 0:
            raise ValueError(f"{name} must not be negative, got {getattr(settings, name)}.")
    arm = settings.arm or study.method
    if arm not in study.all_arms:
        raise ValueError(f"{settings.recipe} has no arm {arm!r}: choose from {', '.join(study.all_arms)}.")
    recipe = for_pretrained(study.all_arms[arm])
    given: dict[str, Any] = {
        n: getattr(settings, n) for n in ("group_size", "grad_accumulation") if getattr(settings, n)
    }
    if settings.remat != "recipe":
        given["remat"] = settings.remat
    recipe = dataclasses.replace(recipe, **given)
    sizes = sharding.counts(settings.mesh)
    unit = math.lcm(len(recipe.seats), sizes["data"] * sizes["fsdp"] * recipe.grad_accumulation * recipe.minibatches)
    groups = settings.groups or (recipe.groups if recipe.groups % unit == 0 else unit)
    return dataclasses.replace(recipe, groups=groups)


def trainer_of(settings: Settings, recipe: Recipe, dtype: str) -> Trainer:
    """A trainer whose weights are abstract."""
    from jaxmarl_llm.training.trainer import LORA, Model, Trainer

    lora = dataclasses.replace(LORA, rank=settings.rank, alpha=2.0 * settings.rank) if settings.rank else None
    models = {name: Model(settings.model, lora, recipe.sampling, dtype) for name in recipe.learners}
    return Trainer(recipe, [recipe.all_hparams], [0], models, settings.mesh, load=loading.abstract)


def jobs_of(trainer: Trainer) -> list[Job]:
    """What each of its families does."""
    recipe, jobs = trainer.recipe, []
    for name, layout in trainer.rollout.layouts.items():
        policy_set = layout.policy_set
        assert policy_set.config is not None  # only models are planned
        jobs.append(
            Job(
                policy_set.config,
                policy_set.loras,
                **{
                    name: getattr(layout, name)
                    for name in ("prompt_width", "group_size", "max_heard", "max_said", "max_sampled")
                },
                prompts=len(layout.assignments),
                forced=layout.tables.forced.shape[1],
                slots=layout.slots,
                turns=recipe.game.turns,
                alternating_seats=layout.alternating_seats,
                spoken=trainer.rollout.max_sampled_tokens(name),
                epochs=recipe.epochs,
                parts=recipe.minibatches * recipe.grad_accumulation,
                grad_accumulation=recipe.grad_accumulation,
                scorings=recipe.reference + recipe.critic,
                remat=recipe.remat,
                mesh=dict(trainer.mesh.shape),
            )
        )
    return jobs


def compiled(trainer: Trainer) -> Any:
    """The program of a whole step, for abstract weights and states: nothing of it is held."""
    from jaxmarl_llm.training.trainer import Trainer

    with sharding.use(trainer.mesh):
        state = trainer.abstract()
        lowered = Trainer._advance.lower(trainer, trainer.base, state, jax.ShapeDtypeStruct((), jnp.int32))
        # what LLVM polishes changes neither buffers nor collectives
        options: dict[str, Any] = {"xla_backend_optimization_level": 0}
        return lowered.compile(options)


def bytes_of(program: Any, jobs: Sequence[Job], reference: bool = False) -> float:
    """Of a device, at most, by XLA's figures; the base counts once, as a trainer holds it, however often it is read."""
    memory, job = program.memory_analysis(), jobs[0]
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    read = len(jobs) if job.loras or reference else 0
    return held + memory.temp_size_in_bytes + (1 - read) * job.bytes_of(job.base)


def counted(program: Any, jobs: Sequence[Job]) -> dict[str, hlo.Done]:
    """{rollout, update: what a device does}, loops of unknown length run as often as they can."""
    most = {name: max(cost_model.loops(job)[name] for job in jobs) for name in cost_model.loops(jobs[0])}

    def phase(path: str) -> str | None:
        inner = SCOPE.findall(path)
        return ("update" if inner[-1] in ("scoring", "credit", "update") else "rollout") if inner else None

    trips = lambda path: next(n for end, n in most.items() if path.endswith(end))  # noqa: E731
    found = hlo.done(program.as_text(), trips, jobs[0].mesh, phase, "rollout")
    return {name: found.get(name, hlo.Done()) for name in PHASES}


def travelled(kind: str, size: float, devices: int) -> float:
    """Bytes that a device sends for a collective whose result has so many, around a ring."""
    if kind == "collective-permute":
        return size
    return size * {"all-reduce": 2, "reduce-scatter": devices}.get(kind, 1) * (devices - 1) / devices


def took(phase: str, key: tuple[str, str], found: tuple[float, float], job: Job, of: Accelerator, width: int) -> float:
    """Seconds of a kind of collective that was counted in the float32 program.

    Gradients of adapters are float32 always. Between nodes those of a group who share a node have an adapter each.
    """
    (kind, axes), (times, size), mesh = key, found, job.mesh
    devices: np.ndarray = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
    group = devices[tuple(slice(None) if name in axes.split("+") or axes == "?" else 0 for name in mesh)]
    if not (phase == "update" and job.loras and "reduce" in kind and "tensor" not in axes):
        size *= width / cost_model.FLOAT
    near = group.max() < of.node
    rate = of.link if near else min(of.link, (group < of.node).sum() * of.network)
    return times * of.waits[not near] + travelled(kind, size, group.size) / (BANDWIDTH * rate)


def seconds(jobs: Sequence[Job], done: Mapping[str, hlo.Done] | None, of: Accelerator, width: int) -> dict[str, tuple]:
    """{phase: seconds of products, of memory, of collectives}; `width` is of the dtype, what is counted has 4."""
    result, rate = {}, MATRIX * of.operations * (of.single if width == cost_model.FLOAT else 1)
    for phase in PHASES:
        counted = done[phase] if done else hlo.Done()
        products = max(sum(cost_model.operations(job)[phase] for job in jobs), counted.operations) / rate
        memory = sum(cost_model.moved(job)[phase] for job in jobs) / (BANDWIDTH * of.reading)
        sent = sum(took(phase, *each, jobs[0], of, width) for each in counted.collectives.items())
        result[phase] = products, memory, sent
    return result


CHANGES: dict[str, Callable[[Job], Job | None]] = {  # None: it is so already, or cannot be
    "--remat full": lambda job: dataclasses.replace(job, remat="full") if job.remat != "full" else None,
    "--rank 32 instead of all weights": lambda job: None if job.loras else dataclasses.replace(job, loras=(Lora(),)),
    "--accumulate 4 times as many": lambda job: _accumulate(job, 4),
    "half the group size": lambda job: (
        dataclasses.replace(job, group_size=job.group_size // 2) if job.group_size > 1 else None
    ),
    "half the budget": lambda job: _shorter(job),
    "all devices on fsdp": lambda job: _mesh(job, 1, "data"),
    "2 times the devices, on fsdp": lambda job: _mesh(job, 2),
    "8 times the devices, on fsdp": lambda job: _mesh(job, 8),
}


def _accumulate(job: Job, times: int) -> Job | None:
    return _divided(dataclasses.replace(job, parts=job.parts * times, grad_accumulation=job.grad_accumulation * times))


def _shorter(job: Job) -> Job | None:
    if job.max_said < 8:  # the game's own words, not what is said freely
        return None
    less = job.max_said // 2
    slots = job.slots - less * job.turns // job.alternating_seats
    return dataclasses.replace(job, max_said=job.max_said - less, max_sampled=-(-job.max_sampled // 2), slots=slots)


def _mesh(job: Job, times: int, away: str = "") -> Job | None:
    mesh = {name: 1 if name == away else size for name, size in job.mesh.items()}
    mesh["fsdp"] *= times * (job.mesh[away] if away else 1)
    return _divided(dataclasses.replace(job, mesh=mesh)) if mesh != job.mesh else None


def _divided(job: Job) -> Job:
    """With more openings, if there are too few for every part of the batch."""
    unit = job.batch_parts * job.parts
    return dataclasses.replace(job, prompts=-(-job.prompts // unit) * unit)


def _changed(jobs: Sequence[Job], change: Callable[[Job], Job | None]) -> list[Job]:
    """Empty if it cannot be."""
    found = [new for job in jobs if (new := change(job))]
    if len(found) < len(jobs):
        return []
    loras = tuple(lora for job in found for lora in job.loras)
    if loras:  # on one source: a family
        return [dataclasses.replace(found[0], loras=loras, prompts=sum(job.prompts for job in found))]
    return found


def changes(jobs: Sequence[Job], room: float) -> list[tuple[str, float]]:
    """What would fit in so many bytes a device, with the bytes: every change alone, else one after the other."""
    rows = sum(job.rows for job in jobs)

    def tried(names: list[str], new: list[Job]) -> tuple[str, float]:
        more = sum(job.rows for job in new)
        batch = f" (with {more} rows, for the batch to divide)" if more > rows else ""
        return " and ".join(names) + batch, cost_model.peak(cost_model.memory(new))

    alone, together, now = [], [], list(jobs)
    names: list[str] = []
    for name, change in CHANGES.items():
        if new := _changed(jobs, change):
            alone.append(tried([name], new))
        if new := _changed(now, change):
            now, names = new, [*names, name]
            together.append(tried(names, now))
    fitting = [[each for each in found if each[1] <= room] for found in (alone, together)]
    return fitting[0] or fitting[1][:1]


def here(devices: int) -> Accelerator:
    """A part of this machine: its products and its reading measured in a second or two."""
    from jaxmarl_llm.planning.machine import Machine

    machine = Machine()
    machine.measure()
    whole = machine.products, machine.reading, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    products, reading, memory = (x / devices for x in whole)
    return Accelerator(products, reading, memory, reading, devices)


def plan(settings: Settings, study: Study, console: Console) -> None:
    """Prints the plan. Raises ValueError, before anything compiles, for settings that cannot work."""
    recipe = recipe_of(settings, study)
    dtype = settings.dtype or ("float32" if settings.device == "cpu" else "bfloat16")
    trainer = trainer_of(settings, recipe, "float32")
    full = jobs_of(trainer)
    jobs = [_as(job, dtype) for job in full]
    mesh, devices = jobs[0].mesh, math.prod(jobs[0].mesh.values())
    of = ACCELERATORS[settings.device] if settings.device in ACCELERATORS else here(devices)
    rows, longest = sum(job.rows for job in jobs), max(job.prompt_width + job.slots for job in jobs)
    console.print(
        f"{settings.recipe} with {settings.model} in {dtype} on {devices} x {settings.device} "
        f"({', '.join(f'{name}={size}' for name, size in mesh.items())}): "
        f"{recipe.groups} groups of {recipe.group_size}, {rows} rows of at most {longest} tokens, "
        f"remat {recipe.remat}, "
        f"{f'adapters of rank {settings.rank}' if settings.rank else 'all weights trained'}."
    )
    if settings.model in KNOWN:
        console.print("Its tokenizer is not here: texts are as long as SmolLM2's tokenizer cuts them.")
    measured = done = None
    if settings.compile:
        with console.status("Compiling"):
            program = compiled(trainer)
        measured, done = bytes_of(program, full, recipe.reference), counted(program, full)
    _show_memory(console, jobs, full, measured, of, dtype)
    _show_step(console, jobs, done, of, jnp.dtype(dtype).itemsize)


def _as(job: Job, dtype: str) -> Job:
    dtypes = Dtypes(dtype if job.loras else "float32", dtype, dtype)  # as a trainer has them
    return dataclasses.replace(job, config=dataclasses.replace(job.config, dtypes=dtypes))


def _show_memory(
    console: Console, jobs: list[Job], full: list[Job], measured: float | None, of: Accelerator, dtype: str
) -> None:
    table = Table(title="Memory of a device in the longest games, GB")
    columns = {dtype: jobs} | ({"float32": full} if measured is not None else {})
    for name in ("", "", *columns, *(["compiled, float32"] if measured is not None else [])):
        table.add_column(name, justify="left" if not name else "right")
    phases = {name: cost_model.memory(those) for name, those in columns.items()}
    for phase, parts in phases[dtype].items():
        for i, what in enumerate(name for name, size in parts.items() if size):
            table.add_row("" if i else phase, what, *(f"{phases[name][phase][what] / 1e9:.3f}" for name in columns))
    total = {name: cost_model.peak(found) for name, found in phases.items()}
    sums = [f"{size / 1e9:.3f}" for size in total.values()]
    table.add_section()
    table.add_row("at most", "held and one of the others", *sums, *([f"{measured / 1e9:.3f}"] if measured else []))
    console.print(table)
    room, more = USABLE * of.memory, max(1.0, measured / total["float32"]) if measured else 1.0
    how = f"arithmetic, times {more:.2f} for what is compiled" if measured else "arithmetic alone, to about 20%"
    size = more * total[dtype]
    if size <= room:
        console.print(f"It fits: {size / 1e9:.1f} of {room / 1e9:.1f} GB ({USABLE:.0%} of a device's), by {how}.")
        return
    console.print(f"It does not fit: {size / 1e9:.1f} GB of {room / 1e9:.1f} ({USABLE:.0%} of a device's), by {how}.")
    found = changes(jobs, room / more)
    for name, bytes_ in found:
        console.print(f"It would fit with {name}: {more * bytes_ / 1e9:.1f} GB.")
    if not found:
        console.print("No change tried would make it fit: use a smaller model, or devices with more memory.")


def _show_step(
    console: Console, jobs: list[Job], done: Mapping[str, hlo.Done] | None, of: Accelerator, width: int
) -> None:
    table = Table(title="A step of one device: longest games, least traffic")
    for name in ("", *PHASES):
        table.add_column(name, justify="right" if name else "left")
    spent = seconds(jobs, done, of, width)
    operations, moved = (
        [sum(f(job)[p] for job in jobs) for p in PHASES] for f in (cost_model.operations, cost_model.moved)
    )
    lines = {"TFLOP": [x / 1e12 for x in operations], "GB read and written": [x / 1e9 for x in moved]}
    if done:
        lines["TFLOP counted in the program"] = [done[phase].operations / 1e12 for phase in PHASES]
        lines["GB counted in the float32 program"] = [done[phase].moved / 1e9 for phase in PHASES]
    for i, what in enumerate(("products", "memory", "collectives") if done else ("products", "memory")):
        lines[f"seconds of {what}"] = [spent[phase][i] for phase in PHASES]
    lines["seconds"] = [max(products, memory) + sent for products, memory, sent in spent.values()]
    for name, values in lines.items():
        table.add_row(name, *(f"{value:.3g}" for value in values))
    console.print(table)
    without = "launches and the host" if done else "launches, the host and collectives"
    console.print(f"Expected: {sum(lines['seconds']):.3g} s a step, without {without}.")
    for phase, expected in zip(PHASES, operations, strict=True):
        if done and not 0.8 < done[phase].operations / expected < 1.25:
            console.print(f"In the {phase} the program's operations and those of the arithmetic differ.")
        if done and done[phase].hidden:
            console.print(f"In the {phase} the program calls a library's products, whose operations are not counted.")
    if done is None or not any(each.collectives for each in done.values()):
        return
    table = Table(title="Collectives of a step, as XLA's compiler for CPUs places them")
    for name in ("", "kind", "axes", "times", "GB, float32", "seconds"):
        table.add_column(name, justify="left" if name in ("", "kind", "axes") else "right")
    for phase, each in done.items():
        for key, (times, size) in sorted(each.collectives.items(), key=lambda item: -item[1][1]):
            hparams = size / 1e9, took(phase, key, (times, size), jobs[0], of, width)
            table.add_row(phase, *key, f"{times:.0f}", *(f"{number:.3g}" for number in hparams))
    console.print(table)


def command(package: str, arguments: Sequence[str]) -> None:
    """The command `plan` of a package of studies: simulates the devices first."""
    try:
        settings = tyro.cli(Settings, args=list(arguments), prog=f"python -m {package} plan", description=__doc__)
        sharding.simulate(math.prod(sharding.counts(settings.mesh).values()))
        plan(settings, registry.load(package, settings.recipe).study, Console())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
