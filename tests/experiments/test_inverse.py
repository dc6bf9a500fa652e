"""The games, and where a curve crosses a bound, against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import inverse as study


def test_the_grid_moves_and_pays_as_it_says():
    game = jax.device_get(study.grid(jax.random.key(0)))
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


@pytest.mark.parametrize(
    ("errors", "wanted"),
    [
        ([0.9, 0.7, 0.3] + [0.1] * 10, 2 ** (4 + 0.5)),
        ([0.3] * 13, 8),
        ([0.9] * 13, 2**15),
        ([0.9, 0.5] + [0.1] * 11, 16),
    ],
)
def test_the_samples_at_which_an_error_is_small_enough(errors, wanted):
    assert float(study.samples(jnp.array(errors), 0.5)) == pytest.approx(wanted, rel=1e-4)
