"""An advantage estimator of `rl.advantages` as a recipe's `advantage`, with its options and hparams."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.losses import Hparams
from jaxmarl_llm.training.records import Advantages, Experience


@dataclasses.dataclass(frozen=True)
class Estimator:
    """An estimator of `rl.advantages` as a recipe's `advantage`: of the reward's components added up, or weighed.

    `of(reward, acted, group, num_groups, **options, **{name: hparams[name]})`. An estimator that takes roles, a state
    or weights as well needs a function of the recipe's own.
    """

    of: Callable[..., jax.Array]
    options: Mapping[str, Any]
    hparams: tuple[str, ...] = ()
    components: tuple[float, ...] | None = None

    def __call__(self, experience: Experience, hparams: Hparams, state: Any) -> Advantages:
        traced = {name: hparams[name] for name in self.hparams}
        reward = experience.episodes.total_reward
        if self.components is not None:
            each, weights = experience.episodes.reward, jnp.array(self.components, jnp.float32)
            if len(weights) != each.shape[-1]:
                raise ValueError(f"The game pays {each.shape[-1]} components, and {len(weights)} weights are given.")
            reward = each @ weights
        return Advantages(self.of(reward, *experience.learning_acts, **self.options, **traced))


def estimator(
    of: Callable[..., jax.Array],
    *,
    hparams: tuple[str, ...] = (),
    components: tuple[float, ...] | None = None,
    **options: Any,
) -> Estimator:
    """`of` with these options, and with the hparams of these names as further options. `components` weighs those of the
    reward, in the game's order; by default all count 1.

    Raises ValueError for an option that `of` does not take.
    """
    taken = inspect.signature(of).parameters
    for name in (*options, *hparams):
        if name not in taken:
            raise ValueError(f"{of.__name__} has no option {name!r}: it takes {', '.join(list(taken)[4:])}.")
    return Estimator(of, options, hparams, components)
