"""Do fines by a group's norm, and imitation of successful members, sustain a common stock?

Ten harvesters share a stock R for 200 years. Each has three traits in [0, 1]: an effort e, a limit that it proposes for
all efforts, and a probability of watching. The norm is the median limit. A year has four steps:

1. Each harvester takes 0.1 e R. The stock then grows by g R (1 - R / 100), and it is lost below 1.
2. A harvester that watches observes one other. If the other's effort exceeds the norm, the watcher pays 1, the other is
   fined 3, and the other lowers its effort to the norm.
3. Limits change in proportion to the stock.
4. A fifth of the harvesters compare themselves with one other and may copy its traits, with a little noise. The
   probability of copying rises with the other's gain in that year.

An arm is named PLACE/START/CUSTOM:

  rich, scarce            g = 0.5 and R = 100 at first; g = 0.25 and R = 50
  altruistic, selfish     efforts and limits in 0 to 0.3, watching in 0.5 to 1; in 0.5 to 1, and in 0 to 0.5
  neither, fines, copying, both
  eager                   both, and all harvesters may copy every year

The arms need no language model; a seed is a history. Yields are shares of the maximum sustainable yield, which
efforts of g / 2 take. Metrics:

  stock                   share of the capacity
  alive, years            1 while some stock is left; the number of such years
  harvest, total harvest  yield of a year, and mean yield of all years
  effort, norm, watch     means
  fines                   number of fines a year

  python -m experiments commons --seeds 10

Paper: Social Learning and Collective Norm Formation (Gupta et al.) 2025, https://arxiv.org/abs/2510.14401. There the
agents are language models.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.methods.generations import imitation
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.computed import side_by_side
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study
from jaxmarl_llm.tabular.harvests import Common, harvest, impose_fines, sustainable_yield

AGENTS, YEARS, COST, FINE, INTENSITY, NOISE = 10, 200, 1.0, 3.0, 2.0, 0.02


def first(key: jax.Array, arm: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Traits of the first year, {name: float32 [agents]}."""
    effort, limit, watch = jax.random.uniform(key, (3, AGENTS))
    altruistic = {"effort": 0.3 * effort, "limit": 0.3 * limit, "watch": 0.5 * watch + 0.5}
    selfish = {"effort": 0.5 + 0.5 * effort, "limit": 0.5 + 0.5 * limit, "watch": 0.5 * watch}
    return select(arm, "start", altruistic=altruistic, selfish=selfish)


def a_year(
    traits: dict[str, jax.Array], stock: jax.Array, key: jax.Array, arm: Mapping[str, Any]
) -> tuple[dict[str, jax.Array], jax.Array, dict[str, jax.Array]]:
    """(traits, stock, metrics) after one year; the metrics describe the traits before it."""
    watch, whom, copy, turn = jax.random.split(key, 4)
    common, effort, norm = Common(arm["growth"]), traits["effort"], jnp.median(traits["limit"])
    seen = (jnp.arange(AGENTS) + jax.random.randint(whom, (AGENTS,), 1, AGENTS)) % AGENTS
    watches = jax.random.bernoulli(watch, traits["watch"]) & (stock > 0) & select(arm, "fines", none=False, norm=True)
    imposed, got = impose_fines(effort, norm, watches, seen)
    after, taken = harvest(common, stock, effort)
    learned = {
        "effort": jnp.where(got > 0, jnp.minimum(effort, norm), effort),
        "limit": jnp.clip(traits["limit"] * after / jnp.maximum(stock, common.least), 0, 1),
        "watch": traits["watch"],
    }
    copied, _ = imitation(learned, taken - COST * imposed - FINE * got, copy, intensity=INTENSITY, noise=NOISE)
    looks = jax.random.bernoulli(turn, arm["copying"], (AGENTS,))
    new = jax.tree.map(lambda old, x: jnp.where(looks, jnp.clip(x, 0, 1), old), learned, copied)
    measured = {"stock": after / common.capacity, "alive": (after > 0).astype(jnp.float32), "fines": imposed.sum()}
    measured |= {"harvest": taken.sum() / sustainable_yield(common), "norm": norm}
    return new, after, measured | {name: traits[name].mean() for name in ("effort", "watch")}


def history(key: jax.Array, arm: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Curves over the years, {metric: [years]}."""
    start, key = jax.random.split(key)

    def year(state: tuple, key: jax.Array) -> tuple[tuple, dict[str, jax.Array]]:
        traits, stock, measured = a_year(state[0], state[1], key, arm)
        return (traits, stock), measured

    return jax.lax.scan(year, (first(start, arm), arm["stock"]), jax.random.split(key, YEARS))[1]


PLACES = {"rich": {"growth": 0.5, "stock": 100.0}, "scarce": {"growth": 0.25, "stock": 50.0}}
CHOICES = {"start": ("altruistic", "selfish"), "fines": ("none", "norm")}
CUSTOMS = {
    "neither": ("none", 0.0),
    "fines": ("norm", 0.0),
    "copying": ("none", 0.2),
    "both": ("norm", 0.2),
    "eager": ("norm", 1.0),
}
SETTINGS: dict[str, dict[str, Any]] = {
    f"{place}/{start}/{name}": PLACES[place] | {"start": start, "fines": fines, "copying": copying}
    for place, start, (name, (fines, copying)) in product(PLACES, CHOICES["start"], CUSTOMS.items())
}
SHARE = "seeds 100 to 109: the share that compares itself was chosen between 1/20 and 1 before predictions were written"
STUDY = Study(
    paper=Paper("Norm Formation (Gupta et al.)", "https://arxiv.org/abs/2510.14401", 2025, checked="abstract"),
    question="Do fines by a group's norm, and copying of who earns more, keep a common stock alive?",
    claim="Fines and copying together keep the stock where selfish harvesting exhausts it, and bring more than fines "
    "alone; copying alone exhausts it, even from an altruistic start. Who copies every year is faster than the fines.",
    arms=side_by_side(history, SETTINGS, YEARS, CHOICES),
    method="rich/selfish/both",
    metrics=("stock", "years", "total harvest", "harvest", "effort", "norm", "watch", "fines"),
    derived={
        "years": lambda curves: curves["alive"].sum(1),
        "total harvest": lambda curves: curves["harvest"].mean(1),
    },
    x="year",
    censored={"years": YEARS},
    predictions=(
        *(
            Higher("stock", f"{place}/selfish/both", than=f"{place}/selfish/copying", source="pilot", where=SHARE)
            for place in PLACES
        ),
        *(
            Higher(
                "total harvest",
                f"{place}/selfish/both",
                than=f"{place}/selfish/fines",
                source="pilot",
                where=f"{SHARE}; 0.90 against 0.74",
            )
            for place in PLACES
        ),
        *(
            Higher(
                "stock", f"{place}/altruistic/{name}", than=f"{place}/altruistic/copying", source="pilot", where=SHARE
            )
            for name in ("neither", "both")
            for place in PLACES
        ),
        *(AtLeast("years", f"{place}/altruistic/both", YEARS, source="pilot", where=SHARE) for place in PLACES),
        *(
            AtMost(
                "years",
                f"{place}/selfish/eager",
                20,
                source="pilot",
                where="seeds 100 to 109: with all comparing themselves, fines with copying lost the stock from every "
                "selfish start",
            )
            for place in PLACES
        ),
    ),
    checks=tuple(AtMost("years", f"{place}/selfish/{name}", 20) for place in PLACES for name in ("neither", "copying")),
)
