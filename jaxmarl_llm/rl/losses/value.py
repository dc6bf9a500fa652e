"""Losses of a critic. For arguments and shapes see the docstring of ``losses.records``."""

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.losses.records import Aggregate, LossAndMetrics, Number
from jaxmarl_llm.rl.masked import Mean, constant, keep, mean_of
from jaxmarl_llm.rl.shapes import check_shapes


def value_squared(
    value: jax.Array, value_target: jax.Array, where: jax.Array, *, aggregate: Aggregate = mean_of
) -> LossAndMetrics:
    """(V - G)^2 / 2, with G the target, a constant. Metrics: ``value`` and ``value_error``, the mean of (V - G)^2.

    Textbook formula.
    """
    check_shapes("where value value_target [...]", where, value, value_target)
    value, error = keep(value, where), _error(value, value_target, where)
    return aggregate(error**2 / 2, where), _value_metrics(value, error, where)


def value_clip(
    value: jax.Array,
    old_value: jax.Array,
    value_target: jax.Array,
    where: jax.Array,
    *,
    clip: Number = 0.2,
    aggregate: Aggregate = mean_of,
) -> LossAndMetrics:
    """max((V - G)^2, (V_old + clip(V - V_old, -clip, clip) - G)^2) / 2, V_old the value when the token was sampled.

    A value that has already moved by more than ``clip`` towards its target has no gradient. Metrics: those of
    ``value_squared`` and ``value_clipped``, the share of such tokens.

    The code released for PPO; textbook formula. Schulman et al., Proximal Policy Optimization Algorithms (2017),
    https://arxiv.org/abs/1707.06347
    """
    check_shapes("where value old_value value_target [...]", where, value, old_value, value_target)
    value, old_value = keep(value, where), constant(old_value, where)
    error = _error(value, value_target, where)
    bounded = _error(old_value + jnp.clip(value - old_value, -clip, clip), value_target, where)
    metrics = _value_metrics(value, error, where) | {"value_clipped": mean_of(bounded**2 > error**2, where)}
    return aggregate(jnp.maximum(error**2, bounded**2) / 2, where), metrics


def value_huber(
    value: jax.Array, value_target: jax.Array, where: jax.Array, *, delta: Number = 1.0, aggregate: Aggregate = mean_of
) -> LossAndMetrics:
    """(V - G)^2 / 2 for errors up to ``delta``, and delta (|V - G| - delta / 2) above. Textbook formula.

    Metrics: those of ``value_squared``.
    """
    check_shapes("where value value_target [...]", where, value, value_target)
    value, error = keep(value, where), _error(value, value_target, where)
    near = jnp.minimum(jnp.abs(error), delta)
    return aggregate(near**2 / 2 + delta * (jnp.abs(error) - near), where), _value_metrics(value, error, where)


def sum_to_return(contribution: jax.Array, total: jax.Array, where: jax.Array) -> LossAndMetrics:
    """(sum_m c_m - R)^2, averaged over the rows with a token in ``where``. Metric: ``redistributed``, mean sum_m c_m.

    c [R,M] is the contribution of the turn that ends at a token of ``where`` [R,M]. R is the row's return ``total``
    [R], a constant. The sum alone is trained: all contributions with the sum R have the same loss.
    Wang et al., SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution (2025),
    https://arxiv.org/abs/2505.20732. Raises ValueError unless there is one return for each row.
    """
    check_shapes("where contribution [R,M]", where, contribution)
    if total.shape != where.shape[:1]:
        raise ValueError(f"There is one return for each of the {where.shape[0]} rows, got {list(total.shape)}.")
    sums, any_turn = keep(contribution, where).sum(1), where.any(1)
    error = sums - constant(total, any_turn)
    return mean_of(error**2, any_turn), {"redistributed": mean_of(sums, any_turn)}


def _error(value: jax.Array, value_target: jax.Array, where: jax.Array) -> jax.Array:
    return keep(value, where) - constant(value_target, where)


def _value_metrics(value: jax.Array, error: jax.Array, where: jax.Array) -> dict[str, Mean]:
    return {"value": mean_of(value, where), "value_error": mean_of(error**2, where)}
