"""Instruments: what scripts are paid, against plain Python that reads the told texts, and the value of knowledge."""

import re

import numpy as np
import pytest

from jaxmarl_llm.environments.solo.instruments import NAMES, READINGS, Instruments
from jaxmarl_llm.evaluation.exact import solve
from tests.support.team_plays import acted, close, deals_are_what_reset_draws, given, played, row

GAME = Instruments(rounds=2, values=2)


@pytest.mark.parametrize("player, solves", [("random", None), ("half_right", 1 / 2), ("correct", 1.0)])
def test_against_python(player, solves):
    record = played(GAME, player)
    for g in range(60):
        _, *told = row(GAME, record, g, 0)
        said, right = [word for _, word in acted(GAME, record, g)], []
        for i in range(2):
            assert told[2 * i].endswith(f"Read the {NAMES[i]}.")
            named, reading = re.search(r"The (\w+) says (\w+)\. Your answer\?$", told[2 * i + 1]).groups()
            assert named == said[2 * i]
            if player != "random":
                assert named == NAMES[i]
                right.append(said[2 * i + 1] == "AB"[(READINGS.index(reading) + i) % 2])
        if right:
            assert right[0]
            want = np.array([[0, 0], [0, right[0]], [0, 0], [all(right), right[1]]], float)
            np.testing.assert_array_equal(given(record)[:, g, 0], want)
    if solves is not None:
        assert close(record["reward"].sum((0, 2, 3)), solves)


def test_an_instrument_that_was_not_read_must_be_guessed():
    """Exactly: a player that names the first instrument twice knows one of two right answers."""
    assert deals_are_what_reset_draws(GAME)
    tree = solve.tree(GAME)
    texts = [solve.text_of(tree, i) for i in range(len(tree.owner))]
    told = [re.findall(r"Read the (\w+)\.|The (\w+) says (\w+)\.", text) for text in texts]

    def play(due: bool) -> np.ndarray:
        """Names the instrument that is due, or the first; answers right if it has been read."""
        policy = np.zeros((len(told), 2))
        for i, parts in enumerate(told):
            names, read = [name for name, _, _ in parts if name], {name: x for _, name, x in parts if name}
            at = len(names) - 1
            calling = bool(parts[-1][0])
            known = READINGS.index(read[NAMES[at]]) if NAMES[at] in read else 0
            policy[i, (at if due else 0) if calling else (known + at) % 2] = 1
        return policy

    worth = lambda policy: float(solve.expected_value(tree, policy)[0])
    assert (worth(play(True)), worth(play(False))) == pytest.approx((1, 1 / 2))
    assert worth(solve.uniform(tree)) == pytest.approx(1 / 4)


def test_settings_that_cannot_be_said():
    for settings in ({"rounds": 0}, {"rounds": 7}, {"values": 1}, {"values": 6}, {"rounds": 1.5}):
        with pytest.raises(ValueError, match=r"instrument|must be"):
            Instruments(**settings)
