"""Chains of relations: their lists, what they lead to, and the gate, against loops."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.judged.relation_chains import Chains, Question

CHAINS = Chains(relations=2, keys=5, hops=3)
DOCUMENTS = CHAINS.documents(jax.random.key(0))


def walk(documents, start, chain):
    """The documents that a chain needs, and where it ends."""
    needed = []
    for relation in chain:
        needed.append((relation, start))
        start = int(documents[relation, start])
    return needed, start


def test_relations_are_one_to_one():
    for relation in np.asarray(DOCUMENTS):
        assert sorted(relation) == list(range(5))


def test_every_chain_and_what_it_leads_to():
    expected = [list(x) for n in (1, 2, 3) for x in itertools.product(range(2), repeat=n)]
    assert [[r for r in chain if r >= 0] for chain in CHAINS.lists.tolist()] == expected
    for i, chain in enumerate(expected):
        assert int(CHAINS.length(jnp.int32(i))) == len(chain)
        padded = jnp.array([*chain, *[1] * (3 - len(chain))])
        assert int(CHAINS.index(padded, jnp.int32(len(chain)))) == i
        for start in range(5):
            question = Question(DOCUMENTS, jnp.int32(start), jnp.int32(i), jnp.int32(0))
            assert int(CHAINS.truth(question)) == walk(DOCUMENTS, start, chain)[1]


def test_the_gate_wants_every_document_that_the_chain_needs_and_the_answer():
    chain, start = [0, 1, 0], 2
    needed, end = walk(DOCUMENTS, start, chain)
    code = CHAINS.index(jnp.array(chain), jnp.int32(3))
    question = Question(DOCUMENTS, jnp.int32(start), code, jnp.int32(end))
    seen = np.zeros((2, 5), bool)
    for relation, key in needed:
        seen[relation, key] = True
    assert CHAINS.supported(question, jnp.asarray(seen))
    assert not CHAINS.supported(question.replace(answer=jnp.int32((end + 1) % 5)), jnp.asarray(seen))
    for relation, key in needed:
        fewer = seen.copy()
        fewer[relation, key] = False
        assert not CHAINS.supported(question, jnp.asarray(fewer))
    assert CHAINS.supported(question, jnp.ones((2, 5), bool))
