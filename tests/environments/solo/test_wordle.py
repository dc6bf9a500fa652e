"""Wordle, against plain Python: replies, scripts, and the best that any player can do."""

from functools import cache

import numpy as np
import pytest

from jaxmarl_llm.environments.solo.wordle import WORDS, Wordle
from tests.support.team_plays import acted, deals_are_what_reset_draws, played, row, totals


@cache
def reply(guess, secret):
    kinds = []
    for i, letter in enumerate(guess):
        kinds.append("right" if secret[i] == letter else "elsewhere" if letter in secret else "not in it")
    return tuple(kinds)


@cache
def fewest(left):
    """Of the words that are left, the least sum over secrets of the guesses that are needed."""
    if len(left) == 1:
        return 1
    best = np.inf
    for guess in WORDS:
        parts = {}
        for secret in left:
            parts.setdefault(reply(guess, secret), []).append(secret)
        if len(parts) > 1:
            rest = sum(0 if words == [guess] else fewest(tuple(words)) for words in parts.values())
            best = min(best, len(left) + rest)
    return best


@pytest.mark.parametrize("player", ["random", "fitting", "best"])
def test_against_python(player):
    game = Wordle()
    record = played(game, player, games=300)
    for g in range(60):
        said, left = [word for _, word in acted(game, record, g)], list(WORDS)
        secret = WORDS[record["state"].secret[0, g]]
        _, *told = row(game, record, g, 0)
        for t, word in enumerate(said):
            if player == "fitting":
                assert word == left[0]
            if t + 1 < len(said):
                text = "".join(f"Letter {i + 1} is {kind}. " for i, kind in enumerate(reply(word, secret)))
                assert told[t + 1] == f"{text}Which word?"
            left = [w for w in left if reply(word, w) == reply(word, secret)]
            assert record["reward"][t, g, 0].tolist() == pytest.approx([float(word == secret), -0.1 * (word != secret)])
        assert said[-1] == secret or len(said) == 6


def test_how_near_the_scripts_are_to_the_best_play():
    """Guesses summed over the sixteen secrets, of which each is dealt: least 1 each for who knows."""
    least = fewest(WORDS)
    needs = {}
    for name in ("correct", "fitting", "splitting", "best"):
        record = played(Wordle(), name, games=300)
        assert (totals(record)[:, 0, 0] == 1).all()
        guesses, secret = (~record["over"]).sum(0), record["state"].secret[0]
        needs[name] = sum(int(guesses[secret == s][0]) for s in range(len(WORDS)))
    assert needs["correct"] == 16 and least == needs["best"] < needs["splitting"] < needs["fitting"]
    assert deals_are_what_reset_draws(Wordle())


@pytest.mark.parametrize(
    "settings",
    [
        {"turns": 0},
        {"cost": -1.0},
        {"words": ("ab",)},
        {"words": ("ab", "ab")},
        {"words": ("ab", "abc")},
        {"words": ("aa", "ab")},
    ],
)
def test_settings(settings):
    with pytest.raises(ValueError, match=r"at least|negative|one length|twice"):
        Wordle(**settings)
