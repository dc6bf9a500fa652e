"""How much do two partners invest for each other's sake? Coopetition's equilibria, and the baseline of its figures.

Partner i invests a_i between 0.01 and 100, is paid p_i, and wants p_i + D_i p_j:

  p_i = 100 - a_i + f(a_i) + alpha_i gamma sqrt(a_1 a_2)

An equilibrium is a pair of best responses. The case is a joint venture of Samsung and Sony: alpha is 0.55 and 0.45, D
0.64 and 0.86. A seed changes all four by up to 15%, as in the release's trials. Investment is worth f(a) = a^0.75 with
gamma 0.5, or 20 log(1 + a) with gamma 0.65. `rise` is the mean investment divided by that of a baseline, less 1:

  power, log                           the baseline has D = 0: the rise by interdependence
  power/as_released, log/as_released   the baseline has D = 0 and gamma = 0, as in the release
  power/synergy, log/synergy           D = 0, and the baseline has gamma = 0: the rise by synergy
  log/small                            as log, with f scaled to power's investment of 0.32 without synergy; gamma 0.5
  log/tiny                             as log/small, scaled to a tenth of that investment

Without synergy D changes nothing, because an investment then pays its partner nothing.

The arms need no language model; a seed is a case. Metrics:

  rise        rise of the mean investment
  aligned     1 if the rise is within 15% and 50%, the paper's record of the case; else 0
  investment  mean investment

  python -m experiments coopetition --seeds 20

Paper: Strategic Coopetition (Pant & Yu) 2025, https://arxiv.org/abs/2510.18802. It reports rises of 166% (power) and
41% (log). These are rises against D = 0 and gamma = 0, with the partners' D exchanged. The release has since put D
right (170% and 42%).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, Paper, Study

ALPHA, DEPENDENCE, NOISE, LEAST, MOST = (0.55, 0.45), (0.64, 0.86), 0.15, 0.01, 100.0
ROUNDS, HALVINGS = 60, 40
Slope = Callable[[jax.Array], jax.Array]  # the derivative of f


def power(a: jax.Array) -> jax.Array:
    """The slope of a^0.75."""
    return 0.75 * a**-0.25


def log(a: jax.Array, scale: float = 20.0) -> jax.Array:
    """The slope of scale log(1 + a)."""
    return scale / (1 + a)


def best_response(slope: Slope, weight: jax.Array, other: jax.Array) -> jax.Array:
    """The investments a [2] in [LEAST, MOST] at which slope(a) + weight sqrt(other / a) / 2 = 1, by bisection of log a.

    `weight` [2] is gamma (alpha_i + D_i alpha_j), the worth of sqrt(a_1 a_2); `other` is [2]. The left side falls in a.
    """

    def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        middle = jnp.sqrt(ends[0] * ends[1])
        more = slope(middle) + weight * jnp.sqrt(other / middle) / 2 > 1
        return jnp.where(more, middle, ends[0]), jnp.where(more, ends[1], middle)

    low, high = jax.lax.fori_loop(0, HALVINGS, halve, (jnp.full(2, LEAST), jnp.full(2, MOST)))
    return jnp.sqrt(low * high)


def equilibrium(slope: Slope, gamma: float, alpha: jax.Array, dependence: jax.Array) -> jax.Array:
    """Investments [2] after ROUNDS simultaneous best responses, from 10; `alpha` and `dependence` are [2]."""
    weight = gamma * (alpha + dependence * alpha[::-1])
    respond = lambda _, a: best_response(slope, weight, a[::-1])
    return jax.lax.fori_loop(0, ROUNDS, respond, jnp.full(2, 10.0))


def draw_case(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(alpha [2], D [2]) of a case; alpha adds up to 1, and D is at most 1."""
    noise = 1 + jax.random.uniform(key, (2, 2), minval=-NOISE, maxval=NOISE)
    alpha = jnp.array(ALPHA) * noise[0]
    return alpha / alpha.sum(), jnp.minimum(jnp.array(DEPENDENCE) * noise[1], 1)


def measure(key: jax.Array, _: object, slope: Slope, gamma: float, by: tuple[str, ...]) -> dict[str, jax.Array]:
    """Metrics of an arm whose rise is that by "interdependence", "synergy" or both."""
    alpha, dependence = draw_case(key)
    before = equilibrium(slope, gamma * ("synergy" not in by), alpha, jnp.zeros(2)).mean()
    after = equilibrium(slope, gamma, alpha, dependence * ("interdependence" in by)).mean()
    rise = after / before - 1
    return {"rise": rise, "investment": after, "aligned": ((rise >= 0.15) & (rise <= 0.5)).astype(jnp.float32)}


def arms(name: str, slope: Slope, gamma: float) -> dict[str, Computed]:
    """The three arms of a value function."""
    by = {"": ("interdependence",), "/as_released": ("interdependence", "synergy"), "/synergy": ("synergy",)}
    return {name + end: Computed(partial(measure, slope=slope, gamma=gamma, by=parts)) for end, parts in by.items()}


SMALL = 0.75**4  # the slope of a^0.75 is 1 here
SCALED = {f"log/{x}": partial(log, scale=1 + a) for x, a in (("small", SMALL), ("tiny", SMALL / 10))}
FIGURES = "README of the release, key results: {}166% (power) and 41% (log){}"
ZERO = FIGURES.format("cooperation increase ", "; its score calls the baseline 'zero interdependence'")
ELASTIC = "If its cost falls by a small share, investment rises by 4 times that (power), (1 + a) / a times (log): {}."
STUDY = Study(
    paper=Paper("Strategic Coopetition (Pant & Yu)", "https://arxiv.org/abs/2510.18802", 2025, checked="release"),
    question="How much do two partners invest for each other's sake?",
    claim="Interdependence raises investment, by 41% with logarithmic values and by 166% with a power.",
    arms=arms("power", power, 0.5)
    | arms("log", log, 0.65)
    | {name: arms(name, slope, 0.5)[name] for name, slope in SCALED.items()},
    method="log",
    metrics=("rise", "aligned", "investment"),
    predictions=(
        Lower("rise", "log", than="power", source="paper", where=FIGURES.format("cooperation increase ", "")),
        AtLeast("rise", "log", 0.41, source="paper", where=ZERO),
        AtLeast("rise", "power", 1.66, source="paper", where=ZERO),
        Lower("rise", "log/small", than="power", source="theory", where=ELASTIC.format("under 4 if a is above 1/3")),
        Higher("rise", "log/tiny", than="power", source="theory", where=ELASTIC.format("over 4 if a is below 1/3")),
        Higher("rise", "log/synergy", than="log", source="pilot", where="Seeds 100 to 119: 0.204 against 0.182."),
    ),
)
