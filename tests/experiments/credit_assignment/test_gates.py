"""What each arm of `gates` pays for the days that it is about, worked out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.credit_assignment.gates import ARMS, GAME, compute_reward
from jaxmarl_llm.rollout.trajectory import Episodes

DAYS = {
    "all day": ["look"] * 7,
    "complete": ["plough", "sow", "water", "weed", "look", "look", "stop"],
    "half": ["plough", "sow", "stop"],
    "unstopped": ["plough", "sow", "water", "weed", "look", "look", "look"],
}
RETURNS = {  # in the order of DAYS
    "outcome": [0, 1, 0.5, 0],
    "ungated": [7 * 0.24, 1.48, 0.5, 0.72],
    "gated_0": [0, 1.48, 0.5, 0],
    "gated_09": [0, 1.48, 0.5, 0],
    "binary": [0, 1, 0, 0],
    "tiers": [0, 1, 0.15, 0],
    "potential": [0, 1, 0, 0],
    "by_turn": [0, 2.5, 1, 2],
    "at_end": [0, 2.5, 1, 2],
}


def episodes() -> Episodes:
    reward, acted = np.zeros((4, 7, 1, 3), np.float32), np.zeros((4, 7, 1), bool)
    for b, day in enumerate(DAYS.values()):
        works = 0
        for t, said in enumerate(day):
            right = said == GAME.phrases_to_say[1 + works] and said != "stop"
            reward[b, t, 0] = works / 4 * (said == "stop"), 0.24 * (said == "look"), right / 4
            acted[b, t], works = True, works + right
    nothing = jnp.zeros(acted.shape, jnp.int32)
    rest = dict.fromkeys(
        ("action", "legal", "valid", "role", "told", "group", "game", "terminated", "truncated"), nothing
    )
    return Episodes(
        reward=jnp.array(reward[..., :2]), measured=jnp.array(reward[..., 2:]), acted=jnp.array(acted), **rest
    )


@pytest.mark.parametrize("arm", RETURNS)
def test_the_return_of_a_day(arm):
    played = episodes()
    found = np.asarray(compute_reward(played, ARMS[arm].all_hparams))[..., 0]
    np.testing.assert_allclose(found.sum(1), RETURNS[arm], atol=1e-6)
    if arm == "at_end":  # nothing before the last turn of each day
        assert [np.flatnonzero(day).tolist() for day in found] == [[], [6], [2], [6]]
