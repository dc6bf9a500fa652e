"""Wrappers of games: another text format for the answers, and a rule for illegal answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.base import Environment, Fields, View
from jaxmarl_llm.environments.check import check_object
from jaxmarl_llm.environments.extras import Extras, clear_measures
from jaxmarl_llm.text import grammar
from jaxmarl_llm.text.grammar import Choice, Free, Grammar

FORMATS = {  # name: the texts before and after an answer
    "brackets": ("[", "]"),
    "boxed": ("\\boxed{[", "]}"),
    "answer": ("<answer>", "</answer>"),
    "action": ("<action>", "</action>"),
    "tag": ("<", ">"),
}


@dataclass(frozen=True)
class Around:
    """A wrapper that passes everything on to the inner game."""

    game: Environment

    def __post_init__(self):
        check_object(self.game)

    @property
    def agents(self) -> int:
        return self.game.agents

    @property
    def turns(self) -> int:
        return self.game.turns

    @property
    def actions(self) -> int:
        return self.game.actions

    @property
    def roles(self) -> tuple[str, ...]:
        return self.game.roles

    @property
    def components(self) -> tuple[str, ...]:
        return self.game.components

    @property
    def accepts_illegal(self) -> bool:
        return Extras(self.game).accepts_illegal

    @property
    def measures(self) -> tuple[str, ...]:
        return Extras(self.game).measures

    @property
    def moves(self) -> tuple[str, ...]:
        """The names of the inner game's actions, unless the wrapper has other actions."""
        return Extras(self.game).moves if self.actions == self.game.actions else ()

    @property
    def right_answer(self) -> Callable[[Any], str] | None:
        return self._about_inside(Extras(self.game).right_answer)

    @property
    def note(self) -> Callable[[Any], str] | None:
        return self._about_inside(Extras(self.game).note)

    def _about_inside(self, tell: Callable[[Any], str] | None) -> Callable[[Any], str] | None:
        return None if tell is None else lambda state: tell(self.inside(state))

    @property
    def rules(self) -> Fields:
        return self.game.rules

    @property
    def observation(self) -> Fields:
        return self.game.observation

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return self.game.grammars

    @property
    def scripts(self) -> Mapping[str, Callable]:
        """The scripts of the inner game, which read its state."""

        def play_inside(play: Callable) -> Callable:
            return lambda state, seat, key: play(self.inside(state), seat, key)

        return {name: play_inside(play) for name, play in self.game.scripts.items()}

    @property
    def seat_turns(self) -> int:
        return Extras(self.game).seat_turns

    @property
    def voices(self) -> int:
        return Extras(self.game).voices

    @property
    def alternating(self) -> bool:
        return Extras(self.game).alternating

    @property
    def group_period(self) -> int:
        return Extras(self.game).group_period

    def inside(self, state: Any) -> Any:
        """The state of the inner game: the wrapper's state itself, unless the wrapper adds a state of its own."""
        return state

    def reset(self, key: jax.Array, group: jax.Array, *given: Any) -> tuple[Any, View]:
        return self.game.reset(key, group, *given)

    def prompt(self, state: Any) -> jax.Array:
        return self.game.prompt(self.inside(state))

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, View, jax.Array]:
        return self.game.step(state, action, key)


@dataclass(frozen=True)
class Formatted(Around):
    """The same game with another answer format: a `style` of FORMATS, or a pair (before, after).

    With `think`, private free text between <think> and </think> may come first; it cannot hold "<". Messages (grammars
    without a Choice) stay as they are.
    Raises ValueError for an unknown style or a style that is empty on both sides.
    """

    style: str | tuple[str, str] = "brackets"
    think: bool = False

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.style, str) and self.style not in FORMATS:
            raise ValueError(f"style must be one of {', '.join(FORMATS)} or two texts, got {self.style!r}.")
        if not (any(self.sides) or self.think):
            raise ValueError("A format needs a text before or after the answer, or thinking: both are empty.")

    @property
    def sides(self) -> tuple[str, str]:
        return FORMATS[self.style] if isinstance(self.style, str) else self.style

    @property
    def rules(self) -> Fields:
        before, after = self.sides
        first = " Think between <think> and </think> first." if self.think else ""
        return (*self.game.rules, (f"{first} Write your answer as {before}answer{after}.",))

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        before, after = (tuple(grammar.Literal(side) for side in (text,) if side) for text in self.sides)
        thought: Grammar = ()
        if self.think:
            thought = (grammar.Literal("<think>"), Free(b"<", private=True), grammar.Literal("</think>"))

        def dress(parts: Grammar) -> Grammar:
            if not any(isinstance(part, Choice) for part in parts):
                return parts
            inner: list[Grammar] = [(*before, part, *after) if isinstance(part, Choice) else (part,) for part in parts]
            return sum(inner, thought)

        return tuple(dress(parts) for parts in self.game.grammars)

    @property
    def initial_states(self) -> Any:  # if the inner game has them, both trees are the same
        return self.game.initial_states  # type: ignore[attr-defined]

    @property
    def view(self) -> Any:
        return self.game.view  # type: ignore[attr-defined]

    def prompt(self, state: Any) -> jax.Array:
        told = self.game.prompt(state)
        return jnp.concatenate([told, jnp.zeros((self.agents, 1), told.dtype)], 1)


class Judged(struct.PyTreeNode):
    """The state of a game in which a seat may have to answer again."""

    game: Any
    view: View  # the view of the inner game before its next turn
    held: jax.Array  # int32 [A], the legal actions of this turn so far
    waiting: jax.Array  # bool [A], the seat must still answer
    warned: jax.Array  # bool [A], the seat was asked again in this turn


@dataclass(frozen=True)
class Illegal(Around):
    """The same game for players whose answers may be illegal: unparsable, against the rules, or longer than the budget.

    Masking illegal answers needs no wrapper: a policy set with `masked` does it. `then` names the consequence of an
    illegal answer:

    - "end": the game ends.
    - "retry": the offenders are asked once more, and the others' answers are kept. A second offence in the same turn
      ends the game.

    At that end the view is `terminated`, and the game itself pays nothing in the turn. The last component, "illegal",
    pays `penalty` to each offender and `compensation` to each other seat. SPIRAL has -1.5 and 0.5, MARS -10 and 0,
    TextArena -1 and 1 with one retry. No seat hears any part of an illegal answer.
    """

    then: Literal["end", "retry"] = "end"
    penalty: float = -1.0
    compensation: float = 0.0

    @property
    def accepts_illegal(self) -> bool:  # actions may be -1
        return True

    def __post_init__(self):
        super().__post_init__()
        if self.then not in ("end", "retry"):
            raise ValueError(f"then must be end or retry, got {self.then!r}.")
        if not (math.isfinite(self.penalty) and math.isfinite(self.compensation)):
            raise ValueError(f"penalty and compensation must be finite, got {self.penalty} and {self.compensation}.")

    @property
    def turns(self) -> int:
        return self.game.turns * self._answers

    @property
    def seat_turns(self) -> int:
        return Extras(self.game).seat_turns * self._answers

    @property
    def alternating(self) -> bool:  # episodes of a group may ask again at different turns
        return super().alternating and self.then == "end"

    @property
    def _answers(self) -> int:
        return 2 if self.then == "retry" else 1

    @property
    def components(self) -> tuple[str, ...]:
        return (*self.game.components, "illegal")

    @property
    def observation(self) -> Fields:
        return (*self.game.observation, ("That is not a legal answer. Try again.",))

    def inside(self, state: Judged) -> Any:
        return state.game

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[Judged, View]:
        game, view = self.game.reset(key, group)
        return self._fresh(game, view), self._extend(view)

    def step(self, state: Judged, action: jax.Array, key: jax.Array) -> tuple[Judged, View, jax.Array]:
        known = jnp.clip(action, 0, self.actions - 1)
        legal = (action == known) & jnp.take_along_axis(state.view.legal, known[:, None], 1)[:, 0]
        offends = state.waiting & ~legal
        held = jnp.where(state.waiting & legal, known, state.held)
        again = offends.any() & ~(offends & state.warned).any() & (self.then == "retry")
        ended = offends.any() & ~again

        game, view, reward = self.game.step(state.game, held, key)
        played = self._fresh(game, view), self._extend(view)
        asked = state.replace(held=held, waiting=offends, warned=state.warned | offends)
        asking = self._extend(clear_measures(state.view))
        silent = jnp.full_like(asking.phrases, -1).at[:, -1].set(jnp.where(offends, 0, -1))
        asking = asking.replace(phrases=silent, acting=offends, hears=_nobody(asking.hears))
        over = state.replace(waiting=jnp.zeros_like(state.waiting))
        closing = asking.replace(
            phrases=jnp.full_like(silent, -1), acting=over.waiting, terminated=jnp.ones_like(view.terminated)
        )
        pick = lambda a, b, c: jnp.where(ended, a, jnp.where(again, b, c))
        state, view = jax.tree.map(pick, (over, closing), (asked, asking), played)
        fine = jnp.where(ended, jnp.where(offends, self.penalty, self.compensation), 0).astype(reward.dtype)
        reward = jnp.concatenate([jnp.where(ended | again, 0, reward), fine[:, None]], 1)
        return state, view, reward

    def _fresh(self, game: Any, view: View) -> Judged:
        nobody = jnp.zeros((self.agents,), bool)
        return Judged(game, view, jnp.zeros((self.agents,), jnp.int32), view.acting, nobody)

    def _extend(self, view: View) -> View:
        nothing = jnp.full((self.agents, 1), -1, view.phrases.dtype)
        return view.replace(phrases=jnp.concatenate([view.phrases, nothing], 1))


def _nobody(hears: jax.Array | None) -> jax.Array | None:
    return None if hears is None else jnp.zeros_like(hears)
