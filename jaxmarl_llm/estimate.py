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

from jaxmarl_llm import adapters, model, sharding
from jaxmarl_llm.adapters import Lora
from jaxmarl_llm.attention import BLOCK, MANY
from jaxmarl_llm.model import Config, Remat

CHUNK = 2**24  # logits that `policy.score` holds at once
FLOAT = 4  # bytes of what is float32 whatever the model is: logits, scores, adapters and their moments


@dataclasses.dataclass(frozen=True)
class Job:
    """What one family does in a step, in numbers; names as in `rollout._Side`."""

    config: Config
    loras: tuple[Lora, ...]
    """Of every policy; (): all weights are trained."""
    openings: int
    opening_width: int
    members: int
    heard: int
    said: int
    sampled: int
    forced: int
    """Most tokens that follow a sampled one by themselves."""
    slots: int
    turns: int
    """Of the game."""
    together: int
    spoken: int
    """Most trained tokens of a row."""
    epochs: int = 1
    parts: int = 1
    """Minibatches times micro-batches."""
    accumulate: int = 1
    scorings: int = 0
    """Times that the batch is only scored: by a reference, by a critic."""
    remat: Remat = "none"
    mesh: Mapping[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(sharding.AXES, 1))

    @property
    def rows(self) -> int:
        return self.openings * self.members

    @property
    def batch_parts(self) -> int:
        return self.mesh["data"] * self.mesh["fsdp"]

    @property
    def base(self) -> dict:
        """The abstract tree of the model's weights."""
        leaf = partial(jax.ShapeDtypeStruct, dtype=self.config.dtypes.parameters)
        return jax.tree.map(leaf, model.shapes(self.config), is_leaf=lambda x: isinstance(x, tuple))

    @property
    def trained(self) -> Any:
        """The abstract tree of what learns."""
        if not self.loras:
            return self.base
        init = partial(adapters.init, jax.random.key(0), self.base)
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
    """{phase: {what: bytes}} of the phases held (always), rollout and update (one after the other)."""
    phases: dict[str, dict[str, float]] = {"held": {}, "rollout": {}, "update": {}}
    for job in jobs:
        for phase, parts in (("held", held(job)), ("rollout", rollout(job)), ("update", update(job))):
            for name, size in parts.items():
                phases[phase][name] = phases[phase].get(name, 0) + size
    return phases


def peak(phases: Mapping[str, Mapping[str, float]]) -> float:
    """Bytes at most."""
    of = {name: sum(parts.values()) for name, parts in phases.items()}
    return of["held"] + max(of["rollout"], of["update"])


def held(job: Job) -> dict[str, float]:
    # all weights: what training began from stays beside what it has become
    trained = job.bytes_of(job.trained)
    return {"base": job.bytes_of(job.base), "trained weights": trained, "Adam's moments": 2 * trained}


def rollout(job: Job) -> dict[str, float]:
    config, rows = job.config, job.rows / job.batch_parts
    width = jnp.dtype(config.dtypes.compute).itemsize
    slots = job.slots + job.heard + job.said
    slots = slots if slots <= MANY else -(-slots // BLOCK) * BLOCK
    token = 2 * config.num_hidden_layers * heads(job) * config.head_dim * jnp.dtype(config.dtypes.cache).itemsize
    acting, chunk = rows / job.together, job.heard + job.said
    seen = slots + job.opening_width
    wide = max(acting * chunk * seen, rows / job.members * job.opening_width**2)
    layer = FLOAT * wide * config.num_attention_heads / job.mesh["tensor"]
    tokens = max(acting * chunk, rows / job.members * job.opening_width)
    # taken apart, and joined where no device has a part of one; an adapter added to all before: its product and the sum
    copies = 3 if len(job.loras) == 1 else 1 + (job.mesh["fsdp"] * job.mesh["tensor"] == 1)
    return {
        "weights as decoding likes them": copies * job.bytes_of({"layers": job.base["layers"]}),
        "cache": token * (rows * slots * (1 + (job.together > 1) / job.together)
                          + rows / job.members * job.opening_width),
        "activations": 2 * layer + width * tokens * (4 * config.hidden_size + 3 * config.intermediate_size),
        "logits": 4 * FLOAT * acting * config.vocab_size,
        "vocabulary gathered early": _vocabulary(job),  # the update's: nothing keeps XLA from doing it first
    }  # fmt: skip


def update(job: Job) -> dict[str, float]:
    config, micro = job.config, job.batch_parts * job.parts
    width, trained = jnp.dtype(config.dtypes.compute).itemsize, job.bytes_of(job.trained)
    rows, openings = job.rows / micro, job.openings / micro
    tokens = rows * job.slots + openings * job.opening_width
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    split = job.mesh["tensor"]
    scores = FLOAT * config.num_attention_heads / split
    scores *= rows * job.slots * (job.slots + job.opening_width) + openings * job.opening_width**2
    linear = width * tokens * ((queries + 2 * keys + 2 * config.intermediate_size) / split + config.hidden_size)
    inside = width * tokens * ((3 * queries + 3 * keys + 4 * config.intermediate_size) / split + 5 * config.hidden_size)
    kept = {"full": 0.0, "dots": linear, "none": inside + 2 * scores}[job.remat]
    kept += width * tokens * config.hidden_size
    step = min(job.spoken, max(1, CHUNK // (job.rows // job.parts * config.vocab_size)))
    layer = inside + 3 * scores + (linear if job.remat == "full" else 0)
    logits = 4 * FLOAT * rows * step * config.vocab_size / split
    result = {
        "kept activations": config.num_hidden_layers * kept,
        "a layer's activations, or logits": max(layer, logits),  # one after the other
        "gradient": trained * (1 + (job.accumulate > 1)),
    }
    if job.mesh["fsdp"] > 1:
        layers = _whole(job).bytes_of({"layers": job.base["layers"]})
        result["gathered weights"] = _vocabulary(job) + 2 * layers / config.num_hidden_layers
    new = 3 * trained
    while_backward = sum(result.values()) - result["gradient"]
    result["new weights and moments"] = max(0.0, new - while_backward)  # when the backward pass has let go of its own
    return result


def operations(job: Job) -> dict[str, float]:
    """{phase: operations of a device in matrix products}, two a weight and token, and those of attention."""
    config, layers, body, head, extra = job.config, job.config.num_hidden_layers, *_weights(job)
    each = 4 * config.num_attention_heads * config.head_dim * layers  # of a query and a key, scores and what they weigh
    said = job.rows / job.together * job.turns * job.sampled
    opened, heard = job.openings * job.opening_width, job.rows / job.together * _fed(job)
    seen = job.opening_width + job.slots + job.heard + job.said
    playing = 2 * body * (opened + heard) + 2 * head * said + each * (opened * job.opening_width + heard * seen)
    rows = job.rows * job.slots
    tokens = opened + rows
    attended = each * (opened * job.opening_width + rows * (job.opening_width + job.slots))
    spoken, full = job.rows * job.spoken, not job.loras
    forward = 2 * body * tokens + attended
    again = 0.0 if job.remat == "none" else attended + (2 * body * tokens if job.remat == "full" else 0)
    learning = forward + 2 * body * tokens * (1 + full) + 2 * attended + again + 6 * extra * tokens
    learning += 2 * head * spoken * (3 + full)  # of the vocabulary forward twice
    scoring = job.scorings * (forward + 2 * head * spoken)
    devices = math.prod(job.mesh.values())
    return {"rollout": playing / devices, "update": (job.epochs * learning + scoring) / devices}


def moved(job: Job) -> dict[str, float]:
    """{phase: bytes that a device has to read and write}: weights for every chunk, caches, what is kept for later."""
    config, layers = job.config, job.bytes_of({"layers": job.base["layers"]})
    head = job.bytes_of({name: leaf for name, leaf in job.base.items() if name in ("embed_tokens", "lm_head")})
    head /= 1 if config.tie_word_embeddings else 2
    chunks = job.turns * job.sampled  # a prompt or a decoded token
    cache = rollout(job)["cache"] / (1 + (job.together > 1) / job.together) / job.together
    playing = (chunks + 2) * layers + chunks * (head + cache)
    whole = _whole(job).bytes_of(job.base)
    passes = 3 + (job.remat == "full") + (not job.loras)
    kept = 2 * update(job)["kept activations"] * job.parts
    learning = job.epochs * (job.parts * passes * whole + kept + 7 * job.bytes_of(job.trained)) + job.scorings * whole
    return {"rollout": playing, "update": learning}


def loops(job: Job) -> dict[str, float]:
    """How often at most the loops of a rollout run that end when all is said, by the end of their path."""
    after_the_first = (job.turns - 1) / job.turns
    blocks = -(-(job.slots + job.heard + job.said) // BLOCK)
    return {"prompt/while": after_the_first, "decode/while": job.sampled - 1, "": blocks}


def _whole(job: Job) -> Job:
    """As an update multiplies by weights."""
    return dataclasses.replace(job, mesh={**job.mesh, "fsdp": 1})


def _vocabulary(job: Job) -> float:
    """Bytes of the embeddings and the head, gathered over fsdp."""
    if job.mesh["fsdp"] == 1:
        return 0.0
    return _whole(job).bytes_of({name: leaf for name, leaf in job.base.items() if name != "layers"})


def _fed(job: Job) -> float:
    """Tokens, or places for them, that a row's cache is given while it acts."""
    return (job.turns - 1) * (job.heard + job.said) + job.turns * (job.sampled - 1) * (1 + job.forced)


def _weights(job: Job) -> tuple[float, float, float]:
    """Numbers in the layers' matrices, in the vocabulary's, in adapters."""
    size = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))  # noqa: E731
    layers = {name: leaf for name, leaf in job.base["layers"].items() if name in adapters.LINEAR}
    return size(layers), job.base["embed_tokens"].size, size(job.trained) if job.loras else 0.0


def heads(job: Job) -> float:
    """Key-value heads a device, of the cache."""
    count = job.config.num_key_value_heads
    return count / job.mesh["tensor"] if count % job.mesh["tensor"] == 0 else count
