"""The phases of a study: what is looked for is there, and what was left out is counted."""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

import jaxmarl_llm
from experiments.benchmarks import studies
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.training.recipe import Recipe

ARM = Recipe(KuhnPoker(), (("me", "me"),), None, updates=120, eval_every=60)


def functions(code: CodeType) -> Iterator[str]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner.co_qualname
            yield from functions(inner)


def test_every_function_that_is_looked_for_exists():
    files = [*Path(jaxmarl_llm.__file__).parent.rglob("*.py"), Path(studies.__file__)]
    known = {name for file in files for name in functions(compile(file.read_text(), file, "exec"))}
    assert set(studies.WHERE) <= known


def test_the_innermost_function_decides():
    def train_program(program: object, then: object) -> list[FrameType]:
        return then()

    def write() -> list[FrameType]:
        return list(studies.frames(sys._getframe()))

    for function in (train_program, write):
        function.__code__ = function.__code__.replace(co_qualname=function.__name__)
    program = type("Named", (), {"name": "a+b"})()
    assert studies.phase_of(train_program(program, write)) == ("a+b", studies.WRITE)
    assert studies.phase_of(write()) == ("", studies.WRITE)
    assert studies.phase_of(list(studies.frames(sys._getframe()))) == ("", studies.START)


@pytest.mark.parametrize(
    ("phase", "times"),
    [("updates", 120 / 5), ("log", 120 / 6), ("evaluate", 1), ("evaluate again", 2), ("ready", 1)],
)
def test_what_was_left_out_is_multiplied(phase, times):
    assert studies.left_out([ARM], phase, 6) == pytest.approx(times)
    assert studies.left_out([ARM], phase, 0) == 1 and studies.left_out([], phase, 6) == 1
    assert studies.left_out([dataclasses.replace(ARM, eval_every=1)], "evaluate again", 6) == 20
