"""Specialists of one game each, what they merge to, and one policy of all games: what each wins in every game.

The numbers of computed arms, in one program: `Computed(partial(compared, games=GAMES, updates=80), part=ARM)`.
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
    """{arm: {metric: [updates], measured after each quarter}} of one tiny policy; `hparams` are each recipe's own.

    Arms: `base`, which imitates the scripts of all games; from there `together`, and of every game, by its name, a
    specialist; of all those, each in its own game, `specialists`; their merges `average`, `sum/half`,
    `sum` and `ties`; `distilled` from them in half of the updates, whose quarters stand where those of the others do.
    Metrics: of every game, by its name, the points in so many `episodes`; `gain`, and of the specialists how their task
    vectors lie (`merging.geometry`), both over all games and, as "METRIC, NAME", over the games `within` names.
    Raises ValueError unless the updates have quarters and halves of quarters.
    """
    if updates % (2 * QUARTERS):
        raise ValueError(f"updates must be a multiple of {2 * QUARTERS}, got {updates}.")
    every = tuple(one.game for one in games.values())  # one vocabulary in all arms
    own = {"updates": updates, "warm_start": imitation_recipe(games, updates=updates)}
    pupil = {name: replace(one, advantage=from_teacher) for name, one in games.items()}
    parts = setup(together(games, every, **own), TINY, sharding.mesh(), loading.load)
    (me,) = parts.learners
    base = where_ended(parts, key)[me]

    def train(taught: Games, state: Any = None, updates: int = updates) -> Any:
        recipe = together(taught, every, **{**own, "updates": updates})
        return train_stages(parts, recipe, {me: base}, key, QUARTERS, state)[me]

    alone = {name: train({name: one}) for name, one in games.items()}
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
            pupil, {name: {me: jax.tree.map(lambda x: x[-1], one)} for name, one in alone.items()}, updates // 2
        ),
    }
    weights = {me: jax.tree.map(lambda *x: jnp.concatenate(x), *arms.values())}  # [arms * QUARTERS, ...]
    won = jax.lax.map(partial(points_won, parts, games, jax.random.fold_in(key, 1), episodes), weights)
    found = {arm: {name: x.reshape(-1, QUARTERS)[i] for name, x in won.items()} for i, arm in enumerate(arms)}
    found["specialists"] = {game: found[game][game] for game in games}
    more: dict[str, dict[str, jax.Array]] = {arm: {} for arm in found}
    for of, names in {"": tuple(games), **(within or {})}.items():
        called = lambda metric, of=of: f"{metric}, {of}" if of else metric
        best = {game: found["specialists"][game][-1] for game in names}
        for arm, points in found.items():
            more[arm][called("gain")] = gain(points, found["base"], best)
        lie = merged(partial(merging.geometry, base), *(alone[name] for name in names))
        more["specialists"] |= {called(metric): x for metric, x in lie.items()}
    at = slice(updates // QUARTERS - 1, None, updates // QUARTERS)
    curve = lambda x: jnp.full(updates, jnp.nan).at[at].set(x)
    return {arm: jax.tree.map(curve, points | more[arm]) for arm, points in found.items()}


def gain(arm: Mapping[str, Any], base: Mapping[str, Any], best: Mapping[str, Any]) -> Any:
    """The mean over the games of `best` of what an arm has gained over the base by what the best gain."""
    return sum((arm[game] - base[game]) / (best[game] - base[game]) for game in best) / len(best)


def arms_of(games: Games) -> tuple[str, ...]:
    """The names of the arms of `compare_merges`."""
    return "base", "together", *games, "specialists", "average", "sum/half", "sum", "ties", "distilled"
