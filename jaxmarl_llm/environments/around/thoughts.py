"""A wrapper in which a seat writes private letters before each answer: thoughts whose length a tiny policy chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import Fields, View, phrases
from jaxmarl_llm.environments.helpers import at_least, random_player
from jaxmarl_llm.text.grammar import Choice, Grammar, options_of
from jaxmarl_llm.text.tokenizers import SymbolTokenizer


@dataclass(frozen=True)
class Thoughts(Around):
    """The same game; before each answer a seat may write `letter` up to `most` times, e.g. ". . > bet" with two
    letters.

    `mark` ends a thought; if it is empty, the answer ends it. No other seat hears a thought, it pays nothing, and it
    carries no information but its length. Its seat reads it again in later turns. Action k N + a is answer a of the
    inner game's N actions after k letters, so a game with an exact tree keeps one. The script `random` draws the length
    uniformly as well; other scripts write no letters.
    Raises ValueError for a game with a grammar other than a single choice, and if the text after a thought may begin
    with the letter.
    """

    most: int = 8
    letter: str = ". "
    mark: str = "> "

    def __post_init__(self):
        super().__post_init__()
        at_least(1, most=self.most)
        for grammar in self.game.grammars:
            if len(grammar) != 1 or not isinstance(grammar[0], Choice):
                raise ValueError(f"Letters stand before answers that are one Choice, not before {grammar!r}.")
        for text in self._answers:
            if not self.letter or f"{self.mark}{text}".startswith(self.letter):
                raise ValueError(f"{self.mark + text!r} follows a thought and begins with the letter {self.letter!r}.")

    @property
    def actions(self) -> int:
        return (self.most + 1) * self.game.actions

    @property
    def rules(self) -> Fields:
        then = f", then {self.mark.strip()!r}" if self.mark else ""
        text = f" Before an answer write up to {self.most} times {self.letter.strip()!r}{then}; nobody is told."
        return (*self.game.rules, (text,))

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return tuple((self._after_letters(options_of(grammar)),) for grammar in self.game.grammars)

    @property
    def scripts(self) -> Mapping[str, Callable]:
        return {**self.game.scripts, "random": random_player(self.view)}

    @property
    def initial_states(self) -> Any:  # if the inner game has them, both trees are the same
        return self.game.initial_states  # type: ignore[attr-defined]

    @property
    def _answers(self) -> tuple[str, ...]:
        return tuple(text for grammar in self.game.grammars for text in options_of(grammar).values())

    def letter_tokenizer(self) -> SymbolTokenizer:
        """A tokenizer with a token for each phrase, each answer, the letter and the mark, so that thoughts differ in
        tokens."""
        told = [text for field in phrases((*self.rules, *self.observation)) for text in field]
        return SymbolTokenizer([*told, self.letter, self.mark, *self._answers])

    def length(self, action: jax.Array) -> jax.Array:
        """The number of letters before the answer, int32; -1 for action -1, an illegal answer."""
        return action // self.game.actions

    def prompt(self, state: Any) -> jax.Array:
        told = self.game.prompt(state)
        return jnp.concatenate([told, jnp.zeros((self.agents, 1), told.dtype)], 1)

    def reset(self, key: jax.Array, group: jax.Array, *given: Any) -> tuple[Any, View]:
        state, view = self.game.reset(key, group, *given)
        return state, self._show_thought(view)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, View, jax.Array]:
        state, view, reward = self.game.step(state, jnp.where(action < 0, action, action % self.game.actions), key)
        return state, self._show_thought(view), reward

    def view(self, state: Any) -> View:
        return self._show_thought(self.game.view(state))  # type: ignore[attr-defined]

    def _show_thought(self, view: View) -> View:
        return view.replace(legal=jnp.tile(view.legal, (1, self.most + 1)))

    def _after_letters(self, options: Mapping[int, str]) -> Choice:
        thoughts = [self.letter * k + self.mark for k in range(self.most + 1)]
        numbered = ((k, thought, a, text) for k, thought in enumerate(thoughts) for a, text in options.items())
        return Choice(tuple((k * self.game.actions + a, thought + text) for k, thought, a, text in numbered))
