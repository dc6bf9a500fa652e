"""Answers without an alternative: nothing is sampled, and the rest of the game does not change.

The long cases compile rollouts of further games, in bytes or with more letters; the short ones check the same laws.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxmarl_llm.environments.around.subgoals import Subgoals
from jaxmarl_llm.environments.around.wrappers import Formatted
from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.bridges.table import Table
from jaxmarl_llm.environments.classic.board_games import ConnectFour
from jaxmarl_llm.environments.helpers import Script, choice, make_view, random_player
from jaxmarl_llm.environments.judged.corpus import Corpus
from jaxmarl_llm.environments.solo.rooms import Rooms
from jaxmarl_llm.environments.teams.team_signals import Halves
from jaxmarl_llm.play import load_player
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rollout.branching import BranchState
from jaxmarl_llm.rollout.policy_files import save_policy
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings, words
from jaxmarl_llm.rollout.trajectory import gather_sampled
from jaxmarl_llm.text.grammar import Choice, Grammar, Literal, pattern
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from tests.support.dialogues import Speller, read
from tests.support.rollout_cases import BYTES, FAST, Case, replay, rescored, tiny

PASS = 2


class Duty(struct.PyTreeNode):
    group: jax.Array  # int32
    turn: jax.Array  # int32


@dataclass(frozen=True)
class Duties:
    """In turn t seat s of group g has the grammar (g + s + t) mod `kinds`.

    Some rows then have one answer and others several. The rules allow one answer of the third grammar in turn 1.
    """

    turns: int = 4
    kinds: int = 3

    agents = 2
    actions = 3
    roles = ("player",)
    components = ("points",)
    rules: Fields = (("Answer.",),)
    observation: Fields = ((" Pass.", " Bet.", " Move."),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        nod: Grammar = (Literal("I "), Choice(((PASS, "pass"),)))
        return (nod, choice(("bet", "bet 10")), choice(("go", "stop", "stay")))[: self.kinds]

    @property
    def scripts(self) -> Mapping[str, Script]:
        return {"random": random_player(self.view)}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[Duty, View]:
        state = Duty(group, jnp.int32(0))
        return state, self.view(state)

    def prompt(self, state: Duty) -> jax.Array:
        return jnp.zeros((2, 1), jnp.int32)

    def step(self, state: Duty, action: jax.Array, key: jax.Array) -> tuple[Duty, View, jax.Array]:
        after = state.replace(turn=state.turn + 1)
        return after, self.view(after), action[:, None].astype(jnp.float32)

    def view(self, state: Duty) -> View:
        number = (state.group + jnp.arange(2) + state.turn) % self.kinds
        sayable = jnp.array([[False, False, True], [True, True, False], [True, True, True]])[number]
        one = (number == 2) & (state.turn == 1)
        legal = jnp.where(one[:, None], jnp.arange(3) == 1, sayable)
        return make_view(self, [number], True, state.turn >= self.turns, grammar=number, legal=legal)


def symbols(game: Any) -> SymbolTokenizer:
    return SymbolTokenizer(strings(game))


def in_bytes(game: Any) -> Any:
    return BYTES


SUBGOALS = Subgoals(Rooms(rooms=2, objects=1, quest=1, budget=3))
GAMES: dict[str, tuple[Any, Any, int]] = {  # the game, its tokenizer, the budget
    "a letter": (Halves(modulus=3, symbols=1), symbols, 1),
    "a letter in bytes": (Halves(modulus=3, symbols=1), in_bytes, 2),
    "a letter with an end": (Halves(modulus=3, symbols=1), words, 2),
    "a letter after a thought": (Formatted(Halves(modulus=3, symbols=1), think=True), in_bytes, 48),
    "a column": (ConnectFour(columns=1, rows=4, line=4), symbols, 1),
    "a column in bytes": (ConnectFour(columns=1, rows=4, line=4), in_bytes, 4),
    "a subgoal": (SUBGOALS, symbols, 1),
    "a question": (Corpus(relations=1, hops=1), symbols, 1),
    "a nod": (Duties(turns=1, kinds=1), words, 3),
    "some rows": (Duties(), words, 3),
    "some rows in bytes": (Duties(), in_bytes, 8),
}
LONG = ("a letter after a thought", "a column in bytes", "a subgoal", "a question", "some rows in bytes")
NAMES = [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in GAMES]
SEED = 3


@cache
def played(name: str) -> SimpleNamespace:
    """Games of a model in one group and of a teacher in the other, and the same games replayed from their actions."""
    game, tokenizer_of, budget = GAMES[name]
    tokenizer = tokenizer_of(game)
    policy_sets = {
        "model": PolicySet(tokenizer, ("me",), tiny(tokenizer.vocab_size, 2048, layers=1)),
        "teacher": PolicySet(tokenizer, ("random",)),
    }
    case = Case(game, policy_sets, Lineup((("me",) * game.agents, ("random",) * game.agents), 2), budget)
    weights, key = case.weights(SEED), jax.random.key(SEED)
    trajectory = jax.device_get(FAST(case.rollout)(weights, key))
    world = replay(case, trajectory, key)
    return SimpleNamespace(case=case, weights=weights, trajectory=trajectory, world=world, tokenizer=tokenizer)


def utterances(name: str):
    """(rows, row, its place in the games, grammar, legal, tokens, loss masks) of each answer; a token of a prompt
    has no mask."""
    own = played(name)
    for policy_set, readings in read(own.case, own.trajectory, own.world).items():
        rows = own.trajectory.rows[policy_set]
        for r, reading in enumerate(readings):
            before = int(rows.prompts.length[rows.prompt[r]])
            for turn, first, end in reading.utterances:
                place = int(rows.episode[r]), turn, int(rows.seat[r])
                view = own.world.views[turn]
                grammar = own.case.environment.grammars[view.grammar[place[0], place[2]]]
                said = reading.tokens[first:end]
                masks = [at >= before and bool(rows.loss_mask[r, at - before]) for at in range(first, end)]
                yield rows, place, grammar, view.legal[place[0], place[2]], said, masks


def spelled(tokenizer: Any, said: list[int]) -> bytes:
    return b"".join(tokenizer.token_bytes[token] for token in said if token != tokenizer.end)


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_legal_and_its_row_holds_nothing_else(name):
    own = played(name)
    episodes, tokenizer, asked = own.trajectory.episodes, own.tokenizer, 0
    for _, place, grammar, legal, said, _ in utterances(name):
        match = re.fullmatch(pattern(grammar), spelled(tokenizer, said), re.DOTALL)
        assert match is not None
        (action,) = [int(group[1:]) for group, text in match.groupdict().items() if text is not None]
        assert episodes.action[place] == action and legal[action] and episodes.valid[place]
        asked += 1
    assert asked == episodes.acted.sum() > 0
    for policy_set, readings in read(own.case, own.trajectory, own.world).items():
        rows = own.trajectory.rows[policy_set]
        for r, reading in enumerate(readings):
            before, n = rows.prompts.length[rows.prompt[r]], rows.length[r]
            assert [*rows.prompts.tokens[rows.prompt[r], :before], *rows.tokens[r, :n]] == reading.tokens
            assert rows.turn[r, :n].tolist() == reading.turns[before:]


@pytest.mark.parametrize("name", NAMES)
def test_trained_tokens_had_an_alternative_and_are_no_forced_answer(name):
    speller, budget, forced = Speller(played(name).tokenizer), GAMES[name][2], 0
    for _, _, grammar, legal, said, masks in utterances(name):
        for i, (token, mask) in enumerate(zip(said, masks, strict=True)):
            text = spelled(played(name).tokenizer, said[:i])
            possible = speller.continuations(grammar, text, legal, budget - i)
            assert token in possible and mask == (len(possible) > 1)
        forced += not any(masks)
    assert (forced > 0) == (name != "a letter after a thought")


@pytest.mark.parametrize("name", NAMES)
def test_scored_again_the_other_answers_have_the_same_probabilities(name):
    own = played(name)
    ((_, sampled, scores),) = rescored(own.case, own.weights, jax.tree.map(jnp.asarray, own.trajectory))
    assert jnp.abs(jnp.where(sampled.mask, scores.logp - sampled.behaviour_logp, 0)).max() < 1e-4
    assert sampled.mask.any() == (name not in ("a column", "a column in bytes", "a nod"))


@dataclass(frozen=True)
class Spare(Halves):
    """Halves with a further letter in its grammar, which is never legal."""

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        first, second = super().grammars
        return (Choice((*first[0].options, (self.symbols, "z"))),), second

    def view(self, state: Any) -> View:
        view = super().view(state)
        return view.replace(legal=view.legal & ((state.turn > 0) | (jnp.arange(self.actions) < self.symbols))[None])


@pytest.mark.parametrize("letters", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_grammar_and_the_rules_force_the_same_games(letters):
    """An answer forced by the rules is drawn with probability 1; an answer forced by the grammar has no choice."""
    games = Halves(3, letters), Spare(3, letters)
    tokenizer = SymbolTokenizer(strings(games[1]))
    policy_set = PolicySet(tokenizer, ("me",), tiny(tokenizer.vocab_size, layers=1))
    rows = []
    for game in games:
        case = Case(game, {"model": policy_set}, Lineup((("me", "me"),) * 3, 2), 1)
        played = jax.device_get(FAST(case.rollout)(case.weights(SEED), jax.random.key(SEED)))
        one, episodes = played.rows["model"], played.episodes
        whole = [
            [*one.prompts.tokens[p, : one.prompts.length[p]], *one.tokens[r, : one.length[r]]]
            for r, p in enumerate(one.prompt)
        ]
        rows.append((whole, episodes.action, episodes.reward, one.logp[one.loss_mask]))
    assert rows[0][0] == rows[1][0]
    for grammar, rules in zip(rows[0][1:], rows[1][1:], strict=True):
        np.testing.assert_allclose(grammar, rules, atol=1e-5)


@pytest.mark.parametrize("name", ["a column", "a letter"])
def test_a_forced_answer_has_no_gradient(name):
    """Its advantage may be anything; a game of nothing else has a gradient of exactly 0."""
    own = played(name)
    trajectory, layout = jax.tree.map(jnp.asarray, own.trajectory), own.case.rollout.layouts["model"]
    rows = trajectory.rows["model"]
    sampled = gather_sampled(rows, trajectory.episodes.legal, own.case.rollout.max_sampled_tokens("model"))

    def loss(params: dict, forced: float) -> jax.Array:
        logp = layout.scorer()(params, rows, sampled).logp
        last = trajectory.episodes.acted.shape[1] - 1
        advantage = jnp.where((sampled.turn == last) & (name != "a column"), 1.0, forced)
        total, _ = losses.ppo_clip(logp, sampled.behaviour_logp, advantage, sampled.mask)
        return total.value

    gradient = FAST(jax.grad(loss))
    one, other = (gradient(own.weights["model"]["params"], forced) for forced in (1.0, 7.0))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert any(x.any() for x in jax.tree.leaves(one)) == (name != "a column")


def nobody(standing: BranchState) -> jax.Array:
    return jnp.broadcast_to(jnp.arange(standing.going.shape[1]), standing.going.shape)


@pytest.mark.long
def test_an_answer_without_a_choice_has_no_entropy():
    game = Duties()
    tokenizer = words(game)
    policy_sets = {"model": PolicySet(tokenizer, ("me",), tiny(tokenizer.vocab_size, layers=1))}
    case = Case(game, policy_sets, Lineup((("me", "me"),) * 3, 2), 3)
    rollout = FAST(partial(case.rollout, branch=nobody))
    episodes = jax.device_get(rollout(case.weights(SEED), jax.random.key(SEED)).episodes)
    forced = episodes.legal.sum(-1) == 1
    assert (episodes.branches.entropy > 0).tolist() == (~forced).tolist()


@dataclass(frozen=True)
class Mute(Duties):
    """A seat that passes says nothing at all."""

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return ((Choice(((PASS, ""),)),), *super().grammars[1:])


@pytest.mark.parametrize("kinds", [1, pytest.param(3, marks=pytest.mark.long)])
def test_an_empty_answer_is_no_token(kinds, tmp_path):
    """The grammar ends at its start: no end token and no symbol, in a rollout and at the table."""
    game = Mute(turns=2, kinds=kinds)
    tokenizer = SymbolTokenizer(strings(game))
    policy_set = PolicySet(tokenizer, ("me",), tiny(tokenizer.vocab_size, layers=1))
    case = Case(game, {"model": policy_set}, Lineup((("me", "me"),) * 3, 2), 1)
    weights = case.weights(SEED)
    played = jax.device_get(FAST(case.rollout)(weights, jax.random.key(SEED)))
    passes = played.episodes.legal[..., PASS] & (played.episodes.legal.sum(-1) == 1)
    assert (played.episodes.action[passes] == PASS).all() and played.episodes.valid.all()
    rows = played.rows["model"]
    silent = passes[rows.episode, :, rows.seat]
    assert (rows.length == 1 + (~silent).sum(1)).all()  # the answer to turn 1, and the other answers

    save_policy(tmp_path / "policy", policy_set, 0, weights["model"]["params"], "tiny")
    player, table = load_player(game, str(tmp_path / "policy"), None, 8), Table(game, 0)
    while not table.over:
        grammar = np.asarray(table.view.grammar)
        actions = np.array([player(table.state, table, seat)[0] for seat in range(2)], np.int32)
        assert ((actions == PASS) | (grammar > 0)).all()
        table.play(actions, {})
