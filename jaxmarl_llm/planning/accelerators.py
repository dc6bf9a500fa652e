"""Data sheets of accelerators, and the seconds of a step on them: matrix products, memory traffic, collectives."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence

import numpy as np

from jaxmarl_llm.devices import hlo
from jaxmarl_llm.planning import cost_model
from jaxmarl_llm.planning.cost_model import Job
from jaxmarl_llm.planning.machine import Machine

PHASES = "rollout", "update"
MATRIX, BANDWIDTH, USABLE = 0.5, 0.7, 0.9  # achieved shares of the peak rates, usable share of the memory


@dataclasses.dataclass(frozen=True)
class Accelerator:
    operations: float  # FLOP/s of dense bfloat16 products
    reading: float  # bytes/s from its memory
    memory: float  # bytes
    link: float = math.inf  # bytes/s, one way, to devices of the same node
    node: int = 1  # devices of a node
    network: float = math.inf  # bytes/s to other nodes; every device has a network adapter
    single: float = 1.0  # share of `operations` that products of float32 reach
    waits: tuple[float, float] = (10e-6, 25e-6)  # seconds that a collective waits, within a node and between nodes


# NVIDIA: data sheets of the SXM modules, NVLink one way, a network adapter of 200 or 400 Gbit/s for each GPU, TF32 for
# float32. Google: the pages "TPU v5e", "v5p", "v6e"; a node is a pod, whose chips share the network. A ring on TPUs may
# use the links of one axis of the torus only: half of a chip's links, a third on v5p.
ACCELERATORS = {
    "a100": Accelerator(312e12, 2.04e12, 80e9, 300e9, 8, 25e9, 0.5),
    "h100": Accelerator(989e12, 3.35e12, 80e9, 450e9, 8, 50e9, 0.5),
    "h200": Accelerator(989e12, 4.8e12, 141e9, 450e9, 8, 50e9, 0.5),
    "v5e": Accelerator(197e12, 0.82e12, 16e9, 100e9, 256, 3.1e9),
    "v5p": Accelerator(459e12, 2.77e12, 95e9, 200e9, 8960, 6.25e9),
    "v6e": Accelerator(918e12, 1.64e12, 32e9, 200e9, 256, 12.5e9),
}


def bytes_sent(kind: str, size: float, devices: int) -> float:
    """Bytes that a device sends around a ring of `devices` for a collective whose result has `size` bytes."""
    if kind == "collective-permute":
        return size
    return size * {"all-reduce": 2, "reduce-scatter": devices}.get(kind, 1) * (devices - 1) / devices


def collective_seconds(
    phase: str, key: tuple[str, str], count: tuple[float, float], job: Job, accelerator: Accelerator, width: int
) -> float:
    """Seconds of one kind of collective, counted in the float32 program as (times, bytes).

    `key` is its (kind, axes), `width` the bytes of a number in the planned dtype; gradients of adapters are always
    float32. Between nodes every device of a group sends by its own network adapter.
    """
    (kind, axes), (times, size), mesh = key, count, job.mesh
    devices: np.ndarray = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
    group = devices[tuple(slice(None) if name in axes.split("+") or axes == "?" else 0 for name in mesh)]
    if not (phase == "update" and job.loras and "reduce" in kind and "tensor" not in axes):
        size *= width / cost_model.FLOAT
    near = group.max() < accelerator.node
    rate = accelerator.link if near else min(accelerator.link, (group < accelerator.node).sum() * accelerator.network)
    return times * accelerator.waits[not near] + bytes_sent(kind, size, group.size) / (BANDWIDTH * rate)


def seconds(
    jobs: Sequence[Job], works: Mapping[str, hlo.Work] | None, accelerator: Accelerator, width: int
) -> dict[str, tuple]:
    """{phase: seconds of (products, memory traffic, collectives)} of a step; `width` is the bytes of a number."""
    result, rate = {}, MATRIX * accelerator.operations * (accelerator.single if width == cost_model.FLOAT else 1)
    for phase in PHASES:
        work = works[phase] if works else hlo.Work()
        products = max(sum(cost_model.operations(job)[phase] for job in jobs), work.operations) / rate
        memory = sum(cost_model.bytes_moved(job)[phase] for job in jobs) / (BANDWIDTH * accelerator.reading)
        sent = sum(collective_seconds(phase, *item, jobs[0], accelerator, width) for item in work.collectives.items())
        result[phase] = products, memory, sent
    return result


def this_machine(devices: int) -> Accelerator:
    """The `Accelerator` of one of `devices` equal shares of this machine: its measured speeds, and RAM over `devices`.

    It times a float32 matrix product and a read of memory, which takes a second or two.
    """
    machine = Machine()
    machine.measure()
    whole = machine.products, machine.reading, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    products, reading, memory = (x / devices for x in whole)
    return Accelerator(products, reading, memory, reading, devices)
