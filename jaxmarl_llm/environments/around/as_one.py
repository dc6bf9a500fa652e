"""A team game as a game of one seat, which plays all roles in turn, and recorded answers as a script of any game."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import Fields, MessageFrom, View
from jaxmarl_llm.environments.helpers import Script
from jaxmarl_llm.text.grammar import Grammar


class Seated(struct.PyTreeNode):
    game: Any
    seat: jax.Array  # int32, the inner seat that answers next


@dataclass(frozen=True)
class AsOne(Around):
    """The same game for one seat, which answers for each seat of the team in turn.

    Its single row holds all texts that the seats were told, each after the number of its seat, and all answers. A text
    of the rules that several seats are told stands once. So the seat remembers in every role all that it was told in
    the others: facts that were hidden from a role are hidden no more. It is paid the mean over the team's seats, of
    components as of measures, so that `mean_return` has the same value for both games.

    With `listening` a row also has the texts that seats are told while another seat answers. Without it they are lost,
    and rows have room for the texts of acting seats alone.

    The inner game asks one seat at a time; `OneByOne` makes such a game of simultaneous moves. Raises ValueError for a
    game whose first turn asks several seats, and for a game in which seats hear free words.
    """

    listening: bool = True

    agents = 1  # type: ignore[assignment]
    voices = 1  # type: ignore[assignment]
    alternating = True  # type: ignore[assignment]

    def __post_init__(self):
        super().__post_init__()
        if any(isinstance(field, MessageFrom) for field in self.game.observation):
            raise ValueError(
                "A seat does not hear its own words: AsOne is for games in which seats hear no free words."
            )
        with jax.ensure_compile_time_eval():
            asked = int(self.game.reset(jax.random.key(0), jnp.int32(0))[1].acting.sum())
        if asked > 1:
            raise ValueError(
                f"The first turn asks {asked} seats at once: AsOne(OneByOne(game)) asks one after another."
            )

    @property
    def seat_turns(self) -> int:
        return self.turns

    @property
    def rules(self) -> Fields:
        seats = self.game.agents
        numbers = ", ".join(str(seat + 1) for seat in range(seats))
        first = f"You answer for the seats {numbers}, and get the mean of their points."
        told = (((f" Seat {seat + 1} is told: ",), *self.game.rules) for seat in range(seats))
        return ((first,), *(field for fields in told for field in fields))

    @property
    def observation(self) -> Fields:
        names = tuple(f"Seat {seat + 1}" for seat in range(self.game.agents))
        label = lambda name: (f"{name}: ", f"{name}.", f" {name}: ", f" {name}.")
        heard = ((label(name), *self.game.observation) for name in names if self.listening)
        asked = tuple(text for name in names for text in label(name))
        return (*(field for fields in heard for field in fields), asked, *self.game.observation)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return self.game.grammars

    @property
    def scripts(self) -> Mapping[str, Script]:
        """The scripts of the inner game, each in the seat that answers."""

        def play_all(play: Callable) -> Script:
            return lambda state, seat, key: play(state.game, state.seat, key)

        return {name: play_all(play) for name, play in self.game.scripts.items()}

    def inside(self, state: Seated) -> Any:
        return state.game

    @property
    def initial_states(self) -> Callable:
        deals, see = self.game.initial_states, self.game.view  # type: ignore[attr-defined]

        def all_states() -> tuple[Seated, Any]:
            states, chance = deals()
            return jax.vmap(lambda state: _with_seat(state, see(state)))(states), chance

        return all_states

    @property
    def view(self) -> Callable[[Seated], View]:
        see = self.game.view  # type: ignore[attr-defined]
        return lambda state: self._tell(see(state.game))

    def reset(self, key: jax.Array, group: jax.Array, *given: Any) -> tuple[Seated, View]:
        state, view = self.game.reset(key, group, *given)
        return _with_seat(state, view), self._tell(view)

    def prompt(self, state: Seated) -> jax.Array:
        told = self.game.prompt(state.game)
        earlier = jnp.tril(jnp.ones((self.game.agents,) * 2, bool), -1)
        again = ((told[:, None] == told[None]) & earlier[..., None]).any(1)
        told = jnp.where(again, -1, told)
        named = jnp.where((told >= 0).any(1), 0, -1)
        row = jnp.concatenate([named[:, None].astype(told.dtype), told], 1).ravel()
        return jnp.concatenate([jnp.zeros(1, told.dtype), row])[None]

    def step(self, state: Seated, action: jax.Array, key: jax.Array) -> tuple[Seated, View, jax.Array]:
        answers = jnp.broadcast_to(action, (self.game.agents,))  # a game ignores the entries of seats that do not act
        game, view, reward = self.game.step(state.game, answers, key)
        return _with_seat(game, view), self._tell(view), reward.mean(0, keepdims=True)

    def _tell(self, view: View) -> View:
        """The view of the one seat."""
        seat, told = _next_seat(view), view.phrases
        speaks, before, row = (told >= 0).any(1), jnp.bool_(False), []
        if self.listening:
            for other in range(self.game.agents):
                hears = speaks[other] & (seat != other)
                row += [jnp.where(hears, 2 * before, -1)[None], jnp.where(hears, told[other], -1)]
                before |= hears
        label = 4 * seat + 2 * before + ~speaks[seat]
        label = jnp.where(view.acting[seat] | speaks[seat], label, -1)
        row += [label[None], told[seat]]
        pick = lambda x: x[seat][None]
        return View(
            phrases=jnp.concatenate(row)[None].astype(jnp.int32),
            acting=pick(view.acting),
            role=pick(view.role),
            grammar=pick(view.grammar),
            legal=pick(view.legal),
            terminated=view.terminated,
            truncated=view.truncated,
            measured=None if view.measured is None else view.measured.mean(0, keepdims=True),
        )


def _next_seat(view: View) -> jax.Array:
    return jnp.argmax(view.acting).astype(jnp.int32)


def _with_seat(state: Any, view: View) -> Seated:
    return Seated(state, _next_seat(view))


class Replay(struct.PyTreeNode):
    game: Any
    answers: jax.Array  # int32 [T]
    turn: jax.Array  # int32


@dataclass(frozen=True)
class Replayed(Around):
    """The same game, whose script `recorded` gives the answers of the deal, int32 [T], one a turn.

    With the keys of the rollout in which the answers were given, and as many groups, the same game is dealt and played
    again. Through `AsOne(game)` the dialogues of a team become rows of one policy. Raises ValueError without a deal.
    """

    @property
    def scripts(self) -> Mapping[str, Script]:
        return {**super().scripts, "recorded": lambda state, seat, key: state.answers[state.turn]}

    def inside(self, state: Replay) -> Any:
        return state.game

    def reset(self, key: jax.Array, group: jax.Array, *given: Any) -> tuple[Replay, View]:
        if len(given) != 1:
            raise ValueError("Replayed plays recorded answers: they are its deal, the third argument of reset.")
        game, view = self.game.reset(key, group)
        return Replay(game, given[0].astype(jnp.int32), jnp.int32(0)), view

    def step(self, state: Replay, action: jax.Array, key: jax.Array) -> tuple[Replay, View, jax.Array]:
        game, view, reward = self.game.step(state.game, action, key)
        return Replay(game, state.answers, state.turn + 1), view, reward
