"""Does exploration break cooperation if all agents share one Q-network? The paper's learner on a 10 x 10 torus.

The game is that of `lattice`. Each agent plays the prisoner's dilemma with four neighbours. Mutual cooperation pays 1,
mutual defection 0, D against C 1 + Dr, and C against D -Dr.

The learner is the release's. A network 5 - 96 - 2 reads the last actions of the four neighbours and the agent. It
learns by double DQN with returns of five rounds and discount 0.99. Every fourth round AdamW (1e-4, gradient norm
clipped at 0.5) makes a step on 256 transitions of the last 100 rounds. The target is replaced every 2,000 rounds.
Actions follow Boltzmann's rule, and the temperature falls linearly from tau to 0.1 in 90,000 rounds. Another 10,000
rounds are played at 0.1 without learning.

  dr0.1, dr0.25, dr0.4   the dilemma Dr
  tau0.13, tau0.8        the initial temperature: little exploration or much

The arms need no language model; a seed is a history. Metrics:

  cooperation            in the last tenth
  gap                    mean absolute difference of the values of C and D, at the agents' observations
  payoff                 reward of a round

  python -m experiments lattice_network --seeds 10

Paper: How Exploration Breaks Cooperation (Weng & Lee) 2026, https://arxiv.org/abs/2601.05509, with 900 agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.tabular import q_network as network
from jaxmarl_llm.tabular.q_learning import boltzmann
from jaxmarl_llm.tabular.torus import OBSERVATIONS, dilemma, mean_payoff, observe

SIDE, TRAINED, PLAYED, POINTS, EVERY, RENEWED = 10, 90_000, 100_000, 100, 4, 2_000
KEPT, BATCH, STEPS, DISCOUNT, COLD, HIDDEN = 100, 256, 5, 0.99, 0.1, 96
SITES = SIDE * SIDE
SEEN = (jnp.arange(OBSERVATIONS)[:, None] >> jnp.arange(5)[None] & 1).astype(jnp.float32)  # [observations, bits]
OPTIMISER = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-4, weight_decay=1e-4))
Played = tuple[jax.Array, network.Memory]  # actions [side, side], memory of transitions


def a_round(
    played: Played,
    number: jax.Array,
    key: jax.Array,
    table: jax.Array,
    arm: Mapping[str, Any],
    owner: jax.Array | None = None,
) -> tuple[Played, dict[str, jax.Array]]:
    """One round in which all agents act by the network's values, `table` float32 [observations, 2].

    With several networks `table` is [networks, observations, 2], and `owner` int32 [side, side] is a site's network.
    """
    (act, memory), seen = played, observe(played[0])
    hot = COLD + (arm["tau"] - COLD) * jnp.maximum(1 - number / TRAINED, 0.0)
    value = table[seen] if owner is None else table[owner, seen]
    chance = jnp.exp(boltzmann(value, hot))[..., 1]
    act = (jax.random.uniform(jax.random.fold_in(key, number), seen.shape) < chance).astype(jnp.int32)
    reward = mean_payoff(act, dilemma(arm["dilemma"]))
    happened = (x.ravel() for x in (seen, act, reward, observe(act)))
    gap = jnp.abs(value[..., 1] - value[..., 0]).mean()
    measured = {"cooperation": 1 - act.mean(), "payoff": reward.mean(), "gap": gap}
    return (act, network.remember(memory, number, *happened)), measured


def history(key: jax.Array, arm: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Curves of POINTS means over the rounds, {metric: [POINTS]}."""
    start, init_key, draw, key = jax.random.split(key, 4)
    weights, everyone = network.init(init_key, 5, HIDDEN, 2), jnp.arange(SITES)
    act = jax.random.bernoulli(start, 0.5, (SIDE, SIDE)).astype(jnp.int32)

    def rounds(state: tuple, number: jax.Array) -> tuple[tuple, dict[str, jax.Array]]:
        """EVERY rounds, then one step of the network."""
        weights, moments, target, played = state
        first = EVERY * number
        play = partial(a_round, key=key, table=network.values(weights, SEEN), arm=arm)
        played, measured = jax.lax.scan(play, played, first + jnp.arange(EVERY))
        sample_key = jax.random.fold_in(draw, number)
        given = network.sample(played[1], first + EVERY - 1, sample_key, everyone, BATCH, STEPS, DISCOUNT)
        new = network.learn(weights, moments, target, given, SEEN, OPTIMISER)
        new = jax.tree.map(lambda x, old: jnp.where(first < TRAINED, x, old), new, (weights, moments))
        target = jnp.where((first + EVERY) % RENEWED == 0, network.values(new[0], SEEN), target)
        return (*new, target, played), jax.tree.map(jnp.mean, measured)

    state = weights, OPTIMISER.init(weights), network.values(weights, SEEN), (act, network.empty(KEPT, SITES))
    _, measured = jax.lax.scan(rounds, state, jnp.arange(PLAYED // EVERY))
    return jax.tree.map(lambda x: x.reshape(POINTS, -1).mean(1), measured)


DILEMMAS = {"dr0.1": 0.1, "dr0.25": 0.25, "dr0.4": 0.4}
HEAT = {"tau0.13": 0.13, "tau0.8": 0.8}
SETTINGS = {f"{x}/{heat}": {"dilemma": DILEMMAS[x], "tau": HEAT[heat]} for x, heat in product(DILEMMAS, HEAT)}


@jax.jit
def histories(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
    """{arm: curves}; all arms are computed side by side."""
    curves = jax.vmap(history, (None, 0))(key, jax.tree.map(lambda *x: jnp.array(x), *SETTINGS.values()))
    return {name: jax.tree.map(lambda x, i=i: x[i], curves) for i, name in enumerate(SETTINGS)}


COLLAPSE = "abstract of the HTML version: 'a robust cooperation collapse in shared DQN as exploration increases'"
GAPS = "abstract of the HTML version: the collapse coincides with action-value gaps that 'shrink systematically'"
STUDY = Study(
    paper=Paper("Cooperation Collapse (Weng & Lee)", "https://arxiv.org/abs/2601.05509", 2026, checked="release"),
    question="Does exploration break cooperation where all share one Q-network?",
    claim="Cooperation falls with exploration, and with the dilemma.",
    arms={name: Computed(histories, updates=POINTS, part=name) for name in SETTINGS},
    method="dr0.25/tau0.8",
    metrics=("cooperation", "payoff", "gap"),
    x="1,000 rounds",
    predictions=(
        *(Higher("cooperation", f"{x}/tau0.13", than=f"{x}/tau0.8", source="paper", where=COLLAPSE) for x in DILEMMAS),
        *(Higher("gap", f"{x}/tau0.13", than=f"{x}/tau0.8", source="paper", where=GAPS) for x in DILEMMAS),
        Higher(
            "cooperation",
            "dr0.1/tau0.8",
            than="dr0.4/tau0.8",
            source="paper",
            where="abstract of the HTML version: 'The collapse is most severe when payoffs strongly favor defection'",
        ),
        Higher(
            "cooperation",
            "dr0.1/tau0.13",
            than="dr0.4/tau0.13",
            source="theory",
            where="a stronger dilemma pays defection more; the abstract states severity at much exploration only",
        ),
    ),
)
