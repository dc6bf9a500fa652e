"""Does everybody contribute where theory says so? MAC-SPGG once more, with terms that keep the theorem.

The game and the training are those of the study `contributions`, whose constants contradict the paper's theorem. Here
a gift c costs c^2. A seed draws a share of 0.9 to 1.4, a synergy of 0.75 to 1.25 and a penalty of 2 to 3, each
uniformly; fewer than 6 units are punished. With all terms the exact equilibrium then has every seat give, in 3,970 of
4,000 draws. Without the synergy nobody gives. Without the penalty the least gift is 0 or 1. These bounds were found
here by backward induction, since the paper's inequalities were not read. Learners may miss the equilibrium, since
nobody gains by giving alone.

  all, no_synergy, no_penalty, plain  both terms, one of them, or neither; a seat sees all earlier gifts
  partial/all ...                     a seat sees only the gift just before its own
  exact/all ...                       no learning: the subgame-perfect equilibrium of other terms from the same ranges

Metrics:

  least gift  the smallest of the three gifts, mean over games; `first` is the first seat's gift
  welfare     sum of payoffs
  distance    between a seat's mean gift and its gift in the equilibrium with full sight, mean over seats

  python -m experiments contributions_corner --seeds 20

Paper: MAC-SPGG, Everyone Contributes! (Liang et al.) 2025, https://arxiv.org/abs/2508.02076. Its payoff is taken from
notes about it, since the released code holds no payoff.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.social.contributions import ALL, GAME
from jaxmarl_llm.environments.social.contributions import Terms, gifts_of
from jaxmarl_llm.evaluation.exact.subgame_perfect import backward_induction
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Parts
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

DRAWN = {"share": (0.9, 1.4), "synergy": (0.75, 1.25), "penalty": (2.0, 3.0)}
COST, THRESHOLD = 2.0, 6.0


def draw_terms(key: jax.Array) -> dict[str, jax.Array]:
    """The numbers of a seed."""
    keys = jax.random.split(key, len(DRAWN))
    return {name: jax.random.uniform(k, (), jnp.float32, *DRAWN[name]) for k, name in zip(keys, DRAWN, strict=True)}


def of_seed(parts: Parts, key: jax.Array) -> dict[str, jax.Array]:
    return draw_terms(key)


def terms(hparams: Mapping, drawn: dict[str, jax.Array]) -> Terms:
    """The arm's terms: the hparams `synergy` and `penalty`, 0 or 1, leave a drawn number out."""
    kept = {name: drawn[name] * hparams[name] for name in ("synergy", "penalty")}
    view = select(hparams, "view", full=False, partial=True)
    return Terms(COST, share=drawn["share"], **kept, threshold=THRESHOLD, partial=view)


def arrange(hparams: Hparams, state: dict, key: jax.Array, number: jax.Array) -> Arranged:
    return Arranged(deal=terms(hparams, state))


def beside_equilibrium(experience: Experience, hparams: Hparams, state: dict) -> Advantages:
    """Leave-one-out advantages per seat; as a metric, the distance from the equilibrium of the seed's terms."""
    exact = backward_induction(GAME.payoffs(terms(hparams, state)))
    distance = jnp.abs(gifts_of(experience.episodes.action).mean(0) - exact.path).mean()
    gains = advantages.rloo(experience.episodes.total_reward, *experience.acts, per_agent=True)
    return Advantages(gains, metrics={"distance": distance}, state=state)


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """The smallest gift and the first seat's, and welfare."""
    gifts = gifts_of(episodes.action)
    means = {"least gift": gifts.min(-1), "first": gifts[:, 0], "welfare": episodes.total_reward.sum((1, 2))}
    return {name: mean_of_kept(episodes, x) for name, x in means.items()}


def exact(key: jax.Array, hparams: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Metrics of the equilibrium of terms from the same ranges; a learner of this seed draws others."""
    equilibrium = backward_induction(GAME.payoffs(terms(hparams, draw_terms(key))))
    gifts = {"least gift": equilibrium.path.min(), "first": equilibrium.path[0]}
    return gifts | {"welfare": equilibrium.value.sum(), "distance": jnp.float32(0)}


BOTH = replace(
    ALL,
    advantage=beside_equilibrium,
    arrange=arrange,
    init_state=of_seed,
    measure=measure,
    hparams={"synergy": 1.0, "penalty": 1.0, "learning_rate": 3e-3, "entropy": 0.02},
)
TERMS: dict[str, dict[str, float]] = {
    "all": {},
    "no_synergy": {"synergy": 0.0},
    "no_penalty": {"penalty": 0.0},
    "plain": {"synergy": 0.0, "penalty": 0.0},
}
FULL: dict[str, float | str] = {"view": "full", "synergy": 1.0, "penalty": 1.0}
EXACT = {name: Computed(exact, {**FULL, **kept}) for name, kept in TERMS.items()}
ABSTRACT = "abstract: under the redesigned payoff effortful contributions are the unique equilibrium, which eliminates "
STUDY = Study(
    paper=Paper("MAC-SPGG (Liang et al.)", "https://arxiv.org/abs/2508.02076", 2025, checked="abstract"),
    question="Does everybody contribute where theory says so?",
    claim="With all terms every seat gives; without the synergy, the penalty or both the least gift is smaller.",
    arms={name: BOTH.with_hparams(**kept) for name, kept in TERMS.items()}
    | {f"partial/{name}": BOTH.with_hparams(**kept).with_choice(view="partial") for name, kept in TERMS.items()}
    | {f"exact/{name}": arm for name, arm in EXACT.items()},
    method="all",
    metrics=("least gift", "first", "welfare", "distance"),
    predictions=tuple(
        Higher("least gift", f"{sight}all", than=f"{sight}{name}", source="paper", where=f"{ABSTRACT}free-riding")
        for sight in ("", "partial/")
        for name in ("no_synergy", "no_penalty", "plain")
    ),
    checks=(
        AtLeast("least gift", "exact/all", 1.0),
        AtMost("least gift", "exact/no_penalty", 1.0),
        *(AtMost("least gift", f"exact/{name}", 0.0) for name in ("no_synergy", "plain")),
    ),
)
