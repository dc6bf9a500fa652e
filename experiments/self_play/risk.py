"""Does aversion to variance select the safe equilibrium and avoid rare crashes? Two banks of drawn games.

Two players learn by fictitious play, smoothed at temperature 0.1. Each maximises its mean points less `risk` times
their variance over the other's action, given the frequencies of both players' past actions. Actions are sampled; one in
ten is uniform at random, so that each player meets the unexpected move of a hunt once in 20 rounds. Nothing is trained:
these arms are computed. A seed draws 64 stag hunts, 64 tables, initial beliefs and all actions.

Two stags earn 4 each and a lone stag 0. Hare earns T beside a stag and P beside a hare, with P < T drawn from 0 to 4.
Hare is risk-dominant if T + P > 4; such a hunt is called a dilemma. All hunts begin near the stag equilibrium: both
players believe with 0.8 to 1 that the other hunts stag. Beliefs count as ten rounds.

A table has 5 x 5 actions. Each player's points are drawn from 0 to 4; one cell in 20 is a crash, -20 for both. Initial
beliefs are uniform draws.

  nash         risk 0
  risk_01      risk 0.1
  risk_averse  risk 0.3
  risk_1       risk 1
  uniform      all actions alike

Metrics, means over games in each of 500 rounds:

  risk-dominant  probability of hare, before the random actions, in dilemmas
  bold           probability of stag in the other hunts, where stag is risk-dominant
  crashes        probability of a crash in a table
  variance       variance of a player's points in a table, over both players' actions
  points         mean points in a table

  python -m experiments risk --seeds 20    # 20 seconds on two cores

Paper: Slumbers et al. 2022, A Game-Theoretic Framework for Managing Risk in Multi-Agent Systems,
https://arxiv.org/abs/2205.15434. There large games are solved by PSRO, with trained policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.evaluation.meta_solvers import fictitious_round
from jaxmarl_llm.studies.computed import side_by_side
from jaxmarl_llm.studies.study import AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.tabular.drawn_tables import HARE, STAG, chance, moments, stag_hunts, tables_with_crashes

GAMES, ACTIONS, ROUNDS = 64, 5, 500
TREMBLE, AGE, NEAR_STAG = 0.1, 10.0, 0.8


def learn(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The curves [ROUNDS] of one seed."""
    hunts_key, tables_key, stags_key, beliefs_key, play_key = jax.random.split(key, 5)
    hunts, dilemma = stag_hunts(hunts_key, GAMES)
    tables, crash = tables_with_crashes(tables_key, GAMES, ACTIONS)
    stag = jax.random.uniform(stags_key, (2, GAMES), minval=NEAR_STAG)
    beliefs = jax.random.dirichlet(beliefs_key, jnp.ones(ACTIONS), (2, GAMES))
    risk, temperature = hparams["risk"], hparams["temperature"]
    play_game = partial(fictitious_round, risk=risk, temperature=temperature, tremble=TREMBLE)
    play = jax.vmap(play_game, (0, 0, None, 0))

    def measure(of_hunts: tuple, of_tables: tuple) -> dict[str, jax.Array]:
        intended = ((jnp.stack(of_hunts) - TREMBLE / 2) / (1 - TREMBLE)).mean(0)  # [GAMES, 2]
        points, variance = moments(of_tables, tables)
        return {
            "risk-dominant": jnp.average(intended[:, HARE], weights=dilemma),
            "bold": jnp.average(intended[:, STAG], weights=~dilemma),
            "crashes": chance(of_tables, crash).mean(),
            "variance": variance.mean(),
            "points": points.mean(),
        }

    def play_round(averages: tuple, number: jax.Array) -> tuple[tuple, dict[str, jax.Array]]:
        keys = jax.random.split(jax.random.fold_in(play_key, number), (2, GAMES))
        of_hunts, hunted = play(hunts, averages[0], AGE + number, keys[0])
        of_tables, after = play(tables, averages[1], AGE + number, keys[1])
        return (hunted, after), measure(of_hunts, of_tables)

    start = tuple(jnp.stack([stag, 1 - stag], -1)), tuple(beliefs)
    return jax.lax.scan(play_round, start, jnp.arange(ROUNDS))[1]


ARMS: dict[str, dict[str, float]] = {
    "nash": {"risk": 0.0, "temperature": 0.1},
    "risk_01": {"risk": 0.1, "temperature": 0.1},
    "risk_averse": {"risk": 0.3, "temperature": 0.1},
    "risk_1": {"risk": 1.0, "temperature": 0.1},
    "uniform": {"risk": 0.0, "temperature": 1e6},
}
TRUST = "Abstract: 'RAE generalises to risk-dominant NE in a trust dilemma game'."
CRASHES = "Abstract: it 'reduces instances of crashing by 7x' (there in driving, against the best baseline)."
VARIANCE = "Abstract: 'minimum reward variance benefits of RAE in matrix games with high-risk outcomes'."
ROOM = "Beliefs begin near stag, which stays a smoothed Nash equilibrium of a dilemma unless T is near 4."
SPREAD = "Stag's points vary by 4 with the other's action, hare's by T - P < 4: hare has the lower variance, also "
STUDY = Study(
    paper=Paper("RAE (Slumbers et al.)", "https://arxiv.org/abs/2205.15434", 2022, checked="abstract"),
    question="Does aversion to variance select the safe equilibrium and avoid rare crashes?",
    claim="Risk-averse play ends at the risk-dominant equilibrium, with less variance and fewer crashes than Nash.",
    arms=side_by_side(learn, ARMS, ROUNDS),
    method="risk_averse",
    metrics=("risk-dominant", "bold", "crashes", "variance", "points"),
    predictions=(
        Higher("risk-dominant", "risk_averse", than="nash", source="paper", where=TRUST),
        Lower("crashes", "risk_averse", than="nash", source="paper", where=CRASHES),
        Lower("variance", "risk_averse", than="nash", source="paper", where=VARIANCE),
        Lower("bold", "risk_averse", than="nash", source="theory", where=f"{SPREAD}where stag is risk-dominant."),
        AtMost("risk-dominant", "nash", 0.9, source="theory", where=ROOM, condition=True),
    ),
    x="round",
)
