"""How much do agents contribute if they value the others' payoffs? Coopetition's matrix, and welfare as one reward.

Three policies give 0 to 7 units each to a common good, one after another. A gift c costs c^2 / 8, and each unit pays
1/2 to every agent. A seat's reward comes at the end and mixes the three payoffs u:

  d-0.5 ... d1  u_i + D (sum of the others' u), with D in the name: from rivals to one team
  minimum       all seats: three times the least u
  nash          all seats: three times the geometric mean of max(u, 0)

In the equilibrium of continuous gifts every agent gives 2 + 4 D. Metrics:

  quality   sum of the gifts
  welfare   sum of u
  least     least u
  distance  between a seat's mean gift and its gift in the subgame-perfect equilibrium of the arm's rewards, mean over
            seats

  python -m experiments interdependence --seeds 10

Papers: Computational Foundations for Strategic Coopetition (Pant & Yu) 2025, https://arxiv.org/abs/2510.18802, for the
utility; GTAlign (Zhu et al.) 2025, https://arxiv.org/abs/2510.08872, for the geometric mean.
"""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.social.contributions import Contributions, Terms, gifts_of
from jaxmarl_llm.evaluation.exact.subgame_perfect import backward_induction
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.rewards.welfare import interdependent, welfare
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

GAME = Contributions(most=7, terms=Terms(cost=0.25, synergy=0.0, share=1.5, penalty=0.0, threshold=0.0))


def compute_utility(utility: jax.Array, hparams: Hparams) -> jax.Array:
    """The seats' rewards [..., A] in an arm, from payoffs [..., A]."""
    mixed = interdependent(utility, jnp.full((GAME.agents, GAME.agents), hparams["dependence"]))
    minimum, nash = (welfare(utility, kind)[..., None] for kind in ("minimum", "nash"))
    return select(hparams, "wants", own=mixed, minimum=minimum, nash=nash)


def beside_equilibrium(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Leave-one-out advantages per seat; as metrics, the distance from the arm's equilibrium and its gifts."""
    episodes = experience.episodes
    mixed = compute_utility(episodes.total_reward.sum(1), hparams)
    reward = jnp.zeros_like(episodes.total_reward).at[:, -1].set(mixed)
    exact = backward_induction(compute_utility(GAME.payoffs(GAME.terms), hparams))
    distance = jnp.abs(gifts_of(episodes.action).mean(0) - exact.path).mean()
    advantage = advantages.rloo(reward, *experience.acts, per_agent=True)
    return Advantages(advantage, metrics={"distance": distance, "quality at equilibrium": exact.path.sum()})


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    given, utility = gifts_of(episodes.action), episodes.total_reward.sum(1)
    means = {"quality": given.sum(1), "welfare": utility.sum(1), "least": utility.min(1)}
    return {name: mean_of_kept(episodes, x) for name, x in means.items()}


SELFISH = Recipe(
    GAME,
    seats=(("first", "second", "third"),),
    advantage=beside_equilibrium,
    hparams={
        "dependence": 0.0,
        "learning_rate": 3e-3,
        "entropy": 0.01,
    },
    choices={"wants": ("own", "minimum", "nash")},
    budget=1,
    updates=120,
    groups=1,
    group_size=32,
    measure=measure,
    pretrained={"budget": 2},
)
DIAL = (-0.5, -0.25, 0.0, 0.25, 0.5, 1.0)
ARMS = {f"d{dependence:g}": SELFISH.with_hparams(dependence=dependence) for dependence in DIAL}
ALIKE = {name: SELFISH.with_choice(wants=name) for name in ("minimum", "nash")}
SLOPE = (
    "each of three seats gives 2 + 4 D in equilibrium, so gifts rise by 3 for each quarter of D; learning adds noise"
)
LEAST = "seeds 100 and 101: written after learned play, the stop at the least payoff included, had been seen"
STUDY = Study(
    paper=Paper("Strategic Coopetition (Pant & Yu)", "https://arxiv.org/abs/2510.18802", 2025, checked="abstract"),
    question="How far do agents contribute that want some of what others get?",
    claim="Gifts rise with every step of D, and what is learned is the exact equilibrium. All alike for one number of "
    "welfare brings more of it than self-interest; by the least payoff less is given than by the geometric mean.",
    arms=ARMS | ALIKE,
    method="d0.5",
    metrics=("quality", "quality at equilibrium", "welfare", "least", "distance"),
    predictions=(
        *(Higher("quality", more, than=less, source="theory", where=SLOPE) for less, more in pairwise(ARMS)),
        Higher("welfare", "minimum", than="d0", source="pilot", where=LEAST),
        Higher(
            "welfare",
            "nash",
            than="d0",
            source="theory",
            where="for three alike seats the geometric mean and the sum have the same maximum, 13.5; the equilibrium "
            "at D = 0 has 7.5",
        ),
        Lower("quality", "minimum", than="nash", source="pilot", where=LEAST),
    ),
    checks=tuple(AtMost("distance", name, 0.2) for name in ("d-0.5", "d0", "d1", "nash")),
)
