"""Other implementations of the same formulas, on the same numbers."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.masked import mean_per_row, sum_per_row
from tests.support.loss_cases import (
    pairs,
    total,
)

LOG_RATIO = [[0.5, -0.4, 0.1, 0.3], [-0.6, -0.5, 0.0, 0.0], [0.7, 0.0, 0.0, 0.0], [-0.1, 0.2, 0.4, 0.0]]
OLD = [[-0.5, -1.5, -0.2, -2.0], [-1.0, -0.3, 0.0, 0.0], [-1.2, 0.0, 0.0, 0.0], [-0.4, -0.9, -0.1, 0.0]]
ADVANTAGE = [1.5, -0.7, -1.1, 0.3]  # of each row
LENGTH = [4, 2, 1, 3]


def peer(dtype=np.float32) -> tuple[jax.Array, ...]:
    """logp, behaviour, advantage and where [4,4]."""
    old = np.array(OLD, dtype)
    adv = np.repeat(np.array(ADVANTAGE, dtype)[:, None], 4, 1)
    where = np.arange(4)[None] < np.array(LENGTH)[:, None]
    return tuple(jnp.asarray(x) for x in (old + np.array(LOG_RATIO, dtype), old, adv, where))


clip = partial(losses.ppo_clip, clip_low=0.2, clip_high=0.25)
sequence = partial(clip, level=losses.sequence_ratio)
cispo = partial(losses.truncated_policy_gradient, cap=1.4)
# TRL's loss_type, importance_sampling_level and delta -> ours, and the value of TRL's formula
TRL: dict[tuple, tuple[Callable[..., losses.LossAndMetrics], float]] = {
    ("grpo", "token", None): (partial(clip, aggregate=mean_per_row), 0.208548712),
    ("bnpo", "token", None): (clip, -0.409098052),
    ("dapo", "token", None): (clip, -0.409098052),
    ("dr_grpo", "token", None): (partial(clip, aggregate=partial(sum_per_row, length=6)), -0.170457522),
    ("grpo", "sequence", None): (partial(sequence, aggregate=mean_per_row), 0.180249294),
    ("bnpo", "sequence", None): (sequence, -0.452698711),
    ("grpo", "token", 1.5): (partial(clip, aggregate=mean_per_row, dual_clip=1.5), 0.067266718),
    ("cispo", "token", None): (cispo, 0.406022172),
}


def trl(kind: tuple, logp, old, adv, where):
    """TRL's GRPO loss in torch, from its documented formulas; epsilon 0.2 and 0.25, max_completion_length 6.

    For "cispo" epsilon_high is 1.4, there the weight's cap itself.
    """
    torch = pytest.importorskip("torch")
    loss_type, level, delta = kind
    log_ratio = logp - old
    if level == "sequence":
        log_ratio = (log_ratio * where).sum(1, keepdim=True) / where.sum(1, keepdim=True)
    ratio = log_ratio.exp()
    if loss_type == "cispo":
        each = -ratio.clamp(max=1.4).detach() * adv * logp
    else:
        first = ratio if delta is None else ratio.clamp(max=delta)
        each = -torch.minimum(first * adv, ratio.clamp(0.8, 1.25) * adv)
    each = each * where
    if loss_type == "grpo":
        return (each.sum(1) / where.sum(1)).mean()
    return each.sum() / (len(each) * 6 if loss_type == "dr_grpo" else where.sum())


@pytest.mark.parametrize("kind", TRL)
def test_parity_with_the_formulas_of_trl_as_recorded(kind: tuple):
    ours, golden = TRL[kind]
    np.testing.assert_allclose(ours(*peer())[0].value, golden, rtol=1e-5)


@pytest.mark.parametrize("kind", TRL)
def test_parity_with_the_formulas_of_trl_and_their_gradient_in_torch(kind: tuple):
    torch = pytest.importorskip("torch")
    logp, old, adv, where = (torch.tensor(np.asarray(x, np.float64)) for x in peer())
    logp.requires_grad_()
    theirs = trl(kind, logp, old, adv, where)
    theirs.backward()
    ours, golden = TRL[kind]
    value, gradient = jax.value_and_grad(lambda x: total(ours(x, *peer()[1:])))(peer()[0])
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-5)
    np.testing.assert_allclose(theirs.item(), golden, rtol=1e-5)
    np.testing.assert_allclose(gradient, logp.grad, rtol=1e-5, atol=1e-7)


def test_parity_of_dpo_with_the_sigmoid_loss_of_trl_and_its_gradient_in_torch():
    """TRL's formula: -logsigmoid(beta ((chosen - rejected) - (ref chosen - ref rejected))), of summed log-probs."""
    torch = pytest.importorskip("torch")
    ours, reference, where = (x[jnp.array([0, 1, 3])] for x in pairs(24))  # TRL knows no empty row
    logp, old, kept = (torch.tensor(np.asarray(x, np.float64)) for x in (ours, reference, where))
    logp.requires_grad_()
    policy, fixed = (logp * kept).sum(2), (old * kept).sum(2)
    logits = (policy[:, 0] - policy[:, 1]) - (fixed[:, 0] - fixed[:, 1])
    theirs = -torch.nn.functional.logsigmoid(0.3 * logits).mean()
    theirs.backward()
    value, gradient = jax.value_and_grad(lambda x: total(losses.dpo(x, reference, where, beta=0.3)))(ours)
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, logp.grad, rtol=1e-5, atol=1e-7)


def test_parity_with_the_clipped_surrogate_of_rlax_as_recorded():
    logp, old, adv, where = peer()
    loss = losses.ppo_clip(logp, old, adv, where, clip_low=0.2, clip_high=0.2)[0]
    np.testing.assert_allclose(loss.value, -0.391955969, rtol=1e-5)


def test_parity_with_the_clipped_surrogate_of_rlax_and_its_gradient():
    rlax = pytest.importorskip("rlax")
    logp, old, adv, where = peer()
    kept = np.asarray(where)

    def theirs(x):
        return rlax.clipped_surrogate_pg_loss(jnp.exp(x - old)[kept], adv[kept], 0.2)

    ours = lambda x: total(losses.ppo_clip(x, old, adv, where, clip_low=0.2, clip_high=0.2))
    for a, b in zip(jax.value_and_grad(ours)(logp), jax.value_and_grad(theirs)(logp), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
