"""Formats around answers, and what an illegal answer does: rules by hand, and unmasked play through the rollout.

The long case compiles a rollout with thoughts; the short ones hear messages without them.
"""

import dataclasses
import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.wrappers import FORMATS, Formatted, Illegal
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.social.trading import SimpleNegotiation
from jaxmarl_llm.models import decoder
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.rollout.trajectory import gather_sampled
from jaxmarl_llm.text.grammar import automaton, pattern
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from tests.support.toys import ByteTokenizer, Relay

KEY = jax.random.key(0)
GAME = MatrixGame(rounds=3, exchange=False)
RETRY = "That is not a legal answer. Try again."


def walk(game, *actions):
    """Views and rewards of a game in which these actions are said, -1 for what is no move."""
    state, view = game.reset(KEY, jnp.int32(0))
    views, rewards = [view], []
    for action in actions:
        state, view, reward = jax.jit(game.step)(state, jnp.asarray(action, jnp.int32), KEY)
        views.append(view)
        rewards.append(np.asarray(reward).tolist())
    return views, rewards


def test_an_illegal_answer_ends_the_game_and_its_speaker_pays():
    views, rewards = walk(Illegal(GAME, "end", -1.5, 0.5), (0, 1), (1, -1))
    assert rewards == [[[0, 0], [5, 0]], [[0, 0.5], [0, -1.5]]]
    assert not views[1].terminated and views[2].terminated and not views[2].acting.any()
    _, rewards = walk(Illegal(GAME, "end", -10.0), (-1, -1))
    assert rewards == [[[0, -10], [0, -10]]]


def test_a_second_try_keeps_what_the_others_said():
    game = Illegal(GAME, "retry", -1.0, 1.0)
    assert game.turns == 6
    views, rewards = walk(game, (0, -1), (1, 1), (0, 0))
    assert rewards == [[[0, 0], [0, 0]], [[0, 0], [5, 0]], [[3, 0], [3, 0]]]  # seat 0 said 0, its 1 was not asked for
    assert views[1].acting.tolist() == [False, True]
    shown = [game.observation[-1][i] if i >= 0 else None for i in views[1].phrases[:, -1].tolist()]
    assert shown == [None, RETRY] and (views[1].phrases[:, :-1] == -1).all()
    assert views[2].acting.all() and (views[2].phrases[:, -1] == -1).all()


def test_a_second_offence_in_a_turn_ends_the_game_and_one_in_another_turn_does_not():
    game = Illegal(GAME, "retry", -1.0, 1.0)
    views, rewards = walk(game, (0, -1), (0, -1))
    assert rewards[1] == [[0, 1], [0, -1]] and views[2].terminated
    views, rewards = walk(game, (0, -1), (0, 0), (0, -1), (0, 0), (-1, 0), (0, 0))
    assert [r[0][0] for r in rewards] == [0, 3, 0, 3, 0, 3] and views[-1].terminated
    assert all(r[seat][1] == 0 for r in rewards for seat in range(2))
    _, rewards = walk(game, (-1, 0), (-1, -1))  # seat 1 is not asked: what it says is not heard
    assert rewards[1] == [[0, -1], [0, 1]]


def test_a_move_that_the_rules_forbid_is_illegal_too():
    game = Illegal(Relay(), "end", -1.0)
    state, view = game.reset(KEY, jnp.int32(0))
    for _ in range(2):
        actor = int(jnp.argmax(view.acting))
        legal = np.flatnonzero(view.legal[actor])
        forbidden = np.setdiff1d(np.arange(game.actions), legal)
        said = jnp.zeros(3, jnp.int32)
        _, over, reward = game.step(state, said.at[actor].set(int(forbidden[0])), KEY)
        assert over.terminated and reward[actor].tolist() == [0, 0, -1]
        state, view, reward = game.step(state, said.at[actor].set(int(legal[0])), KEY)
        assert reward[actor, 2] == 0 and not view.terminated


@pytest.mark.parametrize("style", [*FORMATS, ("Move: ", "")])
@pytest.mark.parametrize("think", [False, True])
def test_a_format_stands_around_the_same_answers(style, think):
    game = Formatted(GAME, style, think)
    before, after = game.sides
    rules = "".join(game.rules[k][i] for k, i in enumerate(game.prompt(game.reset(KEY, jnp.int32(0))[0])[0]))
    assert f"{before}answer{after}" in rules and ("<think>" in rules) == think
    for parts in game.grammars:
        machine, written = automaton(parts), re.compile(pattern(parts))
        for text in (b"A", b"B", b"C"):
            whole = b"<think>B or\n not</think>" * think + before.encode() + text + after.encode()
            state = 0
            for byte in whole:
                state = machine.next[state, byte] if state >= 0 else -1
            assert (
                (written.fullmatch(whole) is not None) == (text != b"C") == (state >= 0 and machine.accepts[state] >= 0)
            )


def test_messages_keep_their_form():
    assert Formatted(MatrixGame(talk=True), "boxed").grammars[2] == MatrixGame(talk=True).grammars[2]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Formatted(GAME, "latex"), "style must be one of brackets, boxed"),
        (lambda: Formatted(GAME, ("", "")), "both are empty"),
        (lambda: Illegal(GAME, "forgive"), "then must be end or retry, got 'forgive'"),
    ],
)
def test_wrappers_that_mean_nothing_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


SYMBOLS, BYTES = SymbolTokenizer(strings(Illegal(GAME))), ByteTokenizer()
LIKELY = {BYTES.end: 0.35, BYTES.encode("A")[0]: 0.3, BYTES.encode("\n")[0]: 0.25}
BUDGET = 6


def tiny(size: int) -> Config:
    return Config(size, 16, 24, 1, 2, 1, 8, 2048, tie_word_embeddings=False)


@cache
def played(name: str):
    """Unmasked play of a random policy: one symbol an answer, or bytes, of which the end, A and newlines are likely."""
    game, tokenizer, budget = Illegal(GAME, "retry", -1.0, 0.5), SYMBOLS, 1
    if name == "bytes":
        game, tokenizer, budget = Illegal(MatrixGame(rounds=2, exchange=False, talk=True), "retry"), BYTES, BUDGET
    policy_set = PolicySet(tokenizer, ("us",), tiny(tokenizer.vocab_size), masked=False)
    rollout = Rollout(game, {"us": policy_set}, Lineup((("us", "us"), ("us", "always_defect")), 32), budget)
    params = decoder.init(policy_set.config, jax.random.key(2))
    if name == "bytes":  # embeddings nearly alike make states of ones, on which a row of the head acts like a bias
        params["embed_tokens"] += 3.0
        for token, bias in LIKELY.items():
            params["lm_head"] = params["lm_head"].at[token].add(bias)
    return rollout, params, jax.device_get(jax.jit(rollout)({"us": {"params": params}}, KEY))


@cache
def turns_of(name: str) -> list[tuple[int, int, int, str, list[int], list[int]]]:
    """(episode, seat, turn, text heard before it, tokens sampled, tokens after them) of every turn of every row."""
    rollout, _, trajectory = played(name)
    rows, found = trajectory.rows["us"], []
    for row in range(len(rows.length)):
        n, prompt = (
            rows.length[row],
            rows.prompts.tokens[rows.prompt[row]][: rows.prompts.length[rows.prompt[row]]],
        )
        tokens, loss_mask, turn = rows.tokens[row, :n], rows.loss_mask[row, :n], rows.turn[row, :n]
        for t in np.unique(turn[loss_mask]):
            place = np.flatnonzero(turn == t)
            own = place[loss_mask[place]]
            heard = [*(prompt.tolist() if t == 0 else []), *tokens[place[place < own[0]]].tolist()]
            text = rollout.policy_sets["us"].tokenizer.decode(heard)
            after = tokens[place[place > own[-1]]].tolist()
            found.append((int(rows.episode[row]), int(rows.seat[row]), int(t), text, tokens[own].tolist(), after))
    return found


@pytest.mark.parametrize("name", ["symbols", pytest.param("bytes", marks=pytest.mark.slow)])
def test_unmasked_play_scored_again_is_as_sampled(name):
    rollout, params, trajectory = played(name)
    rows = trajectory.rows["us"]
    sampled = gather_sampled(rows, trajectory.episodes.legal, rollout.max_sampled_tokens("us"))
    scores = jax.jit(rollout.layouts["us"].scorer())(params, rows, sampled)
    np.testing.assert_allclose(scores.logp, sampled.behaviour_logp, atol=1e-4)
    assert (scores.logp[sampled.mask] < -0.5).mean() > 0.3


@pytest.mark.parametrize("name", ["symbols", "bytes"])
def test_an_action_is_what_re_makes_of_the_whole_answer(name):
    rollout, _, trajectory = played(name)
    tokenizer, episodes = rollout.policy_sets["us"].tokenizer, trajectory.episodes
    patterns = [re.compile(pattern(parts), re.DOTALL) for parts in rollout.environment.grammars]
    kind, seen = {}, set()
    for episode, seat, turn, heard, said, _ in turns_of(name):
        message = "Say one line" in heard if RETRY not in heard else kind[episode, seat]
        kind[episode, seat] = message
        finished = tokenizer.end is None or said[-1] == tokenizer.end
        body = said[: -1 if tokenizer.end is not None else None]
        spelled = all(tokenizer.token_bytes[token] is not None for token in body)
        match = (
            finished
            and spelled
            and patterns[2 if message else 0].fullmatch(b"".join(tokenizer.token_bytes[token] for token in body))
        )
        action = -1 if not match else next((int(k[1:]) for k, v in match.groupdict().items() if v is not None), 0)
        assert episodes.action[episode, turn, seat] == action
        assert episodes.valid[episode, turn, seat] == (action >= 0) and episodes.acted[episode, turn, seat]
        seen.add((message, action))
    assert {(False, -1), (False, 0)} <= seen and (name == "symbols" or {(True, -1), (True, 0)} <= seen)


def test_offenders_are_asked_once_more_and_fined_at_the_second_offence():
    _, _, trajectory = played("symbols")
    episodes = trajectory.episodes
    wrong, fine = episodes.acted & (episodes.action < 0), episodes.reward[..., 1]
    asked = {(e, s, t): RETRY in heard for e, s, t, heard, *_ in turns_of("symbols")}
    for (episode, seat, turn), again in asked.items():
        assert again == (turn > 0 and wrong[episode, turn - 1, seat] and wrong[episode, :turn].any())
        twice = again and wrong[episode, turn, seat]
        assert (fine[episode, turn, seat] < 0) == twice
    assert set(np.unique(fine)) == {-1.0, 0.0, 0.5} and (fine[32:, :, 1] >= 0).all()  # scripted players never offend
    assert (episodes.terminated == (((fine < 0).any((1, 2))) | (episodes.reward[..., 0] != 0).any((1, 2)))).all()


def test_what_is_too_long_is_cut_and_ended():
    cut = 0
    for episode, seat, turn, _, said, after in turns_of("bytes"):
        assert len(said) <= BUDGET and BYTES.end not in said[:-1]
        if said[-1] != BYTES.end:
            cut += 1
            assert len(said) == BUDGET and after == [BYTES.end]
            assert played("bytes")[2].episodes.action[episode, turn, seat] == -1
        else:
            assert after == []
    assert cut > 10


def test_a_message_is_heard_if_it_was_one_and_nothing_of_any_other_answer_is():
    said: dict[tuple[int, int], list[str]] = {}
    heard: dict[tuple[int, int], list[str]] = {}
    kind = {}
    for episode, seat, turn, text, tokens, _ in turns_of("bytes"):
        message = "Say one line" in text if RETRY not in text else kind[episode, seat]
        kind[episode, seat] = message
        if message and played("bytes")[2].episodes.action[episode, turn, seat] == 0:
            said.setdefault((episode, seat), []).append(BYTES.decode(tokens[:-1]))
        heard.setdefault((episode, seat), []).extend(re.findall(r"They say:\n(.*?)\nChoose\.", text, re.DOTALL))
    both = [key for key in heard if key[0] < 32]
    for episode, seat in both:
        others = said.get((episode, 1 - seat), [])
        assert heard[episode, seat] == others[: len(heard[episode, seat])]
    assert sum(len(heard[key]) for key in both) > 20 and any(text for key in both for text in heard[key])


@pytest.mark.long
def test_a_thought_is_heard_by_nobody():
    """Where a message goes with the move, the free text before it stays with the seat."""
    game = Formatted(SimpleNegotiation(turns=2, talk=True, quantities=(1,)), think=True)
    policy_set = PolicySet(BYTES, ("us",), dataclasses.replace(tiny(BYTES.vocab_size), max_position_embeddings=8192))
    rollout = Rollout(game, {"us": policy_set}, Lineup((("us", "us"),), 6), 70)
    played = jax.jit(rollout)({"us": {"params": decoder.init(policy_set.config, jax.random.key(0))}}, jax.random.key(1))
    rows, thoughts, lines = played.rows["us"], 0, 0
    text_of = lambda r: BYTES.decode(rows.tokens[r, : rows.length[r]].tolist())
    texts = {(int(rows.episode[r]), int(rows.seat[r])): text_of(r) for r in range(12)}
    for (episode, seat), text in texts.items():
        other = texts[episode, 1 - seat]
        for thought in re.findall("<think>([^<]+)</think>", text):
            thoughts += len(thought) > 3
            assert len(thought) <= 3 or thought not in other
        lines += other.count("They say:")
    assert thoughts > 3 and lines


def test_the_order_of_wrappers_does_not_matter_to_who_may_err():
    assert Formatted(Illegal(GAME)).accepts_illegal and Illegal(Formatted(GAME)).accepts_illegal
    assert not Formatted(GAME).accepts_illegal
    with pytest.raises(ValueError, match="penalty and compensation must be finite, got nan"):
        Illegal(GAME, penalty=float("nan"))


def test_a_game_that_cannot_take_it_is_not_played_unmasked():
    policy_set = PolicySet(SYMBOLS, ("us",), tiny(SYMBOLS.vocab_size), masked=False)
    with pytest.raises(ValueError, match=r"'us' plays unmasked, but the game does not say .* Illegal\(game"):
        Rollout(GAME, {"us": policy_set}, Lineup((("us", "us"),), 2), 1)
