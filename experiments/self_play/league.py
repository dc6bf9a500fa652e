"""Against which of its past selves should a league train? Five meta-solvers in random games of skill, exactly.

A game has 60 strategies: each has a skill, and each pair a random edge of its own, so that equals beat each other in
cycles. A league begins with one strategy. In each of 30 updates the meta-solver mixes its members, and the exact best
response to the mixture joins: what a perfect learner would become. Nothing is trained: these arms are computed. A seed
is a game, and the strategy that the league begins with.

  exploitability   what the best strategy of all earns against the mixture (the curve; an equilibrium has 0)
  variance         of the pay-off of the mixture against itself

The meta-solvers of `evaluation.meta_solvers`: `latest` is self-play, `uniform` fictitious play, `pfsp` AlphaStar's,
`nash` PSRO's (double oracle, as best responses are exact), `alpha_rank` as in alpha-PSRO, `risk_averse` as in RAE-PSRO.

  python -m experiments league --seeds 10

Papers: PSRO (Lanctot et al.) 2017, https://arxiv.org/abs/1711.00832; games of skill, https://arxiv.org/abs/2004.09468;
alpha-PSRO (Muller et al.), https://arxiv.org/abs/1909.12823; RAE (Slumbers et al.), https://arxiv.org/abs/2205.15434.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.evaluation import meta_solvers
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study

STRATEGIES, UPDATES = 60, 30


def game_of_skill(key: jax.Array, cycles: jax.Array) -> jax.Array:
    """Pay-offs [N, N], antisymmetric: the difference of two normal skills, and `cycles` times a normal edge."""
    skill_key, edge_key = jax.random.split(key)
    skill = jax.random.normal(skill_key, (STRATEGIES,))
    edge = jax.random.normal(edge_key, (STRATEGIES, STRATEGIES))
    return skill[:, None] - skill[None] + cycles * (edge - edge.T) / jnp.sqrt(2.0)


def league(key: jax.Array, hparams: Mapping[str, jax.Array], *, solver: Callable) -> dict[str, jax.Array]:
    """The curves of one league."""
    game_key, first_key = jax.random.split(key)
    payoff = game_of_skill(game_key, hparams["cycles"])
    first = jax.random.randint(first_key, (), 0, STRATEGIES)

    def update(pool: meta_solvers.Pool, number: jax.Array) -> tuple[meta_solvers.Pool, dict[str, jax.Array]]:
        mixture = solver(payoff, pool)
        best = (payoff @ mixture).argmax()
        measured = {
            "exploitability": meta_solvers.exploitability(payoff, mixture),
            "variance": mixture @ (payoff**2) @ mixture,
            "members": (pool.times > 0).sum(),
        }
        return pool.join(best), measured

    begun = meta_solvers.Pool(jnp.zeros(STRATEGIES, jnp.int32), first).join(first)
    return jax.lax.scan(update, begun, jnp.arange(UPDATES))[1]


SOLVERS: dict[str, Callable] = {
    "latest": meta_solvers.latest,
    "uniform": meta_solvers.uniform,
    "pfsp": meta_solvers.pfsp,
    "nash": meta_solvers.nash,
    "alpha_rank": meta_solvers.alpha_rank,
    "risk_averse": meta_solvers.risk_averse,
}
STUDY = Study(
    paper=Paper("PSRO (Lanctot et al.)", "https://arxiv.org/abs/1711.00832", 2017, checked="paper"),
    question="Against which of its past selves should a league train?",
    claim="Best responses to the pool's Nash equilibrium leave the least to exploit; those to the latest cycle.",
    arms={name: Computed(partial(league, solver=solver), {"cycles": 1.0}, UPDATES) for name, solver in SOLVERS.items()},
    method="nash",
    metrics=("exploitability", "variance", "members"),
    predictions=(
        Lower("exploitability", "nash", than="latest"),
        Lower("exploitability", "nash", than="uniform"),
        Lower("exploitability", "nash", than="pfsp"),
        Lower("exploitability", "pfsp", than="latest"),
        Lower("exploitability", "alpha_rank", than="latest"),
        Lower("variance", "risk_averse", than="nash"),
        Higher("exploitability", "risk_averse", than="nash"),
    ),
)
