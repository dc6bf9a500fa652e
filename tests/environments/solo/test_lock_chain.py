"""The chain of locks, against plain Python that reads what the seat is told; deals that are given; exact values."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.solo.lock_chain import COLOURS, LockChain
from jaxmarl_llm.evaluation.exact import solve
from tests.support.referees import REFEREES
from tests.support.team_plays import acted, close, deals_are_what_reset_draws, given, played, row, totals
from tests.support.told import played as dialogues
from tests.support.told import transcripts

GAME, KEYS = LockChain(locks=3, turns=5), ["A", "B", "C", "D"]


@pytest.mark.parametrize("player, in_order", [("random", False), ("correct", False), ("random", True)])
@pytest.mark.parametrize("keys", [KEYS, ["AA", "AB", "AC", "BA", "BB", "BC", "CA", "CB", "CC"]], ids=["four", "nine"])
def test_against_python(player, in_order, keys):
    """From the told text alone: what opens, what is paid and when, and when it ends."""
    spelling = {} if keys == KEYS else {"alphabet": "ABC", "spelled": 2}
    game = LockChain(locks=3, turns=5, in_order=in_order, **spelling)
    record = played(game, player)
    for g in range(120):
        rules, *told = row(game, record, g, 0)
        length = int(re.search(r"There (?:is|are) (\d) lock", rules).group(1))
        said, opened = [word for _, word in acted(game, record, g)], 0
        for t, word in enumerate(said):
            colour = re.search(r"The lock is (\w+)\.$", told[t]).group(1)
            right = keys.index(word) == COLOURS.index(colour) % len(keys)
            assert colour in (COLOURS[opened : opened + 1] if in_order else COLOURS[: len(keys)])
            opened += right
            solved = opened == length
            paid = given(record)[t, g, 0].tolist()
            assert paid == pytest.approx([float(right and solved), right / length])
            if t + 1 < len(said):
                assert told[t + 1].startswith("It opens. " if right else "It stays shut. ")
                if not right:
                    assert told[t + 1].endswith(told[t].partition("The")[2])
            assert (t + 1 == len(said)) == (solved or t + 1 == game.turns)
    if player == "correct":
        assert (totals(record)[:, 0] == 1).all()


def test_a_decoy_fits_no_lock_and_is_told_apart_from_a_wrong_key():
    game, plain = LockChain(locks=3, turns=5, decoys=2), LockChain(locks=3, turns=5)
    assert game.actions == 6 and "Answer A, B, C, D, E or F." in game.rules[0][0]
    assert (plain.components, plain.measures) == (("solved",), ("progress",)) and len(plain.observation[0]) == 3
    record, met = played(game, "random"), set()
    for g in range(120):
        _, *told = row(game, record, g, 0)
        said = [word for _, word in acted(game, record, g)]
        for t, word in enumerate(said):
            solved, progress, fits = given(record)[t, g, 0].tolist()
            assert fits == (word in KEYS) and solved <= (progress > 0) <= fits
            if t + 1 < len(said):
                reply = "It opens. " if progress else "It stays shut. " if word in KEYS else "Nothing happens. "
                assert told[t + 1].startswith(reply)
                met.add(reply)
    assert len(met) == 3


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_a_shift_moves_the_right_keys_on_and_the_rules_tell_the_series(shift):
    game = LockChain(locks=3, turns=5, shift=shift)
    for play in transcripts(game, *dialogues(game, 30)[:2], range(30)):
        paid = np.stack([turn.reward for turn in play.turns])
        np.testing.assert_allclose(paid, REFEREES["LockChain"](play), atol=1e-6)
        assert play.rules[0].count(f" These locks are of series {shift}.") == 1
    assert (totals(played(game, "correct"))[:, 0, 0] == 1).all()
    assert not any(set(one) & {f" These locks are of series {shift}."} for one in GAME.rules)
    assert (game.rules[0], game.observation, game.grammars) == (GAME.rules[0], GAME.observation, GAME.grammars)


def share_opened(chance: float, turns: int, locks: int) -> float:
    """Of a row of locks, if every try is right with this chance: the binomial."""
    tries = [math.comb(turns, k) * chance**k * (1 - chance) ** (turns - k) for k in range(turns + 1)]
    return sum(p * min(k, locks) / locks for k, p in enumerate(tries))


def test_what_can_be_won_of_two_series_exactly():
    """The keys of one series all open, in the other none does; half of each, or any key, opens by the binomial."""
    trees = {shift: solve.tree(LockChain(locks=2, turns=2, shift=shift, pays="progress")) for shift in (1, 2)}

    def keys(tree: solve.Tree, shift: int) -> np.ndarray:
        texts = [solve.text_of(tree, i) for i in range(len(tree.owner))]
        seen = [COLOURS.index(re.findall(r"The lock is (\w+)\.", text)[-1]) for text in texts]
        return np.eye(4)[(np.array(seen) + shift) % 4]

    mean = lambda chance: np.mean([share_opened(chance, 2, locks) for locks in (1, 2)])
    for series, tree in trees.items():
        worth = lambda policy, tree=tree: float(solve.expected_value(tree, policy)[0])
        right, wrong = keys(tree, series), keys(tree, 3 - series)
        assert (worth(right), worth(wrong)) == pytest.approx((1, 0))
        assert worth((right + wrong) / 2) == pytest.approx(mean(1 / 2))
        assert worth(solve.uniform(tree)) == pytest.approx(mean(1 / 4))
        assert float(solve.best_response_value(tree, wrong)[0]) == pytest.approx(1)


def test_a_chain_has_the_length_it_is_given():
    for length in (1, 2, 3):
        state, _ = GAME.reset(jax.random.key(3), jnp.int32(0), jnp.int32(length))
        assert int(state.length) == length
    lengths = [int(GAME.reset(jax.random.key(i), jnp.int32(0))[0].length) for i in range(60)]
    assert {*lengths} == {1, 2, 3}
    assert int(GAME.reset(jax.random.key(3), jnp.int32(0), jnp.int32(99))[0].length) == 3


def test_deals():
    for settings in ({}, {"in_order": True}, {"shift": 2}):
        assert deals_are_what_reset_draws(LockChain(locks=2, turns=3, **settings))


def test_the_value_of_chance_by_the_binomial():
    """A random player opens a chain of length n if at least n of 5 tries are right, each with chance 1/4."""
    record = played(GAME, "random")
    chance = [sum(math.comb(5, k) * 0.25**k * 0.75 ** (5 - k) for k in range(n, 6)) for n in (1, 2, 3)]
    assert close(totals(record)[:, 0, 0], np.mean(chance))


@pytest.mark.parametrize(
    "settings",
    [
        *({"locks": 0}, {"locks": 3, "turns": 2}, {"locks": 11, "turns": 11, "in_order": 1}, {"locks": 2.5}),
        *({"decoys": 5}, {"shift": 4}, {"shift": -1}),
        *({"alphabet": "A"}, {"alphabet": "ABCD", "spelled": 2}, {"alphabet": "AAB"}, {"spelled": 0}),
        *(
            {"alphabet": "DE", "decoys": 1},
            {"alphabet": "EF", "spelled": 2, "decoys": 2},
            {"alphabet": "AB", "spelled": 2, "shift": 4},
        ),
    ],
)
def test_chains_that_cannot_be_opened_are_refused(settings):
    with pytest.raises(
        ValueError, match=r"must be at least|is more|a whole number|[34] at most|must spell 2 to 10|are called E"
    ):
        LockChain(**settings)
