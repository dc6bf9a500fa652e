"""A leaderboard of estimators: the effect of each on the gradient where the credit of every act is known, and its cost.

Each game is enumerated, and its policy is a table with normal logits. 256 batches of 8 groups of 8 games give the
metrics of `evaluation.exact.estimators`: bias, direction, noise, cosine, correlation and silent groups. An estimator
that takes a value has a second row, `/wrong_value`, whose values err as much as the exact advantages vary. `cost` is
the estimator's time for a batch over that of `reinforce`: medians of 15 calls in turn, in the first of its games.
`needs` names inputs beside rewards, acts and groups. The rows of `all` are medians over an estimator's games.

  python -m experiments.benchmarks.leaderboard [--estimator MODULE:FUNCTION] [--games NAME ...] [--json FILE]

`--estimator` adds a function of your own: its parameters are inputs of `jaxmarl_llm.rl.advantages.registry`, and it
returns advantages [episodes, turns, seats]. Without `--json` a table of the games' medians is printed alone.
The rows of all games are not published yet.
"""

from __future__ import annotations

import importlib
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.table import Table

from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.environments.around.one_by_one import OneByOne
from jaxmarl_llm.environments.social.public_goods import PublicGoods
from jaxmarl_llm.environments.solo.instruments import Instruments
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.evaluation.exact.estimators import METRICS, WRONG, measure, play
from jaxmarl_llm.evaluation.exact.exact_gradient import Tables, exact, tables
from jaxmarl_llm.rl.advantages.registry import ESTIMATORS, Estimate, apply, required_inputs
from jaxmarl_llm.runs.log import provenance

ALWAYS = ("reward", "acted", "group", "num_groups")
BATCHES, GROUPS, SIZE, CALLS, ALL = 256, 8, 8, 15, "all"
COLUMNS = ("estimator", "game", *METRICS, "cost", "needs")
FILE = Path(__file__).with_suffix(".json")
SMALL: dict[str, Callable[[], Any]] = {
    "gifts": lambda: OneByOne(PublicGoods(agents=3, multiplier=2.0, rounds=1, endowment=3)),
    "instruments, 2 rounds": lambda: Instruments(rounds=2, values=2),
    "lock_chain, 2 locks": lambda: LockChain(locks=2, turns=3),
    "six_turns, 4 turns": lambda: SixTurns(turns=4),
}
WHOLE = (
    "contributions", "contributions_partial", "farm", "fork", "graded", "kuhn_poker", "leduc_poker", "letters", "quiz",
    "replies", "stairs",
)  # fmt: skip
GAMES: dict[str, Callable[[], Any]] = {**{name: REGISTRY[name] for name in WHOLE}, **SMALL}


@dataclass(frozen=True)
class Options:
    estimator: tuple[str, ...] = ()
    """MODULE:FUNCTION of estimators to add."""
    games: tuple[str, ...] = tuple(GAMES)
    """Games to measure."""
    json: Path | None = None
    """File to write."""


def load_estimator(name: str) -> Estimate:
    """The function of MODULE:FUNCTION. Raises ValueError for another text, and if there is none."""
    module, _, function = name.partition(":")
    if not function:
        raise ValueError(f"An estimator is MODULE:FUNCTION, got {name!r}.")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"There is no estimator {name}: {error}.") from error


def costs(game: Tables, policy: jax.Array, estimators: Mapping[str, Estimate], key: jax.Array) -> dict[str, float]:
    """{estimator: its time for a batch over that of `reinforce`}, medians of calls that alternate."""
    inputs = jax.jit(lambda key: play(game, policy, exact(game, policy), key, GROUPS, SIZE))(key)
    arrays = {name: x for name, x in inputs.items() if not isinstance(x, int | float)}
    numbers = {name: x for name, x in inputs.items() if name in ("num_groups", "num_roles", "num_observations")}
    del arrays["state"]
    state = inputs["state"]

    def program(estimator: Estimate) -> Callable[[], Any]:
        names = required_inputs(estimator)
        static = {name: GROUPS if name == "num_groups" else int(numbers[name]) for name in numbers}
        given = {name: arrays[name] for name in names if name in arrays and name not in static}
        rest = static | {"gamma": 1.0, "beta": 1.0, "state": state}
        run = jax.jit(lambda given: apply(estimator, rest | given))
        return lambda: jax.block_until_ready(run(given))

    programs = {name: program(estimator) for name, estimator in {"": ESTIMATORS["reinforce"], **estimators}.items()}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(CALLS + 1):
        for name, run in programs.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    median = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    return {name: median[name] / median[""] for name in estimators}


def rows_of_game(
    name: str, estimators: Mapping[str, Estimate], taken: dict[str, float], batches: int = BATCHES
) -> list[dict[str, Any]]:
    """A row of COLUMNS for each estimator that can do with the game's inputs. `taken` collects costs, once each."""
    game, key = tables(GAMES[name]()), jax.random.key(0)
    legal = game.tree.legal
    policy = jax.nn.softmax(jnp.where(legal, jax.random.normal(key, legal.shape), -jnp.inf))
    metrics = measure(game, policy, estimators, jax.random.fold_in(key, 1), batches=batches)
    metrics = jax.device_get(metrics)
    new = {x: e for x, e in estimators.items() if x in metrics and x not in taken}
    taken |= costs(game, policy, new, jax.random.fold_in(key, 2)) if new else {}
    rows = []
    for estimator, values in metrics.items():
        base = estimator.removesuffix(WRONG)
        needs = ", ".join(x for x in required_inputs(estimators[base]) if x not in ALWAYS)
        numbers = {metric: float(f"{float(x):.3g}") for metric, x in values.items()}
        rows.append({"estimator": estimator, "game": name, **numbers, "cost": round(taken[base], 2), "needs": needs})
    return rows


def medians(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row `all` for each estimator: medians over its games."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["estimator"], []).append(row)
    middle = lambda group, x: float(f"{statistics.median(row[x] for row in group):.3g}")
    return [
        {"estimator": name, "game": ALL}
        | {x: middle(group, x) for x in (*METRICS, "cost")}
        | {"needs": group[0]["needs"]}
        for name, group in by_name.items()
    ]


def main(options: Options) -> None:
    console = Console()
    if unknown := set(options.games) - set(GAMES):
        raise ValueError(f"There is no game {', '.join(sorted(unknown))}: the games are {'; '.join(GAMES)}.")
    added = {name.partition(":")[2]: load_estimator(name) for name in options.estimator}
    if twice := set(added) & set(ESTIMATORS):
        raise ValueError(f"The package has an estimator of this name: {', '.join(sorted(twice))}.")
    rows: list[dict[str, Any]] = []
    taken: dict[str, float] = {}
    began = time.perf_counter()
    for number, name in enumerate(options.games):
        console.print(f"{name} ({number + 1} of {len(options.games)}), {time.perf_counter() - began:.0f} s so far")
        rows += rows_of_game(name, {**ESTIMATORS, **added}, taken)
    rows = medians(rows) + rows
    table = Table(title="Medians over games, by cosine")
    for column in COLUMNS:
        table.add_column(column)
    for row in sorted(rows, key=lambda row: -row["cosine"]):
        if row["game"] == ALL:
            table.add_row(*(str(row[column]) for column in COLUMNS))
    console.print(table)
    seconds = time.perf_counter() - began
    console.print(f"{len(rows)} rows in {seconds:.0f} s.")
    if options.json:
        facts = {"machine": f"{platform.machine()}, {jax.device_count()} device", "seconds": round(seconds)}
        lines = ",\n".join(json.dumps([row[column] for column in COLUMNS]) for row in rows)
        head = json.dumps(facts | {"commit": provenance()["commit"], "columns": COLUMNS})[:-1]
        options.json.write_text(f'{head}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    try:
        main(tyro.cli(Annotated[Options, tyro.conf.arg(name="")], description=__doc__))
    except ValueError as error:
        sys.exit(f"error: {error}")
