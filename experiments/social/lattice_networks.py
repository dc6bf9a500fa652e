"""Does cooperation survive exploration if groups of agents have Q-networks of their own? The torus again.

Game and learner are those of `lattice_network`: agents on a 10 x 10 torus play the prisoner's dilemma with their four
neighbours, and networks learn by double DQN from replay. Boltzmann's temperature falls linearly from tau to 0.1 in
90,000 rounds. Another 10,000 rounds are played at 0.1 without learning. In every fourth round all networks together
learn from 300 transitions of the last 100 rounds: each makes an optimiser step on its share, from its own agents.

  shared                    one network for all agents
  groups                    ten networks, for ten random agents each
  dr0.1, dr0.25             the dilemma Dr
  tau0.13, tau0.8, tau1.5   the initial temperature, in order of exploration

  cooperation   in the last tenth
  fall          cooperation under tau0.13 less cooperation, in the same seed
  payoff        reward of a round
  gap           mean absolute difference of the values of C and D, at the agents' observations

  python -m experiments lattice_networks --seeds 20

Paper: How Exploration Breaks Cooperation (Weng & Lee) 2026, https://arxiv.org/abs/2601.05509, with 900 agents and
batches of 256. Its release has the shared network alone, and the text that was read doesn't say how groups are formed.
"""

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from experiments.social.lattice_network import (
    COLD,
    DISCOUNT,
    EVERY,
    HIDDEN,
    KEPT,
    OPTIMISER,
    PLAYED,
    RENEWED,
    SEEN,
    SIDE,
    SITES,
    STEPS,
    TRAINED,
)
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.tabular import q_network as network
from jaxmarl_llm.tabular.torus import dilemma, play_round

POINTS, BATCH = 50, 300


def history(key: jax.Array, arm: Mapping[str, Any], networks: int) -> dict[str, jax.Array]:
    """Curves of POINTS means over the rounds, {metric: [POINTS]}, of equally many random agents a network."""
    start, init_key, order, draw, key = jax.random.split(key, 5)
    weights = jax.vmap(lambda key: network.init(key, 5, HIDDEN, 2))(jax.random.split(init_key, networks))
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
        numbers = first + jnp.arange(EVERY)
        hot = COLD + (arm["tau"] - COLD) * jnp.maximum(1 - numbers / TRAINED, 0.0)
        play = partial(play_round, key=key, table=table, payoff=dilemma(arm["dilemma"]), owner=owner)
        played, measured = jax.lax.scan(lambda now, at: play(now, at[0], temperature=at[1]), played, (numbers, hot))
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
MORE, LESS = partial(Higher, "cooperation", source="paper"), partial(Lower, "fall", source="paper")
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
            MORE(f"groups/{x}/{tau}", than=f"shared/{x}/{tau}", where=GROUPED)
            for x, tau in product(DILEMMAS, (MUCH, SOME))
        ),
        *(LESS(f"groups/{x}/{MUCH}", than=f"shared/{x}/{MUCH}", where=GROUPED) for x in DILEMMAS),
        *(MORE(f"shared/{x}/{LITTLE}", than=f"shared/{x}/{MUCH}", where=COLLAPSE, condition=True) for x in DILEMMAS),
        Lower("cooperation", f"groups/dr0.1/{LITTLE}", than=f"shared/dr0.1/{LITTLE}", source="pilot", where=LOCKED),
    ),
)
