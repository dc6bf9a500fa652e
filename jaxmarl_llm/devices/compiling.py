"""How much XLA optimises a program. For a model that pays off within seconds, for tiny policies it never does.

Measured on two cores with an update of ten seeds: 24 s of compiling at XLA's own level, 11 s at level 1 for the same
speed and the same bits, 5 s at level 0, which runs 2.5 times longer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

OFTEN, SELDOM = 1, 0  # levels of optimisation of a program of tiny policies that runs often, or a few times


def options(level: int | None) -> dict[str, Any] | None:
    """Compiler options of a level; None, which is XLA's own, for no level, and on other devices than CPUs."""
    if level is None or jax.default_backend() != "cpu":
        return None
    return {"xla_backend_optimization_level": level, "xla_cpu_use_fusion_emitters": False}


def jit(level: int, **how: Any) -> Callable[[Callable], Any]:
    """`jax.jit` of a method whose first argument is static, at this level where the object is `small`."""

    def compiled(method: Callable) -> Any:
        made: dict[bool, Any] = {}

        def chosen(self: Any) -> Any:
            if self.small not in made:  # a backend is known at the first call
                made[self.small] = jax.jit(method, compiler_options=options(level if self.small else None), **how)
            return made[self.small]

        @wraps(method)
        def call(self: Any, *given: Any) -> Any:
            return chosen(self)(self, *given)

        call.lower = lambda self, *given: chosen(self).lower(self, *given)  # type: ignore[attr-defined]
        return call

    return compiled
