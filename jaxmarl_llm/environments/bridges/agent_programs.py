"""Agent programs: an async function that speaks with policies, through OpenAI clients or in plain calls, as a game.

The program decides who is asked, in which order, and what is paid. Every token that policies read and say is recorded,
so all losses and estimators apply.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxmarl_llm.environments.bridges.python_games import HostGame

Pay = float | Sequence[float]  # at a seat's last answer, or for each of its answers


class AgentEpisode:
    """One episode of an agent program, as the program sees it.

    `seed` is the same for all episodes of a group. `rewards` {seat: Pay} is paid if the program fails. `client(seat)`
    is an `openai.AsyncOpenAI` that speaks for the seat; the name in `model=` is ignored.
    """

    def __init__(
        self,
        seed: int,
        seats: tuple[str, ...],
        say: Callable[[str, Sequence[Mapping[str, Any]], Mapping[str, Any]], Awaitable[str]],
        client: Callable[[str], Any],
    ):
        self.seed, self.seats, self.rewards = seed, seats, dict[str, Pay]()
        self._say, self._client, self._clients = say, client, dict[str, Any]()

    async def say(self, seat: str, messages: Sequence[Mapping[str, Any]] | str, **settings: Any) -> str:
        """The answer of the seat's policy to messages like OpenAI's, or to one message of a user.

        `settings` are `max_tokens` and `stop`. It is `client(seat)` without the client's cost, a millisecond or two.
        """
        asked = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        if not isinstance(asked, Sequence) or not all(isinstance(message, Mapping) for message in asked):
            raise TypeError(f"messages is a text, or a list of messages as OpenAI's, got {messages!r}.")
        return await self._say(seat, asked, settings)

    def client(self, seat: str) -> Any:
        """An `openai.AsyncOpenAI` for a seat. Raises ValueError for an unknown seat, and without the package."""
        if seat not in self.seats:
            raise ValueError(f"There is no seat {seat!r}: possible are {', '.join(self.seats)}.")
        if seat not in self._clients:
            self._clients[seat] = self._client(seat)
        return self._clients[seat]


Play = Callable[[AgentEpisode], Awaitable[Pay | Mapping[str, Pay]]]


@dataclass(frozen=True, eq=False)
class AgentProgram(HostGame):
    """An agent program as a recipe's game: `Recipe(AgentProgram(play, seats=("planner", "solver")), ...)`.

    `play(episode)` returns {seat: reward}, or one reward for all seats. A seat's reward is a number, paid at its last
    answer, or a list with a number for each of its answers. Each answer is a turn; `turns` bounds those of an episode.
    Answers have at most `Recipe.budget` tokens. Many episodes play at once, `at_once` at most, and their answers are
    computed together in `slots` slots of at most `context` tokens.

    These end an episode as truncated: an exception (a request that cannot be answered raises one), `timeout` seconds, a
    seat that never spoke, rewards that leave a seat out. Its reward is 0 or `episode.rewards`. It is counted, and the
    others go on.
    """

    play: Play
    seats: tuple[str, ...]
    turns: int = 8
    context: int | None = None
    at_once: int = 64
    slots: int = 16
    timeout: float = 600.0
    scripts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.play) or isinstance(self.play, type) or not is_async(self.play):
            raise ValueError(f"play is an async function, `async def play(episode)`, got {self.play!r}.")
        named = isinstance(self.seats, tuple) and all(isinstance(seat, str) and seat for seat in self.seats)
        if not named or len(set(self.seats)) != len(self.seats) or not self.seats:
            raise ValueError(f"seats are different names in a tuple, ('planner', 'solver'), got {self.seats!r}.")
        if wrong := [seat for seat in self.seats if "/" in seat]:
            raise ValueError(f"A seat is part of an address and has no slash: {wrong[0]!r}.")
        for name in ("turns", "at_once", "slots"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} is a whole number from 1 on, got {getattr(self, name)!r}.")
        if self.turns < len(self.seats):
            raise ValueError(
                f"Each of {len(self.seats)} seats speaks: turns must be at least as many, got {self.turns}."
            )
        if self.scripts:
            raise ValueError("An agent program has no scripted players: the program itself speaks for others.")

    @property
    def agents(self) -> int:
        """The number of seats."""
        return len(self.seats)


def is_async(function: Callable) -> bool:
    """True for an async function, an object with an async `__call__`, and wraps or partials of them."""
    function = inspect.unwrap(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def paid_by_turn(
    paid: Any, seats: Sequence[str], spoke: Sequence[int], *, whole: bool = True
) -> dict[tuple[int, int], Any]:
    """{(turn, seat): what is paid} for a program's rewards; `spoke` holds the seat of every turn.

    A seat that never spoke is paid nothing. Raises ValueError for an unknown seat, for rewards that are no numbers or
    not as many as answers and, if the rewards have to be `whole`, for a missing seat.
    """
    given = dict(paid) if isinstance(paid, Mapping) else dict.fromkeys(seats, paid)
    if unknown := [seat for seat in given if seat not in seats]:
        raise ValueError(f"It pays {unknown[0]!r}, and the seats are {', '.join(seats)}.")
    if whole and (missing := [seat for seat in seats if seat not in given]):
        raise ValueError(f"It gives no reward to seat {missing[0]!r}: give every seat one, 0 too.")
    result: dict[tuple[int, int], Any] = {}
    for name, reward in given.items():
        seat = list(seats).index(name)
        turns = [turn for turn, speaker in enumerate(spoke) if speaker == seat]
        if reward is None or isinstance(reward, str):
            raise ValueError(f"The reward of seat {name!r} is {reward!r}, which is no number.")
        if isinstance(reward, Sequence):
            if len(reward) != len(turns):
                raise ValueError(f"The rewards of seat {name!r} are {len(reward)} in number, its answers {len(turns)}.")
            result |= {(turn, seat): number for turn, number in zip(turns, reward, strict=True)}
        elif turns:
            result[turns[-1], seat] = reward
    return result
