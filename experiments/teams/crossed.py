"""Does pairing every sample with all samples of the other seats make credit less noisy when all act at once?

An update has four groups of four games; every arm uses the same tokens, and one policy plays all seats. Credit:

  aligned         a seat's reward less the mean of the group's three other games, as played (leave-one-out, per agent)
  crossed         the same for a sample's mean reward over all combinations with the other seats' samples: G^A steps
  counterfactual  the reward less its mean over the seat's own actions under the policy, with the others fixed (COMA)

Games:

  match   two seats, two actions: both earn 1 if they choose alike; only the pair matters
  share   four seats give 0 to 3 coins, and each coin pays 2 to all four: the others' gifts are pure noise
  all_in  three seats have a coin, and it pays only if all three give it: the joint action must match

Metrics:

  early noise     variance over groups of a group's gradient of the logits, in the first ten updates
  of the best     mean return over the return of the best joint action
  updates to 90%  updates until that share is 0.9

  python -m experiments crossed --seeds 10

Papers: MAGRPO (Liu et al.) 2025, https://arxiv.org/abs/2508.04652, whose release, https://github.com/OpenMLRL/CoMLRL,
crosses samples with `joint_mode="cross"`; COMA (Foerster et al.) 2018, https://arxiv.org/abs/1705.08926.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.environments.social.matrix_games import COORDINATION, MatrixGame
from jaxmarl_llm.environments.social.public_goods import PublicGoods
from jaxmarl_llm.methods.counterfactual import JointActions, counterfactual, cross_joint_credit, joint_step
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import updates_to
from jaxmarl_llm.studies.study import Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

NOISE, EARLY, SHARE, UPDATES = "noise", "early noise", "of the best", "updates to 90%"
CREDITS = "aligned", "crossed", "counterfactual"


def group_noise(advantage: jax.Array, probability: jax.Array, action: jax.Array, groups: int) -> jax.Array:
    """The variance over groups of a group's gradient, summed over seats and actions: a scalar.

    A group's gradient is its mean of advantage times the gradient of log p with respect to the seats' logits. Shapes:
    `advantage` [B, 1, A], `probability` [B, 1, A, N], `action` int [B, 1, A]. All groups begin in the same state.
    """
    score = jax.nn.one_hot(action, probability.shape[-1]) - probability
    gradient = (advantage[..., None] * score).reshape(groups, -1, *score.shape[2:]).mean(1)
    return gradient.var(0, ddof=1).sum()


def credit(experience: Experience, hparams: Hparams, joint: JointActions) -> Advantages:
    """The arm's credit; as a metric, the noise of its gradient."""
    aligned = advantages.rloo(experience.episodes.total_reward, *experience.learning_acts, per_agent=True)
    given = experience, hparams, joint
    advantage = select(
        hparams, "credit", aligned=aligned, crossed=cross_joint_credit(*given), counterfactual=counterfactual(*given)
    )
    noise = group_noise(advantage, joint.probabilities(), experience.episodes.action, experience.groups)
    return Advantages(advantage, metrics={NOISE: noise})


def share(episodes: Episodes, *, best: float) -> dict[str, jax.Array]:
    """Mean return over the best one."""
    return {SHARE: mean_of_kept(episodes, episodes.total_reward.sum(1), then=lambda mean: mean / best)}


def early(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Mean noise of the first ten updates, [seeds]."""
    return curves[NOISE][:, :10].mean(1)


BASE = Recipe(
    MatrixGame(COORDINATION, rounds=1, exchange=False),
    seats=(("learner",) * 2,),
    advantage=None,
    step=partial(joint_step, credit=credit),
    hparams={"learning_rate": 1e-3, "entropy": 0.0},
    choices={"credit": CREDITS},
    budget=1,
    updates=60,
    groups=4,
    group_size=4,
    measure=partial(share, best=1.0),
    pretrained={"budget": 2},
)
GAMES: dict[str, tuple[Any, float]] = {  # name: (game, return of the best joint action)
    "match": (BASE.game, 1.0),
    "share": (PublicGoods(agents=4, multiplier=8.0, rounds=1, endowment=3), 24.0),
    "all_in": (PublicGoods(agents=3, multiplier=9.0, rounds=1, endowment=1, threshold=3), 9.0),
}
IN_GAME = {
    name: replace(BASE, game=game, seats=(("learner",) * game.agents,), measure=partial(share, best=best))
    for name, (game, best) in GAMES.items()
}
ARMS = {f"{name}/{credit}": recipe.with_choice(credit=credit) for name, recipe in IN_GAME.items() for credit in CREDITS}
STUDY = Study(
    paper=Paper("MAGRPO (Liu et al.)", "https://arxiv.org/abs/2508.04652", 2025, checked="release"),
    question="Does pairing every sample with every other make credit less noisy?",
    claim="Crossed credit has a less noisy gradient than aligned credit at the same tokens, most where the other "
    "seats' actions only add noise; there it needs fewer updates.",
    arms=ARMS,
    method="share/crossed",
    metrics=(EARLY, UPDATES, SHARE),
    predictions=(
        *(
            Lower(
                EARLY,
                f"{name}/crossed",
                than=f"{name}/aligned",
                source="theory",
                where="Crossing averages over the other seats' samples at the same expectation (Rao-Blackwell).",
            )
            for name in ("match", "all_in")
        ),
        Lower(
            EARLY,
            "all_in/counterfactual",
            than="all_in/aligned",
            source="theory",
            where="The exact baseline fixes the others' actions, so it takes out more of their noise than a group's "
            "mean. Nothing guarantees it.",
        ),
        *(
            Lower(
                UPDATES,
                f"share/{kind}",
                than="share/aligned",
                source="pilot",
                where="Seeds 100 to 103, with eight groups an update: the arms needed 40 and 46 updates. The table has "
                "four groups.",
            )
            for kind in ("crossed", "counterfactual")
        ),
    ),
    checks=(
        *(Lower(EARLY, f"share/{kind}", than="share/aligned") for kind in ("crossed", "counterfactual")),
        Lower(EARLY, "share/counterfactual", than="share/crossed"),
    ),
    censored={UPDATES: BASE.updates},
    derived={EARLY: early, UPDATES: partial(updates_to, metric=SHARE)},
)
