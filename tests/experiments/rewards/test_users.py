"""Users who want opposite things: what replies are worth, and that a policy is told the note alone."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.rewards import users
from experiments.rewards.users import GAME, REPLIES, Reader


def test_values_by_hand():
    task, action = jnp.array([7] * 4), REPLIES.reply(jnp.array([0, 1, 2, 0]), jnp.array([3, 3, 3, 4]))  # 1 + 2
    np.testing.assert_allclose(users.value(jnp.zeros(4, jnp.int32), task, action), [1, 0.3, 0, 0])
    np.testing.assert_allclose(users.value(jnp.ones(4, jnp.int32), task, action), [0, 0.3, 1, 0])


def test_preferences_are_of_users_who_err_by_bradley_and_terry():
    wordy, pairs, gain = users.readers(jax.random.key(0), 200, 20)
    assert set(np.unique(wordy)) == {0, 1} and pairs.shape == (200, 20, 2, 3)
    for size in (0.3, 0.7, 1.0):
        of_size = np.asarray(gain)[np.abs(np.abs(gain) - size) < 0.01]
        np.testing.assert_allclose((of_size < 0).mean(), 1 / (1 + np.exp(5 * size)), atol=0.03)


def test_a_policy_is_told_the_note_alone():
    told = []
    for wordy, latent in ((0, -1.0), (1, 2.0)):
        given = Reader(jnp.int32(7), jnp.int32(3), jnp.int32(wordy), jnp.full(1, latent))
        state, view = GAME.reset(jax.random.key(0), jnp.int32(0), given)
        told.append((GAME.prompt(state), view))
    jax.tree.map(np.testing.assert_array_equal, *told)
    other, _ = GAME.reset(jax.random.key(0), jnp.int32(0), given._replace(note=jnp.int32(1)))
    assert (GAME.prompt(other) != told[0][0]).any()
