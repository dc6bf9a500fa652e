"""Plays two policies against each other, in every seat and with the same deals, and says by how much one earns more.

python -m jaxmarl_llm.match kuhn_poker honest --against always_bet              # two scripted players of the game
python -m jaxmarl_llm.match kuhn_poker experiments/policies/exploitability-rloo-learner --against random
python -m jaxmarl_llm.match kuhn_poker smollm2 --against honest --games 40      # a model: a name, a directory, a hub id
python -m jaxmarl_llm.match GAME runs/a/policies/me --against runs/b/policies/me --games 1000 --out runs/match
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from jaxmarl_llm.devices import compiling, surroundings
from jaxmarl_llm.environments import make_game
from jaxmarl_llm.environments.around.shared_deals import SharedDeals
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.evaluation.exact import players, solve
from jaxmarl_llm.evaluation.exact.policy_table import tabulate
from jaxmarl_llm.evaluation.matches import OUTCOMES, cooperation_after, head_to_head
from jaxmarl_llm.evaluation.statistics import student_interval
from jaxmarl_llm.keys import DEAL, EVALUATE, batch_keys, key_for
from jaxmarl_llm.models import loading
from jaxmarl_llm.rollout.policy_files import budgets, check_source, load_players, note_game
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import Trajectory
from jaxmarl_llm.runs.log import run_directory
from jaxmarl_llm.text.arguments import read_arguments
from jaxmarl_llm.text.console import lasting
from jaxmarl_llm.text.refusals import check_new
from jaxmarl_llm.text.visible import visible
from jaxmarl_llm.training import examine
from jaxmarl_llm.view import match_words, page, records

TINY, AT_ONCE = 64, {True: 512, False: 16}  # the width of a small policy; games at once of small and other policies
HISTORIES = 20_000  # the largest tree that is solved
FORWARDS = 5e9  # information sets times parameters of a policy that becomes a table
RESULT, SHOWN = "match.json", 16  # games of the page


@dataclasses.dataclass(frozen=True)
class Settings:
    game: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GAME")]
    """Name of the game, or MODULE:CLASS of your own; with other settings NAME:FIELD=VALUE,..., e.g.
    prisoners_dilemma:rounds=10."""
    policy: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLAYER")]
    """The first player: a scripted player of the game, a policy or a model.

    A policy is a directory under a run's `policies` or an adapter in PEFT's format. A model is a name
    (smollm2, qwen3-0.6b), a directory or a hub id."""
    against: Annotated[str, tyro.conf.arg(metavar="PLAYER")]
    """The second player, of the same kinds. In games of more than two seats it takes all other seats."""
    games: int = 200
    """Games, an equal number in each seat; rounded up to a multiple of the seats."""
    seed: int = 0
    words: int = 32
    """The largest number of tokens in a message."""
    at_once: int = 0
    """Games played at once; 0: 512 with tiny policies, 16 with models."""
    out: Path | None = None
    """A new directory for match.json, games.jsonl and games.html, a page of the first games."""


class Match(NamedTuple):
    """Two players at a game, ready to play: their names in line-ups, policy sets and weights."""

    game: Any
    names: tuple[str, str]
    policy_sets: dict[str, PolicySet]
    weights: dict[str, dict]
    budget: list[int]
    deals: int  # each is played once in each seating

    @property
    def small(self) -> bool:
        return all(x.config is None or x.config.hidden_size <= TINY for x in self.policy_sets.values())

    @property
    def seatings(self) -> tuple[tuple[str, ...], ...]:
        """The line-ups: the first player in each seat, the second in all others."""
        first, second = self.names
        seats = range(self.game.agents)
        return tuple(tuple(first if seat == mine else second for seat in seats) for mine in seats)


class Played(NamedTuple):
    """All games of a match, ordered by deal, then by the first player's seat. B games, T turns, A seats."""

    reward: np.ndarray  # float64 [B, A, C]
    measured: np.ndarray  # float64 [B, A, M]
    action: np.ndarray  # int32 [B, T, A]
    acted: np.ndarray  # bool [B, T, A]

    @property
    def seat(self) -> np.ndarray:
        """int [B]: the first player's seat."""
        agents = self.reward.shape[1]
        return np.arange(len(self.reward)) % agents

    def sides(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values [B, A, ...] of the first player, and the mean over the seats of the second, [B, ...] each."""
        mine = values[np.arange(len(values)), self.seat]
        return mine, (values.sum(1) - mine) / (values.shape[1] - 1)


def prepare(settings: Settings) -> Match:
    """Loads the players.

    Raises ValueError for a game, player or number that cannot be, and for an `out` with files, before anything
    compiles.
    """
    if settings.out:
        check_new(settings.out)
    game = make_game(settings.game)
    for name, low, high in (
        ("games", 1, 2**24),
        ("seed", 0, 2**32 - 1),
        ("words", 1, 2**15 - 1),
        ("at_once", 0, 2**20),
    ):
        if not low <= (value := getattr(settings, name)) <= high:
            raise ValueError(f"{name} must be from {low} to {high}, got {value}.")
    if game.agents == 1:
        raise ValueError(f"{settings.game} has one seat: there is nobody to play against.")
    sources = settings.policy, settings.against
    names = label(sources, game.scripts)
    policies = {name: source for name, source in zip(names, sources, strict=True) if source not in game.scripts}
    for source in policies.values():
        check_source(source, game.scripts)
    try:
        policy_sets, weights = load_players(policies, game)
    except ValueError as error:
        raise ValueError(f"{error} Scripted players of this game: {', '.join(game.scripts)}.") from error
    needs = [budgets(game, policies.tokenizer, settings.words) for policies in policy_sets.values()]
    budget = np.max([np.ones(len(game.grammars), int), *needs], 0)
    for policies_of in policy_sets.values():
        assert policies_of.config is not None  # no scripts
        if budget.max() >= (room := policies_of.config.max_position_embeddings):
            raise ValueError(f"Messages of {settings.words} tokens are too long for a model that reads {room} tokens.")
    return Match(game, names, policy_sets, weights, budget.tolist(), -(-settings.games // game.agents))


def label(sources: tuple[str, str], scripts: Any) -> tuple[str, str]:
    """Names of two players: a script's or a model's own, or the shortest ends of two paths that differ."""
    parts = [(source,) if source in scripts or not Path(source).exists() else Path(source).resolve().parts
             for source in sources]  # fmt: skip
    for length in range(1, max(map(len, parts)) + 1):
        first, second = ("/".join(part[-length:]) for part in parts)
        clash = any(name in scripts and name != source for name, source in zip((first, second), sources, strict=True))
        if not clash and (first != second or parts[0] == parts[1]):
            break
    return first, second


def play(match: Match, settings: Settings, console: Console) -> tuple[Played, Rollout, Trajectory]:
    """All games, the rollout that played them, and its first batch."""
    agents, game = match.game.agents, SharedDeals(match.game)
    at_once = settings.at_once or AT_ONCE[match.small]
    batches = -(-match.deals // max(1, at_once // agents))
    deals = -(-match.deals // batches)
    rollout = Rollout(game, match.policy_sets, Lineup(match.seatings * deals, 1), match.budget)
    level = compiling.OFTEN if match.small else None
    program = jax.jit(rollout, compiler_options=compiling.options(level))
    seed = jax.random.key(settings.seed)

    def batch_input(batch: int) -> tuple[jax.Array, Any]:
        number = np.repeat(np.arange(batch * deals, (batch + 1) * deals, dtype=np.int32), agents)
        return key_for(seed, EVALUATE, batch), deals_of(settings.seed, number)

    parts = []
    with compiling.announce(f"compiling the game for {deals * agents} games at once"):
        compiled = program.lower(match.weights, *batch_input(0)).compile()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    first: Trajectory | None = None
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task, began = bar.add_task("games", total=match.deals * agents), time.monotonic()
        for batch in range(batches):
            trajectory = jax.device_get(compiled(match.weights, *batch_input(batch)))
            first = first or trajectory
            parts.append(read(trajectory))
            done = min((batch + 1) * deals, match.deals) * agents
            bar.update(task, completed=done)
            if not console.is_terminal and (batch + 1) % max(1, batches // 5) == 0:
                console.print(f"{done} of {match.deals * agents} games in {time.monotonic() - began:.0f} s")
    assert first is not None
    whole = [np.concatenate(leaves)[: match.deals * agents] for leaves in zip(*parts, strict=True)]
    return Played(*whole), rollout, first


def deals_of(seed: int, number: Any) -> tuple[jax.Array, Any]:
    """Deals of groups by number, int32 [groups], as `SharedDeals` takes them: equal for equal numbers."""
    return jax.random.key_data(batch_keys(jax.random.key(seed), DEAL, number)), number


def read(trajectory: Trajectory) -> Played:
    """The games of a batch."""
    episodes = trajectory.episodes
    reward = np.asarray(episodes.reward, np.float64).sum(1)
    measured = np.zeros((*reward.shape[:2], 0))
    if episodes.measured is not None:
        measured = np.asarray(episodes.measured, np.float64).sum(1)
    return Played(reward, measured, np.asarray(episodes.action), np.asarray(episodes.acted))


def exact(match: Match) -> dict[str, Any]:
    """Exact mean payoffs of both players by the first one's seat [A, 2], and NashConv of each in all seats.

    Raises ValueError if the game or a player has no exact table.
    """
    tree = players.tree_of(match.game, HISTORIES)
    tables = []
    for name in match.names:
        home = next((home for home, x in match.policy_sets.items() if name in x.policies), None)
        if home is None:
            tables.append(players.script_table(tree, match.game.scripts[name]))
            continue
        policy_set, weights = match.policy_sets[home], match.weights[home]
        if len(tree.owner) * sum(x.size for x in jax.tree.leaves(weights["params"])) > FORWARDS:
            raise ValueError(f"{name} is too large to be asked in all {len(tree.owner)} information sets.")
        batch, index = min(len(tree.owner), 64), policy_set.policies.index(name)
        tables.append(tabulate(tree, policy_set, index, match.budget, batch)(weights))
    payoffs = players.match_payoffs(tree, *tables)
    return {"points": payoffs.mean(0), "by_seat": payoffs, "nash_conv": [solve.nash_conv(tree, x) for x in tables]}


def summarise(match: Match, played: Played) -> dict[str, Any]:
    """The results of a match, with intervals of 95% over its games, and over its deals for the difference.

    Games of one deal depend on each other, so the difference of a deal, the mean over its seatings, is one value.
    """
    mine, theirs = played.sides(played.reward.sum(-1))
    difference = (mine - theirs).reshape(-1, match.game.agents).mean(1)
    result: dict[str, Any] = {
        "players": match.names,
        "games": len(mine),
        "difference": student_interval(difference),
        "first": head_to_head(mine, theirs, played.seat),
        "second": head_to_head(theirs, mine, played.seat),
        "means": {},
    }
    columns = [(match.game.components, played.reward)] if len(match.game.components) > 1 else []
    for names, values in [*columns, (Extras(match.game).measures, played.measured)]:
        for i, name in enumerate(names):
            result["means"][name] = [student_interval(side[:, i]) for side in played.sides(values)]
    if isinstance(match.game, MatrixGame):
        moves = slice(1, None, 2) if match.game.talk else slice(None)
        swap = lambda x: np.where((played.seat == 1)[:, None, None], x[..., ::-1], x)[:, moves]
        rate, count = cooperation_after(swap(played.action), swap(played.acted))
        result["cooperation"] = {
            case: [(float(x), int(n)) for x, n in zip(*of_case, strict=True)]
            for case, *of_case in zip(OUTCOMES, rate.T, count.T, strict=True)
        }
    return result


def table(match: Match, result: dict[str, Any], known: dict[str, Any] | None) -> Table:
    """The results of both players, a row a value."""
    clean = lambda text: escape(visible(text))
    shown = Table(box=None, pad_edge=False)
    for title in ("a game", *(f"{name} ({which})" for name, which in zip(match.names, ("A", "B"), strict=True))):
        shown.add_column(clean(title), overflow="fold")
    for title, cells in match_words.rows(match.game, result, known):
        shown.add_row(clean(title), *cells)
    return shown


def save(match: Match, settings: Settings, result: dict[str, Any], rollout: Rollout, first: Trajectory) -> None:
    """Writes match.json, and the games of the first batch as games.jsonl and games.html, at most `SHOWN`."""
    out = settings.out
    assert out is not None
    plain = lambda x: x.tolist() if hasattr(x, "tolist") else str(x)
    about = {"game": settings.game, "policy": settings.policy, "against": settings.against, "seed": settings.seed}
    (out / RESULT).write_text(json.dumps({**about, **result}, indent=1, default=plain) + "\n", encoding="utf-8")
    groups = jnp.arange(len(rollout.lineup.seats), dtype=jnp.int32)
    deals = deals_of(settings.seed, groups // match.game.agents)

    @jax.jit
    def look(weights: dict, first: Trajectory) -> examine.Examined:
        game: Any = rollout.environment
        start, _ = jax.vmap(game.reset)(batch_keys(jax.random.key(0), DEAL, groups), groups, deals)
        rules = examine.rules_told(rollout, jax.vmap(game.prompt)(start))
        return examine.Examined(first, (), rules, examine.look(rollout, weights, first))

    examined = jax.device_get(look(match.weights, first))
    arm = {"study": settings.game, "arm": " against ".join(match.names), "seed": settings.seed, "update": 0}
    record = partial(records.game_of, match.game, rollout, examined, about=arm, values={})
    shown = min(SHOWN, len(groups))
    (out / page.GAMES).write_bytes(page.lines_of([record(episode) for episode in range(shown)]))
    page.write(out, out)


def main(settings: Settings, console: Console) -> None:
    """Plays a match. Raises ValueError for a game, a player or a number that cannot be, and for an `out` that cannot be
    written, before it plays."""
    with run_directory(settings.out) if settings.out else contextlib.nullcontext():
        report(settings, console)


def report(settings: Settings, console: Console) -> None:
    """Plays a match, prints its results and writes its files."""
    match = prepare(settings)
    for source in dict.fromkeys((settings.policy, settings.against)):
        if source not in match.game.scripts and (note := note_game(source, match.game)):
            console.print(escape(note), soft_wrap=True)
    played, rollout, first = play(match, settings, console)
    result, known, without = summarise(match, played), None, ""
    with compiling.announce("solving the game"):
        try:
            known = exact(match)
        except ValueError as error:
            without = str(error)
    console.print(
        f"\n[bold]{escape(visible(match_words.sentence(match.names, match.game, result)))}[/]\n", soft_wrap=True
    )
    console.print(table(match, result, known))
    console.print(
        escape(
            f"\nwin: {'A earns more than B' if match.game.agents == 2 else 'more than the mean of the other side'}; "
            f"the same {match.deals} deals in each seating." + (f" No exact values: {without}" if without else "")
        )
    )
    if settings.out:
        with compiling.announce("writing the page of games"):
            save(match, settings, result | ({"exact": known} if known else {}), rollout, first)
        console.print(f"Games to look at: {escape(str(settings.out / page.PAGE))}", soft_wrap=True)


def command() -> None:
    """The command line."""
    settings = read_arguments(Settings, "python -m jaxmarl_llm.match", str(__doc__))

    def start() -> None:
        loading.keep_programs()
        main(settings, Console())

    surroundings.run_command(start)


if __name__ == "__main__":
    with lasting():
        command()
