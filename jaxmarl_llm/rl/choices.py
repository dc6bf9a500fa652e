"""A choice between algorithms by name, traced: runs that take different options share one compiled program.

A recipe declares `choices={"credit": ("ppo", "grpo")}`, and an arm takes an option: `with_choice(credit="grpo")`.
`select(hparams, "credit", ppo=..., grpo=...)` computes all values and returns the one of the run's option. An
estimator, a loss, a recipe's `arrange` or its own `step` may call it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

Choices = Mapping[str, tuple[str, ...]]
"""{choice: its options}; the first option is the default."""


class Option(struct.PyTreeNode):
    """The option that a run takes, as its hparams hold it. `index` is a scalar, and [runs] in the hparams of several
    runs (`stack_runs`), which are vmapped."""

    index: jax.Array  # int32
    options: tuple[str, ...] = struct.field(pytree_node=False)

    @classmethod
    def from_names(cls, names: str | Sequence[str], options: tuple[str, ...]) -> Option:
        """The option of a name, or the options [n] of n names. Raises ValueError for an unknown one."""
        for name in (names,) if isinstance(names, str) else names:
            _check(name, options, "option")
        index = options.index(names) if isinstance(names, str) else [options.index(name) for name in names]
        return cls(jnp.array(index, jnp.int32), options)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):  # false for every name, and a branch on it would never be taken
            raise TypeError(f"An option is traced: read it with select(hparams, ...), not by == {other!r}.")
        return self is other

    def __bool__(self) -> bool:
        raise TypeError("An option is traced: read it with select(hparams, ...), not as true or false.")


def select(hparams: Mapping[str, Any], choice: str, /, **values: Any) -> Any:
    """The value of the option that the run takes: `select(hparams, "credit", ppo=..., grpo=...)`.

    All values are computed and differentiated: those of other options need finite gradients too. They are numbers,
    arrays or trees of one structure, whose leaves broadcast. A plain dict of hparams may name the option:
    {"credit": "grpo"}.

    Raises ValueError, while tracing, unless the values have exactly the names of the declared options.
    """
    option = hparams.get(choice)
    if isinstance(option, str):
        _check(option, values, f"option of {choice!r}")
        option = Option.from_names(option, tuple(values))
    if not isinstance(option, Option):
        raise ValueError(
            f"The recipe has no choice {choice!r}: declare Recipe(choices={{{choice!r}: {tuple(values)}}})."
        )
    if set(values) != set(option.options):
        raise ValueError(
            f"The choice {choice!r} has the options {', '.join(option.options)}, and `select` is given values of "
            f"{', '.join(values) or 'none'}: give each option one value."
        )
    ordered = [values[name] for name in option.options]
    if len({jax.tree.structure(value) for value in ordered}) > 1:
        raise ValueError(f"The values of the choice {choice!r} are trees of different structure: give them one.")
    return jax.tree.map(lambda *leaves: _select(option.index, leaves), *ordered)


def stack_runs(choices: Choices, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The hparams of several runs with equal names as arrays: float32 [runs], or [runs, updates] if a run has a
    sequence. A choice is an `Option` with index [runs]."""
    stacked: dict[str, Any] = {}
    for name in runs[0]:
        values = [run[name] for run in runs]
        if name in choices:
            stacked[name] = Option.from_names(values, choices[name])
            continue
        updates = {len(x) for x in values if isinstance(x, Sequence)}
        stacked[name] = jnp.array([np.broadcast_to(x, tuple(updates)) for x in values], jnp.float32)
    return stacked


def check_choices(choices: Choices, selection: Mapping[str, str]) -> None:
    """Raises ValueError unless each choice has different options by name, and the selection is among them."""
    for name, options in choices.items():
        names = isinstance(options, tuple) and all(isinstance(option, str) for option in options)
        if not names or len(set(options)) < max(2, len(options)):
            raise ValueError(
                f"The choice {name!r} is between two or more different options, a tuple of names, got {options!r}."
            )
    for name, option in selection.items():
        _check(name, choices, "choice")
        _check(option, choices[name], f"option of {name!r}")


def _select(index: jax.Array, leaves: Sequence[Any]) -> jax.Array:
    dtype = jnp.result_type(*leaves)
    return jax.lax.select_n(index, *jnp.broadcast_arrays(*(jnp.asarray(x, dtype) for x in leaves)))


def _check(name: Any, known: Iterable[str], kind: str) -> None:
    if name in (known := list(known)):
        return
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}? Possible" if near else "possible"
    raise ValueError(f"There is no {kind} named {name!r}: {hint} are {', '.join(known) or 'none'}.")
