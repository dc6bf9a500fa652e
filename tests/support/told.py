"""Random games, and what a seat is told in them as text."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmarl_llm.environments.base import MessageFrom, View
from jaxmarl_llm.text.grammar import Choice, options_of
from tests.support.toys import play_out

ANSWER = "\0"  # stands where a seat answers


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


def neighbours(game: Any, prompt: np.ndarray, record: dict[str, Any]) -> set[tuple[str, str]]:
    """Texts that a seat reads one right after the other, in its rules or between two of its answers, in the games of
    `toys.play_out`. Free words are the text "words"."""
    after = jax.tree.map(lambda x: x[-1:], record["after"])
    view = jax.tree.map(lambda *x: np.concatenate(x), record["view"], after)
    read = np.concatenate([np.ones_like(record["over"][:1]), ~record["over"]])[..., None]
    told, seats = np.where(read[..., None], view.phrases, -1), np.arange(game.agents)
    fields = list(game.observation)
    for k, field in enumerate(fields):
        if isinstance(field, MessageFrom):
            hears = False if view.hears is None else view.hears[..., field.seat, :] & (seats != field.seat) & read
            told[..., k], fields[k] = np.where(hears, 0, -1), ("words",)
    answers = np.where(view.acting & read, 0, -1)[..., None]
    rows = np.moveaxis(np.concatenate([told, answers], -1), 0, -2)  # [G, A, T + 1, K + 1]
    return _adjacent(game.rules, prompt) | _adjacent([*fields, (ANSWER,)], rows.reshape(*rows.shape[:2], -1))


def _adjacent(fields: Any, rows: np.ndarray) -> set[tuple[str, str]]:
    """The texts next to each other in rows [G, A, n K] of the phrases of K fields; an answer is next to nothing."""
    texts = [*(text for field in fields for text in field), ANSWER]
    first = np.cumsum([0, *map(len, fields)])[:-1]
    rows = np.where(rows >= 0, rows + np.tile(first, rows.shape[-1] // len(first)), -1)
    flat = np.pad(rows, ((0, 0), (0, 0), (0, 1)), constant_values=len(texts) - 1).ravel()
    flat = flat[(flat >= 0) & np.array([bool(text) for text in texts])[flat]]
    pairs = np.unique(np.stack([flat[:-1], flat[1:]]), axis=1).T.tolist()
    return {(texts[a], texts[b]) for a, b in pairs if ANSWER not in (texts[a], texts[b])}


def run_together(before: str, after: str) -> bool:
    """Whether two texts, joined as they are, have no space between two words or sentences, or two of them."""
    end, start = before[-1], after[0]
    if end.isspace() or start.isspace():
        return end == start == " "
    return (end.isalnum() or end in ".!?:;,)") and (start.isalnum() or start in "\"'([")


@cache
def _observation(game: Any) -> Any:
    return game.observation


@cache
def _options(game: Any, grammar: int) -> tuple[tuple[int, str], ...]:
    (choice,) = (part for part in game.grammars[grammar] if isinstance(part, Choice))
    return choice.options


class Turn(NamedTuple):
    """One turn of a game as its seats see it, and what it paid and measured."""

    told: list[str]  # to each seat
    said: dict[int, str]  # by the acting seats
    possible: dict[int, set[str]]  # what they could have said
    reward: np.ndarray  # float32 [A, C + M], the components, then the measures


class Transcript(NamedTuple):
    rules: list[str]  # as each seat is told them
    turns: list[Turn]
    final: list[str]  # told to each seat after the end


def transcripts(game: Any, prompt: np.ndarray, record: dict[str, Any], games: Iterable[int]) -> list[Transcript]:
    """Some games of `toys.play_out` in texts alone; a message is empty, and `<seat>` where it is heard."""
    view, after, seats = record["view"], record["after"], range(game.agents)
    found = []
    for g in games:
        turns = []
        for t in range(int((~record["over"][:, g]).sum())):
            words = {k: dict(_texts(game, int(view.grammar[t, g, k]))) for k in np.flatnonzero(view.acting[t, g])}
            said = {k: words[k][int(record["action"][t, g, k])] for k in words}
            possible = {k: {text for n, text in words[k].items() if view.legal[t, g, k][n]} for k in words}
            before = [told(game, view, t, g, seat=k) for k in seats]
            facts = [] if after.measured is None else [after.measured[t, g]]
            turns.append(Turn(before, said, possible, np.concatenate([record["reward"][t, g], *facts], 1)))
        final = [told(game, after, len(turns) - 1, g, seat=k) for k in seats]
        found.append(Transcript([render(game.rules, row) for row in prompt[g]], turns, final))
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
