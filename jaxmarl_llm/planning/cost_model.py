"""What a training step takes, by arithmetic: bytes that a device holds, operations, bytes moved.

Per device; a batch's rows are split over data and fsdp, weights as `sharding`'s rules say. Every bound is that of the
longest games. What stands beside weights is a list of what `model` and `update` write down, to about a tenth.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.devices.scopes import DECODE, PROMPT, ROLLOUT
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.models.attention import BLOCK, CHUNK, MANY
from jaxmarl_llm.models.config import Config, Remat
from jaxmarl_llm.models.layers import FUSED, PIECES
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.policy import logits_at_once

EARLY = "made early for the update"
LAYER = "a layer's activations, or logits"
FLOAT = 4  # bytes of what is float32 whatever the model is: logits, scores, adapters and their moments


@dataclasses.dataclass(frozen=True)
class Job:
    """The work of one policy set in a step, in numbers; names as in `rollout.layout.RowLayout`."""

    config: Config
    loras: tuple[Lora, ...]  # of every policy; (): all weights are trained
    prompts: int
    prompt_width: int
    group_size: int
    max_heard: int
    max_said: int
    chunk: int  # the most tokens that a cache is given at a time
    max_sampled: int
    forced: int  # most tokens that follow a sampled one by themselves
    slots: int
    turns: int  # of the game
    alternating_seats: int
    max_sampled_tokens: int  # most trained tokens of a row
    epochs: int = 1
    parts: int = 1  # minibatches times micro-batches
    grad_accumulation: int = 1
    logits: int = dataclasses.field(default_factory=logits_at_once)  # of all devices at once
    moments: float = 2.0  # bytes of the optimiser's state, to one of what learns; Adam's
    scorings: int = 0  # times that the batch is only scored: by a reference, by a critic
    remat: Remat = "none"
    mesh: Mapping[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(sharding.AXES, 1))

    @property
    def rows(self) -> int:
        return self.prompts * self.group_size

    @property
    def batch_parts(self) -> int:
        return self.mesh["data"] * self.mesh["fsdp"]

    @property
    def base(self) -> dict:
        """The abstract tree of the model's weights."""
        leaf = partial(jax.ShapeDtypeStruct, dtype=self.config.dtypes.parameters)
        return jax.tree.map(leaf, decoder.shapes(self.config), is_leaf=lambda x: isinstance(x, tuple))

    @property
    def trained(self) -> Any:
        """The abstract tree of what learns."""
        if not self.loras:
            return self.base
        init = partial(lora.init, jax.random.key(0), self.base)
        return [jax.eval_shape(lambda lora=lora: init(lora)) for lora in self.loras]

    def bytes_of(self, tree: Any) -> float:
        """Of a tree of weights, the part of one device."""
        around, total = SimpleNamespace(shape=self.mesh), 0.0
        for path, leaf in jax.tree.leaves_with_path(tree):
            where = sharding.spec(jax.tree_util.keystr(path, simple=True, separator="/"), leaf.shape, around)
            names = [name for axes in where for name in ((axes,) if isinstance(axes, str) else axes or ())]
            total += leaf.size * jnp.dtype(leaf.dtype).itemsize / math.prod(self.mesh[name] for name in names)
        return total


def memory(jobs: Sequence[Job]) -> dict[str, dict[str, float]]:
    """{phase: {what: bytes}} of what is held (always), and of what one after the other is: rollout, scoring, update."""
    phases: dict[str, dict[str, float]] = {}
    for job in jobs:
        for phase in (held, rollout, scoring, update):
            parts = phases.setdefault(phase.__name__, {})
            for name, size in phase(job).items():
                if name == "base":  # all policy sets are of one source, whose weights are there once
                    parts[name] = size
                elif name == LAYER:  # of one policy set after the other
                    parts[name] = max(parts.get(name, 0), size)
                else:
                    parts[name] = parts.get(name, 0) + size
    return phases


def peak(phases: Mapping[str, Mapping[str, float]]) -> float:
    """Bytes at most."""
    of = {name: sum(parts.values()) for name, parts in phases.items()}
    return of.pop("held") + max(of.values())


def held(job: Job) -> dict[str, float]:
    # all weights: what training began from stays beside what it has become
    trained = job.bytes_of(job.trained)
    return {"base": job.bytes_of(job.base), "trained weights": trained, "optimiser's state": job.moments * trained}


def rollout(job: Job) -> dict[str, float]:
    config, rows, fsdp, split = job.config, job.rows / job.batch_parts, job.mesh["fsdp"], job.mesh["tensor"]
    width, weights = jnp.dtype(config.dtypes.compute).itemsize, job.bytes_of({"layers": job.base["layers"]})
    token = 2 * config.num_hidden_layers * heads(job) * config.head_dim * jnp.dtype(config.dtypes.cache).itemsize
    acting, chunk, opened = rows / job.alternating_seats, job.chunk, rows / job.group_size
    slots, prompt = cached(job.slots + chunk), cached(job.prompt_width)
    # gate and up joined and taken apart again; else all rows of `fsdp` come to the weights, and sums of parts go back
    inner = config.intermediate_size * max(config.num_experts, 1) * (5 if fsdp == 1 else 4 * fsdp) / split

    def layer(rows: float, length: int, slots: int, more: int = 0) -> float:
        seen = more + (BLOCK if slots > MANY and length >= CHUNK else slots)
        scores = FLOAT * rows * length * seen * config.num_attention_heads / split
        return max(2 * scores, width * rows * length * (2 * config.hidden_size + inner))

    # the product of one adapter is added to all weights, and what is then joined leaves its place to activations
    parts = {name: leaf for name, leaf in job.base["layers"].items() if name in FUSED["gate_up"]}
    joined = job.bytes_of({"layers": parts}) if len(job.loras) == 1 and fsdp * split == 1 else 0.0
    result = {
        "weights as decoding likes them": weights,
        "cache": token * (rows * slots * (1 + (job.alternating_seats > 1) / job.alternating_seats) + opened * prompt),
        "activations": max(joined, *(layer(acting, n, slots, prompt) for n in (chunk, 1 + job.forced))),
        "logits": 4 * FLOAT * acting * config.vocab_size,
        EARLY: _early(job),
    }
    before = weights + layer(opened, job.prompt_width, prompt) + token * opened * prompt + result[EARLY]
    result["before the first turn"] = max(0.0, before - sum(result.values()))
    return result


def forward(job: Job, parts: int) -> tuple[float, float, float, float, float]:
    """Bytes of a part of the batch on a device: of a layer the states, what `remat` "dots" keeps, all but scores, and
    scores; and of all logits that stand there at once."""
    config, micro, split = job.config, job.batch_parts * parts, job.mesh["tensor"]
    rows, prompts = job.rows / micro, job.prompts / micro
    width = jnp.dtype(config.dtypes.compute).itemsize * (rows * job.slots + prompts * job.prompt_width)
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size / (PIECES if job.remat == "full" else 1)
    inner *= max(config.num_experts, 1)  # every expert computes every token
    scores = rows * job.slots * (job.slots + job.prompt_width) + prompts * job.prompt_width**2
    return (
        width * hidden,
        width * ((queries + 2 * keys + 2 * inner) / split + hidden),
        width * ((3 * queries + 3 * keys + 4 * inner) / split + 5 * hidden),
        FLOAT * config.num_attention_heads / split * scores,
        4 * FLOAT * rows * step(job, parts) * config.vocab_size / split,
    )


def scoring(job: Job) -> dict[str, float]:
    if not job.scorings:
        return {}
    states, linear, _, scores, logits = forward(job, 1)  # of the whole batch, whatever its parts
    layer = states + max(linear, 2 * scores + _pieces(job, states), logits) + _gathered(job)
    return {LAYER: layer, EARLY: _early(job)}


def update(job: Job) -> dict[str, float]:
    config, trained, layers = job.config, job.bytes_of(job.trained), job.base["layers"]
    states, linear, inside, scores, logits = forward(job, job.parts)
    kept = {"full": 0.0, "dots": linear, "none": inside + 2 * scores}[job.remat] + states
    layer = inside + 2 * scores + _pieces(job, states)
    if not job.loras:  # the head's gradient is whole before it is split, twice where logits are made in several steps
        logits += (
            _vocabulary(job) / (2 - config.tie_word_embeddings) * (1 + (step(job, job.parts) < job.max_sampled_tokens))
        )
    result = {
        "kept activations": config.num_hidden_layers * kept,
        LAYER: max(layer, logits),  # one after the other
        "gradient": trained * (1 + (job.grad_accumulation > 1)),
        "gathered weights": _vocabulary(job) + _gathered(job),
    }
    if job.remat == "none":  # what the backward pass multiplies by is kept too, where it was gathered or joined
        joined = {name: layers[name] for group in FUSED.values() if len(group) > 1 for name in group}
        new = layers if job.mesh["fsdp"] > 1 else joined if job.mesh["tensor"] == 1 else {}
        result["kept weights"] = _whole(job).bytes_of({"layers": new})
    while_backward = sum(result.values()) - result["gradient"]
    result["new weights"] = max(0.0, trained - while_backward)  # are they finite? when the backward pass has let go
    return result


def _pieces(job: Job, states: float) -> float:
    """Bytes of a layer's states once more, cut into pieces for the MLP."""
    return states if job.remat == "full" else 0.0


def operations(job: Job) -> dict[str, float]:
    """{phase: operations of a device in matrix products}, two a weight and token, and those of attention."""
    config, layers, body, head, extra = job.config, job.config.num_hidden_layers, *_weights(job)
    each = 4 * config.num_attention_heads * config.head_dim * layers  # of a query and a key, scores and what they weigh
    said = job.rows / job.alternating_seats * job.turns * job.max_sampled
    opened, heard = job.prompts * job.prompt_width, job.rows / job.alternating_seats * _fed(job)
    seen = job.prompt_width + job.slots + job.chunk
    playing = 2 * body * (opened + heard) + 2 * head * said + each * (opened * job.prompt_width + heard * seen)
    playing += 2 * extra * (opened + heard) * (len(job.loras) > 1)  # of one it is in the weights
    rows = job.rows * job.slots
    tokens = opened + rows
    attended = each * (opened * job.prompt_width + rows * (job.prompt_width + job.slots))
    sampled, full = job.rows * job.max_sampled_tokens, not job.loras
    forward = 2 * body * tokens + attended
    again = 0.0 if job.remat == "none" else attended + (2 * body * tokens if job.remat == "full" else 0)
    learning = forward + 2 * body * tokens * (1 + full) + 2 * attended + again + 6 * extra * tokens
    learning += 2 * head * sampled * (3 + full)  # of the vocabulary forward twice
    scoring = job.scorings * (forward + 2 * head * sampled)
    devices = math.prod(job.mesh.values())
    return {"rollout": playing / devices, "update": (job.epochs * learning + scoring) / devices}


def moved(job: Job) -> dict[str, float]:
    """{phase: bytes that a device has to read and write}: weights for every chunk, caches, what is kept for later."""
    config, layers = job.config, job.bytes_of({"layers": job.base["layers"]})
    head = job.bytes_of({name: leaf for name, leaf in job.base.items() if name in ("embed_tokens", "lm_head")})
    head /= 1 if config.tie_word_embeddings else 2
    heard = -(-(job.max_heard + job.max_said) // job.chunk)
    chunks = job.turns * (job.max_sampled + heard - 1)  # a prompt, what was heard, or a decoded token
    cache = rollout(job)["cache"] / (1 + (job.alternating_seats > 1) / job.alternating_seats) / job.alternating_seats
    playing = (chunks + 2) * layers + chunks * (head + cache)
    whole = _whole(job).bytes_of(job.base)
    passes = 3 + (job.remat == "full") + (not job.loras)
    kept = 2 * update(job)["kept activations"] * job.parts
    learning = (
        job.epochs * (job.parts * passes * whole + kept + (3 + 2 * job.moments) * job.bytes_of(job.trained))
        + job.scorings * whole
    )
    return {"rollout": playing, "update": learning}


def loops(job: Job) -> dict[str, float]:
    """{end of a loop's path: how often the loop runs at most}, for the loops of a rollout; the first match counts."""
    blocks = lambda slots: -(-slots // BLOCK)  # noqa: E731
    return {
        f"{ROLLOUT}/while": job.turns,
        f"{ROLLOUT}/{PROMPT}/while": blocks(job.prompt_width),
        f"{PROMPT}/while": (job.turns - 1) / job.turns * -(-(job.max_heard + job.max_said) // job.chunk),
        f"{DECODE}/while": job.max_sampled - 1,
        "": blocks(job.slots + job.chunk),
    }


def _whole(job: Job) -> Job:
    """As an update multiplies by weights."""
    return dataclasses.replace(job, mesh={**job.mesh, "fsdp": 1})


def _gathered(job: Job) -> float:
    """Bytes of a layer gathered over fsdp: as it came, laid out anew, and its gradient."""
    layers = _whole(job).bytes_of({"layers": job.base["layers"]}) if job.mesh["fsdp"] > 1 else 0
    return 3 * layers / job.config.num_hidden_layers


def step(job: Job, parts: int) -> int:
    """Spoken tokens of each row whose logits stand there at once."""
    return min(job.max_sampled_tokens, max(1, job.logits // (job.rows // parts * job.config.vocab_size)))


def _early(job: Job) -> float:
    """Bytes that nothing keeps XLA from making before a rollout: the vocabulary gathered, zeros for what is kept."""
    return _vocabulary(job) + (update(job)["kept activations"] if job.epochs * job.parts == 1 else 0)


def _vocabulary(job: Job) -> float:
    """Bytes of the embeddings and the head, gathered over fsdp."""
    if job.mesh["fsdp"] == 1:
        return 0.0
    return _whole(job).bytes_of({name: leaf for name, leaf in job.base.items() if name != "layers"})


def cached(slots: int) -> int:
    return slots if slots <= MANY else -(-slots // BLOCK) * BLOCK


def _fed(job: Job) -> float:
    """Tokens, or places for them, that a row's cache is given while it acts."""
    return (job.turns - 1) * (job.max_heard + job.max_said) + job.turns * (job.max_sampled - 1) * (1 + job.forced)


def _weights(job: Job) -> tuple[float, float, float]:
    """Numbers in the layers' matrices, in the vocabulary's, in adapters."""
    size = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))  # noqa: E731
    maps = (*lora.LINEAR, "router", "experts_gate", "experts_up", "experts_down")
    layers = {name: leaf for name, leaf in job.base["layers"].items() if name in maps}
    return size(layers), job.base["embed_tokens"].size, size(job.trained) if job.loras else 0.0


def heads(job: Job) -> float:
    """Key-value heads a device, of the cache."""
    count = job.config.num_key_value_heads
    return count / job.mesh["tensor"] if count % job.mesh["tensor"] == 0 else count
