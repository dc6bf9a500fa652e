"""An evaluation for most recipes: metrics of newly dealt games, with any length and difficulty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.setup import jit_rollout


def in_fresh_games(
    parts: Parts,
    *,
    measure: Callable[[Episodes], dict[str, jax.Array]],
    deal: Any = None,
    games: int = 256,
    attempts: int = 1,
) -> Callable[[dict, jax.Array], dict[str, Any]]:
    """A recipe's `evaluate`, as `partial(in_fresh_games, measure=...)`: metrics `measure` of `games` games of its
    line-ups. A game is a group of `attempts` episodes, which start in the same state; episodes of a group stand in a
    row. A key deals the same games at every call. A metric is a number, or one value per game, from which a single
    seed's interval is computed. `deal` is an argument of each game's `reset`. Raises ValueError without games."""
    if games < 1:
        raise ValueError(f"An evaluation needs at least one game, got games={games}.")
    recipe = parts.recipe
    lineup = Lineup((recipe.seats * games)[:games], attempts)
    play = jit_rollout(Rollout(recipe.game, parts.policy_sets, lineup, recipe.budget))
    deal = jax.tree.map(lambda x: jnp.broadcast_to(x, (games, *jnp.shape(x))), deal)

    def evaluate(weights: dict, key: jax.Array) -> dict[str, Any]:
        values = measure(play(weights, key, deal).episodes)
        return {name: np.asarray(x) if x.ndim else float(x) for name, x in values.items()}

    return evaluate
