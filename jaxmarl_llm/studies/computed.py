"""Arms without policies: what is known exactly, in the same table and plot as what is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

LABEL = "computed"  # in place of a model, where no arm is trained


@dataclasses.dataclass(frozen=True)
class Computed:
    """An arm that is a function of a seed, e.g. the exact gradient of a tabular policy under one estimator."""

    of: Callable[[jax.Array, Mapping[str, jax.Array]], Mapping[str, jax.Array]]
    """(key, hparams) -> {metric: [updates], or one number}. Pure: all seeds are computed side by side."""
    hparams: Mapping[str, float] = dataclasses.field(default_factory=dict)
    updates: int = 1
    """Of its curves."""

    def one(self, key: jax.Array) -> Mapping[str, jax.Array]:
        """What one seed gives."""
        return self.of(key, {name: jnp.float32(x) for name, x in self.hparams.items()})

    def curves(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """{metric: [seeds, updates]}; a number stands at the last update. Raises ValueError for curves of another
        length."""
        found = jax.jit(jax.vmap(self.one))(jax.vmap(jax.random.key)(jnp.array(seeds, jnp.uint32)))
        return {name: self._curve(name, np.asarray(x, np.float64)) for name, x in found.items()}

    def _curve(self, name: str, x: np.ndarray) -> np.ndarray:
        if x.ndim == 1:
            return np.concatenate([np.full((len(x), self.updates - 1), np.nan), x[:, None]], 1)
        if x.shape[1:] != (self.updates,):
            raise ValueError(f"{name} has a curve of shape {list(x.shape[1:])}: {self.updates} updates are wanted.")
        return x
