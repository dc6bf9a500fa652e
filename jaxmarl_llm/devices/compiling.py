"""How much XLA optimises a program on a CPU: for a model that pays off within seconds, for tiny policies seldom.

Of an update of ten seeds of `referee`, in seconds of processor time: at XLA's own level 24 to compile and 0.53 to run,
at level 1 11 and 0.48, at level 0 5 and 1.3. Sums over 20 updates were equal; over a whole study roundings can differ.
XLA's own fusions, without which a program compiles in two thirds to four fifths of the time, pay off where it runs for
long: an update of 100 runs of `sizes` takes 1.7 seconds with them and 2.2 without, of 60 runs of `horizon` 1.5 and 1.9.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxlib

LEVEL, EXCESS = "xla_backend_optimization_level", "xla_allow_excess_precision"
OFTEN, SELDOM = 1, 0  # levels of optimisation of a program of tiny policies that runs often, or a few times


def options(level: int | None, long: bool = False, half: bool = False) -> dict[str, Any] | None:
    """Compiler options of a level, with XLA's own fusions for what runs `long`; None, which leaves all to XLA, for no
    level, on other devices than CPUs, and where XLA_FLAGS names a level.

    With `half` every result in bfloat16 is rounded, in fusions too: else a forward pass rounds otherwise where it is
    fused otherwise, and a policy that is scored before an update has other log-probabilities than in its loss.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if jax.default_backend() != "cpu":
        return None
    found: dict[str, Any] = {EXCESS: False} if half and EXCESS not in flags else {}
    if level is not None and LEVEL not in flags:
        known = jaxlib.__version__.startswith("0.10.")  # a later one need not know it, and it saves half at level 0
        found |= {LEVEL: level} | ({"xla_cpu_use_fusion_emitters": long} if known else {})
    return found or None


def inside_another(given: Any) -> bool:
    """Whether another program is being traced, also one of which nothing is `given`."""
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((given, jnp.zeros(()))))


class Kind(NamedTuple):
    """What decides how programs are compiled."""

    small: bool  # of tiny policies
    long: bool  # it runs for long
    half: bool  # it computes in bfloat16


class Program:
    """A function as `jax.jit` compiles it, with compiler options where it is no part of another program."""

    def __init__(self, function: Callable, chosen: dict[str, Any] | None, **how: Any):
        self._function, self._how = function, how
        self._alone = jax.jit(function, compiler_options=chosen, **how)

    def __call__(self, *given: Any) -> Any:
        if inside_another(given):  # JAX refuses options there
            return jax.jit(self._function, **self._how)(*given)
        return self._alone(*given)

    def lower(self, *given: Any) -> Any:
        """What it traces is not traced again by a call."""
        return self._alone.lower(*given)

    def eval_shape(self, *given: Any) -> Any:
        """What it traces is not traced again by a call."""
        return self._alone.eval_shape(*given)


def jit(function: Callable, level: int, kind: Kind, long: bool = True, **how: Any) -> Program:
    """`jax.jit` at this level where policies are small, and unless `long` is False with the options of what runs long
    where it does and the level is OFTEN; in bfloat16 with those of bfloat16."""
    chosen = options(level if kind.small else None, long and level == OFTEN and kind.long, kind.half)
    return Program(function, chosen, **how)
