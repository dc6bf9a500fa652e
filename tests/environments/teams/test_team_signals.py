"""Relay, halves and six turns, against plain Python that reads what seats are told; who knows what; exact values."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.teams.team_signals import Halves, HalvesState, Relay, RelayState, SixState, SixTurns
from tests.support.team_plays import acted, close, deals_are_what_reset_draws, played, row, told_apart_only_by, totals

ZERO = jnp.zeros((2,), jnp.int32)


def number(text: str) -> int:
    return int(re.search(r"Your number is (\d+)\.$", text).group(1))


@pytest.mark.parametrize("game", (Relay(), Relay(12)), ids=("ten", "twelve"))
def test_the_relay_against_python(game):
    record = played(game, "random")
    for g in range(120):
        rows, said = [row(game, record, g, seat) for seat in range(3)], acted(game, record, g)
        assert [seat for seat, _ in said] == [0, 1, 2]
        heard = ["Say a number.", *(f"They say {word}. Say a number." for _, word in said[:2])]
        for seat, (rules, *told) in enumerate(rows):
            assert told == [heard[seat] if t == seat else "" for t in range(3)]
            assert ("Your number" in rules) == (seat < 2)
        correct = int(said[2][1]) == (number(rows[0][0]) + number(rows[1][0])) % game.modulus
        assert record["reward"][:, g, :, 0].tolist() == [[0] * 3, [0] * 3, [float(correct)] * 3]
    assert close(totals(record)[:, 0, 0], 1 / game.modulus)


def test_a_relay_is_as_strong_as_its_weakest_seat():
    assert (totals(played(Relay(), "correct")) == 1).all()
    for seat in range(3):
        players = ["random" if seat == other else "correct" for other in range(3)]
        assert close(totals(played(Relay(), *players))[:, 0, 0], 0.1)


@pytest.mark.parametrize("seat", (0, 1))
def test_each_number_of_the_relay_is_told_to_one_seat(seat):
    numbers = ZERO.at[seat].set(3)
    states = [RelayState(n, jnp.int32(0), jnp.int32(0)) for n in (ZERO, numbers)]
    assert told_apart_only_by(Relay(), jax.tree.map(lambda *leaf: jnp.stack(leaf), *states), (seat,))


def test_the_receiver_of_the_relay_hears_the_adder_alone():
    """Whatever the sender was told and said, the receiver reads the same if the adder says the same."""
    game, key, rows = Relay(), jax.random.key(0), set()
    step = jax.jit(game.step)
    for sender, said in itertools.product(range(0, 10, 3), range(0, 10, 3)):
        state = RelayState(ZERO.at[0].set(sender), jnp.int32(0), jnp.int32(0))
        told = [game.prompt(state)[2].tolist()]
        for word in (said, 5):
            state, view, _ = step(state, jnp.full((3,), word, jnp.int32), key)
            told.append(view.phrases[2].tolist())
        rows.add(str(told))
    assert len(rows) == 1


@pytest.mark.parametrize("game", (Halves(), Halves(5, 3)), ids=("enough letters", "too few"))
def test_halves_against_python(game):
    record = played(game, "random")
    for g in range(120):
        rows, said = [row(game, record, g, seat) for seat in range(2)], acted(game, record, g)
        assert [seat for seat, _ in said] == [0, 1, 0, 1]
        letters, sums = [word for _, word in said[:2]], [int(word) for _, word in said[2:]]
        for seat, (_, *told) in enumerate(rows):
            assert told == ["Send a letter.", f"They send {letters[1 - seat]}. What is the sum?"]
        correct = all(answer == (number(rows[0][0]) + number(rows[1][0])) % game.modulus for answer in sums)
        assert record["reward"][:, g, :, 0].tolist() == [[0, 0], [float(correct)] * 2]
    assert (totals(played(game, "correct")) == 1).all()
    assert close(totals(record)[:, 0, 0], game.modulus**-2)
    decoded = totals(played(game, "decoder"))[:, 0, 0]  # right where both numbers have a letter of their own
    assert close(decoded, min(1, (game.symbols / game.modulus) ** 2))


def test_each_half_is_told_to_its_holder():
    for seat in range(2):
        states = [HalvesState(n, jnp.int32(0), ZERO) for n in (ZERO, ZERO.at[seat].set(4))]
        assert told_apart_only_by(Halves(), jax.tree.map(lambda *leaf: jnp.stack(leaf), *states), (seat,))


def test_six_turns_against_python():
    game = SixTurns()
    record = played(game, "random")
    for g in range(120):
        rows, said = [row(game, record, g, seat) for seat in range(2)], acted(game, record, g)
        assert [seat for seat, _ in said] == [0, 1, 0, 1, 0, 1]
        for t, (seat, word) in enumerate(said):
            assert rows[1 - seat][1 + t] == ""
            cue = re.fullmatch(r"It is (\w+)\.", rows[seat][1 + t]).group(1)
            right = {"red": "A", "green": "B", "blue": "C", "yellow": "D"}[cue] == word
            expected = np.zeros((2, 2), np.float32)
            expected[seat] = 1 if right else -0.2, 2 * seat
            assert np.array_equal(record["reward"][t, g], expected)
    perfect, chance = totals(played(game, "correct")), totals(record)
    assert (perfect == [[3, 0], [3, 6]]).all()
    assert close(chance[..., 0].sum(1), 6 * (0.25 - 0.75 * 0.2)) and (chance[..., 1] == [0, 6]).all()


def test_the_credit_of_a_turn_is_its_own_cue_and_letter():
    """Every deal with every play of three turns; then advantages under a random policy, by going through all of it."""
    game = SixTurns(turns=3)
    states, probability = game.initial_states()
    plays = np.stack([index.ravel() for index in np.indices((4, 4, 4))], 1).astype(np.int32)

    def play(state, letters):
        rewards = []
        for t in range(3):
            state, _, reward = game.step(state, jnp.broadcast_to(letters[t], (2,)), jax.random.key(0))
            rewards.append(reward)
        return jnp.stack(rewards)

    every = jax.jit(jax.vmap(jax.vmap(play, (None, 0)), (0, None)))(states, jnp.asarray(plays))
    hit, constant = np.moveaxis(np.asarray(every, np.float64).sum(3), -1, 0)  # [64 deals, 64 plays, 3]
    cues = np.asarray(states.cues)
    right = cues[:, None] == plays[None]
    assert np.allclose(hit, np.where(right, 1, -0.2)) and (constant == [0, 2, 0]).all()
    policy = np.random.default_rng(0).dirichlet(np.ones(4), (3, 4))  # [turn, cue, letter]
    chance = policy[np.arange(3)[None, None], cues[:, None], plays[None]]  # [deals, plays, turns]
    weight = probability[:, None] * chance.prod(-1)
    for t, cue, letter in itertools.product(range(3), range(4), range(4)):
        here = (cues[:, t] == cue)[:, None] & np.ones(64, bool)[None]
        value = (weight * hit.sum(-1))[here].sum() / weight[here].sum()
        here &= (plays[:, t] == letter)[None]
        chosen = (weight * hit.sum(-1))[here].sum() / weight[here].sum()
        assert np.isclose(chosen - value, 1.2 * ((letter == cue) - policy[t, cue, cue]), atol=1e-6)


def test_a_cue_is_told_in_its_turn_to_who_acts():
    game = SixTurns()
    early, late = jnp.zeros((6,), jnp.int32), jnp.zeros((6,), jnp.int32).at[2:].set(3)
    states = SixState(jnp.stack([early, late]), ZERO)
    assert told_apart_only_by(game, states, ())
    assert told_apart_only_by(game, SixState(states.cues, ZERO + 2), (0,))
    assert told_apart_only_by(game, SixState(states.cues, ZERO + 3), (1,))


@pytest.mark.parametrize("game", (Relay(), Halves(7, 3), SixTurns(3)), ids=("relay", "halves", "turns"))
def test_deals_are_all_starts_and_reset_draws_them_evenly(game):
    assert deals_are_what_reset_draws(game)


def test_settings_that_cannot_be_are_named():
    for make, says in (
        (lambda: Relay(1), "modulus must be at least 2, got 1"),
        (lambda: Halves(1), "modulus must be at least 2, got 1"),
        (lambda: Halves(symbols=27), "symbols must be 1 to 26"),
        (lambda: SixTurns(0), "turns must be at least 1, got 0"),
        (lambda: SixTurns(letters=("A", "B", "C", "A")), "letters must be four different ones"),
    ):
        with pytest.raises(ValueError, match=says):
            make()
