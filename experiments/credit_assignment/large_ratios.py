"""Do a clip before the exponential and a filter of outliers prevent collapse if ratios are large?

The game, the noisy reward and the policies are those of the study `outliers`, where no ratio comes near 1,000. Here the
sampler's record of each log-probability has an error, as if its numbers differed from the learner's. The error is 0.2
times a Student t variable of 1.5 degrees of freedom, from -15 to 15. PPO bounds no large ratio of a bad answer.

  exact        the record has no error
  plain        REINFORCE++: rewards whitened over the batch, PPO's clip, four epochs a batch
  pre_clip     the log-ratio is clipped to [-log 1e3, log 1e3] before the exponential
  filter       advantages beyond 3 standard deviations become 0
  stable       pre_clip and filter: StableReinforce without its reward for consistent answers
  as_released  stable with the released filter: whitened advantages further than 3 from the mean before whitening
  free/...     without the clip of the gradient's norm to 1 that the other arms and the release have

Metrics:

  mean success   mean over all updates; `fall` is the fall of success from its peak to the end
  p99 norm       99th percentile over updates of the gradient's norm, before any clip
  largest ratio  log10 of the largest ratio of a token with negative advantage in an epoch, before any bound: mean of
                 the epochs of a batch, then the largest of all updates
  beyond, bound  share of tokens with negative advantage and a ratio above 1,000, or above e^20, this package's bound

  python -m experiments large_ratios --seeds 20

Paper: Zhang et al. 2025, R1-Reward (StableReinforce), https://arxiv.org/abs/2505.02835. There a model of 7B parameters
judges pairs of answers, and training itself is said to make ratios large. Here their cause is planted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.credit_assignment.outliers import BASE, MEAN, P99, TAIL
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.losses.records import LARGEST_LOG_RATIO
from jaxmarl_llm.rl.masked import Mean, mean_of
from jaxmarl_llm.studies.curves import fall_from_peak, mean_over_updates
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams
from jaxmarl_llm.training.records import Advantages, Experience

LARGEST, FALL, BEYOND, BOUND = "largest ratio", "fall", "beyond", "bound"


def released_inliers(advantage: jax.Array, where: jax.Array) -> jax.Array:
    """bool [...]: whitened advantages within 3 of the mean before whitening, and at most 10 in size."""
    white, mean = advantages.whiten(advantage, where), mean_of(advantage, where).value
    return where & (jnp.abs(white - mean) <= 3) & (jnp.abs(white) <= 10)


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Noisy rewards, whitened over the batch and filtered; for the loss, errors of the recorded log-probabilities."""
    acted, (first, second) = experience.acts[0], jax.random.split(experience.key)
    reward = experience.episodes.total_reward + hparams["noise"] * jax.random.t(first, TAIL, acted.shape)
    three_sigma, released = advantages.inliers(reward, acted), released_inliers(reward, acted)
    kept = select(hparams, "filter", none=acted, three_sigma=three_sigma, released=released)
    return Advantages(
        jnp.where(kept, advantages.whiten(reward, acted), 0),
        extra={"error": jnp.clip(hparams["error"] * jax.random.t(second, TAIL, acted.shape), -15, 15)},
        metrics={"dropped": 1 - mean_of(kept, acted).value},
    )


def clipped_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """PPO's clipped surrogate on recorded log-probabilities; `most` bounds the ratio before the exponential."""
    level = partial(losses.bounded_ratio, max_ratio=hparams["most"])
    recorded = batch.behaviour_logp - batch.extra["error"]
    loss, metrics = losses.ppo_clip(scores.logp, recorded, batch.advantage, batch.mask, level=level)
    log_ratio = jnp.where(batch.mask & (batch.advantage < 0), scores.logp - recorded, -jnp.inf)
    bounds = {BEYOND: math.log(1e3), BOUND: LARGEST_LOG_RATIO}
    metrics |= {name: mean_of(log_ratio > bound, batch.mask) for name, bound in bounds.items()}
    return loss, metrics | {"largest": Mean(jnp.maximum(log_ratio.max(), 0) / math.log(10), jnp.float32(1))}


def percentile(curves: Mapping[str, np.ndarray], *, metric: str, q: float) -> np.ndarray:
    """A percentile [seeds] over updates of a metric of the learner."""
    return np.percentile(curves[f"{metric}/learner"], q, axis=1)


PLAIN = replace(
    BASE,
    advantage=estimate_advantages,
    loss=clipped_loss,
    hparams={"learning_rate": 3e-3, "most": 1e30, "noise": 0.2, "error": 0.2},
    choices={"filter": ("none", "three_sigma", "released")},
)
PRE_CLIP, FILTER = PLAIN.with_hparams(most=1e3), PLAIN.with_choice(filter="three_sigma")
STABLE = PRE_CLIP.with_choice(filter="three_sigma")
BOTH = {"plain": PLAIN, "stable": STABLE}
WORSE = "Abstract: Reinforce++ 'often leads to training instability or even collapse'; StableReinforce has "
BETTER = f"{WORSE}'more stable training dynamics and superior performance'"
TAIL_OF_ERRORS = (
    "0.2 t exceeds log 1000 for 0.19% of the tokens, 8 of a run; about half of the advantages are negative."
)
STUDY = Study(
    paper=Paper("R1-Reward, StableReinforce (Zhang et al.)", "https://arxiv.org/abs/2505.02835", 2025, "release"),
    question="Do a clip before the exponential and a filter of outliers prevent collapse if ratios are large?",
    claim="If ratios are large, StableReinforce earns more and falls less than REINFORCE++.",
    arms={"exact": PLAIN.with_hparams(error=0.0), "plain": PLAIN, "pre_clip": PRE_CLIP, "filter": FILTER}
    | {"stable": STABLE, "as_released": PRE_CLIP.with_choice(filter="released")}
    | {f"free/{name}": replace(arm, max_grad_norm=math.inf) for name, arm in BOTH.items()},
    method="stable",
    metrics=("success", MEAN, FALL, P99, LARGEST, BEYOND, BOUND, "dropped"),
    predictions=(
        Higher(MEAN, "stable", than="plain", source="paper", where=f"{BETTER}."),
        Lower(FALL, "stable", than="plain", source="paper", where=f"{BETTER}."),
        Higher(MEAN, "stable", than="filter", source="paper", where=f"{BETTER}. Second-hand for this part alone."),
        Higher(MEAN, "free/stable", than="free/plain", source="pilot", where="Seeds 102 to 115: 14 of 14."),
        AtLeast(LARGEST, "plain", 3.0, source="theory", where=TAIL_OF_ERRORS, condition=True),
        Higher(MEAN, "exact", than="plain", source="theory", where="Errors weigh failures at random.", condition=True),
    ),
    checks=(AtLeast(MEAN, "exact", 0.7), Lower(P99, "stable", than="plain"), AtMost(BOUND, "free/plain", 0.0)),
    derived={
        MEAN: partial(mean_over_updates, metric="success"),
        FALL: partial(fall_from_peak, metric="success"),
        P99: partial(percentile, metric="gradient_norm", q=99),
        LARGEST: partial(percentile, metric="largest", q=100),
        BOUND: partial(percentile, metric=BOUND, q=100),
        BEYOND: partial(mean_over_updates, metric=f"{BEYOND}/learner"),
    },
)
