"""Questions from a file and a reward function, as a recipe's game: one seat reads a prompt and answers once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxmarl_llm.environments.bridges.prompt_rewards import Reward, names_read
from jaxmarl_llm.environments.bridges.python_games import HostGame
from jaxmarl_llm.text.tokenizers import SymbolTokenizer

ROLES = ("system", "user", "assistant")
GIVEN = ("completions", "prompts")  # names that a reward gets beside the fields of the questions

Data = str | Path | Sequence[Mapping[str, Any]]  # a file of JSON lines, or the records themselves


class Question(NamedTuple):
    """A question: its place in the data, its messages as (role, text), its prompt as given, its further fields."""

    place: str
    messages: tuple[tuple[str, str], ...]
    prompt: Any
    fields: Mapping[str, Any]


def read_questions(data: Data, system: str = "") -> list[Question]:
    """The questions of a file of JSON lines, or of records.

    A record has a `prompt`, which is a text or a list of OpenAI's messages, or `messages`; other fields are kept. The
    message of `system` comes first where the messages have none. Raises ValueError for a file that cannot be read or
    holds no question, and for a line that is none, with its number.
    """
    questions = []
    for place, record in _records(data):
        if not isinstance(record, Mapping):
            raise ValueError(f'{place} is no question: it is an object with a prompt, {{"prompt": "..."}}.')
        given = [name for name in ("prompt", "messages") if name in record]
        if len(given) != 1:
            has = "both" if given else f"only {', '.join(map(str, record)) or 'nothing'}"
            raise ValueError(f"{place} needs a prompt, which is a text, or messages; it has {has}.")
        if taken := [name for name in GIVEN if name in record]:
            raise ValueError(f"{place} has a field {taken[0]!r}, a name that rewards use: rename it.")
        prompt = record[given[0]]
        messages = _messages(place, given[0], prompt)
        if system and messages[0][0] != "system":
            messages = (("system", system), *messages)
        fields = {name: value for name, value in record.items() if name != given[0]}
        questions.append(Question(place, messages, prompt, fields))
    if not questions:
        raise ValueError(f"{data if isinstance(data, str | Path) else 'The data'} holds no questions.")
    return questions


def _records(data: Data) -> list[tuple[str, Any]]:
    """(place, record) of the data."""
    if not isinstance(data, str | Path):
        if not isinstance(data, Sequence):
            raise ValueError(f"The data is a file of JSON lines or a list of records, got {data!r}.")
        return [(f"Question {number}", record) for number, record in enumerate(data)]
    try:
        lines = Path(data).read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise ValueError(f"There is no file {data}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{data} is no UTF-8 text: save it as UTF-8.") from None
    except OSError as error:
        raise ValueError(f"{data} cannot be read: {error}.") from None
    records = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f"{Path(data).name}, line {number},"
            try:
                records.append((place, json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{place} is no JSON: {error}. The file holds one JSON object a line.") from None
    return records


def _messages(place: str, name: str, prompt: Any) -> tuple[tuple[str, str], ...]:
    """The messages of a prompt as (role, text)."""
    if name == "prompt" and isinstance(prompt, str):
        if not prompt.strip():
            raise ValueError(f"{place} has an empty prompt.")
        return (("user", prompt),)
    form = '[{"role": "user", "content": "..."}]'
    if not isinstance(prompt, Sequence) or isinstance(prompt, str) or not prompt:
        raise ValueError(f"{place} has a {name} that is no {'text' if name == 'prompt' else 'list'}: write {form}.")
    messages = []
    for message in prompt:
        known = isinstance(message, Mapping) and isinstance(message.get("content"), str)
        if not known or message.get("role") not in ROLES:
            raise ValueError(f"{place} has a message that is no role of {', '.join(ROLES)} with a text: write {form}.")
        messages.append((message["role"], message["content"]))
    if messages[-1][0] != "user":
        raise ValueError(f"{place} ends with a message of {messages[-1][0]}: the last one is of the user.")
    return tuple(messages)


def split(questions: Sequence[Question], share: float, seed: int) -> tuple[list[Question], list[Question]]:
    """(training questions, held-out questions), both in the order of the data; equal seeds, equal splits.

    Questions with the same messages stay together. At least one group of them is on each side. Raises ValueError for a
    share outside (0, 1) and for fewer than two different questions.
    """
    if isinstance(share, bool) or not 0 < share < 1:
        raise ValueError(f"held_out is a share of the questions between 0 and 1, or a file of its own, got {share!r}.")
    distinct = list(dict.fromkeys(question.messages for question in questions))
    if len(distinct) < 2:
        raise ValueError("All questions are the same: there is none to hold out.")
    count = min(max(round(share * len(distinct)), 1), len(distinct) - 1)
    order = np.random.default_rng(seed).permutation(len(distinct))
    out = {distinct[index] for index in order[:count].tolist()}
    return [q for q in questions if q.messages not in out], [q for q in questions if q.messages in out]


@dataclass(frozen=True, eq=False)
class Prompts(HostGame):
    """Questions and a reward as a recipe's game: `Recipe(Prompts("questions.jsonl", reward=function), ...)`.

    `data` is a file of JSON lines, or a list of records, as `read_questions` reads them. `reward` is a function as
    `prompt_rewards` describes it, or several by name. Each is then a component of the reward; training adds them up.
    A group is several answers to one question. Each update draws its questions without repetition, unless it has more
    groups than there are questions. `system` is the system message of questions without one.

    `held_out` is a share of the questions, drawn with `seed`, or a file or list of its own. With
    `Recipe.evaluate=held_out` (`training.host_games`) these questions are answered `answers` times each, and never
    trained. A row has at most `context` tokens; answers are computed in `slots` slots.

    An entropy bonus destroys a model that earns nothing: hparams={"entropy": 0.0} takes the default one away.

    A reward that raises, or that is no finite number, leaves its answer out of the update, and is reported with its
    question. Raises ValueError for data or rewards that cannot work.
    """

    spelled_by = "letters, which is in environments.bridges.prompts"

    data: Data = field(repr=False)
    reward: Reward | Mapping[str, Reward]
    system: str = ""
    held_out: float | Data = field(default=0.0, repr=False)
    seed: int = field(default=0, repr=False)
    answers: int = 4
    context: int | None = None
    slots: int = 16
    scripts: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False)
    questions: str = field(default="", init=False)  # the digest of all: a run that continues has the same
    training: tuple[Question, ...] = field(default=(), init=False, repr=False)
    testing: tuple[Question, ...] = field(default=(), init=False, repr=False)  # the held-out questions

    def __post_init__(self) -> None:
        for name in ("answers", "slots"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} is a whole number from 1 on, got {getattr(self, name)!r}.")
        if not self.rewards or any(not isinstance(name, str) or not name for name in self.rewards):
            raise ValueError(f"reward is a function, or several by name, {{'name': function}}: got {self.reward!r}.")
        training, testing = read_questions(self.data, self.system), []
        if not isinstance(self.held_out, float | int):
            testing = read_questions(self.held_out, self.system)
            places = {question.messages: question.place for question in training}
            if both := [q for q in testing if q.messages in places]:
                raise ValueError(
                    f"{both[0].place} is held out, and trained as well: it is {places[both[0].messages].rstrip(',')}."
                )
        elif self.held_out:
            training, testing = split(training, self.held_out, self.seed)
        object.__setattr__(self, "training", tuple(training))
        object.__setattr__(self, "testing", tuple(testing))
        text = json.dumps([[q.messages, q.fields] for q in [*training, None, *testing] if q], default=str)
        object.__setattr__(self, "questions", hashlib.sha256(f"{len(training)} {text}".encode()).hexdigest()[:16])
        for name, reward in self.rewards.items():
            names_read(name, reward, self.names)

    @property
    def rewards(self) -> dict[str, Reward]:
        """The rewards by component; a single function is called "reward"."""
        return dict(self.reward) if isinstance(self.reward, Mapping) else {"reward": self.reward}

    @property
    def components(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.rewards)

    @property
    def agents(self) -> int:
        return 1

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every name that a reward may be called with: completions, prompts and all fields of the questions."""
        fields = (name for question in (*self.training, *self.testing) for name in question.fields)
        return (*GIVEN, *dict.fromkeys(fields))

    def arguments(self, questions: Sequence[Question], completions: Sequence[str]) -> dict[str, list]:
        """The arguments of rewards for answers to questions, a list each; None for a field that a question lacks."""
        given: dict[str, list] = {"completions": list(completions), "prompts": [q.prompt for q in questions]}
        further = (name for name in self.names if name not in GIVEN)
        return given | {name: [question.fields.get(name) for question in questions] for name in further}


def letters(game: Prompts) -> SymbolTokenizer:
    """A tokenizer of tiny policies, `Recipe.tokenizer=letters`: a token for each character of the questions and their
    fields, "?" and an end token. Raises ValueError for a game that is no `Prompts`."""
    if not isinstance(game, Prompts):
        raise ValueError(
            f"letters reads the questions of Prompts, and a {type(game).__name__} has none: give the tokenizer the "
            f"symbols, {HostGame.spelled_by}."
        )
    texts = [text for question in (*game.training, *game.testing) for _, text in question.messages]
    texts += [str(value) for question in (*game.training, *game.testing) for value in question.fields.values()]
    return SymbolTokenizer(sorted({"?", *"".join(texts)}), ends=True)
