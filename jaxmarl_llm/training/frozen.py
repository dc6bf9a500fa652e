"""Frozen policies in line-ups: saved policies that take seats and are never trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.models import loading
from jaxmarl_llm.models.config import Dtypes
from jaxmarl_llm.rollout.policy_files import check_texts, load_policy
from jaxmarl_llm.rollout.team import PolicySet
from jaxmarl_llm.training.recipe import FROZEN, Recipe


def seat_frozen(
    recipe: Recipe,
    policy_sets: dict[str, PolicySet],
    base: dict[str, dict],
    load: Callable[[str, str], loading.Loaded],
    dtypes: Dtypes,
    mesh: Any,
    compiled: bool,
) -> None:
    """Adds the recipe's frozen policies to `policy_sets`, and their weights to `base`, which programs take as an
    argument.

    An adapter joins the set whose base `load(source, dtype)` returned for it already; `load` caches. Each other policy
    is a set of its own. Weights by policy are base[FROZEN]; the base of an adapter is base[policy set]. A game that is
    not `compiled` names no texts to check.

    Raises ValueError for a directory that cannot be loaded, and for a tiny policy of another game.
    """
    weights: dict[str, dict] = {}
    for name, directory in recipe.frozen.items():
        if not Path(directory).is_dir():  # before it is taken for a model of the hub
            raise ValueError(f"The line-ups seat {name!r}, and there is no directory {directory}.")
        try:
            policy = load_policy(directory, load=lambda source: load(source, dtypes.parameters))
        except (ValueError, OSError) as error:
            raise ValueError(f"The line-ups seat {name!r}, and {directory} holds no policy to play: {error}") from error
        if compiled:
            check_texts(recipe.game, policy, directory)
        lora, tree = policy.adapter or (None, policy.model.params)
        weights[name] = {"policy": tree if lora is None else sharding.place(tree, mesh)}
        home = next((home for home, params in base.items() if params is policy.model.params), name)
        if lora is not None and home in policy_sets and policy_sets[home].lora:
            joined = policy_sets[home]
            sampling = (
                joined.sampling if isinstance(joined.sampling, tuple) else (joined.sampling,) * len(joined.policies)
            )
            policy_sets[home] = dataclasses.replace(
                joined,
                policies=(*joined.policies, name),
                lora=(*joined.loras, lora),
                sampling=(*sampling, recipe.sampling),
            )
            continue
        config = dataclasses.replace(policy.model.config, dtypes=dtypes)
        loras = None if lora is None else (lora,)
        policy_sets[name] = PolicySet(policy.tokenizer, (name,), config, loras, (recipe.sampling,), recipe.masked)
        if lora is not None:
            base[name] = policy.model.params
    if weights:
        base[FROZEN] = weights
