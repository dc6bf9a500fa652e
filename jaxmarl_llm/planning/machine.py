"""The limits of this machine, measured: matrix products and reading of memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

SIDE, READ = 2048, 2**27  # of the square product, and numbers that are read


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


class Machine:
    """Its limits: the medians of what `measure` saw, which is called between the repetitions of a benchmark."""

    def __init__(self) -> None:
        self._square, self._numbers = jnp.ones((SIDE, SIDE)), jnp.ones(READ)
        self._product, self._sum = jax.jit(jnp.matmul), jax.jit(jnp.sum)
        self._times: dict[str, list[float]] = {"product": [], "sum": []}
        self.measure()
        self._times = {name: [] for name in self._times}  # those hold the compilation

    def measure(self) -> None:
        self._times["product"].append(seconds(lambda: self._product(self._square, self._square)))
        self._times["sum"].append(seconds(lambda: self._sum(self._numbers)))

    @property
    def products(self) -> float:
        """Operations a second of a large float32 matrix product."""
        return 2 * SIDE**3 / median(self._times["product"])

    @property
    def reading(self) -> float:
        """Bytes a second read from memory."""
        return 4 * READ / median(self._times["sum"])

    def __str__(self) -> str:
        return f"Limits here: {self.products / 1e9:.0f} GFLOP/s in matrix products, {self.reading / 1e9:.1f} GB/s read."
