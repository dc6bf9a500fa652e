"""Tic-tac-toe and Connect Four: against OpenSpiel, boards as they are shown, the scripted players.

The long case walks all histories of a game beside OpenSpiel.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.board_games import ConnectFour, TicTacToe, TicTacToeState
from tests.support.openspiel import compare

KEY = jax.random.key(0)


def games(environment, spiel: str, n: int, **settings):
    """Compares n games with OpenSpiel's: random ones, or every one if n is 1."""
    pyspiel = pytest.importorskip("pyspiel")
    state, view = jax.jit(jax.vmap(lambda _: environment.reset(KEY, jnp.int32(0))))(jnp.arange(n))
    return compare(environment, pyspiel.load_game(spiel), state, view, [()] * n, **settings)


def played(environment, moves):
    """Every view of a game, and the points paid with each move."""
    step = jax.jit(environment.step)
    state, view = jax.jit(environment.reset)(KEY, jnp.int32(0))
    views, points = [view], []
    for move in moves:
        state, view, reward = step(state, jnp.full((2,), move, jnp.int32), KEY)
        views.append(view)
        points.append(reward[:, 0].tolist())
    return state, views, points


def shown(environment, view, seat: int) -> str:
    return "".join(
        field[i] for field, i in zip(environment.observation, view.phrases[seat].tolist(), strict=True) if i >= 0
    )


def test_every_state_of_tic_tac_toe_is_openspiels():
    found = games(TicTacToe(), "tic_tac_toe", 1, merge=str)
    assert found == (5478, 958, 0)


@pytest.mark.long
def test_every_history_of_tic_tac_toe_is_openspiels():
    found = games(TicTacToe(), "tic_tac_toe", 1, information=spiel_information)
    assert found == (549_946, 255_168, 294_778)


def spiel_information(state, seat):
    return state.information_state_string(seat)


@pytest.mark.parametrize(
    ("settings", "n"),
    [
        ({}, 2000),
        pytest.param({}, 10_000, marks=pytest.mark.slow),
        ({"columns": 4, "rows": 5, "line": 3}, 300),
        ({"columns": 3, "rows": 5, "line": 4}, 100),
    ],
    ids=("full", "full_many", "small", "narrow"),
)
def test_random_games_of_connect_four_are_openspiels(settings, n):
    board = ConnectFour(**settings)
    spiel = f"connect_four(columns={board.columns},rows={board.rows},x_in_row={board.line})"
    found = games(board, spiel, n, rng=np.random.default_rng(2), information=spiel_information)
    assert found.ended == n and found.states > 5 * n


def test_who_acts_is_shown_the_board_of_tic_tac_toe():
    game = TicTacToe()
    _, views, points = played(game, (4, 0, 8, 2, 1, 7, 6))
    boards = [shown(game, view, turn % 2) for turn, view in enumerate(views[:-1])]
    assert boards == [
        "0 1 2\n3 4 5\n6 7 8",
        "0 1 2\n3 x 5\n6 7 8",
        "o 1 2\n3 x 5\n6 7 8",
        "o 1 2\n3 x 5\n6 7 x",
        "o 1 o\n3 x 5\n6 7 x",
        "o x o\n3 x 5\n6 7 x",
        "o x o\n3 x 5\n6 o x",
    ]
    assert all((view.phrases[1 - turn % 2] == -1).all() for turn, view in enumerate(views))
    assert not points[0][0] and points[-1] == [0, 0]
    assert not views[-1].terminated


@pytest.mark.parametrize(
    ("moves", "points"),
    [
        ((0, 3, 1, 4, 2), [1, -1]),
        ((0, 3, 1, 4, 8, 5), [-1, 1]),
        ((0, 1, 2, 4, 3, 5, 7, 6, 8), [0, 0]),
        ((0, 1, 3, 2, 5, 4, 7, 6, 8), [-1, 1]),  # o has 2 4 6 before the board is full
    ],
)
def test_points_of_tic_tac_toe(moves, points):
    _, views, paid = played(TicTacToe(), moves)
    ended = [bool(view.terminated) for view in views].index(True)
    assert np.sum(paid[:ended], 0).tolist() == points
    assert paid[: ended - 1] == [[0, 0]] * (ended - 1)


def test_who_acts_is_shown_the_board_of_connect_four():
    game = ConnectFour()
    _, views, points = played(game, (3, 3, 2, 4, 6, 3, 1, 3, 0))
    assert shown(game, views[-2], 0) == (
        "0 1 2 3 4 5 6\n. . . . . . .\n. . . . . . .\n. . . o . . .\n. . . o . . .\n. . . o . . .\n. x x x o . x"
    )
    assert (views[-2].phrases[1] == -1).all()
    assert points == [[0, 0]] * 8 + [[1, -1]] and views[-1].terminated and not views[-1].acting.any()


def test_a_full_column_takes_no_stone():
    _, views, _ = played(ConnectFour(), (2, 2, 2, 2, 2, 2))
    assert views[-1].legal.tolist() == [[True, True, False, True, True, True, True]] * 2


LINES = ("012", "345", "678", "036", "147", "258", "048", "246")


@cache
def negamax(board: str, mover: str = "x") -> int:
    """The points of the seat that moves, by search in texts such as "xo.......": an independent minimax."""
    other = "o" if mover == "x" else "x"
    if any(all(board[int(cell)] == other for cell in line) for line in LINES):
        return -1
    after = [board[:cell] + mover + board[cell + 1 :] for cell in range(9) if board[cell] == "."]
    return max((-negamax(one, other) for one in after), default=0)


def boards_after(board: str, mover: str = "x") -> dict[str, str]:
    """{board: who moves} of a board and of all that can follow it, without those of ended games."""
    found, open_ones = {}, {board: mover}
    while open_ones:
        found |= open_ones
        nexts = {
            one[:cell] + mover + one[cell + 1 :]: "o" if mover == "x" else "x"
            for one, mover in open_ones.items()
            for cell in range(9)
            if one[cell] == "."
        }
        lines = {one: [{one[int(cell)] for cell in line} for line in LINES] for one in nexts}
        open_ones = {one: mover for one, mover in nexts.items() if not any(x in ({"x"}, {"o"}) for x in lines[one])}
    return {one: mover for one, mover in found.items() if "." in one}


def minimax(boards, keys):
    marks = [[sum(1 << cell for cell in range(9) if one[cell] == mark) for mark in "xo"] for one in boards]
    turns = jnp.asarray([9 - one.count(".") for one in boards])
    states = TicTacToeState(jnp.asarray(marks, jnp.int32), turns, jnp.full_like(turns, -1))
    return jax.jit(jax.vmap(lambda state, key: TicTacToe().scripts["minimax"](state, state.turn % 2, key)))(
        states, keys
    )


def test_minimax_loses_no_value_on_any_board():
    boards = boards_after("." * 9)
    assert len(boards) == 5478 - 958  # of ended games
    for (board, mover), cell in zip(
        boards.items(), minimax(boards, jax.random.split(KEY, len(boards))).tolist(), strict=True
    ):
        other = "o" if mover == "x" else "x"
        assert board[cell] == "." and -negamax(board[:cell] + mover + board[cell + 1 :], other) == negamax(board, mover)


def test_minimax_draws_among_equal_moves():
    """Every opening is worth 0; after the corner 0 the centre alone is."""
    first = np.bincount(minimax(["." * 9] * 4500, jax.random.split(KEY, 4500)), minlength=9)
    assert (abs(first - 500) < 5 * (500 * 8 / 9) ** 0.5).all()
    assert set(minimax(["x........"] * 20, jax.random.split(KEY, 20)).tolist()) == {4}


@pytest.mark.parametrize("game", (TicTacToe(), ConnectFour(columns=4, rows=4)), ids=("tic_tac_toe", "connect_four"))
def test_illegal_moves_change_no_cell_and_the_game_still_ends(game):
    state, views, points = played(game, (1, 1) * (game.turns // 2) + (1,) * (game.turns % 2))
    lost = played(game, (1,) * (1 if isinstance(game, TicTacToe) else 4))[0]
    for after, before in zip(jax.tree.leaves(state)[:1], jax.tree.leaves(lost)[:1], strict=True):
        np.testing.assert_array_equal(after, before)
    assert views[-1].terminated and np.sum(points) == 0


def test_there_is_one_deal():
    for game in (TicTacToe(), ConnectFour()):
        deals, chance = game.initial_states()
        first, view = game.reset(KEY, jnp.int32(0))
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b), deals, first)
        jax.tree.map(np.testing.assert_array_equal, game.view(first), view)
        assert chance.tolist() == [1.0]


WINS = [{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {0, 3, 6}, {1, 4, 7}, {2, 5, 8}, {0, 4, 8}, {2, 4, 6}]


def sensible(mine: set[int], theirs: set[int]) -> set[int]:
    """What a player of tic-tac-toe may do that wins, else blocks, else likes the centre, then corners."""
    free = set(range(9)) - mine - theirs
    for cells in (
        {c for c in free if any(line <= mine | {c} for line in WINS)},
        {c for c in free if any(line <= theirs | {c} for line in WINS)},
        free & {4},
        free & {0, 2, 6, 8},
    ):
        if cells:
            return cells
    return free


def test_the_greedy_player_of_tic_tac_toe_against_python():
    game, rng = TicTacToe(), np.random.default_rng(3)
    positions = []
    while len(positions) < 400:
        order, turn = rng.permutation(9), int(rng.integers(9))
        sides = [set(order[:turn][side::2].tolist()) for side in (0, 1)]
        if not any(line <= side for line in WINS for side in sides):
            positions.append((sides, turn))
    state = jax.tree.map(lambda leaf: np.repeat(leaf, len(positions), 0), game.initial_states()[0])
    marks = np.array([[sum(1 << c for c in side) for side in sides] for sides, _ in positions], np.int32)
    turns = np.array([turn for _, turn in positions], np.int32)
    state = state.replace(marks=marks, turn=turns)
    greedy = jax.jit(jax.vmap(game.scripts["greedy"]))
    answers = {}
    for seed in range(8):
        keys = jax.random.split(jax.random.key(seed), len(positions))
        for i, action in enumerate(greedy(state, turns % 2, keys).tolist()):
            answers.setdefault(i, set()).add(action)
    for i, (sides, turn) in enumerate(positions):
        mine, theirs = sides if turn % 2 == 0 else sides[::-1]
        assert answers[i] <= sensible(mine, theirs), (mine, theirs)
    assert any(len(found) > 1 for found in answers.values())  # it draws among equals


GREEDY = jax.jit(jax.vmap(ConnectFour().scripts["greedy"], (None, None, 0)))


@pytest.mark.parametrize(
    ("moves", "answers"),
    [
        ((), {3}),
        ((0, 1, 0, 1, 0, 1), {0}),  # wins rather than blocks
        ((0, 3, 0, 3, 0), {0}),
        ((2, 6, 3, 6, 4), {1, 5}),
        ((3,) * 6, {2, 4}),
    ],
)
def test_the_greedy_player_of_connect_four(moves, answers):
    game = ConnectFour()
    state, views, _ = played(game, moves)
    assert not views[-1].terminated
    keys = jax.random.split(jax.random.key(1), 64)
    found = GREEDY(state, jnp.int32(len(moves) % 2), keys)
    assert set(found.tolist()) == answers


@pytest.mark.parametrize("game", (TicTacToe(), ConnectFour()), ids=("tic_tac_toe", "connect_four"))
def test_the_random_player_draws_from_all_that_is_legal(game):
    state, views, _ = played(game, (0, 1, 0, 1, 2, 0, 0, 0, 0)[: 2 if isinstance(game, TicTacToe) else 9])
    keys = jax.random.split(jax.random.key(1), 4000)
    found = jax.jit(jax.vmap(game.scripts["random"], (None, None, 0)))(state, jnp.int32(0), keys)
    share = np.bincount(found, minlength=game.actions) / 4000
    legal = np.asarray(views[-1].legal[0])
    chance = legal / legal.sum()
    assert (share[~legal] == 0).all() and not legal.all()
    assert (abs(share - chance) <= 5 * np.sqrt(chance * (1 - chance) / 4000)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": 11}, "1 to 10 columns and 1 to 20 rows, got 11 columns and 6 rows"),
        ({"rows": 0}, "got 7 columns and 0 rows"),
        ({"line": 8}, "line must be from 2 to 7, the longest that fits, got 8"),
        ({"line": 1}, "got 1"),
    ],
)
def test_settings_that_are_no_connect_four(settings, message):
    with pytest.raises(ValueError, match=message):
        ConnectFour(**settings)
