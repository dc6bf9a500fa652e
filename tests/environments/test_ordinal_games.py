"""The ordinal games: how many there are and of which kinds, and the well-known ones among them."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from jaxmarl_llm.environments import ordinal_games as games
from jaxmarl_llm.environments.social.matrix_games import BATTLE_OF_THE_SEXES, CHICKEN, PRISONERS_DILEMMA, MatrixGame

STAG_HUNT = (((4, 4), (1, 3)), ((3, 1), (2, 2)))  # without the tie of `matrix_games`


def orbit(table):
    """All names of a game {(a, b): (u, v)}: rows, columns and seats exchanged, as sorted tuples."""
    found = set()
    for swap_rows in (0, 1):
        for swap_columns in (0, 1):
            for exchange in (False, True):
                renamed = {(a ^ swap_rows, b ^ swap_columns): pair for (a, b), pair in table.items()}
                if exchange:
                    renamed = {(b, a): (v, u) for (a, b), (u, v) in renamed.items()}
                found.add(tuple(sorted(renamed.items())))
    return found


def all_orbits():
    cells, seen, orbits = [(0, 0), (0, 1), (1, 0), (1, 1)], set(), []
    for one in permutations((1, 2, 3, 4)):
        for other in permutations((1, 2, 3, 4)):
            table = {cell: (u, v) for cell, u, v in zip(cells, one, other, strict=True)}
            if tuple(sorted(table.items())) not in seen:
                orbits.append(orbit(table))
                seen |= orbits[-1]
    return orbits


def as_table(payoff):
    return {(a, b): tuple(int(x) for x in payoff[a][b]) for a in (0, 1) for b in (0, 1)}


def stable(table):
    """Pure equilibria, written out."""
    return {(a, b) for (a, b), (u, v) in table.items() if u >= table[1 - a, b][0] and v >= table[a, 1 - b][1]}


def test_the_78_games_are_one_of_each_kind():
    orbits = all_orbits()
    assert len(orbits) == 78 and sum(map(len, orbits)) == 576
    met = [next(i for i, kind in enumerate(orbits) if tuple(sorted(as_table(games.payoff_of(k)).items())) in kind)
           for k in range(1, 79)]  # fmt: skip
    assert sorted(met) == list(range(78))


def test_symmetric_games_and_equilibria_are_as_many_as_is_known():
    """12 games look alike to both seats; 9 have no pure equilibrium, 57 one and 12 two (Rapoport & Guyer)."""
    tables = [as_table(games.payoff_of(k)) for k in range(1, 79)]
    assert sum(len(orbit(table)) == 4 for table in tables) == 12
    assert Counter(len(stable(table)) for table in tables) == {0: 9, 1: 57, 2: 12}
    for number, table in enumerate(tables, 1):
        assert set(games.pure_equilibria(games.payoff_of(number))) == stable(table)


def test_a_game_has_its_number_under_every_name():
    for number in (1, 20, 50, 78):
        payoff = np.array(games.payoff_of(number))
        for name in (payoff, payoff[::-1], payoff[:, ::-1], payoff.transpose(1, 0, 2)[:, :, ::-1], 3 * payoff - 7):
            assert games.number_of(name) == number
    assert len({games.number_of(x) for x in (PRISONERS_DILEMMA, CHICKEN, STAG_HUNT)}) == 3
    assert MatrixGame(games.payoff_of(games.number_of(PRISONERS_DILEMMA))).agents == 2


@pytest.mark.parametrize("number", [0, 79])
def test_other_numbers_are_refused(number):
    with pytest.raises(ValueError, match=f"1 to 78, not {number}"):
        games.payoff_of(number)


def test_a_payoff_with_ties_has_no_number():
    with pytest.raises(ValueError, match="no two of four outcomes alike"):
        games.number_of(BATTLE_OF_THE_SEXES)
