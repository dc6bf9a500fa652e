"""The utterance critic against a table of exact values; answers drawn anew; a network's own step.

The long cases train a critic or step a network; the short ones draw answers from the same games, and `test_contract`
traces the study.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods import archer, networks, replay
from jaxmarl_llm.rl.masked import mean_of
from jaxmarl_llm.rollout.team import answer_letters
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.recipe import Recipe, always
from jaxmarl_llm.training.records import Advantages
from jaxmarl_llm.training.scoring import resample, score_policies
from jaxmarl_llm.training.trainer import Trainer

LOCKS, TURNS, GAMMA, KEPT = 2, 3, 0.9, 4


def rewards(experience, hparams, state):
    return Advantages(experience.episodes.reward[..., 0], state=state)


RECIPE = Recipe(
    LockChain(LOCKS, turns=TURNS),
    seats=(("learner",),),
    advantage=rewards,
    init_state=partial(archer.empty_memory, kept=KEPT),
    arrange=partial(always, deal=LOCKS),
    budget=1,
    groups=16,
    group_size=8,
)


WORDS = dataclasses.replace(
    RECIPE, game=LockChain(LOCKS, turns=TURNS, alphabet="AB", spelled=2), tokenizer=answer_letters, budget=2
)


@pytest.fixture(scope="module")
def played():
    return play(RECIPE)


def play(recipe):
    """The parts, a policy that opens at random (its weights are 0), its last KEPT updates and the newest episodes."""
    parts = Trainer(recipe, [recipe.all_hparams], [0]).parts
    run = begin.init_run(parts, jax.random.key(0))
    run = run.replace(learners=run.learners.replace(weights=jax.tree.map(jnp.zeros_like, run.learners.weights)))

    @jax.jit
    def fill(ring, number):
        key = jax.random.fold_in(jax.random.key(1), number)
        games = step.collect_experience(parts, run, recipe.all_hparams, key, number)
        batches = step.make_batches(parts, games.experience, games.advantages)
        return replay.put(ring, batches, number), games.experience.episodes

    ring = run.state.ring
    for number in range(KEPT):
        ring, episodes = fill(ring, jnp.int32(number))
    return parts, run, ring, episodes


def exact(locks, turns):
    """The value of `locks` locks left and `turns` turns left when every key is as likely, by the definition."""
    if locks == 0 or turns == 0:
        return 0.0
    right = 1.0 if locks == 1 else GAMMA * exact(locks - 1, turns - 1)
    return right / 4 + 3 / 4 * GAMMA * exact(locks, turns - 1)


@pytest.mark.long
@pytest.mark.parametrize(
    "recipe", [pytest.param(RECIPE, id="one token"), pytest.param(WORDS, id="two tokens", marks=pytest.mark.slow)]
)
def test_the_critic_learns_the_exact_values_of_a_policy(recipe, request):
    parts, run, ring, episodes = request.getfixturevalue("played") if recipe is RECIPE else play(recipe)

    def learn(critic, key):
        key_kept, key_token = jax.random.split(key)
        part = archer.by_utterance(parts, "learner", replay.draw_update(ring, "learner", key_kept))
        again = resample(parts, run.learners.weights, "learner", part.rows, part.sampled, key_token)
        critic, _ = archer.learn(parts, "learner", critic, part, again, GAMMA, 3e-3, key)
        return critic, None

    critic, _ = jax.jit(lambda new: jax.lax.scan(learn, new, jax.random.split(jax.random.key(2), 400)))(
        run.state.critic
    )
    newest = jax.tree.map(lambda x: x[KEPT - 1], ring.batches["learner"])
    part = archer.by_utterance(parts, "learner", newest)
    q, v = archer.twins(parts, "learner", critic.weights, part.rows, part.sampled)
    found = archer.advantage(parts, "learner", critic, part.rows, part.sampled)
    np.testing.assert_allclose(found, np.min(q, -1) - np.min(v, -1), atol=1e-6)

    mask = np.asarray(part.batch.mask).reshape(*found.shape, -1)[..., 0]
    by_row = np.asarray(newest.batch.episode)
    solved, opened = (np.asarray(x)[by_row, :, 0, 0] for x in (episodes.reward, episodes.measured))
    after = np.rint(opened.cumsum(1) * LOCKS).astype(int)
    before = np.pad(after, ((0, 0), (1, 0)))[:, :-1]
    table = np.vectorize(exact)
    left = np.arange(TURNS, 0, -1)[None]
    want_v, want_q = table(LOCKS - before, left), solved + GAMMA * table(LOCKS - after, left - 1)
    assert np.std(want_q[mask]) > 0.2
    for twin in range(2):
        assert np.abs(v[..., twin] - want_v)[mask].mean() < 0.03
        assert np.abs(q[..., twin] - want_q)[mask].mean() < 0.06


@pytest.mark.long
def test_an_answer_is_drawn_again_as_the_policy_would_say_it(played):
    parts, _, ring, _ = played
    weights = begin.init_run(parts, jax.random.key(5)).learners.weights
    weights = jax.tree.map(lambda x: 3 * x, weights)  # far from uniform
    part = jax.tree.map(lambda x: x[0], ring.batches["learner"])
    score = jax.jit(lambda said: score_policies(parts, weights, "learner", part.rows, said)[0].logp)
    draw = jax.jit(jax.vmap(lambda key: resample(parts, weights, "learner", part.rows, part.sampled, key)[1]))
    drawn = draw(jax.random.split(jax.random.key(6), 400))
    mask, words = np.asarray(part.batch.mask), np.unique(np.asarray(part.sampled.token)[part.batch.mask])
    assert set(np.unique(np.asarray(drawn.token)[:, mask])) <= set(words) and len(words) == 4
    one = jax.tree.map(lambda x: x[0], drawn)
    np.testing.assert_allclose(one.behaviour_logp[mask], score(one)[mask], atol=1e-5)
    total, first = 0.0, mask[:, 0]
    for word in words:
        p = np.exp(score(part.sampled.replace(token=jnp.full_like(part.sampled.token, word))))[:, 0][first]
        often = (np.asarray(drawn.token)[:, first, 0] == word).mean(0)
        total = total + p
        assert (np.abs(often - p) < 5 * np.sqrt(p * (1 - p) / 400) + 0.01).all()
    np.testing.assert_allclose(total, 1, atol=1e-5)


@pytest.mark.long
def test_a_network_makes_a_step_of_adam_and_its_slow_copy_follows(played):
    parts, _, ring, _ = played
    part = jax.tree.map(lambda x: x[0], ring.batches["learner"])
    config = networks.config(parts, "learner")
    network = networks.init(config, jax.random.key(3), {"a": 2, "b": 1})

    def loss(weights, batch):
        read = networks.read(config, weights, batch.rows, batch.sampled)
        return mean_of((read["a"].sum(-1) - read["b"][..., 0] - 1) ** 2, batch.batch.mask), {}

    new, metrics = networks.learn(network, loss, part, 1e-2, jax.random.key(4), tau=0.25)
    value = lambda weights: loss(weights, part)[0].sum / part.batch.mask.sum()
    value, gradient = jax.value_and_grad(value)(network.weights)
    adam = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
    change, _ = adam.update(gradient, adam.init(network.weights), network.weights)
    assert jax.tree.leaves(change)[0].any() and {"loss/network", "gradient_norm/network"} <= set(metrics)
    np.testing.assert_allclose(metrics["loss/network"], value, rtol=1e-5)
    want = jax.tree.map(jnp.add, network.weights, change)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), new.weights, want)
    slow = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, network.weights, new.weights)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), new.slow, slow)
