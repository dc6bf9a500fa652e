"""The maze, against distances by Floyd and Warshall on its map, and what is told of walls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.solo.maze import MAP, Maze, draw_map, read_map, wind
from jaxmarl_llm.evaluation.exact import solve
from tests.support.team_plays import acted, deals_are_what_reset_draws, played, row, totals

OPEN = [(r, c) for r, line in enumerate(MAP) for c, sign in enumerate(line) if sign != "#"]


def distances():
    far = {a: {b: 0 if a == b else 1 if abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 else 99 for b in OPEN} for a in OPEN}
    for k in OPEN:
        for a in OPEN:
            for b in OPEN:
                far[a][b] = min(far[a][b], far[a][k] + far[k][b])
    return far


@pytest.mark.parametrize("sees", ["place", "walls"])
def test_correct_takes_a_shortest_way(sees):
    game = Maze(sees=sees)
    (goal,) = [cell for cell in OPEN if MAP[cell[0]][cell[1]] == "G"]
    record, far, met = played(game, "correct", games=300), distances(), set()
    for g in range(300):
        start = game.cells[record["state"].cell[0, g]]
        met.add(start)
        assert len(acted(game, record, g)) == far[start][goal]
        np.testing.assert_allclose(totals(record)[g, 0], [1, -0.02 * far[start][goal]], rtol=1e-5)
        told = row(game, record, g, 0)[1]
        for way, (dr, dc) in {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}.items():
            assert (way in told) == ((start[0] + dr, start[1] + dc) in OPEN)
        assert ("row" in told) == (sees == "place")
    assert met == {*OPEN} - {goal}
    assert deals_are_what_reset_draws(game)


def test_no_player_is_better_than_correct():
    game = Maze(map=("..", "#G"), turns=3, cost=0.1)
    tree = solve.tree(game)
    assert solve.best_response_value(tree, solve.uniform(tree)) == pytest.approx([(0.8 + 0.9) / 2])


FOUR = Maze(("G..G", ".##.", "G..G"), turns=4, cost=0.0)


def test_several_goals():
    """Each of the ways that are shortest is taken, ends at a goal, and the goal's number is measured."""
    check_game(FOUR)
    record, reached = played(FOUR, "shortest", games=400), set()
    goals = [(0, 0), (0, 3), (2, 0), (2, 3)]
    assert FOUR.cells[-4:] == tuple(goals)
    assert (
        "Goals are in row 1, column 1; row 1, column 4; row 3, column 1; row 3, column 4: one gets" in FOUR.rules[0][0]
    )
    for g in range(400):
        start, said = FOUR.cells[record["state"].cell[0, g]], [way for _, way in acted(FOUR, record, g)]
        assert len(said) == 1  # every cell has a goal beside it
        row_step, column_step = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}[said[0]]
        number = goals.index((start[0] + row_step, start[1] + column_step)) + 1
        assert record["measured"][:, g, 0, 0].tolist() == [number, 0, 0, 0]
        assert record["reward"][0, g, 0].tolist() == [1, 0]
        reached.add((start, number))
    assert {number for start, number in reached if start == (1, 0)} == {1, 3}  # from here two goals are as near
    assert deals_are_what_reset_draws(FOUR)


def test_starts_that_are_given():
    keys = jax.random.split(jax.random.key(0), 200)
    cell = lambda *given: set(jax.vmap(lambda key: FOUR.reset(key, 0, *given)[0].cell)(keys).tolist())
    assert cell() == {*range(6)} and cell((jnp.int32(4), jnp.int32(3))) == {4, 5, 0}


SEVERAL = Maze(("..G", ".#."), turns=5, more=(("G....",), ("..#", "..G")), bumps=False)
FAR = ((2, 1, 3, 1), (1, 2, 3, 4), (3, 2, 2, 1))  # by hand, of the open cells in order of reading


def test_several_maps():
    """Each map is drawn as often; places that maps share are told in the same words; the goal is that of the map."""
    check_game(SEVERAL)
    record, met = played(SEVERAL, "correct", games=600), []
    for g in range(600):
        number = int(record["state"].map[0, g])
        plan = SEVERAL.plans[number]
        start = int(record["state"].cell[0, g])
        r, c = plan.cells[start]
        told = row(SEVERAL, record, g, 0)[1]
        assert told.endswith(f" You are in row {r + 1}, column {c + 1}.") and "wall" not in told
        assert SEVERAL.maps[number][r][c] == "."
        (goal,) = [(r, c) for r, line in enumerate(SEVERAL.maps[number]) for c, sign in enumerate(line) if sign == "G"]
        assert plan.cells[-1] == goal and len(acted(SEVERAL, record, g)) == FAR[number][start]
        assert totals(record)[g, 0, 0] == 1
        met.append((number, start))
    assert {*met} == {(number, cell) for number in range(3) for cell in range(4)}
    share = np.bincount([number for number, _ in met]) / 600
    np.testing.assert_allclose(share, 1 / 3, atol=0.08)
    assert deals_are_what_reset_draws(SEVERAL)
    assert "row" not in SEVERAL.rules[0][0] and len(SEVERAL.observation) == 2


def test_a_path_winds_without_a_shorter_way():
    for seed in range(20):
        path = wind(np.random.default_rng(seed), 8, 7)
        rows = draw_map(path)
        plan = read_map(rows)
        assert len({*path}) == 9 == sum(sign != "#" for row in rows for sign in row) and max(map(max, path)) < 7
        assert plan.distance[plan.cells.index(path[0])] == 8 and plan.cells[-1] == path[-1]
    with pytest.raises(ValueError, match="1 to 24 steps"):
        wind(np.random.default_rng(0), 25, 7)


def test_a_map_that_is_given():
    keys = jax.random.split(jax.random.key(0), 100)
    state = jax.vmap(lambda key: SEVERAL.reset(key, 0, (jnp.int32(3), jnp.int32(2), jnp.int32(1)))[0])(keys)
    assert {*state.map.tolist()} == {1} and {*state.cell.tolist()} == {3, 0}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"turns": 0}, "at least 1"),
        ({"cost": -0.1}, "not negative"),
        ({"sees": "all"}, "place or walls"),
        ({"map": (".G", ".")}, "one length"),
        ({"map": (".X", ".G")}, "signs"),
        ({"map": ("..",)}, "a goal"),
        ({"map": ("G#.",)}, "a way"),
        ({"more": ((".G", ".G"),)}, "same number of goals"),
        ({"more": (("G#.",),)}, "a way"),
    ],
)
def test_settings(settings, says):
    with pytest.raises(ValueError, match=says):
        Maze(**settings)
