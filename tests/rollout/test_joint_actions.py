"""Tables of rewards of other joint actions against games that are stepped by hand, chance in the rules included.

The long case compiles tables of two kinds and makes one again without jit; the short one steps them by hand.
"""

import itertools
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.helpers import choice, draw, make_view
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.keys import CHANCE, DEAL, key_for
from jaxmarl_llm.rollout import joint_actions
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup

KEY, GROUPS, SIZE = jax.random.key(3), 3, 2


@dataclass(frozen=True)
class Dice:
    """Three seats say 0, 1 or 2 at once. Points: the dealt number times the sum, and a die for the own number."""

    agents: int = 3
    turns: int = 1
    actions: int = 3
    roles = ("player",)
    components = ("sum", "die")
    rules = (("Say.",),)
    observation = (("Now.",),)
    grammars = (choice("012"),)

    @property
    def scripts(self):
        return {"random": lambda state, seat, key: jax.random.randint(key, (), 0, 3)}

    def reset(self, key, group, most=4):
        number = draw(key, 4) % most
        return number, make_view(self, [0], jnp.bool_(True), jnp.bool_(False))

    def prompt(self, state):
        return jnp.zeros((3, 1), jnp.int32)

    def step(self, state, action, key):
        die = jax.random.normal(key, (3, 3))[jnp.arange(3), action]
        paid = jnp.stack([jnp.full(3, state * action.sum(), jnp.float32), die], 1)
        return state, make_view(self, [0], jnp.bool_(True), jnp.bool_(True)), paid


def played(deal=None):
    rollout = Rollout(Dice(), {}, Lineup((("random",) * 3,) * GROUPS, SIZE), 1)
    return rollout, jax.jit(rollout)({}, KEY, deal).episodes


@jax.jit
def by_hand(group, joint, most):
    state, _ = Dice().reset(key_for(KEY, DEAL, group), group, most)
    return Dice().step(state, joint, key_for(KEY, CHANCE, group, 0))[2]


@pytest.mark.parametrize("most", [None, 2])
def test_the_tables_equal_stepping_by_hand(most):
    deal = None if most is None else jnp.full(GROUPS, most)
    rollout, episodes = played(deal)
    given = KEY, episodes.action, deal
    crossed = jax.jit(partial(joint_actions.crossed_rewards, rollout))(*given)
    others = jax.jit(partial(joint_actions.alternative_rewards, rollout))(*given)
    assert crossed.shape == (GROUPS, *(SIZE,) * 3, 3, 2) and others.shape == (GROUPS * SIZE, 3, 3, 2)
    action = np.asarray(episodes.action)[:, 0].reshape(GROUPS, SIZE, 3)
    for group, *members in itertools.product(range(GROUPS), *(range(SIZE),) * 3):
        joint = [action[group, member, seat] for seat, member in enumerate(members)]
        np.testing.assert_allclose(crossed[(group, *members)], by_hand(group, np.array(joint), most or 4), rtol=1e-6)
    for episode, seat, number in itertools.product((0, 5), range(3), range(3)):
        joint = action.reshape(-1, 3)[episode].copy()
        joint[seat] = number
        wanted = by_hand(episode // SIZE, joint, most or 4)[seat]
        np.testing.assert_allclose(others[episode, seat, number], wanted, rtol=1e-6)


@pytest.mark.long
def test_tables_contain_the_played_rewards_and_jit_changes_nothing():
    rollout, episodes = played()
    paid, action = episodes.reward[:, 0], episodes.action
    crossed = jax.jit(partial(joint_actions.crossed_rewards, rollout))(KEY, action)
    others = jax.jit(partial(joint_actions.alternative_rewards, rollout))(KEY, action)
    for member in range(SIZE):
        np.testing.assert_array_equal(crossed[:, member, member, member], paid[member::SIZE])
    own = jnp.take_along_axis(others, action[:, 0, :, None, None], 2)[:, :, 0]
    np.testing.assert_array_equal(own, paid)
    np.testing.assert_array_equal(crossed, joint_actions.crossed_rewards(rollout, KEY, action))
    assert len({float(x) for x in crossed[..., 1].ravel()}) > GROUPS  # the dice fell


def test_games_of_several_turns_and_large_tables_are_refused():
    repeated = Rollout(MatrixGame(rounds=2), {}, Lineup((("random",) * 2,), 2), 1)
    for table in (joint_actions.crossed_rewards, joint_actions.alternative_rewards):
        with pytest.raises(ValueError, match="MatrixGame has up to 2 turns"):
            table(repeated, KEY, jnp.zeros((2, 1, 2), int))
    wide = Rollout(Dice(), {}, Lineup((("random",) * 3,), 41), 1)
    with pytest.raises(ValueError, match="68921 joint actions a group"):
        joint_actions.crossed_rewards(wide, KEY, jnp.zeros((41, 1, 3), int))
