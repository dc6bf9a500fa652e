"""Does a learner extort a frozen player that adapts, and do two extortioners learn to cooperate?

Game and learners are those of `co_players`: the donation game, and tables over a memory of the other player. Training
has three steps:

  step_1              two learners train against tabular players only and learn to adapt to them
  step_2/adaptive     a fresh learner trains against a frozen learner of step 1 and becomes an extortioner
  step_2/naive        it trains against a frozen learner that trained with another learner only
  step_2/tit_for_tat  it trains against tit-for-tat
  step_3/NAME         two learners train with each other: `extortioners` from step_2/adaptive, `adaptive` ones from
                      step_1, `of_naive` from step_2/naive, or `fresh` ones
  long/...            closer to the paper: tabular players with uniform probabilities instead of coin flips, 100 rounds
                      instead of 20, discount 0.99 instead of 0.9; the learning rate is 0.3 instead of 1

Metrics:

  cooperation    of both players; in step 1 of the two learners with each other
  rise           cooperation in the last third of the rounds less the first third
  climb          cooperation in the last tenth of the updates less the first update
  points, other  points a round of the learner and of its opponent
  lead           points less other; in step 3 its absolute value
  share          points / (points + other), if the sum exceeds 0.1
  distance       the exact best response's points less the learner's
  best share     share of that best response
  defection      exact points of always-defect against the frozen player

  python -m experiments extortion --seeds 10    # three minutes on two cores

Paper: Multi-agent cooperation through in-context co-player inference 2026, https://arxiv.org/abs/2602.16301.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.social.co_players import BASE, PAYOFF
from jaxmarl_llm.environments.around.opponents import MEMORY_ONE
from jaxmarl_llm.environments.social.matrix_games import COOPERATE
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study
from jaxmarl_llm.tabular import remembering as tables
from jaxmarl_llm.tabular.repeated_games import best_response

UPDATES, TAIL, GAMES, LEAST = 240, 24, 128, 0.1
# the opponent of a fresh learner: the learner's name in step 3
STEP_2 = {"adaptive": "extortioners", "naive": "of_naive"}
APART, TOGETHER, TABULAR = ((2, 0), (3, 1)), ((0, 1),), ((0, -1), (1, -1))  # the tables in the two seats; -1: tabular
TIT_FOR_TAT = MEMORY_ONE["tit_for_tat"]


def cooperation(action: jax.Array) -> dict[str, jax.Array]:
    """Cooperation in games with actions [G, T, 2], and its rise within a game."""
    kind, third = (action == COOPERATE).astype(jnp.float32), action.shape[1] // 3
    return {"cooperation": kind.mean(), "rise": kind[:, -third:].mean() - kind[:, :third].mean()}


def measure(played: tables.Played) -> dict[str, jax.Array]:
    """Metrics of the learner in the first seat."""
    points, other = played.reward.mean((0, 1))
    return cooperation(played.action) | {"points": points, "other": other, "lead": points - other}


def exactly(curves: dict[str, jax.Array], frozen: jax.Array, rounds: int) -> dict[str, jax.Array]:
    """The curves of step 2 with exact results against the frozen tables, logits [n, memories, situations]."""
    earn = lambda x, chances=None: tables.exact_earnings(x, jnp.array(PAYOFF), rounds, chances) / rounds
    best, defection = jax.vmap(earn)(frozen).mean(0), jax.vmap(partial(earn, chances=jnp.zeros(5)))(frozen).mean(0)
    points, other = (curves[name][-TAIL:].mean() for name in ("points", "other"))
    share = lambda points, other: jnp.where(points + other > LEAST, points / (points + other), jnp.nan)
    shares = {"share": share(points, other), "best share": share(*best)}
    return curves | shares | {"distance": best[0] - points, "defection": defection[0]}


def steps(key: jax.Array, hparams: Mapping[str, jax.Array], *, rounds: int) -> dict[str, Any]:
    """Runs the three steps for one seed: {arm: curves}."""
    payoff, draw = jnp.array(PAYOFF), partial(tables.draw_chances, coins=hparams["coins"])
    numbers: Any = {x: hparams[x] for x in ("rate", "entropy", "gamma")} | {"updates": UPDATES, "rounds": rounds}
    keys = iter(jax.random.split(key, 10))

    def first(learners: bool) -> tuple[tables.Tables, dict]:
        """(tables of two trained learners, curves of their training).

        With `learners` they learn from games with each other, otherwise from games with tabular players.
        """
        whom = {"from_pairs": jnp.bool_(learners), "from_others": jnp.bool_(not learners), "told": jnp.bool_(False)}
        seen = lambda action, points: cooperation(action) | {"points": points.mean()}
        both, curves = tables.train(next(keys), draw, payoff, seen, pairs=GAMES, **whom, **numbers)
        return jax.tree.map(lambda x: x[:, :1], both), curves

    def train_on(start: tables.Tables, seats: Sequence[tuple[int, int]], frozen: int = 0) -> tuple[tables.Tables, dict]:
        """Tables and curves after training in these seats; the first `frozen` tables do not learn."""
        games = tables.line_ups(seats, GAMES, TIT_FOR_TAT)
        meet = lambda key: (games, games.learner >= frozen)
        return tables.improve(next(keys), start, meet, payoff, measure, **numbers)

    adaptive, curves = first(False)
    best = jax.vmap(lambda player: best_response(payoff[..., 0], player, rounds).value)(
        draw(next(keys), 4 * GAMES)
    ).mean()
    results = {"step_1": curves | {"distance": best / rounds - curves["points"][-TAIL:].mean()}}
    frozen, starts = {"adaptive": adaptive, "naive": first(True)[0]}, {"fresh": tables.fresh(2), "adaptive": adaptive}
    for name, name_after in STEP_2.items():
        four, curves = train_on(jax.tree.map(lambda *x: jnp.concatenate(x), frozen[name], tables.fresh(2)), APART, 2)
        starts[name_after] = jax.tree.map(lambda x: x[2:], four)
        results[f"step_2/{name}"] = exactly(curves, frozen[name].logit[:, 0], rounds)
    answers = jnp.broadcast_to(60 * (jnp.array([[TIT_FOR_TAT]]) - 0.5), (1, tables.MEMORIES, tables.SITUATIONS))
    results["step_2/tit_for_tat"] = exactly(train_on(tables.fresh(2), TABULAR)[1], answers, rounds)
    for name, pair in starts.items():
        curves = train_on(pair, TOGETHER)[1]
        results[f"step_3/{name}"] = curves | {"lead": jnp.abs(curves["lead"])}
    return results


STEP_3 = ("extortioners", "adaptive", "of_naive", "fresh")
ARMS = ("step_1", "step_2/adaptive", "step_2/naive", "step_2/tit_for_tat", *(f"step_3/{x}" for x in STEP_3))
SHORT = {name: BASE[name] for name in ("coins", "gamma", "rate", "entropy")}
LONG = {**SHORT, "coins": 0.0, "gamma": 0.99, "rate": 0.3}
SETTINGS = {"": (partial(steps, rounds=20), SHORT), "long/": (partial(steps, rounds=100), LONG)}
CHOSEN = (
    "seeds 100 to 107: the setting of `co_players`, chosen because cooperation showed in it, with 240 updates for 120"
)
RATE = "seeds 100 to 107: the rate 0.3 was chosen because the direction showed; with 1, extortioners 60%, fresh 73%"
SHARES = "seeds 100 to 107: the learner's share was 127% to 188% in all settings tried"
STUDY = Study(
    paper=Paper("Co-player inference", "https://arxiv.org/abs/2602.16301", 2026, checked="paper"),
    question="Does a learner extort a frozen player that adapts, and do two extortioners learn to cooperate?",
    claim="A learner takes more than half of what it and a frozen player that adapts earn together, but not of a naive "
    "one or tit-for-tat. Two extortioners come to cooperate, more than fresh learners, or those who met naive ones.",
    arms={
        at + arm: Computed(compute, numbers, UPDATES, arm)
        for at, (compute, numbers) in SETTINGS.items()
        for arm in ARMS
    },
    method="step_3/extortioners",
    metrics=("cooperation", "rise", "climb", "points", "other", "lead", "share", "best share", "distance", "defection"),
    derived={"climb": lambda curves: curves["cooperation"][:, -TAIL:].mean(1) - curves["cooperation"][:, 0]},
    predictions=(
        *(
            AtMost(
                "distance",
                f"{at}step_1",
                0.15,
                source="theory",
                where="tables that learn from tabular players come near their best response; otherwise step 2 has no "
                "player that adapts",
                condition=True,
            )
            for at in SETTINGS
        ),
        AtLeast(
            "lead",
            "long/step_2/adaptive",
            0.0,
            source="paper",
            where="Section 3.2, Step 2, Figure 2 C-D: the RL agent achieves a higher share of the reward by exploiting "
            "its opponent's adaptation",
        ),
        AtLeast(
            "climb",
            "long/step_3/extortioners",
            0.0,
            source="paper",
            where="Section 3.2, Step 3, Figure 2 E: parameter updates drive two extortion policies towards cooperative "
            "behaviour",
        ),
        AtLeast(
            "rise",
            "long/step_3/extortioners",
            0.0,
            source="paper",
            where="Section 3.2, Step 3, Figure 2 F: within an episode extortion policies shape each other into more "
            "cooperative behaviour",
        ),
        Higher(
            "cooperation",
            "long/step_3/extortioners",
            than="long/step_3/adaptive",
            source="paper",
            where="Section 3.2, Step 3: 'Mutual extortion drives cooperation'; the control, players that only adapted, "
            "is ours",
        ),
        *(
            Higher("cooperation", "long/step_3/extortioners", than=f"long/step_3/{x}", source="pilot", where=RATE)
            for x in ("fresh", "of_naive")
        ),
        *(
            Higher("lead", f"{at}step_2/adaptive", than=f"{at}step_2/naive", source="pilot", where=SHARES)
            for at in SETTINGS
        ),
        *(
            Higher(
                "lead",
                f"{at}step_2/adaptive",
                than=f"{at}step_2/tit_for_tat",
                source="theory",
                where="tit-for-tat loses one exchange at most, 3 points a game; a larger lead needs an exploited "
                "player",
            )
            for at in SETTINGS
        ),
        AtLeast("share", "step_2/adaptive", 0.6, source="pilot", where=SHARES),
        AtLeast("climb", "step_3/extortioners", 0.3, source="pilot", where=CHOSEN),
        AtLeast("rise", "step_3/extortioners", 0.0, source="pilot", where=CHOSEN),
        *(
            Higher("cooperation", "step_3/extortioners", than=f"step_3/{x}", source="pilot", where=CHOSEN)
            for x in ("fresh", "of_naive")
        ),
    ),
    checks=tuple(AtMost("distance", f"{at}step_2/adaptive", 0.1) for at in SETTINGS),
)
