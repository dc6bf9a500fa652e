"""Steps a second of our compiled, batched games, and of OpenSpiel and TextArena driven from Python.

Games run to their end with random legal moves and a new deal each; a step is one decision. Ours and theirs alternate,
and the ratio is the median over pairs. "text" includes observations: phrase numbers in ours, strings in theirs.
TextArena always writes its text. About two minutes on two CPU cores.

  pip install 'jaxmarl_llm[bench]'
  python -m experiments.benchmarks.environments [--repeat 5] [--games 32768] [--json FILE]
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.table import Table

from jaxmarl_llm.environments.classic.board_games import ConnectFour, TicTacToe
from jaxmarl_llm.environments.classic.card_games import KuhnPoker, LeducPoker, LiarsDice

SECONDS = 1.0  # duration of play from Python in each repetition
OURS = {
    "tic_tac_toe": TicTacToe(),
    "connect_four": ConnectFour(),
    "kuhn_poker": KuhnPoker(),
    "leduc_poker": LeducPoker(),
    "liars_dice": LiarsDice(),
}
TEXT_ARENA = {"tic_tac_toe": "TicTacToe-v0", "kuhn_poker": "KuhnPoker-v0"}


def batch_player(game: Any, games: int, text: bool) -> Callable[[jax.Array], tuple[jax.Array, Any]]:
    """play(key) of games in `games` slots, with a new deal wherever a game has ended.

    It returns the number of decisions, and sums that keep the compiler from removing work.
    """
    turns = 4 * game.turns

    def play(deals: int, key: jax.Array) -> tuple[jax.Array, Any]:
        deal, moves = jax.random.split(key)
        group = jnp.zeros((deals, games), jnp.int32)
        dealt = jax.vmap(jax.vmap(game.reset))(jax.random.split(deal, (deals, games)), group)
        luck = jax.random.bits(moves, (turns, games), jnp.uint32)
        slot = jnp.arange(games)

        def step(carry, bits):
            state, view, played, total, steps = carry
            alive = ~(view.terminated | view.truncated)
            legal = jnp.where(view.acting[..., None], view.legal, False).any(1)  # [games, N], for the acting seat
            among = jnp.cumsum(legal, 1)
            chosen = jnp.argmax(among > (bits % jnp.maximum(among[:, -1], 1).astype(jnp.uint32))[:, None], 1)
            action = jnp.broadcast_to(chosen[:, None].astype(jnp.int32), (games, game.agents))
            after, told, reward = jax.vmap(lambda s, a: game.step(s, a, key))(state, action)
            total = jax.tree.map(jnp.add, total, (reward.sum(), told.text.sum() if text else 0))
            played = played + (told.terminated | told.truncated)  # a slot without further deals stays at its end
            again = (told.terminated | told.truncated) & (played < deals)
            fresh = jax.tree.map(lambda x: x[jnp.minimum(played, deals - 1), slot], dealt)
            pick = lambda new, old: jnp.where(again.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
            state, view = jax.tree.map(pick, fresh, (after, told))
            return (state, view, played, total, steps + alive.sum()), None

        first = jax.tree.map(lambda x: x[0], dealt)
        zero = jnp.float32(0), jnp.int32(0)
        carry = (*first, jnp.zeros((games,), jnp.int32), zero, jnp.int32(0))
        (_, _, played, total, steps), _ = jax.lax.scan(step, carry, luck)
        return steps, (total, played.mean())

    pilot = jax.jit(partial(play, turns))(jax.random.key(0))[1][1]  # games a slot in the pilot
    return jax.jit(partial(play, int(1.1 * float(pilot)) + 2))


def open_spiel(name: str, text: bool) -> Callable[[float], int]:
    """play(seconds): random play of an OpenSpiel game; it returns the number of decisions."""
    import pyspiel

    game = pyspiel.load_game(name)

    def play(seconds: float) -> int:
        steps, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            state = game.new_initial_state()
            while not state.is_terminal():
                if state.is_chance_node():
                    state.apply_action(random.choice([action for action, _ in state.chance_outcomes()]))
                    continue
                if text:
                    state.information_state_string()
                state.apply_action(random.choice(state.legal_actions()))
                steps += 1
        return steps

    return play


def text_arena(name: str) -> Callable[[float], int]:
    """play(seconds): random play of a TextArena game; it returns the number of decisions."""
    import textarena

    env = textarena.make(TEXT_ARENA[name])

    def moves(env: Any) -> list[str]:
        if name == "kuhn_poker":
            return ["[check]", "[bet]", "[call]", "[fold]"]
        return [f"[{cell}]" for cell in range(9)]

    def play(seconds: float) -> int:
        steps, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            env.reset(num_players=2)
            env.full_observations.clear()  # the wrapper keeps all earlier games, and gets slower with each
            done = False
            while not done:
                env.get_observation()
                done, _ = env.step(action=random.choice(moves(env)))  # illegal moves count too, in its favour
                steps += 1
        return steps

    return play


def main(
    repeat: int = 5, games: int = 32768, json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None
) -> None:
    """Prints a table; `json_file` stores it as a list of {name, ours, theirs, ratio, unit, share_of_limit}."""
    table = Table(title=f"Decisions a second; {games} games at once, medians of {repeat} pairs")
    for column in ("game", "ours", "theirs", "ratio"):
        table.add_column(column, justify="left" if column == "game" else "right")
    results = []
    for name, game in OURS.items():
        for text in (False, True):
            run = batch_player(game, games, text)
            jax.block_until_ready(run(jax.random.key(0)))
            rivals = {"OpenSpiel": open_spiel(name, text)}
            if text and name in TEXT_ARENA:
                rivals["TextArena"] = text_arena(name)
            for rival, play in rivals.items():
                pairs = []
                for number in range(repeat):
                    began, steps = time.perf_counter(), 0
                    while time.perf_counter() - began < SECONDS / 2:
                        steps += int(run(jax.random.key(number))[0])
                    ours = steps / (time.perf_counter() - began)
                    began = time.perf_counter()
                    pairs.append((ours, play(SECONDS) / (time.perf_counter() - began)))
                what = f"{name}, {'text' if text else 'rules'}, {rival}"
                ratio = median(ours / theirs for ours, theirs in pairs)
                ours, theirs = (median(layout) for layout in zip(*pairs, strict=True))
                table.add_row(what, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ratio:,.0f}x")
                results.append(
                    {"name": what, "ours": ours, "theirs": theirs, "ratio": ratio, "unit": "decisions / s"}
                    | {"share_of_limit": None}
                )
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
