"""Does a learner extort a frozen player that adapts, and do two such extortioners learn to cooperate?

The donation game of `co_players`, and its learners: tables over what they remember of the other. Three steps:

  step_1              two learners meet tabular players only, and learn to adapt to them
  step_2/adaptive     a fresh learner meets a frozen one of step 1: it becomes an extortioner
  step_2/naive        it meets a frozen one that was trained with another learner only
  step_2/tit_for_tat  it meets tit-for-tat
  step_3/NAME         two learn from games with each other: `extortioners` of step_2/adaptive, `adaptive` ones of
                      step_1, `of_naive`, those of step_2/naive, or `fresh` ones
  long/...            nearer to the paper: tabular players of uniform chances in place of coins, 100 rounds in place of
                      20, a discount of 0.99 in place of 0.9; and a rate of 0.3 in place of 1

`cooperation` of both, in step 1 of the two with each other; `rise`: of it, last third of the rounds less the first;
`climb`: of it, last tenth of the updates less the first update. `points`, `other`: a round, of the learner and of whom
it meets; `lead`: their difference, in step 3 its size; `share`: points of the sum of both, if above 0.1. `distance` to
the exact best response, and the `best share` of that; `defection`: what always-defect earns of the frozen one, exactly.

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
STEP_2 = {"adaptive": "extortioners", "naive": "of_naive"}  # whom a fresh learner meets: what it is then
APART, TOGETHER, TABULAR = ((2, 0), (3, 1)), ((0, 1),), ((0, -1), (1, -1))  # who meets whom
TIT_FOR_TAT = MEMORY_ONE["tit_for_tat"]


def cooperation(action: jax.Array) -> dict[str, jax.Array]:  # of actions [G, T, 2]
    kind, third = (action == COOPERATE).astype(jnp.float32), action.shape[1] // 3
    return {"cooperation": kind.mean(), "rise": kind[:, -third:].mean() - kind[:, :third].mean()}


def measure(played: tables.Played) -> dict[str, jax.Array]:
    points, other = played.reward.mean((0, 1))
    return cooperation(played.action) | {"points": points, "other": other, "lead": points - other}


def exactly(curves: dict[str, jax.Array], frozen: jax.Array, rounds: int) -> dict[str, jax.Array]:
    """Curves of step 2 and what could be had of the frozen tables, logits [n, memories, situations]."""
    of = lambda x, chances=None: tables.exact_earnings(x, jnp.array(PAYOFF), rounds, chances) / rounds
    best, defection = jax.vmap(of)(frozen).mean(0), jax.vmap(partial(of, chances=jnp.zeros(5)))(frozen).mean(0)
    own, other = (curves[name][-TAIL:].mean() for name in ("points", "other"))
    share = lambda own, other: jnp.where(own + other > LEAST, own / (own + other), jnp.nan)
    found = {"share": share(own, other), "best share": share(*best)}
    return curves | found | {"distance": best[0] - own, "defection": defection[0]}


def steps(key: jax.Array, hparams: Mapping[str, jax.Array], *, rounds: int) -> dict[str, Any]:
    """{arm: curves} of the three steps."""
    payoff, draw = jnp.array(PAYOFF), partial(tables.draw_chances, coins=hparams["coins"])
    numbers: Any = {x: hparams[x] for x in ("rate", "entropy", "gamma")} | {"updates": UPDATES, "rounds": rounds}
    keys = iter(jax.random.split(key, 10))

    def first(learners: bool) -> tuple[tables.Tables, dict]:
        """From games with each other, or from those with tabular players."""
        whom = {"from_pairs": jnp.bool_(learners), "from_others": jnp.bool_(not learners), "told": jnp.bool_(False)}
        seen = lambda action, points: cooperation(action) | {"points": points.mean()}
        both, curves = tables.train(next(keys), draw, payoff, seen, pairs=GAMES, **whom, **numbers)
        return jax.tree.map(lambda x: x[:, :1], both), curves

    def then(start: tables.Tables, seats: Sequence[tuple[int, int]], frozen: int = 0) -> tuple[tables.Tables, dict]:
        """The first `frozen` tables do not learn."""
        games = tables.line_ups(seats, GAMES, TIT_FOR_TAT)
        meet = lambda key: (games, games.learner >= frozen)
        return tables.improve(next(keys), start, meet, payoff, measure, **numbers)

    adaptive, curves = first(False)
    most = jax.vmap(lambda who: best_response(payoff[..., 0], who, rounds).value)(draw(next(keys), 4 * GAMES)).mean()
    found = {"step_1": curves | {"distance": most / rounds - curves["points"][-TAIL:].mean()}}
    frozen, starts = {"adaptive": adaptive, "naive": first(True)[0]}, {"fresh": tables.fresh(2), "adaptive": adaptive}
    for name, now in STEP_2.items():
        four, curves = then(jax.tree.map(lambda *x: jnp.concatenate(x), frozen[name], tables.fresh(2)), APART, 2)
        starts[now] = jax.tree.map(lambda x: x[2:], four)
        found[f"step_2/{name}"] = exactly(curves, frozen[name].logit[:, 0], rounds)
    answers = jnp.broadcast_to(60 * (jnp.array([[TIT_FOR_TAT]]) - 0.5), (1, tables.MEMORIES, tables.SITUATIONS))
    found["step_2/tit_for_tat"] = exactly(then(tables.fresh(2), TABULAR)[1], answers, rounds)
    for name, pair in starts.items():
        curves = then(pair, TOGETHER)[1]
        found[f"step_3/{name}"] = curves | {"lead": jnp.abs(curves["lead"])}
    return found


def predictions_at(at: str) -> tuple:
    adaptive, extortioners = f"{at}step_2/adaptive", f"{at}step_3/extortioners"
    return (
        AtMost("distance", f"{at}step_1", 0.15),
        AtMost("distance", adaptive, 0.1),
        AtLeast("share", adaptive, 0.6),
        *(Higher("lead", adaptive, than=f"{at}step_2/{x}") for x in ("naive", "tit_for_tat")),
        AtLeast("climb", extortioners, 0.3),
        AtLeast("rise", extortioners, 0.0),
        *(Higher("cooperation", extortioners, than=f"{at}step_3/{x}") for x in ("fresh", "of_naive")),
    )


STEP_3 = ("extortioners", "adaptive", "of_naive", "fresh")
ARMS = ("step_1", "step_2/adaptive", "step_2/naive", "step_2/tit_for_tat", *(f"step_3/{x}" for x in STEP_3))
SHORT = {name: BASE[name] for name in ("coins", "gamma", "rate", "entropy")}
LONG = {**SHORT, "coins": 0.0, "gamma": 0.99, "rate": 0.3}
SETTINGS = {"": (partial(steps, rounds=20), SHORT), "long/": (partial(steps, rounds=100), LONG)}
STUDY = Study(
    paper=Paper("Co-player inference", "https://arxiv.org/abs/2602.16301", 2026, checked="paper"),
    question="Does a learner extort a frozen player that adapts, and do two extortioners learn to cooperate?",
    claim="A learner takes more than half of what it and a frozen player that adapts earn together, but not of a naive "
    "one or tit-for-tat. Two extortioners come to cooperate, more than fresh learners, or those who met naive ones.",
    arms={at + arm: Computed(of, numbers, UPDATES, arm) for at, (of, numbers) in SETTINGS.items() for arm in ARMS},
    method="step_3/extortioners",
    metrics=("cooperation", "rise", "climb", "points", "other", "lead", "share", "best share", "distance", "defection"),
    derived={"climb": lambda curves: curves["cooperation"][:, -TAIL:].mean(1) - curves["cooperation"][:, 0]},
    predictions=(*predictions_at(""), *predictions_at("long/")),
)
