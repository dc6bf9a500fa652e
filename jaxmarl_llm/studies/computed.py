"""Arms without policies: functions of a seed, in the same tables and plots as arms that are trained."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.devices.compiling import options
from jaxmarl_llm.rl.choices import Choices, check_choices, stack_runs

AT_ONCE = 10  # seeds of a computed arm in one call of its program
LABEL = "computed"  # stands for the model in results of a study without trained arms


@dataclasses.dataclass(frozen=True)
class Computed:
    """An arm that is a function of a seed, e.g. the exact gradient of a tabular policy under one estimator."""

    compute: Callable[[jax.Array, Mapping[str, jax.Array]], Mapping[str, Any]]
    """(key, hparams) -> {metric: [updates], or a scalar}. It must be pure: seeds are computed under vmap."""
    hparams: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
    """Numbers, and options of choices by name."""
    updates: int = 1
    """Length of the curves."""
    part: str = ""
    """Name of this arm in a result {name: metrics} of `compute` or `beside`, which computes several arms together."""
    beside: Callable[[jax.Array, Mapping], Mapping[str, Mapping]] | None = dataclasses.field(default=None, repr=False)
    """(key, {}) -> {part: metrics}: `compute` under the hparams of all arms that `side_by_side` joins."""
    level: int | None = dataclasses.field(default=None, repr=False)
    """XLA's optimisation level (`compiling`): OFTEN for arms that train tiny policies; None keeps XLA's default."""

    def run_seed(self, key: jax.Array) -> Mapping[str, jax.Array]:
        """{metric: [updates], or a scalar} for the key of one seed."""
        metrics: Any = self.compute(key, _to_float32(self.hparams.items()))
        return metrics[self.part] if self.part and not self.beside else metrics

    def curves(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """{metric: [seeds, updates]}; a scalar stands at the last update, after NaN.

        Raises ValueError for a curve whose length is not `updates`.
        """
        compute, numbers = (self.beside, ()) if self.beside else (self.compute, tuple(self.hparams.items()))
        metrics = _compute_seeds(compute, numbers, tuple(seeds), self.level)
        metrics = metrics[self.part] if self.part else metrics
        return {name: self._curve(name, np.asarray(x, np.float64)) for name, x in metrics.items()}

    def _curve(self, name: str, x: np.ndarray) -> np.ndarray:
        if x.ndim == 1:
            return np.concatenate([np.full((len(x), self.updates - 1), np.nan), x[:, None]], 1)
        if x.shape[1:] != (self.updates,):
            raise ValueError(f"{name} has a curve of shape {list(x.shape[1:])}: {self.updates} updates are wanted.")
        return x


@functools.lru_cache(maxsize=1)
def _compute_seeds(
    compute: Callable, hparams: tuple[tuple[str, float | str], ...], seeds: tuple[int, ...], level: int | None
) -> Any:
    """The result of `compute` for all seeds, `AT_ONCE` under vmap; the last result is cached, for the other arms in it.

    The last seeds are filled up with copies of the last one, so that a seed has the same bits alone and beside others.
    """
    run_seed = lambda key: compute(key, _to_float32(hparams))
    program = jax.jit(jax.vmap(run_seed), compiler_options=options(level))
    filled = [*seeds, *seeds[-1:] * (-len(seeds) % AT_ONCE)]
    keys = jax.vmap(jax.random.key)(jnp.array(filled, jnp.uint32)).reshape(-1, AT_ONCE)
    results = [jax.device_get(program(part)) for part in keys]
    return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(seeds)], *results)


def _to_float32(hparams: Iterable[tuple[str, float | str]]) -> dict[str, Any]:
    """The hparams with numbers as float32 arrays, and options as their names."""
    return {name: x if isinstance(x, str) else jnp.float32(x) for name, x in hparams}


def side_by_side(
    compute: Callable, arms: Mapping[str, Mapping[str, float | str]], updates: int = 1, choices: Choices | None = None
) -> dict[str, Computed]:
    """Arms of one function `compute(key, hparams)`, computed in one program; `arms` is {arm: hparams}.

    A string in `hparams` is an option of `choices`; the default is the first option of a choice. Raises ValueError for
    an unknown choice or option.
    """
    declared = choices or {}
    for given in arms.values():
        check_choices(declared, {name: str(x) for name, x in given.items() if name in declared or isinstance(x, str)})
    arms = {arm: {**{name: options[0] for name, options in declared.items()}, **given} for arm, given in arms.items()}

    def beside(key: jax.Array, _: Mapping) -> dict[str, Any]:
        metrics = jax.vmap(compute, (None, 0))(key, stack_runs(declared, [*arms.values()]))
        return {arm: jax.tree.map(lambda x, i=i: x[i], metrics) for i, arm in enumerate(arms)}

    return {arm: Computed(compute, given, updates, arm, beside) for arm, given in arms.items()}
