"""Policies by name, and the seats of episodes: what a request asks for becomes calls of an engine, and answers.

The engines run in one thread of their own, so that requests are read while tokens are computed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from jaxmarl_llm.keys import SAY
from jaxmarl_llm.rollout.policy import PLAIN, Sampling
from jaxmarl_llm.serving.calls import FREE, Answer, Call
from jaxmarl_llm.serving.dialogues import Dialogues, Message, Opened, Row, is_known, read_answer, text_of
from jaxmarl_llm.serving.engine import Engine
from jaxmarl_llm.text.grammar import Grammar
from jaxmarl_llm.text.refusals import quote

MOST_WAITING = 1_000  # calls, beyond those that are answered
BUDGET = 256  # tokens of an answer, if a request does not say how many


class Refused(Exception):
    """A request that cannot be answered: a sentence, a status of HTTP, OpenAI's code of the error, and the field."""

    def __init__(self, sentence: str, status: int = 400, code: str | None = None, param: str | None = None):
        super().__init__(sentence)
        self.sentence, self.status, self.code, self.param = sentence, status, code, param


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

    def begin_turn(self, seat: int) -> int:
        """Counts an answer of a seat: the number of its turn."""
        self.answered += 1
        self.spoke.append(seat)
        return self.answered - 1


@dataclass(frozen=True)
class Request:
    """A question of a client. None stands for the policy's own setting."""

    messages: tuple[Message, ...]
    model: str = ""
    tools: tuple[dict, ...] = ()
    plain: str | None = None  # a text to continue, in place of messages
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
        self._loose = {name: Dialogues(served.engine.tokenizer) for name, served in models.items()}
        self._widest = {id(engine): _longest_token(engine) for engine in self.engines}
        self._number = 0  # counts the calls without a seed or an episode
        self._thread = ThreadPoolExecutor(1, "engine")
        self._more: asyncio.Event | None = None
        self.task: asyncio.Task[None] | None = None  # runs it; a cancelled one ends all calls with an error

    @property
    def engines(self) -> list[Engine]:
        return list({id(served.engine): served.engine for served in self.models.values()}.values())

    @property
    def waiting(self) -> int:
        return sum(len(engine.waiting) for engine in self.engines)

    async def run(self) -> None:
        """Answers calls until it is cancelled; calls that are not answered then end with an error."""
        self._more, loop = asyncio.Event(), asyncio.get_running_loop()
        try:
            while True:
                self._more.clear()
                if not any(engine.busy for engine in self.engines):
                    await self._more.wait()
                for engine in self.engines:
                    if engine.busy:
                        await loop.run_in_executor(self._thread, _step, engine)
        finally:
            self._more = None
            for engine in self.engines:  # behind the step that runs
                await loop.run_in_executor(self._thread, engine.abandon, "The service stopped.")

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
        said: Callable[[int, Choice], object] | None = None,
        gone: Callable[[], bool] = lambda: False,
    ) -> list[Choice]:
        """The answers to a request; `said` gets the place of a choice and its first part, as it is said.

        The calls end early if this is cancelled, or if `gone`, which the engine's thread asks, is true. Raises Refused
        for a request that cannot be answered.
        """
        if self._more is None:
            raise Refused("The service does not run.", 503)
        if self.waiting + request.n > MOST_WAITING:
            raise Refused(f"{self.waiting} calls wait already: ask again later.", 429, "rate_limit_exceeded")
        taken = None if episode is None else self._seat(episode, seat)
        if taken is not None:
            request = self._as_seated(request, taken)
        name = request.model
        if name not in self.models:
            known = ", ".join(sorted(self.models))
            raise Refused(f"There is no model {quote(name)}: possible are {known}.", 404, "model_not_found")
        engine, policy = self.models[name]
        dialogues = self._loose[name] if taken is None else taken.dialogues
        self._check_size(request, engine)
        try:
            if request.plain is not None:
                opened = dialogues.begin(policy, request.plain)
            elif is_known(engine.tokenizer, request.messages, request.tools):
                opened = dialogues.open(policy, request.messages, request.tools)
            else:  # a template is rendered with a limit on the memory of the process: not beside a run of the engine
                begin = partial(dialogues.open, policy, request.messages, request.tools)
                opened = await asyncio.get_running_loop().run_in_executor(self._thread, begin)
        except ValueError as error:
            raise Refused(str(error)) from None
        budget = request.budget
        if budget is None:
            budget = min(BUDGET if engine.tokenizer.end is not None else 1, engine.context - len(opened.tokens))
        draws = self._draws(request)
        if taken is not None:
            draws = [(taken.key, (SAY, taken.episode, self.episodes[episode or ""].answered, taken.number))]
        ask = partial(self._call, engine, dialogues, request, opened, policy, budget, said, gone)
        pairs = [ask(index, *draw) for index, draw in enumerate(draws)]
        try:
            why = engine.longest(pairs[0][0])
        except ValueError as error:  # a grammar that the tokens cannot write
            raise Refused(f"These tokens cannot write every choice: {error}.") from None
        if why:
            raise Refused(why, code="context_length_exceeded")
        turn = 0 if taken is None else self.episodes[episode or ""].begin_turn(taken.number)
        for call, _ in pairs:
            engine.submit(call)
        self._more.set()
        answers = await asyncio.gather(*(future for _, future in pairs))
        choices = []
        for answer in answers:
            if answer.error:
                raise Refused(answer.error, 503 if self._more is None else 500)
            choice = self._choice(dialogues, request, opened.tokens, answer, ended=True)
            if answer.tokens and answer.finish != "cancelled":
                dialogues.close(opened, choice.message, answer, turn, budget)
            choices.append(choice)
        return choices

    def _call(
        self,
        engine: Engine,
        dialogues: Dialogues,
        request: Request,
        opened: Opened,
        policy: int,
        budget: int,
        said: Callable | None,
        gone: Callable[[], bool],
        index: int,
        key: Any,
        event: tuple[int, int, int, int],
    ) -> tuple[Call, asyncio.Future[Answer]]:
        """(a call for answer `index`, its answer to come); a future that is cancelled frees the slot."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def tell(call: Call, answer: Answer) -> None:
            copied = replace(answer, tokens=list(answer.tokens), logp=list(answer.logp), top=list(answer.top))
            choose = partial(self._choice, dialogues, request, opened.tokens, copied, ended=False)
            loop.call_soon_threadsafe(lambda: said(index, choose()) if said and not future.cancelled() else None)

        def settle(call: Call, answer: Answer) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda: None if future.cancelled() else future.set_result(answer))

        call = Call(
            tokens=opened.tokens,
            key=key,
            event=event,
            budget=budget,
            policy=policy,
            sampling=request.sampling or PLAIN,
            grammar=request.grammar,
            top=request.top,
            stop=_stopper(engine, request.stop) if request.stop else None,
            said=tell if said else _say_nothing,
            done=settle,
            cancelled=lambda: future.cancelled() or gone(),
        )
        return call, future

    def _check_size(self, request: Request, engine: Engine) -> None:
        """Raises Refused for more text than the context can hold, before it is encoded."""
        texts = [*(message.full_text for message in request.messages), request.plain or ""]
        texts += [json.dumps(tool, ensure_ascii=False) for tool in request.tools]
        size = sum(len(text.encode(errors="replace")) for text in texts)
        if size > engine.context * self._widest[id(engine)]:
            sentence = f"The dialogue has {size} bytes, more than the {engine.context} tokens of the context can hold."
            raise Refused(sentence, code="context_length_exceeded")

    def seat(self, episode: str, seat: str | None) -> Seat:
        """A seat of an open episode. Raises Refused if there is none."""
        if episode not in self.episodes:
            raise Refused(f"There is no episode {quote(episode)}.", 404, "episode_not_found")
        seats = self.episodes[episode].seats
        if seat not in seats:
            raise Refused(f"The episode has no seat {quote(seat)}: possible are {', '.join(seats)}.", 404)
        return seats[seat]

    def _seat(self, episode: str, seat: str | None) -> Seat:
        taken, current = self.seat(episode, seat), self.episodes[episode]
        if current.answered >= current.turns:
            raise Refused(f"The episode has had its {current.turns} answers: give the program more turns.")
        return taken

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
        longest = seat.budget - 1  # the last place holds only the end
        budget = longest if request.budget is None else min(request.budget, longest)
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
        message = read_answer(text[:at], bool(request.tools) and ended)
        return Choice(message, prompt, answer)


@contextlib.asynccontextmanager
async def running(service: Service) -> AsyncIterator[Service]:
    """A context in which the service answers."""
    task = service.task = asyncio.create_task(service.run())
    await asyncio.sleep(0)  # it begins
    try:
        yield service
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def key_data(seed: int) -> tuple[int, int]:
    """The data of `jax.random.key(seed)` for seeds below 2^32, without a program; other seeds have other keys."""
    return seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF


def _step(engine: Engine) -> None:
    """A round of an engine. A call that makes it fail ends all of its calls, and the engine goes on."""
    try:
        engine.step()
    except Exception:
        logging.getLogger(__name__).exception("The engine failed.")
        engine.abandon("The engine failed, and the reason is in the log of the server.")


def _say_nothing(call: Call, answer: Answer) -> None:
    pass


def _longest_token(engine: Engine) -> int:
    """The most bytes of a token."""
    return max(len(spelled or b"") for spelled in engine.tokenizer.token_bytes)


def _stopper(engine: Engine, stops: Sequence[str]) -> Callable[[list[int]], int | None]:
    """A function that finds how many tokens of one answer it takes to say one of the texts."""
    spelled, wanted = engine.tokenizer.token_bytes, [stop.encode() for stop in stops]
    longest = max(map(len, wanted))
    tail, count = b"", 0  # the end of the text so far, and its number of tokens

    def count_kept(tokens: list[int]) -> int | None:
        nonlocal tail, count
        for token in tokens[count:]:
            tail, count = tail[max(len(tail) - longest + 1, 0) :] + (spelled[token] or b""), count + 1
            if any(stop in tail for stop in wanted):
                return count
        return None

    return count_kept
