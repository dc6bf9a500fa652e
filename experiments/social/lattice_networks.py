"""Does cooperation survive exploration if agents don't all share one Q-network? Groups and sites with own networks.

The game and the learner are those of `lattice_network`: agents on a 10 x 10 torus play the prisoner's dilemma with four
neighbours, and a network reads the last actions of the neighbours and the agent. It learns by double DQN from replay.
Boltzmann's temperature falls linearly from tau to 0.1 in 90,000 rounds. Another 10,000 rounds are played at 0.1 without
learning.

  shared                 one network for all agents
  groups                 ten networks, for ten random agents each
  sites                  a network for each agent
  dr0.1, dr0.25, dr0.4   the dilemma Dr
  tau0.13, tau1.5        the initial temperature: little exploration or much

Every fourth round all networks together learn from 300 transitions of the last 100 rounds: a network's share is 300, 30
or 3, drawn from its own agents. Each makes an optimiser step on them.

The arms need no language model; a seed is a history. Metrics:

  cooperation            in the last tenth
  fall                   cooperation under tau0.13 less cooperation, in the same seed
  gap                    mean absolute difference of the values of C and D, at the agents' observations

  python -m experiments lattice_networks --seeds 20

Paper: How Exploration Breaks Cooperation (Weng & Lee) 2026, https://arxiv.org/abs/2601.05509, with 900 agents and
batches of 256. The release has the shared network alone. It doesn't say how groups are formed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.social.lattice_network import COLD, DISCOUNT, EVERY, HIDDEN, OPTIMISER, SEEN, STEPS
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.tabular import q_network as network
from jaxmarl_llm.tabular.q_learning import boltzmann
from jaxmarl_llm.tabular.torus import dilemma, mean_payoff, observe

SIDE, TRAINED, PLAYED, POINTS, RENEWED, KEPT, BATCH = 10, 90_000, 100_000, 50, 2_000, 100, 300
SITES = SIDE * SIDE
Played = tuple[jax.Array, network.Memory]  # actions [side, side], memory of transitions


def a_round(
    played: Played, number: jax.Array, key: jax.Array, table: jax.Array, owner: jax.Array, arm: Mapping[str, Any]
) -> tuple[Played, dict[str, jax.Array]]:
    """One round in which agents act by their networks' values.

    `table` is float32 [networks, observations, 2], `owner` int32 [side, side]: the network of a site.
    """
    (act, memory), seen = played, observe(played[0])
    hot = COLD + (arm["tau"] - COLD) * jnp.maximum(1 - number / TRAINED, 0.0)
    value = table[owner, seen]
    chance = jnp.exp(boltzmann(value, hot))[..., 1]
    act = (jax.random.uniform(jax.random.fold_in(key, number), seen.shape) < chance).astype(jnp.int32)
    reward = mean_payoff(act, dilemma(arm["dilemma"]))
    happened = (x.ravel() for x in (seen, act, reward, observe(act)))
    measured = {"cooperation": 1 - act.mean(), "gap": jnp.abs(value[..., 1] - value[..., 0]).mean()}
    return (act, network.remember(memory, number, *happened)), measured


def history(key: jax.Array, arm: Mapping[str, Any], networks: int) -> dict[str, jax.Array]:
    """Curves of POINTS means over the rounds, {metric: [POINTS]}, of equally many random agents a network."""
    start, init_key, order, draw, key = jax.random.split(key, 5)
    weights = jax.vmap(partial(network.init, inputs=5, hidden=HIDDEN, actions=2))(jax.random.split(init_key, networks))
    agents = jax.random.permutation(order, SITES).reshape(networks, -1)
    owner = (jnp.argsort(agents.ravel()) // agents.shape[1]).reshape(SIDE, SIDE)
    act = jax.random.bernoulli(start, 0.5, (SIDE, SIDE)).astype(jnp.int32)
    values = jax.vmap(partial(network.values, observations=SEEN))
    learn = jax.vmap(partial(network.learn, observations=SEEN, optimiser=OPTIMISER))
    share = partial(network.sample, n=BATCH // networks, steps=STEPS, gamma=DISCOUNT)

    def rounds(state: tuple, number: jax.Array) -> tuple[tuple, dict[str, jax.Array]]:
        """EVERY rounds, then one step of all networks."""
        weights, moments, target, table, played = state
        first = EVERY * number
        play = partial(a_round, key=key, table=table, owner=owner, arm=arm)
        played, measured = jax.lax.scan(play, played, first + jnp.arange(EVERY))
        keys = jax.random.split(jax.random.fold_in(draw, number), networks)
        given = jax.vmap(share, (None, None, 0, 0))(played[1], first + EVERY - 1, keys, agents)
        new = learn(weights, moments, target, given)
        new = jax.tree.map(lambda x, old: jnp.where(first < TRAINED, x, old), new, (weights, moments))
        table = values(new[0])
        target = jnp.where((first + EVERY) % RENEWED == 0, table, target)
        return (*new, target, table, played), jax.tree.map(jnp.mean, measured)

    table = values(weights)
    state = weights, jax.vmap(OPTIMISER.init)(weights), table, table, (act, network.empty(KEPT, SITES))
    _, measured = jax.lax.scan(rounds, state, jnp.arange(PLAYED // EVERY))
    return jax.tree.map(lambda x: x.reshape(POINTS, -1).mean(1), measured)


NETWORKS = {"shared": 1, "groups": 10, "sites": SITES}
DILEMMAS = {"dr0.1": 0.1, "dr0.25": 0.25, "dr0.4": 0.4}
HEAT = {"tau0.13": 0.13, "tau1.5": 1.5}
LITTLE, MUCH = HEAT


@partial(jax.jit, static_argnames="networks")
def histories(key: jax.Array, hparams: Mapping[str, jax.Array], *, networks: int) -> dict[str, dict[str, jax.Array]]:
    """{dilemma/temperature: curves} of a number of networks, computed side by side, with the fall of cooperation."""
    strength, tau = jnp.meshgrid(jnp.array([*DILEMMAS.values()]), jnp.array([*HEAT.values()]), indexing="ij")
    side_by_side = jax.vmap(jax.vmap(partial(history, networks=networks), (None, 0)), (None, 0))
    curves = side_by_side(key, {"dilemma": strength, "tau": tau})
    curves["fall"] = curves["cooperation"][:, :1] - curves["cooperation"]
    cells = [(i, j) for i in range(len(DILEMMAS)) for j in range(len(HEAT))]
    names = [f"{name}/{heat}" for name in DILEMMAS for heat in HEAT]
    return {name: {x: y[cell] for x, y in curves.items()} for name, cell in zip(names, cells, strict=True)}
