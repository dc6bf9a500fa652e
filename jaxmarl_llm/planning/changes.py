"""Changes of a recipe with which it would fit into the memory of a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.planning import cost_model
from jaxmarl_llm.planning.cost_model import Job

CHANGES: dict[str, Callable[[Job], Job | None]] = {  # None: it is already so, or impossible
    "--remat full": lambda job: dataclasses.replace(job, remat="full") if job.remat != "full" else None,
    "--rank 32 instead of all weights": lambda job: None if job.loras else dataclasses.replace(job, loras=(Lora(),)),
    "--grad-accumulation 4 times as many": lambda job: _accumulate(job, 4),
    "half the group size": lambda job: (
        dataclasses.replace(job, group_size=job.group_size // 2) if job.group_size > 1 else None
    ),
    "half the budget": lambda job: _shorter(job),
    "all devices on fsdp": lambda job: _mesh(job, 1, "data"),
    "2 times the devices, on fsdp": lambda job: _mesh(job, 2),
    "8 times the devices, on fsdp": lambda job: _mesh(job, 8),
}


def _accumulate(job: Job, times: int) -> Job | None:
    return _round_prompts(
        dataclasses.replace(job, parts=job.parts * times, grad_accumulation=job.grad_accumulation * times)
    )


def _shorter(job: Job) -> Job | None:
    if job.max_said < 8:  # short answers, no free messages
        return None
    less = job.max_said // 2
    slots = job.slots - less * job.turns // job.alternating_seats
    chunk = min(job.chunk, job.max_heard + job.max_said - less)
    said, sampled = job.max_said - less, -(-job.max_sampled // 2)
    return dataclasses.replace(job, max_said=said, max_sampled=sampled, slots=slots, chunk=chunk)


def _mesh(job: Job, times: int, away: str = "") -> Job | None:
    mesh = {name: 1 if name == away else size for name, size in job.mesh.items()}
    mesh["fsdp"] *= times * (job.mesh[away] if away else 1)
    return _round_prompts(dataclasses.replace(job, mesh=mesh)) if mesh != job.mesh else None


def _round_prompts(job: Job) -> Job:
    """The job with its prompts rounded up to a multiple of the batch's parts."""
    unit = job.batch_parts * job.parts
    return dataclasses.replace(job, prompts=-(-job.prompts // unit) * unit)


def _apply(jobs: Sequence[Job], change: Callable[[Job], Job | None]) -> list[Job]:
    """The jobs after a change; [] if it is impossible."""
    changed = [new for job in jobs if (new := change(job))]
    if len(changed) < len(jobs):
        return []
    loras = tuple(lora for job in changed for lora in job.loras)
    if loras:  # adapters on one base become one policy set
        return [dataclasses.replace(changed[0], loras=loras, prompts=sum(job.prompts for job in changed))]
    return changed


def changes(jobs: Sequence[Job], room: float) -> list[tuple[str, float]]:
    """[(change, bytes)] of the changes that fit into `room` bytes a device, else of the first fitting combination."""
    rows = sum(job.rows for job in jobs)

    def describe(names: list[str], new: list[Job]) -> tuple[str, float]:
        more = sum(job.rows for job in new)
        batch = f" (with {more} rows, for the batch to divide)" if more > rows else ""
        return " and ".join(names) + batch, cost_model.peak(cost_model.memory(new))

    alone, together, now = [], [], list(jobs)
    names: list[str] = []
    for name, change in CHANGES.items():
        if new := _apply(jobs, change):
            alone.append(describe([name], new))
        if new := _apply(now, change):
            now, names = new, [*names, name]
            together.append(describe(names, now))
    fitting = [[option for option in options if option[1] <= room] for options in (alone, together)]
    return fitting[0] or fitting[1][:1]
