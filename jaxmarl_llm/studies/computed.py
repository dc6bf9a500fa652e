"""Arms without policies: what is known exactly, in the same table and plot as what is trained."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.devices.compiling import options
from jaxmarl_llm.rl.choices import Choices, Option, check_choices

LABEL = "computed"  # in place of a model, where no arm is trained


@dataclasses.dataclass(frozen=True)
class Computed:
    """An arm that is a function of a seed, e.g. the exact gradient of a tabular policy under one estimator."""

    of: Callable[[jax.Array, Mapping[str, jax.Array]], Mapping[str, Any]]
    """(key, hparams) -> {metric: [updates], or one number}. Pure: all seeds are computed side by side."""
    hparams: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
    """Numbers, and options of choices by name."""
    updates: int = 1
    """Of its curves."""
    part: str = ""
    """With a name, `of` (or `beside`, where there is one) gives {name: metrics} of several arms, of which this is one:
    they are computed together."""
    beside: Callable[[jax.Array, Mapping], Mapping[str, Mapping]] | None = dataclasses.field(default=None, repr=False)
    """(key, {}) -> {part: metrics}: what `of` gives of the hparams of each of the arms that `side_by_side` joins."""
    level: int | None = dataclasses.field(default=None, repr=False)
    """How much XLA optimises it (`compiling`): OFTEN, if it trains tiny policies; None leaves that to XLA."""

    def one(self, key: jax.Array) -> Mapping[str, jax.Array]:
        """What one seed gives."""
        found: Any = self.of(key, _traced(self.hparams.items()))
        return found[self.part] if self.part and not self.beside else found

    def curves(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """{metric: [seeds, updates]}; a number stands at the last update. Raises ValueError for curves of another
        length."""
        of, numbers = (self.beside, ()) if self.beside else (self.of, tuple(self.hparams.items()))
        found = _found(of, numbers, tuple(seeds), self.level)
        found = found[self.part] if self.part else found
        return {name: self._curve(name, np.asarray(x, np.float64)) for name, x in found.items()}

    def _curve(self, name: str, x: np.ndarray) -> np.ndarray:
        if x.ndim == 1:
            return np.concatenate([np.full((len(x), self.updates - 1), np.nan), x[:, None]], 1)
        if x.shape[1:] != (self.updates,):
            raise ValueError(f"{name} has a curve of shape {list(x.shape[1:])}: {self.updates} updates are wanted.")
        return x


@functools.lru_cache(maxsize=1)
def _found(
    of: Callable, hparams: tuple[tuple[str, float | str], ...], seeds: tuple[int, ...], level: int | None
) -> Any:
    """What `of` gives of all seeds side by side; the last answer is kept for other parts of it."""
    one = lambda key: of(key, _traced(hparams))
    every = jax.jit(jax.vmap(one), compiler_options=options(level))
    return jax.device_get(every(jax.vmap(jax.random.key)(jnp.array(seeds, jnp.uint32))))


def _traced(hparams: Iterable[tuple[str, float | str]]) -> dict[str, Any]:
    """Numbers as float32; an option stays a name."""
    return {name: x if isinstance(x, str) else jnp.float32(x) for name, x in hparams}


def side_by_side(
    of: Callable, arms: Mapping[str, Mapping[str, float | str]], updates: int = 1, choices: Choices | None = None
) -> dict[str, Computed]:
    """Arms of one function `of` (key, hparams) that differ in these numbers and options of `choices` alone, computed in
    one program. Raises ValueError for an unknown choice or option."""
    declared = choices or {}
    for own in arms.values():
        check_choices(declared, {name: str(x) for name, x in own.items() if name in declared or isinstance(x, str)})
    arms = {arm: {**{name: options[0] for name, options in declared.items()}, **own} for arm, own in arms.items()}

    def beside(key: jax.Array, _: Mapping) -> dict[str, Any]:
        every: dict[str, Any] = {name: [own[name] for own in arms.values()] for name in next(iter(arms.values()))}
        hparams = {
            name: Option.of(x, declared[name]) if name in declared else jnp.array(x, jnp.float32)
            for name, x in every.items()
        }
        found = jax.vmap(of, (None, 0))(key, hparams)
        return {arm: jax.tree.map(lambda x, i=i: x[i], found) for i, arm in enumerate(arms)}

    return {arm: Computed(of, own, updates, arm, beside) for arm, own in arms.items()}
