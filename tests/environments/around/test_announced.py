"""What training announces stands at the end of a seat's rules, and the game is otherwise the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.announced import Announced, Announcement
from jaxmarl_llm.environments.around.opponents import CHARACTER, MEMORY_ONE, WithOpponent, character, memory_one
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup

INSIDE = WithOpponent(MatrixGame(rounds=6), memory_one())
GAME = Announced(INSIDE, (*CHARACTER, (" They learn.",)))
SEATS = ("memory_one", "random")


def play(game, deal=None):
    given = () if deal is None else (deal,)
    episodes = Rollout(game, {}, Lineup((SEATS,) * 2, 4))({}, jax.random.key(0), *given).episodes
    return jax.device_get((episodes.action, episodes.reward))


def test_the_game_is_otherwise_as_it_was():
    check_game(GAME)
    chances = jnp.array([MEMORY_ONE["grim"], MEMORY_ONE["tit_for_tat"]])
    told = jnp.zeros((2, 6), jnp.int32)
    jax.tree.map(np.testing.assert_array_equal, play(INSIDE), play(GAME))
    jax.tree.map(np.testing.assert_array_equal, play(INSIDE, chances), play(GAME, Announcement(told, chances)))


@pytest.mark.parametrize(("told", "says"), [([-1] * 6, ""), ([-1, -1, 2, -1, -1, 0], CHARACTER[2][2] + " They learn.")])
def test_a_seat_reads_what_is_arranged_after_the_rules(told, says):
    state, _ = GAME.reset(jax.random.key(0), jnp.int32(0), Announcement(jnp.array([[-1] * 6, told])))

    def text(seat):
        phrases = zip(GAME.rules, GAME.prompt(state)[seat].tolist(), strict=True)
        return "".join(field[i] for field, i in phrases if i >= 0)

    assert text(1) == INSIDE.rules[0][2] + says and text(0) == INSIDE.rules[0][0]
    state, _, _ = GAME.step(state, jnp.array([0, 1]), jax.random.key(1))
    assert state.told.tolist() == [[-1] * 6, told]


def test_a_character_is_in_tenths():
    assert character(jnp.array([0.0, 0.04, 0.06, 0.5, 1.0])).tolist() == [0, 0, 1, 5, 10]
    assert CHARACTER[3][7] == " After they alone defected they cooperate 7 times in 10."
