"""Bytes and operations by arithmetic, for shapes that are known."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxmarl_llm.models import decoder, hf_config, hf_families
from jaxmarl_llm.models.config import Dtypes
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.planning import accelerators, cost_model, plan
from tests.support.families import FAMILIES, ODD
from tests.support.jobs import job

LOOPS = """HloModule jit_step

%body (b: f32[2,2]) -> f32[2,2] {
  %b = f32[2,2]{1,0} parameter(0)
  ROOT %product = f32[2,2]{1,0} dot(%b, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%again (c: f32[2,2]) -> pred[] {
  %c = f32[2,2]{1,0} parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (x: f32[2,2]) -> f32[2,2] {
  %x = f32[2,2]{1,0} parameter(0)
  %y = f32[2,2]{1,0} while(%x), condition=%again, body=%body, metadata={op_name="jit(step)/rollout/PATH"}
  ROOT %z = f32[2,2]{1,0} dot(%y, %y), lhs_contracting_dims={1}, metadata={op_name="jit(f)/transpose(jvp(update))/dot"}
}
"""


@pytest.mark.parametrize(
    ("path", "times"),
    [
        ("while", 12),
        ("prompt/while", 5),  # a prompt of 300 tokens, block by block
        ("while/body/decode/prompt/while", 11 / 12),
        ("while/body/decode/prompt/while/body/while", 11),  # a cache of 600 and 52 slots, block by block
        ("while/body/decode/while", 31),
    ],
)
def test_loops_of_unknown_length_run_as_often_as_they_can(path, times):
    program = SimpleNamespace(as_text=lambda: LOOPS.replace("PATH", path))
    found = plan.count_step(program, [job(prompt_width=300)])
    assert found["rollout"].operations == times * 16 and found["update"].operations == 16
    more = 3 if path.endswith("decode/prompt/while") else 1  # chunks of 20 of 52 tokens
    shorter = plan.count_step(program, [job(prompt_width=300, chunk=20)])["rollout"].operations
    assert math.isclose(shorter, more * times * 16, rel_tol=0.1)  # the cache is a little shorter too


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3.5-0.8b", 752_393_024),  # of the text, as transformers counts it
        ("qwen3.5-2b", 1_881_825_088),
        ("qwen3.5-4b", 4_205_751_296),
        ("qwen3.5-9b", 8_953_803_264),
        ("qwen3.5-27b", 26_895_998_464),
        ("gemma4-e2b", 4_628_569_344 + 35),  # of the text, as transformers counts it, and a scalar a layer
        ("gemma4-e4b", 7_463_013_376 + 42),
        ("gemma4-26b-a4b", 25_233_141_760 + 30),  # 25.2 and 30.7 billion by Google
        ("gemma4-31b", 30_697_345_280 + 60),
    ],
)
def test_known_shapes_have_the_published_number_of_weights(name, count):
    config = hf_config.from_json(hf_families.KNOWN[name], Dtypes())
    leaves = jax.tree.leaves(decoder.shapes(config), is_leaf=lambda x: isinstance(x, tuple))
    assert sum(int(np.prod(shape)) for shape in leaves) == count


def test_an_eighth_of_the_weights_lies_on_each_of_eight_devices():
    whole, parts = job(), job(mesh={"data": 2, "fsdp": 8, "tensor": 1})
    norms = 36 * (2 * 4096 + 2 * 128) + 4096
    for name, copies in (("base", 1), ("trained weights", 1), ("optimiser's state", 2)):
        assert cost_model.held_bytes(whole)[name] == 2 * copies * 8_190_735_360
        assert cost_model.held_bytes(parts)[name] == 2 * copies * ((8_190_735_360 - norms) / 8 + norms)
    keys = 2 * 36 * 8 * 128 * 2
    slots = -(-(600 + 52) // 64) * 64
    assert cost_model.rollout(parts)["cache"] == keys * (128 * slots + 4 * 100)  # 2048 rows on 16 parts


def test_a_state_costs_the_same_for_long_rows_and_attention_costs_a_quarter():
    hybrid = hf_config.from_json(hf_families.KNOWN["qwen3.5-9b"], Dtypes("bfloat16", "bfloat16", "bfloat16"))
    short, long = (replace(job(slots=slots), config=hybrid) for slots in (52, 64 + 52))
    keys, state = 2 * 8 * 4 * 256 * 2, 24 * (4 * 32 * 128 * 128 + 2 * 3 * 8192)
    assert cost_model.rollout(short)["cache"] == keys * (2048 * 104 + 64 * 100) + state * (2048 + 64)
    assert cost_model.rollout(long)["cache"] - cost_model.rollout(short)["cache"] == keys * 2048 * 64
    parts = replace(short, mesh={"data": 4, "fsdp": 1, "tensor": 2})
    assert cost_model.rollout(parts)["cache"] < cost_model.rollout(short)["cache"] / 7
    for remat in ("none", "dots", "full"):
        sizes = cost_model.update(replace(short, remat=remat))
        assert all(size >= 0 for size in sizes.values())
    tokens = 64 * 100 + 2048 * 52
    products = cost_model.operations(replace(short, scorings=1))["update"] - cost_model.operations(short)["update"]
    rule = 24 * 2 * 32 * (64 * 5 * 128 + 3 * 128 * 128)
    pairs = 8 * 4 * 16 * 256 * (64 * 100 * 100 + 2048 * 52 * 152)
    attention = 4096 * 256 * (16 * 3 + 4 * 2)
    linear = 4096 * (8192 + 2 * 4096 + 2 * 32)
    weights = 2 * (24 * linear + 8 * attention + 32 * 3 * 4096 * 12288)
    assert products == tokens * (weights + rule) + pairs + 2 * 248320 * 4096 * 2048 * 300


@pytest.mark.parametrize("name", ["gemma4", "gemma4_shared", "gemma4_moe_shared", "qwen3_5", "llama3.1"])
def test_weights_and_caches_are_as_large_as_the_arrays_of_a_tiny_model(name):
    """Two widths of heads, keys and values that layers share, tables of each layer's inputs, experts, states."""
    tiny = replace((FAMILIES | ODD)[name], dtypes=Dtypes("bfloat16", "float32", "bfloat16"))
    one = replace(job(prompts=4, group_size=3, prompt_width=7, slots=12, chunk=5), config=tiny)
    size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
    made = jax.eval_shape(lambda: decoder.init(tiny, jax.random.key(0)))
    assert cost_model.held_bytes(one)["base"] == size(made)
    prompts, rows = (jax.eval_shape(partial(decoder.empty_cache, tiny, *x)) for x in ((4, 7), (12, 17)))
    kept = lambda cache: size((cache.keys, cache.values, cache.memories))
    assert cost_model.rollout(one)["cache"] == kept(prompts) + kept(rows)


def test_a_device_has_its_part_of_both_widths_of_heads():
    whole = replace(job(), config=hf_config.from_json(hf_families.KNOWN["gemma4-26b-a4b"], Dtypes()))
    parts = replace(whole, mesh={"data": 1, "fsdp": 1, "tensor": 4})
    caches = [cost_model.rollout(x)["cache"] for x in (whole, parts)]
    sliding, full = 25 * 8 * 256, 5 * 2 * 512  # 2 heads do not divide over 4 devices
    assert math.isclose(caches[1] / caches[0], (sliding / 4 + full) / (sliding + full))


def test_products_of_gemma4_are_those_of_its_layers():
    e2b = replace(job(), config=hf_config.from_json(hf_families.KNOWN["gemma4-e2b"], Dtypes()))
    products = cost_model.operations(replace(e2b, scorings=1))["update"] - cost_model.operations(e2b)["update"]
    tokens = 64 * 100 + 2048 * 600
    sliding, full = 28 * 8 * 256, 7 * 8 * 512  # numbers of queries
    queries = 1536 * 2 * (sliding + full)
    keys = 1536 * 2 * (12 * 256 + 3 * 512)
    mlps = 3 * 1536 * (15 * 6144 + 20 * 12288)
    inputs = 35 * 3 * 1536 * 256  # the projection of all, and two maps of each layer
    pairs = 4 * (sliding + full) * (64 * 100 * 100 + 2048 * 600 * 700)
    assert products == 2 * tokens * (queries + keys + mlps + inputs) + pairs + 2 * 262144 * 1536 * 2048 * 300
    held = cost_model.held_bytes(e2b)["base"] / 4
    moved = [cost_model.bytes_moved(replace(e2b, scorings=n))["update"] / 4 for n in (0, 1)]
    assert moved[1] - moved[0] == held - 262144 * 35 * 256  # the table of inputs is looked up, not read


def test_inputs_of_each_layer_are_planned():
    e2b = replace(job(), config=hf_config.from_json(hf_families.KNOWN["gemma4-e2b"], Dtypes()))
    tokens = 64 * 100 + 2048 * 600
    assert cost_model.update(e2b)["inputs of each layer"] == 3 * 4 * tokens * 35 * 256
    assert "inputs of each layer" not in cost_model.update(job())


def test_an_update_copies_the_weights_that_two_of_its_loops_share():
    names = "gemma4-e4b", "gemma4-e2b", "qwen3.5-9b"
    e4b, e2b, whole = (hf_config.from_json(hf_families.KNOWN[name], Dtypes()) for name in names)
    shared = 42 * (3 * 2560 * 10240 + 2 * 2560 * 256 + 5 * 2560 + 1) + 2 * 2560 * (35 * 8 * 256 + 7 * 8 * 512)
    shared += 35 * 256 + 7 * 512  # norms of queries; the first layers alone have keys and values
    parts = lambda config: cost_model.update(replace(job(), config=config)).get("parts of stacked weights", 0)
    assert parts(e4b) == 4 * shared
    assert 0 < parts(e2b) < parts(e4b) / 9  # the MLPs of both loops have leaves of their own
    assert parts(whole) == 0 == parts(job().config)


def test_families_of_one_source_share_its_weights():
    one, two = (cost_model.memory([job()] * n) for n in (1, 2))
    assert two["held"]["base"] == one["held"]["base"]
    assert two["held"]["trained weights"] == 2 * one["held"]["trained weights"]
    sizes = {"argument": 1e12, "output": 1, "alias": 1, "temp": 7}
    memory = SimpleNamespace(**{f"{name}_size_in_bytes": size for name, size in sizes.items()})
    program, base = SimpleNamespace(memory_analysis=lambda: memory), one["held"]["base"]
    assert plan.bytes_of(program, [job()] * 2) == 1e12 + 7 + base  # held, not read
    assert plan.bytes_of(program, [job()] * 2, reference=True) == 1e12 + 7 - base  # read by each
    assert plan.bytes_of(program, [job(loras=(Lora(),) * 2)]) == 1e12 + 7


def test_several_adapters_multiply_while_decoding():
    one, two = (cost_model.operations(job(loras=(Lora(),) * n))["rollout"] for n in (1, 2))
    numbers = 2 * 32 * 36 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 12288))
    fed = 11 * (20 + 32) + 12 * 31
    assert math.isclose(two - one, 2 * numbers * (64 * 100 + 64 * 32 * fed), rel_tol=1e-6)


def test_a_long_cache_is_read_block_by_block():
    short, long = (cost_model.rollout(job(slots=n))["activations"] for n in (600, 6000))
    assert short == long < cost_model.rollout(job(slots=60000))["activations"]  # one token alone reads all of it


def test_weights_that_were_joined_are_kept_without_remat():
    joined = 36 * 4096 * (4096 + 2 * 1024 + 2 * 12288)
    assert cost_model.update(job(remat="none"))["kept weights"] == 2 * joined
    assert "kept weights" not in cost_model.update(job(remat="full"))


def test_scoring_takes_the_whole_batch_at_once():
    parts = job(parts=64, grad_accumulation=64, loras=(Lora(),), remat="full", scorings=1)
    phases = cost_model.memory([parts])
    assert sum(phases["scoring"].values()) > 8 * sum(phases["update"].values())
    assert cost_model.peak(phases | {"rollout": {}}) == sum(sum(phases[name].values()) for name in ("held", "scoring"))
    assert cost_model.scoring(job()) == {}


def test_longer_games_and_more_of_them_cost_more():
    for change in ({"group_size": 64}, {"slots": 1200}, {"turns": 24}, {"epochs": 2}, {"scorings": 1}):
        more, less = job(**change), job()
        assert sum(cost_model.operations(more).values()) > sum(cost_model.operations(less).values()), change
        assert cost_model.peak(cost_model.memory([more])) >= cost_model.peak(cost_model.memory([less]))
    remat = [cost_model.update(job(remat=how)) for how in ("none", "dots", "full")]
    assert [sum(x.values()) for x in remat] == sorted((sum(x.values()) for x in remat), reverse=True)
    seconds = partial(accelerators.seconds, [job()], None, width=2)
    slow, fast = (seconds(accelerators.ACCELERATORS[name]) for name in ("a100", "h100"))
    assert all(a > b for phase in slow for a, b in zip(slow[phase][:2], fast[phase][:2], strict=True))
