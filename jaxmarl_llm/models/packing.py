"""Tokens in use packed to the front of a chunk, so that the linear maps of a decoder compute hardly any others.

In a turn of a game most rows of a batch are silent, finished, or told less than the longest. Attention takes the rows
as they stand, for their caches stay in place; all else computes one token by itself. A packed program has no gradient.
On CPUs alone: an accelerator reads the weights in the time of some two hundred tokens' products, and small blocks read
them again and again. Shapes: R rows, T tokens of a chunk, N = R * T.
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

SAID, HEARD = 16, 64  # tokens of a block, of what was just said and of what was heard
SHORT = 8  # chunks of fewer tokens a row were said
LEAST = 16  # tokens a row of a chunk of what was heard: shorter ones would read the weights too often
HEAVY = 2**18  # weights of an MLP's map from which on a token's products cost more than putting it in its place


class Packing(NamedTuple):
    """Where the tokens of a chunk stand; without an `order` all stay where they are."""

    order: jax.Array | None = None  # int32 [N]: the tokens in use first, row by row
    place: jax.Array | None = None  # int32 [R, T]: where a token stands in that order
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

    def each(self, of_rows: Callable) -> Callable:
        """of_rows, which maps trees of arrays [N, ...] row by row, of the tokens in use alone; the rest is garbage."""
        if self.place is None or self.used is None:
            return of_rows
        return partial(of_first, of_rows, self.used, *self.place.shape)


def packing(config: Config, n: jax.Array, width: int) -> Packing:
    """Of rows int32 [R] whose first n[r] of `width` tokens are in use; none on a mesh, whose devices have rows of their
    own, or where it would not pay."""
    if not divides(config, len(n) * width):
        return Packing()
    idle = (jnp.arange(width)[None] >= n[:, None]).ravel()
    order = jnp.argsort(idle, stable=True).astype(jnp.int32)
    return Packing(order, jnp.argsort(order).astype(jnp.int32).reshape(-1, width), n.sum())


def heavy(config: Config) -> bool:
    """Whether a token costs enough for it, on a platform where it pays."""
    return target.platform() == "cpu" and config.hidden_size * config.intermediate_size >= HEAVY


def chunk(config: Config | None, rows: int, most: int) -> int:
    """Tokens a row that a cache is given at a time, of at most `most`. Where tokens cost much chunks are short, for
    attention computes their padding, but not so short that those of all rows are less than a block."""
    parts = most // max(LEAST, -(-HEARD // rows)) if config is not None and heavy(config) else 1
    return -(-most // max(1, parts))


def divides(config: Config, number: int) -> bool:
    """Whether fewer than `number` tokens are computed where fewer are in use."""
    return heavy(config) and number >= SAID and sharding.single()


def size(rows: int, width: int) -> int:
    """Tokens of a block."""
    return min(SAID, rows * width // 2) if width < SHORT else min(HEARD, rows * width)


def in_blocks(rows: int, width: int, used: jax.Array) -> jax.Array:
    """How many tokens the blocks of so many tokens in use have."""
    block = size(rows, width)
    return -(-used // block) * block


def dense(rows: int, width: int, used: jax.Array) -> jax.Array:
    """Whether so many tokens are in use that all at once take less time than blocks."""
    number = rows * width
    return (4 * used > number * (2 if width < SHORT else 3)) | (in_blocks(rows, width, used) >= number)


def computed(config: Config, rows: int, width: int, used: jax.Array, unpacked: bool = False) -> jax.Array:
    """int32 [...]: how many tokens of chunks of `rows` by `width`, of which `used` [...] are in use, are computed,
    in a program of one run: beside others in one, loops go on until the last has ended."""
    if unpacked or not divides(config, rows * width):
        return jnp.full_like(used, rows * width)
    return jnp.where(dense(rows, width, used), rows * width, in_blocks(rows, width, used))


def of_first(of_rows: Callable, used: jax.Array, rows: int, width: int, *x: Any) -> Any:
    """of_rows of trees of arrays [N, ...], of the first `used` rows at least; the rest is garbage."""
    block, made = size(rows, width), jax.eval_shape(of_rows, *x)

    def blocks(*x: Any) -> Any:
        def step(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            start, done = carry
            part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, block), x)
            put = lambda into, own: jax.lax.dynamic_update_slice_in_dim(into, own, start, 0)  # noqa: E731
            return start + block, jax.tree.map(put, done, of_rows(*part))

        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), made)
        return jax.lax.while_loop(lambda carry: any_lane(carry[0] < used), step, (jnp.int32(0), blank))[1]

    return jax.lax.cond(any_lane(dense(rows, width, used)), of_rows, blocks, *x)
