"""The cutting of rendered templates: the same cuts as an expression's, in linear time."""

import re
from types import SimpleNamespace

import numpy as np

from jaxmarl_llm.text.templates import cut_at, spaces_taken


def test_a_text_is_cut_where_the_greediest_expression_cuts_it():
    rng, marks, outcomes = np.random.default_rng(0), ("A", "B", "A"), set()
    for _ in range(500):
        text = "".join(rng.choice(list("AB-"), rng.integers(9)))
        match = re.fullmatch("(.*)A(.*)B(.*)A(.*)", text)
        assert cut_at(text, marks) == (match and list(match.groups())), text
        outcomes.add(match is None)
    assert outcomes == {True, False}
    assert cut_at("BA" * 10**6, ("B", "B", "A", "A")) is not None  # where the expression does not end


def added(content: str, lstrip: bool, rstrip: bool) -> SimpleNamespace:
    return SimpleNamespace(content=content, lstrip=lstrip, rstrip=rstrip)


def test_spaces_beside_added_tokens_are_taken_once_from_either_side():
    tokens = [
        added("<a>", True, True),
        added("<b>", True, False),
        added("<c>", False, True),
        added("<d>", False, False),
    ]
    pattern = spaces_taken(SimpleNamespace(get_added_tokens_decoder=lambda: dict(enumerate(tokens))))
    plain = re.compile(r"\s*<a>\s*|\s*<b>|<c>\s*")
    rng, changed = np.random.default_rng(0), 0
    for _ in range(500):
        text = "".join(rng.choice(["<a>", "<b>", "<c>", "<d>", " ", "\n", "x"], rng.integers(12)))
        taken = pattern.sub(lambda match: match[0].strip(), text)
        assert taken == plain.sub(lambda match: match[0].strip(), text), text
        changed += taken != text
    assert changed > 100
    assert pattern.sub("", " " * 10**6 + "x") == " " * 10**6 + "x"  # in quadratic time it takes ten minutes
