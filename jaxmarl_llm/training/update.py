"""The update from a loss to new weights: epochs, minibatches, micro-batches, clipping and one optimiser per policy, in
one jit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.devices.lanes import most_of_lanes
from jaxmarl_llm.keys import SHUFFLE, key_for
from jaxmarl_llm.rl.masked import Mean

# (weights by policy, a part of the batch) -> the loss, joint or by policy, and metrics
JointLossFn = Callable[[dict[str, Any], Any], tuple[Mean | dict[str, Mean], dict[str, Mean]]]
OptimiserFn = Callable[[Any], optax.GradientTransformation]  # learning rate, traced -> transformation, as `optax.sgd`


@dataclass(frozen=True)
class Buckets:
    """Widths of a batch, numbered 0 to number - 1; the last one is the whole batch. A micro-batch is computed at the
    smallest width that holds it in all lanes of a vmap.

    `needed(part)` gives the width of each prompt or row of a part of the batch, int32 [n], with n a multiple of its
    prompts. `cut(part, i)` is the part at width i.
    """

    number: int
    needed: Callable[[Any], jax.Array]
    cut: Callable[[Any, int], Any]


class Learners(struct.PyTreeNode):
    """The trained state: weights or adapter and optimiser state of each policy; frozen policies are absent."""

    weights: dict[str, Any]
    optimiser: dict[str, optax.OptState]
    skipped: jax.Array  # int32, number of skipped updates: a loss, a gradient or new weights were not finite


@dataclass(frozen=True)
class Optimiser:
    """A transformation of each policy's gradient, which is first clipped to a global norm. The learning rate is an
    argument of every update. The transformation is Adam, or `make(rate)`, with `make` for all policies or as {policy:
    function}."""

    max_grad_norm: float = 1.0  # math.inf: no bound
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    epochs: int = 1
    minibatches: int = 1
    grad_accumulation: int = 1  # micro-batches per minibatch
    make: OptimiserFn | Mapping[str, OptimiserFn] | None = field(default=None, hash=False)

    def __post_init__(self):
        bound = self.max_grad_norm if isinstance(self.max_grad_norm, int | float) else 0
        if min(self.epochs, self.minibatches, self.grad_accumulation) < 1 or not bound > 0:
            raise ValueError(
                f"epochs, minibatches and grad_accumulation must be at least 1 and max_grad_norm positive, got {self}."
            )

    def function(self, policy: str) -> OptimiserFn | None:
        """The policy's function of the learning rate; None is Adam."""
        return self.make.get(policy) if isinstance(self.make, Mapping) else self.make

    def transform(self, policy: str, rate: Any) -> optax.GradientTransformation:
        """Clipping and the policy's transformation. Adam's steps are not yet multiplied by the rate."""
        make = self.function(policy)
        inner = optax.scale_by_adam(self.b1, self.b2, self.eps) if make is None else make(rate)
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), inner)

    def init_policy(self, policy: str, weights: Any) -> optax.OptState:
        """The state before the first step. It depends on no learning rate (`optimiser.check_steps`)."""
        state = self.transform(policy, jnp.float32(1)).init(weights)
        return state if self.function(policy) is None else jax.tree.map(_strong, state)

    def step(self, policy: str, gradient: Any, state: optax.OptState, weights: Any, rate: Any) -> tuple[Any, Any]:
        """(weights, state) of a policy after one step."""
        change, state = self.transform(policy, rate).update(gradient, state, weights)
        if self.function(policy) is None:
            return jax.tree.map(lambda w, s: w - (rate * s).astype(w.dtype), weights, change), state
        return optax.apply_updates(weights, change), state

    def init(self, weights: dict[str, Any]) -> Learners:
        """Learners with these weights, before their first step."""
        return Learners(weights, {name: self.init_policy(name, leaf) for name, leaf in weights.items()}, jnp.int32(0))

    def check(self, prompts: Sequence[int]) -> None:
        """Raises ValueError unless the prompts of each policy set divide into minibatches and micro-batches."""
        parts = self.minibatches * self.grad_accumulation
        for count in prompts:
            if count % parts:
                raise ValueError(
                    f"{count} prompts (groups x model seats) do not divide into {self.minibatches} minibatches of "
                    f"{self.grad_accumulation} micro-batches: choose a multiple of {parts}."
                )


def update(
    settings: Optimiser,
    loss: JointLossFn,
    learners: Learners,
    batch: Any,
    prompts: int,
    rate: jax.Array | Mapping[str, jax.Array],
    key: jax.Array,
    buckets: Buckets | None = None,
    leaves: bool = False,
) -> tuple[Learners, dict[str, jax.Array]]:
    """The learners after all epochs and minibatches of one batch. Pure, to be jitted with the learners donated.

    Every leaf of `batch` has a first axis that is a multiple of `prompts`, in order of the prompts. So a part of the
    batch keeps whole groups. Gradients of micro-batches are added as sums and divided by the joint count. If the loss
    returns a Mean for each policy, a policy's gradient is divided by its own count. An update with a loss, a gradient
    or new weights that are not finite changes nothing and is counted. `rate` may be traced, and is one for all or
    {policy: rate}. With `buckets`, prompts that need the same width share a micro-batch, and the loss is compiled for
    each width.

    Returns metrics as means over the updates (not finite if one update is not): the loss's metrics, loss (the sum over
    policies) and gradient_norm/POLICY. `leaves` adds gradient_norm/POLICY/PATH; skipped is a count. Long because
    epochs, minibatches and micro-batches are nested loops.
    """
    parts = settings.minibatches * settings.grad_accumulation

    def minibatch(learners: Learners, batches: Any) -> tuple[Learners, dict[str, jax.Array]]:
        def joint(weights, micro):
            total, metrics = loss(weights, micro)
            parts = total if isinstance(total, dict) else {"": total}
            return sum(part.sum for part in parts.values()), (parts, metrics)

        def differentiate(micro):
            (_, aux), gradient = jax.value_and_grad(joint, has_aux=True)(learners.weights, micro)
            return sharding.weights(gradient), aux

        def at_least_width(micro):
            if buckets is None:
                return differentiate(micro)
            cuts = [lambda micro, i=i: differentiate(buckets.cut(micro, i)) for i in range(buckets.number)]
            return jax.lax.switch(most_of_lanes(buckets.needed(micro)), cuts, micro)

        def add(carry, micro):
            return jax.tree.map(jnp.add, carry, at_least_width(micro)), None

        first = jax.tree.map(lambda x: x[0], batches)
        if settings.grad_accumulation == 1:
            gradient, aux = at_least_width(first)
        else:
            nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(at_least_width, first))
            (gradient, aux), _ = jax.lax.scan(add, nothing, batches)
        parts, metrics = aux
        count = {name: parts[name if name in parts else ""].count for name in gradient}
        count = {name: jnp.where(n > 0, n, 1) for name, n in count.items()}  # a sum of weights may be below 1
        gradient = {n: jax.tree.map(lambda x, n=n: x / count[n].astype(x.dtype), g) for n, g in gradient.items()}
        norms = {name: optax.tree.norm(g) for name, g in gradient.items()}
        total = sum(part.value for part in parts.values())
        finite = jnp.isfinite(total) & jnp.stack([jnp.isfinite(n) for n in norms.values()]).all()

        def step(old: Learners) -> Learners:
            weights, states = {}, {}
            for name, leaf in old.weights.items():
                own_rate = rate[name] if isinstance(rate, Mapping) else rate
                weights[name], states[name] = settings.step(name, gradient[name], old.optimiser[name], leaf, own_rate)
            return Learners(weights, states, old.skipped)

        finite &= jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(step(learners).weights)]).all()
        # a loop of at most one round overwrites the old weights; a select would hold both old and new
        once = lambda carry: (jnp.zeros_like(finite), step(carry[1]))
        new = jax.lax.while_loop(lambda carry: carry[0], once, (finite, learners))[1]
        new = new.replace(skipped=learners.skipped + jnp.where(finite, 0, 1))
        if leaves:
            paths = jax.tree_util.tree_leaves_with_path(gradient)
            norms |= {jax.tree_util.keystr(at, simple=True, separator="/"): optax.tree.norm(g) for at, g in paths}
        metrics = {name: mean.value for name, mean in metrics.items()} | {"loss": total}
        return new, metrics | {f"gradient_norm/{name}": norm for name, norm in norms.items()}

    def epoch(learners: Learners, number: jax.Array) -> tuple[Learners, dict[str, jax.Array]]:
        order = jnp.arange(prompts)
        shuffled = settings.minibatches > 1
        if shuffled:
            order = jax.random.permutation(key_for(key, SHUFFLE, number), prompts)
        if buckets is not None and settings.grad_accumulation > 1:
            need = buckets.needed(batch).reshape(prompts, -1).max(1)
            order = order.reshape(-1, settings.minibatches, settings.grad_accumulation).swapaxes(1, 2)
            order = order.reshape(-1, settings.minibatches)
            order = jnp.take_along_axis(order, jnp.argsort(need[order], 0), 0)  # sorts each minibatch by width
            order = order.reshape(settings.grad_accumulation, -1, settings.minibatches)
            order, shuffled = order.transpose(1, 2, 0).ravel(), True

        def split(x):
            # [prompts, rows each, ...] -> [minibatches, accumulation, part of the prompts * rows each, ...]; the parts
            # interleave, so that each spans every device of a mesh
            x = x.reshape(prompts, -1, *x.shape[1:])
            x = x[order] if shuffled else x
            x = x.reshape(prompts // parts, settings.minibatches, settings.grad_accumulation, *x.shape[1:])
            x = jnp.moveaxis(x, 0, 2)
            return x.reshape(*x.shape[:2], -1, *x.shape[4:])

        return jax.lax.scan(minibatch, learners, jax.tree.map(split, batch))

    start = learners.skipped
    learners, metrics = jax.lax.scan(epoch, learners, jnp.arange(settings.epochs))
    return learners, {name: x.mean() for name, x in metrics.items()} | {"skipped": learners.skipped - start}


def _strong(x: Any) -> jax.Array:
    """An array without a weak type; a weak type would compile the second update anew."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jax.dtypes.extended) else x.astype(x.dtype)
