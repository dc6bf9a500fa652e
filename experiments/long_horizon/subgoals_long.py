"""Does credit for subgoals on a time scale of their own pay in long games? HiPER, where games last up to 12 turns.

The study `subgoals` has games of six turns, too short for the paper's claim. Here three things lie in three rooms and
are to be taken in a given order within 12 turns; the last one pays a point. In each turn the seat keeps its subgoal,
which costs 0.03 points, or switches, names the subgoal, and acts. The critic is the table of `subgoals`, which learns
for ten updates before the policies do, for 40. They imitate the same player, for twice as long.

  hae             HiPER: GAE within a segment for acts, over segments for subgoals, the return to the segment's end for
                  keep and switch; each normalised over its own words
  flat            GAE over all words that were a choice, normalised
  group           the game's return minus the mean of the group's other games, normalised
  hae/no_penalty  as hae, and keeping is free

  over all  mean over all updates of `won`, the share of games won
  rise      `won` at the end minus its mean over the first 10 updates
  turns     turns of a game
  switches  share of turns after the first that switch; `one-sided` is twice its distance from 1/2
  right     share of turns under the right subgoal

`subgoals_exact` has bias and noise of these gradients.

  python -m experiments subgoals_long --seeds 20

Paper: HiPER (Peng et al.) 2026, https://arxiv.org/abs/2602.16165. There a pretrained model says a turn in one text.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from experiments.long_horizon.subgoals import HAE, OVER_ALL, RISE, TAUGHT
from jaxmarl_llm.environments.around.subgoals import Subgoals, by_level
from jaxmarl_llm.environments.solo.rooms import Rooms
from jaxmarl_llm.rl import value_table
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import last_mean, mean_over_updates, rise_since
from jaxmarl_llm.studies.study import AtLeast, Higher, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept

SIDED = "one-sided"


def table(parts: Any, key: jax.Array) -> value_table.ValueTable:
    return value_table.empty(GAME.turns, 2 * ROOMS.situations)


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    turns = by_level(episodes.acted)[2].sum((1, 2))
    return HAE.measure(episodes) | {"turns": mean_of_kept(episodes, turns)}


def one_sidedness(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    return 2 * np.abs(last_mean(curves, metric="switches") - 0.5)


ROOMS = Rooms(3, 3, 3, budget=12, reminds=True)
GAME = Subgoals(ROOMS, penalty=0.03)
LONG = replace(
    HAE,
    game=GAME,
    init_state=table,
    warm_start_updates=150,
    updates=TAUGHT + 40,
    measure=measure,
)
OURS = "The level is ours: credit shows only in a policy that learns."
TURNS = "The paper's gain is in long games; those of the study subgoals last six turns at most."
BEST = 'abstract: "+6.6% and +8.3% over the best prior method", "with especially large gains on long-horizon tasks"'
REDUCES = "abstract: HAE provably reduces variance compared to flat generalized advantage estimation"
SWITCHING = "second-hand: notes on the paper say that switching degenerates without penalties"
STUDY = Study(
    paper=Paper("HiPER (Peng et al.)", "https://arxiv.org/abs/2602.16165", 2026, checked="release"),
    question="Does credit for subgoals on a time scale of their own pay in long games?",
    claim="Credit by segments wins more of a long game meanwhile than the group's returns and than GAE over all words.",
    arms={
        "hae": LONG,
        "flat": LONG.with_choice(credit="flat"),
        "group": LONG.with_choice(credit="group"),
        "hae/no_penalty": replace(LONG, game=replace(GAME, penalty=0.0)),
    },
    method="hae",
    metrics=(OVER_ALL, "won", RISE, "turns", "switches", SIDED, "right"),
    predictions=(
        Higher(OVER_ALL, "hae", than="group", source="paper", where=BEST),
        Higher(OVER_ALL, "hae", than="flat", source="paper", where=REDUCES),
        AtLeast(RISE, "flat", 0.05, source="theory", where=OURS, condition=True),
        AtLeast("turns", "flat", 6, source="theory", where=TURNS, condition=True),
        Higher(SIDED, "hae/no_penalty", than="hae", source="theory", where=SWITCHING),
    ),
    x="update of 16 games",
    derived={
        OVER_ALL: partial(mean_over_updates, metric="won"),
        RISE: partial(rise_since, metric="won", first=TAUGHT),
        SIDED: one_sidedness,
    },
)
