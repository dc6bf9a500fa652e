"""A wrapper that tells a seat facts that it would have to infer: a good answer, or the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.text.grammar import Choice


@dataclass(frozen=True)
class Oracle(Around):
    """The same game; before each answer a seat is told a plan or the state.

    - `tells="plan"`: the answer that the script `script` would give in its place.
    - `tells="state"`: the game's `facts`, further fields of the observation. The game's `told_facts(state)`, int32 [K],
      gives their phrases, -1: nothing.

    Rules and rewards stay the same, so the gain in reward measures a player's lack of planning or of state tracking.
    After LUMINA (https://arxiv.org/abs/2601.16649).
    Raises ValueError for another value of `tells`, a script that the game lacks, or a plan in a game whose answers are
    free words. Raises it also if facts are to be told and the game has none.
    """

    tells: Literal["plan", "state"] = "plan"
    script: str = "correct"

    def __post_init__(self):
        super().__post_init__()
        name = type(self.game).__name__
        if self.tells not in ("plan", "state"):
            raise ValueError(f"tells must be plan or state, got {self.tells!r}.")
        if self.tells == "plan" and self.script not in self.game.scripts:
            raise ValueError(f"{name} has no script {self.script!r}: its scripts are {', '.join(self.game.scripts)}.")
        if self.tells == "plan" and not all(self._options):
            raise ValueError(f"A plan is an answer to be chosen, and some answers of {name} are free words.")
        if self.tells == "state" and not hasattr(self.game, "told_facts"):
            raise ValueError(f"{name} does not say its state: it has no facts.")

    @property
    def _options(self) -> list[tuple[tuple[int, str], ...]]:
        """The options of each grammar's choice."""
        return [next((part.options for part in g if isinstance(part, Choice)), ()) for g in self.game.grammars]

    @property
    def observation(self) -> Fields:
        if self.tells == "state":
            return (*self.game.observation, *self.game.facts)  # type: ignore[attr-defined]
        said = [tuple(f" A guide would answer {text}." for _, text in options) for options in self._options]
        return (*self.game.observation, *said)

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
        if self.tells == "state":
            facts = self.game.told_facts(state)  # type: ignore[attr-defined]
            more = jnp.broadcast_to(facts[None], (self.agents, *facts.shape))
        else:
            more = jnp.stack([self._plan(state, view, seat) for seat in range(self.agents)])
        more = jnp.where(view.acting[:, None], more, -1).astype(view.phrases.dtype)
        return view.replace(phrases=jnp.concatenate([view.phrases, more], 1))

    def _plan(self, state: Any, view: View, seat: int) -> jax.Array:
        """int32 [grammars]: the phrase in the field of the seat's grammar, -1 in the fields of the others."""
        action = self.game.scripts[self.script](state, jnp.int32(seat), jax.random.key(0))
        phrase = []
        for number, options in enumerate(self._options):
            same = jnp.array([option for option, _ in options]) == action
            here = (view.grammar[seat] == number) & same.any()
            phrase.append(jnp.where(here, same.argmax(), -1))
        return jnp.stack(phrase)
