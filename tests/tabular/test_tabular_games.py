"""Small games against what their docstrings say."""

import jax
import numpy as np
import pytest

from jaxmarl_llm.tabular import tabular_games as games


def test_the_grid_moves_and_pays_as_it_says():
    game = jax.device_get(games.grid(jax.random.key(0)))
    moves = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]

    def walk(cell, move):
        row, column = (min(max(x + d, 0), 2) for x, d in zip(divmod(cell, 3), moves[move], strict=True))
        return 3 * row + column

    liked = [set(), set()]
    for state, a, b in np.ndindex(81, 5, 5):
        one, two = walk(state // 9, a), walk(state % 9, b)
        assert game.following[state, a, b] == 9 * one + two
        for agent, cell in enumerate((one, two)):
            paid = game.reward[agent, state, a, b] + (one == two)
            assert paid in (0, 1)
            liked[agent] |= {cell} if paid else set()
    assert [len(x) for x in liked] == [3, 3] and len(liked[0] & liked[1]) == 1


def test_a_matrix_has_an_axis_for_every_agent():
    game = games.matrix(jax.random.key(1), agents=3, actions=2)
    assert game.reward.shape == (3, 1, 2, 2, 2) and game.following.shape == (1, 2, 2, 2)
    assert not game.following.any() and len(np.unique(game.reward)) == 24


def test_a_grid_that_is_too_small():
    with pytest.raises(ValueError, match="Five cells are liked"):
        games.grid(jax.random.key(0), 2)
