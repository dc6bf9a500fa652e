"""Two shifts at locks and a note: told texts and points against plain Python, exact values of notes."""

import re
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.teams.handover import FIRST, SECOND, WRITER, Handed, Handover
from tests.support.team_plays import acted, close, given, played, row, totals

GAME, SMALL = Handover(), Handover(locks=2, keys=4, tries=3)


@pytest.mark.parametrize("game", (GAME, SMALL), ids=("plain", "small"))
@pytest.mark.parametrize("player", ("random", "believer", "correct"))
def test_against_python(game, player):
    record = played(game, player)
    for g in range(60):
        rows, said = [row(game, record, g, seat) for seat in range(3)], acted(game, record, g)
        right, log, note, wanted = record["state"].right[0, g], [], None, np.zeros((len(said), 3, 4))
        np.testing.assert_array_equal(right[0, 1:], right[1, 1:])
        lock, tries, result, shift = 0, 0, "", 0
        for t, (seat, word) in enumerate(said):
            told = rows[seat][1 + t]
            if seat == WRITER:
                texts = [f" Lock {i + 1}, key {k} {'opened' if good else 'failed'}." for i, k, good in log]
                assert told == "".join(texts) + " Which try?"
                at = ["first", "second", "third", "fourth", "fifth", "sixth"].index(word)
                note = log[at]
                wanted[t, :, 2:] = [note[0] == 0, note[0] > 0 and note[2]]
                lock, tries, result, shift = 0, 0, "", 1
                continue
            assert seat == (FIRST, SECOND)[shift]
            noted = ""
            if shift and not tries:
                noted = f"Note: lock {note[0] + 1}, key {note[1]} {'opened' if note[2] else 'failed'}. "
            assert told == f"{noted}{result}Lock {lock + 1}: which key?"
            good = "ABCDE".index(word) == right[shift, lock]
            if not shift:
                log.append((lock, word, good))
            lock, tries, result = lock + good, tries + 1, "Opened. " if good else "Failed. "
            if lock == game.locks or tries == game.tries:
                wanted[t, seat, 0] = lock == game.locks
                if shift:
                    wanted[t, WRITER, 1] = 1 if lock == game.locks else -1
        np.testing.assert_array_equal(given(record)[: len(said), g], wanted)
        assert re.search(r"point", rows[0][0]) and len(said) <= game.turns


def exact(game: Handover, known: int) -> float:
    """The chance to open all if no key is tried twice at a lock and `known` keys are known."""
    spent = [sum(x) + known for x in product(range(1, game.keys + 1), repeat=game.locks - known)]
    return float(np.mean([x <= game.tries for x in spent]))


def test_exact_values_of_notes():
    """.63 without a note, .89 with the key of a lock; 0.32 for a random shift."""
    assert (exact(GAME, 0), exact(GAME, 1)) == pytest.approx((17 / 27, 8 / 9))
    record = played(GAME, "correct")
    first, _, second = totals(record)[:, :, 0].T
    fits = totals(record)[:, 0, 3] > 0
    assert close(first, exact(GAME, 0)) and close(second[fits], exact(GAME, 1))
    assert fits.all()  # six tries open two locks of three keys
    random = totals(played(GAME, "random"))[:, 0, 0]
    misses = (2 / 3) ** 6 + 6 * (1 / 3) * (2 / 3) ** 5 + 15 * (1 / 3) ** 2 * (2 / 3) ** 4
    assert close(random, 1 - misses)


def test_a_note_changes_nothing_else():
    """The same deal with the note and without, for groups of other keys."""

    @jax.jit
    def begin(key, noted):
        given = Handed(noted, jax.random.key_data(jax.random.key(7)))
        return GAME.reset(key, jnp.int32(0), given)[0]

    (one, other), first = (begin(jax.random.key(i), jnp.bool_(i)) for i in range(2)), begin(jax.random.key(5), True)
    np.testing.assert_array_equal(one.right, other.right)
    np.testing.assert_array_equal(first.right, other.right)
    state = other.replace(phase=jnp.int32(SECOND), lock=other.lock.at[0].set(1), said=other.said.at[0].set(2))
    texts = [np.asarray(GAME.view(state.replace(noted=jnp.bool_(x))).phrases)[SECOND] for x in (True, False)]
    assert GAME.notes[texts[0][0]].startswith("Note: lock 2, key C ")
    assert GAME.notes[texts[1][0]] == "There is no note. "
    np.testing.assert_array_equal(texts[0][1:], texts[1][1:])


def test_settings_that_cannot_be():
    for settings in ({"locks": 1}, {"keys": 6}, {"keys": 1}, {"tries": 2}, {"tries": 9}):
        with pytest.raises(ValueError, match=r"must be|At most"):
            Handover(**settings)
