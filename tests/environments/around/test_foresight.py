"""With predictions the same moves earn the same points, and nobody is told what was predicted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.foresight import Foreseen
from jaxmarl_llm.environments.around.opponents import WithOpponent, memory_one
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup

LOPSIDED = (((1, 2), (3, 4)), ((5, 6), (7, 8.5)))  # eight numbers, all different
ROUNDS = 5
PLAIN = MatrixGame(LOPSIDED, rounds=ROUNDS)
GAME = Foreseen(PLAIN)


def told(game, view, seat):
    fields = zip(game.observation, view.phrases[seat].tolist(), strict=True)
    return "".join(field[i] for field, i in fields if i >= 0)


@pytest.mark.parametrize("group", (0, 1))
def test_against_the_game_without_predictions(group):
    rng = np.random.default_rng(group)
    moves, predictions = rng.integers(0, 2, (2, ROUNDS, 2))
    (plain, before), (state, view) = (game.reset(jax.random.key(0), jnp.int32(group)) for game in (PLAIN, GAME))
    step = jax.jit(GAME.step)
    for t in range(ROUNDS):
        for seat in (0, 1):
            assert told(GAME, view, seat) == told(PLAIN, before, seat) + " First say what they will answer."
        assert view.acting.all() and view.legal.all() and (view.grammar == before.grammar).all()
        state, view, nothing = step(state, jnp.asarray(predictions[t]), jax.random.key(t))
        assert not nothing.any() and view.acting.all() and not view.terminated
        assert [told(GAME, view, seat) for seat in (0, 1)] == ["Now your answer."] * 2
        state, view, reward = step(state, jnp.asarray(moves[t]), jax.random.key(t))
        plain, before, _ = PLAIN.step(plain, jnp.asarray(moves[t]), jax.random.key(t))
        assert reward[:, 0].tolist() == list(LOPSIDED[moves[t][0]][moves[t][1]])
    assert view.terminated and not view.acting.any() and (state.game.moves == moves).all()
    assert told(GAME, view, 0) == told(PLAIN, before, 0)  # the last moves, and no question
    assert GAME.turns == 2 * ROUNDS


def test_scripts_and_deals_are_those_of_the_game_inside():
    inside = WithOpponent(MatrixGame(rounds=ROUNDS), memory_one())
    check_game(Foreseen(inside))
    chances = jnp.array([[1.0, 1, 0, 1, 0], [0, 1, 1, 0, 1]])[:, None].repeat(2, 1)
    seats = (("memory_one", "memory_one"),) * 2
    play = lambda game: Rollout(game, {}, Lineup(seats, 3))({}, jax.random.key(0), chances).episodes
    alone, asked = play(inside), play(Foreseen(inside))
    np.testing.assert_array_equal(asked.action[:, 1::2], alone.action)
    np.testing.assert_array_equal(asked.reward[:, 1::2], alone.reward)
    assert not asked.reward[:, ::2].any()


def test_a_game_with_talk_is_refused():
    with pytest.raises(ValueError, match="without talk: not of MatrixGame"):
        Foreseen(MatrixGame(talk=True))


def test_a_game_in_turns_is_refused():
    """Who moves alone would predict the answer of a seat that gives none."""
    with pytest.raises(ValueError, match="at once, without talk: not of KuhnPoker"):
        Foreseen(KuhnPoker())
