"""Which matches rank a population with the fewest? Three ways to choose matches for alpha-Rank from noisy results.

Ten strategies of a random game of skill play each other; a match is won with probability sigmoid(payoff). Each of 40
updates plays 90 matches. alpha-Rank then ranks the table of win rates; it depends only on the winner of each pair. A
seed is 32 populations and the luck of their matches. Nothing is trained: these arms are computed.

  uniform         all pairs alike
  hoeffding       only pairs whose Hoeffding interval of the win rate contains one half; all pairs if there are none
  clopper         as hoeffding, with the exact binomial (Clopper-Pearson) interval, which is never wider

Metrics:

  distance        total variation distance between alpha-Rank of the win rates and of the true probabilities (the curve)
  edges right     share of pairs whose estimated winner is the true one
  resolved        share of pairs whose 90% interval excludes one half

  python -m experiments ranking --seeds 10

Papers: Rowland et al., Multiagent Evaluation under Incomplete Information (2019), https://arxiv.org/abs/1909.09849;
alpha-Rank (Omidshafiei et al.) 2019, https://arxiv.org/abs/1903.01373.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax.scipy.special import betainc

from jaxmarl_llm.evaluation import meta_solvers
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study

STRATEGIES, UPDATES, MATCHES, POPULATIONS, LEVEL = 10, 40, 90, 32, 0.1
FIRST, SECOND = jnp.triu_indices(STRATEGIES, 1)  # pairs
PAIRS = len(FIRST)


def hoeffding(wins: jax.Array, played: jax.Array) -> jax.Array:
    """bool [pairs]: the Hoeffding interval of the win rate excludes one half."""
    width = jnp.sqrt(jnp.log(2 / LEVEL) / (2 * jnp.maximum(played, 1)))
    return jnp.abs(wins / jnp.maximum(played, 1) - 0.5) > width


def clopper(wins: jax.Array, played: jax.Array) -> jax.Array:
    """bool [pairs]: the exact interval excludes one half.

    For equal strategies, results at least this one-sided in the same direction have a chance below LEVEL / 2."""
    least = jnp.minimum(wins, played - wins)
    tail = betainc(played - least, least + 1.0, 0.5)  # probability of at most `least` wins
    return (played > 0) & (tail < LEVEL / 2)


def nobody(wins: jax.Array, played: jax.Array) -> jax.Array:
    """bool [pairs]: no pair is settled."""
    return jnp.zeros(PAIRS, bool)


def rank_policies(rates: jax.Array) -> jax.Array:
    """alpha-Rank [strategies] from the probability [pairs] that a pair's first strategy wins."""
    gain = jnp.zeros((STRATEGIES, STRATEGIES)).at[FIRST, SECOND].set(rates - 0.5)
    pool = meta_solvers.Pool(jnp.ones(STRATEGIES, jnp.int32), jnp.int32(0))
    return meta_solvers.alpha_rank(gain - gain.T, pool)


def rank(key: jax.Array, hparams: Mapping[str, jax.Array], *, settled: Callable) -> dict[str, jax.Array]:
    """The curves of one seed: means over its POPULATIONS."""
    curves = jax.vmap(lambda key: population(key, hparams["stakes"], settled))(jax.random.split(key, POPULATIONS))
    return jax.tree.map(lambda x: x.mean(0), curves)


def population(key: jax.Array, stakes: jax.Array, settled: Callable) -> dict[str, jax.Array]:
    """The curves [UPDATES] of one population."""
    game_key, match_key = jax.random.split(key)
    skill_key, edge_key = jax.random.split(game_key)
    skill, edge = jax.random.normal(skill_key, (STRATEGIES,)), jax.random.normal(edge_key, (PAIRS,))
    truth = jax.nn.sigmoid(stakes * (skill[FIRST] - skill[SECOND] + edge))
    exact = rank_policies(truth)

    def update(carry: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[tuple, dict[str, jax.Array]]:
        wins, played = carry
        open_ = ~settled(wins, played)
        open_ = jnp.where(open_.any(), open_, True)
        # equal shares of the matches; the remainder goes to the pairs with the fewest so far
        order = jnp.argsort(jnp.where(open_, played, jnp.inf))
        share, rest = jnp.divmod(MATCHES, open_.sum())
        more = jnp.where(open_, share, 0).at[order].add(jnp.where(jnp.arange(PAIRS) < rest, 1, 0))
        luck = jax.random.uniform(key, (PAIRS, MATCHES)) < truth[:, None]
        wins = wins + (luck & (jnp.arange(MATCHES)[None] < more[:, None])).sum(1)
        played = played + more
        rates = jnp.where(played > 0, wins / jnp.maximum(played, 1), 0.5)
        measured = {
            "distance": jnp.abs(rank_policies(rates) - exact).sum() / 2,
            "edges right": ((rates > 0.5) == (truth > 0.5)).mean(),
            "resolved": clopper(wins, played).mean(),
        }
        return (wins, played), measured

    start = jnp.zeros(PAIRS), jnp.zeros(PAIRS)
    return jax.lax.scan(update, start, jax.random.split(match_key, UPDATES))[1]


RULES: dict[str, Callable] = {"uniform": nobody, "hoeffding": hoeffding, "clopper": clopper}
STUDY = Study(
    paper=Paper(
        "alpha-Rank under noise (Rowland et al.)", "https://arxiv.org/abs/1909.09849", 2019, checked="abstract"
    ),
    question="Which matches rank a population with the fewest?",
    claim="Matches of pairs that are not decided yet rank more exactly than as many of all pairs.",
    arms={name: Computed(partial(rank, settled=rule), {"stakes": 0.5}, UPDATES) for name, rule in RULES.items()},
    method="clopper",
    metrics=("distance", "edges right", "resolved"),
    predictions=(
        *(
            Lower(
                "distance",
                rule,
                than="uniform",
                source="theory",
                where="alpha-Rank depends on the winner of each pair alone; more matches of a decided pair change no "
                "winner.",
            )
            for rule in ("clopper", "hoeffding")
        ),
        *(
            Higher(
                "edges right",
                rule,
                than="uniform",
                source="theory",
                where="Close pairs get more matches, so fewer of their estimated winners are wrong.",
            )
            for rule in ("clopper", "hoeffding")
        ),
    ),
    checks=(Higher("resolved", "clopper", than="uniform"), Higher("resolved", "clopper", than="hoeffding")),
    x="90 matches",
)
