"""Integer names of what seats were told: equal texts have equal names, others almost surely (32 bits) other ones."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PRIME, START = np.uint32(16777619), np.uint32(2166136261)


def mixed(name: Any, *values: Any) -> jax.Array:
    """A name uint32 with further integers in it, in order: FNV-1a of words, with a finaliser after each, so that low
    bits reach high ones."""
    for value in values:
        name = (name ^ value.astype(jnp.uint32)) * PRIME
        name = (name ^ (name >> 15)) * np.uint32(0x2C1B3C6D)
        name ^= name >> 12
    return name


def first_alike(fields: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """For each field, int32 [phrases + 1]: the first phrase of the same text; the last entry is that of -1, nothing."""
    return [np.array([*(texts.index(text) for text in texts), -1], np.int32) for texts in map(list, fields)]


def of_phrases(alike: Sequence[np.ndarray], phrases: jax.Array, name: jax.Array) -> jax.Array:
    """Names uint32 [..., A] with what the referee says in them: phrases int32 [..., A, K] of these fields."""
    return mixed(name, *(jnp.asarray(same)[phrases[..., i]] for i, same in enumerate(alike)))


def of_text(text: str) -> int:
    """The name int32 of a text that a Python game tells."""
    return int(np.uint32(zlib.crc32(text.encode())).astype(np.int32))


def of_message(tokens: jax.Array, length: jax.Array) -> jax.Array:
    """Names uint32 [R] of messages int32 [R, W] of these lengths [R]; 0 for an empty one."""

    def add(name: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        token, inside = at
        return jnp.where(inside, mixed(name, token), name), None

    inside = jnp.arange(tokens.shape[1])[:, None] < length[None]
    return jax.lax.scan(add, jnp.zeros(length.shape, jnp.uint32), (tokens.T, inside))[0]


def with_messages(name: jax.Array, said: jax.Array, hears: jax.Array) -> jax.Array:
    """Names [B, A] of listeners with the messages [B, speaker] that each hears, bool [B, speaker, listener]."""
    for speaker in range(said.shape[1]):
        heard = hears[:, speaker] & (jnp.arange(name.shape[1]) != speaker)[None]
        name = jnp.where(heard, mixed(name, np.uint32(speaker), said[:, speaker, None]), name)
    return name


def histories(episodes: Any) -> jax.Array:
    """Names int32 [B, T, A] of all that a seat was told before it acted in a turn, and of its own actions before."""

    def add(name: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        told, action = at
        told = mixed(name, told)
        return mixed(told, action), told

    turns = jnp.moveaxis(episodes.told, 1, 0), jnp.moveaxis(episodes.action, 1, 0)
    start = jnp.zeros(episodes.told[:, 0].shape, jnp.uint32)
    return jnp.moveaxis(jax.lax.scan(add, start, turns)[1], 0, 1).astype(jnp.int32)
