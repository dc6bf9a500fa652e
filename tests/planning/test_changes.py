"""What is proposed where a plan does not fit."""

import math

from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.planning import changes, cost_model
from tests.support.jobs import job


def test_policies_with_adapters_become_one_family():
    (new,) = changes._apply([job()] * 2, changes.CHANGES["--rank 32 instead of all weights"])
    assert new == job(loras=(Lora(),) * 2, prompts=2 * 64)
    assert cost_model.memory([new])["held"]["base"] == cost_model.held_bytes(job())["base"]


def test_more_devices_are_offered_with_a_batch_that_divides():
    few = [job(prompts=8, mesh={"data": 1, "fsdp": 8, "tensor": 1})]
    names = dict(changes.changes(few, math.inf))
    assert "2 times the devices, on fsdp (with 512 rows, for the batch to divide)" in names
    assert "--grad-accumulation 4 times as many (with 1024 rows, for the batch to divide)" in names
    assert "half the group size" in names


def test_what_is_proposed_fits_and_nothing_else_is():
    now = [job(mesh={"data": 1, "fsdp": 8, "tensor": 1})]
    size = cost_model.peak(cost_model.memory(now))
    fits = changes.changes(now, 0.7 * size)
    assert fits and all(bytes_ <= 0.7 * size for _, bytes_ in fits)
    one = {name: cost_model.peak(cost_model.memory([changed])) for name, change in changes.CHANGES.items()
           if (changed := change(now[0]))}  # fmt: skip
    assert {name for name, bytes_ in one.items() if bytes_ <= 0.7 * size} == {name for name, _ in fits}
    assert "half the group size" in one and "all devices on fsdp" not in one  # they are
    ((names, bytes_),) = changes.changes(now, 0.99 * min(one.values()))  # none alone
    assert " and " in names and bytes_ < min(one.values())
    assert changes.changes(now, 1e6) == []
    assert changes.CHANGES["--rank 32 instead of all weights"](job(loras=(Lora(),))) is None
