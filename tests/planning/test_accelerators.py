"""Seconds of a step on known devices and their links."""

import math
from functools import partial
from types import SimpleNamespace

import pytest

from jaxmarl_llm.devices import hlo, sharding
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.planning import accelerators
from tests.support.jobs import job


def test_collectives_between_nodes_take_the_network():
    done = hlo.Work(collectives={("all-gather", "fsdp"): (100, 4e9), ("all-reduce", "data"): (1, 4e9)})
    jobs, of = [job(mesh={"data": 8, "fsdp": 8, "tensor": 1})], accelerators.ACCELERATORS["h100"]
    _, _, sent = accelerators.seconds(jobs, {"rollout": done, "update": done}, of, 2)["update"]
    waited = 100 * 10e-6 + 25e-6
    assert math.isclose(sent, waited + (2e9 * 7 / 8 / 450e9 + 2 * 2e9 * 7 / 8 / 50e9) / accelerators.BANDWIDTH)


@pytest.mark.parametrize(
    ("device", "mesh", "key", "sent", "rate"),  # of a result of 1 GB in bfloat16
    [
        ("h100", (8, 8, 1), ("all-reduce", "data+fsdp"), 2 * 63 / 64, 400e9),  # eight adapters a node
        ("h100", (1, 16, 1), ("all-gather", "fsdp"), 15 / 16, 400e9),
        ("h100", (4, 4, 1), ("all-gather", "data"), 3 / 4, 100e9),  # two of a group in a node
        ("h100", (2, 8, 2), ("all-gather", "data+tensor"), 3 / 4, 100e9),
        ("h100", (2, 4, 1), ("all-to-all", "?"), 7 / 8, 450e9),
        ("h100", (1, 8, 1), ("collective-permute", "fsdp"), 1, 450e9),
        ("h100", (1, 8, 1), ("reduce-scatter", "fsdp"), 7, 450e9),
        ("v5e", (2, 256, 1), ("all-gather", "data"), 1 / 2, 3.1e9),  # two pods
        ("v5e", (2, 128, 1), ("all-gather", "data"), 1 / 2, 100e9),
    ],
)
def test_a_group_has_the_links_of_its_devices(device, mesh, key, sent, rate):
    one = job(mesh=dict(zip(sharding.AXES, mesh, strict=True)))
    took = accelerators.collective_seconds("update", key, (0, 2e9), one, accelerators.ACCELERATORS[device], 2)
    assert math.isclose(took, sent * 1e9 / rate / accelerators.BANDWIDTH)


def test_gradients_of_adapters_are_float32():
    took = partial(
        accelerators.collective_seconds,
        key=("all-reduce", "data"),
        count=(0, 2e9),
        accelerator=accelerators.ACCELERATORS["h100"],
        width=2,
    )
    mesh = {"data": 8, "fsdp": 1, "tensor": 1}
    whole, adapter = job(mesh=mesh), job(mesh=mesh, loras=(Lora(),))
    assert took("update", job=adapter) == 2 * took("update", job=whole) == 2 * took("rollout", job=adapter)


def test_seconds_are_of_what_is_known_to_be_more():
    def products(done, device, width):
        return accelerators.seconds([job()], done, accelerators.ACCELERATORS[device], width)["update"][0]

    assert products(None, "h100", 4) == 2 * products(None, "h100", 2)  # TF32
    assert products(None, "v5e", 4) == products(None, "v5e", 2)
    less, more = ({phase: hlo.Work(operations=n) for phase in accelerators.PHASES} for n in (1.0, 1e30))
    assert products(less, "h100", 2) == products(None, "h100", 2)
    assert math.isclose(products(more, "h100", 2), 1e30 / (accelerators.MATRIX * 989e12))


def test_simulated_devices_share_a_machine(monkeypatch):
    machine = SimpleNamespace(measure=lambda: None, products=8.0, reading=4.0)
    monkeypatch.setattr("jaxmarl_llm.planning.accelerators.Machine", lambda: machine)
    of = accelerators.this_machine(4)
    assert (of.operations, of.reading, of.link, of.node) == (2, 1, 1, 4) and of.memory == accelerators.this_machine(
        1
    ).memory / 4
