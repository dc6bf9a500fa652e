"""Arithmetic of a training step: bytes that a device holds, FLOPs, bytes moved.

All figures are per device and for the longest games. Rows of a batch are split over data and fsdp, weights by the rules
of `sharding`. The bytes beside weights are estimates, within about 10%, of the arrays that the decoder and the update
keep.
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
from jaxmarl_llm.models.config import ATTENTION, LINEAR, Config, Remat, plain
from jaxmarl_llm.models.delta_net import no_memory
from jaxmarl_llm.models.delta_rule import FEW
from jaxmarl_llm.models.layers import FUSED, PIECES
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.planning import layer_numbers
from jaxmarl_llm.rollout.policy import logits_at_once

EARLY = "made early for the update"
PER_LAYER = "embed_tokens_per_layer"  # a table that is never read whole
LAYER = "a layer's activations, or logits"
FLOAT = 4  # bytes; logits, scores, adapters and their moments are float32 in every model


@dataclasses.dataclass(frozen=True)
class Job:
    """The sizes of one policy set's work in a step; names as in `rollout.layout.RowLayout`."""

    config: Config
    loras: tuple[Lora, ...]  # the settings of every policy's adapter; (): all weights are trained
    prompts: int
    prompt_width: int
    group_size: int
    max_heard: int
    max_said: int
    chunk: int  # the most tokens appended to a cache at a time
    max_sampled: int
    forced: int  # the most tokens forced after a sampled one
    slots: int
    turns: int
    alternating_seats: int
    max_sampled_tokens: int  # the most trained tokens of a row
    epochs: int = 1
    parts: int = 1  # minibatches times micro-batches
    grad_accumulation: int = 1
    logits: int = dataclasses.field(default_factory=logits_at_once)  # numbers at a time, on all devices together
    moments: float = 2.0  # bytes of the optimiser's state per byte of trainable weights; 2 for Adam
    scorings: int = 0  # forward passes over the batch beside the update: by a reference, by a critic
    at_once: int = 0  # rows that a rollout on the host computes at a time, each with its prompt; 0: all, under jit
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
    def trainable(self) -> Any:
        """The abstract tree of the trained weights."""
        if not self.loras:
            return self.base
        init = partial(lora.init, jax.random.key(0), self.base)
        return [jax.eval_shape(lambda lora=lora: init(lora)) for lora in self.loras]

    def bytes_of(self, tree: Any) -> float:
        """Bytes of a device's part of a tree of weights."""
        around, total = SimpleNamespace(shape=self.mesh), 0.0
        for path, leaf in jax.tree.leaves_with_path(tree):
            where = sharding.spec(jax.tree_util.keystr(path, simple=True, separator="/"), leaf.shape, around)
            names = [name for axes in where for name in ((axes,) if isinstance(axes, str) else axes or ())]
            total += leaf.size * jnp.dtype(leaf.dtype).itemsize / math.prod(self.mesh[name] for name in names)
        return total


def memory(jobs: Sequence[Job]) -> dict[str, dict[str, float]]:
    """{phase: {part: bytes}}: "held" always, and "rollout", "scoring" and "update" one after the other."""
    phases: dict[str, dict[str, float]] = {}
    for job in jobs:
        for phase, bytes_of in {"held": held_bytes, "rollout": rollout, "scoring": scoring, "update": update}.items():
            parts = phases.setdefault(phase, {})
            for name, size in bytes_of(job).items():
                if name == "base":  # all policy sets share the weights of one source
                    parts[name] = size
                elif name == LAYER:  # one policy set after the other
                    parts[name] = max(parts.get(name, 0), size)
                else:
                    parts[name] = parts.get(name, 0) + size
    return phases


def peak(phases: Mapping[str, Mapping[str, float]]) -> float:
    """The peak: bytes held always, and those of the largest phase."""
    sizes = {name: sum(parts.values()) for name, parts in phases.items()}
    return sizes.pop("held") + max(sizes.values())


def held_bytes(job: Job) -> dict[str, float]:
    """{part: bytes} of the weights and of the optimiser's state."""
    # with all weights trained, the base stays beside them
    trained = job.bytes_of(job.trainable)
    return {"base": job.bytes_of(job.base), "trained weights": trained, "optimiser's state": job.moments * trained}


def rollout(job: Job) -> dict[str, float]:
    """{part: bytes} of a rollout beside `held_bytes`."""
    if job.at_once:
        job = dataclasses.replace(job, prompts=job.at_once, group_size=1)
    config, rows, fsdp, split = job.config, job.rows / job.batch_parts, job.mesh["fsdp"], job.mesh["tensor"]
    width, weights = jnp.dtype(config.dtypes.compute).itemsize, job.bytes_of({"layers": job.base["layers"]})
    token = layer_numbers.cache_numbers(config, job.mesh["tensor"]) * jnp.dtype(config.dtypes.cache).itemsize
    state = _layers(job, (LINEAR,)) * _state_bytes(job)
    acting, chunk, opened = rows / job.alternating_seats, job.chunk, rows / job.group_size
    slots, prompt = round_slots(job.slots + chunk), round_slots(job.prompt_width)
    copies = 1 + (job.alternating_seats > 1) / job.alternating_seats  # the acting rows are copied
    # gate and up, joined and split; or all rows of `fsdp` at the weights, and sums of parts on the way back
    inner = (
        max(layer_numbers.inner_numbers(config, layer) for layer in layer_numbers.different(config))
        * (5 if fsdp == 1 else 4 * fsdp)
        / split
    )
    given = layer_numbers.input_numbers(config)

    def layer(rows: float, length: int, slots: int, more: int = 0) -> float:
        seen = more + (BLOCK if slots > MANY and length >= CHUNK else slots)
        scores = FLOAT * rows * length * seen * config.num_attention_heads / split
        if config.recurrent and length > FEW:
            scores = max(scores, FLOAT * rows * layer_numbers.rule_numbers(config, length) / 2 / split)
        return max(2 * scores, width * rows * length * (2 * config.hidden_size + inner)) + width * rows * length * given

    # the product of one adapter is added to all weights; activations then take the place of the joined ones
    parts = {name: leaf for name, leaf in job.base["layers"].items() if plain(name) in FUSED["gate_up"]}
    joined = job.bytes_of({"layers": parts}) if len(job.loras) == 1 and fsdp * split == 1 else 0.0
    result = {
        "weights as decoding likes them": weights,
        "cache": token * (rows * slots * copies + opened * prompt) + state * (rows * copies + opened),
        "activations": max(joined, *(layer(acting, n, slots, prompt) for n in (chunk, 1 + job.forced))),
        "logits": 4 * FLOAT * acting * config.vocab_size,
        EARLY: _early(job),
    }
    before = weights + layer(opened, job.prompt_width, prompt) + (token * prompt + state) * opened + result[EARLY]
    result["before the first turn"] = max(0.0, before - sum(result.values()))
    return result


def forward(job: Job, parts: int, layer: int, gradient: bool = False) -> tuple[float, float, float, float, float]:
    """Bytes of a part of the batch on a device: four figures of a layer, and the logits that exist at once.

    The layer's are its states, the arrays that `remat` "dots" keeps, all arrays but scores, and half of the scores. For
    linear_attention the scores are the arrays of the delta rule, of a pass with a `gradient` or without.
    """
    config, micro, split = job.config, job.batch_parts * parts, job.mesh["tensor"]
    rows, prompts = job.rows / micro, job.prompts / micro
    width = jnp.dtype(config.dtypes.compute).itemsize * (rows * job.slots + prompts * job.prompt_width)
    kind, (dim, heads) = config.kinds[layer], config.heads_of(config.kinds[layer])
    queries, keys = config.num_attention_heads * dim, heads * dim * (config.source(layer) == layer)
    hidden, inner = (
        config.hidden_size,
        layer_numbers.inner_numbers(config, layer) / (PIECES if job.remat == "full" else 1),
    )
    size = config.hidden_size_per_layer_input
    gated = (hidden + size) * bool(size)  # outputs of the maps of the layer's own inputs
    logits = 4 * FLOAT * rows * step(job, parts) * config.vocab_size / split
    if kind == LINEAR:
        mixed, values = config.linear_widths
        tokens = rows * job.slots + prompts * job.prompt_width
        rule = partial(layer_numbers.rule_numbers, config, gradient=gradient)
        return (
            width * hidden,
            width * ((mixed + values + 2 * inner) / split + hidden),
            width * ((mixed + 3 * values + 4 * inner) / split + 5 * hidden) + FLOAT * 3 * mixed * tokens / split,
            FLOAT * (rows * rule(job.slots) + prompts * rule(job.prompt_width)) / 2 / split,
            logits,
        )
    gates = queries * config.family.gated
    scores = rows * job.slots * (job.slots + job.prompt_width) + prompts * job.prompt_width**2
    return (
        width * hidden,
        width * ((queries + gates + 2 * keys + 2 * inner) / split + hidden + gated),
        width * ((3 * queries + 2 * gates + 3 * keys + 4 * inner) / split + 5 * hidden + 2 * gated),
        FLOAT * config.num_attention_heads / split * scores,
        logits,
    )


def scoring(job: Job) -> dict[str, float]:
    """{part: bytes} of a forward pass over the batch, by a reference or a critic."""
    if not job.scorings:
        return {}
    layers = []
    for layer in layer_numbers.different(job.config):
        states, linear, _, scores, logits = forward(job, 1, layer)  # scoring takes the whole batch at once
        layers.append(states + max(linear, 2 * scores + _pieces(job, states), logits) + _gathered_bytes(job))
    return {LAYER: max(layers), EARLY: _early(job)} | _inputs(job, 1, 2) | _cut(job)  # both parts of the sum of inputs


def update(job: Job) -> dict[str, float]:
    """{part: bytes} of an update's gradient over a part of the batch."""
    config, trained, layers = job.config, job.bytes_of(job.trainable), job.base["layers"]
    kept, layer, logits = 0.0, 0.0, 0.0
    for number, count in layer_numbers.different(config).items():
        states, linear, inside, scores, logits = forward(job, job.parts, number, gradient=True)
        of_layer = {"full": 0.0, "dots": linear, "none": inside + 2 * scores}[job.remat] + states
        kept += count * of_layer
        layer = max(layer, inside + 2 * scores + _pieces(job, states))
    if not job.loras:  # the head's gradient is whole before it is split; there are two if logits take several steps
        logits += (
            _vocabulary(job) / (2 - config.tie_word_embeddings) * (1 + (step(job, job.parts) < job.max_sampled_tokens))
        )
    result = {
        "kept activations": kept,
        LAYER: max(layer, logits),  # they do not exist together
        "gradient": trained * (1 + (job.grad_accumulation > 1)),
        "gathered weights": _vocabulary(job) + _gathered_bytes(job),
    } | _inputs(job, job.parts, 3)  # with a gradient
    result |= _cut(job)
    if job.remat == "none":  # weights that were gathered or joined are kept for the backward pass
        groups = [names for names in FUSED.values() if len(names) > 1]
        joined = {name: leaf for name, leaf in layers.items() if any(plain(name) in names for names in groups)}
        new = layers if job.mesh["fsdp"] > 1 else joined if job.mesh["tensor"] == 1 else {}
        result["kept weights"] = _whole(job).bytes_of({"layers": new})
    while_backward = sum(result.values()) - result["gradient"]
    result["new weights"] = max(0.0, trained - while_backward)  # checked once the backward pass has freed its arrays
    return result


def _pieces(job: Job, states: float) -> float:
    """Bytes of the copy of a layer's states that is cut into pieces for the MLP."""
    return states if job.remat == "full" else 0.0


def operations(job: Job) -> dict[str, float]:
    """{phase: FLOPs of a device in matrix products}: two per weight and token, and those of attention."""
    config, body, head, extra = job.config, *_weights(job)
    # FLOPs of a query and a key, and of a token in the delta rule
    dims = [config.heads_of(kind)[0] for kind in config.kinds if kind in ATTENTION]
    pair_cost = 4 * config.num_attention_heads * sum(dims)
    rule_cost = _layers(job, (LINEAR,)) * layer_numbers.rule_operations(config)
    said = job.rows / job.alternating_seats * job.turns * job.max_sampled
    opened, heard = job.prompts * job.prompt_width, job.rows / job.alternating_seats * _tokens_fed(job)
    seen = job.prompt_width + job.slots + job.chunk
    playing = 2 * body * (opened + heard) + 2 * head * said + pair_cost * (opened * job.prompt_width + heard * seen)
    playing += rule_cost * (opened + heard)
    playing += 2 * extra * (opened + heard) * (len(job.loras) > 1)  # a single adapter is merged into the weights
    rows = job.rows * job.slots
    tokens = opened + rows
    attended = pair_cost * (opened * job.prompt_width + rows * (job.prompt_width + job.slots)) + rule_cost * tokens
    sampled, full = job.rows * job.max_sampled_tokens, not job.loras
    forward = 2 * body * tokens + attended
    again = 0.0 if job.remat == "none" else attended + (2 * body * tokens if job.remat == "full" else 0)
    learning = forward + 2 * body * tokens * (1 + full) + 2 * attended + again + 6 * extra * tokens
    learning += 2 * head * sampled * (3 + full)  # the vocabulary's product is computed twice forward
    scoring = job.scorings * (forward + 2 * head * sampled)
    devices = math.prod(job.mesh.values())
    return {"rollout": playing / devices, "update": (job.epochs * learning + scoring) / devices}


def bytes_moved(job: Job) -> dict[str, float]:
    """{phase: bytes that a device has to read and write}: weights for every chunk, caches, kept activations."""
    config, base = job.config, {name: leaf for name, leaf in job.base.items() if name != PER_LAYER}  # it is looked up
    layers = job.bytes_of({"layers": job.base["layers"]})
    head = job.bytes_of({name: leaf for name, leaf in job.base.items() if name in ("embed_tokens", "lm_head")})
    head /= 1 if config.tie_word_embeddings else 2
    heard = -(-(job.max_heard + job.max_said) // job.chunk)
    chunks: float = job.turns * (job.max_sampled + heard - 1)  # prompts, messages, decoded tokens
    if job.at_once:  # each prompt is read by itself, once for its group
        chunks = job.max_sampled * -(-job.rows // job.at_once) + job.prompts
    cache = rollout(job)["cache"] / (1 + (job.alternating_seats > 1) / job.alternating_seats) / job.alternating_seats
    playing = (chunks + 2) * layers + chunks * (head + cache)
    whole = _whole(job).bytes_of(base)
    passes = 3 + (job.remat == "full") + (not job.loras)
    kept = 2 * update(job)["kept activations"] * job.parts
    learning = (
        job.epochs * (job.parts * passes * whole + kept + (3 + 2 * job.moments) * job.bytes_of(job.trainable))
        + job.scorings * whole
    )
    return {"rollout": playing, "update": learning}


def loops(job: Job) -> dict[str, float]:
    """{end of a while loop's path in the program's text: its most iterations}, for the loops of a rollout.

    The first end that matches counts; "" matches all. Later prompts, PROMPT/while, have their mean over turns.
    """
    blocks = lambda slots: -(-slots // BLOCK)
    return {
        f"{ROLLOUT}/while": job.turns,
        f"{ROLLOUT}/{PROMPT}/while": blocks(job.prompt_width),
        f"{PROMPT}/while": (job.turns - 1) / job.turns * -(-(job.max_heard + job.max_said) // job.chunk),
        f"{DECODE}/while": job.max_sampled - 1,
        "": blocks(job.slots + job.chunk),
    }


def _whole(job: Job) -> Job:
    """The job on a mesh without fsdp: an update gathers weights over it."""
    return dataclasses.replace(job, mesh={**job.mesh, "fsdp": 1})


def _gathered_bytes(job: Job) -> float:
    """Bytes of a layer gathered over fsdp: as gathered, in another layout, and its gradient."""
    if job.mesh["fsdp"] == 1:
        return 0.0
    config, layers, whole = job.config, job.base["layers"], _whole(job)
    size = {name: whole.bytes_of({"layers": {name: leaf}}) / len(leaf) for name, leaf in layers.items()}
    having = {name: set(config.layers_with(name)) for name in layers}
    return 3 * max(
        sum(size[name] for name in layers if layer in having[name]) for layer in layer_numbers.different(config)
    )


def _cut(job: Job) -> dict[str, float]:
    """{part: bytes} of copied parts of stacked weights."""
    layers = job.base["layers"]
    size = job.bytes_of({"layers": {name: layers[name] for name in layer_numbers.cut_leaves(job.config, layers)}})
    return {"parts of stacked weights": size} if size else {}


def step(job: Job, parts: int) -> int:
    """Sampled tokens of a row whose logits exist at once."""
    return min(job.max_sampled_tokens, max(1, job.logits // (job.rows // parts * job.config.vocab_size)))


def _early(job: Job) -> float:
    """Bytes that XLA may allocate before the rollout: the gathered vocabulary, zeros for kept activations."""
    if job.at_once:  # the update is a program of its own
        return _vocabulary(job)
    return _vocabulary(job) + (update(job)["kept activations"] if job.epochs * job.parts == 1 else 0)


def _vocabulary(job: Job) -> float:
    """Bytes of the embeddings and the head, gathered over fsdp."""
    if job.mesh["fsdp"] == 1:
        return 0.0
    return _whole(job).bytes_of({name: leaf for name, leaf in job.base.items() if name not in ("layers", PER_LAYER)})


def round_slots(slots: int) -> int:
    """Slots of a cache: whole blocks if there are many, as in `decoder.empty_cache`."""
    return slots if slots <= MANY else -(-slots // BLOCK) * BLOCK


def _tokens_fed(job: Job) -> float:
    """Tokens, padding included, that are appended to a row's cache over a game."""
    return (job.turns - 1) * (job.max_heard + job.max_said) + job.turns * (job.max_sampled - 1) * (1 + job.forced)


def _weights(job: Job) -> tuple[float, float, float]:
    """Numbers in (the layers' matrices, the vocabulary's, adapters)."""
    size = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
    maps = (*lora.MAPS, "router", "experts_gate", "experts_up", "experts_down")
    layers = {name: leaf for name, leaf in job.base["layers"].items() if name in maps}
    layers |= {name: leaf for name, leaf in job.base.items() if name == "per_layer_model_projection"}
    return size(layers), job.base["embed_tokens"].size, size(job.trainable) if job.loras else 0.0


def _layers(job: Job, kinds: Sequence[str]) -> int:
    """The number of layers of these kinds."""
    return sum(kind in kinds for kind in job.config.kinds)


def _state_bytes(job: Job) -> float:
    """Bytes of a row's memory in a layer with linear_attention, on a device."""
    if not job.config.recurrent:
        return 0.0
    recent, state = jax.eval_shape(partial(no_memory, job.config, 1))
    divides = state.shape[1] % job.mesh["tensor"] == 0
    return recent.size * recent.dtype.itemsize + FLOAT * state.size / (job.mesh["tensor"] if divides else 1)


def _inputs(job: Job, parts: int, copies: int) -> dict[str, float]:
    """{part: bytes} of the inputs of all layers for a part of the batch, which exist so many times at once."""
    tokens = (job.rows * job.slots + job.prompts * job.prompt_width) / (job.batch_parts * parts)
    size = copies * jnp.dtype(job.config.dtypes.compute).itemsize * tokens * layer_numbers.input_numbers(job.config)
    return {"inputs of each layer": size} if size else {}
