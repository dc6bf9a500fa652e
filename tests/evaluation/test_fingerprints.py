"""Fingerprints against a loop over rounds, and of players whose character is known."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.evaluation.fingerprints import fingerprints

GAMES, ROUNDS = 30, 12
read = jax.jit(fingerprints)


def against(strategy, seed=0):
    """(own, other) moves of a strategy (own past, other's past) -> move against a player at random."""
    other = np.random.default_rng(seed).integers(0, 2, (GAMES, ROUNDS))
    own = np.zeros_like(other)
    for g, t in product(range(GAMES), range(ROUNDS)):
        own[g, t] = strategy(own[g, :t].tolist(), other[g, :t].tolist())
    return own, other


PLAYERS = {
    "tit for tat": lambda own, other: other[-1] if other else 0,
    "grim": lambda own, other: int(1 in other),
    "kind": lambda own, other: 0,
    "suspicious": lambda own, other: other[-1] if other else 1,
    "two for one": lambda own, other: int(other[-2:] == [1, 1]),
}


def counted(own, other):
    kinds = "cooperation opening provocability retaliation forgiveness alternation coordination"
    cases = {name: [] for name in kinds.split()}
    for a, b in zip(own.tolist(), other.tolist(), strict=True):
        cases["opening"].append(a[0] == 0)
        for t in range(len(a)):
            cases["cooperation"].append(a[t] == 0)
            cases["coordination"].append(a[t] == b[t])
            if t and b[t - 1] == 1 and 1 not in b[: t - 1]:
                cases["provocability"].append(a[t] == 1)
            if t and (a[t - 1], b[t - 1]) == (0, 1):
                cases["retaliation"].append(a[t] == 1)
            if t > 1 and a[t - 1] == 1 and b[t - 2 : t] == [1, 0]:
                cases["forgiveness"].append(a[t] == 0)
            if t:
                cases["alternation"].append(a[t] != a[t - 1] and b[t] != b[t - 1])
    return cases


@pytest.mark.parametrize("name", PLAYERS)
def test_shares_are_those_of_a_loop(name):
    own, other = against(PLAYERS[name], seed=3)
    found = read(jnp.asarray(own), jnp.asarray(other))
    wanted = counted(own, other)
    assert set(found) == set(wanted)
    for share, cases in wanted.items():
        assert (float(found[share].sum), float(found[share].count)) == (sum(cases), len(cases)), share


def test_known_characters():
    moves = {name: map(jnp.asarray, against(play)) for name, play in PLAYERS.items()}
    of = {name: {share: float(x.value) for share, x in read(*both).items()} for name, both in moves.items()}
    assert of["tit for tat"]["retaliation"] == of["tit for tat"]["forgiveness"] == of["tit for tat"]["opening"] == 1
    assert of["grim"]["provocability"] == 1 and of["grim"]["forgiveness"] == 0
    assert of["kind"]["retaliation"] == 0 and of["kind"]["cooperation"] == 1
    assert of["suspicious"]["opening"] == 0 and of["two for one"]["provocability"] == 0


@pytest.mark.parametrize("together", [0, 1])
def test_who_takes_turns_alternates(together):
    own = jnp.arange(8)[None] % 2
    found = read(own, own if together else 1 - own)
    assert float(found["alternation"].value) == 1 and float(found["coordination"].value) == together
    assert float(read(own, jnp.zeros_like(own))["alternation"].value) == 0


def test_moves_have_one_shape():
    with pytest.raises(ValueError, match="are \\[episodes, rounds\\]"):
        fingerprints(jnp.zeros(3), jnp.zeros(3))
