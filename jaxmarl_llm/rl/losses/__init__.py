"""Losses: pure functions of per-token arrays. Each returns the loss to minimise and the metrics to report.

The conventions of all losses (shapes, masks, aggregation) are the docstring of ``losses.records``.
The loss of a recipe is a ``LossFn``: (``Scores``, ``Batch``, hparams) -> LossAndMetrics. ``ppo`` is the default. A
method is a combination:

    method       advantage               loss                                              aggregate
    REINFORCE    reinforce               truncated_policy_gradient                         mean_of
    RLOO         rloo                    truncated_policy_gradient                         sum_per_row
    PPO          returns.gae             ppo_clip, value_clip                              mean_of
    GRPO         grpo                    ppo_clip, kl_penalty(kind="k3")                   mean_per_row
    Dr. GRPO     grpo(scale="none")      ppo_clip                                          sum_per_row(length=...)
    DAPO         grpo                    ppo_clip(clip_high=0.28)                          mean_of
    GSPO         grpo                    ppo_clip(level=sequence_ratio, clip_low=3e-4,     mean_per_row
                                                  clip_high=4e-4)
    CISPO        grpo                    truncated_policy_gradient(cap=1 + epsilon_high)   mean_of
    COPO         consistency_parts       blended_clip(dual_clip=3)                         mean_per_row
    P3O          (the reward itself)     pairwise_clip                                     (pairs)
    Stable-      whiten, inliers         ppo_clip(level=bounded_ratio)                     mean_per_row
    Reinforce

DAPO: Yu et al., DAPO: An Open-Source LLM Reinforcement Learning System at Scale (2025),
https://arxiv.org/abs/2503.14476. For the other papers see the functions.
"""

from jaxmarl_llm.rl.losses.entropy import entropy_bonus, entropy_corridor, running_entropy
from jaxmarl_llm.rl.losses.kl import kl_exact, kl_penalty, kl_standard_normal
from jaxmarl_llm.rl.losses.policy_gradient import (
    alignment,
    blended_clip,
    bounded_ratio,
    ppo,
    ppo_clip,
    sequence_ratio,
    token_ratio,
    truncated_policy_gradient,
    turn_ratio,
)
from jaxmarl_llm.rl.losses.preference import dpo, pairwise_clip, pairwise_logistic
from jaxmarl_llm.rl.losses.records import (
    Aggregate,
    Batch,
    Hparams,
    Level,
    LossAndMetrics,
    LossFn,
    Scores,
    check_loss,
)
from jaxmarl_llm.rl.losses.supervised import cross_entropy, reward_weighted, self_imitation
from jaxmarl_llm.rl.losses.value import sum_to_return, value_clip, value_huber, value_squared

__all__ = [
    "Aggregate",
    "Batch",
    "Hparams",
    "Level",
    "LossAndMetrics",
    "LossFn",
    "Scores",
    "alignment",
    "blended_clip",
    "bounded_ratio",
    "check_loss",
    "cross_entropy",
    "dpo",
    "entropy_bonus",
    "entropy_corridor",
    "kl_exact",
    "kl_penalty",
    "kl_standard_normal",
    "pairwise_clip",
    "pairwise_logistic",
    "ppo",
    "ppo_clip",
    "reward_weighted",
    "running_entropy",
    "self_imitation",
    "sequence_ratio",
    "sum_to_return",
    "token_ratio",
    "truncated_policy_gradient",
    "turn_ratio",
    "value_clip",
    "value_huber",
    "value_squared",
]
