"""Measured limits of this machine: matrix products and reading of memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

SIDE, READ = 2048, 2**27  # the matrices' size, and the numbers that are read


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


class Machine:
    """Limits of this machine, as medians over calls of `measure`, e.g. between the repetitions of a benchmark."""

    def __init__(self, dtype: DTypeLike = jnp.float32, side: int = SIDE, read: int = READ, times: int = 1) -> None:
        """Measures products of matrices [side, side] and sums over `read` numbers, and compiles both.

        Each measurement runs them `times` times, so that the time of a start does not count.
        """
        self._count = times
        self._square, self._numbers = jax.random.normal(jax.random.key(0), (side, side), dtype), jnp.ones(read, dtype)
        self._product, self._sum = jax.jit(jnp.matmul), jax.jit(jnp.sum)
        self._times: dict[str, list[float]] = {"product": [], "sum": []}
        self.measure()
        self._times = {name: [] for name in self._times}  # the first ones include compilation

    def measure(self) -> None:
        for name, function, given in (
            ("product", self._product, (self._square, self._square)),
            ("sum", self._sum, (self._numbers,)),
        ):
            took = seconds(lambda: [function(*given) for _ in range(self._count)])  # noqa: B023
            self._times[name].append(took / self._count)

    @property
    def products(self) -> float:
        """FLOP/s of a large matrix product."""
        return 2 * len(self._square) ** 3 / median(self._times["product"])

    @property
    def reading(self) -> float:
        """Bytes/s read from memory."""
        return self._numbers.nbytes / median(self._times["sum"])

    def __str__(self) -> str:
        return f"Limits here: {self.products / 1e9:.0f} GFLOP/s in matrix products, {self.reading / 1e9:.1f} GB/s read."
