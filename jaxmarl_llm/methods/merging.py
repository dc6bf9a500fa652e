"""Merging: specialists of one game each, merges of them, and one policy of all games, compared by points in every game.

The numbers of computed arms, in one program: `Computed(partial(compare_merges, games=GAMES, updates=80), part=ARM)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.methods.several_games import Games, from_teacher, imitation_recipe, points_won, together
from jaxmarl_llm.models import loading, merging
from jaxmarl_llm.training.begin import train_stages, where_ended
from jaxmarl_llm.training.setup import TINY, setup

QUARTERS = 4


def compare_merges(
    key: jax.Array,
    hparams: Mapping[str, jax.Array],
    *,
    games: Games,
    updates: int,
    episodes: int = 512,
    within: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, dict[str, jax.Array]]:
    """{arm: {metric: [updates], measured after each quarter}} of one tiny policy. `hparams` is unused.

    Arms:

    - `base` imitates the scripts of all games; every other arm starts from it.
    - `together` trains in all games. An arm with a game's name is the specialist of that game.
    - `specialists` gives each specialist's points in its own game.
    - `average`, `sum/half`, `sum` and `ties` are merges of the specialists.
    - `distilled` learns from the specialists in half of the updates; its quarters stand at the places of the others'.

    Metrics: for every game, by its name, the mean points over `episodes` episodes; `gain`; and for the specialists the
    geometry of their task vectors (`merging.geometry`). The last two are over all games and, as "METRIC, NAME", over
    the games that `within` names. Raises ValueError unless `updates` is a multiple of 8.
    """
    if updates % (2 * QUARTERS):
        raise ValueError(f"updates must be a multiple of {2 * QUARTERS}, got {updates}.")
    every = tuple(task.game for task in games.values())  # one vocabulary in all arms
    fields = {"updates": updates, "warm_start": imitation_recipe(games, updates=updates)}
    pupil = {name: replace(task, advantage=from_teacher) for name, task in games.items()}
    parts = setup(together(games, every, **fields), TINY, sharding.mesh(), loading.load)
    (me,) = parts.learners
    base = where_ended(parts, key)[me]

    def train(taught: Games, state: Any = None, updates: int = updates) -> Any:
        recipe = together(taught, every, **{**fields, "updates": updates})
        return train_stages(parts, recipe, {me: base}, key, QUARTERS, state)[me]

    alone = {name: train({name: task}) for name, task in games.items()}
    models = tuple(alone.values())
    merged = lambda how, *models: jax.vmap(lambda *models: how(models))(*models)
    arms = {
        "base": jax.tree.map(lambda x: jnp.repeat(x[None], QUARTERS, 0), base),
        "together": train(games),
        **alone,
        "average": merged(merging.average, *models),
        "sum/half": merged(partial(merging.task_arithmetic, base, scale=0.5), *models),
        "sum": merged(partial(merging.task_arithmetic, base), *models),
        "ties": merged(partial(merging.ties, base), *models),
        "distilled": train(
            pupil, {name: {me: jax.tree.map(lambda x: x[-1], trained)} for name, trained in alone.items()}, updates // 2
        ),
    }
    weights = {me: jax.tree.map(lambda *x: jnp.concatenate(x), *arms.values())}  # [arms * QUARTERS, ...]
    won = jax.lax.map(partial(points_won, parts, games, jax.random.fold_in(key, 1), episodes), weights)
    measured = {arm: {name: x.reshape(-1, QUARTERS)[i] for name, x in won.items()} for i, arm in enumerate(arms)}
    measured["specialists"] = {game: measured[game][game] for game in games}
    more: dict[str, dict[str, jax.Array]] = {arm: {} for arm in measured}
    for subset, names in {"": tuple(games), **(within or {})}.items():
        called = lambda metric, subset=subset: f"{metric}, {subset}" if subset else metric
        best = {game: measured["specialists"][game][-1] for game in names}
        for arm, points in measured.items():
            more[arm][called("gain")] = gain(points, measured["base"], best)
        lie = merged(partial(merging.geometry, base), *(alone[name] for name in names))
        more["specialists"] |= {called(metric): x for metric, x in lie.items()}
    at = slice(updates // QUARTERS - 1, None, updates // QUARTERS)
    curve = lambda x: jnp.full(updates, jnp.nan).at[at].set(x)
    return {arm: jax.tree.map(curve, points | more[arm]) for arm, points in measured.items()}


def gain(arm: Mapping[str, Any], base: Mapping[str, Any], best: Mapping[str, Any]) -> Any:
    """The mean, over the games of `best`, of an arm's gain over the base divided by the best gain."""
    return sum((arm[game] - base[game]) / (best[game] - base[game]) for game in best) / len(best)


def arms_of(games: Games) -> tuple[str, ...]:
    """The names of the arms of `compare_merges`."""
    return "base", "together", *games, "specialists", "average", "sum/half", "sum", "ties", "distilled"
