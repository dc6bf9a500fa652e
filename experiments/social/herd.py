"""Does a planner that sets the quality of others' information steer them, for their benefit or for its own?

Four followers choose one of two doors, one after another; the prize is behind either door with probability 1/2. A
follower sees all earlier hints and choices, and its own hint. The planner buys each hint. A useless hint costs 0
points, a weak one (true with probability 2/3) 0.05, and a strong one (4/5) 0.15. The planner sees public information
only. It is a tiny policy trained by REINFORCE, and the baseline is the mean of the other games. Followers are Bayesian.

  altruistic  a learning planner; it earns 1 for each follower that chooses the prize's door, less costs
  biased      it earns 1 for each follower that chooses the red door, less costs
  exact/...   no learning: the optimal planner for Bayesian followers, by dynamic programming
  fixed/...   no planner: all hints are of one kind, at the same price

Metrics:

  right, red  followers that choose the prize's door; the red door
  welfare     right less costs
  value       the planner's return
  optimum     the exact maximum of value
  regret      loss of the planner's sampled choices against the optimum, over the last tenth of updates; exact except
              for the choice of games that were played

  python -m experiments herd --seeds 10

The results of the exact arms were known when the predictions were written.

Paper: Steering the Herd (Arghal et al.) 2025, https://arxiv.org/abs/2504.02648, with continuous precision and an
infinite horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import optax

from jaxmarl_llm.environments.social.herd import ALTRUISTIC, BIASED, Aim, Herd
from jaxmarl_llm.evaluation.exact import steering
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

GAME, UPDATES = Herd(followers=4), 120


def aim_of(hparams: Mapping) -> Aim:
    return Aim(hparams["right"], hparams["wanted"])


def arrange(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """The arm's aim as a deal: it is traced, so arms share a program."""
    return Arranged(deal=aim_of(hparams))


def at_prior(value: jax.Array) -> jax.Array:
    """The value at the first turn, when both doors are equally likely."""
    return value[steering.place(GAME, jnp.int32(GAME.prior))]


def choices(episodes: Episodes) -> tuple[jax.Array, jax.Array]:
    """(levels bought, doors opened), int32 [B, followers] each."""
    return episodes.action[:, ::2, 0], episodes.action[:, 1::2, 1:].sum(2)  # a seat that does not act has action 0


def beside_optimum(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Returns-to-go less those of the other games in the same turn; as metrics, the exact optimum and regret."""
    episodes, best = experience.episodes, steering.plan(GAME, aim_of(hparams))
    lost = steering.regret(GAME, best, *choices(episodes)).sum(1).mean()
    advantage = advantages.round_leave_one_out(episodes.total_reward, *experience.learning_acts)
    return Advantages(advantage, metrics={"optimum": at_prior(best.value[0]), "regret": lost})


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """Metrics of the followers and the planner; value is the planner's return."""

    def of_paid(paid: jax.Array) -> dict[str, jax.Array]:  # [A, C]
        right, cost = paid[1:, 0].sum(), -paid[0, 2]
        return {"right": right, "cost": cost, "welfare": right - cost, "value": paid[0].sum()}

    red = mean_of_kept(episodes, (choices(episodes)[1] == 0).sum(1))
    return mean_of_kept(episodes, episodes.reward.sum(1), axis=0, then=of_paid) | {"red": red}


def exact(key: jax.Array, hparams: Mapping[str, jax.Array], *, level: int | None = None) -> dict[str, jax.Array]:
    """Metrics of the optimal planner, or of one that always buys `level`."""
    best = steering.plan(GAME, aim_of(hparams))
    results = steering.outcome(GAME, best.q.argmax(-1) if level is None else jnp.full(best.q.shape[:2], level))
    welfare, value = results["right"] - results["cost"], at_prior(best.value[0])
    known = {"value": value, "optimum": value, "regret": jnp.float32(0)} if level is None else {}
    return results | known | {"welfare": welfare}


LEARNS = Recipe(
    GAME,
    seats=(("planner", *["bayesian"] * GAME.followers),),
    advantage=beside_optimum,
    arrange=arrange,
    hparams={
        **ALTRUISTIC._asdict(),
        "learning_rate": optax.linear_schedule(3e-3, 0.0, UPDATES),
        "entropy": optax.linear_schedule(0.05, 0.0, UPDATES),
    },
    budget=1,
    updates=UPDATES,
    groups=8,
    group_size=8,
    measure=measure,
    pretrained={"budget": 4},
)
AIMS = {"altruistic": ALTRUISTIC, "biased": BIASED}
SHIFT = "Abstract: information mediation can 'substantially shift social welfare in either direction'."
STUDY = Study(
    paper=Paper("Steering the Herd (Arghal et al.)", "https://arxiv.org/abs/2504.02648", 2025, checked="abstract"),
    question="Can a planner that chooses how good others' information is steer them?",
    claim="An altruistic planner brings followers more than hints of any one precision, a biased one less than weak "
    "hints and more of them to its door; what is learned is near the exact optimum.",
    arms={name: LEARNS.with_hparams(**aim._asdict()) for name, aim in AIMS.items()}
    | {f"exact/{name}": Computed(exact, aim._asdict()) for name, aim in AIMS.items()}
    | {f"fixed/{name}": Computed(partial(exact, level=i), ALTRUISTIC._asdict()) for i, name in enumerate(GAME.levels)},
    method="altruistic",
    metrics=("welfare", "right", "red", "cost", "value", "optimum", "regret"),
    predictions=(
        Higher(
            "welfare",
            "altruistic",
            than="fixed/weak",
            source="paper",
            where=f"{SHIFT} Weak hints stand for its baseline precision.",
        ),
        Higher(
            "right",
            "altruistic",
            than="fixed/weak",
            source="paper",
            where=f"{SHIFT} Followers' welfare without the planner's costs; weak hints are the baseline.",
        ),
        Higher(
            "welfare",
            "altruistic",
            than="fixed/strong",
            source="theory",
            where="The planner maximises this metric; its optimum, 3.05, is above every constant choice, at most 2.79.",
        ),
        Lower(
            "right",
            "biased",
            than="fixed/weak",
            source="paper",
            where=f"{SHIFT} 'In some regimes' the biased planner obfuscates signals.",
        ),
        Lower(
            "welfare",
            "biased",
            than="fixed/strong",
            source="theory",
            where="The exact biased optimum has a welfare of 2.61, strong hints 2.79: it buys few hints.",
        ),
        Higher(
            "red",
            "biased",
            than="fixed/weak",
            source="theory",
            where="The planner maximises red less costs; constant hints give 2 by symmetry.",
        ),
        *(
            AtMost(
                "regret",
                aim,
                0.15,
                source="pilot",
                where="Seeds 100 to 102; the bound was moved from 0.1 (f852020) to 0.15 (832383c) before the table.",
            )
            for aim in ("altruistic", "biased")
        ),
    ),
    checks=(Higher("welfare", "altruistic", than="fixed/useless"),),
)
