"""What learns a task of a hundred turns: a critic of turns, the mean of a group, or imitation first?

One seat walks through a winding corridor of 47 cells to the goal, up to 46 steps away, within a hundred turns, and is
paid 1 at the goal alone. It is told the ways that are open and its place. It begins in any cell, so that at first only
the nearest beginnings are solved.

  critic               PPO, GAE from turn to turn (lambda 0.95, a discount of 0.99) with a value head
  grpo                 the episode less the mean of its group, over their deviation
  reinforce_plus_plus  the discounted return from a turn on, normalised over the batch
  warm/...             the same after 20 updates of imitation of a walker who errs in half of the turns

`solved`: the share of games that end at the goal; `over all`: its mean over all updates.

  python -m experiments hundred_turns --seeds 10

Papers: Odysseus (Shi et al.) 2026, https://arxiv.org/abs/2605.00347, for the critic; WebAgent-R1 (Wei et al.) 2025,
https://arxiv.org/abs/2505.16421, for imitation first. Both train pretrained models.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from jaxmarl_llm.environments.maze import Maze
from jaxmarl_llm.environments.noisy import Errs, Noisy
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.studies.curves import mean_over_updates
from jaxmarl_llm.studies.study import Paper, Study
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe, component_returns, estimator

WINDING = ("...........", "##########.", "...........", ".##########", "...........", "##########.", "..........G")
WALKER = Errs("walker", "correct", 0.5)
GOAL, DISCOUNT, SOLVED, OVER_ALL = (1.0, 0.0), 0.99, "solved", "over all"  # components: goal, cost


def by_turn(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    goal, acted = experience.episodes.reward[..., 0], experience.episodes.acted
    return Advantages(*returns.gae(goal, experience.turn_value, acted, gamma=DISCOUNT, lam=0.95))


BASE = Recipe(
    Noisy(Maze(WINDING, turns=100, cost=0.0), (WALKER,)),
    seats=(("learner",),),
    advantage=by_turn,
    hparams={"learning_rate": 3e-3, "value": 0.1},
    critic=True,
    budget=1,
    updates=60,
    groups=4,
    group_size=4,
    measure=partial(component_returns, solved=0),
    pretrained={"budget": 4},
)
ESTIMATORS: dict[str, dict[str, Any]] = {
    "critic": {},
    "grpo": {"advantage": estimator(advantages.grpo, components=GOAL), "critic": False},
    "reinforce_plus_plus": {
        "advantage": estimator(advantages.reinforce_plus_plus, components=GOAL, gamma=DISCOUNT),
        "critic": False,
    },
}
COLD = {name: dataclasses.replace(BASE, **own) for name, own in ESTIMATORS.items()}
WARM = {
    f"warm/{name}": dataclasses.replace(arm, warm_start=((WALKER.name,),), warm_start_updates=20)
    for name, arm in COLD.items()
}
STUDY = Study(
    paper=Paper("Odysseus (Shi et al.)", "https://arxiv.org/abs/2605.00347", 2026, checked="abstract"),
    question="What learns a task of a hundred turns: a critic, the mean of a group, or imitation first?",
    claim="A critic of turns learns more than critic-free estimators; imitation first helps all of them.",
    arms=COLD | WARM,
    method="critic",
    metrics=(SOLVED, OVER_ALL),
    predictions=(),
    derived={OVER_ALL: partial(mean_over_updates, of=SOLVED)},
)
