"""Wrappers that tell a seat facts that it would have to infer: a good answer, the next subgoal, or the state. They tell
them always, or in the games that training chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.text.grammar import Choice

Tells = Literal["plan", "subgoal", "state"]


@dataclass(frozen=True)
class Oracle(Around):
    """The same game; before each answer a seat is told a plan, a subgoal or the state.

    - `tells="plan"`: the answer that the script `script` would give in its place.
    - `tells="subgoal"`: the game's `right_subgoal(state)` by its name in `subgoals`, without the way to it.
    - `tells="state"`: the game's `facts`, further fields of the observation. The game's `told_facts(state)`, int32 [K],
      gives their phrases, -1: nothing.

    Rules and rewards stay the same, so the gain in reward measures a player's lack of planning or of state tracking.
    After LUMINA (https://arxiv.org/abs/2601.16649).
    Raises ValueError for another value of `tells`, a script that the game lacks, or a plan in a game whose answers are
    free words. Raises it also if facts or a subgoal are to be told and the game has none.
    """

    tells: Tells = "plan"
    script: str = "correct"

    def __post_init__(self):
        super().__post_init__()
        name = type(self.game).__name__
        if self.tells not in get_args(Tells):
            raise ValueError(f"tells must be one of {', '.join(get_args(Tells))}, got {self.tells!r}.")
        if self.tells == "plan" and self.script not in self.game.scripts:
            raise ValueError(f"{name} has no script {self.script!r}: its scripts are {', '.join(self.game.scripts)}.")
        if self.tells == "plan" and not all(self._options):
            raise ValueError(f"A plan is an answer to be chosen, and some answers of {name} are free words.")
        if self.tells == "state" and not hasattr(self.game, "told_facts"):
            raise ValueError(f"{name} does not say its state: it has no facts.")
        if self.tells == "subgoal" and not hasattr(self.game, "right_subgoal"):
            raise ValueError(f"{name} does not say its next subgoal: it has no subgoals.")

    @property
    def _options(self) -> list[tuple[tuple[int, str], ...]]:
        """The options of each grammar's choice."""
        return [next((part.options for part in g if isinstance(part, Choice)), ()) for g in self.game.grammars]

    @property
    def fields(self) -> Fields:
        """The fields in which the oracle speaks, the last of the observation."""
        if self.tells == "state":
            return self.game.facts  # type: ignore[attr-defined]
        if self.tells == "subgoal":
            return (tuple(f" A guide would pursue {name}." for name in self.game.subgoals),)  # type: ignore[attr-defined]
        return tuple(tuple(f" A guide would answer {text}." for _, text in options) for options in self._options)

    @property
    def observation(self) -> Fields:
        return (*self.game.observation, *self.fields)

    def reset(self, key: jax.Array, group: jax.Array, *given: Any) -> tuple[Any, View]:
        state, view = self.game.reset(key, group, *given)
        return state, self._tell(state, view)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, View, jax.Array]:
        state, view, reward = self.game.step(state, action, key)
        return state, self._tell(state, view), reward

    @property
    def initial_states(self) -> Any:  # if the inner game has them, both trees are the same
        return self.game.initial_states  # type: ignore[attr-defined]

    def view(self, state: Any) -> View:
        return self._tell(state, self.game.view(state))  # type: ignore[attr-defined]

    def _tell(self, state: Any, view: View) -> View:
        return view.replace(phrases=jnp.concatenate([view.phrases, self.find_phrases(state, view)], 1))

    def find_phrases(self, state: Any, view: View) -> jax.Array:
        """The phrases [A, fields] that seats are told before the answers of `view`, -1: nothing."""
        if self.tells == "plan":
            more = jnp.stack([self._plan(state, view, seat) for seat in range(self.agents)])
        else:
            state_of = "told_facts" if self.tells == "state" else "right_subgoal"
            facts = jnp.atleast_1d(getattr(self.game, state_of)(state))
            more = jnp.broadcast_to(facts[None], (self.agents, *facts.shape))
        return jnp.where(view.acting[:, None], more, -1).astype(view.phrases.dtype)

    def _plan(self, state: Any, view: View, seat: int) -> jax.Array:
        """int32 [grammars]: the phrase in the field of the seat's grammar, -1 in the fields of the others."""
        action = self.game.scripts[self.script](state, jnp.int32(seat), jax.random.key(0))
        phrase = []
        for number, options in enumerate(self._options):
            same = jnp.array([option for option, _ in options]) == action
            here = (view.grammar[seat] == number) & same.any()
            phrase.append(jnp.where(here, same.argmax(), -1))
        return jnp.stack(phrase)


class Switch(NamedTuple):
    """The deal of a `Switched` game, arranged by training (`Recipe.arrange`)."""

    on: jax.Array  # bool [oracles]: this oracle speaks
    deal: Any = None  # the deal of the inner game


class SwitchedState(struct.PyTreeNode):
    game: Any
    on: jax.Array  # bool [oracles]


@dataclass(frozen=True)
class Switched(Around):
    """The same game with oracles that training switches on and off by deal: a `Switch` says which ones speak in a game.

    `oracles` names what each of them tells, as `Oracle.tells`. Without a deal all are silent. A seat whose oracles are
    silent reads the rows of the game without them, token for token, so one policy can be judged told and untold.
    Raises ValueError without oracles, for the same oracle twice, and as `Oracle` does.
    """

    oracles: tuple[Tells, ...]

    def __post_init__(self):
        super().__post_init__()
        if not self.oracles or len({*self.oracles}) != len(self.oracles):
            raise ValueError(f"Switched needs different oracles, at least one, got {self.oracles}.")
        _ = self._oracles

    @property
    def _oracles(self) -> tuple[Oracle, ...]:
        return tuple(Oracle(self.game, tells) for tells in self.oracles)

    @property
    def observation(self) -> Fields:
        return (*self.game.observation, *(field for oracle in self._oracles for field in oracle.fields))

    def inside(self, state: SwitchedState) -> Any:
        return state.game

    def reset(self, key: jax.Array, group: jax.Array, given: Switch | None = None) -> tuple[SwitchedState, View]:
        silent = Switch(jnp.zeros(len(self.oracles), bool))
        on, deal = silent if given is None else given
        game, view = self.game.reset(key, group, *(() if deal is None else (deal,)))
        state = SwitchedState(game, jnp.broadcast_to(on, len(self.oracles)))
        return state, self._tell(state, view)

    def step(self, state: SwitchedState, action: jax.Array, key: jax.Array) -> tuple[SwitchedState, View, jax.Array]:
        game, view, reward = self.game.step(state.game, action, key)
        state = state.replace(game=game)
        return state, self._tell(state, view), reward

    def _tell(self, state: SwitchedState, view: View) -> View:
        told = [
            jnp.where(on, oracle.find_phrases(state.game, view), -1)
            for on, oracle in zip(state.on, self._oracles, strict=True)
        ]
        return view.replace(phrases=jnp.concatenate([view.phrases, *told], 1))
