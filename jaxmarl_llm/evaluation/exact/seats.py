"""The exact expected reward of a team whose seats each have a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.policy_table import tabulate


def expected_reward(parts: Any) -> Callable[[dict, Any], dict[str, float]]:
    """A recipe's `evaluate`: `value`, the exact expected reward of the first seat, in the recipe's first line-up.

    Raises ValueError for a scripted seat, and as `solve.tree` and `tabulate`.
    """
    if scripts := [name for name in parts.recipe.seats[0] if name not in parts.policy_set_of]:
        raise ValueError(f"The exact reward is of policies in all seats, and {scripts[0]} is a script.")
    tree, tables, homes = solve.tree(parts.recipe.game), [], []
    for name in parts.recipe.seats[0]:
        homes.append(parts.policy_set_of[name])
        policies = parts.policy_sets[homes[-1]]
        tables.append(tabulate(tree, policies, policies.policies.index(name), parts.recipe.budget, len(tree.owner)))

    def evaluate(weights: dict, key: Any) -> dict[str, float]:
        policies = np.stack([table(weights[home]) for table, home in zip(tables, homes, strict=True)])
        joint = policies[tree.owner, np.arange(len(tree.owner))]
        return {"value": float(solve.expected_value(tree, joint)[0])}

    return evaluate
