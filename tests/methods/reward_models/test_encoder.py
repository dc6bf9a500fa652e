"""An encoder reads each text alone, as if nothing were padded; the study pays by the line that was said.

All cases are long, as they compile an encoder for each length, or play; `test_contract` traces the study.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.rewards import semantic_encoder as study
from jaxmarl_llm.devices import sharding
from jaxmarl_llm.methods.reward_models import encoder
from jaxmarl_llm.models import decoder, loading
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.setup import setup, tiny

CONFIG = tiny(20)


@pytest.mark.long
def test_a_text_is_the_mean_of_its_own_states_whatever_is_beside_it():
    params, rng = decoder.init(CONFIG, jax.random.key(0)), np.random.default_rng(0)
    tokens, length = rng.integers(0, 20, (4, 7)).astype(np.int32), np.array([7, 3, 1, 0], np.int32)
    found = encoder.encode(CONFIG, params, encoder.Texts(tokens, length))
    for row, n, one in zip(tokens, length, found, strict=True):
        alone = decoder.forward(CONFIG, params, jnp.asarray(row[None, :n]))[0][0] if n else np.zeros((1, 32))
        np.testing.assert_allclose(one, np.asarray(alone).mean(0), atol=1e-5)


@pytest.mark.long
def test_lines_are_scored_against_the_expert_of_their_own_question():
    """Lines that are put in place of what was said: each expert's own is at 1 with itself, another's is not."""
    recipe = dataclasses.replace(study.COSINE, groups=6, group_size=2, budget=90)
    parts = setup(recipe, "tiny", sharding.mesh(), loading.load)
    run = begin.init_run(parts, jax.random.key(0))
    weights = step.rollout_weights(parts, run.learners.weights)
    trajectory = step.play(parts, run.learners.weights, jax.random.key(1))
    ((name, policy_set),) = parts.policy_sets.items()
    rows, of = trajectory.rows[name], np.asarray(trajectory.episodes.measured)[:, 0, 0, 0].astype(int)
    assert len(set(of)) > 1
    lines = [study.GAME.explained[(q + e % 2) % 20].reference for e, q in enumerate(of)]  # odd episodes: another's
    tokens, mask = np.zeros(rows.tokens.shape, np.int32), np.zeros(rows.tokens.shape, bool)
    for row, e in enumerate(np.asarray(rows.episode)):
        ids = policy_set.tokenizer.encode(lines[e])
        tokens[row, : len(ids)], mask[row, : len(ids)] = ids, True
    put = rows.replace(tokens=jnp.asarray(tokens), loss_mask=jnp.asarray(mask))
    found = jax.jit(lambda t: study.score_lines(parts, weights, t))(trajectory.replace(rows={name: put}))
    own = np.arange(len(of)) % 2 == 0
    for score in study.SCORES:
        assert np.allclose(np.asarray(found[score])[own], 1, atol=1e-4), score
        assert (np.asarray(found[score])[~own] < 0.999).all(), score
    assert found["topic"].shape == found["meaning"].shape == (20,)
