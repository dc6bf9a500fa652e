"""Rollouts of text environments in plain Python, with the same policies and records as `Rollout`.

The rules run on the host, one game after the other, with text between turns: slower than `Rollout`. Policies still
decode in batches, all rows in one program. Use it for other libraries' games (TextArena, reasoning_gym, your own).
Shapes: B episodes, A seats, T turns; of one policy set R rows, S tokens a row, O prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.bridges.python_games import Script, TextEnvironment
from jaxmarl_llm.keys import DEAL, SAY, SCRIPT, batch_keys
from jaxmarl_llm.models import decoder, packing
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.decoder import Cache, Prompts
from jaxmarl_llm.rollout import decode
from jaxmarl_llm.rollout.dialogue import RULES_ONLY, Heard, hear, prompt
from jaxmarl_llm.rollout.layout import Messages, rows_of_seats
from jaxmarl_llm.rollout.names import name_text
from jaxmarl_llm.rollout.policy import allowed
from jaxmarl_llm.rollout.python_game import Dice, Game, WrongRewards, make_environment
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.text_rows import TextRowLayout, pad, power_of_two, seeds, text_layout
from jaxmarl_llm.rollout.trajectory import Episodes, Rows, Trajectory

# the recorded fields of a token, with their dtypes in Rows
CELL = (
    ("tokens", np.int32),
    ("loss_mask", np.bool_),
    ("turn", np.int32),
    ("logp", np.float32),
    ("tokens_left", np.int16),
)


@dataclass
class _Row:
    """The tokens of one seat in one game, heard and said."""

    prompt: list[int]
    stage: int
    blank: str  # as in Heard
    cells: list[tuple[int, bool, int, float, int]] = field(default_factory=list)  # the fields of CELL
    fed: int = 0  # tokens in the cache, without the prompt

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.cells)

    @property
    def pending(self) -> list[int]:
        return [cell[0] for cell in self.cells[self.fed :]]


@dataclass
class _LiveRows:
    """The rows of one policy set during a game, and their caches on the device."""

    rows: list[_Row]
    prepared: Any  # weights from `decode.prepare`
    cache: Cache | None = None
    hidden: jax.Array | None = None  # [R, D] final hidden state of the last token fed
    used: int = 0  # tokens fed to the cache
    computed: int = 0  # tokens computed for it, padding included

    def count(self, config: Config, used: np.ndarray, width: int) -> None:
        """Counts tokens fed in chunks of `width` tokens a row, of which `used` int [...] were no padding."""
        self.used += int(used.sum())
        self.computed += int(packing.count_computed(config, len(self.rows), width, jnp.asarray(used)).sum())


class PythonRollout:
    """Plays a batch of Python games: rollout(weights, key) -> Trajectory, as `Rollout`, but without jit.

    `make` is called for every episode, as some games carry state from one deal to the next. Games of a group have the
    same seed. After `turns` turns (T) a game is cut off. `budget` is the largest number of tokens of an utterance, end
    token included. Policies may say anything but control tokens; `layouts[name].tables` is that grammar. `scripts` are
    Python players that may take seats. `on_turn(turn, games in progress)` is called after every turn.

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
        on_turn: Callable[[int, int], None] | None = None,
    ):
        if not (isinstance(turns, int) and isinstance(budget, int)) or budget < 2 or turns < 1:
            raise ValueError(
                f"turns is a whole number of at least 1 and budget of at least 2 (a token and the end), got {turns!r} "
                f"and {budget!r}."
            )
        with Dice(0):
            self.agents = make_environment(make).agents
        seats: Any = SimpleNamespace(agents=self.agents, scripts=scripts, accepts_illegal=True)
        lineup.check(seats, policy_sets)
        self.wrong_rewards = WrongRewards()
        self.make, self.policy_sets, self.lineup, self.turns, self.budget = make, policy_sets, lineup, turns, budget
        self.scripts, self.on_turn, self.messages = scripts, on_turn, Messages({}, 0, 0)  # an observation is no message
        self.layouts = {name: text_layout(name, policy_sets[name], lineup, context) for name in policy_sets}
        self.row_of = {
            name: rows_of_seats(layout, lineup.episodes, self.agents) for name, layout in self.layouts.items()
        }
        self._seats_of = {name: list(zip(*lineup.rows(lineup.assignments([name])), strict=True)) for name in scripts}
        self._prepare = {name: jax.jit(partial(decode.prepare, policy_set)) for name, policy_set in policy_sets.items()}
        say = partial(jax.jit, donate_argnums=(1,))
        self._say = {name: say(partial(_say, layout, budget)) for name, layout in self.layouts.items()}

    def max_sampled_tokens(self, policy_set: str) -> int:
        """The largest number of trained tokens in a row of this policy set."""
        return self.turns * (self.budget - 1)

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
        dice = [Dice(seed) for seed in seeds(key, SCRIPT, lineup.episodes)] if self.scripts else []
        live = {name: self._open(name, weights[name], games) for name in self.layouts}
        shape = (lineup.episodes, self.turns, self.agents)
        record: dict[str, Any] = {name: np.zeros(shape, np.int32) for name in ("action", "role", "told")}
        record |= {name: np.zeros(shape, bool) for name in ("acted", "valid")}
        record |= {"reward": np.zeros((*shape, 1), np.float32), "legal": np.zeros((*shape, 1), bool)}
        for turn in range(self.turns):
            going = [index for index, game in enumerate(games) if game.in_progress]
            if not going:
                break
            said = self._speak(live, games, dice, turn, key)
            for index in going:
                game, acting = games[index], list(games[index].now.acting)
                for seat, rules in enumerate(game.rules):
                    told = game.now.told.get(seat, "")
                    record["told"][index, turn, seat] = name_text(told if turn else f"{rules}\n{told}")
                game.step(dict(sorted(said[index].items())))
                wrong = [seat for seat in acting if seat in game.now.invalid]
                for name in ("acted", "legal", "valid"):
                    record[name][index, turn, acting] = True
                record["valid"][index, turn, wrong] = False
                record["action"][index, turn, wrong] = -1
                for seat, paid in self.wrong_rewards.read(game, index, turn, said[index]).items():
                    record["reward"][index, turn, seat, 0] = paid
                if game.in_progress and turn + 1 < self.turns:
                    game.cut = not self._tell(live, index, game, turn + 1)
            if self.on_turn is not None:
                self.on_turn(turn, sum(game.in_progress for game in games))
        self.wrong_rewards.report()
        done = np.array([game.now.done for game in games])
        ends: dict[str, Any] = {"terminated": done, "truncated": ~done}
        episodes = Episodes(**record, **ends, group=group, game=np.zeros_like(group))
        rows = {name: _record_rows(layout, live[name].rows) for name, layout in self.layouts.items()}
        used = {name: jnp.float32(state.used / max(state.computed, 1)) for name, state in live.items()}
        return jax.tree.map(jnp.asarray, Trajectory(episodes, rows, used, {name: jnp.int32(0) for name in rows}))

    def _open(self, name: str, weights: dict, games: list[Game]) -> _LiveRows:
        """Writes the prompts, one for each group and seat, and computes each once."""
        layout, rows = self.layouts[name], []
        policy_set, config, group_size = layout.policy_set, layout.policy_set.config, layout.group_size
        for group, seat, _ in layout.assignments.tolist():
            game = games[group * group_size]
            heard, stage, blank = _observe(layout, RULES_ONLY, "", game, seat)
            tokens = [*prompt(policy_set.tokenizer, layout.encode, [game.rules[seat]]), *heard]
            if not 1 <= len(tokens) <= layout.context - self.budget:
                raise ValueError(
                    f"The prompt of seat {seat} has {len(tokens)} tokens ({name}); with an answer of {self.budget} "
                    f"the context of {layout.context} has room for 1 to {layout.context - self.budget}."
                )
            rows += [_Row(tokens, stage, blank) for _ in range(group_size)]
        if config is None:
            return _LiveRows(rows, None)
        prepared = self._prepare[name](weights)
        prompts, length = pad([row.prompt for row in rows[::group_size]])
        adapter = layout.adapter(group_size)
        return _LiveRows(rows, prepared, *_read_prompts(config, group_size, prepared, prompts, length, adapter))

    def _speak(
        self, live: dict[str, _LiveRows], games: list[Game], dice: list[Dice], turn: int, key: jax.Array
    ) -> list[dict[int, str]]:
        """The utterances of every acting seat in the games in progress: texts by episode and seat."""
        said: list[dict[int, str]] = [{} for _ in games]
        speaks = lambda index, seat: games[index].in_progress and seat in games[index].now.acting
        for name, seats in self._seats_of.items():
            for index, seat in seats:
                if speaks(index, seat):
                    with dice[index]:
                        said[index][int(seat)] = self.scripts[name](tuple(games[index].seen[seat]))
        for name, layout in self.layouts.items():
            tokenizer = layout.policy_set.tokenizer
            assignments = list(zip(layout.episode.tolist(), layout.seat.tolist(), strict=True))
            acting = [row for row, place in enumerate(assignments) if speaks(*place)]
            if not acting:
                continue
            if layout.policy_set.config is None:
                texts = (layout.encode(said[index][seat]) for index, seat in (assignments[row] for row in acting))
                answers = [([*text[: self.budget - 1], tokenizer.end], [0.0] * self.budget) for text in texts]
            else:
                answers = self._decode(name, live[name], acting, turn, key)
            for row, (tokens, logp) in zip(acting, answers, strict=True):
                for i, token in enumerate(tokens):  # the last place holds only the end
                    loss_mask, left = i < self.budget - 1, self.budget - i
                    live[name].rows[row].cells.append((token, loss_mask, turn, logp[i] * loss_mask, left * loss_mask))
                index, seat = assignments[row]
                spelled = b"".join(tokenizer.token_bytes[token] for token in tokens[:-1])
                said[index][seat] = spelled.decode(errors="replace")
        return said

    def _decode(
        self, name: str, live: _LiveRows, acting: list[int], turn: int, key: jax.Array
    ) -> list[tuple[list[int], list[float]]]:
        """Feeds the unread tokens of the acting rows; samples utterances: tokens with the end, log-probabilities."""
        layout = self.layouts[name]
        config, cache, prepared = layout.policy_set.config, live.cache, live.prepared
        assert config is not None and cache is not None and prepared is not None
        chunk, n = pad([state.pending if row in acting else [] for row, state in enumerate(live.rows)])
        fed = np.array([row.fed for row in live.rows])
        slots = max(int(fed.max()) + chunk.shape[1] * bool(n.any()), int((fed + n).max()) + self.budget)
        cache = _widen(cache, power_of_two(slots))
        if n.any():
            cache, live.hidden = _feed(config, prepared, cache, live.hidden, chunk, n, layout.adapter())
            live.count(config, n.sum(), chunk.shape[1])
        speaking = np.isin(np.arange(len(live.rows)), acting)
        live.cache, *results = self._say[name](prepared, cache, live.hidden, speaking, np.int32(turn), key)
        tokens, logp, length = jax.device_get(results)
        live.count(config, (length > np.arange(1, length.max())[:, None]).sum(1), 1)  # the last token is not fed
        for row in acting:
            live.rows[row].fed += int(n[row] + length[row]) - 1  # the end token is fed with the next observation
        return [(tokens[row, : length[row]].tolist(), logp[row].tolist()) for row in acting]

    def _tell(self, live: dict[str, _LiveRows], index: int, game: Game, turn: int) -> bool:
        """Writes the observations before `turn` to the rows of a game; False and no change if a row has no room."""
        heard = []
        rows_of_game = {name: row_of[index].tolist() for name, row_of in self.row_of.items()}
        for name, number in ((name, row) for name, numbers in rows_of_game.items() for row in numbers if row >= 0):
            layout, row = self.layouts[name], live[name].rows[number]
            seat = int(layout.seat[number])
            told = _observe(layout, row.stage, row.blank, game, seat)
            answer = self.budget if seat in game.now.acting else 0
            if row.length + len(told.tokens) + answer > layout.context:
                return False
            heard.append((row, told))
        for row, (tokens, row.stage, row.blank) in heard:
            row.cells += [(token, False, turn, 0.0, 0) for token in tokens]
        return True


def _observe(layout: TextRowLayout, stage: int, blank: str, game: Game, seat: int) -> Heard:
    told = game.now.told.get(seat, "")
    return hear(layout.policy_set.tokenizer, layout.encode, stage, [told], seat in game.now.acting, blank)


_feed = partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))(decode.feed)


@partial(jax.jit, static_argnums=(0, 1))
def _read_prompts(
    config: Config, group_size: int, prepared: dict, tokens: jax.Array, n: jax.Array, policy: jax.Array | None
) -> tuple[Cache, jax.Array]:
    """(caches, hidden [R, D]) of rows that have read the prompts, `tokens` int32 [O, L] with lengths `n` [O]."""
    cache = decoder.empty_cache(config, tokens.shape[0], tokens.shape[1])
    hidden = jnp.zeros((len(tokens), config.hidden_size), config.dtypes.compute)
    prompts, hidden = decode.feed(config, prepared, cache, hidden, tokens, n, policy)
    return decoder.empty_cache(config, group_size * len(tokens), 1, prompts), jnp.repeat(hidden, group_size, 0)


def _say(
    layout: TextRowLayout,
    budget: int,
    prepared: dict,
    cache: Cache,
    hidden: jax.Array,
    speaking: jax.Array,
    turn: jax.Array,
    key: jax.Array,
) -> tuple[Cache, jax.Array, jax.Array, jax.Array]:
    """(caches, tokens int32 [R, budget], log-probabilities, lengths [R]) of an utterance of each speaking row."""
    assert layout.policy_set.config is not None
    voice = decode.Voice(layout.policy_set.config, layout.tables, layout.sampling, layout.adapter())
    start = jnp.asarray(layout.tables.start)

    def mask(state, i):  # [1, V]: every speaking row is in the same state, free text
        return allowed(layout.tables, start, jnp.ones((1, 1), bool), (budget - i)[None])

    keys = lambda i: batch_keys(key, SAY, layout.episode, turn, layout.seat, i)
    uniform = jax.vmap(lambda i: jax.vmap(jax.random.uniform)(keys(i)))(jnp.arange(budget, dtype=jnp.int32))
    everywhere = jnp.broadcast_to(start, (len(layout.policy),))
    return decode.utter(voice, prepared, cache, hidden, speaking, everywhere, uniform, mask)


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


def _widen(cache: Cache, slots: int) -> Cache:
    """The cache with room for at least `slots` tokens a row."""
    extra = max(slots - cache.keys[0].shape[3], 0)
    if not extra:
        return cache
    keys = tuple(jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, extra))) for x in cache.keys)
    values = tuple(jnp.pad(x, ((0, 0), (0, 0), (0, extra), (0, 0))) for x in cache.values)
    return cache.replace(keys=keys, values=values)
