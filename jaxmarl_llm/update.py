"""From a loss to new weights: epochs and minibatches, micro-batches, clipping, one optimiser a policy, in one jit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxmarl_llm.environment import SHUFFLE, key_for
from jaxmarl_llm.masked import Mean

Loss = Callable[[dict[str, Any], Any], tuple[Mean, dict[str, Mean]]]


class Learners(struct.PyTreeNode):
    """What training changes: for each policy its weights or adapter and its optimiser; frozen policies are absent."""

    weights: dict[str, Any]
    optimiser: dict[str, optax.OptState]
    skipped: jax.Array  # int32, updates left out because a loss, a gradient or new weights were not finite


@dataclass(frozen=True)
class Optimiser:
    """Adam after clipping each policy's gradient to a global norm; the learning rate is given at every update."""

    clip: float = 1.0
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    epochs: int = 1
    minibatches: int = 1
    accumulate: int = 1  # micro-batches a minibatch

    def __post_init__(self):
        if min(self.epochs, self.minibatches, self.accumulate) < 1 or self.clip <= 0:
            raise ValueError(f"epochs, minibatches and accumulate must be at least 1 and clip positive, got {self}.")

    @property
    def transform(self) -> optax.GradientTransformation:
        adam = optax.scale_by_adam(self.b1, self.b2, self.eps)
        return optax.chain(optax.clip_by_global_norm(self.clip), adam)

    def init(self, weights: dict[str, Any]) -> Learners:
        return Learners(weights, {name: self.transform.init(leaf) for name, leaf in weights.items()}, jnp.int32(0))

    def check(self, openings: Sequence[int]) -> None:
        """Raises ValueError unless each family's openings divide into minibatches and micro-batches."""
        parts = self.minibatches * self.accumulate
        for count in openings:
            if count % parts:
                raise ValueError(
                    f"{count} openings (groups x model seats) do not divide into {self.minibatches} minibatches of "
                    f"{self.accumulate} micro-batches: choose a multiple of {parts}."
                )


def update(
    settings: Optimiser, loss: Loss, learners: Learners, batch: Any, openings: int, rate: jax.Array, key: jax.Array
) -> tuple[Learners, dict[str, jax.Array]]:
    """Improves the learners on one batch; pure, to be jitted with the learners donated.

    Every leaf of `batch` has a first axis that is a multiple of `openings`, in order of the openings, so that a part of
    the batch keeps whole groups. Gradients of micro-batches are added as sums and divided by the joint count. An update
    whose loss, gradient or new weights are not finite changes nothing and is counted. `rate` may be traced.
    Returns metrics as means over the updates (not finite if one of them was not): the loss's own,
    gradient_norm/POLICY; and skipped, a count.
    """
    parts = settings.minibatches * settings.accumulate

    def minibatch(learners: Learners, batches: Any) -> tuple[Learners, dict[str, jax.Array]]:
        def joint(weights, micro):
            total, metrics = loss(weights, micro)
            return total.sum, (total, metrics)

        def add(carry, micro):
            (_, aux), gradient = jax.value_and_grad(joint, has_aux=True)(learners.weights, micro)
            return jax.tree.map(jnp.add, carry, (gradient, aux)), None

        first, rest = jax.tree.map(lambda x: x[0], batches), jax.tree.map(lambda x: x[1:], batches)
        (_, aux), gradient = jax.value_and_grad(joint, has_aux=True)(learners.weights, first)
        if settings.accumulate > 1:
            (gradient, aux), _ = jax.lax.scan(add, (gradient, aux), rest)
        total, metrics = aux
        gradient = jax.tree.map(lambda g: g / jnp.maximum(total.count, 1).astype(g.dtype), gradient)
        norms = {name: optax.tree.norm(g) for name, g in gradient.items()}
        finite = jnp.isfinite(total.value) & jnp.stack([jnp.isfinite(n) for n in norms.values()]).all()
        weights, states = {}, {}
        for name, leaf in learners.weights.items():
            step, states[name] = settings.transform.update(gradient[name], learners.optimiser[name], leaf)
            weights[name] = jax.tree.map(lambda w, s: w - (rate * s).astype(w.dtype), leaf, step)
        finite &= jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(weights)]).all()
        new = Learners(weights, states, learners.skipped)
        new = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, learners)
        new = new.replace(skipped=learners.skipped + jnp.where(finite, 0, 1))
        metrics = {name: mean.value for name, mean in metrics.items()} | {"loss": total.value}
        return new, metrics | {f"gradient_norm/{name}": norm for name, norm in norms.items()}

    def epoch(learners: Learners, number: jax.Array) -> tuple[Learners, dict[str, jax.Array]]:
        order = jnp.arange(openings)
        if settings.minibatches > 1:
            order = jax.random.permutation(key_for(key, SHUFFLE, number), openings)

        def split(x):
            # [openings, rows each, ...] -> [minibatches, accumulate, part of the openings * rows each, ...]; the parts
            # interleave, so that each spans every device of a mesh
            x = x.reshape(openings, -1, *x.shape[1:])
            x = x[order] if settings.minibatches > 1 else x
            x = x.reshape(openings // parts, settings.minibatches, settings.accumulate, *x.shape[1:])
            x = jnp.moveaxis(x, 0, 2)
            return x.reshape(*x.shape[:2], -1, *x.shape[4:])

        return jax.lax.scan(minibatch, learners, jax.tree.map(split, batch))

    start = learners.skipped
    learners, metrics = jax.lax.scan(epoch, learners, jnp.arange(settings.epochs))
    return learners, {name: x.mean() for name, x in metrics.items()} | {"skipped": learners.skipped - start}
