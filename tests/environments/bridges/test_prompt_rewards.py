"""The rewards in the box, and the names that a function is called with."""

import pytest

from jaxmarl_llm.environments.bridges.prompt_rewards import Exact, Number, Pattern, last_number, names_read


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 12.", 12),
        ("3 + 4 = 7", 7),
        ("It costs 1,234.50 in all", 1234.5),
        ("1,2", 2),
        ("1,2345", 2345),
        ("-5", -5),
        ("from 3 to -0.5e2!", -50),
        ("9-4", 4),
        ("x12", None),
        ("v1.5", None),
        ("seven", None),
        ("9" * 400, None),
        (7, 7),
        (None, None),
    ],
)
def test_the_last_number_of_a_text(text, number):
    assert last_number(text) == number


def test_rewards_in_the_box_pay_what_they_say():
    said = [" Paris\n", "paris", "Paris.", ""]
    assert Exact("city")(said, city=["Paris"] * 4) == [1, 0, 0, 0]
    assert Exact("city", case=False)(said, city=["Paris"] * 4) == [1, 1, 0, 0]
    assert Exact()(["7", "7.0"], answer=[7, 7]) == [1, 0]
    assert Pattern("^[0-9]+$")(["12", " 12 ", "a12", ""]) == [1, 1, 0, 0]
    assert Pattern("[0-9]+")(["12", "a12"]) == [1, 1] and Pattern("[0-9]+", whole=True)(["12", "a12"]) == [1, 0]
    assert Number()(["so 12", "12 or 13", "none", "12.0000001"], answer=[12, "12", 12, 12]) == [1, 0, 0, 1]
    assert Number("gold")(["72", "70"], gold=["60 + 12 = 72 #### 72"] * 2) == [1, 0]
    assert Number(tolerance=0.01)(["1005", "1020"], answer=[1000, 1000]) == [1, 0]


def test_fields_that_a_reward_lacks_are_said():
    with pytest.raises(ValueError, match="there is no field 'city'"):
        Exact("city")(["a"], answer=["a"])
    with pytest.raises(ValueError, match="there is no field 'answer'"):
        Number()(["1"], answer=[None])
    with pytest.raises(ValueError, match="the field 'answer' holds no number: 'seven'"):
        Number()(["1"], answer=["seven"])
    with pytest.raises(ValueError, match=r"'\(' is no regular expression: missing"):
        Pattern("(")


KNOWN = ("completions", "prompts", "answer")


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda completions: None, ["completions"]),
        (lambda completions, answer: None, ["completions", "answer"]),
        (lambda completions, answer=None, further=3: None, ["completions", "answer"]),
        (lambda prompts, completions, **fields: None, [*KNOWN]),
        (lambda **fields: None, [*KNOWN]),
        (Exact(), [*KNOWN]),
        (Pattern("a"), [*KNOWN]),
    ],
)
def test_a_function_is_called_with_what_it_names(function, names):
    assert names_read("mine", function, KNOWN) == names


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda answers: None, r"takes no completions: write def mine\(completions, \*\*fields\)"),
        (lambda completions, solution: None, "wants 'solution', and it is given answer, completions, prompts"),
        (lambda completions, answer, /: None, "takes no completions"),
        (Exact, "an object such as Exact"),
        (0.5, "is a function of completions"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(function, says):
    with pytest.raises(ValueError, match=f"The reward 'mine' {says}|{says}"):
        names_read("mine", function, KNOWN)
