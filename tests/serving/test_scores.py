"""Rewards of batches: one call each, and a sentence with the question for every wrong one."""

import asyncio
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.bridges.prompt_rewards import Exact, Number
from jaxmarl_llm.environments.bridges.prompts import Prompts
from jaxmarl_llm.serving import scores

RECORDS = [{"prompt": f"Question {number}", "answer": number} for number in range(6)]


def batch(reward, **options):
    """(game, each question twice in turn, answers "0" to "11")."""
    game = Prompts(RECORDS, reward, **options)
    questions = [question for question in game.training for _ in range(2)]
    return game, questions, [str(number) for number in range(len(questions))]


def test_a_reward_is_called_once_for_a_batch_with_lists_of_one_length():
    calls = []

    def mine(completions, prompts, answer):
        calls.append((completions, prompts, answer))
        return [float(int(said) == 2 * right) for said, right in zip(completions, answer, strict=True)]

    async def later(completions, **fields):
        await asyncio.sleep(0)
        return np.arange(len(completions)) / 2

    game, questions, texts = batch({"mine": mine, "later": later})
    table, problems = scores.score(game, questions, texts)
    assert len(calls) == 1 and not problems and table.dtype == np.float32
    assert calls[0] == (texts, [q.prompt for q in questions], [q.fields["answer"] for q in questions])
    np.testing.assert_array_equal(table, np.stack([np.tile([1, 0], 6), np.arange(12) / 2], 1))


@pytest.mark.parametrize(
    "returned", [(0, 1), np.ones(2), jnp.ones(2), [True, Fraction(1, 2)], np.ones(2, np.float16)], ids=repr
)
def test_every_list_of_finite_numbers_is_a_reward(returned):
    game = Prompts(RECORDS[:2], lambda completions: returned)
    table, problems = scores.score(game, game.training, ["", ""])
    assert not problems and table[:, 0].tolist() == [float(x) for x in returned]


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (0.5, "returned 0.5, and a list with a number for each of 2 answers is wanted"),
        ([1.0], "returned \\[1.0\\], and a list"),
        ("ab", "returned 'ab', and a list"),
        ({"a": 1, "b": 2}, "and a list"),
        (None, "returned None, and a list"),
        (np.ones(()), "and a list"),
        ([1.0, None], "returned None, no finite number"),
        ([1.0, float("nan")], "returned nan, no finite number"),
        ([1.0, 1e300], "no finite number"),
        ([1.0, "1"], "returned '1', no finite number"),
    ],
)
def test_a_reward_that_returns_no_list_of_numbers_is_refused_before_training(returned, says):
    game = Prompts(RECORDS[:2], {"mine": lambda completions: returned})
    with pytest.raises(ValueError, match=f"^The reward 'mine' .*{says}.* for an empty answer to Question [01] "):
        scores.probe(game)


def test_a_field_that_breaks_a_reward_is_found_before_training():
    spoilt = [*RECORDS[:4], {"prompt": "Question 4", "answer": "four"}]
    says = r"raised ValueError: the field 'answer' holds no number: 'four', for an empty answer to Question 4 "
    with pytest.raises(ValueError, match=says + r"\('Question 4'\)"):
        scores.probe(Prompts(spoilt, Number()))
    many = [{"prompt": str(number), "answer": number} for number in range(100)]
    asked = []

    def mine(completions):
        asked.append(len(completions))
        return [0.0] * len(completions)

    scores.probe(Prompts(many, {"mine": mine, "exact": Exact()}))
    assert asked == [scores.PROBED]  # a function of one's own may cost something
    with pytest.raises(ValueError, match="there is no field 'answer', for an empty answer to Question 40"):
        scores.probe(Prompts([*many[:40], {"prompt": "x"}, *many[41:]], Exact()))


def test_a_question_that_breaks_a_reward_spoils_no_other():
    calls = []

    def mine(completions, answer):
        calls.append(len(completions))
        return [1.0 / (right - 3) for right in answer]

    game, questions, texts = batch({"mine": mine, "fine": Exact()})
    table, problems = scores.score(game, questions, texts)
    assert calls == [12, *[2] * 6] and set(problems) == {6, 7}
    assert np.isnan(table[6:8, 0]).all() and np.isfinite(np.delete(table, [6, 7], 0)).all()
    assert np.isfinite(table[:, 1]).all()
    assert problems[7] == (
        "The reward 'mine' raised ZeroDivisionError: float division by zero, for the answer '7' to Question 3 "
        "('Question 3')."
    )


def test_a_list_of_another_length_fails_the_whole_batch():
    calls = []
    game, questions, texts = batch(lambda completions: calls.append(1) or [1.0, 1.0])
    table, problems = scores.score(game, questions, texts)
    assert len(calls) == 1 and len(problems) == 12 and np.isnan(table).all()


def test_one_wrong_number_is_one_wrong_answer():
    game, questions, texts = batch(lambda completions: [np.inf if text == "5" else 0.0 for text in completions])
    table, problems = scores.score(game, questions, texts)
    assert set(problems) == {5} and np.isnan(table[:, 0]).tolist() == [text == "5" for text in texts]
    assert "returned inf, no finite number, for the answer '5' to Question 2" in problems[5]


def test_a_reward_that_fails_always_is_not_asked_for_every_question():
    calls = []

    def mine(completions):
        calls.append(len(completions))
        raise ConnectionError("nobody answers")

    game, questions, texts = batch(mine)
    table, problems = scores.score(game, questions, texts)
    assert calls == [12, *[2] * scores.ALONE] and len(problems) == 12 and np.isnan(table).all()
    assert "raised ConnectionError: nobody answers, for the answer '11'" in problems[11]
