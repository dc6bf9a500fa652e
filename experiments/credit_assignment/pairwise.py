"""Does comparing answers in pairs, with one clip for both ratios, earn more at the same KL? P3O against PPO and RLOO.

A letter of `Quiz` earns up to three points. A learner's reward is its points minus beta times its KL from the policy
before training. Both are estimated from the sampled answers. A question has two answers; each batch is used for three
epochs:

  ppo     a critic's advantage and PPO's clip
  rloo    difference of the two rewards, each answer's ratio clipped apart: P3O's first variant
  p3o     difference of the two rewards, quotient of the two ratios clipped: P3O's second variant, as we read it

Each runs at beta 0.1, 0.3 and 1. In the arms `shift/...`, at beta 0.3, each question adds its own constant from -6 to 6
to the reward. The metrics do not count this constant. Metrics:

  distance   the KL
  objective  the maximised quantity, points - beta KL

Predicted: P3O's objective is above PPO's at every beta, as in the paper. The constant costs PPO points. With it, PPO
earns fewer points than P3O. Check: the constant leaves P3O's points as they are.

  python -m experiments pairwise --seeds 10

Paper: Wu et al. 2023, Pairwise Proximal Policy Optimization (P3O), https://arxiv.org/abs/2310.00212
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxmarl_llm.environments.solo.quiz import Quiz
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rl.rewards import less_divergence
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study, Within
from jaxmarl_llm.training.recipe import Hparams, Recipe, mean_return
from jaxmarl_llm.training.records import Advantages, Experience

LOSSES = ("ppo", "rloo", "p3o")


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Points minus beta KL plus each question's constant, in the form that the arm's loss takes."""
    ((name, sampled),), acts = experience.sampled.items(), experience.acts
    rows, reference = experience.rows[name], experience.reference_logp[name]
    points = experience.episodes.total_reward
    earned = points[rows.episode, 0, 0]
    net = less_divergence(earned, sampled.behaviour_logp, reference, sampled.mask, hparams["beta"])
    shape = points.shape
    reward = jnp.zeros(shape).at[rows.episode, 0, 0].set(net)
    told = experience.episodes.told  # an integer that names the question
    reward += hparams["shift"] * (told % 7 - 3).astype(jnp.float32)
    advantage = select(
        hparams, "loss", ppo=reward - experience.turn_value, rloo=advantages.rloo(reward, *acts), p3o=reward
    )
    metrics = {"objective": net.mean(), "distance": (earned - net).mean() / jnp.maximum(hparams["beta"], 1e-9)}
    return Advantages(advantage, value_target=reward, metrics=metrics)


def arm_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """Clipped surrogate, of rows for `ppo` and `rloo`, of pairs for `p3o`. Only `ppo` trains the critic."""
    row, metrics = losses.ppo_clip(
        scores.logp, batch.behaviour_logp, batch.advantage, batch.mask, level=losses.sequence_ratio
    )
    grouped = lambda x: x.reshape(-1, 2, x.shape[-1])
    pair, pair_metrics = losses.pairwise_clip(
        grouped(scores.logp), grouped(batch.behaviour_logp), grouped(batch.advantage)[..., 0], grouped(batch.mask)
    )
    assert scores.value is not None  # the recipe has a critic
    error, _ = losses.value_squared(scores.value, batch.value_target, batch.mask)
    with_critic = row.value + hparams["value"] * error.value
    total = select(hparams, "loss", ppo=with_critic, rloo=row.value, p3o=pair.value)
    return Mean(total, jnp.float32(1)), metrics | {"clipped pairs": pair_metrics["clipped"]}


BASE = Recipe(
    Quiz(),
    seats=(("learner",),),
    advantage=estimate_advantages,
    loss=arm_loss,
    hparams={"learning_rate": 3e-3, "entropy": 0.0, "shift": 0.0, "beta": 0.3},
    choices={"loss": LOSSES},
    critic=True,
    reference=True,
    epochs=3,
    updates=70,
    groups=24,
    group_size=2,
    measure=mean_return,
)
BETAS = (0.1, 0.3, 1.0)
STUDY = Study(
    paper=Paper("P3O (Wu et al.)", "https://arxiv.org/abs/2310.00212", 2023, checked="abstract"),
    question="Does comparing answers in pairs earn more at the same distance from the reference?",
    claim="P3O's objective is above PPO's at every weight of the KL, and a question's own constant costs PPO alone.",
    arms={f"{name}/{beta:g}": BASE.with_choice(loss=name).with_hparams(beta=beta) for name in LOSSES for beta in BETAS}
    | {f"shift/{name}": BASE.with_choice(loss=name).with_hparams(shift=2.0) for name in ("ppo", "p3o")},
    method="p3o/0.3",
    metrics=("return", "distance", "objective", "ratio/learner", "clipped pairs/learner"),
    predictions=(
        *(
            Higher(
                "objective",
                f"p3o/{beta:g}",
                than=f"ppo/{beta:g}",
                source="paper",
                where="Abstract: 'P3O outperforms PPO in the KL-Reward trade-off'. A beta is a point of it.",
            )
            for beta in BETAS
        ),
        Lower(
            "return",
            "shift/ppo",
            than="ppo/0.3",
            source="theory",
            where="PPO's critic has to learn each question's constant. Until then its error is noise in the advantage.",
        ),
        Higher(
            "return",
            "shift/p3o",
            than="shift/ppo",
            source="theory",
            where="The difference of two rewards of a question is free of its constant, PPO's critic errs on it.",
        ),
    ),
    checks=(Within("return", "shift/p3o", than="p3o/0.3", by=0.01),),
)
