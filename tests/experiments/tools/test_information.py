"""The bits of a question against counting, the exact players of the tree, and the credit of each arm."""

from itertools import combinations

import jax
import numpy as np
import pytest

from experiments.tools.information import GAME, OUTCOME, QUESTIONS, STUDY, THINGS
from jaxmarl_llm.environments.around.withheld import WithheldAnswers
from jaxmarl_llm.rl.masked import correlation
from tests.support.recipe_plays import differences, games

ATTRIBUTES = GAME.attributes


def play_by_play(episode):
    """The objects that are left after each question of an episode, by the table."""
    left, counts = dict(THINGS), []
    for turn in range(0, GAME.turns - 1, 2):
        if not episode["acted"][turn + 1, 1]:
            break
        asked, reply = ATTRIBUTES[episode["action"][turn, 0]], episode["action"][turn + 1, 1]
        before = len(left)
        left = {name: holds for name, holds in left.items() if (asked in holds) == (reply == 1)}
        counts.append((turn, np.log2(before / len(left))))
    return counts


@pytest.fixture(scope="module")
def played():
    return games(OUTCOME)


def test_bits_are_counted_objects(played):
    episodes = jax.device_get(played.episodes)
    found, wanted = np.asarray(jax.jit(GAME.bits)(episodes.action, episodes.acted)), np.zeros(episodes.acted.shape)
    for b in range(len(wanted)):
        for turn, gain in play_by_play({"acted": episodes.acted[b], "action": episodes.action[b]}):
            wanted[b, turn, 0] = gain
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert (wanted > 0).sum() > 20 and (wanted[:, 4] > 0).any()


def named(left, questions):
    """The most objects of `left` that a player names, of all, with so many questions, each chosen by the replies."""
    best = 1
    for attribute in ATTRIBUTES if questions else ():
        parts = [frozenset(x for x in left if (attribute in dict(THINGS)[x]) == says) for says in (True, False)]
        if all(parts):
            best = max(best, sum(named(part, questions - 1) for part in parts))
    return best


def test_the_tree_asks_for_questions_that_follow_the_replies():
    everything = frozenset(name for name, _ in THINGS)
    assert [named(everything, n) for n in range(4)] == [1, 2, 4, 8]
    fixed = max(
        len({tuple(a in holds for a in asked) for _, holds in THINGS}) for asked in combinations(ATTRIBUTES, QUESTIONS)
    )
    assert fixed == 4
    assert isinstance(GAME, WithheldAnswers) and GAME.cost == 0


def test_correlation():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 4)).astype(np.float32)
    where = rng.random((5, 4)) < 0.6
    assert float(correlation(x, y, where)) == pytest.approx(np.corrcoef(x[where], y[where])[0, 1], abs=1e-5)
    assert float(correlation(x, np.ones_like(y), where)) == 0


def test_arms_share_a_program():
    for name, arm in STUDY.arms.items():
        assert differences(OUTCOME, arm) <= {"selection", "hparams"}, name
