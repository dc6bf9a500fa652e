"""Replay: a ring of the batches of the last updates, with the behaviour log-probabilities of their sampling.

A recipe keeps a `Ring` in its state (`init_state=partial(replay.empty, kept=...)`), so that checkpoints hold it. Its
step puts each update's batches into the ring and learns from the result of `join_batches`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.recipe import Parts, no_state
from jaxmarl_llm.training.records import Advantages
from jaxmarl_llm.training.step import Part

Batches = dict[str, Part]


class Ring(struct.PyTreeNode):
    """The batches of the last updates, each by policy set; a new one replaces the oldest."""

    batches: Batches  # leaves [kept, ...]
    number: jax.Array  # int32 [kept], number of the update that played it, -1 for an empty place


def empty(parts: Parts, key: jax.Array, *, kept: int) -> Ring:
    """An empty ring for `kept` updates of this recipe. It does not keep an estimator's `extra` arrays. Raises
    ValueError unless at least one update is kept."""
    if kept < 1:
        raise ValueError(f"A ring keeps the batches of at least one update, not of {kept}.")
    plain = dataclasses.replace(
        parts, recipe=dataclasses.replace(parts.recipe, init_state=no_state, arrange=None, reference=False)
    )

    def batches(key: jax.Array) -> Batches:
        run = begin.init_run(plain, key)
        frozen = {name: run.learners.weights[learner] for name, (_, learner) in parts.recipe.past.items()}
        played = step.play(plain, run.learners.weights | frozen, key)
        experience = step.make_experience(plain, run, played, key, frozen)
        return step.make_batches(plain, experience, Advantages(jnp.zeros(experience.episodes.acted.shape)))

    shapes = jax.eval_shape(batches, key)
    zeros = jax.tree.map(lambda x: jnp.zeros((kept, *x.shape), x.dtype), shapes)
    return Ring(zeros, jnp.full(kept, -1, jnp.int32))


def put(ring: Ring, batches: Batches, number: jax.Array) -> Ring:
    """The ring with the batches of update `number`, without `extra` and reference."""
    slot = number % len(ring.number)
    kept = {
        name: part.replace(batch=part.batch.replace(extra={}, reference_logp=None)) for name, part in batches.items()
    }
    into = jax.tree.map(lambda old, new: old.at[slot].set(new), ring.batches, kept)
    return Ring(into, ring.number.at[slot].set(number))


def draw_update(ring: Ring, name: str, key: jax.Array) -> Part:
    """A policy set's part of one kept update, drawn uniformly."""
    filled = ring.number >= 0
    nth = jax.random.randint(key, (), 0, filled.sum())
    return jax.tree.map(lambda x: x[jnp.argsort(~filled, stable=True)[nth]], ring.batches[name])


def join_batches(batches: Batches, ring: Ring, weight: Any) -> Batches:
    """The batches joined with all of the ring's: rows [R + kept R], prompts [O + kept O]. Behaviour log-probabilities
    stay as sampled.

    `weight(part, number)` takes a policy set's kept part [R, M] and the number of its update. It gives the advantage of
    the tokens, float32 [R, M], and the trained ones, bool [R, M]. Empty places of the ring train nothing.
    """
    result = {}
    for name, part in batches.items():
        old = ring.batches[name]
        advantage, trained = jax.vmap(weight)(old, ring.number)
        mask = old.batch.mask & trained & (ring.number >= 0)[:, None, None]
        replayed = old.replace(batch=old.batch.replace(advantage=jnp.where(mask, advantage, 0), mask=mask))
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), replayed)
        result[name] = jax.tree.map(lambda new, old: jnp.concatenate([new, old]), _plain(part), flat)
    return result


def _plain(part: Part) -> Part:
    return part.replace(batch=part.batch.replace(extra={}, reference_logp=None))
