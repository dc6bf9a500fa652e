"""Selection between generations of policies: survivors, copies of their weights, and variation.

  Recipe(..., step=partial(evolving, every=20, survivors=4), init_state=first_generation, hparams={"noise": 0.02})

Here the recipe's learners train as usual, and four of them survive after every 20 updates. With a learning rate of 0
they only evolve. `imitation` has no generations: each policy may copy one other. On the host, `Trainer.update` takes
any states, so that a caller may change them between two updates.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.keys import SELECT, UPDATE, key_for
from jaxmarl_llm.training import past, step
from jaxmarl_llm.training.optimiser import check_common
from jaxmarl_llm.training.recipe import Hparams, Parts
from jaxmarl_llm.training.records import Given
from jaxmarl_llm.training.update import Learners

Selection = Literal["top", "random"]


def next_generation(
    weights: Any, score: jax.Array, key: jax.Array, *, survivors: int, noise: Any = 0.0, selection: Selection = "top"
) -> tuple[Any, jax.Array]:
    """(weights of the next generation, leaves [n, ...]; parent int32 [n], the policy whose weights each has inherited).

    `weights` are those of n policies, leaves [n, ...]; `score` is float32 [n]. The `survivors` of highest score, or
    random ones, keep place and weights. Every other place gets a copy of a survivor, plus normal noise times `noise`,
    which may be traced. Numbers of copies differ by at most one between survivors. Pure: to be jitted and vmapped.
    Raises ValueError unless 1 to n survive, and for an unknown selection.

    Vallinder & Hughes, Cultural Evolution of Cooperation among LLM Agents (2024), https://arxiv.org/abs/2412.10270: the
    better half survives, and the new half learns from it.
    """
    n = len(score)
    if not 1 <= survivors <= n:
        raise ValueError(f"Among {n} policies 1 to {n} can survive, not {survivors}.")
    if selection not in get_args(Selection):
        raise ValueError(f"A selection is one of {', '.join(get_args(Selection))}, not {selection!r}.")
    order_key, noise_key = jax.random.split(key)
    rank = score if selection == "top" else jax.random.uniform(order_key, (n,))
    order = jnp.argsort(-rank)  # the best first
    parent_of_rank = order[jnp.arange(n) % survivors]
    parent = jnp.zeros(n, jnp.int32).at[order].set(parent_of_rank.astype(jnp.int32))
    is_new = jnp.ones(n, bool).at[order[:survivors]].set(False)
    return _inherit(weights, parent, is_new, noise, noise_key), parent


def imitation(
    weights: Any, score: jax.Array, key: jax.Array, *, intensity: Any = 1.0, noise: Any = 0.0
) -> tuple[Any, jax.Array]:
    """Pairwise imitation: each policy compares its score with one random other's, and may copy its weights. Returns
    (weights, leaves [n, ...]; model int32 [n], the policy whose weights each now has).

        P(i copies j) = 1 / (1 + exp(-intensity (score_j - score_i)))

    All compare at once, with the weights from before. Copies get normal noise times `noise`; both numbers may be
    traced. Pure: to be jitted and vmapped. Raises ValueError for fewer than two policies.

    Szabo & Toke, Evolutionary prisoner's dilemma game on a square lattice (1998),
    https://doi.org/10.1103/PhysRevE.58.69
    """
    n = len(score)
    if n < 2:
        raise ValueError(f"To copy another takes two policies at least, got {n}.")
    other_key, copy_key, noise_key = jax.random.split(key, 3)
    places = jnp.arange(n, dtype=jnp.int32)
    other = (places + jax.random.randint(other_key, (n,), 1, n)) % n
    copies = jax.random.bernoulli(copy_key, jax.nn.sigmoid(intensity * (score[other] - score)))
    model = jnp.where(copies, other, places)
    return _inherit(weights, model, copies, noise, noise_key), model


def _inherit(weights: Any, parent: jax.Array, is_new: jax.Array, noise: Any, key: jax.Array) -> Any:
    """Each policy gets its parent's weights; new ones also get noise."""
    leaves, structure = jax.tree.flatten(weights)
    keys = jax.random.split(key, len(leaves))

    def copy_leaf(leaf: jax.Array, key: jax.Array) -> jax.Array:
        varied = leaf[parent] + noise * jax.random.normal(key, leaf.shape, leaf.dtype)
        return jnp.where(is_new.reshape(-1, *(1,) * (leaf.ndim - 1)), varied, leaf[parent]).astype(leaf.dtype)

    return jax.tree.unflatten(structure, [copy_leaf(leaf, subkey) for leaf, subkey in zip(leaves, keys, strict=True)])


def merge_policies(base: Any, weights: Any, share: jax.Array) -> Any:
    """One policy merged from n policies that started at `base`: base + sum_i share_i (weights_i - base). The weights
    have leaves [n, ...], `share` is float32 [n]. Shares of 1 / n give the mean.

    Ilharco et al., Editing Models with Task Arithmetic (2022), https://arxiv.org/abs/2212.04089
    """
    return jax.tree.map(lambda b, w: b + jnp.tensordot(share, w - b[None], 1).astype(b.dtype), base, weights)


class Generation(struct.PyTreeNode):
    """Returns of a generation so far."""

    total: jax.Array  # float32 [learners]: sum of returns
    games: jax.Array  # int32 [learners]


def first_generation(parts: Parts, key: jax.Array) -> Generation:
    """The state before the first game of a generation."""
    n = len(parts.learners)
    return Generation(jnp.zeros(n), jnp.zeros(n, jnp.int32))


def evolving(
    parts: Parts,
    run: step.Run,
    hparams: Hparams,
    key: jax.Array,
    number: jax.Array,
    *,
    every: int,
    survivors: int,
    selection: Selection = "top",
) -> tuple[step.Run, step.Metrics]:
    """A recipe's step: a standard update, and after each `every` of them the next generation. Selection is by mean
    return since the last generation; hparam `noise`. The estimator has no state. Copies inherit the parent's moments.
    All learners have weights of the same shapes. Metric: `parent/NAME`, the place of a learner's parent, its own if it
    survives.

    Raises ValueError unless a generation has at least one update.
    """
    if every < 1:
        raise ValueError(f"A generation lasts at least one update, not {every}.")
    check_common(parts.recipe.optimiser)
    key = key_for(key, UPDATE, number)
    games = step.collect_experience(parts, run.replace(state=()), hparams, key, number)
    batches, given = step.make_batches(parts, games.experience, games.advantages), games.advantages.hparams
    learners, metrics = step.apply_update(parts, run.learners, {**hparams, **given}, batches, key, games.frozen)
    experience, generation = games.experience, run.state
    earned = experience.episodes.reward.sum((1, 3))
    sound = experience.episodes.acted.any((1, 2)) & jnp.isfinite(earned).all(1)  # others are left out
    for i, name in enumerate(parts.learners):
        rows = experience.rows[parts.policy_set_of[name]]
        mine = rows.policy == parts.policy_sets[parts.policy_set_of[name]].policies.index(name)
        mine &= sound[rows.episode]
        total = jnp.where(mine, earned[rows.episode, rows.seat], 0).sum()
        generation = Generation(
            generation.total.at[i].add(total), generation.games.at[i].add(mine.sum(dtype=jnp.int32))
        )

    def renew(learners: Learners) -> tuple[Learners, jax.Array]:
        together = lambda trees: jax.tree.map(lambda *x: jnp.stack(x), *(trees[name] for name in parts.learners))
        apart = lambda tree: {name: jax.tree.map(lambda x, i=i: x[i], tree) for i, name in enumerate(parts.learners)}
        score, own_key = generation.total / jnp.maximum(generation.games, 1), key_for(key, SELECT)
        select = partial(next_generation, survivors=survivors, noise=Given(hparams)["noise"], selection=selection)
        new, parent = select(together(learners.weights), score, own_key)
        moments = jax.tree.map(lambda x: x[parent], together(learners.optimiser))
        return learners.replace(weights=apart(new), optimiser=apart(moments)), parent

    keep = lambda learners: (learners, jnp.arange(len(parts.learners), dtype=jnp.int32))
    last = (number + 1) % every == 0
    learners, parent = jax.lax.cond(last, renew, keep, learners)
    state = jax.tree.map(lambda new, old: jnp.where(last, new, old), first_generation(parts, key), generation)
    metrics |= games.metrics(parts) | {f"parent/{name}": parent[i] for i, name in enumerate(parts.learners)}
    return past.keep(parts.recipe, run.replace(learners=learners, state=state), hparams, number), metrics
