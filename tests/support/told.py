"""Random games, and what a seat is told in them as text."""

import re
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmarl_llm.environments.base import MessageFrom, View
from jaxmarl_llm.text.grammar import Choice, options_of
from tests.support.toys import play_out


def played(game: Any, groups: int, seed: int = 0) -> tuple[np.ndarray, dict[str, Any], Any]:
    """Openings, record (leaves [T, G, ...]) and deals of games with random legal actions."""
    numbers = np.arange(groups, dtype=np.int32)

    def play(key):
        keys = jax.vmap(lambda group: jax.random.fold_in(key, group))(numbers)
        return *play_out(game, key, groups), jax.vmap(game.reset)(keys, numbers)[0]

    prompt, record, deals = jax.device_get(jax.jit(play)(jax.random.key(seed)))
    return prompt, record, deals


def render(fields: Any, text: np.ndarray, hears: np.ndarray | None = None) -> str:
    """The phrases joined; words heard of seat k are written <k>. `hears` bool [A], of whom the seat is told."""
    pieces = []
    for field, phrase in zip(fields, text, strict=True):
        if isinstance(field, MessageFrom):
            pieces += [f"<{field.seat}>"] * bool(hears is not None and hears[field.seat])
        elif phrase >= 0:
            pieces.append(field[phrase])
    return "".join(pieces)


def told(game: Any, view: View, *at: int, seat: int) -> str:
    """What a seat is told in one view of a batch."""
    hears = None if view.hears is None else view.hears[at][:, seat]
    return render(_observation(game), view.phrases[at][seat], hears)


def answers(game: Any, view: View, *at: int, seat: int) -> set[str]:
    """What a seat may choose to answer."""
    legal = view.legal[at][seat]
    return {text for number, text in _options(game, int(view.grammar[at][seat])) if legal[number]}


@cache
def _observation(game: Any) -> Any:
    return game.observation


@cache
def _options(game: Any, grammar: int) -> tuple[tuple[int, str], ...]:
    (choice,) = (part for part in game.grammars[grammar] if isinstance(part, Choice))
    return choice.options


class Turn(NamedTuple):
    """One turn of a game as its seats see it, and what it paid."""

    told: list[str]  # to each seat
    said: dict[int, str]  # by the acting seats
    possible: dict[int, set[str]]  # what they could have said
    reward: np.ndarray  # float32 [A, C]


class Transcript(NamedTuple):
    rules: list[str]  # as each seat is told them
    turns: list[Turn]
    final: list[str]  # told to each seat after the end


def transcripts(game: Any, episodes: int, seed: int = 0) -> list[Transcript]:
    """Games with random legal actions, in texts alone; a message is empty, and `<seat>` where it is heard."""
    reset, step = jax.jit(game.reset), jax.jit(game.step)
    draw, rules = np.random.default_rng(seed), game.rules
    found = []
    for episode in range(episodes):
        key = jax.random.fold_in(jax.random.key(seed), episode)
        state, view = reset(key, np.int32(episode))
        opening = [render(rules, row) for row in np.asarray(game.prompt(state))]
        turns = []
        view = jax.device_get(view)
        while not (view.terminated or view.truncated):
            action = np.array([draw.choice(np.flatnonzero(legal)) for legal in view.legal], np.int32)
            acting = np.flatnonzero(view.acting).tolist()
            words = {k: dict(_texts(game, int(view.grammar[k]))) for k in acting}
            said = {k: words[k][int(action[k])] for k in acting}
            possible = {k: {text for n, text in words[k].items() if view.legal[k][n]} for k in acting}
            before = [told(game, view, seat=k) for k in range(game.agents)]
            state, view, reward = jax.device_get(step(state, action, key))
            turns.append(Turn(before, said, possible, reward))
        found.append(Transcript(opening, turns, [told(game, view, seat=k) for k in range(game.agents)]))
    return found


@cache
def _texts(game: Any, grammar: int) -> tuple[tuple[int, str], ...]:
    """The action texts of a grammar; a message is action 0 and empty."""
    return tuple(options_of(game.grammars[grammar]).items())


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not told in {text!r}"
    return float(found.group(1))


def later(play: Transcript) -> list[list[str]]:
    """What each seat is told after each turn."""
    return [turn.told for turn in play.turns[1:]] + [play.final]


def asked(rules: str) -> int:
    a, sign, b, modulus = re.search(r"What is \((\d+) (.) (\d+)\) mod (\d+)\?", rules).groups()  # type: ignore
    return {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] % int(modulus)
