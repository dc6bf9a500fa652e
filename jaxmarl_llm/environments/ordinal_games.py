"""All 2x2 games in which either player ranks the four outcomes strictly, by number: 78, as players name things freely.

Rapoport & Guyer, A Taxonomy of 2x2 Games (1966), counted them. Two tables are one game if they differ in the order of
rows or of columns, or in who is seat 0. The number of a game here is the place of its first table, as a row of eight
ranks, among those of all games in order: it is not the number in their book.

  MatrixGame(payoff_of(37), rounds=10)
"""

from __future__ import annotations

from functools import cache
from itertools import permutations

import numpy as np

RANKS = (1, 2, 3, 4)  # 4 is best


@cache
def ordinal_games() -> np.ndarray:
    """All games, int [78, 2, 2, 2]: [number - 1, seat 0's action, seat 1's action, seat] ranks of outcomes."""
    found: set[tuple[int, ...]] = set()
    for one in permutations(RANKS):
        for other in permutations(RANKS):
            found.add(first_form(np.stack([np.reshape(one, (2, 2)), np.reshape(other, (2, 2))], -1)))
    return np.array(sorted(found)).reshape(-1, 2, 2, 2)


def first_form(payoff: np.ndarray) -> tuple[int, ...]:
    """Of the tables of a game, ranks [2, 2, 2], the first in order, as a row of eight."""
    forms = []
    for seats in (payoff, payoff.transpose(1, 0, 2)[:, :, ::-1]):
        forms += [seats[::rows, ::columns] for rows in (1, -1) for columns in (1, -1)]
    return min(tuple(form.ravel().tolist()) for form in forms)


def payoff_of(number: int) -> tuple:
    """The payoff of game 1 to 78, for `MatrixGame`: ranks as points. Raises ValueError for another number."""
    games = ordinal_games()
    if not 1 <= number <= len(games):
        raise ValueError(f"The ordinal games have the numbers 1 to {len(games)}, not {number}.")
    return tuple(tuple(tuple(map(float, pair)) for pair in row) for row in games[number - 1].tolist())


def number_of(payoff: tuple) -> int:
    """The number of the game of a payoff [2][2][2], by how each seat ranks the outcomes: 1 to 78.

    Raises ValueError unless each seat ranks the four strictly.
    """
    table = np.asarray(payoff, float)
    if table.shape != (2, 2, 2) or any(len(set(table[..., seat].ravel().tolist())) != 4 for seat in (0, 1)):
        raise ValueError(f"In an ordinal game either seat likes no two of four outcomes alike: got {payoff}.")
    ranks = table.reshape(4, 2).argsort(0).argsort(0).reshape(2, 2, 2) + 1
    return 1 + [tuple(game.ravel().tolist()) for game in ordinal_games()].index(first_form(ranks))


def pure_equilibria(payoff: tuple | np.ndarray) -> tuple[tuple[int, int], ...]:
    """The joint actions of which no seat gains by leaving alone, of a payoff [2][2][2]."""
    table = np.asarray(payoff)
    stays = (table[..., 0] >= table[::-1, :, 0]) & (table[..., 1] >= table[:, ::-1, 1])
    return tuple((int(a), int(b)) for a, b in zip(*np.nonzero(stays), strict=True))
