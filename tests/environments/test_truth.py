"""Truth in games: the points of every registered game, recomputed from what its seats were told and said.

A game that is silent about its rewards says so in its docstring, and its referee checks what can be known.
"""

import numpy as np
import pytest

from jaxmarl_llm.environments import REGISTRY
from tests.support.referees import REFEREES
from tests.support.told import transcripts

EPISODES = 6
SILENT = ("SixTurns", "TwentyQuestions", "Discussion", "LockChain", "Stairs", "Quiz", "Graded", "Advised", "Letters")


@pytest.mark.parametrize("name", REGISTRY)
def test_the_points_are_what_the_texts_say(name):
    game = REGISTRY[name]()
    for play in transcripts(game, EPISODES):
        expected = REFEREES[type(game).__name__](play)
        np.testing.assert_allclose(np.stack([turn.reward for turn in play.turns]), expected, rtol=1e-5, atol=1e-6)


def test_a_game_that_is_silent_about_its_rewards_says_so():
    games = {type(game).__name__: game for game in (make() for make in REGISTRY.values())}
    assert set(games) == set(REFEREES)
    for name, game in games.items():
        assert ("silent about" in " ".join(type(game).__doc__.split())) == (name in SILENT), name
        points = any(word in " ".join(game.rules[0]) for word in ("point", "score", "win", "coins"))
        assert points or name in SILENT, name
