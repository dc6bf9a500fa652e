"""What POLAR's reward model is taught: pairs of one policy against another, and preferences of correctness alone."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.rewards import discriminator
from experiments.rewards.discriminator import LABELS, POLICIES, REPLIES

ANSWERS = len(REPLIES.tasks.answers)


def parts(texts):
    """(manner, answer) of reference and reply."""
    texts = np.asarray(texts)
    return (texts[..., -4] - ANSWERS, texts[..., -3]), (texts[..., -2] - ANSWERS, texts[..., -1])


def test_scripts_are_as_skilled_as_their_names_say():
    n, task = 400, jnp.arange(400) % REPLIES.tasks.size
    for number in (0, 7, 14):
        keys = jax.random.split(jax.random.key(number), n)
        action = jax.jit(jax.vmap(discriminator.script_reply, (None, 0, 0)))(jnp.int32(number), task, keys)
        manner, answer = REPLIES.parts(action)
        exactly = (answer == REPLIES.truth(task)) & (manner == number % 3)
        np.testing.assert_allclose(exactly.mean(), POLICIES[number].right, atol=0.08)


def test_the_better_reply_shares_the_manner_of_the_reference_more_often():
    pairs = jax.jit(discriminator.of_policies, static_argnums=1)(jax.random.key(0), 600)
    reference, reply = parts(pairs)
    same = (reference[0] == reply[0]).mean(0)
    assert same[0] > same[1] + 0.15
    np.testing.assert_array_equal(pairs[:, 0, :5], pairs[:, 1, :5])  # question and reference


def test_preferences_are_of_correctness_whatever_the_manners():
    reference, reply = parts(discriminator.preferences(jax.random.key(0), 600))
    assert (reply[1][:, 0] == reference[1][:, 0]).all() and (reply[1][:, 1] != reference[1][:, 1]).all()
    np.testing.assert_allclose((reply[0] == reference[0]).mean(0), 1 / 3, atol=0.06)
    assert len(discriminator.preferences(jax.random.key(1), LABELS)) == 16
