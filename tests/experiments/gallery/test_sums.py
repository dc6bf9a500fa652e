"""Texts and pay of sums with a verifier, and the sums that are held out."""

import jax
import numpy as np
import pytest

from experiments.gallery.sums import HELD_OUT, PAIRS, TRAINED, Sums, SumsWithVerifier
from tests.support.told import render

GAME = SumsWithVerifier()


@pytest.mark.parametrize(("said", "verdict"), [("12", 0), ("12", 1), ("11", 0), ("11", 1)])
def test_texts_and_pay(said, verdict):
    """Of 7 + 5. Verdict 0 is "right"."""
    number = TRAINED.index((7, 5))
    join = lambda phrases: render(GAME.observation, np.asarray(phrases))
    state = jax.tree.map(lambda x: x[number], GAME.initial_states()[0])
    view = GAME.view(state)
    assert [GAME.rules[0][p] for p in GAME.prompt(state)[:, 0]] == list(GAME.rules[0])
    assert join(view.phrases[0]) == "What is 7 + 5? Answer." and (np.asarray(view.phrases[1]) == -1).all()
    answer = GAME.tasks.answers.index(said)
    state, view, pay = GAME.step(state, np.array([answer, 0]), jax.random.key(0))
    assert join(view.phrases[1]) == f"What is 7 + 5? They answer {said}. Right or wrong?" and not pay.any()
    state, view, pay = GAME.step(state, np.array([0, verdict]), jax.random.key(0))
    correct = said == "12"
    np.testing.assert_array_equal(pay, [[correct, 0], [correct, correct == (verdict == 0)]])
    assert view.terminated


def test_answers_are_sentences():
    options = GAME.grammars[0][0].options
    assert [text for _, text in options] == [f"The answer is {answer}" for answer in GAME.tasks.answers]
    assert [text for _, text in GAME.grammars[1][0].options] == ["right", "wrong"]


def test_other_sums_are_held_out():
    """No sum is in both sets, every answer is trained, and what may be answered is the same for both."""
    assert not {*HELD_OUT} & {*TRAINED} and {*HELD_OUT} | {*TRAINED} == {*PAIRS}
    assert (len(HELD_OUT), len(TRAINED)) == (16, 65)
    assert {a + b for a, b in TRAINED} == {*range(2, 19)}
    for pairs in (HELD_OUT, TRAINED):
        tasks = Sums(pairs)
        for number in range(tasks.size):
            (phrase,), answer = tasks.task(np.int32(number))
            a, b = tasks.fields[0][phrase].removeprefix("What is ").removesuffix("?").split(" + ")
            assert int(tasks.answers[answer]) == int(a) + int(b)
