"""Integer names of observations: equal texts have equal names; different texts almost surely (32 bits) differ."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PRIME, START = np.uint32(16777619), np.uint32(2166136261)


def mix(name: Any, *values: Any) -> jax.Array:
    """A name uint32 after further integers, in order: FNV-1a over words.

    A finaliser after each word lets its low bits change the high bits of the name.
    """
    for value in values:
        name = (name ^ value.astype(jnp.uint32)) * PRIME
        name = (name ^ (name >> 15)) * np.uint32(0x2C1B3C6D)
        name ^= name >> 12
    return name


def first_equal(fields: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """For each field, int32 [phrases + 1]: the first phrase with the same text, and -1 as last entry, for no phrase."""
    return [np.array([*(texts.index(text) for text in texts), -1], np.int32) for texts in map(list, fields)]


def name_phrases(first: Sequence[np.ndarray], phrases: jax.Array, name: jax.Array) -> jax.Array:
    """Names uint32 [..., A] after the phrases int32 [..., A, K] of an observation's fields, -1 for no phrase."""
    return mix(name, *(jnp.asarray(table)[phrases[..., i]] for i, table in enumerate(first)))


def name_text(text: str) -> int:
    """The name int32 of a text, for observations of Python games."""
    return int(np.uint32(zlib.crc32(text.encode())).astype(np.int32))


def name_messages(tokens: jax.Array, length: jax.Array) -> jax.Array:
    """Names uint32 [R] of messages int32 [R, W] with these lengths [R]; 0 for an empty one."""

    def add(name: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        token, inside = at
        return jnp.where(inside, mix(name, token), name), None

    inside = jnp.arange(tokens.shape[1])[:, None] < length[None]
    return jax.lax.scan(add, jnp.zeros(length.shape, jnp.uint32), (tokens.T, inside))[0]


def add_messages(name: jax.Array, said: jax.Array, hears: jax.Array) -> jax.Array:
    """Names [B, A] of listeners after the messages that each hears.

    Names of messages are `said` [B, speaker]; `hears` is bool [B, speaker, listener].
    """
    for speaker in range(said.shape[1]):
        heard = hears[:, speaker] & (jnp.arange(name.shape[1]) != speaker)[None]
        name = jnp.where(heard, mix(name, np.uint32(speaker), said[:, speaker, None]), name)
    return name


def histories(episodes: Any) -> jax.Array:
    """Names int32 [B, T, A] of a seat's history before its act in a turn: its observations and its earlier actions."""

    def add(name: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        told, action = at
        told = mix(name, told)
        return mix(told, action), told

    turns = jnp.moveaxis(episodes.told, 1, 0), jnp.moveaxis(episodes.action, 1, 0)
    start = jnp.zeros(episodes.told[:, 0].shape, jnp.uint32)
    return jnp.moveaxis(jax.lax.scan(add, start, turns)[1], 0, 1).astype(jnp.int32)
