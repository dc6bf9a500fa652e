"""Which of its past selves should a league train against? Six meta-solvers in random games of skill, solved exactly.

A game has 60 strategies. The payoff of a pair is the difference of two random skills plus a random term of the pair.
Equally skilled strategies therefore beat each other in cycles. A league begins with one strategy. In each of 30 updates
the meta-solver mixes the league's members, and the exact best response to the mixture joins them. A best response is
the result of perfect learning. Nothing is trained: these arms are computed. A seed is a game and the league's first
strategy.

  latest       self-play: the last member
  uniform      fictitious play: all members alike
  pfsp         AlphaStar's prioritised fictitious self-play
  nash         PSRO's Nash equilibrium (double oracle, because best responses are exact)
  alpha_rank   as in alpha-PSRO
  risk_averse  as in RAE-PSRO

Metrics:

  exploitability  payoff of the best of all strategies against the mixture (the curve); 0 at an equilibrium
  variance        variance of the payoff of the mixture against itself
  members         number of different strategies in the league

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
    """Antisymmetric payoffs [N, N]: difference of two normal skills plus `cycles` times a normal term of the pair."""
    skill_key, edge_key = jax.random.split(key)
    skill = jax.random.normal(skill_key, (STRATEGIES,))
    edge = jax.random.normal(edge_key, (STRATEGIES, STRATEGIES))
    return skill[:, None] - skill[None] + cycles * (edge - edge.T) / jnp.sqrt(2.0)


def league(key: jax.Array, hparams: Mapping[str, jax.Array], *, solver: Callable) -> dict[str, jax.Array]:
    """The curves [UPDATES] of one league."""
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

    pool = meta_solvers.Pool(jnp.zeros(STRATEGIES, jnp.int32), first).join(first)
    return jax.lax.scan(update, pool, jnp.arange(UPDATES))[1]


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
        Lower(
            "exploitability",
            "nash",
            than="latest",
            source="theory",
            where="Exact best responses to the pool's Nash equilibrium are double oracle, which stops at an "
            "equilibrium; the last member alone cycles.",
        ),
        Lower(
            "exploitability",
            "nash",
            than="uniform",
            source="theory",
            where="Double oracle stops at an equilibrium; fictitious play approaches it slowly, at a rate near "
            "1/sqrt(n).",
        ),
        Lower(
            "exploitability",
            "nash",
            than="pfsp",
            source="theory",
            where="Double oracle stops at an equilibrium; pfsp has no such guarantee.",
        ),
        Lower(
            "exploitability",
            "pfsp",
            than="latest",
            source="theory",
            where="The next member of a cycle beats the last member, and not all members of a mixture.",
        ),
        Lower(
            "exploitability",
            "alpha_rank",
            than="latest",
            source="theory",
            where="A mixture over a cycle is less exploitable than one of its members.",
        ),
        Lower(
            "variance",
            "risk_averse",
            than="nash",
            source="paper",
            where="RAE, abstract: the equilibrium 'minimises the potential variance in reward'.",
        ),
        Higher(
            "exploitability",
            "risk_averse",
            than="nash",
            source="theory",
            where="A mixture that also minimises variance gives up some of the minimum of exploitability in the "
            "pool's game.",
        ),
    ),
    x="member joined",
)
