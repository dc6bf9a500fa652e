"""Packing: a chunk's tokens in use come first, so that a decoder's linear maps compute little padding, on CPUs.

In a turn of a game most rows of a batch are silent, finished, or read less than the longest. Attention takes the rows
unpacked, because their caches stay in place; all other functions compute tokens independently. A packed program has no
gradient. An accelerator reads the weights in the time of about 200 tokens' products, so small blocks, each of which
reads them again, would not pay. Shapes: R rows, T tokens of a chunk, N = R * T.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices import sharding, target
from jaxmarl_llm.devices.lanes import any_lane
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.lora import PolicyOf

SAID, HEARD = 16, 64  # tokens of a block when a row appends its own tokens, and when it reads others'
SHORT = 8  # chunks with fewer tokens a row are a row's own
LEAST = 16  # smallest chunk of others' tokens: shorter ones would read the weights too often
HEAVY = 2**18  # with so many weights in an MLP's map, a token's products cost more than packing it


class Packing(NamedTuple):
    """The packed order of a chunk's tokens; without an `order` nothing is packed."""

    order: jax.Array | None = None  # int32 [N]: the tokens in use first, row by row
    place: jax.Array | None = None  # int32 [R, T]: a token's place in `order`
    used: jax.Array | None = None  # int32: tokens in use

    def pack(self, x: jax.Array) -> jax.Array:
        """[R, T, ...] as [N, 1, ...]."""
        return x if self.order is None else x.reshape(-1, 1, *x.shape[2:])[self.order]

    def unpack(self, x: jax.Array) -> jax.Array:
        """[N, 1, ...] as [R, T, ...]."""
        return x if self.place is None else x[self.place, 0]

    def rows(self, x: PolicyOf | None) -> PolicyOf | None:
        """[R, ...] as [N, ...]."""
        return x if self.place is None or x is None else jnp.repeat(x, self.place.shape[1], 0)[self.order]

    def map_rows(self, of_rows: Callable) -> Callable:
        """The row-wise function `of_rows` of trees [N, ...], for the tokens in use alone; the rest is garbage."""
        if self.place is None or self.used is None:
            return of_rows
        return partial(of_first, of_rows, self.used, *self.place.shape)


def packing(config: Config, n: jax.Array, width: int) -> Packing:
    """The packing of rows whose first n[r] of `width` tokens are in use, n int32 [R].

    It is empty on a mesh, whose devices have different rows, and if packing would not pay.
    """
    if not divides(config, len(n) * width):
        return Packing()
    idle = (jnp.arange(width)[None] >= n[:, None]).ravel()
    order = jnp.argsort(idle, stable=True).astype(jnp.int32)
    return Packing(order, jnp.argsort(order).astype(jnp.int32).reshape(-1, width), n.sum())


def heavy(config: Config) -> bool:
    """True if a token of this model costs enough for packing to pay, on this platform."""
    return target.platform() == "cpu" and config.hidden_size * config.intermediate_size >= HEAVY


def chunk(config: Config | None, rows: int, longest: int) -> int:
    """Tokens a row that are appended to a cache at a time, of at most `longest` tokens.

    With expensive tokens chunks are short, because attention computes their padding. The chunks of all rows still fill
    a block.
    """
    parts = longest // max(LEAST, -(-HEARD // rows)) if config is not None and heavy(config) else 1
    return -(-longest // max(1, parts))


def divides(config: Config, number: int) -> bool:
    """True if packing computes fewer than `number` tokens when fewer are in use."""
    return heavy(config) and number >= SAID and sharding.single()


def size(rows: int, width: int) -> int:
    """The tokens of a block."""
    return min(SAID, rows * width // 2) if width < SHORT else min(HEARD, rows * width)


def in_blocks(rows: int, width: int, used: jax.Array) -> jax.Array:
    """The tokens of all blocks, int32 [...], for `used` tokens in use."""
    block = size(rows, width)
    return -(-used // block) * block


def dense(rows: int, width: int, used: jax.Array) -> jax.Array:
    """bool [...]: so many tokens are in use that computing all at once takes less time than blocks."""
    number = rows * width
    return (4 * used > number * (2 if width < SHORT else 3)) | (in_blocks(rows, width, used) >= number)


def count_computed(config: Config, rows: int, width: int, used: jax.Array, unpacked: bool = False) -> jax.Array:
    """The number of computed tokens, int32 [...], for chunks of `rows` by `width` with `used` [...] tokens in use.

    It holds for a program with a single run; with several, loops continue until the last run has ended.
    """
    if unpacked or not divides(config, rows * width):
        return jnp.full_like(used, rows * width)
    return jnp.where(dense(rows, width, used), rows * width, in_blocks(rows, width, used))


def of_first(of_rows: Callable, used: jax.Array, rows: int, width: int, *x: Any) -> Any:
    """`of_rows` of trees of arrays [N, ...], for at least the first `used` rows; the rest is garbage."""
    block, made = size(rows, width), jax.eval_shape(of_rows, *x)

    def blocks(*x: Any) -> Any:
        def step(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            start, done = carry
            part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, block), x)
            put = lambda into, new: jax.lax.dynamic_update_slice_in_dim(into, new, start, 0)
            return start + block, jax.tree.map(put, done, of_rows(*part))

        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), made)
        return jax.lax.while_loop(lambda carry: any_lane(carry[0] < used), step, (jnp.int32(0), blank))[1]

    return jax.lax.cond(any_lane(dense(rows, width, used)), of_rows, blocks, *x)
