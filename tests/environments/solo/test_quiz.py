"""The quiz: planted shares, points that are nearly independent, and answers of different length."""

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.solo.quiz import LETTERS, STRIDES, Quiz
from jaxmarl_llm.studies.identity import describe
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


def test_words_that_are_asked_for_against_enumeration():
    """Points and length of every answer to every question, in the table of letters and words."""
    game = Quiz(((0.1, 0.5),), questions=6, answers=10, filler=5, words=(4, 0, 1), slack=1)
    ((choice,),) = game.grammars
    texts, state = dict(choice.options), game.initial_states()[0]
    question, action = np.indices((6, 60)).reshape(2, -1)
    step = jax.jit(jax.vmap(lambda q, a: game.step(q, a[None], jax.random.key(0))[2][0, 0]))
    found = step(jax.tree.map(lambda x: x[question], state), action).reshape(6, 60)
    for q, a in np.ndindex(found.shape):
        letter, said = LETTERS.index(texts[a][0]), texts[a].count(" so")
        right = (letter - q) % 10 < (1, 5)[q % 2] and abs(said - (4, 0, 1)[q % 3]) <= 1
        assert found[q, a] == right, (q, texts[a])
        if q == letter and said == (4, 0, 1)[q % 3]:
            assert texts[a] == game.right_answer(jax.tree.map(lambda x, q=q: x[q], state))
            assert a == game.scripts["best"](jax.tree.map(lambda x, q=q: x[q], state), None, None)
    assert [row.sum() for row in found] == [3 * 1, 2 * 5, 3 * 1, 3 * 5, 2 * 1, 3 * 5]
    keys = jax.random.split(jax.random.key(0), (6, 2000))
    fitting = jax.vmap(jax.vmap(game.scripts["fitting"], (None, None, 0)), (0, None, 0))
    said = jax.jit(fitting)(state, 0, keys)
    for q, drawn in enumerate(np.asarray(said)):
        takes = [a for a in range(60) if abs(a // 10 - (4, 0, 1)[q % 3]) <= 1]
        share = np.bincount(drawn, minlength=60) / 2000
        assert share[takes].sum() == 1 and abs(share[takes] - 1 / len(takes)).max() < 0.02


def test_a_shift_is_drawn_and_not_told():
    """Three of six deals of a question have its own letter, two the fifth after it and one the tenth."""
    game = Quiz(((0.05,),), questions=4, shifts=(0, 0, 0, 5, 5, 10))
    states, probability = game.initial_states()
    question, answer = np.broadcast_arrays(np.asarray(states.question)[:, None], np.arange(20))
    earned = np.asarray(jax.jit(game.score_answer)(question, answer))[..., 0]
    said = lambda name: np.asarray(jax.vmap(lambda state: game.scripts[name](state, 0, None))(states))
    prompts = np.asarray(jax.vmap(game.prompt)(states)).ravel()
    for q in range(4):
        rows = prompts == q
        assert probability[rows].sum() == pytest.approx(1 / 4)
        assert sorted(earned[rows].argmax(1)) == sorted([q] * 3 + [q + 5] * 2 + [q + 10])
        assert (said("common")[rows] == q).all()
    assert (earned.sum(1) == 1).all() and (said("best") == earned.argmax(1)).all()
    assert [LETTERS[a] for a in said("best")] == [
        game.right_answer(jax.tree.map(lambda x, i=i: x[i], states)) for i in range(24)
    ]
    assert deals_are_what_reset_draws(game)
    with pytest.raises(ValueError, match="shifts"):
        Quiz(shifts=())


def test_a_quiz_without_words_is_described_as_before():
    assert set(describe(Quiz())) == {"kind", "shares", "questions", "answers", "filler"}
    assert describe(Quiz(filler=3, words=(1,)))["words"] == [1]


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
        ({"filler": 2, "words": (1, 3)}, "at most 2 idle words"),
        ({"filler": 2, "words": (-1,)}, "at least 0"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Quiz(**settings)
