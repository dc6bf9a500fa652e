"""The noise of the study of crossed credit against a loop."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.teams.crossed import GAMES, early, group_noise


def test_the_noise_equals_a_loop():
    groups, size, seats, actions = 3, 2, 2, 4
    rng = np.random.default_rng(0)
    advantage = rng.normal(size=(groups * size, 1, seats))
    probability = rng.dirichlet(np.ones(actions), (groups * size, 1, seats))
    action = rng.integers(0, actions, (groups * size, 1, seats))
    wanted = 0.0
    for seat in range(seats):
        for number in range(actions):
            of_group = [
                np.mean(
                    [
                        advantage[e, 0, seat] * ((action[e, 0, seat] == number) - probability[e, 0, seat, number])
                        for e in range(g * size, (g + 1) * size)
                    ]
                )
                for g in range(groups)
            ]
            wanted += np.var(of_group, ddof=1)
    got = group_noise(jnp.array(advantage), jnp.array(probability), jnp.array(action), groups)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_early_noise_is_the_mean_of_ten_updates():
    np.testing.assert_allclose(early({"noise": np.arange(24.0).reshape(2, 12)}), [4.5, 16.5])


def test_the_best_joint_action_is_worth_what_the_study_says():
    for game, best in GAMES.values():
        state, _ = game.reset(jax.random.key(0), jnp.int32(0))
        every = np.stack(np.meshgrid(*[np.arange(game.actions)] * game.agents), -1).reshape(-1, game.agents)
        paid = jax.jit(jax.vmap(lambda joint, game=game, state=state: game.step(state, joint, jax.random.key(0))[2]))
        assert paid(jnp.array(every)).mean((1, 2)).max() == best
