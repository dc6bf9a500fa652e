"""Policies by name, and the seats of episodes: what a request asks for becomes calls of an engine, and answers.

The engines run in one thread of their own, so that requests are read while tokens are computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from jaxmarl_llm.keys import SAY
from jaxmarl_llm.rollout.policy import PLAIN, Sampling
from jaxmarl_llm.serving.dialogues import Dialogues, Message, Row, spoken, text_of
from jaxmarl_llm.serving.engine import FREE, Answer, Call, Engine
from jaxmarl_llm.text.grammar import Grammar

MOST_WAITING = 1_000  # calls, beyond those that are answered
BUDGET = 256  # tokens of an answer, if a request does not say how many


class Refused(Exception):
    """A request that cannot be answered: a status of HTTP, OpenAI's name of the error, and a sentence."""

    def __init__(self, sentence: str, status: int = 400, code: str | None = None):
        super().__init__(sentence)
        self.sentence, self.status, self.code = sentence, status, code


class Served(NamedTuple):
    """A policy that can be asked by name."""

    engine: Engine
    policy: int = 0  # its adapter; -1: the base alone


@dataclass(eq=False)
class Seat:
    """A seat of an episode: who speaks there, how, and the rows that it has written."""

    model: str
    key: Any  # uint32 [2], the data of a key
    episode: int  # its number
    number: int  # the seat's: the answer of turn t is drawn with key_for(key, SAY, episode, t, number)
    sampling: Sampling
    budget: int  # the most tokens of an answer, the end token included
    dialogues: Dialogues


@dataclass(eq=False)
class Episode:
    """An episode: its seats by name. Each answer is a turn, and the turns of all seats are counted together."""

    seats: dict[str, Seat]
    turns: int  # the most answers
    answered: int = 0
    spoke: list[int] = field(default_factory=list)  # the seat of every turn
    refused: str = ""  # the first request that was refused


@dataclass(frozen=True)
class Request:
    """What a client asks for. None stands for the policy's own setting."""

    messages: tuple[Message, ...]
    model: str = ""
    tools: tuple[dict, ...] = ()
    text: str | None = None  # a plain text to continue, in place of messages
    n: int = 1
    budget: int | None = None
    sampling: Sampling | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    grammar: Grammar = FREE
    top: bool = False


@dataclass(eq=False)
class Choice:
    """One of the answers to a request, as far as it is said."""

    message: Message
    prompt: list[int]
    answer: Answer


class Service:
    """Policies by name, answered by their engines while `running` is open."""

    def __init__(self, models: Mapping[str, Served], seed: int = 0):
        self.models, self.episodes = dict(models), dict[str, Episode]()
        self._key = key_data(seed)
        self._loose = {name: Dialogues(x.engine.tokenizer) for name, x in models.items()}
        self._number = 0  # of calls without a seed or an episode
        self._thread = ThreadPoolExecutor(1, "engine")
        self._more: asyncio.Event | None = None

    @property
    def engines(self) -> list[Engine]:
        return list({id(served.engine): served.engine for served in self.models.values()}.values())

    @property
    def waiting(self) -> int:
        return sum(len(engine.waiting) for engine in self.engines)

    async def run(self) -> None:
        """Answers calls until it is cancelled."""
        self._more, loop = asyncio.Event(), asyncio.get_running_loop()
        while True:
            self._more.clear()
            if not any(engine.busy for engine in self.engines):
                await self._more.wait()
            for engine in self.engines:
                if engine.busy:
                    await loop.run_in_executor(self._thread, engine.step)

    def open_episode(self, name: str, episode: Episode) -> None:
        """Lets requests name an episode. Raises ValueError for a name that is taken."""
        if name in self.episodes:
            raise ValueError(f"There is an episode {name!r} already.")
        self.episodes[name] = episode

    def close_episode(self, name: str) -> dict[str, list[Row]]:
        """Forgets an episode: the rows of its seats."""
        return {seat: taken.dialogues.rows for seat, taken in self.episodes.pop(name).seats.items()}

    async def answer(
        self,
        request: Request,
        episode: str | None = None,
        seat: str | None = None,
        said: Callable[[int, Choice], object] = lambda index, choice: None,
        gone: Callable[[], bool] = lambda: False,
    ) -> list[Choice]:
        """The answers to a request; `said` gets the place of a choice and what there is of it, as it is said.

        Raises Refused for what cannot be answered.
        """
        try:
            return await self._answer(request, episode, seat, said, gone)
        except Refused as error:
            if episode in self.episodes:
                self.episodes[episode].refused = self.episodes[episode].refused or error.sentence
            raise

    async def _answer(
        self, request: Request, episode: str | None, seat: str | None, said: Callable, gone: Callable[[], bool]
    ) -> list[Choice]:
        if self._more is None:
            raise Refused("The service does not run yet.", 503)
        if self.waiting + request.n > MOST_WAITING:
            raise Refused(f"{self.waiting} calls wait already: ask again later.", 429, "rate_limit_exceeded")
        taken = None if episode is None else self._seat(episode, seat)
        if taken is not None:
            request = self._as_seated(request, taken)
        name = request.model
        if name not in self.models:
            known = ", ".join(sorted(self.models))
            raise Refused(f"There is no model {name!r}: possible are {known}.", 404, "model_not_found")
        engine, policy = self.models[name]
        dialogues = self._loose[name] if taken is None else taken.dialogues
        try:
            if request.text is None:
                opened = dialogues.open(policy, request.messages, request.tools)
            else:
                opened = dialogues.begin(policy, request.text)
        except ValueError as error:
            raise Refused(str(error)) from None
        budget = request.budget if request.budget is not None else min(BUDGET, engine.context - len(opened.tokens))
        turn, draws = 0, self._draws(request)
        if taken is not None:
            current = self.episodes[episode or ""]
            turn = current.answered
            draws = [(taken.key, (SAY, taken.episode, turn, taken.number))]
            current.answered += 1
            current.spoke.append(taken.number)
        loop, futures = asyncio.get_running_loop(), []
        calls = []
        for index, (key, event) in enumerate(draws):
            future = loop.create_future()
            futures.append(future)

            def tell(call: Call, answer: Answer, index: int = index) -> None:
                copied = replace(answer, tokens=list(answer.tokens), logp=list(answer.logp), top=list(answer.top))
                loop.call_soon_threadsafe(
                    lambda: said(index, self._choice(dialogues, request, opened.tokens, copied, ended=False))
                )

            def done(call: Call, answer: Answer, future: Any = future) -> None:
                loop.call_soon_threadsafe(lambda: future.cancelled() or future.set_result(answer))

            calls.append(
                Call(
                    tokens=opened.tokens,
                    key=key,
                    event=event,
                    budget=budget,
                    policy=policy,
                    sampling=request.sampling or PLAIN,
                    grammar=request.grammar,
                    top=request.top,
                    stop=_stopper(engine, request.stop) if request.stop else None,
                    said=tell,
                    done=done,
                    cancelled=gone,
                )
            )
        if why := engine.longest(calls[0]):
            raise Refused(why, code="context_length_exceeded")
        for call in calls:
            engine.submit(call)
        self._more.set()
        answers = await asyncio.gather(*futures)
        choices = []
        for answer in answers:
            choice = self._choice(dialogues, request, opened.tokens, answer, ended=True)
            if answer.tokens and answer.finish != "cancelled":
                dialogues.close(opened, choice.message, answer, turn, budget)
            choices.append(choice)
        return choices

    def _seat(self, episode: str, seat: str | None) -> Seat:
        if episode not in self.episodes:
            raise Refused(f"There is no episode {episode!r}.", 404, "episode_not_found")
        current = self.episodes[episode]
        if seat not in current.seats:
            raise Refused(f"The episode has no seat {seat!r}: possible are {', '.join(current.seats)}.", 404)
        if current.answered >= current.turns:
            raise Refused(f"The episode has had its {current.turns} answers: give the program more turns.")
        return current.seats[seat]

    def _as_seated(self, request: Request, seat: Seat) -> Request:
        """The request as the policy of a seat is trained: with its own sampling and at most its own budget."""
        if request.sampling is not None and request.sampling != seat.sampling:
            raise Refused(
                f"This seat is trained with {seat.sampling}, and the request asks for {request.sampling}: leave its "
                "settings out, or give the recipe the same."
            )
        if request.n != 1:
            raise Refused(f"A seat gives one answer at a time, and the request asks for {request.n}.")
        if request.grammar is not FREE:
            raise Refused("A seat that is trained speaks freely: leave out structured_outputs.")
        most = seat.budget - 1  # the last place holds only the end
        budget = most if request.budget is None else min(request.budget, most)
        return replace(request, model=seat.model, sampling=seat.sampling, budget=budget)

    def _draws(self, request: Request) -> list[tuple[Any, tuple[int, int, int, int]]]:
        """(key, event) of the answers to a request without an episode; equal seeds, equal answers."""
        if request.seed is None:
            self._number += 1
        key, number = (self._key, self._number) if request.seed is None else (key_data(request.seed), 0)
        return [(key, (SAY, number, 0, index)) for index in range(request.n)]

    def _choice(self, dialogues: Dialogues, request: Request, prompt: list[int], answer: Answer, ended: bool) -> Choice:
        text = text_of(dialogues.tokenizer, answer.tokens)
        if not ended:
            text = text.rstrip("\ufffd")  # the first bytes of a letter that is not whole yet
        at = min((at for at in (text.find(stop) for stop in request.stop) if at >= 0), default=len(text))
        message = spoken(text[:at], bool(request.tools) and ended)
        return Choice(message, prompt, answer)


def key_data(seed: int) -> tuple[int, int]:
    """The data of `jax.random.key(seed)`: the words of the number, without a program."""
    return seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF


def _stopper(engine: Engine, stops: Iterable[str]) -> Callable[[list[int]], int | None]:
    """The function that finds how many tokens of an answer it takes to say one of the texts."""
    spelled, wanted = engine.tokenizer.token_bytes, [stop.encode() for stop in stops]

    def kept(tokens: list[int]) -> int | None:
        said = b""
        for count, token in enumerate(tokens, 1):
            said += spelled[token] or b""
            if any(stop in said for stop in wanted):
                return count
        return None

    return kept
