"""Which terms of a payoff make every agent in a sequence contribute? MAC-SPGG beside its exact equilibrium.

Three seats give 0 to 3 units each to a common good, one after another; each seat has its own policy. A gift c costs
c^2 / 2, and each unit pays 0.4 to every seat (1.2 in all). The synergy pays a seat 0.25 for each of its units times the
units given before. The penalty is 2 for every seat if fewer than 5 units are given. Training is REINFORCE with a
leave-one-out baseline for each position.

  plain, synergy, penalty, all   no extra term, one of them, or both; a seat sees all earlier gifts
  partial/plain ...              a seat sees only the gift just before its own
  more_synergy, more_share       `all` with a synergy of 0.5; with a share of 2.4
  threshold_3, threshold_7       `all` with another threshold of the penalty
  exact/all ...                  no learning: the equilibrium with gifts in multiples of 0.1, close to the paper's

Metrics:

  first, second, third    mean gifts
  quality                 sum of the mean gifts
  welfare                 sum of payoffs
  welfare at equilibrium  in the subgame-perfect equilibrium with full sight; its outcome is unique in every arm
  distance                between a seat's mean gift and its gift in that equilibrium, mean over seats

The paper's theorems: with all terms every agent gives, and the equilibrium welfare rises with synergy and share and
falls with the threshold. The study predicts these directions for learned policies and for `exact`, and the abstract's:
learners give with all terms, not without. The theorems and their conditions on the constants are known second-hand.
In tables before the freeze the first seat of `exact/all` gave nothing, and welfare rose with the threshold.

  python -m experiments contributions --seeds 10

Paper: MAC-SPGG, Everyone Contributes! (Liang et al.) 2025, https://arxiv.org/abs/2508.02076. Its payoff is taken from
notes about it, since the released code holds no payoff. The release's README names the same four terms, with
"accumulated" earlier gifts. Contributions there are texts with scores in [0, 1]; here they are numbers.
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
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

GAME, POSITIONS, FINER = Contributions(), ("first", "second", "third"), 10
OPTIMAL = "welfare at equilibrium"


NUMBERS = {name: x for name, x in Terms()._asdict().items() if name != "partial"}


def terms(hparams: Mapping) -> Terms:
    """The arm's terms."""
    return Terms(**{name: hparams[name] for name in NUMBERS}, partial=select(hparams, "view", full=False, partial=True))


def arrange(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """The arm's terms as a deal: they are traced numbers, so all arms share a program."""
    return Arranged(deal=terms(hparams))


def beside_equilibrium(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Leave-one-out advantages per seat; as metrics, the distance from the arm's equilibrium and its welfare."""
    exact = backward_induction(GAME.payoffs(terms(hparams)))
    distance = jnp.abs(gifts_of(experience.episodes.action).mean(0) - exact.path).mean()
    return Advantages(
        advantages.rloo(experience.episodes.total_reward, *experience.acts, per_agent=True),
        metrics={"distance": distance, OPTIMAL: exact.value.sum()},
    )


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """Mean gifts by position, their sum, and welfare."""
    gifts = mean_of_kept(episodes, gifts_of(episodes.action), axis=0)
    welfare = mean_of_kept(episodes, episodes.total_reward.sum((1, 2)))
    return {name: gifts[i] for i, name in enumerate(POSITIONS)} | {"quality": gifts.sum(), "welfare": welfare}


def exact(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Metrics of the equilibrium with gifts in tenths of a unit; gifts are counted in units."""
    arm = terms(hparams)
    scaled = Terms(arm.cost / FINER**2, arm.synergy / FINER**2, arm.share / FINER, arm.penalty, arm.threshold * FINER)
    equilibrium = backward_induction(Contributions(most=FINER * GAME.most).payoffs(scaled))
    gifts, welfare = equilibrium.path / FINER, equilibrium.value.sum()
    known = {"quality": gifts.sum(), "welfare": welfare, OPTIMAL: welfare, "distance": jnp.float32(0)}
    return {name: gifts[i] for i, name in enumerate(POSITIONS)} | known


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
FINE = {
    name: Computed(exact, {**NUMBERS, "view": "full", **changes}) for name, changes in {"all": {}, **FURTHER}.items()
}
PICTURE = "seeds 100 to 102, 50 to 100 updates: the same picture; predictions of learned play were written after it"
THEOREM_1 = "Theorem 1 (second-hand): with all terms every agent gives. Contradicted in the tables of seeds 0 to 9."
THEOREM_2 = "Theorem 2 (second-hand): equilibrium welfare rises with synergy and share, and falls with the threshold."
STUDY = Study(
    paper=Paper("MAC-SPGG (Liang et al.)", "https://arxiv.org/abs/2508.02076", 2025, checked="abstract"),
    question="Which terms of a payoff make every agent of a sequence contribute?",
    claim="With all terms, and not without, every position gives, and what is learned is the exact equilibrium; a "
    "penalty alone leaves all at nothing. Welfare rises with synergy and share and falls with the threshold.",
    arms={name: ALL.with_hparams(**changes) for name, changes in (TERMS | FURTHER).items()}
    | {f"partial/{name}": ALL.with_choice(view="partial").with_hparams(**changes) for name, changes in TERMS.items()}
    | {f"exact/{name}": arm for name, arm in FINE.items()},
    method="all",
    metrics=(*POSITIONS, "welfare", OPTIMAL, "distance"),
    predictions=(
        Higher(
            "first",
            "all",
            than="plain",
            source="paper",
            where="abstract: with the redesigned reward effortful contributions are the unique equilibrium, which "
            "eliminates free-riding under the traditional game",
        ),
        AtMost("quality", "penalty", 0.5, source="pilot", where=PICTURE),
        *(AtMost("distance", name, 0.2, source="pilot", where=PICTURE) for name in ("all", "partial/all")),
        Higher("quality", "all", than="synergy", source="pilot", where=PICTURE),
        AtLeast("first", "exact/all", 0.1, source="paper", where=THEOREM_1),
        *(
            kind("welfare", f"{exact}{name}", than=f"{exact}all", source="paper", where=THEOREM_2)
            for exact in ("", "exact/")
            for kind, names in ((Higher, RAISE), (Lower, ("threshold_7",)))
            for name in names
        ),
    ),
    checks=(AtMost("quality", "plain", 0.5),),
)
