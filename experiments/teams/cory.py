"""Do summed rewards and exchanged roles help two learners of one task? CORY's pioneer and observer.

Sums mod 5 (`PioneerObserver`), with two policies. The pioneer answers; the observer sees the answer and answers too.
Each policy answers every question of a batch once.

  cory    both earn the sum of their rewards; seat 0 is the pioneer in even groups, seat 1 in odd ones
  own     each earns its own reward
  fixed   both earn the sum, but seat 0 is always the pioneer
  alone   one policy that answers alone

The predictions are ours. The paper never ablates the sum, and its claim for the exchange is a lower KL; `cory_kl` tests
the paper's directions. Success is a mean over all 200 updates. Pioneers succeed more often with cory than with each
other arm. Observers succeed more often with cory than with own and fixed. The pioneers are the models that one keeps.

  python -m experiments cory --seeds 10    # 3 minutes on two quiet cores
  python -m experiments cory --model smollm2 --seeds 1

Paper: Ma et al. 2024, CORY, https://arxiv.org/abs/2410.06101: summed reward, exchange, no gradient through the
pioneer's answer. Differences: In the paper both policies start as copies of one pretrained model. They train by PPO
with a penalty on the distance from it, and they exchange roles every few updates. Here they start at random, the
baseline is leave-one-out, there is no penalty, and every batch holds both assignments of roles.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.teams.team_tasks import PioneerObserver
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

PIONEER, OBSERVER = 0, 1


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Leave-one-out, by question and seat, of a seat's reward plus `share` times its partner's."""
    reward = experience.episodes.reward[..., 0]
    partner = reward.sum(2, keepdims=True) - reward
    return Advantages(advantages.rloo(reward + hparams["share"] * partner, *experience.acts, per_agent=True))


def successes(episodes: Episodes, *, roles: tuple[int, ...] = (PIONEER, OBSERVER)) -> dict[str, jax.Array]:
    """Share of right answers by role; the pioneer answers first, the observer second."""
    names, right = ("pioneer", "observer"), episodes.reward[..., 0]
    where = {names[role]: episodes.acted & (episodes.role == role) for role in roles}
    return {name: jnp.where(acts, right, 0).sum() / acts.sum() for name, acts in where.items()}


CORY = Recipe(
    PioneerObserver(Arithmetic(5, "+"), exchange="group"),
    seats=(("one", "other"),),
    advantage=estimate_advantages,
    hparams={"learning_rate": 1e-3, "share": 1.0},
    updates=200,
    measure=successes,
)
OWN = CORY.with_hparams(share=0.0)
FIXED = PioneerObserver(Arithmetic(5, "+"), exchange="never")
ARMS = {
    "cory": CORY,
    "own": OWN,
    "fixed": replace(CORY, game=FIXED),
    "alone": replace(OWN, game=FIXED, seats=(("one", "random"),), measure=partial(successes, roles=(PIONEER,))),
}


def mean(curves: dict[str, np.ndarray], *, role: str) -> np.ndarray:
    """A role's mean success over all updates, which rewards early learning; NaN if no policy learns the role."""
    return curves.get(role, np.full_like(curves["pioneer"], np.nan)).mean(1)


MEAN = {f"mean {role}": partial(mean, role=role) for role in ("pioneer", "observer")}
REASONS = {  # other arm: why cory should succeed more often
    "own": "A policy that earns the sum also earns from its partner's gain. The paper never ablates the sum.",
    "fixed": "With exchange each role profits from practice in the other. Section 4.3 claims a lower KL, not more "
    "success.",
}

STUDY = Study(
    paper=Paper("CORY (Ma et al.)", "https://arxiv.org/abs/2410.06101", 2024, checked="paper"),
    question="Do summed rewards and exchanged roles help two learners of one task?",
    claim="Summed rewards and exchanged roles each raise the success of two learners over 200 updates, and the pioneer "
    "learns faster than a learner alone.",
    arms=ARMS,
    method="cory",
    metrics=("pioneer", "observer", *MEAN),
    predictions=(
        *(
            Higher(f"mean {role}", "cory", than=other, source="theory", where=why)
            for role in ("pioneer", "observer")
            for other, why in REASONS.items()
        ),
        Higher(
            "mean pioneer",
            "cory",
            than="alone",
            source="theory",
            where="Sum and exchange reward two learners for each other's gains. Figure 4a states more reward, but from "
            "pretrained copies with a KL penalty.",
        ),
    ),
    derived=MEAN,
)
