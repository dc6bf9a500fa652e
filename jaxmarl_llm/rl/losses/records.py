"""The inputs of losses, and the types of losses and of their parts. A loss is a pure function of arrays.

Arrays are [R, M] unless stated otherwise, R rows and M sampled tokens of a row. Any common shape works if neither level
nor aggregation uses rows. ``logp`` is the log-probability of a token under the policy in training, ``behaviour_logp``
under the policy that sampled it; ``where`` selects the trained tokens. Other tokens may hold NaN or infinity. Every
function returns ``LossAndMetrics = (Mean, {name: Mean})``. An array with another shape than ``where`` raises
ValueError. Gradients flow through ``logp``, ``entropy`` and ``value`` only.

``aggregate(x, where)`` turns the losses of tokens into the loss of the batch: ``mean_of`` (over all tokens),
``mean_per_row``, ``partial(sum_per_row, length=...)`` or ``partial(mean_per_turn, turn=...)``. Metrics are means over
tokens under every aggregation. Terms with the same aggregation are added as ``Mean(first.sum + weight * second.sum,
first.count)``.
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

# exp of a larger log-ratio overflows in a product with its gradient, and 0 * inf is NaN. Ratios near e^20 are far
# beyond every clip.
LARGEST_LOG_RATIO = 20.0


class Scores(struct.PyTreeNode):
    """The outputs of the policy in training for the sampled tokens. The gradient of a loss flows through
    these."""

    logp: jax.Array  # float32 [R, M], 0 where there is no sampled token
    entropy: jax.Array  # float32 [R, M], of the distribution sampled from, in nats
    value: jax.Array | None = None  # float32 [R, M], None without a value head


class Batch(struct.PyTreeNode):
    """The sampled tokens of one policy and their advantages: constants of a loss. Losses use the tokens of ``mask``.

    Episodes, seats and policies have the numbers of the rollout. A row is the part of one seat in one episode. Tokens
    of the same episode or role have equal ``episode`` or ``role``.
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
    """Further arrays [R, M] from the recipe's estimator to its loss."""


LossFn = Callable[[Scores, Batch, Hparams], LossAndMetrics]


def check_loss(result: Any) -> tuple[Mean, dict[str, Mean]]:
    """The result of a loss, unchanged. Raises ValueError unless it is (Mean, {name: Mean})."""
    is_mean = lambda x: isinstance(x, Mean) and jnp.shape(x.sum) == ()
    if isinstance(result, tuple) and len(result) == 2 and is_mean(result[0]) and isinstance(result[1], dict):
        wrong = [name for name, x in result[1].items() if not is_mean(x)]
        if not wrong:
            return result[0], result[1]
        raise ValueError(f"A loss gives its metrics as means of tokens, `mean_of(x, mask)`, and {wrong[0]!r} is none.")
    raise ValueError("A loss returns (loss, metrics): a mean of tokens, `mean_of(x, mask)`, and {name: such a mean}.")


def bounded_exp(log_ratio: jax.Array) -> jax.Array:
    """min(exp(log_ratio), e^20), elementwise."""
    return jnp.exp(jnp.minimum(log_ratio, LARGEST_LOG_RATIO))
