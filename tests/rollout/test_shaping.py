"""A hook on the distribution that sampler and scorer share: both see it, and a hook that changes nothing changes none.

The long case compiles two rollouts and a score.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from scipy.special import log_softmax

from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rollout import policy
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.rollout.trajectory import gather_sampled
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.setup import tiny
from tests.support.families import random as numbers


def cool(logits, by):
    return logits / (1 + by)


def favour(logits, first):
    return logits.at[..., 0].add(first)


def test_a_temperature_and_added_logits_against_numpy():
    rng = np.random.default_rng(0)
    logits, mask = rng.normal(size=(4, 3, 7)).astype(np.float32), rng.random((4, 3, 7)) < 0.7
    mask[..., 2] = True
    find = jax.jit(lambda hook: policy.distribution(logits, mask, Sampling(2.0), shaping=hook))
    for hook, shaped in (
        (Partial(cool, by=jnp.float32(0.5)), logits / 2 / 1.5),
        (Partial(favour, first=jnp.float32(3.0)), logits / 2 + 3 * (np.arange(7) == 0)),
    ):
        found = np.asarray(find(hook))
        wanted = log_softmax(np.where(mask, shaped, -np.inf), -1)
        np.testing.assert_allclose(found[mask], wanted[mask], rtol=1e-5, atol=1e-6)
        assert (found[~mask] == np.float32(policy.NEVER)).all()


def test_a_temperature_of_one_changes_nothing():
    """Logits bit for bit; log-probabilities up to rounding: logits reach 15 here, and a sum may round otherwise."""
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(64, 9)) * 5, jnp.float32)
    hook = Partial(cool, by=jnp.float32(0))
    np.testing.assert_array_equal(jax.jit(lambda hook: hook(logits))(hook), logits)
    plain, shaped = jax.jit(
        lambda hook: (policy.distribution(logits, None), policy.distribution(logits, None, shaping=hook))
    )(hook)
    np.testing.assert_allclose(plain, shaped, rtol=0, atol=4e-6)


@pytest.mark.long
def test_sampler_and_scorer_share_the_hook():
    """The first ratio is 1, and is not if the scorer lacks the hook. At temperature 1 the games are the same."""
    game, members = LockChain(3, 4, decoys=2), 32
    tokenizer = SymbolTokenizer(strings(game))
    config = tiny(tokenizer.vocab_size)
    rollout = Rollout(game, {"x": PolicySet(tokenizer, ("x",), config)}, Lineup((("x",),), members), 1)
    params = numbers(jax.eval_shape(lambda key: decoder.init(config, key), jax.random.key(0)), 0)
    params = jax.tree.map(lambda x: 3 * x, params)  # far from uniform
    plain = rollout.layouts["x"].scorer()

    @jax.jit
    def play(hook):
        played = rollout({"x": {"params": params}}, jax.random.key(0), None, None, None, hook)
        sampled = gather_sampled(played.rows["x"], played.episodes.legal, rollout.max_sampled_tokens("x"))
        shaped = dataclasses.replace(plain, shaping=hook)
        again, other = (scorer(params, played.rows["x"], sampled).logp for scorer in (shaped, plain))
        ratio = lambda logp: jnp.where(sampled.mask, jnp.exp(logp - sampled.behaviour_logp), 1)
        return played.episodes.action, played.rows["x"].logp, ratio(again), ratio(other)

    actions, _, again, other = play(Partial(cool, by=jnp.float32(1.5)))
    np.testing.assert_allclose(again, 1, atol=1e-4)
    assert np.abs(np.asarray(other) - 1).max() > 0.1
    same, logp, again, other = play(Partial(cool, by=jnp.float32(0)))
    np.testing.assert_array_equal(again, other)
    np.testing.assert_allclose(again, 1, atol=1e-4)
    assert (np.asarray(actions) != np.asarray(same)).any()
    unshaped = jax.jit(lambda: rollout({"x": {"params": params}}, jax.random.key(0)))()
    np.testing.assert_array_equal(unshaped.episodes.action, same)
    np.testing.assert_allclose(unshaped.rows["x"].logp, logp, atol=1e-6)
