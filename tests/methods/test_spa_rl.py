"""The progress estimator: what it reads, where it speaks, and that its contributions add up to the return.

The long cases compile play, a network and its lessons; the short one compares contributions, and `test_contract` traces
the study.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods import networks, spa_rl
from jaxmarl_llm.models import loading
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.trajectory import last_of_turn
from jaxmarl_llm.training import begin
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe, always
from jaxmarl_llm.training.setup import setup
from tests.support.recipe_plays import games

KEY = jax.random.key(0)
RECIPE = Recipe(
    LockChain(2, turns=4, decoys=1, pays="progress"),
    seats=(("learner",),),
    advantage=estimator(advantages.rloo),
    arrange=partial(always, deal=2),
    budget=1,
    groups=8,
    group_size=4,
)


@pytest.fixture(scope="module")
def played():
    parts = setup(RECIPE, "tiny", sharding.mesh(), loading.load)
    network = spa_rl.init(parts, jax.random.key(1))
    experience = games(RECIPE, rows=True)
    return parts, network, experience


@pytest.mark.long
@pytest.mark.parametrize("reply", [False, True])
def test_a_turn_is_read_with_its_last_token_or_the_reply_and_nothing_after(played, reply):
    """Against the network that reads the text up to there alone."""
    parts, network, experience = played
    rows, episodes = experience.rows["learner"], experience.episodes
    config = networks.config(parts, "learner")
    found = np.asarray(spa_rl.contributions(parts, network.weights, experience, reply))
    assert found.shape == episodes.acted.shape and (found[~np.asarray(episodes.acted)] == 0).all()
    sampled = jax.device_get(experience.sampled["learner"])
    for row in (0, 30):
        number = int(rows.prompt[row])
        prompt = np.asarray(rows.prompts.tokens[number])[: int(rows.prompts.length[number])]
        places = sampled.at[row][sampled.mask[row]]
        ends = [*places[1:], places[-1] + 1] if reply else places + 1
        for m, end in enumerate(ends):
            text = jnp.asarray([*prompt, *np.asarray(rows.tokens[row])[:end]])
            want = networks.read_last(config, network.weights, text)[spa_rl.HEAD][0]
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
    total = experience.episodes.reward[..., 0].sum(1)
    learn = partial(spa_rl.learn, parts, experience=experience, total=total, rate=3e-3, steps=150)
    learnt, metrics = jax.jit(lambda network, key: learn(network=network, key=key))(network, jax.random.key(2))
    before, after = (spa_rl.contributions(parts, x.weights, experience).sum(1) for x in (network, learnt))
    assert np.abs(before - total).max() > 0.5 and "loss/network" in metrics
    np.testing.assert_allclose(after, total, atol=0.15)


def test_contributions_are_compared_with_those_of_a_turn_and_of_the_turn_before():
    rng = np.random.default_rng(0)
    acted = np.arange(5)[None] < rng.integers(2, 6, 12)[:, None]
    true, c = acted * rng.normal(size=(12, 5)), acted * rng.normal(size=(12, 5))
    found = spa_rl.compare_contributions(
        *(jnp.asarray(x, jnp.float32)[..., None] for x in (c, true)), jnp.asarray(acted)[..., None]
    )
    turns = [(b, t) for b in range(12) for t in range(5) if acted[b, t]]
    said = [c[b, t] for b, t in turns]
    own, before = ([true[b, t - late] if t >= late else 0 for b, t in turns] for late in (0, 1))
    total = true.sum(1)
    want = np.corrcoef(said, own)[0, 1], np.corrcoef(said, before)[0, 1]
    want = *want, 1 - np.mean((total - c.sum(1)) ** 2) / total.var()
    np.testing.assert_allclose([*found.values()], want, atol=1e-3)


@pytest.mark.long
def test_the_estimator_is_taught_by_the_policy_as_it_is():
    """Its sums explain games that it has not seen, and a second lesson with another key differs."""
    parts = setup(RECIPE, "tiny", sharding.mesh(), loading.load)
    run = begin.init_run(dataclasses.replace(parts, recipe=dataclasses.replace(RECIPE, init_state=spa_rl.init)), KEY)
    hparams = {"network_rate": jnp.float32(3e-3)}

    @jax.jit
    def explained(run, key):
        network = spa_rl.train_estimator(parts, run, hparams, key, component=0, rounds=60, steps=3)
        _, experience = spa_rl.games(parts, run, hparams, KEY, jnp.int32(0))
        c = spa_rl.contributions(parts, network.weights, experience)
        before = spa_rl.contributions(parts, run.state.weights, experience)
        true, acted = experience.episodes.reward[..., 0], experience.episodes.acted
        return [spa_rl.compare_contributions(x, true, acted)["explained"] for x in (c, before)]

    (one, before), (other, _) = explained(run, jax.random.key(1)), explained(run, jax.random.key(2))
    assert min(one, other) > 0.5 > before and one != other
