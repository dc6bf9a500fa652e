"""XLA's optimisation level on a CPU: tiny policies compile longer than they run, so a low level saves time.

Seconds of processor time of an update of ten seeds of `referee`:

    level          compile   run
    XLA's default  24        0.53
    1              11        0.48
    0              5         1.3

Sums over 20 updates were equal; over a whole study roundings can differ. Without XLA's fusion emitters a program
compiles in 67% to 80% of the time, but runs slower. An update of 100 runs of `sizes` takes 2.2 seconds instead of 1.7,
an update of 60 runs of `horizon` 1.9 instead of 1.5.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib

LEVEL, EXCESS = "xla_backend_optimization_level", "xla_allow_excess_precision"
OFTEN, SELDOM = 1, 0  # optimisation levels of tiny policies' programs that run often, or a few times


def options(level: int | None, long: bool = False, half: bool = False) -> dict[str, Any] | None:
    """XLA's options for a level, None for XLA's defaults: without a level, on a GPU or TPU, or if XLA_FLAGS sets it.

    `long` adds the fusion emitters, for programs that run long. With `half` every bfloat16 result is rounded, inside
    fusions too. Otherwise rounding depends on fusion, and a policy's log-probabilities before an update differ from
    those in its loss.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if jax.default_backend() != "cpu":
        return None
    result: dict[str, Any] = {EXCESS: False} if half and EXCESS not in flags else {}
    if level is not None and LEVEL not in flags:
        known = jaxlib.__version__.startswith("0.10.")  # a later one may lack it; it halves the time at level 0
        result |= {LEVEL: level} | ({"xla_cpu_use_fusion_emitters": long} if known else {})
    return result or None


def inside_another(given: Any) -> bool:
    """True while another program is being traced, even if none of its arrays is in `given`."""
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((given, jnp.zeros(()))))


def jit(level: int, long: bool = True, **how: Any) -> Callable[[Callable], Any]:
    """`jax.jit` of a method; its object is static and chooses the `options`. `how` are further arguments of `jax.jit`.

    The level holds if the object is `small`. At the level OFTEN an object that is `long` gets the options of long
    programs, unless `long` is False here. An object that is `half` gets those of bfloat16. Inside another program the
    method is compiled with that program's options.
    """

    def decorate(method: Callable) -> Any:
        programs: dict[tuple[bool, bool, bool], Any] = {}

        def select(self: Any, small: bool) -> Any:
            kind = small, long and level == OFTEN and self.long, self.half
            if kind not in programs:  # the backend is only known at the first call
                chosen_options = options(level if small else None, kind[1], kind[2])
                programs[kind] = jax.jit(method, compiler_options=chosen_options, **how)
            return programs[kind]

        @wraps(method)
        def call(self: Any, *given: Any) -> Any:
            return select(self, self.small and not inside_another(given))(self, *given)

        for name in ("lower", "eval_shape"):  # a call does not trace again after these
            setattr(call, name, lambda self, *given, name=name: getattr(select(self, self.small), name)(self, *given))
        return call

    return decorate
