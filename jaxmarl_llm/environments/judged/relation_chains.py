"""Questions of one to several hops over documents "A knows C", one for each relation and key."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


class Question(struct.PyTreeNode):
    """A question with its documents."""

    documents: jax.Array  # int32 [relations, keys]: documents[r, k] is the key that k knows, likes ...
    start: jax.Array  # int32, a key
    chain: jax.Array  # int32, index into `Chains.lists`
    answer: jax.Array  # int32, the key that its proposer says is the answer


@dataclass(frozen=True)
class Chains:
    """All chains of one to `hops` relations, and the keys that they lead to."""

    relations: int
    keys: int
    hops: int

    @property
    def lists(self) -> np.ndarray:
        """int32 [chains, hops]: all lists of relations, short ones first, -1 after their end."""
        lists = [chain for n in range(1, self.hops + 1) for chain in product(range(self.relations), repeat=n)]
        return np.array([[*chain, *[-1] * (self.hops - len(chain))] for chain in lists], np.int32)

    def length(self, chain: jax.Array) -> jax.Array:
        """The hops of a chain, int32."""
        return jnp.asarray((self.lists >= 0).sum(1), jnp.int32)[chain]

    def relation(self, chain: jax.Array, hop: jax.Array | int) -> jax.Array:
        """The relation of a hop, int32, -1 after the end."""
        return jnp.asarray(self.lists)[chain, hop]

    def index(self, relations: jax.Array, length: jax.Array) -> jax.Array:
        """int32: the chain of the first `length` of these relations, int32 [hops]."""
        wanted = jnp.where(jnp.arange(self.hops) < length, relations, -1)
        return (jnp.asarray(self.lists) == wanted[None]).all(1).argmax().astype(jnp.int32)

    def path(self, question: Question) -> jax.Array:
        """int32 [hops + 1]: the keys that a question leads to, its start first; after the end the last key is
        repeated."""
        path = [question.start]
        for i in range(self.hops):
            relation = self.relation(question.chain, i)
            path.append(jnp.where(relation < 0, path[-1], question.documents[relation, path[-1]]))
        return jnp.stack(path)

    def truth(self, question: Question) -> jax.Array:
        """The key that the documents give for the question, int32."""
        return self.path(question)[-1]

    def supported(self, question: Question, seen: jax.Array) -> jax.Array:
        """bool: the documents that are `seen`, bool [relations, keys], include all that the question needs, and they
        give its answer."""
        path, known = self.path(question), jnp.bool_(True)
        for i in range(self.hops):
            relation = self.relation(question.chain, i)
            known &= (relation < 0) | seen[relation, path[i]]
        return known & (path[-1] == question.answer)

    def documents(self, key: jax.Array) -> jax.Array:
        """Random documents, int32 [relations, keys]: every relation is one-to-one."""
        keys = jax.random.split(key, self.relations)
        return jax.vmap(lambda key: jax.random.permutation(key, self.keys))(keys).astype(jnp.int32)
