"""Does exploration break cooperation where all share one Q-network? The paper's learner on a torus of 10 x 10.

The game is that of the study lattice: the prisoner's dilemma with four neighbours, 1 for both C, 0 for both D, 1 + Dr
for D and -Dr for C else. The learner is the release's: a network of 5 - 96 - 2 that sees the last acts of the
neighbours and the own one, double DQN with returns of five rounds and discount 0.99. In every fourth round AdamW (1e-4,
gradients of 0.5 at most) makes a step on 256 of the last 100 rounds' acts; its target is renewed every 2,000 rounds.
Acts are drawn by Boltzmann's rule, whose temperature falls evenly from tau to 0.1 in 90,000 rounds; 10,000 more are
played at 0.1, without learning.

  shared, groups     one network for all, or four, each for 25 agents at random
  dr0.1 .. dr0.4     the dilemma Dr
  tau0.13, tau0.8    the temperature at first: little exploration or much

These arms are computed; a seed is a history. `cooperation` is measured in the last tenth; `fall`: of cooperation, from
that under tau0.13; `gap`: the mean distance of the values of C and D where an agent stands; `payoff`: a round's.

  python -m experiments lattice_network --seeds 10

Paper: How Exploration Breaks Cooperation (Weng & Lee) 2026, https://arxiv.org/abs/2601.05509, with 900 agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxmarl_llm.rl import q_network as network
from jaxmarl_llm.rl.q_learning import boltzmann
from jaxmarl_llm.rl.torus import OBSERVATIONS, dilemma, mean_payoff, observed
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import Higher, Paper, Study

SIDE, TRAINED, PLAYED, POINTS, EVERY, RENEWED = 10, 90_000, 100_000, 100, 4, 2_000
KEPT, BATCH, STEPS, DISCOUNT, COLD, HIDDEN = 100, 256, 5, 0.99, 0.1, 96
SITES = SIDE * SIDE
SEEN = (jnp.arange(OBSERVATIONS)[:, None] >> jnp.arange(5)[None] & 1).astype(jnp.float32)  # [observations, bits]
OPTIMISER = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-4, weight_decay=1e-4))
Played = tuple[jax.Array, network.Memory]  # acts [side, side], what happened


def a_round(
    played: Played, number: jax.Array, key: jax.Array, table: jax.Array, owner: jax.Array, arm: Mapping[str, Any]
) -> tuple[Played, dict[str, jax.Array]]:
    """All act by their network's values: `table` float32 [networks, observations, 2], `owner` int32 [side, side]."""
    (act, memory), seen = played, observed(played[0])
    hot = COLD + (arm["tau"] - COLD) * jnp.maximum(1 - number / TRAINED, 0.0)
    value = table[owner, seen]
    chance = jnp.exp(boltzmann(value, hot))[..., 1]
    act = (jax.random.uniform(jax.random.fold_in(key, number), seen.shape) < chance).astype(jnp.int32)
    reward = mean_payoff(act, dilemma(arm["dilemma"]))
    happened = (x.ravel() for x in (seen, act, reward, observed(act)))
    gap = jnp.abs(value[..., 1] - value[..., 0]).mean()
    measured = {"cooperation": 1 - act.mean(), "payoff": reward.mean(), "gap": gap}
    return (act, network.remember(memory, number, *happened)), measured


def history(key: jax.Array, arm: Mapping[str, Any], networks: int) -> dict[str, jax.Array]:
    """Curves of POINTS means."""
    start, order, draw, key = jax.random.split(key, 4)
    members = jax.random.permutation(order, SITES).reshape(networks, -1)
    mine = jnp.zeros(SITES, jnp.int32).at[members].set(jnp.arange(networks)[:, None]).reshape(SIDE, SIDE)
    weights = jax.vmap(lambda key: network.init(key, 5, HIDDEN, 2))(jax.random.split(draw, networks))
    table_of = jax.vmap(lambda weights: network.values(weights, SEEN))
    act = jax.random.bernoulli(start, 0.5, (SIDE, SIDE)).astype(jnp.int32)

    def rounds(state: tuple, number: jax.Array) -> tuple[tuple, dict[str, jax.Array]]:
        """EVERY rounds, and a step of every network."""
        weights, moments, target, played = state
        table, first = table_of(weights), EVERY * number
        one = partial(a_round, key=key, table=table, owner=mine, arm=arm)
        played, measured = jax.lax.scan(one, played, first + jnp.arange(EVERY))

        def step(weights: Any, moments: Any, older: jax.Array, agents: jax.Array, key: jax.Array) -> tuple:
            given = network.sample(played[1], first + EVERY - 1, key, agents, BATCH, STEPS, DISCOUNT)
            return network.learn(weights, moments, older, given, SEEN, OPTIMISER)

        keys = jax.random.split(jax.random.fold_in(draw, number), networks)
        new = jax.vmap(step)(weights, moments, target, members, keys)
        new = jax.tree.map(lambda x, old: jnp.where(first < TRAINED, x, old), new, (weights, moments))
        target = jnp.where((first + EVERY) % RENEWED == 0, table_of(new[0]), target)
        return (*new, target, played), jax.tree.map(jnp.mean, measured)

    state = weights, jax.vmap(OPTIMISER.init)(weights), table_of(weights), (act, network.empty(KEPT, SITES))
    _, measured = jax.lax.scan(rounds, state, jnp.arange(PLAYED // EVERY))
    return jax.tree.map(lambda x: x.reshape(POINTS, -1).mean(1), measured)


HEAT = {"tau0.13": 0.13, "tau0.8": 0.8}
FAMILIES = {"shared": (1, {"dr0.1": 0.1, "dr0.25": 0.25, "dr0.4": 0.4}), "groups": (4, {"dr0.1": 0.1})}


@partial(jax.jit, static_argnames="family")
def histories(key: jax.Array, hparams: Mapping[str, jax.Array], *, family: str) -> dict[str, dict[str, jax.Array]]:
    """{arm: curves} of a family, all side by side, with what has fallen since the least exploration."""
    networks, dilemmas = FAMILIES[family]
    strength, tau = jnp.meshgrid(jnp.array([*dilemmas.values()]), jnp.array([*HEAT.values()]), indexing="ij")
    arms = {"dilemma": strength.ravel(), "tau": tau.ravel()}
    curves = jax.vmap(lambda arm: history(key, arm, networks))(arms)
    played = curves["cooperation"][:, -POINTS // 10 :].mean(1).reshape(strength.shape)
    curves |= {"fall": (played[:, :1] - played).ravel()}
    names = [f"{family}/{name}/{heat}" for name in dilemmas for heat in HEAT]
    return {name: jax.tree.map(lambda x, i=i: x[i], curves) for i, name in enumerate(names)}


OF = {family: partial(histories, family=family) for family in FAMILIES}
NAMES = [(of, f"{of}/{name}/{heat}") for of, (_, dilemmas) in FAMILIES.items() for name in dilemmas for heat in HEAT]
STUDY = Study(
    paper=Paper("Cooperation Collapse (Weng & Lee)", "https://arxiv.org/abs/2601.05509", 2026, checked="release"),
    question="Does exploration break cooperation where all share one Q-network?",
    claim="Cooperation falls with exploration where all share a network, and less where networks are apart.",
    arms={name: Computed(OF[family], updates=POINTS, part=name) for family, name in NAMES},
    method="shared/dr0.1/tau0.8",
    metrics=("cooperation", "fall", "payoff", "gap"),
    predictions=(
        *(Higher("cooperation", f"shared/{x}/tau0.13", than=f"shared/{x}/tau0.8") for x in FAMILIES["shared"][1]),
        Higher("fall", "shared/dr0.1/tau0.8", than="groups/dr0.1/tau0.8"),
        Higher("cooperation", "groups/dr0.1/tau0.8", than="shared/dr0.1/tau0.8"),
    ),
)
