"""An evaluation for most recipes: metrics of games that are dealt anew, of length and difficulty as one likes."""

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
    parts: Parts, *, measure: Callable[[Episodes], dict[str, jax.Array]], deal: Any = None, games: int = 256
) -> Callable[[dict], dict[str, Any]]:
    """A recipe's `evaluate`, as `partial(in_fresh_games, measure=...)`: `measure` of `games` games of its line-ups, no
    two of them a group; they are the same games whenever it is called. What is measured is a number, or one for each
    game, of which the interval of a single seed is made. `deal` is given to each game's `reset`.
    Raises ValueError without games."""
    if games < 1:
        raise ValueError(f"An evaluation needs at least one game, got games={games}.")
    recipe = parts.recipe
    lineup = Lineup((recipe.seats * games)[:games], 1)
    play = jit_rollout(Rollout(recipe.game, parts.policy_sets, lineup, recipe.budget))
    deal = jax.tree.map(lambda x: jnp.broadcast_to(x, (games, *jnp.shape(x))), deal)

    def evaluate(weights: dict) -> dict[str, Any]:
        found = measure(play(weights, jax.random.key(0), deal).episodes)
        return {name: np.asarray(x) if x.ndim else float(x) for name, x in found.items()}

    return evaluate
