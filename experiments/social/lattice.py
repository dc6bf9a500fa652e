"""Does exploration break cooperation if all agents share one policy? Q-learning on a 10 x 10 torus.

Each agent plays the prisoner's dilemma with its four neighbours at once, round after round. Mutual cooperation
pays 1 and mutual defection 0. D against C pays 1 + Dr, and C against D pays -Dr. A reward is the mean of the four
games. The observation is the last actions of the four neighbours and the agent. Q-learning uses returns of five rounds
with discount 0.99, like the network of the release. Actions follow Boltzmann's rule, and the temperature falls linearly
from tau to 0.1. The last tenth of the rounds is played at 0.1 without learning.

  shared                 one table for all agents
  groups                 ten tables, for ten random agents each
  own                    a table for each agent
  one_step               a shared table with returns of one round
  dr0.1, dr0.4           the dilemma Dr
  tau0.13, tau0.5, tau1  the initial temperature, in order of exploration

The arms need no language model; a seed is a history. Metrics:

  cooperation            in the last tenth
  fall                   cooperation under tau0.13 less cooperation
  gap                    mean absolute difference of the values of C and D, at the agents' observations
  payoff                 reward of a round

  python -m experiments lattice --seeds 10

Paper: How Exploration Breaks Cooperation (Weng & Lee) 2026, https://arxiv.org/abs/2601.05509. There 900 agents share a
network.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.tabular.q_learning import boltzmann, q_learning
from jaxmarl_llm.tabular.torus import OBSERVATIONS, dilemma, mean_payoff, observe

SIDE, TRAINED, PLAYED, POINTS = 10, 9000, 10000, 100
LONGEST, DISCOUNT, RATE, COLD = 5, 0.99, 0.1, 0.1
SITES = SIDE * SIDE


class Torus(NamedTuple):
    act: jax.Array  # int32 [side, side], 0: C, 1: D
    table: jax.Array  # float32 [tables * OBSERVATIONS, 2]
    cells: jax.Array  # int32 [LONGEST, side, side]: table rows at which the agents acted, latest last
    acts: jax.Array  # int32 [LONGEST, side, side]
    rewards: jax.Array  # float32 [LONGEST, side, side]


def a_round(
    torus: Torus, key: jax.Array, table_of: jax.Array, hot: jax.Array, rate: jax.Array, arm: Mapping[str, Any]
) -> tuple[Torus, dict[str, jax.Array]]:
    """One round, and Q-learning on the actions of arm["steps"] - 1 rounds ago; `table_of` int32 [side, side].

        Q(s, a) += rate mean (sum_k discount^k r_k + discount^steps max Q(s') - Q(s, a))

    The mean is over agents with the same table, s and a.
    """
    cell = table_of * OBSERVATIONS + observe(torus.act)
    value = torus.table[cell]
    act = (jax.random.uniform(key, cell.shape) < jnp.exp(boltzmann(value, hot))[..., 1]).astype(jnp.int32)
    reward = mean_payoff(act, dilemma(arm["dilemma"]))
    past = [jnp.append(old[1:], new[None], 0) for old, new in zip(torus[2:], (cell, act, reward), strict=True)]
    first = LONGEST - jnp.asarray(arm["steps"], jnp.int32)
    later = jnp.arange(LONGEST) - first
    weight = jnp.where(later >= 0, DISCOUNT ** jnp.maximum(later, 0), 0.0)
    after = table_of * OBSERVATIONS + observe(act)
    moves = past[0][first], past[1][first], jnp.tensordot(weight, past[2], 1), after
    numbers = {"rate": rate, "discount": DISCOUNT ** jnp.float32(arm["steps"])}
    table = q_learning(torus.table, *(x.ravel() for x in moves), **numbers)
    gap = jnp.abs(value[..., 1] - value[..., 0]).mean()
    return Torus(act, table, *past), {"cooperation": 1 - act.mean(), "payoff": reward.mean(), "gap": gap}


def history(key: jax.Array, arm: Mapping[str, Any], tables: int) -> dict[str, jax.Array]:
    """Curves of POINTS means over the rounds, {metric: [POINTS]}."""
    start, order, key = jax.random.split(key, 3)
    table_of = (jax.random.permutation(order, SITES) * tables // SITES).reshape(SIDE, SIDE)
    act = jax.random.bernoulli(start, 0.5, (SIDE, SIDE)).astype(jnp.int32)
    nothing = jnp.zeros((LONGEST, SIDE, SIDE))
    torus = Torus(
        act, jnp.zeros((tables * OBSERVATIONS, 2)), nothing.astype(jnp.int32), nothing.astype(jnp.int32), nothing
    )

    def step(torus: Torus, number: jax.Array) -> tuple[Torus, dict[str, jax.Array]]:
        hot = COLD + (arm["tau"] - COLD) * jnp.maximum(1 - number / TRAINED, 0.0)
        rate = jnp.where((number < TRAINED) & (number >= LONGEST), RATE, 0.0)
        return a_round(torus, jax.random.fold_in(key, number), table_of, hot, rate, arm)

    _, measured = jax.lax.scan(step, torus, jnp.arange(PLAYED))
    return jax.tree.map(lambda x: x.reshape(POINTS, -1).mean(1), measured)


HEAT = {"tau0.13": 0.13, "tau0.5": 0.5, "tau1": 1.0}
DILEMMAS = {"dr0.1": 0.1, "dr0.4": 0.4}
CELLS = [f"{name}/{heat}" for name in DILEMMAS for heat in HEAT]
FAMILIES = {"shared": (1, 5.0), "groups": (10, 5.0), "own": (SITES, 5.0), "one_step": (1, 1.0)}  # tables, rounds


@partial(jax.jit, static_argnames="family")
def histories(key: jax.Array, hparams: Mapping[str, jax.Array], *, family: str) -> dict[str, dict[str, jax.Array]]:
    """{arm: curves} of a family, computed side by side, with the fall of cooperation from the least exploration."""
    tables, steps = FAMILIES[family]
    strength, tau = jnp.meshgrid(jnp.array([*DILEMMAS.values()]), jnp.array([*HEAT.values()]), indexing="ij")
    arms = {"steps": jnp.full(len(CELLS), steps), "dilemma": strength.ravel(), "tau": tau.ravel()}
    curves = jax.vmap(lambda arm: history(key, arm, tables))(arms)
    played = curves["cooperation"][:, -POINTS // 10 :].mean(1).reshape(strength.shape)
    curves |= {"fall": (played[:, :1] - played).ravel()}
    return {f"{family}/{cell}": jax.tree.map(lambda x, i=i: x[i], curves) for i, cell in enumerate(CELLS)}


LEAST, MOST = "tau0.13", "tau1"
OF = {family: partial(histories, family=family) for family in FAMILIES}
NAMES = [(family, f"{family}/{cell}") for family in FAMILIES for cell in CELLS]
COLLAPSE = "abstract of the HTML version: 'a robust cooperation collapse in shared DQN as exploration increases'"
GAPS = "abstract of the HTML version: the collapse coincides with action-value gaps that 'shrink systematically'"
APART = {
    "groups": "abstract of the HTML version: 'Grouped policy learning ... consistently alleviates collapse'",
    "own": "listing's abstract: the failure 'disappears when parameter sharing is removed'",
}
STUDY = Study(
    paper=Paper("Cooperation Collapse (Weng & Lee)", "https://arxiv.org/abs/2601.05509", 2026, checked="release"),
    question="Does exploration break cooperation where all share one table?",
    claim="Cooperation falls with exploration where all share a table, and less where tables are apart; learnt from "
    "returns of one round it rises.",
    arms={name: Computed(OF[family], updates=POINTS, part=name) for family, name in NAMES},
    method=f"shared/dr0.1/{MOST}",
    metrics=("cooperation", "fall", "payoff", "gap"),
    x="100 rounds",
    predictions=(
        *(
            Higher("cooperation", f"shared/{x}/{LEAST}", than=f"shared/{x}/{MOST}", source="paper", where=COLLAPSE)
            for x in DILEMMAS
        ),
        *(
            Higher("gap", f"shared/{x}/{LEAST}", than=f"shared/{x}/{MOST}", source="paper", where=GAPS)
            for x in DILEMMAS
        ),
        *(
            Higher("fall", f"shared/{x}/{MOST}", than=f"{family}/{x}/{MOST}", source="paper", where=where)
            for family, where in APART.items()
            for x in DILEMMAS
        ),
        *(
            Higher("cooperation", f"{family}/{x}/{MOST}", than=f"shared/{x}/{MOST}", source="paper", where=where)
            for family, where in APART.items()
            for x in DILEMMAS
        ),
        *(
            Higher(
                "cooperation",
                f"one_step/{x}/{MOST}",
                than=f"one_step/{x}/{LEAST}",
                source="pilot",
                where="seeds from 100 on, figures not kept; the arm is not the paper's, and the direction is opposite "
                "to the paper's",
            )
            for x in DILEMMAS
        ),
    ),
)
