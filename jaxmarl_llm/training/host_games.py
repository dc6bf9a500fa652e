"""Games in plain Python: played on the host, one run after another, and stacked for one update of all runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.bridges.agent_programs import AgentProgram
from jaxmarl_llm.environments.bridges.prompts import Prompts
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import Trajectory
from jaxmarl_llm.serving.agent_rollout import AgentRollout
from jaxmarl_llm.serving.host_rollout import HostRollout
from jaxmarl_llm.serving.prompt_rollout import PromptRollout
from jaxmarl_llm.serving.python_rollout import PythonRollout
from jaxmarl_llm.training.recipe import Parts, Recipe


def host_rollout(recipe: Recipe, policy_sets: dict[str, PolicySet], lineup: Lineup) -> HostRollout:
    """The rollout of a game in plain Python, of an agent program, or of questions.

    Raises ValueError for settings that such games do not support.
    """
    game = recipe.game
    without = {
        "past selves": recipe.past,
        "an arrangement": recipe.arrange,
        "a warm start": recipe.warm_start,
        "a step of its own": recipe.step,
        "answers that are not masked": not recipe.masked,
        "a budget for each grammar": not isinstance(recipe.budget, int),
    }
    if has := [feature for feature, given in without.items() if given]:
        raise ValueError(f"A recipe with a game in plain Python cannot have {' or '.join(has)}.")
    assert isinstance(recipe.budget, int)
    if isinstance(game, AgentProgram):
        return AgentRollout(game, policy_sets, lineup, recipe.budget)
    if isinstance(game, Prompts):
        return PromptRollout(game, policy_sets, lineup, recipe.budget)
    return PythonRollout(
        game.make, policy_sets, lineup, game.turns, recipe.budget, game.context, game.scripts, game.slots
    )


def held_out(parts: Parts) -> Callable[[dict, jax.Array], dict[str, Any]]:
    """The evaluation of the held-out questions of `Prompts`, as `Recipe.evaluate`.

    Raises ValueError for another game, and for questions of which none is held out.
    """
    if not isinstance(parts.rollout, PromptRollout):
        raise ValueError(f"Only Prompts hold out questions, and the game is {type(parts.recipe.game).__name__}.")
    parts.rollout.check_held_out()
    return parts.rollout.held_out


def host_games(
    rollout: HostRollout,
    weights: Sequence[dict],
    keys: Sequence[jax.Array],
    names: Sequence[str] | None = None,
) -> Trajectory:
    """Games of several runs with their weights and keys, leaves [runs, ...], padded to the widest run. A report of
    wrong rewards tells the run by its name, if there are `names`."""
    played = []
    for params, key, name in zip(weights, keys, names or [""] * len(keys), strict=True):
        rollout.wrong_rewards.run = name
        played.append(rollout(params, key))
    return together(played)


def together(trees: Sequence[Any]) -> Any:
    """Stacks trees of arrays [...] of different widths into arrays [trees, ...], padded with zeros at the end."""

    def stack_leaves(*leaves: jax.Array) -> jax.Array:
        widest = [max(sizes) for sizes in zip(*(leaf.shape for leaf in leaves), strict=True)]
        filled = np.zeros((len(leaves), *widest), leaves[0].dtype)
        for i, leaf in enumerate(leaves):
            at: Any = (i, *map(slice, leaf.shape))
            filled[at] = leaf
        return jnp.asarray(filled)

    return jax.tree.map(stack_leaves, *(jax.tree.map(np.asarray, tree) for tree in trees))
