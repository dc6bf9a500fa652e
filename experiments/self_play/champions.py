"""Which opponents make self-play robust: itself, the latest champion, all past champions, or a fixed one?

One policy learns Kuhn poker in both seats for 300 updates of 256 games. Every tenth update saves it as a champion. It
plays against

  self         itself; this arm learns from both seats, the others from one
  latest       the last champion
  recent       one of the last five champions, drawn for each update
  all          one of all past champions, drawn for each update: Digital Red Queen's full history
  random       a script that passes or bets with probability 1/2
  equilibrium  a script that plays a Nash equilibrium

The untrained policy is the first champion, so `all` ends with it and 29 others. All metrics are exact:

  nash_conv                sum over seats of the chips that a best response wins more than the policy
  NashConv of the average  nash_conv of the average of all champions
  relapse                  largest rise of nash_conv above an earlier value
  cycles                   share of cyclic triples (A beats B beats C beats A) among decided triples of champions; a
                           triple is decided if each of its three matches is won by more than 0.01 chips
  general                  share of 256 random pure strategies that do not win against the policy, over both seats; no
                           arm trains against them

  python -m experiments champions --seeds 10

Papers: Digital Red Queen (Kumar et al.) 2026, https://arxiv.org/abs/2601.03335. Each of its rounds searches a new
program, which meets all past champions in one battle. Here one policy keeps learning and meets one champion an update.
SPIRAL (Liu et al.) 2025, https://arxiv.org/abs/2506.24119, which compares fixed opponents with self-play.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations

import numpy as np

from experiments.self_play.exploitability import AVERAGE, GAME, RLOO
from experiments.self_play.spiral import RELAPSE
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.past_policies import of_average, of_policies, record, tree_of
from jaxmarl_llm.studies.curves import largest_rise
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import SNAPSHOT, Recipe
from jaxmarl_llm.training.records import Snapshots

UPDATES, EVERY, OPPONENTS, EDGE = 300, 10, 256, 0.01
CYCLES, GENERAL, FIXED = "cycles", "general", ("random", "equilibrium")


def meet(policy: np.ndarray, other: np.ndarray) -> float:
    """Mean chips per game that a policy wins from another, over both seats; policies [information sets, actions]."""
    owner = tree_of(GAME).owner[:, None]
    won = (solve.expected_value(tree_of(GAME), np.where(owner == seat, policy, other))[seat] for seat in range(2))
    return sum(map(float, won)) / 2


@cache
def pure() -> np.ndarray:
    """Random pure strategies [OPPONENTS, information sets, actions]."""
    sets, actions = tree_of(GAME).legal.shape
    return np.eye(actions)[np.random.default_rng(0).integers(actions, size=(OPPONENTS, sets))]


def share_of_cycles(champions: Sequence[np.ndarray]) -> float:
    """Share of cyclic triples among those whose three matches are all decided; NaN without a decided triple."""
    won = {pair: meet(champions[pair[0]], champions[pair[1]]) for pair in combinations(range(len(champions)), 2)}
    cyclic = [
        (won[a, b] > 0) == (won[b, c] > 0) != (won[a, c] > 0)
        for a, b, c in combinations(range(len(champions)), 3)
        if min(abs(won[a, b]), abs(won[b, c]), abs(won[a, c])) > EDGE
    ]
    return float(np.mean(cyclic)) if cyclic else np.nan


def general(champions: Sequence[np.ndarray]) -> float:
    """Share of the pure strategies that the last champion does not lose to."""
    return float(np.mean([meet(champions[-1], other) > -1e-9 for other in pure()]))


SELF = replace(RLOO, groups=32, group_size=8, updates=UPDATES, evaluate=record, eval_every=EVERY)
ME = "learner"


def against(other: str, snapshots: Snapshots | None = None) -> Recipe:
    # a pretrained model keeps no snapshots, so it plays itself
    pretrained = SELF.pretrained if snapshots is None else {**SELF.pretrained, "seats": SELF.seats}
    return replace(SELF, seats=((ME, other), (other, ME)), snapshots=snapshots, pretrained=pretrained)


ARMS = {
    "self": SELF,
    "latest": against(f"{SNAPSHOT}/{ME}", Snapshots(1, EVERY)),
    "recent": against(f"{SNAPSHOT}/{ME}", Snapshots(5, EVERY)),
    "all": against(f"{SNAPSHOT}/{ME}", Snapshots(UPDATES // EVERY, EVERY)),
    "random": against("random"),
    "equilibrium": against("equilibrium"),
}
PILOT = "Seeds 100 to 102, half of the updates: this sign was seen."
STUDY = Study(
    paper=Paper("Digital Red Queen (Kumar et al.)", "https://arxiv.org/abs/2601.03335", 2026, checked="release"),
    question="Whom should self-play meet: itself, its latest champion, all former ones, or a fixed opponent?",
    claim="Against all former champions a policy goes round in circles less and is more general than against the "
    "latest; against a fixed opponent it stays exploitable, and so does the average of what it was.",
    arms=ARMS,
    method="all",
    metrics=("nash_conv", AVERAGE, RELAPSE, CYCLES, GENERAL),
    predictions=(
        *(Lower(CYCLES, "all", than=other, source="pilot", where=PILOT) for other in ("latest", "self")),
        *(Lower(metric, "all", than="latest", source="pilot", where=PILOT) for metric in (RELAPSE, "nash_conv")),
        Higher(GENERAL, "all", than="latest", source="pilot", where=PILOT),
        *(Lower("nash_conv", "all", than=fixed, source="pilot", where=PILOT) for fixed in FIXED),
        *(Lower(AVERAGE, "self", than=fixed, source="pilot", where=PILOT) for fixed in FIXED),
        *(
            Higher(
                GENERAL,
                "self",
                than=fixed,
                source="paper",
                where="SPIRAL, Section 4.1 and Figure 5: self-play is above training against fixed opponents in the "
                "evaluation by games.",
            )
            for fixed in FIXED
        ),
    ),
    derived={
        AVERAGE: partial(of_average, game=GAME),
        RELAPSE: partial(largest_rise, metric="nash_conv"),
        CYCLES: partial(of_policies, share_of_cycles, game=GAME),
        GENERAL: partial(of_policies, general, game=GAME),
    },
)
