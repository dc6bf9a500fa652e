"""Players from game theory: UCT against minimax where little is left, tables in play against exact values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.board_games import ConnectFour, TicTacToe
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.evaluation import search
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from tests.support.clock import Clock

SMALL = ConnectFour(columns=3, rows=3, line=3)


@pytest.fixture(scope="module")
def small() -> solve.Tree:
    return solve.tree(SMALL)


def positions(environment, lines):
    """The states [n, ...] after lists of moves, by the rules themselves."""
    step, states = jax.jit(environment.step), []
    for line in lines:
        state = environment.reset(jax.random.key(0), jnp.int32(0))[0]
        for move in line:
            state = step(state, jnp.full((2,), move, jnp.int32), jax.random.key(0))[0]
        states.append(state)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def test_uct_wins_and_blocks_at_once():
    lines = [(0, 3, 1), (0, 3, 1, 4), (4, 0, 8, 1, 6), (0, 8, 1, 6, 4)]  # block 2, win 2, win 2, win 2 or block 7
    keys = jax.random.split(jax.random.key(0), 16)
    choose = jax.jit(jax.vmap(jax.vmap(search.uct(TicTacToe(), 300), (None, None, 0)), (0, 0, None)))
    seat = jnp.array([len(line) % 2 for line in lines], jnp.int32)
    found = np.asarray(choose(positions(TicTacToe(), lines), seat, keys))
    assert found.dtype == np.int32
    assert (found[:3] == 2).all() and (found[3] == 7).all()
    np.testing.assert_array_equal(choose(positions(TicTacToe(), lines), seat, keys), found)


def test_uct_plays_perfectly_where_little_is_left(small):
    perfect = solve.minimax(small)
    live = np.flatnonzero(small.seat >= 0)
    _, moves, length = small.histories(live)
    chosen = np.random.default_rng(0).choice(np.flatnonzero(length >= 3), 64, replace=False)
    states = positions(SMALL, [moves[i][: length[i]].tolist() for i in chosen])
    choose = jax.jit(jax.vmap(search.uct(SMALL, 500)))
    keys = jax.random.split(jax.random.key(1), 64)
    found = np.asarray(choose(states, jnp.asarray(length[chosen] % 2, jnp.int32), keys))
    table = perfect[small.information[live[chosen]]]
    assert (table.max(1) < 1).any()  # somewhere there is a choice
    right = table[np.arange(64), found] > 0
    worst = solve.uniform(small)[small.information[live[chosen]]] * (table > 0)
    assert right.all() and worst.sum(1).mean() < 0.9  # chance would have been wrong more than six times


def test_tables_play_in_a_rollout_as_they_say():
    tree = solve.tree(KuhnPoker())
    generator = np.random.default_rng(0)
    one, other = (generator.dirichlet((0.5, 0.5), 12) for _ in range(2))
    game = search.Guests(tree, {"one": one, "other": other})
    rollout = Rollout(game, {}, Lineup((("one", "other"),) * 8192, 1))
    earned = np.asarray(jax.jit(rollout.__call__)({}, jax.random.key(0)).episodes.reward[:, :, 0, 0].sum(1), float)
    exact = solve.expected_value(tree, np.where(tree.owner[:, None] == 0, one, other))[0]
    assert abs(earned.mean() - exact) < 4 * earned.std() / np.sqrt(len(earned))
    swapped = solve.expected_value(tree, np.where(tree.owner[:, None] == 0, other, one))[0]
    assert abs(earned.mean() - swapped) > 6 * earned.std() / np.sqrt(len(earned))  # it would have been seen


def test_perfect_players_never_earn_less_than_the_game_is_worth(small):
    perfect = solve.minimax(small)
    worth = solve.expected_value(small, perfect)
    game = search.Guests(small, {"perfect": perfect, "uct": search.uct(SMALL, 20)})
    pairs = [("perfect", "uct"), ("uct", "perfect"), ("perfect", "random"), ("random", "perfect")]
    rollout = Rollout(game, {}, Lineup(tuple(pairs), 32))
    episodes = jax.jit(rollout.__call__)({}, jax.random.key(0)).episodes
    earned = np.asarray(episodes.reward).sum((1, 3)).reshape(4, 32, 2)
    assert np.asarray(episodes.terminated).all()
    for pair, games in zip(pairs, earned, strict=True):
        seat = pair.index("perfect")
        assert (games[:, seat] >= worth[seat]).all()
    assert (earned[3, :, 1] > worth[1]).any()  # who plays at random makes mistakes


class Dealt(Clock):
    """A deal that everybody knows."""

    def initial_states(self):
        return jax.tree.map(lambda leaf: leaf[:1], super().initial_states()[0]), np.ones(1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda tree: search.uct(KuhnPoker(), 10), "one deal, not 6"),
        (lambda tree: search.uct(MatrixGame(), 10), "one deal, not unknown ones"),
        (lambda tree: search.uct(Dealt(crowded=True), 10), "one seat moves at a time"),
        (lambda tree: search.uct(SMALL, 0), "at least 1"),
        (lambda tree: search.Guests(tree, {"one": np.ones((3, 3))}), "'one' must be a function or a table"),
    ],
)
def test_who_cannot_play_is_said(small, make, message):
    with pytest.raises(ValueError, match=message):
        make(small)
