"""Policies of a game of two actions, recorded exactly while a learner trains, and their average.

A study has `evaluate=record`; `read_policies(curves, game=GAME)` reads the policies back from its curves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.policy_table import tabulate

tree_of = cache(solve.tree)
"""The tree of a game, enumerated once."""

Curves = Mapping[str, np.ndarray]


def record(parts: Any) -> Callable[[dict, Any], dict[str, float]]:
    """A recipe's `evaluate` of the one learner, exact: NashConv, and P(first action) by information set.

    Raises ValueError for several learners, and for a game of more than two actions.
    """
    game, (name, *others) = tree_of(parts.recipe.game), parts.learners
    if others or game.legal.shape[1] != 2:
        raise ValueError(
            f"The policy of one learner is recorded, in a game of two actions: {parts.learners} learn, and there are "
            f"{game.legal.shape[1]}."
        )
    home = parts.policy_set_of[name]  # a pretrained model's policies share the set of its name
    policy_set = parts.policy_sets[home]
    table = tabulate(game, policy_set, policy_set.policies.index(name), parts.recipe.budget, len(game.owner))

    def measure(weights: dict, _: Any) -> dict[str, float]:
        policy = table(weights[home])
        places = {f"first_action/{i}": float(p) for i, p in enumerate(policy[:, 0])}
        return {"nash_conv": float(solve.nash_conv(game, policy))} | places

    return measure


def read_policies(curves: Curves, *, game: Any) -> list[list[np.ndarray]]:
    """The evaluated policies of each seed [information sets, 2], in the order of the updates; [] if there are none."""
    names = [f"first_action/{i}" for i in range(len(tree_of(game).owner))]
    if not set(names) <= set(curves):  # a pretrained model is not evaluated
        return [[] for _ in curves["loss"]]
    first = np.stack([curves[name] for name in names], -1)  # [seeds, updates, information sets]
    return [[np.stack([p, 1 - p], -1) for p in seed if np.isfinite(p).all()] for seed in first]


def average(tree: solve.Tree, policies: Sequence[np.ndarray]) -> np.ndarray:
    """The policy [information sets, actions] that plays as one of these, drawn before the game.

    Each is weighted by its own probability of reaching the information set (its realisation plan).
    """
    sets, actions = policies[0].shape
    total = np.zeros((sets, actions))
    for table in policies:
        plan = np.ones(sets * actions + tree.environment.agents)
        for i in range(sets):  # an owner's earlier decisions come first
            plan[i * actions : (i + 1) * actions] = plan[tree.form.above[i]] * table[i]
        total += plan[: sets * actions].reshape(sets, actions)
    mass = total.sum(1, keepdims=True)
    return np.where(mass > 0, total / np.where(mass > 0, mass, 1), solve.uniform(tree))


def of_policies(measure: Callable[[Sequence[np.ndarray]], float], curves: Curves, *, game: Any) -> np.ndarray:
    """The measure of each seed's recorded policies [seeds]; NaN where there are none."""
    return np.array([measure(policies) if policies else np.nan for policies in read_policies(curves, game=game)])


def of_average(curves: Curves, *, game: Any) -> np.ndarray:
    """NashConv [seeds] of the average of the recorded policies."""
    return of_policies(lambda past: solve.nash_conv(tree_of(game), average(tree_of(game), past)), curves, game=game)
