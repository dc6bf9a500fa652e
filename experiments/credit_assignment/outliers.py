"""Do a clip before the exponential and a filter of outliers keep the gradient of a noisy reward small? StableReinforce.

One letter of twenty earns the point of a `Quiz`. In the arms `noisy/...` the reward is that point plus heavy-tailed
noise. The noise is 0.2 times a Student t variable with 1.5 degrees of freedom, whose variance is infinite. It models a
judge with rare absurd scores. In `clean/...` the reward is the point alone. Advantages are whitened over the batch
(REINFORCE++). Each batch is used for four epochs with PPO's clip:

  plain     nothing else
  pre_clip  the log-ratio is clipped to [-log 1e3, log 1e3] before the exponential
  filter    advantages beyond 3 standard deviations become 0
  clamp     advantages are clipped to 3 standard deviations
  stable    pre_clip and filter: StableReinforce without its reward for consistent answers

`p99 norm` is the 99th percentile over updates of the gradient's norm, before it is clipped to 1. `mean success` is the
mean over all updates. Predicted:

- Under noise, `stable` lowers `p99 norm` and raises `mean success`, as in the paper.
- Without noise, `filter` delays learning and lowers the success at the end, as in pilots.

Checks: without noise, `clamp` ends with a success of 0.95. No update of `noisy/plain` is skipped, because this package
bounds every ratio by e^20.

A right answer of probability p lies sqrt((1 - p) / p) deviations above the mean: 4.4 for one in twenty. The filter
therefore drops early successes, and only failures teach. Above p = 0.9 it drops the failures. The clamp
keeps both.

  python -m experiments outliers --seeds 10

Paper: Zhang et al. 2025, R1-Reward (StableReinforce), https://arxiv.org/abs/2505.02835
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.solo.quiz import Quiz
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.studies.curves import mean_over_updates, updates_to
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Experience

P99, MEAN, HALF, TAIL = "p99 norm", "mean success", "updates to half", 1.5
OFF = 1e8  # a bound that no value reaches: log 1e8 is 18


def noisy(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Rewards whitened over the batch: 0 beyond `filter` deviations, else clipped to `clamp` deviations."""
    reward, (acted, _, _) = experience.episodes.total_reward, experience.acts
    reward = reward + hparams["noise"] * jax.random.t(experience.key, TAIL, reward.shape)
    white = advantages.whiten(reward, acted)
    inside = advantages.inliers(reward, acted, sigmas=hparams["filter"])
    clamped = jnp.clip(white, -hparams["clamp"], hparams["clamp"])
    return Advantages(jnp.where(inside, clamped, 0), metrics={"largest": jnp.abs(white).max()})


def clipped_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """PPO's clipped surrogate, whose ratio is bounded by `most` before the exponential."""
    return losses.ppo_clip(
        scores.logp, batch.behaviour_logp, batch.advantage, batch.mask,
        level=partial(losses.bounded_ratio, max_ratio=hparams["most"]),
    )  # fmt: skip


def p99(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """99th percentile [seeds] over updates of the gradient norm."""
    return np.percentile(curves["gradient_norm/learner"], 99, axis=1)


BASE = Recipe(
    Quiz(shares=((0.05,),), questions=4),
    seats=(("learner",),),
    advantage=noisy,
    loss=clipped_loss,
    hparams={"learning_rate": 3e-3, "entropy": 0.0, "filter": OFF, "clamp": OFF, "most": OFF, "noise": 0.2},
    epochs=4,
    updates=70,
    groups=8,
    group_size=8,
    measure=partial(component_returns, success=0),
)
ARMS: dict[str, dict[str, float]] = {
    "plain": {},
    "pre_clip": {"most": 1e3},
    "filter": {"filter": 3.0},
    "clamp": {"clamp": 3.0},
    "stable": {"most": 1e3, "filter": 3.0},
}
STUDY = Study(
    paper=Paper("R1-Reward, StableReinforce (Zhang et al.)", "https://arxiv.org/abs/2505.02835", 2025, "release"),
    question="Do a clip before the exponential and a filter of outliers keep a noisy gradient small?",
    claim="Under noise the filter keeps gradients small and more is earned; without noise it drops what is rare.",
    arms={f"noisy/{name}": BASE.with_hparams(**changes) for name, changes in ARMS.items()}
    | {f"clean/{name}": BASE.with_hparams(noise=0.0, **ARMS[name]) for name in ("plain", "filter", "clamp")},
    method="noisy/stable",
    metrics=("success", MEAN, HALF, P99, "skipped", "largest", "clipped/learner"),
    predictions=(
        Lower(
            P99,
            "noisy/stable",
            than="noisy/plain",
            source="paper",
            where="Abstract: Reinforce++ 'often leads to training instability or even collapse'; StableReinforce has "
            "'more stable training dynamics'.",
        ),
        Higher(
            MEAN,
            "noisy/stable",
            than="noisy/plain",
            source="paper",
            where="Abstract: the refinements of Reinforce++ 'result in more stable training dynamics and superior "
            "performance'.",
        ),
        Higher(
            HALF,
            "clean/filter",
            than="clean/plain",
            source="pilot",
            where="Seeds 100 and 101, 80 updates: the filter learned after all, so the prediction became one of delay.",
        ),
        Lower(
            "success",
            "clean/filter",
            than="clean/plain",
            source="pilot",
            where="Written after the same pilots (seeds 100 and 101). Above p = 0.9 the filter drops the failures.",
        ),
    ),
    checks=(AtLeast("success", "clean/clamp", 0.95), AtMost("skipped", "noisy/plain", 0.0)),
    censored={HALF: BASE.updates},
    derived={
        P99: p99,
        MEAN: partial(mean_over_updates, metric="success"),
        HALF: partial(updates_to, metric="success", bound=0.5),
    },
)
