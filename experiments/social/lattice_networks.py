"""Does cooperation survive exploration if groups of agents have Q-networks of their own? The torus again.

Game and learner are those of `lattice_network`. Agents on a 10 x 10 torus play the prisoner's dilemma with their four
neighbours. A network reads the last actions of the neighbours and the agent, and learns by double DQN from replay.
Boltzmann's temperature falls linearly from tau to 0.1 in 90,000 rounds. Another 10,000 rounds are played at 0.1 without
learning.

  shared                    one network for all agents
  groups                    ten networks, for ten random agents each
  dr0.1, dr0.25             the dilemma Dr
  tau0.13, tau0.8, tau1.5   the initial temperature, in order of exploration

In every fourth round all networks together learn from 300 transitions of the last 100 rounds. A network draws its
share, 300 or 30, from its own agents, and makes an optimiser step.

The arms need no language model; a seed is a history. Metrics:

  cooperation   in the last tenth
  fall          cooperation under tau0.13 less cooperation, in the same seed
  payoff        reward of a round
  gap           mean absolute difference of the values of C and D, at the agents' observations

  python -m experiments lattice_networks --seeds 20

Paper: How Exploration Breaks Cooperation (Weng & Lee) 2026, https://arxiv.org/abs/2601.05509, with 900 agents and
batches of 256. Its release has the shared network alone, and the text that was read doesn't say how groups are formed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from experiments.social import lattice_network as game
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.tabular import q_network as network

POINTS, BATCH = 50, 300


def history(key: jax.Array, arm: Mapping[str, Any], networks: int) -> dict[str, jax.Array]:
    """Curves of POINTS means over the rounds, {metric: [POINTS]}, of equally many random agents a network."""
    start, init_key, order, draw, key = jax.random.split(key, 5)
    weights = jax.vmap(lambda key: network.init(key, 5, game.HIDDEN, 2))(jax.random.split(init_key, networks))
    agents = jax.random.permutation(order, game.SITES).reshape(networks, -1)
    owner = (jnp.argsort(agents.ravel()) // agents.shape[1]).reshape(game.SIDE, game.SIDE)
    act = jax.random.bernoulli(start, 0.5, (game.SIDE, game.SIDE)).astype(jnp.int32)
    values = jax.vmap(partial(network.values, observations=game.SEEN))
    learn = jax.vmap(partial(network.learn, observations=game.SEEN, optimiser=game.OPTIMISER))
    share = partial(network.sample, n=BATCH // networks, steps=game.STEPS, gamma=game.DISCOUNT)

    def rounds(state: tuple, number: jax.Array) -> tuple[tuple, dict[str, jax.Array]]:
        """EVERY rounds, then one step of all networks."""
        weights, moments, target, table, played = state
        first = game.EVERY * number
        play = partial(game.a_round, key=key, table=table, owner=owner, arm=arm)
        played, measured = jax.lax.scan(play, played, first + jnp.arange(game.EVERY))
        keys = jax.random.split(jax.random.fold_in(draw, number), networks)
        given = jax.vmap(share, (None, None, 0, 0))(played[1], first + game.EVERY - 1, keys, agents)
        new = learn(weights, moments, target, given)
        new = jax.tree.map(lambda x, old: jnp.where(first < game.TRAINED, x, old), new, (weights, moments))
        table = values(new[0])
        target = jnp.where((first + game.EVERY) % game.RENEWED == 0, table, target)
        return (*new, target, table, played), jax.tree.map(jnp.mean, measured)

    table = values(weights)
    state = weights, jax.vmap(game.OPTIMISER.init)(weights), table, table, (act, network.empty(game.KEPT, game.SITES))
    _, measured = jax.lax.scan(rounds, state, jnp.arange(game.PLAYED // game.EVERY))
    return jax.tree.map(lambda x: x.reshape(POINTS, -1).mean(1), measured)


NETWORKS = {"shared": 1, "groups": 10}
DILEMMAS = {"dr0.1": 0.1, "dr0.25": 0.25}
HEAT = {"tau0.13": 0.13, "tau0.8": 0.8, "tau1.5": 1.5}
LITTLE, SOME, MUCH = HEAT


@partial(jax.jit, static_argnames="family")
def histories(key: jax.Array, hparams: Mapping[str, jax.Array], *, family: str) -> dict[str, dict[str, jax.Array]]:
    """{arm: curves} of a number of networks, computed side by side, with the fall of cooperation."""
    dilemmas, heat = jnp.array([*DILEMMAS.values()]), jnp.array([*HEAT.values()])
    play = lambda strength, tau: history(key, {"dilemma": strength, "tau": tau}, NETWORKS[family])
    curves = jax.vmap(jax.vmap(play, (None, 0)), (0, None))(dilemmas, heat)  # [dilemmas, temperatures, POINTS]
    curves |= {"fall": curves["cooperation"][:, :1] - curves["cooperation"]}
    cells = product(enumerate(DILEMMAS), enumerate(HEAT))
    return {f"{family}/{x}/{tau}": {metric: y[i, j] for metric, y in curves.items()} for (i, x), (j, tau) in cells}


OF = {family: partial(histories, family=family) for family in NETWORKS}
NAMES = [(family, f"{family}/{x}/{tau}") for family in NETWORKS for x in DILEMMAS for tau in HEAT]
GROUPED = "abstract of the HTML version: 'Grouped policy learning ... consistently alleviates collapse'"
COLLAPSE = "abstract of the HTML version: 'a robust cooperation collapse in shared DQN as exploration increases'"
LOCKED = "Seeds 100 to 102: 0.33 against 0.86 of six seeds. Each network settles on an action of its own."
STUDY = Study(
    paper=Paper("Grouped Networks (Weng & Lee)", "https://arxiv.org/abs/2601.05509", 2026, checked="release"),
    question="Does cooperation survive exploration if groups of agents have networks of their own?",
    claim="With ten networks more cooperation is left under exploration than with one, and it falls less.",
    arms={name: Computed(OF[family], updates=POINTS, part=name) for family, name in NAMES},
    method=f"groups/dr0.1/{MUCH}",
    metrics=("cooperation", "fall", "payoff", "gap"),
    x="2,000 rounds",
    predictions=(
        *(
            Higher("cooperation", f"groups/{x}/{tau}", than=f"shared/{x}/{tau}", source="paper", where=GROUPED)
            for x, tau in product(DILEMMAS, (MUCH, SOME))
        ),
        *(
            Lower("fall", f"groups/{x}/{MUCH}", than=f"shared/{x}/{MUCH}", source="paper", where=GROUPED)
            for x in DILEMMAS
        ),
        *(
            Higher(
                "cooperation",
                f"shared/{x}/{LITTLE}",
                than=f"shared/{x}/{MUCH}",
                source="paper",
                where=COLLAPSE,
                condition=True,
            )
            for x in DILEMMAS
        ),
        Lower("cooperation", f"groups/dr0.1/{LITTLE}", than=f"shared/dr0.1/{LITTLE}", source="pilot", where=LOCKED),
    ),
)
