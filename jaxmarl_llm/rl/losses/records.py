"""The records that a loss sees, the types of losses and of their parts. A loss is a pure function of arrays.

Shapes: R rows, M sampled tokens of a row.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.rl.masked import Mean

Number = float | jax.Array
Hparams = Mapping[str, Any]
"""A number by name, float32, or of a choice its `choices.Option`."""
LossAndMetrics = tuple[Mean, dict[str, Mean]]
Aggregate = Callable[[jax.Array, jax.Array], Mean]
Level = Callable[[jax.Array, jax.Array], jax.Array]

# exp of a larger log-ratio overflows in a product with its gradient, and 0 * inf is NaN. No ratio that is not clipped
# anyway comes near e^20.
LARGEST_LOG_RATIO = 20.0


class Scores(struct.PyTreeNode):
    """What the policy in training says of the sampled tokens: a loss is differentiated by these."""

    logp: jax.Array  # float32 [R, M], 0 where there is no sampled token
    entropy: jax.Array  # float32 [R, M], of the distribution sampled from, in nats
    value: jax.Array | None = None  # float32 [R, M], None without a value head


class Batch(struct.PyTreeNode):
    """The sampled tokens of one policy and their advantages, constants of a loss. A loss counts the tokens of ``mask``.

    Episodes, seats and policies are numbered as in the rollout. A row is one seat's part of one episode, so tokens of
    the same episode, or of the same role, are found by ``episode`` and ``role``.
    """

    token: jax.Array  # int32 [R, M]
    turn: jax.Array  # int32 [R, M], turn of the game in which the token was sampled
    behaviour_logp: jax.Array  # float32 [R, M], log-probability as sampled
    mask: jax.Array  # bool [R, M], tokens that are trained
    advantage: jax.Array  # float32 [R, M]
    value_target: jax.Array  # float32 [R, M], for the critic
    old_value: jax.Array  # float32 [R, M], by the critic when the game was played
    episode: jax.Array  # int32 [R]
    seat: jax.Array  # int32 [R]
    policy: jax.Array  # int32 [R]
    role: jax.Array  # int32 [R, M], the seat's role in that turn
    reference_logp: jax.Array | None = None  # float32 [R, M], by the reference policy, if the recipe asks for it
    extra: dict[str, jax.Array] = struct.field(default_factory=dict)
    """What else the recipe's estimator hands its loss, [R, M] each."""


LossFn = Callable[[Scores, Batch, Hparams], LossAndMetrics]


def checked(found: Any) -> tuple[Mean, dict[str, Mean]]:
    """What a loss returned. Raises ValueError unless it is a Mean, and metrics that are Means."""
    is_mean = lambda x: isinstance(x, Mean) and jnp.shape(x.sum) == ()  # noqa: E731
    if isinstance(found, tuple) and len(found) == 2 and is_mean(found[0]) and isinstance(found[1], dict):
        wrong = [name for name, x in found[1].items() if not is_mean(x)]
        if not wrong:
            return found[0], found[1]
        raise ValueError(f"A loss gives its metrics as means of tokens, `mean_of(x, mask)`, and {wrong[0]!r} is none.")
    raise ValueError("A loss returns (loss, metrics): a mean of tokens, `mean_of(x, mask)`, and {name: such a mean}.")


def bounded_exp(log_ratio: jax.Array) -> jax.Array:
    """exp, at most e^20."""
    return jnp.exp(jnp.minimum(log_ratio, LARGEST_LOG_RATIO))
