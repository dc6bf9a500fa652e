"""Text environments in plain Python, played by the same policies and written down in the same records.

The slow path: rules run on the host, one game after the other, and between turns everything goes through text. The
policies still decode in batches: one program feeds what was heard, one lets all acting rows speak. For games that the
package lacks (TextArena, reasoning_gym, one's own); their trajectories are scored and trained on like any others.
Shapes: B episodes, A seats, T turns; of one family R rows, S tokens a row, O openings, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.python_games import Script, TextEnvironment, Turn
from jaxmarl_llm.keys import DEAL, SAY, SCRIPT, batch_keys
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.decoder import Cache, Prompts
from jaxmarl_llm.rollout.policy import PerRow, allowed, distribution, per_row, sample
from jaxmarl_llm.rollout.rollout import LISTENING, RULES_ONLY, SPOKE
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import Episodes, Rows, Trajectory
from jaxmarl_llm.text.grammar import Free, TokenTables, lift
from jaxmarl_llm.text.tokenizers import Markers, speller

# what is kept of a token of a row, and its dtype in Rows
CELL = (
    ("tokens", np.int32),
    ("loss_mask", np.bool_),
    ("turn", np.int32),
    ("logp", np.float32),
    ("tokens_left", np.int16),
)


class _Dice:
    """As a context: the global generators of Python and NumPy, with a state of one's own that starts from a seed."""

    def __init__(self, seed: int):
        self._state = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    def _swap(self) -> None:
        ours = self._state
        self._state = random.getstate(), np.random.get_state()  # noqa: NPY002 - what environments draw from
        random.setstate(ours[0])
        np.random.set_state(ours[1])  # noqa: NPY002


class _Game:
    """One episode: the environment, its dice, and what was told."""

    def __init__(self, make: Callable[[], TextEnvironment], seed: int):
        self.dice = _Dice(seed)
        with self.dice:
            self.environment = make()
            rules, self.now = self.environment.reset(seed)
        self.rules = list(rules)
        self.seen = [[text] for text in self.rules]
        self.cut = False
        self._check()

    @property
    def going(self) -> bool:
        return not (self.now.done or self.cut)

    def step(self, said: dict[int, str]) -> None:
        for seat, text in said.items():
            self.seen[seat].append(text)
        try:
            with self.dice:
                self.now = self.environment.step(said)
        except Exception as error:
            error.add_note(f"The environment raised this when the seats said {said!r}.")
            raise
        self._check()

    def _check(self) -> None:
        if not isinstance(self.now, Turn):
            raise ValueError(f"An environment's reset and step must give a Turn, this one gave {self.now!r}.")
        seats = range(self.environment.agents)
        named = {*self.now.told, *self.now.acting, *self.now.reward}
        if not self.now.done and not self.now.acting:
            raise ValueError("The environment is not done, but lets no seat speak.")
        if len(self.rules) != len(seats) or not named <= set(seats):
            raise ValueError(
                f"The environment has seats 0 to {len(seats) - 1}, but gives rules to {len(self.rules)} and speaks of "
                f"{sorted(named)}."
            )
        for seat, text in self.now.told.items():
            self.seen[seat] += [text] if text else []


@dataclass
class _Row:
    """What one seat saw and said in one game, as tokens."""

    prompt: list[int]
    stage: int
    cells: list[tuple[int, bool, int, float, int]] = field(default_factory=list)  # as CELL says
    fed: int = 0  # tokens in the cache, without the opening

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.cells)

    @property
    def unfed(self) -> list[int]:
        return [cell[0] for cell in self.cells[self.fed :]]


@dataclass
class _Play:
    """The rows of one family in the middle of a game, and on the device what was fed of them."""

    rows: list[_Row]
    prepared: dict | None
    cache: Cache | None = None
    hidden: jax.Array | None = None  # [R, D] final hidden state of the last token fed
    used: int = 0  # row slots of `append` that held a row with something to add
    decoded: int = 0  # row slots of `append`


@dataclass(frozen=True, eq=False)
class RowLayout:
    """What is fixed about one family's rows when the rollout is built."""

    policy_set: PolicySet
    tables: TokenTables
    encode: Callable[[str], list[int]]
    context: int
    assignments: np.ndarray  # int [O, 3]: group, seat, policy
    group_size: int
    episode: np.ndarray  # int [R]
    seat: np.ndarray  # int [R]
    policy: np.ndarray  # int [R]
    sampling: PerRow

    def adapter(self, step: int = 1) -> jax.Array | None:
        """The adapter of every row, None where there is nothing to tell apart."""
        policy_set = self.policy_set
        return None if policy_set.lora is None or policy_set.merged else jnp.asarray(self.policy[::step], jnp.int32)


class HostRollout:
    """Plays a batch of Python games: rollout(weights, key) -> Trajectory, as Rollout does, but not to be jitted.

    `make` is called for every episode, as some games carry state from one deal to the next; games of a group have the
    same seed. `turns` is T, after which a game is cut off. `budget` is the most tokens of an utterance, the end token
    included; anything but control tokens may be said (`sides[family].tables` is that grammar, for policy.score).
    Everything an answer says reaches the environment as text, bytes that are not UTF-8 as U+FFFD; what a tokenizer
    cannot spell is told as "?". `context` is the most tokens of a row, at most and by default the model's.
    A game in which somebody is told more than fits is cut off, and `truncated`; an opening too long is an error.
    `scripts` are players in Python that may take seats. `on_turn(turn, games still going)` is called after every turn.

    Records are Rollout's, with one action (0, or -1 where the environment calls the answer invalid) and one reward
    component, and widths that are powers of two: few programs are compiled, and few by whoever trains on them.
    Raises ValueError, before anything compiles, for a line-up that cannot play, a budget below 2, a tokenizer without
    "?" or end token, a context above the model's or too short for an opening, and games of one group that begin
    differently.
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
        if budget < 2 or turns < 1:
            raise ValueError(f"budget must be at least 2 (a token and the end) and turns 1, got {budget} and {turns}.")
        with _Dice(0):
            self.agents = make().agents
        seats: Any = SimpleNamespace(agents=self.agents, scripts=scripts, accepts_illegal=True)
        lineup.check(seats, policy_sets)
        self.make, self.policy_sets, self.lineup, self.turns, self.budget = make, policy_sets, lineup, turns, budget
        self.scripts, self.on_turn = scripts, on_turn
        self.layouts = {name: self._side(name, policy_set, context) for name, policy_set in policy_sets.items()}
        self._rows_of: list[list[tuple[str, int]]] = [[] for _ in range(lineup.episodes)]
        for name, layout in self.layouts.items():
            for row, episode in enumerate(layout.episode.tolist()):
                self._rows_of[episode].append((name, row))
        self._seats_of = {name: list(zip(*lineup.rows(lineup.assignments([name])), strict=True)) for name in scripts}
        self._uniforms = {name: jax.jit(partial(_uniforms, layout, budget)) for name, layout in self.layouts.items()}
        say = partial(jax.jit, donate_argnums=(1,))
        self._say = {name: say(partial(_say, layout, budget)) for name, layout in self.layouts.items()}

    def max_sampled_tokens(self, policy_set: str) -> int:
        """The most trained tokens that a row of this family can hold."""
        return self.turns * (self.budget - 1)

    def _side(self, name: str, policy_set: PolicySet, context: int | None) -> RowLayout:
        if not policy_set.masked:
            raise ValueError(
                f"Family {name!r} is unmasked, but games on the host take any text anyway, and a control token is no "
                "text: leave it masked."
            )
        most = 2**30 if policy_set.config is None else policy_set.config.max_position_embeddings
        if context is not None and context > most:
            raise ValueError(f"A context of {context} tokens was asked for, but that of {name} holds {most}.")
        encode = speller(policy_set.tokenizer)
        assignments = self.lineup.assignments(policy_set.policies)
        episode, seat = self.lineup.rows(assignments)
        policy = np.repeat(assignments[:, 2], self.lineup.group_size)
        return RowLayout(
            policy_set=policy_set,
            tables=lift(((Free(),),), policy_set.tokenizer.token_bytes, policy_set.tokenizer.end),
            encode=encode,
            context=most if context is None else context,
            assignments=assignments,
            group_size=self.lineup.group_size,
            episode=episode,
            seat=seat,
            policy=policy,
            sampling=per_row(policy_set.sampling, policy),
        )

    def __call__(self, weights: dict[str, dict], key: jax.Array) -> Trajectory:
        lineup, group_size = self.lineup, self.lineup.group_size
        group: Any = np.repeat(np.arange(len(lineup.seats), dtype=np.int32), group_size)
        deals = _seeds(key, DEAL, len(lineup.seats))
        games = [_Game(self.make, deals[q]) for q in group]
        for index, game in enumerate(games):
            first = games[index // group_size * group_size]
            if (game.rules, game.now) != (first.rules, first.now):
                raise ValueError(
                    f"Two games of seed {deals[group[index]]} begin differently: an environment must draw from its "
                    "seed, or from the global generators of Python and NumPy."
                )
        dice = [_Dice(seed) for seed in _seeds(key, SCRIPT, lineup.episodes)] if self.scripts else []
        plays = {name: self._open(name, weights[name], games) for name in self.layouts}
        shape = (lineup.episodes, self.turns, self.agents)
        record: dict[str, Any] = {
            "reward": np.zeros((*shape, 1), np.float32),
            "acted": np.zeros(shape, bool),
            "action": np.zeros(shape, np.int32),
            "legal": np.zeros((*shape, 1), bool),
            "valid": np.zeros(shape, bool),
            "role": np.zeros(shape, np.int32),
        }
        for turn in range(self.turns):
            going = [index for index, game in enumerate(games) if game.going]
            if not going:
                break
            said = self._speak(plays, games, dice, turn, key)
            for index in going:
                game, acting = games[index], list(games[index].now.acting)
                game.step(dict(sorted(said[index].items())))
                wrong = [seat for seat in acting if seat in game.now.invalid]
                for name in ("acted", "legal", "valid"):
                    record[name][index, turn, acting] = True
                record["valid"][index, turn, wrong] = False
                record["action"][index, turn, wrong] = -1
                for seat, paid in game.now.reward.items():
                    record["reward"][index, turn, seat, 0] = paid
                if game.going and turn + 1 < self.turns:
                    game.cut = not self._tell(plays, index, game, turn + 1)
            if self.on_turn is not None:
                self.on_turn(turn, sum(game.going for game in games))
        done = np.array([game.now.done for game in games])
        ends: dict[str, Any] = {"terminated": done, "truncated": ~done}
        episodes = Episodes(**record, **ends, group=group, game=np.zeros_like(group))
        rows = {name: _rows(layout, plays[name].rows) for name, layout in self.layouts.items()}
        used = {name: jnp.float32(play.used / max(play.decoded, 1)) for name, play in plays.items()}
        return jax.tree.map(jnp.asarray, Trajectory(episodes, rows, used, {name: jnp.int32(0) for name in rows}))

    def _open(self, name: str, weights: dict, games: list[_Game]) -> _Play:
        """Writes the openings, one for each group and seat, and computes each once."""
        layout, rows = self.layouts[name], []
        policy_set, config, group_size = layout.policy_set, layout.policy_set.config, layout.group_size
        for group, seat, _ in layout.assignments.tolist():
            game = games[group * group_size]
            heard, stage = _hear(layout, RULES_ONLY, game.now, seat)
            prompt = [*policy_set.tokenizer.markers.before_rules, *layout.encode(game.rules[seat]), *heard]
            if not 1 <= len(prompt) <= layout.context - self.budget:
                raise ValueError(
                    f"The opening of seat {seat} has {len(prompt)} tokens ({name}); with an answer of {self.budget} "
                    f"the context of {layout.context} has room for 1 to {layout.context - self.budget}."
                )
            rows += [_Row(prompt, stage) for _ in range(group_size)]
        if config is None:
            return _Play(rows, None)
        joined = lora.concatenate(weights["adapters"], policy_set.loras) if policy_set.lora else None
        prepared = _prepare(config, weights["params"], joined, policy_set.merged)
        tokens, length = _padded([row.prompt for row in rows[::group_size]])
        return _Play(rows, prepared, *_begin(config, group_size, prepared, tokens, length, layout.adapter(group_size)))

    def _speak(
        self, plays: dict[str, _Play], games: list[_Game], dice: list[_Dice], turn: int, key: jax.Array
    ) -> list[dict[int, str]]:
        """Lets every acting seat of the games that go on speak: what was said, by episode and seat."""
        said: list[dict[int, str]] = [{} for _ in games]
        speaks = lambda index, seat: games[index].going and seat in games[index].now.acting  # noqa: E731
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
                answers = self._decode(name, plays[name], acting, turn, key)
            for row, (tokens, logp) in zip(acting, answers, strict=True):
                for i, token in enumerate(tokens):  # in the last place only the end can stand
                    loss_mask, left = i < self.budget - 1, self.budget - i
                    plays[name].rows[row].cells.append((token, loss_mask, turn, logp[i] * loss_mask, left * loss_mask))
                index, seat = assignments[row]
                spelled = b"".join(tokenizer.token_bytes[token] for token in tokens[:-1])
                said[index][seat] = spelled.decode(errors="replace")
        return said

    def _decode(
        self, name: str, play: _Play, acting: list[int], turn: int, key: jax.Array
    ) -> list[tuple[list[int], list[float]]]:
        """Feeds what the acting rows have heard and lets them speak: tokens with the end, and log-probabilities."""
        layout, count = self.layouts[name], len(play.rows)
        config, cache, prepared = layout.policy_set.config, play.cache, play.prepared
        assert config is not None and cache is not None and prepared is not None
        unfed: list[list[int]] = [[] for _ in play.rows]
        for row in acting:
            unfed[row] = play.rows[row].unfed
        chunk, n = _padded(unfed)
        feeds = bool(n.any())
        fed = np.array([row.fed for row in play.rows])
        slots = max(int(fed.max()) + chunk.shape[1] * feeds, int((fed + n).max()) + self.budget)
        cache = _wider(cache, _bucket(slots))
        if feeds:
            cache, play.hidden = _feed(config, prepared, cache, play.hidden, chunk, n, layout.adapter())
            play.used, play.decoded = play.used + int((n > 0).sum()), play.decoded + count
        speaking = np.zeros(count, bool)
        speaking[acting] = True
        uniform = self._uniforms[name](np.int32(turn), key)
        play.cache, *results = self._say[name](prepared, cache, play.hidden, speaking, uniform)
        tokens, logp, length = jax.device_get(results)
        longest = int(length.max())
        play.used, play.decoded = play.used + int(length.sum()) - len(acting), play.decoded + count * (longest - 1)
        for row in acting:
            play.rows[row].fed += int(n[row] + length[row]) - 1  # the end waits until there is something after it
        return [(tokens[row, : length[row]].tolist(), logp[row].tolist()) for row in acting]

    def _tell(self, plays: dict[str, _Play], index: int, game: _Game, turn: int) -> bool:
        """Writes down what the rows of a game hear before `turn`; if it does not fit one of them, nothing and False."""
        heard = []
        for name, number in self._rows_of[index]:
            layout, row = self.layouts[name], plays[name].rows[number]
            seat = int(layout.seat[number])
            tokens, stage = _hear(layout, row.stage, game.now, seat)
            answer = self.budget if seat in game.now.acting else 0
            if row.length + len(tokens) + answer > layout.context:
                return False
            heard.append((row, tokens, stage))
        for row, tokens, row.stage in heard:
            row.cells += [(token, False, turn, 0.0, 0) for token in tokens]
        return True


def hear(
    markers: Markers, encode: Callable[[Any], list[int]], stage: int, text: Any, acting: bool
) -> tuple[list[int], int]:
    """The tokens of what a seat is told now, markers and the call to speak included, and where it then stands."""
    if not (text or acting):
        return [], stage
    before = {RULES_ONLY: markers.hear_first, LISTENING: (), SPOKE: markers.hear}[stage]
    return [*before, *encode(text), *(markers.speak if acting else ())], SPOKE if acting else LISTENING


def _hear(layout: RowLayout, stage: int, turn: Turn, seat: int) -> tuple[list[int], int]:
    return hear(layout.policy_set.tokenizer.markers, layout.encode, stage, turn.told.get(seat, ""), seat in turn.acting)


@partial(jax.jit, static_argnums=(0, 3))
def _prepare(config: Config, params: dict, joined: lora.Adapters | None, merged: bool) -> dict:
    return decoder.prepare(config, params, joined, merged)


@partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
def _feed(
    config: Config,
    prepared: dict,
    cache: Cache,
    hidden: jax.Array,
    chunk: jax.Array,
    n: jax.Array,
    policy: jax.Array | None,
) -> tuple[Cache, jax.Array]:
    """Adds the first n[r] of chunk int32 [R, L] to the caches; hidden [R, D] of the last token fed."""
    cache, states = decoder.append(config, prepared, cache, chunk, n, policy)
    last = jnp.take_along_axis(states, jnp.maximum(n - 1, 0)[:, None, None], 1)[:, 0]
    return cache, jnp.where((n > 0)[:, None], last, hidden)


@partial(jax.jit, static_argnums=(0, 1))
def _begin(
    config: Config, group_size: int, prepared: dict, tokens: jax.Array, n: jax.Array, policy: jax.Array | None
) -> tuple[Cache, jax.Array]:
    """Caches and hidden [R, D] of rows that have heard their openings, tokens int32 [O, L] of which n [O] count."""
    cache = decoder.empty_cache(config, tokens.shape[0], tokens.shape[1])
    hidden = jnp.zeros((len(tokens), config.hidden_size), config.dtypes.compute)
    prompt, hidden = _feed(config, prepared, cache, hidden, tokens, n, policy)
    return decoder.empty_cache(config, group_size * len(tokens), 1, prompt), jnp.repeat(hidden, group_size, 0)


def _uniforms(layout: RowLayout, budget: int, turn: jax.Array, key: jax.Array) -> jax.Array:
    """Where each token of an utterance is drawn, float32 [budget, R] in [0, 1)."""
    keys = lambda index: batch_keys(key, SAY, layout.episode, turn, layout.seat, index)  # noqa: E731
    return jax.vmap(lambda index: jax.vmap(jax.random.uniform)(keys(index)))(jnp.arange(budget, dtype=jnp.int32))


def _say(
    layout: RowLayout,
    budget: int,
    prepared: dict,
    cache: Cache,
    hidden: jax.Array,
    speaking: jax.Array,
    uniform: jax.Array,
) -> tuple[Cache, jax.Array, jax.Array, jax.Array]:
    """One utterance of every speaking row: the caches, tokens int32 [R, budget], their log-probabilities, length [R].

    All but an utterance's last token, the end, are fed.
    """
    config, start, rows = layout.policy_set.config, jnp.asarray(layout.tables.start), len(layout.policy)
    assert config is not None

    def draw(cache, hidden, speaking, index, tokens, logps, length):
        mask = allowed(layout.tables, start, jnp.ones((1, 1), bool), (budget - index)[None])  # [1, V]
        logp = distribution(decoder.logits(config, prepared, hidden), mask, layout.sampling)
        token = sample(logp, uniform[index])
        logp = jnp.take_along_axis(logp, token[:, None], 1)[:, 0]
        tokens, logps = tokens.at[:, index].set(token), logps.at[:, index].set(logp)
        length = length + speaking
        return cache, hidden, speaking & (token != layout.policy_set.tokenizer.end), index + 1, tokens, logps, length

    def more(carry):
        cache, hidden, speaking, index, tokens, *rest = carry
        last, n = jax.lax.dynamic_slice_in_dim(tokens, index - 1, 1, 1), speaking.astype(jnp.int32)
        cache, states = decoder.append(config, prepared, cache, last, n, layout.adapter())
        return draw(cache, jnp.where(speaking[:, None], states[:, 0], hidden), speaking, index, tokens, *rest)

    blank = jnp.zeros((rows, budget), jnp.int32), jnp.zeros((rows, budget)), jnp.zeros((rows,), jnp.int32)
    carry = draw(cache, hidden, speaking, jnp.int32(0), *blank)
    carry = jax.lax.while_loop(lambda carry: carry[2].any(), more, carry)
    return carry[0], *carry[4:]


def _rows(layout: RowLayout, rows: list[_Row]) -> Rows:
    """The record of rows that have been played."""
    columns: dict[str, Any] = {}
    columns["tokens"], columns["length"] = _padded([[cell[0] for cell in row.cells] for row in rows])
    for at, (name, dtype) in enumerate(CELL[1:], 1):
        columns[name] = np.zeros(columns["tokens"].shape, dtype)
        for into, row in zip(columns[name], rows, strict=True):
            into[: len(row.cells)] = [cell[at] for cell in row.cells]
    columns["grammar_state"] = np.where(columns["loss_mask"], layout.tables.start[0], 0).astype(np.int16)
    columns["prompt"] = np.repeat(np.arange(len(layout.assignments), dtype=np.int32), layout.group_size)
    assignments = {name: getattr(layout, name).astype(np.int32) for name in ("episode", "seat", "policy")}
    tokens, length = _padded([row.prompt for row in rows[:: layout.group_size]])
    return Rows(prompts=Prompts(jnp.asarray(tokens), jnp.asarray(length)), **columns, **assignments)


def _seeds(key: jax.Array, purpose: int, n: int) -> list[int]:
    """Seeds of n named events, from 0 to 2^31 - 1."""
    bits = jax.vmap(jax.random.bits)(batch_keys(key, purpose, np.arange(n)))
    return (np.asarray(bits) >> 1).tolist()


def _bucket(n: int, least: int = 32) -> int:
    """The least power of two that is at least n."""
    return 1 << (max(n, least) - 1).bit_length()


def _padded(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Lists of tokens as int32 [R, a power of two], right-padded with zeros, and their lengths int32 [R]."""
    length = np.array([len(row) for row in rows], np.int32)
    tokens = np.zeros((len(rows), _bucket(int(length.max()))), np.int32)
    for into, row in zip(tokens, rows, strict=True):
        into[: len(row)] = row
    return tokens, length


def _wider(cache: Cache, slots: int) -> Cache:
    """The cache with room for at least so many tokens a row."""
    extra = max(slots - cache.keys[0].shape[3], 0)
    if not extra:
        return cache
    keys = tuple(jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, extra))) for x in cache.keys)
    values = tuple(jnp.pad(x, ((0, 0), (0, 0), (0, extra), (0, 0))) for x in cache.values)
    return cache.replace(keys=keys, values=values)
