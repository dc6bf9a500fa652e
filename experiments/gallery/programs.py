"""Two agent programs for a small model: one uses a calculator that it is told of, one has a planner and an answerer."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from jaxmarl_llm.environments.bridges.agent_programs import AgentEpisode, AgentProgram

SUM = re.compile(r"(\d{1,6}) ?([-+*]) ?(\d{1,6})")
CALL = re.compile(rf"calc\({SUM.pattern}\)")
VALUE: dict[str, Callable[[int, int], int]] = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
VERBS = {"+": ("finds {} more", "buys {} more"), "-": ("loses {}", "sells {}")}
NAMES, THINGS = ("Ann", "Ben", "Eva", "Tom"), ("pears", "coins", "books", "shells")
Messages = list[dict[str, str]]


class Question(NamedTuple):
    """A question of two numbers, in signs or in words."""

    a: int
    sign: str
    b: int
    text: str

    @property
    def value(self) -> int:
        return VALUE[self.sign](self.a, self.b)

    @property
    def sum(self) -> str:
        return f"{self.a} {self.sign} {self.b}"

    def is_sum(self, text: str) -> bool:
        """True if a text is the question's sum and nothing else; the numbers of a plus may be exchanged."""
        match = SUM.fullmatch(text.strip(" ."))
        if match is None:
            return False
        same = {int(match[1]), int(match[3])} == {self.a, self.b}
        return same and match[2] == self.sign and compute(match) == self.value

    def is_answer(self, text: str) -> bool:
        """True if the last number of a text is the question's value."""
        numbers = re.findall(r"-?\d+", text.replace(",", ""))
        return bool(numbers) and numbers[-1] == str(self.value)


def compute(match: re.Match[str] | None) -> int | None:
    """The value of a sum that was read, if one was."""
    return VALUE[match[2]](int(match[1]), int(match[3])) if match else None


def in_signs(a: int, sign: str, b: int) -> Question:
    return Question(a, sign, b, f"What is {a} {sign} {b}?")


def in_words(a: int, sign: str, b: int, name: str, things: str, verb: int) -> Question:
    text = f"{name} has {a} {things} and {VERBS[sign][verb].format(b)}. How many {things} has {name}?"
    return Question(a, sign, b, text)


PAIRS = tuple((a, b) for a in range(3, 13) for b in range(1, 10) if b < a)
HELD_OUT = PAIRS[2::5]
TRAINED = tuple(pair for pair in PAIRS if pair not in HELD_OUT)
LARGE = tuple((a, b) for a in range(11, 100) for b in range(11, 100))


def deal_signs(sign: str, seed: int) -> Question:
    """A question in signs, of two numbers with two digits."""
    a, b = random.Random(seed).choice(LARGE)
    return in_signs(a, sign, b)


def deal_words(pairs: Sequence[tuple[int, int]], seed: int) -> Question:
    """A plus or a minus in words."""
    deal = random.Random(seed)
    a, b = deal.choice(pairs)
    return in_words(a, deal.choice("+-"), b, deal.choice(NAMES), deal.choice(THINGS), deal.randrange(2))


STORIES = (
    in_words(8, "+", 6, "Eva", "pears", 0),
    in_words(9, "-", 5, "Ben", "books", 0),
    in_words(12, "-", 3, "Tom", "coins", 1),
    in_words(5, "+", 4, "Ann", "shells", 1),
    in_words(11, "-", 7, "Eva", "books", 0),
    in_words(7, "+", 2, "Tom", "pears", 0),
)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def answer(question: Question) -> dict[str, str]:
    return assistant(f"The answer is {question.value}.")


async def speak(episode: AgentEpisode, seat: str, messages: Messages) -> str:
    """The answer of a seat's policy through its OpenAI client; it is added to the messages."""
    reply = await episode.client(seat).chat.completions.create(model="-", messages=messages)
    messages.append(assistant(reply.choices[0].message.content or ""))
    return messages[-1]["content"]


class Talk(NamedTuple):
    """A dialogue about a question, without the examples."""

    messages: Messages
    asked: bool  # the calculator was called, or the planner's note was right
    right: bool  # the answer was


TOLD = "You have a calculator. To use it, reply with calc(...) and nothing else. Then you are told the result."
ARMS = {"alone": 4, "told": 0, "one": 1, "four": 4}
"""{arm: its worked examples}; each but "alone" is told of the calculator."""


class Calculator:
    """Asks one question in each arm; an arm is a seat. `talks` keeps what was said, by seed and arm."""

    def __init__(self, deal: Callable[[int], Question], examples: Sequence[Question]):
        self.deal, self.examples, self.talks = deal, examples, dict[tuple[int, str], Talk]()

    async def __call__(self, episode: AgentEpisode) -> dict[str, float]:
        question, paid = self.deal(episode.seed), dict[str, float]()
        for arm in episode.seats:  # in turn: the draws of an answer depend on the number of its turn
            messages, called = [*self.prepare(arm), user(question.text)], False
            before = len(messages) - 1
            said = await speak(episode, arm, messages)
            if arm != "alone" and (result := compute(CALL.search(said))) is not None:
                called = True
                messages.append(user(f"calc: {result}"))
                said = await speak(episode, arm, messages)
            right = question.is_answer(said)
            self.talks[episode.seed, arm] = Talk(messages[before:], called, right)
            paid[arm] = float(right)
        return paid

    def prepare(self, arm: str) -> Messages:
        """The messages before the question."""
        examples = self.examples[: ARMS[arm]]
        if arm == "alone":
            return [message for x in examples for message in (user(x.text), answer(x))]
        call = lambda x: (user(x.text), assistant(f"calc({x.a}{x.sign}{x.b})"), user(f"calc: {x.value}"), answer(x))
        return [{"role": "system", "content": TOLD}, *(message for x in examples for message in call(x))]


TEAM = ("planner", "answerer")
PLAN = "Write the sum that answers the question."


class Planned:
    """A planner reads a story and notes its sum, and an answerer reads the note alone.

    Both earn a point for a right answer, and the planner one more for a right note.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]]):
        self.pairs, self.talks = pairs, dict[tuple[int, str], Talk]()

    async def __call__(self, episode: AgentEpisode) -> dict[str, float]:
        question = deal_words(self.pairs, episode.seed)
        plan = [{"role": "system", "content": PLAN}]
        plan += [message for x in STORIES for message in (user(x.text), assistant(x.sum))]
        note = await speak(episode, "planner", [*plan, user(question.text)])
        asked = [message for x in STORIES for message in (user(x.sum), answer(x))] + [user(note or "?")]
        said = await speak(episode, "answerer", asked)
        noted, right = question.is_sum(note), question.is_answer(said)
        self.talks[episode.seed, "team"] = Talk([user(question.text), *asked[-2:]], noted, right)
        return {"planner": float(noted) + float(right), "answerer": float(right)}


SHOWN = ((12, 35), (47, 86), (64, 29), (31, 58))
TEAMS = {
    name: AgentProgram(Planned(pairs), TEAM, turns=2, context=512, timeout=3600.0)  # it includes compilation
    for name, pairs in {"trained": TRAINED, "held out": HELD_OUT}.items()
}
CALCULATORS = {
    name: AgentProgram(Calculator(deal, examples), (*ARMS,), turns=2 * len(ARMS), context=512, timeout=3600.0)
    for name, (deal, examples) in {
        "products": (partial(deal_signs, "*"), [in_signs(a, "*", b) for a, b in SHOWN]),
        "sums": (partial(deal_signs, "+"), [in_signs(a, "+", b) for a, b in SHOWN]),
        "stories": (partial(deal_words, HELD_OUT), STORIES[:4]),
    }.items()
}
"""{questions: the calculator's program}."""
