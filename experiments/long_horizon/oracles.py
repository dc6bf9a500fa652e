"""What does a player of long games lack, the plan or the state? LUMINA's oracles, told to policies while they learn.

Two games, each without an oracle and with one of two. An oracle speaks before each answer:

  plan   the answer of a player who knows everything
  state  the hidden state: the room of each thing, or the player's place in the maze

Games:

  rooms  three rooms in a row and three things, two of which are to be taken in an order, ten turns; 1 point at the end
  maze   16 open cells and the goal, 12 steps; the player is told only the open ways; 1 point at the goal

Each arm trains its own policy from random weights, for 150 updates of 32 games. The advantage is the return-to-go minus
that of the group's other games. `solved` is the share of games that end with the point, at the end of training. `over
all` is its mean over all updates.

  python -m experiments oracles --seeds 10

Paper: LUMINA (Rakhsha et al.) 2026, https://arxiv.org/abs/2601.16649. There the oracles speak to pretrained models,
without training.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from jaxmarl_llm.environments.around.oracle import Oracle
from jaxmarl_llm.environments.solo.maze import Maze
from jaxmarl_llm.environments.solo.rooms import Rooms
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.studies.curves import mean_over_updates
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe, component_returns

OVER_ALL = "over all"
ROOMS = Recipe(
    Rooms(),
    seats=(("learner",),),
    advantage=estimator(advantages.round_leave_one_out, hparams=("gamma",)),
    hparams={"learning_rate": 3e-3, "gamma": 0.95},
    budget=1,
    updates=150,
    groups=4,
    group_size=8,
    measure=partial(component_returns, solved=0),
    pretrained={"budget": 4},
)
MAZE = dataclasses.replace(ROOMS, game=Maze(turns=12, cost=0.0, sees="walls"))
ARMS = {"rooms": ROOMS, "maze": MAZE}
SIGN = "seeds 100 to 102: the same sign in a run of the same setting"
STUDY = Study(
    paper=Paper("LUMINA (Rakhsha et al.)", "https://arxiv.org/abs/2601.16649", 2026, checked="abstract"),
    question="What does a player of long games lack, the plan or the state?",
    claim="A plan helps in both games, and more than the state, which helps in the maze and hinders in the rooms.",
    arms=ARMS
    | {
        f"{name}/{tells}": dataclasses.replace(arm, game=Oracle(arm.game, tells))
        for name, arm in ARMS.items()
        for tells in ("plan", "state")
    },
    method="rooms/plan",
    metrics=("solved", OVER_ALL),
    predictions=(
        Higher(OVER_ALL, "maze/state", than="maze", source="pilot", where=f"{SIGN}; the walker lacks only its place"),
        Lower(OVER_ALL, "rooms/state", than="rooms", source="pilot", where=f"{SIGN}; the abstract states no sign"),
    ),
    checks=tuple(Higher(OVER_ALL, f"{name}/plan", than=other) for name in ARMS for other in (name, f"{name}/state")),
    x="update of 32 games",
    derived={OVER_ALL: partial(mean_over_updates, metric="solved")},
)
