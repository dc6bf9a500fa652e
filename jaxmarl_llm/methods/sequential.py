"""Sequential updates, by turn or by seat: each starts from the policy after those before it.

A recipe selects them with `step=partial(step.on_policy_step, apply=partial(in_order, order=...))`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices import scopes
from jaxmarl_llm.keys import SHUFFLE, key_for
from jaxmarl_llm.rl.losses import Batch, Hparams
from jaxmarl_llm.rl.losses.records import bounded_exp
from jaxmarl_llm.rl.masked import keep
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.records import Given
from jaxmarl_llm.training.scoring import score_policies
from jaxmarl_llm.training.update import Learners

Order = Callable[[Hparams, jax.Array], jax.Array]
Within = Callable[[Batch], jax.Array] | None


def by_turn(batch: Batch) -> jax.Array:
    """The turn of each token, [R, M]."""
    return batch.turn


def by_seat(batch: Batch) -> jax.Array:
    """The seat of each token, [R, M]."""
    return jnp.broadcast_to(batch.seat[:, None], batch.turn.shape)


def in_order(
    parts: Parts,
    learners: Learners,
    hparams: Hparams,
    batches: dict[str, step.Part],
    key: jax.Array,
    frozen: dict[str, Any],
    leaves: bool = False,
    *,
    order: Order,
    unit: Callable[[Batch], jax.Array] = by_turn,
    carry: float | str = 1.0,
    bound: float = 0.2,
    product: bool = False,
    within: Within = None,
    idle_waits: bool = False,
) -> tuple[Learners, dict[str, jax.Array]]:
    """`step.apply_update` once for each unit of `order(hparams, key)`, int32 [n], on the tokens of that unit alone.

    `unit(batch)`, int32 [R, M], is the unit of each token: its turn (`by_turn`) or its seat (`by_seat`). Before each
    update, all behaviour log-probabilities are computed anew under the present weights, so that its ratio starts at 1.
    Advantages are multiplied by a weight w of their episode, which starts at 1. After the update of a unit,

      w <- 1 + carry (clip(w clip(r)) - 1), both clips to 1 - bound .. 1 + bound

    r is the probability ratio, new to old policy, of the unit's tokens in that episode. It is the geometric mean over
    these tokens, as in the release, or their `product`, as in the theory. `carry` 0 leaves w at 1; `carry` may be the
    name of an hparam. The weight is kept by episode, so that no order of rows matters. With `within` it is kept by
    episode and step, as in HAPPO: `within(batch)`, int32 [R, M], is each token's step, below the game's turns. With
    `idle_waits` a policy without tokens in a unit keeps its weights and its optimiser's state; otherwise Adam's
    momentum moves it on.

    Metrics are means over the units. `idle` is the share of units without tokens; `skipped` is a sum. `leaves` must be
    False. Raises ValueError for an order that is no list of whole numbers.

    Hu et al., SeeUPO: Sequence-Level Agentic-RL with Convergence Guarantees (2026), https://arxiv.org/abs/2602.06554.
    The formula is from the release, which multiplies by row, and may have reordered rows in between. Kuba et al., Trust
    Region Policy Optimisation in Multi-Agent Reinforcement Learning (2022, HAPPO), https://arxiv.org/abs/2109.11251,
    for the carried product.
    """
    if leaves:
        raise ValueError("Gradient norms of leaves are of one update, and these are several.")
    carried = Given(hparams)[carry] if isinstance(carry, str) else carry
    episodes = parts.rollout.lineup.episodes
    shape: tuple[int, ...] = (episodes,) if within is None else (episodes, parts.recipe.game.turns)

    def logps(weights: dict[str, Any]) -> dict[str, jax.Array]:
        with jax.named_scope(scopes.SCORING):
            return {
                name: score_policies(parts, weights | frozen, name, part.rows, part.sampled)[0].logp
                for name, part in batches.items()
            }

    def update(state: tuple[Learners, jax.Array], at: tuple[jax.Array, jax.Array]) -> Any:
        (learners, multiplier), (which, number) = state, at
        start, before, unit_parts = learners, logps(learners.weights), {}
        for name, part in batches.items():
            batch = part.batch
            chosen = batch.replace(
                mask=batch.mask & (unit(batch) == which),
                behaviour_logp=before[name],
                advantage=batch.advantage * _read(multiplier, batch, within),
            )
            unit_parts[name] = part.replace(batch=chosen)
        learners, metrics = step.apply_update(
            parts, learners, hparams, unit_parts, key_for(key, SHUFFLE, number), frozen
        )
        if idle_waits:
            learners = _keep_idle(parts, start, learners, unit_parts)
        changed, tokens = jnp.zeros(shape), jnp.zeros(shape)
        for name, after in logps(learners.weights).items():
            batch = unit_parts[name].batch
            changed = _add(changed, batch, within, keep(after - before[name], batch.mask))
            tokens = _add(tokens, batch, within, batch.mask)
        ratio = bounded_exp(changed if product else changed / jnp.maximum(tokens, 1))
        new = jnp.clip(multiplier * jnp.clip(ratio, 1 - bound, 1 + bound), 1 - bound, 1 + bound)
        return (learners, 1 + carried * (new - 1)), metrics | {"idle": (tokens.sum() == 0).astype(jnp.float32)}

    units = _check_order(jnp.asarray(order(hparams, key)))
    (learners, _), metrics = jax.lax.scan(update, (learners, jnp.ones(shape)), (units, jnp.arange(len(units))))
    skipped = metrics.pop("skipped").sum()
    return learners, {name: x.mean() for name, x in metrics.items()} | {"skipped": skipped}


def _check_order(units: jax.Array) -> jax.Array:
    if units.ndim != 1 or not len(units) or not jnp.issubdtype(units.dtype, jnp.integer):
        raise ValueError(f"An order is int [n], n units one after another: got {units.dtype} {list(units.shape)}.")
    return units


def _read(multiplier: jax.Array, batch: Batch, within: Within) -> jax.Array:
    """The weight w of each token, [R, M] or [R, 1]."""
    return multiplier[batch.episode][:, None] if within is None else multiplier[batch.episode[:, None], within(batch)]


def _add(total: jax.Array, batch: Batch, within: Within, x: jax.Array) -> jax.Array:
    """The total with x [R, M] added at its episodes, or at their steps."""
    if within is None:
        return total.at[batch.episode].add(x.sum(1))
    return total.at[batch.episode[:, None], within(batch)].add(x)


def _keep_idle(parts: Parts, old: Learners, new: Learners, unit_parts: dict[str, step.Part]) -> Learners:
    """The new learners, and the old ones of policies without tokens in these parts."""

    def choose(name: str, kind: str) -> Any:
        home = parts.policy_set_of[name]
        batch, number = unit_parts[home].batch, parts.policy_sets[home].policies.index(name)
        acts = (batch.mask & (batch.policy == number)[:, None]).any()
        return jax.tree.map(lambda a, b: jnp.where(acts, a, b), getattr(new, kind)[name], getattr(old, kind)[name])

    chosen = {kind: {name: choose(name, kind) for name in new.weights} for kind in ("weights", "optimiser")}
    return new.replace(**chosen)
