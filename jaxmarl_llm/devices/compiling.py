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

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxlib

LEVEL, EXCESS = "xla_backend_optimization_level", "xla_allow_excess_precision"
PATIENCE = 1.0  # seconds after which a wait is explained
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


@contextlib.contextmanager
def announce(text: str) -> Iterator[None]:
    """Prints `text` on stderr if the block takes more than PATIENCE seconds, and at its end how long it took."""
    began = time.monotonic()
    say = lambda said: print(said, file=sys.stderr, flush=True)
    timer = threading.Timer(PATIENCE, say, [f"{text} ..."])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if (took := time.monotonic() - began) > PATIENCE:
        say(f"{text} took {took:.0f} s")


class Kind(NamedTuple):
    """Facts of a trainer that choose the compiler's options."""

    small: bool  # policies are tiny
    long: bool  # the program runs for long
    half: bool  # the program computes in bfloat16


class Program:
    """A jitted function. Inside another program it is compiled with that program's options."""

    def __init__(self, function: Callable, compiler_options: dict[str, Any] | None, **how: Any):
        self._function, self._how = function, how
        self._alone = jax.jit(function, compiler_options=compiler_options, **how)

    def __call__(self, *given: Any) -> Any:
        if inside_another(given):  # JAX refuses options there
            return jax.jit(self._function, **self._how)(*given)
        return self._alone(*given)

    def lower(self, *given: Any) -> Any:
        """The lowered program; a later call does not trace again."""
        return self._alone.lower(*given)

    def eval_shape(self, *given: Any) -> Any:
        """The result's shapes; a later call does not trace again."""
        return self._alone.eval_shape(*given)


def jit(function: Callable, level: int, kind: Kind, long: bool = True, **how: Any) -> Program:
    """`jax.jit` with the `options` of a kind; `how` are further arguments of `jax.jit`.

    The level holds if the kind is `small`. At the level OFTEN a `long` kind gets the options of long programs, unless
    `long` is False here. A `half` kind gets those of bfloat16.
    """
    chosen = options(level if kind.small else None, long and level == OFTEN and kind.long, kind.half)
    return Program(function, chosen, **how)
