"""Plays a game in the terminal: shows the exact text that every agent reads, and lets a person take a seat.

python -m jaxmarl_llm.play kuhn_poker                             # you have seat 0, the others play at random
python -m jaxmarl_llm.play tic_tac_toe --seat -1 --against greedy # watch
python -m jaxmarl_llm.play trust_and_split --against smollm2       # play a model: a name, a directory, a hub id
python -m jaxmarl_llm.play kuhn_poker --against runs/exploitability-tiny/rloo/policies/learner  # a run's policy
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape

from jaxmarl_llm.devices import surroundings
from jaxmarl_llm.environments import REGISTRY, make_game
from jaxmarl_llm.environments.bridges.table import Table, parse, possible
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.keys import SAY, SCRIPT, key_for
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.rollout import decode, dialogue
from jaxmarl_llm.rollout.policy import PLAIN, allowed
from jaxmarl_llm.rollout.policy_files import budgets as answer_budgets
from jaxmarl_llm.rollout.policy_files import check_source, check_texts, load_policy, note_game
from jaxmarl_llm.text.arguments import read_arguments
from jaxmarl_llm.text.console import lasting
from jaxmarl_llm.text.grammar import Free, lift
from jaxmarl_llm.text.tokenizers import speller
from jaxmarl_llm.text.visible import visible

Player = Callable[[Any, "Table", int], tuple[int, str]]  # (state, table, seat) -> (action, its free words)


@dataclasses.dataclass(frozen=True)
class Settings:
    game: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GAME")]
    """Name of the game, or MODULE:CLASS of your own; with other settings NAME:FIELD=VALUE,..., e.g.
    prisoners_dilemma:rounds=10."""
    seat: int = 0
    """Your seat; -1: you watch."""
    against: Annotated[str, tyro.conf.arg(metavar="PLAYER")] = "random"
    """The player in the other seats: a scripted player of the game, a policy or a model.

    A policy is a directory under a run's `policies`, a model is a name (smollm2,
    qwen3-0.6b), a directory or a hub id."""
    adapter: Path | None = None
    """An adapter for the model: a directory in PEFT's format."""
    words: int = 32
    """The largest number of tokens in a model's message."""
    seed: int = 0


def clean(text: str) -> str:
    """A text for the terminal, without rich's markup and control characters."""
    return escape(visible(text))


def person(console: Console, state: Any, table: Table, seat: int) -> tuple[int, str]:
    """(action, free text) of the person, who is asked until the answer is legal."""
    parts, legal = table.grammar(seat), np.asarray(table.view.legal[seat])
    while True:
        if sys.stdin is None:  # closed
            raise EOFError
        answer = console.input("[bold]your answer:[/] ").encode(errors="replace")
        choice = parse(parts, answer)
        if choice is not None and legal[choice[0]]:
            return choice
        console.print(f"Possible are: {clean(', '.join(possible(parts, legal)))}", style="red")


def play_script(name: str, state: Any, table: Table, seat: int) -> tuple[int, str]:
    key = key_for(table.key, SCRIPT, 0, len(table.moves), seat)
    return int(table.game.scripts[name](state, jnp.int32(seat), key)), ""


def load_player(game: Any, source: str, adapter: Path | None, words: int) -> Player:
    """A player that reads and answers as a model does in a rollout, with at most `words` tokens a message.

    Raises ValueError if the model cannot be loaded, or if its tokenizer lacks a token.
    """
    policy = load_policy(source, adapter)
    check_texts(game, policy, source)
    (config, params, _), tokenizer, adapted = policy
    tables, budgets = lift(game.grammars, tokenizer.token_bytes, tokenizer.end), answer_budgets(game, tokenizer, words)
    budget, room = int(budgets.max()), config.max_position_embeddings
    if budget >= room:
        raise ValueError(f"Messages of {words} tokens are too long for a model that reads {room}: give fewer words.")
    joined = lora.concatenate((adapted[1],), (adapted[0],)) if adapted else None
    prepared = jax.jit(partial(decoder.prepare, config, merged=True))(params, joined)
    free = any(isinstance(part, Free) for parts in game.grammars for part in parts)
    encode = speller(tokenizer) if free else tokenizer.encode
    answers_of: WeakKeyDictionary[Table, dict[int, list[list[int]]]] = WeakKeyDictionary()
    # {game: {seat: the sampled tokens of its answers so far}}

    @jax.jit
    def answer(prepared: dict, tokens: jax.Array, n: jax.Array, number: jax.Array, legal: jax.Array, key: jax.Array):
        """The answer to the first n of tokens int32 [L] in grammar `number`, as (tokens int32 [budget], length)."""
        voice = decode.Voice(config, tables, PLAIN, None)
        cache = decoder.empty_cache(config, 1, len(tokens) + budget)
        hidden = jnp.zeros((1, config.hidden_size), config.dtypes.compute)
        cache, hidden = decode.feed(config, prepared, cache, hidden, tokens[None], n[None], None)
        budget_here, start = jnp.asarray(budgets)[number][None], jnp.asarray(tables.start)[number][None]
        uniform = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i), (1,)))(jnp.arange(budget))
        mask = lambda state, i: allowed(tables, state, legal[None], budget_here - i)
        _, said, _, length = decode.utter(voice, prepared, cache, hidden, jnp.ones(1, bool), start, uniform, mask)
        return said[0], length[0]

    def play(state: Any, table: Table, seat: int) -> tuple[int, str]:
        answers = answers_of.setdefault(table, {}).setdefault(seat, [])
        tokens = dialogue.transcript(tokenizer, encode, table.rules[seat], table.heard[seat], answers)
        if len(tokens) + budget > room:
            raise ValueError(f"The game is now too long for the model, which reads {room} tokens.")
        padded = np.zeros(1 << (len(tokens) - 1).bit_length(), np.int32)  # powers of two: few programs
        padded[: len(tokens)] = tokens
        number, legal = int(table.view.grammar[seat]), np.asarray(table.view.legal[seat])
        key = key_for(table.key, SAY, len(table.moves), seat)
        said, n = answer(prepared, padded, np.int32(len(tokens)), np.int32(number), legal, key)
        answers.append(said[: int(n)].tolist())
        text = b"".join(tokenizer.token_bytes[token] or b"" for token in answers[-1] if token != tokenizer.end)
        choice = parse(game.grammars[number], text)
        assert choice is not None  # the mask allows nothing else
        return choice

    return play


def main(settings: Settings, console: Console) -> None:
    """Plays a game. Raises ValueError for a game, seat or player that does not exist."""
    game = make_game(settings.game)
    if not 0 <= settings.seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2^63 - 1, got {settings.seed}.")
    if not 1 <= settings.words < 2**15:
        raise ValueError(f"words must be from 1 to 2^15 - 1, got {settings.words}.")
    if not -1 <= settings.seat < game.agents:
        raise ValueError(f"The game has seats 0 to {game.agents - 1} (-1: watch), got {settings.seat}.")
    if settings.against in game.scripts:
        if settings.adapter:
            raise ValueError("An adapter is put on a model, and the other seats are scripted.")
        other: Player = partial(play_script, settings.against)
    else:
        check_source(settings.against, game.scripts)
        if note := note_game(str(settings.adapter or settings.against), game):
            console.print(escape(note), soft_wrap=True)
        try:
            other = load_player(game, settings.against, settings.adapter, settings.words)
        except ValueError as error:
            raise ValueError(f"{error} Scripted players of this game: {', '.join(game.scripts)}.") from error
    players = [partial(person, console) if seat == settings.seat else other for seat in range(game.agents)]
    table = Table(game, settings.seed)
    payments: list[str] = []
    watched = [settings.seat] if settings.seat >= 0 else list(range(game.agents))
    for seat in watched:
        console.print(f"[bold]{game.roles[int(table.view.role[seat])]}, seat {seat}[/]\n{clean(table.seen[seat][0])}\n")
    while True:
        acting = np.flatnonzero(table.view.acting).tolist()
        for seat in watched:
            if text := "".join(table.heard[seat][-1][0]):
                console.print(f"[dim]seat {seat} is told:[/] {clean(text)}")
        if table.over:  # the outcome of the last turn has been shown
            break
        actions, words = np.zeros(game.agents, np.int32), {}
        for seat in acting:
            actions[seat], words[seat] = players[seat](table.state, table, seat)
            if seat in watched and seat != settings.seat:
                console.print(f"[dim]seat {seat} says:[/] {clean(table.answer(seat, actions[seat], words[seat]))}")
        reward = table.play(actions, words)
        if reward.any():
            paid = "; ".join(
                f"seat {seat} " + ", ".join(f"{x:+g} {n}" for x, n in zip(row, game.components, strict=True) if x)
                for seat, row in enumerate(reward)
                if row.any()
            )
            paid = f"[dim]paid in turn {len(table.moves)}:[/] {clean(paid)}"
            if settings.seat >= 0:
                payments.append(paid)  # a person sees no more than agents do, so rewards come after the game
            else:
                console.print(paid)
    for paid in payments:
        console.print(paid)
    _show_result(settings, console, table)


def _show_result(settings: Settings, console: Console, table: Table) -> None:
    """Prints what the other seats saw, if a person played, and the totals of every seat."""
    game = table.game
    if settings.seat >= 0:
        console.print("\n[bold]What the others saw and said[/]")
        for seat in range(game.agents):
            if seat != settings.seat:
                console.print(f"[dim]seat {seat}[/]\n{clean(chr(10).join(table.seen[seat]))}\n")
    for seat, row in enumerate(table.total):
        text = ", ".join(f"{x:g} {name}" for x, name in zip(row, game.components, strict=True))
        facts = zip(table.measured[seat], Extras(game).measures, strict=True)
        if measured := ", ".join(f"{x:g} {name}" for x, name in facts):
            text += f"; measured and not paid: {measured}"
        console.print(f"seat {seat}: {clean(text)}")


def command() -> None:
    """The command line; without words it lists the games."""
    if not sys.argv[1:]:
        games = f"Games: {', '.join(sorted(REGISTRY))}."
        print(f"{games}\nPlay one with `python -m jaxmarl_llm.play NAME`, one of your own by MODULE:CLASS.")
        return
    settings = read_arguments(Settings, "python -m jaxmarl_llm.play", str(__doc__))

    def start() -> None:
        try:
            main(settings, Console())
        except EOFError:
            raise ValueError("the input ended before the game did") from None

    surroundings.run_command(start)


if __name__ == "__main__":
    with lasting():
        command()
