"""An advantage estimator of `rl.advantages` as a recipe's `advantage`, with its options and hparams."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.losses import Hparams
from jaxmarl_llm.training.records import Advantages, Experience


@dataclasses.dataclass(frozen=True)
class Estimator:
    """An estimator of `rl.advantages` as a recipe's `advantage`. The reward is the sum of its components, or their
    weighted sum.

    Calls `of(reward, acted, group, num_groups, **options, **{name: hparams[name]})`. An estimator with further
    inputs (roles, a state, weights) needs a function of the recipe's own.
    """

    of: Callable[..., jax.Array]
    options: Mapping[str, Any]
    hparams: tuple[str, ...] = ()
    components: tuple[float, ...] | None = None

    def __call__(self, experience: Experience, hparams: Hparams, state: Any) -> Advantages:
        traced = {name: hparams[name] for name in self.hparams}
        reward = experience.episodes.total_reward
        if self.components is not None:
            paid, weights = experience.episodes.reward, jnp.array(self.components, jnp.float32)
            if len(weights) != paid.shape[-1]:
                raise ValueError(f"The game pays {paid.shape[-1]} components, and {len(weights)} weights are given.")
            reward = paid @ weights
        return Advantages(self.of(reward, *experience.learning_acts, **self.options, **traced))


def estimator(
    function: Callable[..., jax.Array],
    *,
    hparams: tuple[str, ...] = (),
    components: tuple[float, ...] | None = None,
    **options: Any,
) -> Estimator:
    """`function` with these options, and with the named hparams as further options. `components` are weights of the
    reward's components, in the game's order; by default each weight is 1.

    Raises ValueError for an option that `function` does not take.
    """
    taken = inspect.signature(function).parameters
    for name in (*options, *hparams):
        if name not in taken:
            raise ValueError(f"{function.__name__} has no option {name!r}: it takes {', '.join(list(taken)[4:])}.")
    return Estimator(function, options, hparams, components)


def check_advantage(advantage: Any, group_size: int) -> None:
    """Raises ValueError for a function of arrays in place of an estimator, and for groups of one that are compared."""
    if getattr(advantage, "__module__", "").startswith(advantages.__name__):
        name = getattr(advantage, "__name__", "it")
        raise ValueError(f"{name} is a function of arrays: advantage=estimator(advantages.{name}) takes it.")
    function = advantage.of if isinstance(advantage, Estimator) else None
    if function is not None and function in advantages.OF_GROUPS and group_size == 1:
        raise ValueError(f"{function.__name__} compares the games of a group: group_size must be at least 2.")
