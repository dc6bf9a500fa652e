"""Plays a game in the terminal: shows what each agent is told, word by word, and lets a person take a seat.

python -m jaxmarl_llm.play kuhn_poker                             # seat 0 is yours, the others play at random
python -m jaxmarl_llm.play tic_tac_toe --seat 1 --against greedy
python -m jaxmarl_llm.play kuhn_poker --seat -1 --against DIR     # watch a model in Hugging Face's layout
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape

from jaxmarl_llm import adapter_files, adapters, weights
from jaxmarl_llm.environment import CHANCE, DEAL, SAY, SCRIPT, Heard, View, key_for
from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.grammar import Choice, Free, Grammar, Literal, options_of, pattern
from jaxmarl_llm.rollout import Rollout
from jaxmarl_llm.team import Family, Lineup
from jaxmarl_llm.tokens import HFTokenizer

Player = Callable[[Any, "Table", int], tuple[int, str]]  # (state, table, seat) -> action, and what it said freely


@dataclasses.dataclass(frozen=True)
class Settings:
    game: tyro.conf.Positional[str]
    """Name of the game."""
    seat: int = 0
    """Yours; -1: watch."""
    against: str = "random"
    """Who has the other seats: a scripted player of the game, or a model (smollm2, a directory, a hub id)."""
    adapter: Path | None = None
    """A PEFT directory, put on the model."""
    seed: int = 0


class Table:
    """A game in progress: what every seat was told and said, as texts, and what was done so far."""

    def __init__(self, game: Any, seed: int):
        self.game, self.key = game, jax.random.key(seed)
        self.step = jax.jit(game.step)
        self.state, self.view = game.reset(key_for(self.key, DEAL, 0), jnp.int32(0))
        self.start = self.state, self.view
        self.moves: list[np.ndarray] = []
        self.said = [""] * game.agents
        self.total = np.zeros((game.agents, len(game.components)))
        opening = np.asarray(game.opening(self.state))
        self.rules = ["".join(f[i] for f, i in zip(game.rules, row, strict=True) if i >= 0) for row in opening]

    @property
    def over(self) -> bool:
        return bool(self.view.terminated | self.view.truncated)

    def told(self, seat: int) -> str:
        """What a seat is told now."""
        pieces = []
        for k, field in enumerate(self.game.observation):
            index = int(self.view.text[seat, k])
            if isinstance(field, Heard):
                hears = self.view.hears is not None and bool(self.view.hears[field.seat, seat])
                pieces.append(self.said[field.seat] if hears and field.seat != seat else "")
            elif index >= 0:
                pieces.append(field[index])
        return "".join(pieces)

    def grammar(self, seat: int) -> Grammar:
        return self.game.grammars[int(self.view.grammar[seat])]

    def play(self, actions: np.ndarray, words: dict[int, str]) -> np.ndarray:
        """The rewards [A, C] of a turn."""
        for seat in np.flatnonzero(self.view.acting):
            self.said[seat] = words.get(int(seat), "")
        self.moves.append(actions)
        key = key_for(self.key, CHANCE, 0, len(self.moves) - 1)
        self.state, self.view, reward = self.step(self.state, jnp.asarray(actions, jnp.int32), key)
        self.total += np.asarray(reward)
        return np.asarray(reward)


def parse(parts: Grammar, answer: str) -> tuple[int, str] | None:
    """(action, free text) of an answer, None if the grammar does not accept it."""
    match = re.fullmatch(pattern(parts), answer.encode(), re.DOTALL)
    if match is None:
        return None
    action = next((int(name[1:]) for name, text in match.groupdict().items() if text is not None), 0)
    if not any(isinstance(part, Free) for part in parts):
        return action, ""
    whole = b"".join(
        b"(.*)" if isinstance(part, Free) and not part.private else b"(?:" + pattern((part,)) + b")" for part in parts
    )  # what others hear alone in unnamed groups
    names = re.compile(rb"\(\?P<a\d+>")
    free = re.fullmatch(names.sub(b"(?:", whole), answer.encode(), re.DOTALL)
    return action, b"".join(free.groups()).decode() if free else ""


def possible(parts: Grammar, legal: np.ndarray) -> list[str]:
    """What may be answered, free text as '...'."""
    options = next((part.options for part in parts if isinstance(part, Choice)), ((0, ""),))
    dress = lambda text: "".join(  # noqa: E731
        text if isinstance(p, Choice) else p.text if isinstance(p, Literal) else "..." for p in parts
    )
    return [dress(text) for number, text in options if legal[number]]


def person(console: Console, state: Any, table: Table, seat: int) -> tuple[int, str]:
    """Asks until the answer is legal."""
    parts, legal = table.grammar(seat), np.asarray(table.view.legal[seat])
    while True:
        answer = console.input("[bold]your answer:[/] ").encode(errors="replace").decode()
        found = parse(parts, answer)
        if found is not None and legal[found[0]]:
            return found
        console.print(f"Possible are: {escape(', '.join(possible(parts, legal)))}", style="red")


def scripted(name: str, state: Any, table: Table, seat: int) -> tuple[int, str]:
    key = key_for(table.key, SCRIPT, 0, len(table.moves), seat)
    return int(table.game.scripts[name](state, jnp.int32(seat), key)), ""


@dataclasses.dataclass(frozen=True, eq=False)
class Replay:
    """The game up to a turn: everybody repeats what was done, then the seats in question choose."""

    game: Any
    start: tuple[Any, View]
    moves: jax.Array  # int32 [turns, A]
    turn: jax.Array  # int32, the last one

    def __getattr__(self, name: str) -> Any:
        return getattr(self.game, name)

    @property
    def scripts(self) -> dict[str, Callable]:
        return {"line": lambda state, seat, key: self.moves[state[1], seat]}

    def _shown(self, view: View, turn: jax.Array) -> View:
        done = jax.nn.one_hot(self.moves[turn], self.game.actions, dtype=bool)
        return view.replace(
            legal=jnp.where(turn < self.turn, done, view.legal), terminated=view.terminated | (turn > self.turn)
        )

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[Any, View]:
        state, view = self.start
        return (state, jnp.int32(0)), self._shown(view, jnp.int32(0))

    def opening(self, state: Any) -> jax.Array:
        return self.game.opening(state[0])

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, View, jax.Array]:
        after, view, reward = self.game.step(state[0], action, key)
        return (after, state[1] + 1), self._shown(view, state[1] + 1), reward


def trained(game: Any, source: str, adapter: Path | None) -> Player:
    """A model that answers as it would in a rollout. Raises ValueError for games with free text."""
    loaded = weights.load(source)
    if any(isinstance(part, Free) for parts in game.grammars for part in parts):
        raise ValueError("Models take seats here in games without free text only.")
    lora, adapted = adapter_files.load_adapter(adapter, loaded.config) if adapter else (None, None)
    tokenizer = HFTokenizer(loaded.directory, loaded.config.vocab_size, options={"enable_thinking": False})
    params = loaded.params
    if lora is not None and adapted is not None:
        joined = adapters.concatenate((adapted,), (lora,))
        assert joined is not None
        params = adapters.merge(params, joined)
    family = Family(tokenizer, ("model",), loaded.config)

    @partial(jax.jit, static_argnums=0)
    def answer(seat: int, params: dict, start: tuple, moves: jax.Array, turn: jax.Array, key: jax.Array) -> jax.Array:
        names = tuple("model" if a == seat else "line" for a in range(game.agents))
        rollout = Rollout(Replay(game, start, moves, turn), {"model": family}, Lineup((names,), 1), budget=16)
        return rollout({"model": {"params": params}}, key).episodes.action[0, turn, seat]

    def play(state: Any, table: Table, seat: int) -> tuple[int, str]:
        moves = np.zeros((game.turns, game.agents), np.int32)
        moves[: len(table.moves)] = np.reshape(table.moves, (-1, game.agents))
        key = key_for(table.key, SAY, len(table.moves), seat)
        return int(answer(seat, params, table.start, jnp.asarray(moves), jnp.int32(len(table.moves)), key)), ""

    return play


def main(settings: Settings, console: Console) -> None:
    """Raises ValueError for a game, seat or player that does not exist."""
    if settings.game not in REGISTRY:
        raise ValueError(f"No game is called {settings.game!r}: possible are {', '.join(sorted(REGISTRY))}.")
    game = REGISTRY[settings.game]()
    if not -1 <= settings.seat < game.agents:
        raise ValueError(f"The game has seats 0 to {game.agents - 1} (-1: watch), got {settings.seat}.")
    if settings.against in game.scripts:
        if settings.adapter:
            raise ValueError("An adapter is put on a model, and the other seats are scripted.")
        other: Player = partial(scripted, settings.against)
    else:
        try:
            other = trained(game, settings.against, settings.adapter)
        except ValueError as error:
            raise ValueError(f"{error} Scripted players of this game: {', '.join(game.scripts)}.") from error
    if not 0 <= settings.seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2^63 - 1, got {settings.seed}.")
    players = [partial(person, console) if seat == settings.seat else other for seat in range(game.agents)]
    table = Table(game, settings.seed)
    seen: list[list[str]] = [[text] for text in table.rules]
    payments: list[str] = []
    watched = [settings.seat] if settings.seat >= 0 else list(range(game.agents))
    for seat in watched:
        console.print(f"[bold]{game.roles[int(table.view.role[seat])]}, seat {seat}[/]\n{escape(table.rules[seat])}\n")
    while not table.over:
        acting = np.flatnonzero(table.view.acting).tolist()
        for seat in range(game.agents):
            if text := table.told(seat):
                seen[seat].append(text)
                if seat in watched:
                    console.print(f"[dim]seat {seat} is told:[/] {escape(text)}")
        actions, words = np.zeros(game.agents, np.int32), {}
        for seat in acting:
            actions[seat], words[seat] = players[seat](table.state, table, seat)
            answer = words[seat] or options_of(table.grammar(seat)).get(int(actions[seat]), "")
            seen[seat].append(f"> {answer}")
            if seat in watched and seat != settings.seat:
                console.print(f"[dim]seat {seat} says:[/] {escape(answer)}")
        reward = table.play(actions, words)
        if reward.any():
            paid = "; ".join(
                f"seat {seat} " + ", ".join(f"{x:+g} {n}" for x, n in zip(row, game.components, strict=True) if x)
                for seat, row in enumerate(reward)
                if row.any()
            )
            paid = f"[dim]paid in turn {len(table.moves)}:[/] {escape(paid)}"
            if settings.seat >= 0:
                payments.append(paid)  # who plays is told what agents are told: of rewards nothing
            else:
                console.print(paid)
    for paid in payments:
        console.print(paid)
    if settings.seat >= 0:
        console.print("\n[bold]What the others saw and said[/]")
        for seat in range(game.agents):
            if seat != settings.seat:
                console.print(f"[dim]seat {seat}[/]\n{escape(chr(10).join(seen[seat]))}\n")
    for seat, row in enumerate(table.total):
        text = ", ".join(f"{x:g} {name}" for x, name in zip(row, game.components, strict=True))
        console.print(f"seat {seat}: {escape(text)}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Settings, description=__doc__), Console())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (EOFError, KeyboardInterrupt):
        raise SystemExit(130) from None
