"""Meta-solvers: which mixture of a pool a league plays against. Pure functions of a pay-off table.

Those of a league take the pool and `payoff` float32 [N, N], the row's earnings against the column in a symmetric
zero-sum game (antisymmetric). They return a distribution float32 [N] over the members of the pool.

The last functions solve two-player games of any sum. There `payoffs` are two tables float32, [N, M] and [M, N]: what a
player earns, by its own action and the other's.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.returns import Number

Pair = tuple[jax.Array, jax.Array]  # a table or a strategy of each of two players


class Pool(NamedTuple):
    """The members of a league."""

    times: jax.Array  # int32 [N], how often a strategy has joined
    newest: jax.Array  # int32, the last one that joined

    def join(self, strategy: jax.Array) -> Pool:
        """The pool with a further member."""
        return Pool(self.times.at[strategy].add(1), strategy)


def latest(payoff: jax.Array, pool: Pool) -> jax.Array:
    """The newest alone: self-play."""
    return jax.nn.one_hot(pool.newest, len(pool.times))


def uniform(payoff: jax.Array, pool: Pool) -> jax.Array:
    """All members alike, who joined twice twice: with best responses as new members, this is fictitious play.

    Brown, Iterative Solution of Games by Fictitious Play (1951).
    """
    return pool.times / pool.times.sum()


def pfsp(payoff: jax.Array, pool: Pool, *, power: float = 2.0) -> jax.Array:
    """In proportion to (1 - x)^power, x the newest's chance to win, sigmoid(payoff): those that it loses to.

    Vinyals et al., Grandmaster level in StarCraft II using multi-agent reinforcement learning (2019, AlphaStar),
    https://doi.org/10.1038/s41586-019-1724-z: prioritised fictitious self-play.
    """
    weight = pool.times * (1 - jax.nn.sigmoid(payoff[pool.newest])) ** power
    return weight / weight.sum()


def nash(payoff: jax.Array, pool: Pool, *, risk: float = 0.0, steps: int = 2000) -> jax.Array:
    """The average strategy of regret matching+ in self-play: a Nash equilibrium of the pool as steps grow.

    With `risk`, a strategy's utility against the mixture is its mean pay-off less `risk` times its variance. The result
    is a heuristic for the risk-averse equilibrium: no theorem says that it converges.

    Tammelin, Solving Large Imperfect Information Games Using CFR+ (2014), https://arxiv.org/abs/1407.5042
    Slumbers et al., A Game-Theoretic Framework for Managing Risk in Multi-Agent Systems (2022),
    https://arxiv.org/abs/2205.15434
    """
    there = pool.times > 0

    def mixture(regret: jax.Array) -> jax.Array:
        total = regret.sum()
        return jnp.where(total > 0, regret / jnp.where(total > 0, total, 1), there / there.sum())

    def step(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        regret, average = carry
        now = mixture(regret)
        mean = payoff @ now
        utility = mean - risk * ((payoff**2) @ now - mean**2)
        regret = jnp.where(there, jnp.maximum(regret + utility - now @ utility, 0), 0)
        return regret, average + (i + 1) * now  # later ones weigh more

    _, average = jax.lax.fori_loop(0, steps, step, (jnp.zeros(len(there)), jnp.zeros(len(there))))
    return average / average.sum()


def alpha_rank(payoff: jax.Array, pool: Pool, *, epsilon: float = 1e-4, tie: float = 1e-9) -> jax.Array:
    """The stationary distribution of the response graph, from a strategy to those that beat it, alike.

    Steps to equals are half as often. Steps to losing strategies have chance `epsilon`, so that the result is unique.

    Omidshafiei et al., alpha-Rank: Multi-Agent Evaluation by Evolution (2019), https://arxiv.org/abs/1903.01373, with
    one population and infinite intensity of selection.
    """
    there, n = pool.times > 0, len(pool.times)
    gain = payoff.T  # [from, to]: what the other earns against this one
    rate = jnp.where(gain > tie, 1 - epsilon, jnp.where(gain < -tie, epsilon, 0.5))
    rate = jnp.where(there[:, None] & there[None] & ~jnp.eye(n, dtype=bool), rate, 0) / jnp.maximum(there.sum() - 1, 1)
    flow = rate.T - jnp.diag(rate.sum(1))  # chain in continuous time: flow @ stationary = 0
    system = jnp.where(there[:, None], flow, jnp.eye(n)).at[pool.newest].set(there.astype(flow.dtype))
    stationary = jnp.linalg.solve(system, jax.nn.one_hot(pool.newest, n))
    stationary = jnp.where(there, jnp.maximum(stationary, 0), 0)
    return stationary / stationary.sum()


risk_averse = partial(nash, risk=0.2)


def exploitability(payoff: jax.Array, mixture: jax.Array) -> jax.Array:
    """The earnings of the best response to a mixture [N], among all strategies; 0 at an equilibrium."""
    return (payoff @ mixture).max()


def risk_averse_response(
    payoff: jax.Array, strategy: jax.Array, other: jax.Array, *, risk: Number = 0.0, temperature: Number = 0.1
) -> jax.Array:
    """softmax(g / temperature) [N], g the gradient of mean less risk times variance at `strategy` [N].

    `payoff` is [N, M] and `other` [M] the other player's strategy. The variance over the other's action is
    strategy' C strategy, where C is the covariance of the rows of `payoff` under `other`. Therefore
    g = payoff other - 2 risk C strategy. A strategy that responds to itself maximises the mean, less risk times the
    variance, plus temperature times its entropy.

    Slumbers et al., A Game-Theoretic Framework for Managing Risk in Multi-Agent Systems (2022),
    https://arxiv.org/abs/2205.15434
    """
    mean = payoff @ other
    spread = payoff - mean[:, None]
    return jax.nn.softmax((mean - 2 * risk * (spread * other[None]) @ (strategy @ spread)) / temperature)


def fictitious_round(
    payoffs: Pair,
    averages: Pair,
    age: Number,
    key: jax.Array | None = None,
    *,
    risk: Number = 0.0,
    temperature: Number = 0.1,
    tremble: Number = 0.0,
) -> tuple[Pair, Pair]:
    """A round of smoothed fictitious play: (strategies [N] and [M] of the round, averages after it).

    Both players respond to the average play of both so far, which is `age` rounds old. With probability `tremble` an
    action is uniform at random instead. With a key, an action of each is drawn and enters the averages; without one,
    its probabilities do. `risk` and `temperature` are those of `risk_averse_response`.

    Fudenberg and Levine, The Theory of Learning in Games (1998), chapter 4
    """
    keys = (None, None) if key is None else jax.random.split(key)
    plays, after = [], []
    for seat, payoff in enumerate(payoffs):
        strategy, other = averages[seat], averages[1 - seat]
        intended = risk_averse_response(payoff, strategy, other, risk=risk, temperature=temperature)
        play = (1 - tremble) * intended + tremble / len(intended)
        seen = play
        if (drawn := keys[seat]) is not None:
            seen = jax.nn.one_hot(jax.random.categorical(drawn, jnp.log(play)), len(play))
        plays.append(play)
        after.append(strategy + (seen - strategy) / (age + 1))
    return (plays[0], plays[1]), (after[0], after[1])


def fictitious_play(
    payoffs: Pair,
    start: Pair,
    *,
    risk: Number = 0.0,
    temperature: Number = 0.1,
    tremble: Number = 0.0,
    steps: int = 5000,
) -> Pair:
    """The averages [N] and [M] of both players after `steps` rounds without chance, from the averages `start`.

    The start selects among several equilibria, and counts as one round. The options are those of `fictitious_round`.
    For risk 0 it converges in zero-sum and potential games.

    Hofbauer and Sandholm, On the Global Convergence of Stochastic Fictitious Play (2002)
    """

    def step(i: jax.Array, averages: Pair) -> Pair:
        _, after = fictitious_round(payoffs, averages, i + 1, risk=risk, temperature=temperature, tremble=tremble)
        return after

    return jax.lax.fori_loop(0, steps, step, (jnp.asarray(start[0], float), jnp.asarray(start[1], float)))
