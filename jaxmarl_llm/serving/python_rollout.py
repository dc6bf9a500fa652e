"""Rollouts of text environments in plain Python, with the same policies and records as `Rollout`.

The rules run on the host, with text between turns: slower than `Rollout`. An engine computes the answers of all games
together, and no game waits for another. Use it for other libraries' games (TextArena, reasoning_gym, your own).
Shapes: B episodes, A seats, T turns; of one policy set R rows, S tokens a row, O prompts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.bridges.python_games import Script, TextEnvironment
from jaxmarl_llm.keys import DEAL, SAY, SCRIPT
from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.rollout.dialogue import RULES_ONLY, Heard, hear, prompt
from jaxmarl_llm.rollout.names import name_text
from jaxmarl_llm.rollout.policy import sampling_of
from jaxmarl_llm.rollout.python_game import Dice, Game, WrongRewards, make_environment
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.text_rows import TextRowLayout, pad, seeds
from jaxmarl_llm.rollout.trajectory import Episodes, Rows, Trajectory
from jaxmarl_llm.serving.calls import Answer, Call
from jaxmarl_llm.serving.host_rollout import HostRollout

# the recorded fields of a token, with their dtypes in Rows
CELL = (
    ("tokens", np.int32),
    ("loss_mask", np.bool_),
    ("turn", np.int32),
    ("logp", np.float32),
    ("tokens_left", np.int16),
)


@dataclass(eq=False)
class _Row:
    """The tokens of one seat in one game, heard and said."""

    prompt: list[int]
    stage: int
    blank: str  # as in Heard
    cells: list[tuple[int, bool, int, float, int]] = field(default_factory=list)  # the fields of CELL

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.cells)

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *(cell[0] for cell in self.cells)]


class PythonRollout(HostRollout):
    """Plays a batch of Python games: rollout(weights, key) -> Trajectory, as `Rollout`, but without jit.

    `make` is called for every episode, as some games carry state from one deal to the next. Games of a group have the
    same seed. After `turns` turns (T) a game is cut off. `budget` is the largest number of tokens of an utterance, end
    token included. Policies may say anything but control tokens; `layouts[name].tables` is that grammar. `scripts` are
    Python players that may take seats. `slots` is the
    number of rows that are computed at once, rounded up to a power of two; None: all of them.

    The environment gets answers as text, with U+FFFD for bytes outside UTF-8; rows hold "?" for unknown characters.
    `context` is the largest number of tokens of a row, by default the model's. A game with a longer dialogue is cut
    off, and `truncated`; a longer prompt is an error.

    The records are those of `Rollout`, with one reward component and one action: 0, or -1 for an invalid answer. A
    reward that is no finite number ends its game and is recorded as NaN. Widths are powers of two, for few programs.
    Raises ValueError before anything compiles for a line-up that cannot play, a budget below 2, or a wrong context.
    Different games in a group and a tokenizer without "?" or end token also raise ValueError.
    """

    def __init__(
        self,
        make: Callable[[], TextEnvironment],
        policy_sets: dict[str, PolicySet],
        lineup: Lineup,
        turns: int,
        budget: int = 64,
        context: int | None = None,
        scripts: Mapping[str, Script] = MappingProxyType({}),
        slots: int | None = None,
    ):
        if not (isinstance(turns, int) and isinstance(budget, int)) or budget < 2 or turns < 1:
            raise ValueError(
                f"turns is a whole number of at least 1 and budget of at least 2 (a token and the end), got {turns!r} "
                f"and {budget!r}."
            )
        with Dice(0):
            agents = make_environment(make).agents
        super().__init__(policy_sets, lineup, agents, turns, budget, context, slots, scripts)
        self.make, self.scripts, self.wrong_rewards = make, scripts, WrongRewards()

    def __call__(self, weights: dict[str, dict], key: jax.Array) -> Trajectory:
        lineup, group_size = self.lineup, self.lineup.group_size
        group: Any = np.repeat(np.arange(len(lineup.seats), dtype=np.int32), group_size)
        deals = seeds(key, DEAL, len(lineup.seats))
        games = [Game(self.make, deals[q]) for q in group]
        for index, game in enumerate(games):
            first = games[index // group_size * group_size]
            if (game.rules, game.now) != (first.rules, first.now):
                raise ValueError(
                    f"Two games of seed {deals[group[index]]} begin differently: an environment must draw from its "
                    "seed, or from the global generators of Python and NumPy."
                )
        rows = {name: self._open(name, games) for name in self.layouts}
        batch = _Batch(self, games, rows, key)
        with self.with_weights(weights):
            batch.play()
        self.wrong_rewards.report()
        done = np.array([game.now.done for game in games])
        ends: dict[str, Any] = {"terminated": done, "truncated": ~done}
        episodes = Episodes(**batch.record, **ends, group=group, game=np.zeros_like(group))
        records = {name: _record_rows(layout, rows[name]) for name, layout in self.layouts.items()}
        cut = {name: jnp.int32(0) for name in rows}
        return jax.tree.map(jnp.asarray, Trajectory(episodes, records, self.utilisation(), cut))

    def _open(self, name: str, games: list[Game]) -> list[_Row]:
        """The rows of a policy set with their prompts, which a group shares."""
        layout, rows = self.layouts[name], []
        policy_set, group_size = layout.policy_set, layout.group_size
        for group, seat, _ in layout.assignments.tolist():
            game = games[group * group_size]
            heard, stage, blank = _observe(layout, RULES_ONLY, "", game, seat)
            tokens = [*prompt(policy_set.tokenizer, layout.encode, [game.rules[seat]]), *heard]
            if not 1 <= len(tokens) <= layout.context - self.budget:
                raise ValueError(
                    f"The prompt of seat {seat} has {len(tokens)} tokens ({name}); with an answer of {self.budget} "
                    f"the context of {layout.context} has room for 1 to {layout.context - self.budget}. Pretrained "
                    "models read more than tiny ones."
                )
            rows += [_Row(tokens, stage, blank) for _ in range(group_size)]
        return rows


class _Batch:
    """The games of a call, each at its own turn."""

    def __init__(self, rollout: PythonRollout, games: list[Game], rows: dict[str, list[_Row]], key: jax.Array):
        self.rollout, self.games, self.rows = rollout, games, rows
        self.key = jax.random.key_data(key).tolist()
        scripts = rollout.scripts
        self.dice = [Dice(seed) for seed in seeds(key, SCRIPT, len(games))] if scripts else []
        self.scripted: list[list[tuple[str, int]]] = [[] for _ in games]  # (script, seat) of every game
        for name in scripts:
            for index, seat in zip(*rollout.lineup.rows(rollout.lineup.assignments([name])), strict=True):
                self.scripted[index].append((name, int(seat)))
        self.turn = [0] * len(games)
        self.said: list[dict[int, str]] = [{} for _ in games]
        self.awaited = [0] * len(games)  # answers of the turn that are not there yet
        self.ready: deque[int] = deque()  # games whose turn has all answers
        shape = (len(games), rollout.turns, rollout.agents)
        self.record: dict[str, Any] = {name: np.zeros(shape, np.int32) for name in ("action", "role", "told")}
        self.record |= {name: np.zeros(shape, bool) for name in ("acted", "valid")}
        self.record |= {"reward": np.zeros((*shape, 1), np.float32), "legal": np.zeros((*shape, 1), bool)}

    def play(self) -> None:
        """Plays all games to their ends."""
        for index, game in enumerate(self.games):
            if game.in_progress:
                self._ask(index)
        engines = list(self.rollout.engines.values())
        while self.ready or any(engine.busy for engine in engines):
            while self.ready:
                index = self.ready.popleft()
                self._step(index)
                if self.games[index].in_progress and self.turn[index] < self.rollout.turns:
                    self._ask(index)
            for engine in engines:
                engine.step()

    def _ask(self, index: int) -> None:
        """Begins a turn of a game: scripts answer at once, policies when their engine has computed the answer."""
        rollout, acting = self.rollout, self.games[index].now.acting
        said = self.said[index] = {}
        for name, seat in self.scripted[index]:
            if seat in acting:
                with self.dice[index]:
                    said[seat] = rollout.scripts[name](tuple(self.games[index].seen[seat]))
        calls = []
        for name, layout in rollout.layouts.items():
            tokenizer, row_of = layout.policy_set.tokenizer, rollout.row_of[name][index]
            for seat in (seat for seat in range(rollout.agents) if seat in acting and row_of[seat] >= 0):
                if layout.policy_set.config is None:
                    tokens = [*layout.encode(said[seat])[: rollout.budget - 1], tokenizer.end]
                    self._write(name, index, seat, Answer(tokens, [0.0] * len(tokens)))
                else:
                    calls.append((name, self._call(name, index, seat)))
        self.awaited[index] = len(calls)
        for name, call in calls:
            rollout.engines[name].submit(call)
        if not calls:
            self.ready.append(index)

    def _call(self, name: str, index: int, seat: int) -> Call:
        layout, number = self.rollout.layouts[name], int(self.rollout.row_of[name][index, seat])

        def settle(call: Call, answer: Answer) -> None:
            self._write(name, index, seat, answer)
            self.awaited[index] -= 1
            if not self.awaited[index]:
                self.ready.append(index)

        policy = int(layout.policy[number])
        return Call(
            self.rows[name][number].tokens,
            self.key,
            (SAY, index, self.turn[index], seat),
            self.rollout.budget - 1,  # the last place holds only the end
            policy=policy,
            sampling=sampling_of(layout.policy_set.sampling, policy),
            owner=number,
            done=settle,
        )

    def _write(self, name: str, index: int, seat: int, answer: Answer) -> None:
        """Writes an answer to its row, ended if it was cut off, and reads it as text."""
        layout, budget = self.rollout.layouts[name], self.rollout.budget
        tokenizer, cells = layout.policy_set.tokenizer, self.rows[name][self.rollout.row_of[name][index, seat]].cells
        ended = answer.tokens[-1] == tokenizer.end
        tokens = answer.tokens if ended else [*answer.tokens, tokenizer.end]
        for i, token in enumerate(tokens):
            sampled = i < budget - 1
            cells.append((token, sampled, self.turn[index], answer.logp[i] if sampled else 0.0, (budget - i) * sampled))
        spelled = b"".join(tokenizer.token_bytes[token] for token in tokens[:-1])
        self.said[index][seat] = spelled.decode(errors="replace")

    def _step(self, index: int) -> None:
        """Plays the answers of a turn, and records it."""
        rollout, game, turn, record = self.rollout, self.games[index], self.turn[index], self.record
        acting, said = list(game.now.acting), dict(sorted(self.said[index].items()))
        for seat, rules in enumerate(game.rules):
            told = game.now.told.get(seat, "")
            record["told"][index, turn, seat] = name_text(told if turn else f"{rules}\n{told}")
        game.step(said)
        wrong = [seat for seat in acting if seat in game.now.invalid]
        for name in ("acted", "legal", "valid"):
            record[name][index, turn, acting] = True
        record["valid"][index, turn, wrong] = False
        record["action"][index, turn, wrong] = -1
        for seat, paid in rollout.wrong_rewards.read(game, index, turn, said).items():
            record["reward"][index, turn, seat, 0] = paid
        self.turn[index] += 1
        if game.in_progress and self.turn[index] < rollout.turns:
            game.cut = not self._tell(index)

    def _tell(self, index: int) -> bool:
        """Writes the observations before a game's turn to its rows; False and no change if a row has no room."""
        game, heard = self.games[index], []
        for name, layout in self.rollout.layouts.items():
            for number in (number for number in self.rollout.row_of[name][index].tolist() if number >= 0):
                row, seat = self.rows[name][number], int(layout.seat[number])
                told = _observe(layout, row.stage, row.blank, game, seat)
                answer = self.rollout.budget if seat in game.now.acting else 0
                if row.length + len(told.tokens) + answer > layout.context:
                    return False
                heard.append((row, told))
        for row, (tokens, row.stage, row.blank) in heard:
            row.cells += [(token, False, self.turn[index], 0.0, 0) for token in tokens]
        return True


def _observe(layout: TextRowLayout, stage: int, blank: str, game: Game, seat: int) -> Heard:
    told = game.now.told.get(seat, "")
    return hear(layout.policy_set.tokenizer, layout.encode, stage, [told], seat in game.now.acting, blank)


def _record_rows(layout: TextRowLayout, rows: list[_Row]) -> Rows:
    """The record of finished rows."""
    columns: dict[str, Any] = {}
    columns["tokens"], columns["length"] = pad([[cell[0] for cell in row.cells] for row in rows])
    for field_index, (name, dtype) in enumerate(CELL[1:], 1):
        columns[name] = np.zeros(columns["tokens"].shape, dtype)
        for column, row in zip(columns[name], rows, strict=True):
            column[: len(row.cells)] = [cell[field_index] for cell in row.cells]
    columns["grammar_state"] = np.where(columns["loss_mask"], layout.tables.start[0], 0).astype(np.int16)
    columns["prompt"] = np.repeat(np.arange(len(layout.assignments), dtype=np.int32), layout.group_size)
    assignments = {name: getattr(layout, name).astype(np.int32) for name in ("episode", "seat", "policy")}
    tokens, length = pad([row.prompt for row in rows[:: layout.group_size]])
    return Rows(prompts=Prompts(jnp.asarray(tokens), jnp.asarray(length)), **columns, **assignments)
