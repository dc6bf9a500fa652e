"""Which estimator learns long tasks, and how much of a budget should be imitation? A guide's estimators, in rooms.

One seat looks for things in rooms in a row and takes some of them in an order (`Rooms`). `SIZE/ESTIMATOR`, from
scratch, paid for the last thing alone:

  short   3 rooms, 3 things, 2 wanted, 12 turns        long  5 rooms, 4 things, 3 wanted, 20 turns
  ppo     GAE from turn to turn (lambda 0.95) with a value head, and the clip
  grpo    the episode less the mean of its group over their deviation, and the clip
  rloo    the episode less the mean of the others of its group

`imitate_25`, `_50`, `_75`: long/ppo, where that share of the 160 batches of 64 games is imitated first, of an explorer
that errs in every third turn; `imitate_100` then learns nothing more. All arms use as many games.

  python -m experiments policies --seeds 10

Paper: A Practitioner's Guide to Multi-turn Agentic RL (Wang & Ammanabrolu) 2025, https://arxiv.org/abs/2510.01132,
whose policies are pretrained, and whose demonstrations are right but few.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from jaxmarl_llm.environments.noisy import Errs, Noisy
from jaxmarl_llm.environments.rooms import Rooms
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.studies.curves import mean_over_updates
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.training.fresh_games import in_fresh_games
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe, component_returns, estimator

BATCHES, EPISODE = 160, (0.0, 1.0)  # components: points, won


def by_turn(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    won, acted = experience.episodes.reward[..., 1], experience.episodes.acted
    return Advantages(*returns.gae(won, experience.turn_value, acted, lam=0.95))


ESTIMATORS: dict[str, dict[str, Any]] = {
    "ppo": {"advantage": by_turn, "critic": True},
    "grpo": {"advantage": estimator(advantages.grpo, components=EPISODE)},
    "rloo": {"advantage": estimator(advantages.rloo, components=EPISODE)},
}
TEACHER = Errs("learning", "explorer", 0.67)
SIZES = {"short": Rooms(3, 3, 2, 12), "long": Rooms(5, 4, 3, 20)}


SHORT_PPO = Recipe(
    Noisy(SIZES["short"], (TEACHER,)),
    seats=(("learner",),),
    hparams={"learning_rate": 3e-3, "value": 0.1},
    budget=1,
    updates=BATCHES,
    groups=8,
    group_size=8,
    measure=partial(component_returns, won=1),
    evaluate=partial(in_fresh_games, measure=partial(component_returns, success=1)),
    eval_every=BATCHES,
    pretrained={"budget": 4},
    **ESTIMATORS["ppo"],
)


def trained(size: str, **own: Any) -> Recipe:
    return dataclasses.replace(SHORT_PPO, game=Noisy(SIZES[size], (TEACHER,)), **own)


def imitating(percent: int) -> Recipe:
    """PPO after `percent` of the batches were imitated."""
    taught = BATCHES * percent // 100
    how = {"warm_start": ((TEACHER.name,),), "warm_start_updates": taught, "updates": BATCHES - taught or 1}
    arm = trained("long", **how)
    return arm if taught < BATCHES else arm.with_hparams(learning_rate=0.0)


SUCCESS, SPEED = "success", "over all"
STUDY = Study(
    paper=Paper(
        "A Practitioner's Guide to Multi-turn Agentic RL (Wang & Ammanabrolu)",
        "https://arxiv.org/abs/2510.01132",
        2025,
        checked="abstract",
    ),
    question="Which estimator learns long tasks, and how much of a budget should be imitation?",
    claim="PPO and GRPO lead RLOO, more so in the longer task; some imitation is better than none, or nothing else.",
    arms={f"{size}/{name}": trained(size, **own) for size in SIZES for name, own in ESTIMATORS.items()}
    | {f"imitate_{percent}": imitating(percent) for percent in (25, 50, 75, 100)},
    method="long/ppo",
    metrics=(SUCCESS, SPEED),
    predictions=(
        *(Higher(SUCCESS, f"long/{name}", than="long/rloo") for name in ("ppo", "grpo")),
        *(Higher(SUCCESS, f"imitate_{percent}", than="long/ppo") for percent in (25, 50)),
        *(Higher(SUCCESS, f"imitate_{percent}", than="imitate_100") for percent in (25, 50, 75)),
        Higher(SUCCESS, "imitate_50", than="imitate_75"),
    ),
    derived={SPEED: partial(mean_over_updates, of="won")},
)
