"""Does who learns against a frozen learner that adapts extort it, and do two who extort come to cooperate?

The donation game of `co_players`, and its learners, tables over what they remember of the other. In three steps:

  step_1              a learner is trained against tabular players only: it adapts to whom it meets
  step_2/adaptive     a fresh learner is trained against a frozen one of step 1: it becomes an extortioner
  step_2/naive        against a frozen one that was trained with another learner only
  step_2/tit_for_tat  against tit-for-tat
  step_3/NAME         two learners are trained with each other: `extortioners` of step 2, two `adaptive` ones of step 1,
                      two `of_naive`, from step 2 against naive ones, or two `fresh` ones
  long/...            the same nearer to the paper: chances uniform in [0, 1] in place of fair coins, 100 rounds in
                      place of 20, a discount of 0.99 in place of 0.9

`cooperation`, of both players, of learners with each other in step 1; `rise`: of it, in the last third of the rounds
less the first. `points` and `other`: a round, of the learner and of whom it meets. `share`: points of the sum of both,
where that is a tenth of a point at least; `lead`: points less the other's, in step 3 of who has more. `distance`: to
the exact best response, to tabular players or to the frozen learner, and `best share` what that takes of the sum;
`defection`: what always-defect earns there, exactly.

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
from jaxmarl_llm.environments.matrix_games import COOPERATE
from jaxmarl_llm.environments.opponents import MEMORY_ONE
from jaxmarl_llm.evaluation.repeated_games import best_response
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study
from jaxmarl_llm.training import remembering as tables

UPDATES, GAMES = 120, 128
TAIL, LEAST = UPDATES // 10, 0.1  # of the updates, of a sum that is shared
APART, TOGETHER = ((2, 0), (3, 1)), ((0, 1),)  # who meets whom: two learn against frozen ones, or with each other
Curves = dict[str, jax.Array]


def cooperation(action: jax.Array) -> Curves:
    """Of actions [G, T, 2]."""
    kind, third = (action == COOPERATE).astype(jnp.float32), action.shape[1] // 3
    return {"cooperation": kind.mean(), "rise": kind[:, -third:].mean() - kind[:, :third].mean()}


def measured(played: tables.Played) -> Curves:
    points, other = played.reward.mean((0, 1))
    return cooperation(played.action) | {"points": points, "other": other, "lead": points - other}


def exact(frozen: jax.Array, rounds: int, curves: Curves) -> Curves:
    """The curves, and what their ends are beside what can be had of tables with logits [n, memories, situations]."""
    payoff, defect = jnp.array(PAYOFF), jnp.zeros(tables.SITUATIONS)
    best = jax.vmap(lambda logit: tables.answered(logit, payoff, rounds))(frozen).mean(0) / rounds
    defection = jax.vmap(lambda logit: tables.answered(logit, payoff, rounds, defect))(frozen).mean(0) / rounds
    own, other = (curves[name][-TAIL:].mean() for name in ("points", "other"))
    share = lambda own, other: jnp.where(own + other >= LEAST, own / (own + other), jnp.nan)  # noqa: E731
    found = {"distance": best[0] - own, "share": share(own, other), "best share": share(*best)}
    return curves | found | {"defection": defection[0]}


def steps(key: jax.Array, hparams: Mapping[str, jax.Array], *, rounds: int, prefix: str) -> dict[str, Curves]:
    """{arm: curves} of the three steps."""
    payoff, draw = jnp.array(PAYOFF), partial(tables.drawn, coins=hparams["coins"])
    numbers: dict[str, Any] = {name: hparams[name] for name in ("rate", "entropy", "gamma")}
    numbers |= {"updates": UPDATES, "rounds": rounds}

    def first(number: int, learners: bool) -> tuple[tables.Tables, Curves]:
        """Two learners from games with each other, or from those with tabular players."""
        whom = {"from_pairs": jnp.bool_(learners), "from_others": jnp.bool_(not learners), "told": jnp.bool_(False)}
        seen = lambda action, points: cooperation(action) | {"points": points.mean()}  # noqa: E731
        after, curves = tables.train(jax.random.fold_in(key, number), draw, payoff, seen, pairs=GAMES, **whom, **numbers)
        return jax.tree.map(lambda x: x[:, :1], after), curves

    def then(number: int, start: tables.Tables, seats: Sequence[tuple[int, int]], frozen: int = 0, **given: Any) -> Any:
        """What becomes of learners that meet so; the first `frozen` do not learn."""
        games = tables.line_ups(seats, GAMES, **given)
        learns = (games.learner >= frozen) & (games.learner >= 0)
        key_of = jax.random.fold_in(key, number)
        return tables.improve(key_of, start, lambda _: (games, learns), payoff, measured, **numbers)

    (adaptive, step_1), (naive, _) = first(0, False), first(1, True)
    met = draw(jax.random.fold_in(key, 2), 2 * GAMES)
    most = jax.vmap(lambda who: best_response(payoff[..., 0], who, rounds).value)(met).mean() / rounds
    found = {"step_1": step_1 | {"distance": most - step_1["points"][-TAIL:].mean()}}
    pairs = {"fresh": tables.fresh(2), "adaptive": adaptive}
    for number, (name, frozen, pair) in enumerate((("adaptive", adaptive, "extortioners"), ("naive", naive, "of_naive"))):
        both = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), frozen, tables.fresh(2))
        after, curves = then(3 + number, both, APART, 2)
        pairs[pair] = jax.tree.map(lambda x: x[2:], after)
        found[f"step_2/{name}"] = exact(frozen.logit[:, 0], rounds, curves)
    answers = 60 * (jnp.array(MEMORY_ONE["tit_for_tat"]) - 0.5)[None, None]  # logits
    tit_for_tat = jnp.broadcast_to(answers, (1, tables.MEMORIES, tables.SITUATIONS))
    _, curves = then(5, tables.fresh(2), ((0, -1), (1, -1)), chances=MEMORY_ONE["tit_for_tat"])
    found["step_2/tit_for_tat"] = exact(tit_for_tat, rounds, curves)
    for number, (name, pair) in enumerate(pairs.items()):
        curves = then(6 + number, pair, TOGETHER)[1]
        found[f"step_3/{name}"] = curves | {"lead": jnp.abs(curves["lead"])}
    return {prefix + name: curves for name, curves in found.items()}


CHANGES = {"": {}, "long/": {"coins": 0.0, "gamma": 0.99}}
SHORT, LONG = partial(steps, rounds=20, prefix=""), partial(steps, rounds=100, prefix="long/")
