"""One game played outside jit, turn by turn, in texts: for a person in the terminal, and for PettingZoo."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.base import MessageFrom, check_reward
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.keys import CHANCE, DEAL, key_for
from jaxmarl_llm.text.grammar import Choice, Free, Grammar, Literal, options_of, pattern


class Table:
    """A game in progress: the texts that every seat was told and said, and the moves so far."""

    def __init__(self, game: Any, seed: int):
        check_game(game)
        self.game, self.key = game, jax.random.key(seed)
        self.step = jax.jit(game.step)
        self.state, self.view = game.reset(key_for(self.key, DEAL, 0), jnp.int32(0))
        self.moves: list[np.ndarray] = []
        self.said = [""] * game.agents
        self.total = np.zeros((game.agents, len(game.components)))
        self.measured = np.zeros((game.agents, len(Extras(game).measures)))
        self.prompt = np.asarray(game.prompt(self.state))
        self.rules = [  # in pieces
            [self._phrase("rules", k, i) for k, i in enumerate(row) if i >= 0] for row in self.prompt
        ]
        # for each seat and turn: the pieces that the seat was told, and a flag that it acted
        self.heard: list[list[tuple[list[str], bool]]] = [[] for _ in range(game.agents)]
        self.seen = [["".join(pieces)] for pieces in self.rules]
        """The texts of every seat: the rules, then its observations and, after "> ", its answers."""
        self._tell()

    @property
    def over(self) -> bool:
        return bool(self.view.terminated | self.view.truncated)

    def _tell(self) -> None:
        for seat, heard in enumerate(self.heard):
            heard.append((self._texts_for(seat), bool(self.view.acting[seat])))
            self.seen[seat] += filter(None, ["".join(heard[-1][0])])

    def _texts_for(self, seat: int) -> list[str]:
        pieces = []
        for k, field in enumerate(self.game.observation):
            index = int(self.view.phrases[seat, k])
            if isinstance(field, MessageFrom):
                hears = self.view.hears is not None and bool(self.view.hears[field.seat, seat])
                pieces.append(self.said[field.seat] if hears and field.seat != seat else "")
            elif index >= 0:
                pieces.append(self._phrase("observation", k, index))
        return [piece for piece in pieces if piece]

    def _phrase(self, fields: str, k: int, index: int) -> str:
        field = getattr(self.game, fields)[k]
        if index >= len(field):
            name = type(self.game).__name__
            raise ValueError(f"{name} tells phrase {index} of field {k} of its {fields}, which has {len(field)}.")
        return field[index]

    def grammar(self, seat: int) -> Grammar:
        return self.game.grammars[int(self.view.grammar[seat])]

    def answer(self, seat: int, action: int, words: str) -> str:
        """The answer of an acting seat in words: its free text, or its action."""
        return words or options_of(self.grammar(seat)).get(int(action), "")

    def play(self, actions: np.ndarray, words: dict[int, str]) -> np.ndarray:
        """Plays a turn and returns its rewards [A, C]."""
        for seat in np.flatnonzero(self.view.acting):
            self.said[seat] = words.get(int(seat), "")
            self.seen[seat].append(f"> {self.answer(int(seat), int(actions[seat]), self.said[seat])}")
        self.moves.append(actions)
        key = key_for(self.key, CHANCE, 0, len(self.moves) - 1)
        self.state, self.view, reward = self.step(self.state, jnp.asarray(actions, jnp.int32), key)
        check_reward(self.game, reward)
        self.total += np.asarray(reward)
        if self.view.measured is not None:
            self.measured += np.asarray(self.view.measured)
        self._tell()
        return np.asarray(reward)


def parse(parts: Grammar, answer: bytes) -> tuple[int, str] | None:
    """(action, free text) of an answer, None if the grammar does not accept it."""
    match = re.fullmatch(pattern(parts), answer, re.DOTALL)
    if match is None:
        return None
    action = next((int(name[1:]) for name, text in match.groupdict().items() if text is not None), 0)
    if not any(isinstance(part, Free) for part in parts):
        return action, ""
    whole = b"".join(
        b"(.*)" if isinstance(part, Free) and not part.private else b"(?:" + pattern((part,)) + b")" for part in parts
    )  # unnamed groups hold the text that others hear, and nothing else
    names = re.compile(rb"\(\?P<a\d+>")
    free = re.fullmatch(names.sub(b"(?:", whole), answer, re.DOTALL)
    return action, b"".join(free.groups()).decode(errors="replace") if free else ""


def possible(parts: Grammar, legal: np.ndarray) -> list[str]:
    """The possible answers, with '...' for free text."""
    options = next((part.options for part in parts if isinstance(part, Choice)), ((0, ""),))
    dress = lambda text: "".join(
        text if isinstance(p, Choice) else p.text if isinstance(p, Literal) else "..." for p in parts
    )
    return [dress(text) for number, text in options if legal[number]]
