"""The sequential public good against plain Python: payoffs, what is told, its normal form."""

import re
from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.social.contributions import Contributions, Terms
from tests.support.told import played, render, told

GAMES = 40
SETTINGS = {
    "full": Contributions(),
    "partial": Contributions(agents=4, most=2, terms=Terms(2.0, 0.5, 1.0, 3.0, 4.0, partial=True)),
}


@cache
def plays(name):
    return played(SETTINGS[name], GAMES)


def points(gifts, terms):
    """The four terms of every seat, written out."""
    total, rows = sum(gifts), []
    for seat, gift in enumerate(gifts):
        synergy = sum(terms.synergy * gift * earlier for earlier in gifts[:seat])
        short = -terms.penalty if total < terms.threshold else 0.0
        rows.append([-terms.cost * gift * gift / 2, synergy, terms.share * total / len(gifts), short])
    return rows


@pytest.mark.parametrize("name", SETTINGS)
def test_games_against_python(name):
    game = SETTINGS[name]
    prompt, record, _ = plays(name)
    view, action, n = record["view"], record["action"], game.agents
    for g in range(GAMES):
        gifts = [int(action[seat, g, seat]) for seat in range(n)]
        lines = [f"Player {k + 1} gave {gift}.\n" for k, gift in enumerate(gifts)]
        known = [lines[max(k - 1, 0) if game.terms.partial else 0 : k] for k in range(n)]
        paid = points(gifts, game.terms)
        for t in range(n):
            assert np.flatnonzero(view.acting[t, g]).tolist() == [t]
            for seat in range(n):
                said = told(game, view, t, g, seat=seat)
                assert said == ("".join([*known[t], "How many units do you give?"]) if seat == t else "")
            wanted = np.zeros((n, 4))
            wanted[t, :2] = paid[t][:2]
            if t == n - 1:
                wanted[:, 2:] = np.array(paid)[:, 2:]
            np.testing.assert_allclose(record["reward"][t, g], wanted, rtol=1e-6)
        for seat in range(n):
            rest = [line for k, line in enumerate(lines) if k != seat and line not in known[seat]]
            assert told(game, record["after"], -1, g, seat=seat) == "".join([*rest, "All have given."])
        assert record["after"].terminated[-1, g]
    for seat in range(n):
        text = render(game.rules, prompt[0, seat])
        assert (
            f"for {n} players. You are player {seat + 1}." in text and f"less than {game.terms.threshold:g} is" in text
        )
        assert f"share: {game.terms.share / n:g} times" in text and f"cost: {game.terms.cost / 2:g} times" in text
        assert ("just before you" in text) == bool(game.terms.partial)


@pytest.mark.parametrize("hidden", [0.0, 1.0])
def test_arranged_terms_are_paid_and_told_to_nobody(hidden):
    game, terms = Contributions(), Terms(0.5, 1.0, 3.0, 4.0, 6.0, hidden)
    state, view = jax.jit(game.reset)(jax.random.key(0), jnp.int32(0), terms)
    text = render(game.rules, np.asarray(game.prompt(state))[2])
    assert "less than a threshold" in text
    assert not re.search(r"\d", text[text.index("four terms") : text.index("Answer")])
    assert ("just before you" in text) == bool(hidden)
    total, step = 0, jax.jit(game.step)
    for seat, gift in enumerate((1, 0, 3)):
        if seat == 2:
            assert ("Player 1" in told(game, view, seat=2)) == (not hidden)
        state, view, reward = step(state, jnp.full(3, gift), jax.random.key(0))
        total = total + np.asarray(reward)
    np.testing.assert_allclose(total, points((1, 0, 3), terms), rtol=1e-6)


def test_the_normal_form_is_what_is_paid():
    game, terms = Contributions(most=2), Terms(1.0, 0.25, 1.2, 2.0, 4.0)
    table = np.asarray(game.payoffs(terms))
    assert table.shape == (3, 3, 3, 3)
    for gifts in product(range(3), repeat=3):
        np.testing.assert_allclose(table[gifts], np.sum(points(gifts, terms), 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agents": 1}, "agents must be at least 2"),
        ({"most": 0}, "most must be at least 1"),
        ({"terms": Terms(penalty=-1.0)}, "penalty must be finite and not negative"),
    ],
)
def test_settings_that_are_no_game(settings, message):
    with pytest.raises(ValueError, match=message):
        Contributions(**settings)
