"""The progress estimator: what it reads, where it speaks, and that its contributions add up to the return."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.environments.lock_chain import LockChain
from jaxmarl_llm.models import loading
from jaxmarl_llm.rollout.trajectory import last_of_turn
from jaxmarl_llm.training import networks, progress
from jaxmarl_llm.training.recipe import Recipe, always
from jaxmarl_llm.training.setup import setup
from tests.support.recipe_plays import games

RECIPE = Recipe(
    LockChain(2, turns=4, decoys=1),
    seats=(("learner",),),
    advantage=None,
    step=len,
    arrange=partial(always, deal=2),
    budget=1,
    groups=8,
    group_size=4,
)


@pytest.fixture(scope="module")
def played():
    parts = setup(RECIPE, "tiny", sharding.mesh(), loading.load)
    network = progress.init(parts, jax.random.key(1))
    experience = games(RECIPE, rows=True)
    return parts, network, experience


@pytest.mark.long
def test_a_turn_is_read_with_its_last_token_and_nothing_after(played):
    """Against the network that reads the text up to there alone."""
    parts, network, experience = played
    rows, episodes = experience.rows["learner"], experience.episodes
    config = networks.config(parts, "learner")
    found = np.asarray(progress.contributions(parts, network.weights, experience))
    assert found.shape == episodes.acted.shape and (found[~np.asarray(episodes.acted)] == 0).all()
    sampled = jax.device_get(experience.sampled["learner"])
    for row in (0, 30):
        number = int(rows.prompt[row])
        prompt = np.asarray(rows.prompts.tokens[number])[: int(rows.prompts.length[number])]
        for m in np.flatnonzero(sampled.mask[row]):
            text = jnp.asarray([*prompt, *np.asarray(rows.tokens[row])[: sampled.at[row, m] + 1]])
            want = networks.read_last(config, network.weights, text)[progress.HEAD][0]
            np.testing.assert_allclose(found[int(rows.episode[row]), sampled.turn[row, m], 0], want, atol=1e-5)


@pytest.mark.long
def test_the_last_token_of_each_turn(played):
    sampled = played[2].sampled["learner"]
    turn, mask = np.array([[0, 0, 1, 3, 3, 3]]), np.array([[True] * 5 + [False]])
    one = jax.tree.map(lambda x: x[:1], sampled).replace(turn=jnp.asarray(turn), mask=jnp.asarray(mask))
    assert last_of_turn(one).tolist() == [[False, True, True, False, True, False]]


@pytest.mark.long
def test_contributions_learn_to_add_up_to_the_return(played):
    parts, network, experience = played
    total = experience.episodes.reward[..., 1].sum(1)
    learn = partial(progress.learn, parts, experience=experience, total=total, rate=3e-3, steps=150)
    learnt, metrics = jax.jit(lambda network, key: learn(network=network, key=key))(network, jax.random.key(2))
    before, after = (progress.contributions(parts, x.weights, experience).sum(1) for x in (network, learnt))
    assert np.abs(before - total).max() > 0.5 and "loss/network" in metrics
    np.testing.assert_allclose(after, total, atol=0.15)
