"""What a move of tic-tac-toe gives away, against search in texts."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.gallery.small_model import points_lost
from jaxmarl_llm.environments.classic.board_games import TicTacToe
from tests.environments.classic.test_board_games import negamax, played


def lost_by(moves, seat: int) -> int:
    """Sum over a seat's moves of the value of the board before and after, by search."""
    board, total = "." * 9, 0
    for turn, cell in enumerate(moves):
        before = negamax(board, "xo"[turn % 2])
        board = board[:cell] + "xo"[turn % 2] + board[cell + 1 :]
        total += (before + negamax(board, "ox"[turn % 2])) * (turn % 2 == seat)
    return total


def test_points_that_moves_give_away():
    games = [(0, 4, 1, 2, 6, 3, 5, 7, 8), (0, 1, 4, 8, 2, 6, 3), (0, 3, 1, 4, 2), (4, 1, 0, 8, 6, 3, 2)]
    action, acted = np.zeros((2, 4, 9, 2), np.int32)
    for game, moves in enumerate(games):
        for turn, cell in enumerate(moves):
            action[game, turn, turn % 2], acted[game, turn, turn % 2] = cell, 1
    reward = np.zeros((4, 9, 2, 1), np.float32)
    for seat in range(2):
        expected = [lost_by(moves, seat) for moves in games]
        episodes = SimpleNamespace(
            action=jnp.asarray(action), acted=jnp.asarray(acted, bool), group=jnp.full(4, seat),
            reward=jnp.asarray(reward), valid=jnp.ones((4, 9, 2), bool),
        )  # fmt: skip
        found = float(points_lost(episodes)["points lost"])
        assert found == pytest.approx(np.mean(expected))
    assert lost_by(games[2], 1) == 1 and played(TicTacToe(), games[2])[2][-1] == [1, -1]
