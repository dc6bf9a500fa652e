"""Does a planner that chooses how good others' information is steer them, for their good or for its own?

Four followers open one of two doors each, one after another; a prize is behind either with probability 1/2. Each sees
which hints those before it got and which doors they opened, and has a hint of its own that a planner bought: useless,
weak (true with probability 2/3) or strong (4/5), for 0, 0.05 or 0.15 points. The planner knows no more than what all
see. Its policy is tiny, REINFORCE with the mean of the other games as a baseline; followers are Bayesian.

  altruistic, biased   a planner learns, paid 1 for each follower that opens the prize's door, or red; less costs
  exact/...            no learning: the best planner of Bayesian followers, by dynamic programming
  fixed/...            no planner: every hint is of this kind, paid for alike

`right`, `red`: followers that open the prize's door, or red. `welfare`: `right` less costs. `value`: what the planner
is paid for, `optimum`: its exact maximum. `regret`: what the planner's choices lose of it, exact but for which games
were played; in the last tenth of the updates, sampling included.

  python -m experiments herd --seeds 10

The exact arms were known when the predictions were written.

Paper: Steering the Herd (Arghal et al.) 2025, https://arxiv.org/abs/2504.02648, with continuous precision and no end.
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
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

GAME, UPDATES = Herd(followers=4), 120


def aim_of(hparams: Mapping) -> Aim:
    return Aim(hparams["right"], hparams["wanted"])


def arrange(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """The arm's aim: numbers, so that arms share a program."""
    return Arranged(deal=aim_of(hparams))


def at_prior(value: jax.Array) -> jax.Array:
    return value[steering.place(GAME, jnp.int32(GAME.prior))]


def choices(episodes: Episodes) -> tuple[jax.Array, jax.Array]:
    """The levels that were bought and the doors that were opened, int32 [B, followers]."""
    return episodes.action[:, ::2, 0], episodes.action[:, 1::2, 1:].sum(2)  # a seat that does not act has action 0


def beside_optimum(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Returns-to-go against those of the other games in the same turn, and how far the planner is from the best."""
    episodes, best = experience.episodes, steering.plan(GAME, aim_of(hparams))
    lost = steering.regret(GAME, best, *choices(episodes)).sum(1).mean()
    own = advantages.round_leave_one_out(episodes.total_reward, *experience.learning_acts)
    return Advantages(own, metrics={"optimum": at_prior(best.value[0]), "regret": lost})


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    paid, (_, opened) = episodes.reward.sum(1).mean(0), choices(episodes)  # paid [A, C]
    right, cost = paid[1:, 0].sum(), -paid[0, 2]
    red = (opened == 0).sum(1).mean()
    return {"right": right, "red": red, "cost": cost, "welfare": right - cost, "value": paid[0].sum()}


def exact(key: jax.Array, hparams: Mapping[str, jax.Array], *, level: int | None = None) -> dict[str, jax.Array]:
    """The best planner, or one that buys the same level always."""
    best = steering.plan(GAME, aim_of(hparams))
    found = steering.outcome(GAME, best.q.argmax(-1) if level is None else jnp.full(best.q.shape[:2], level))
    welfare, value = found["right"] - found["cost"], at_prior(best.value[0])
    known = {"value": value, "optimum": value, "regret": jnp.float32(0)} if level is None else {}
    return found | known | {"welfare": welfare}


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
        *(Higher("welfare", "altruistic", than=f"fixed/{name}") for name in GAME.levels),
        Lower("right", "biased", than="fixed/weak"),
        Lower("welfare", "biased", than="fixed/strong"),
        Higher("red", "biased", than="fixed/weak"),
        AtMost("regret", "altruistic", 0.15),
        AtMost("regret", "biased", 0.15),
    ),
)
