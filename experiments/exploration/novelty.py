"""Should novelty count over the whole run or within an episode? Global and episodic bonuses in mazes.

One seat walks from a start to a goal, ten steps away, within eleven turns. It is told its place and the open ways.
The goal pays 1; a random player reaches it in one game of 170,000. A bonus is added for the observation that a step
leads to. N counts this observation over the run, with the batch itself; n counts it within the episode. Policies begin
at random. An act is credited with its discounted return-to-go, normalised over the same turn of the group's eight
games, which have the same maze.

  none      no bonus
  global    0.1 / sqrt(N)
  episodic  0.1 if n = 1, else 0
  product   0.1 / sqrt(N) if n = 1, else 0

  corridors/*  four corridors of ten steps leave the start, and one has the goal at its end; always the same maze
  fresh/*      a winding path of ten steps, one of 64, drawn for each group
  one/*        the path of one map, drawn with the seed, in all games

  reached  share of games that reach the goal
  places   distinct observations of a game after its first

  python -m experiments novelty --seeds 20

Paper: Henaff, Jiang and Raileanu 2023, https://arxiv.org/abs/2306.03236. Its figures were read in an earlier version.
There the agent sees the map, its place alone is counted, and rewards are clipped at 1. The bonus is divided by its
running deviation, and weights of 0.1, 1 and 10 are tried.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.solo.maze import STEPS, Maze, draw_map, wind
from jaxmarl_llm.rl import advantages, counts
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, NotLower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

LENGTH, TURNS, SIZE, PATHS, GROUPS = 10, 11, 7, 64, 8
REACHED, PLACES = "reached", "places"
STAR = [(LENGTH + row * n, LENGTH + column * n) for row, column in STEPS for n in range(LENGTH + 1)]
WINDING = [wind(np.random.default_rng(number), LENGTH, SIZE) for number in range(PATHS)]
MAPS = [draw_map(path) for path in (STAR, *WINDING)]
MAZE = Maze(MAPS[0], TURNS, cost=0.0, more=tuple(MAPS[1:]), bumps=False)
START = [plan.cells.index(path[0]) for plan, path in zip(MAZE.plans, (STAR, *WINDING), strict=True)]


def begin(parts: Parts, key: jax.Array) -> dict[str, Any]:
    return {"counts": counts.empty(), "path": jax.random.randint(key, (), 1, PATHS + 1)}


def place(hparams: Hparams, state: dict[str, Any], key: jax.Array, number: jax.Array) -> Arranged:
    """The map of each group, and its start."""
    drawn = jax.random.randint(key, (GROUPS,), 1, PATHS + 1)
    chosen = select(hparams, "maps", corridors=0, fresh=drawn, one=state["path"])
    return Arranged(deal=(jnp.asarray(START, jnp.int32)[chosen], jnp.ones(GROUPS, jnp.int32), chosen))


def estimate_advantages(experience: Experience, hparams: Hparams, state: dict[str, Any]) -> Advantages:
    episodes = experience.episodes
    names, where = counts.arrivals(episodes.told, episodes.acted)
    table = state["counts"].add(names, where)
    first = counts.within_episode(names, where) == 1
    everywhere = where / jnp.sqrt(jnp.maximum(table.visits_to(names), 1))
    kinds = {"none": 0.0, "global": everywhere, "episodic": first, "product": first * everywhere}
    paid = episodes.reward[..., 0] + hparams["weight"] * select(hparams, "bonus", **kinds)
    credit = advantages.turn_wise(paid, *experience.acts, returns="to_go", gamma=hparams["gamma"])
    metrics = {PLACES: first.sum() / len(first), "collisions": table.collisions}
    return Advantages(credit, state=state | {"counts": table}, metrics=metrics)


NONE = Recipe(
    MAZE,
    seats=(("learner",),),
    advantage=estimate_advantages,
    arrange=place,
    init_state=begin,
    hparams={"learning_rate": 2e-3, "weight": 0.1, "gamma": 0.9},
    choices={"maps": ("corridors", "fresh", "one"), "bonus": ("none", "global", "episodic", "product")},
    budget=1,
    updates=150,
    groups=GROUPS,
    group_size=8,
    measure=partial(component_returns, reached=0),
    pretrained={"budget": 4},
)
CONTEXTS = (
    "Figure 2 of the earlier version: global falls as maps become more, episodic stays high; 0.86 without repetition"
)
CORRIDORS = "Section 3.2 and Figure 4 of the earlier version: one fixed map of corridors, global succeeds in all seeds"
ROBUST = 'abstract: "combining the two bonuses can lead to more robust performance"; Figure 6 of the earlier version'
HARD = "Without a bonus the goal must be rare, or nothing is to be explored. Our level."
LEARNT = "Figure 2 of the earlier version: with one map global is perfect. Our level."
STUDY = Study(
    paper=Paper("Global and episodic bonuses (Henaff et al.)", "https://arxiv.org/abs/2306.03236", 2023, "release"),
    question="Should novelty count over the whole run or within an episode?",
    claim="Episodic bonuses win where maps vary, global ones in one map of corridors, and their product is robust.",
    arms={
        f"{maps}/{bonus}": NONE.with_choice(maps=maps, bonus=bonus)
        for maps in ("corridors", "fresh", "one")
        for bonus in ("none", "global", "episodic", "product")
        if maps != "one" or bonus == "global"
    },
    method="fresh/product",
    metrics=(REACHED, PLACES),
    predictions=(
        Higher(REACHED, "fresh/episodic", than="fresh/global", source="paper", where=CONTEXTS),
        Higher(REACHED, "corridors/global", than="corridors/episodic", source="paper", where=CORRIDORS),
        NotLower(REACHED, "fresh/product", than="fresh/episodic", by=0.05, source="paper", where=ROBUST),
        NotLower(REACHED, "corridors/product", than="corridors/global", by=0.05, source="paper", where=ROBUST),
        Higher(REACHED, "one/global", than="fresh/global", source="paper", where=CONTEXTS),
        *(
            AtMost(REACHED, f"{x}/none", 0.1, source="theory", where=HARD, condition=True)
            for x in ("corridors", "fresh")
        ),
        AtLeast(REACHED, "one/global", 0.5, source="theory", where=LEARNT, condition=True),
    ),
)
