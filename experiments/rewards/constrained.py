"""Can Lagrange multipliers stop a policy where its proxies stop being useful? Letters with details and praise.

One seat writes letters of eight lines: plain lines, details or praise, at first mostly plain ones. The two proxies are
the shares of details and of praise. They agree with the reader up to 3 details and 2 lines of praise, and disagree
beyond. The policy earns the weighted proxies less beta KL from its start (k1, in the reward). The baseline is
leave-one-out within groups.

  fixed                       weights 1 and 1
  tuned                       weights 0.35 and 0.3, tuned on the reader's final values with other seeds
  lagrange                    weights tanh(lambda), with dual ascent of lambda towards thresholds of 3/8 and 2/8, as
                              equalities
  tuned_half, lagrange_half   the same with half of beta
  high                        lagrange with thresholds 1.5 times as high

Metrics:

  liked  the reader's value
  proxy  sum of both shares
  gap    proxy less liked
  fall   peak of liked less its final value
  off    mean distance of the two shares from the thresholds

  python -m experiments constrained --seeds 10

Paper: Confronting Reward Model Overoptimization with Constrained RLHF (Moskovitz et al.) 2023,
https://arxiv.org/abs/2310.04373. There each proxy has its own critic, and runs find the thresholds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.judged.letters import Letters
from jaxmarl_llm.rl import advantages, rewards
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.rewards import multipliers
from jaxmarl_llm.studies.curves import fall_from_peak
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

GAME = Letters(proxies=True)
USEFUL = jnp.array(GAME.useful)


def no_pressure(parts: Any, key: jax.Array) -> jax.Array:
    """Initial multipliers: zeros [2]."""
    return jnp.zeros(2)


def estimate_advantages(experience: Experience, hparams: Hparams, raw: jax.Array) -> Advantages:
    """Leave-one-out of the weighted proxies less beta KL; dual ascent moves the multipliers after each update."""
    reward = experience.episodes.reward.sum((1, 2))  # [B, C]; one seat
    details, praise = (reward[:, k].mean() for k in range(2))
    shares, liked = jnp.stack([details, praise]), experience.episodes.measured[..., 0].sum((1, 2)).mean()
    fixed = jnp.stack([hparams["details"], hparams["praise"]])
    weights = select(hparams, "weights", fixed=fixed, multipliers=multipliers.equality_weights(raw))
    ((name, rows),) = experience.rows.items()
    sampled, reference = experience.sampled[name], experience.reference_logp[name]
    earned = (reward * weights[None]).sum(1)
    of_row = rewards.less_divergence(
        earned[rows.episode], sampled.behaviour_logp, reference, sampled.mask, hparams["beta"]
    )
    last = jnp.zeros(experience.episodes.acted.shape).at[rows.episode, -1, rows.seat].set(of_row)
    return Advantages(
        advantages.rloo(last, *experience.acts),
        state=multipliers.dual_ascent(raw, shares, hparams["aim"] * USEFUL, hparams["dual_rate"]),
        metrics={
            "liked": liked,
            "proxy": shares.sum(),
            "gap": shares.sum() - liked,
            "off": jnp.abs(shares - USEFUL).mean(),
            "details": details,
            "praise": praise,
            "weight of details": weights[0],
        },
    )


WRITER = Recipe(
    Noisy(GAME, (Errs("novice", "plain", 0.85),)),
    seats=(("writer",),),
    advantage=estimate_advantages,
    reference=True,
    init_state=no_pressure,
    hparams={
        "learning_rate": 1e-3,
        "entropy": 0.0,
        "beta": 0.02,
        "details": 1.0,
        "praise": 1.0,
        "dual_rate": 0.0,
        "aim": 1.0,
    },
    choices={"weights": ("fixed", "multipliers")},
    warm_start=(("novice",),),
    budget=1,
    updates=150,
    groups=2,
    group_size=16,
    pretrained={"budget": 4},
)
TUNED = WRITER.with_hparams(details=0.35, praise=0.3)
LAGRANGE = WRITER.with_choice(weights="multipliers").with_hparams(dual_rate=0.02)
ARMS = {
    "fixed": WRITER,
    "tuned": TUNED,
    "lagrange": LAGRANGE,
    "tuned_half": TUNED.with_hparams(beta=0.01),
    "lagrange_half": LAGRANGE.with_hparams(beta=0.01),
    "high": LAGRANGE.with_hparams(aim=1.5),
}
STUDY = Study(
    paper=Paper("Constrained RLHF (Moskovitz et al.)", "https://arxiv.org/abs/2310.04373", 2023, checked="release"),
    question="Can Lagrange multipliers stop a policy where its proxies stop being useful?",
    claim="A fixed sum of proxies is over-optimised; multipliers hold each proxy at its threshold, and the truth up.",
    arms=ARMS,
    method="lagrange",
    metrics=("liked", "proxy", "gap", "fall", "off", "weight of details"),
    predictions=(
        AtLeast(
            "fall",
            "fixed",
            0.1,
            source="theory",
            where="The reader's value falls beyond 3 details and 2 lines of praise, and the fixed sum pays for more of "
            "both.",
            condition=True,
        ),
        Higher(
            "liked",
            "lagrange",
            than="fixed",
            source="paper",
            where="Abstract: each reward model 'stays within the range at which it is an effective proxy, improving "
            "evaluation performance'.",
        ),
        Higher(
            "liked",
            "lagrange_half",
            than="tuned_half",
            source="pilot",
            where="Seeds 100 and 101 with half of beta: multipliers swung from 0.07 to 0.30, and the dual rate was "
            "then lowered.",
        ),
    ),
    checks=(
        AtMost("fall", "lagrange", 0.1),
        Lower("gap", "lagrange", than="fixed"),
        AtMost("off", "lagrange", 0.05),
        Higher("liked", "lagrange", than="high"),
    ),
    derived={"fall": partial(fall_from_peak, metric="liked")},
)
