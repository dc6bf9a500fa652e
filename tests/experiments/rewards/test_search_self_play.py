"""Search self-play: what reaches solvers, who is compared with whom, what the pool remembers.

The long cases compile an update; the short ones count the rungs, and `test_contract` traces the study.
"""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.rewards import search_self_play as ssp
from jaxmarl_llm.devices import sharding
from jaxmarl_llm.methods import pool
from jaxmarl_llm.models import loading
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.setup import setup

ARM = dataclasses.replace(ssp.CO_TRAINED, warm_start=(), updates=2)
HPARAMS = ARM.traced_hparams


@pytest.fixture(scope="module")
def update():
    """One update of an untrained policy, whose pool holds one question in the second case."""
    parts = setup(ARM, "tiny", sharding.mesh(), loading.load)
    run = begin.init_run(parts, jax.random.key(0))
    documents = ssp.CORPUS.chains.documents(jax.random.key(5))
    question = ssp.CORPUS.nothing().question.replace(documents=documents, start=jnp.int32(6), chain=jnp.int32(9))
    question = question.replace(answer=ssp.CORPUS.chains.truth(question))
    one = jax.tree.map(lambda x: x[None], question)
    filled = pool.put(run.state, one, jnp.ones(1), jnp.ones(1, bool))

    @jax.jit
    def of(state):
        games = step.collect_experience(parts, run.replace(state=state), HPARAMS, jax.random.key(1), jnp.int32(0))
        return games.experience.episodes, step.make_batches(parts, games.experience, games.advantages), games.advantages

    return question, jax.device_get(of(run.state)), jax.device_get(of(filled))


@pytest.mark.long
def test_a_proposal_that_fails_the_gate_never_reaches_a_solvers_batch(update):
    question, *cases = update
    for stands_in, (episodes, batches, advantages) in zip((False, True), cases, strict=True):
        valid = episodes.measured[:, :, 0, ssp.VALID].sum(1) > 0
        assert not valid.all()
        (part,) = batches.values()
        for b in np.flatnonzero(~valid):
            rows = (part.rows.episode == b) & (part.rows.seat > 0)
            assert rows.sum() == ssp.CORPUS.solvers
            trained = part.batch.mask[rows].any(1)
            assert trained.all() if stands_in else not trained.any()  # a group of solvers is whole or nobody
        asked = episodes.acted[..., 1:].any(1)
        assert ((asked.sum(1) == 4) | (asked.sum(1) == 0)).all()
        found = advantages.state
        new = 1 if stands_in else 0
        assert found.filled.sum() == new + valid.sum()
        items = jax.tree.map(jnp.asarray, found.items)
        truth = jax.vmap(ssp.CORPUS.chains.truth)(items)
        np.testing.assert_array_equal(np.asarray(truth)[found.filled], found.items.answer[found.filled])
        if stands_in:
            right = episodes.reward[..., ssp.CORRECT].sum(1)[:, 1:]
            said = episodes.action[..., 1:].max(1) - ssp.CORPUS.relations  # an answer is the largest action
            np.testing.assert_array_equal(right[~valid], said[~valid] == question.answer)


@pytest.mark.long
def test_solvers_are_compared_within_their_question_and_proposers_within_the_batch(update):
    _, _, (episodes, _, advantages) = update
    reward, acted = episodes.reward, episodes.acted
    correct, proposal = reward[..., ssp.CORRECT].sum(1), reward[:, :, 0, ssp.PROPOSAL].sum(1)
    for b in range(ssp.GROUPS):
        for seat in range(1, 5):
            wanted = correct[b, seat] - correct[b, 1:].mean()
            wanted /= correct[b, 1:].std() + 1e-6 if correct[b, 1:].std() else 1
            np.testing.assert_allclose(
                advantages.advantage[b, :, seat], np.where(acted[b, :, seat], wanted, 0), atol=1e-4
            )
        wanted = np.where(acted[b, :, 0], proposal[b] - proposal.mean(), 0)
        np.testing.assert_allclose(advantages.advantage[b, :, 0], wanted, atol=1e-5)


def test_rungs_are_counted_apart():
    reward, facts = np.zeros((6, 2, 5, 2), np.float32), np.zeros((6, 2, 5, 4), np.float32)
    facts[:, 1, 0, ssp.HOPS] = [1, 2, 3, 1, 2, 3]
    reward[:3, 1, 1:, ssp.CORRECT] = [[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    found = ssp.rungs(SimpleNamespace(reward=jnp.asarray(reward), measured=jnp.asarray(facts)))
    assert {name: float(x) for name, x in found.items()} == {"rung 1": 0.25, "rung 2": 0.125, "rung 3": 0.0}
