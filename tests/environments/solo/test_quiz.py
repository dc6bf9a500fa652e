"""The quiz: planted shares, points that are nearly independent, and answers of different length."""

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.solo.quiz import LETTERS, STRIDES, Quiz
from tests.support.team_plays import acted, deals_are_what_reset_draws, played, row, totals


def points(game: Quiz) -> np.ndarray:
    """[questions, answers, points]"""
    question, answer = np.indices((game.questions, game.answers))
    return np.asarray(jax.jit(game.score_answer)(question, answer))


def test_each_point_is_earned_by_its_share_of_the_letters():
    game = Quiz(shares=((0.9,), (0.5,), (0.05, 0.1, 0.3)))
    found = points(game)
    np.testing.assert_allclose(found[..., :2].mean(1), np.broadcast_to([0.9, 0.5], (8, 2)))
    np.testing.assert_allclose(found[..., 2].mean(1), np.resize([0.05, 0.1, 0.3], 8))
    for q, a, c in np.ndindex(found.shape):
        right = round(game.shares[c][q % len(game.shares[c])] * 20)
        assert found[q, a, c] == (STRIDES[c] * (a - q) % 20 < right)


def test_points_are_nearly_independent_and_one_letter_earns_all():
    each = points(Quiz())
    for q in range(8):
        assert each[q, q].all() and each[q].all(1).sum() == 1  # 0.9 * 0.5 * 0.1 * 20
        np.testing.assert_allclose(np.corrcoef(each[q].T), np.eye(3), atol=0.34)


@pytest.mark.parametrize("player", ["random", "best"])
def test_against_python(player):
    game = Quiz(filler=3)
    record, table = played(game, player), points(game)
    lengths = set()
    for g in range(200):
        ((_, said),) = acted(game, record, g)
        question = int(row(game, record, g, 0)[0].split(".")[0].split()[1])
        assert said.endswith(".") and said[1:-1] == " so" * said.count(" so")
        np.testing.assert_array_equal(totals(record)[g, 0], table[question, LETTERS.index(said[0])])
        lengths.add(said.count(" so"))
    assert lengths == ({0, 1, 2, 3} if player == "random" else {0})
    assert deals_are_what_reset_draws(game)


def test_an_answer_has_a_token_for_each_word():
    game = Quiz(filler=2)
    tokenizer = game.letter_tokenizer()
    assert [len(tokenizer.encode(text)) for text in ("A.", "T so.", "B so so.")] == [2, 3, 4]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"answers": 21}, "no multiple of 7 or 11"),
        ({"answers": 27}, "at most 26"),
        ({"shares": ((1.1,),)}, "at most 1"),
        ({"shares": ()}, "1 to 3 points"),
        ({"questions": 0}, "at least 1"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Quiz(**settings)
