"""Which terms of a payoff make every agent of a sequence contribute? MAC-SPGG, beside its exact equilibrium.

Three seats, a policy each, give 0 to 3 units to a common good, one after another. To give c costs c^2 / 2; all share
1.2 of every unit, 0.4 each. A synergy pays a giver 0.25 for each of its units times each unit given before; a penalty
of 2 falls on all if less than 5 is given. REINFORCE, each position apart.

  plain, synergy, penalty, all   neither of the two terms, one, or both; a seat sees all gifts before its own
  partial/plain ...              it sees the gift just before its own
  more_synergy, more_share       `all` with a synergy of 0.5, a share of 2.4
  threshold_3, threshold_7       `all` with another threshold
  exact/all ...                  no learning: the equilibrium if gifts are multiples of 0.1, nearly the paper's

`first`, `second`, `third`: mean gifts. `welfare`: the sum of payoffs. `welfare at equilibrium`: in the subgame-perfect
equilibrium of full sight, whose outcome is the only one in every arm. `distance`: of a seat's mean gift from its gift
there, mean over seats. The paper's theorems: with all terms everyone gives, and welfare at equilibrium rises with
synergy and share and falls with the threshold. They are predicted of what is learned, and of `exact`, which was known
when this was written.

  python -m experiments contributions --seeds 10

Paper: MAC-SPGG, Everyone Contributes! (Liang et al.) 2025, https://arxiv.org/abs/2508.02076. Its payoff is known from
notes on it; its language models' effort is a number here, and whether it adds up or averages gifts before is not known.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.social.contributions import Contributions, Terms, gifts_of
from jaxmarl_llm.evaluation.exact.subgame_perfect import backward_induction
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

GAME, POSITIONS, FINER = Contributions(), ("first", "second", "third"), 10
OPTIMAL = "welfare at equilibrium"


NUMBERS = {name: x for name, x in Terms()._asdict().items() if name != "partial"}


def terms(hparams: Mapping) -> Terms:
    return Terms(**{name: hparams[name] for name in NUMBERS}, partial=select(hparams, "view", full=False, partial=True))


def arrange(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """The arm's terms: numbers, so that all arms share a program."""
    return Arranged(deal=terms(hparams))


def beside_equilibrium(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Leave-one-out advantages of each seat apart, and how far play is from the arm's equilibrium."""
    exact = backward_induction(GAME.payoffs(terms(hparams)))
    distance = jnp.abs(gifts_of(experience.episodes.action).mean(0) - exact.path).mean()
    return Advantages(
        advantages.rloo(experience.episodes.total_reward, *experience.acts, per_agent=True),
        metrics={"distance": distance, OPTIMAL: exact.value.sum()},
    )


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    each, welfare = gifts_of(episodes.action).mean(0), episodes.total_reward.sum((1, 2)).mean()
    return {name: each[i] for i, name in enumerate(POSITIONS)} | {"quality": each.sum(), "welfare": welfare}


def exact(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The equilibrium of gifts in tenths of a unit, in units."""
    own = terms(hparams)
    scaled = Terms(own.cost / FINER**2, own.synergy / FINER**2, own.share / FINER, own.penalty, own.threshold * FINER)
    found = backward_induction(Contributions(most=FINER * GAME.most).payoffs(scaled))
    each, welfare = found.path / FINER, found.value.sum()
    known = {"quality": each.sum(), "welfare": welfare, OPTIMAL: welfare, "distance": jnp.float32(0)}
    return {name: each[i] for i, name in enumerate(POSITIONS)} | known


ALL = Recipe(
    GAME,
    seats=(POSITIONS,),
    advantage=beside_equilibrium,
    arrange=arrange,
    hparams={**NUMBERS, "learning_rate": 3e-3, "entropy": 0.02},
    choices={"view": ("full", "partial")},
    budget=1,
    updates=150,
    groups=1,
    group_size=64,
    measure=measure,
    pretrained={"budget": 2},
)
TERMS = {"plain": {"synergy": 0.0, "penalty": 0.0}, "synergy": {"penalty": 0.0}, "penalty": {"synergy": 0.0}, "all": {}}
FURTHER = {
    "more_synergy": {"synergy": 0.5},
    "more_share": {"share": 2.4},
    "threshold_3": {"threshold": 3.0},
    "threshold_7": {"threshold": 7.0},
}
RAISE = ("more_synergy", "more_share", "threshold_3")
FINE = {name: Computed(exact, {**NUMBERS, "view": "full", **own}) for name, own in {"all": {}, **FURTHER}.items()}
STUDY = Study(
    paper=Paper("MAC-SPGG (Liang et al.)", "https://arxiv.org/abs/2508.02076", 2025, checked="abstract"),
    question="Which terms of a payoff make every agent of a sequence contribute?",
    claim="With all terms, and not without, every position gives, and what is learned is the exact equilibrium; a "
    "penalty alone leaves all at nothing. Welfare rises with synergy and share and falls with the threshold.",
    arms={name: ALL.with_hparams(**own) for name, own in (TERMS | FURTHER).items()}
    | {f"partial/{name}": ALL.with_choice(view="partial").with_hparams(**own) for name, own in TERMS.items()}
    | {f"exact/{name}": arm for name, arm in FINE.items()},
    method="all",
    metrics=(*POSITIONS, "welfare", OPTIMAL, "distance"),
    predictions=(
        AtMost("quality", "plain", 0.5),
        AtMost("quality", "penalty", 0.5),
        AtLeast("first", "all", 0.8),
        AtLeast("first", "exact/all", 0.1),
        AtMost("distance", "all", 0.2),
        AtMost("distance", "partial/all", 0.2),
        Higher("quality", "all", than="synergy"),
        *(Higher("welfare", f"{kind}{name}", than=f"{kind}all") for kind in ("", "exact/") for name in RAISE),
        *(Lower("welfare", f"{kind}threshold_7", than=f"{kind}all") for kind in ("", "exact/")),
    ),
)
