"""Social learning with a planner: games against plain Python, beliefs by counting, what is told, the deals.

The long cases count beliefs for each set of levels; the short ones play the same games in plain Python.
"""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.social.herd import DOORS, Aim, Herd
from tests.support.told import played, render, told

GAMES = 60
GAME = Herd(followers=3, evidence=(0, 1, 3), cost=(0.0, 0.1, 0.3), prior=-1, aim=Aim(0.5, 2.0))
RED, TRUE = 1 / 3, (1 / 2, 2 / 3, 8 / 9)


def likelihood(prize, levels, hints):
    """The probability of these hints if the prize is there."""
    return np.prod([TRUE[level] if hint == prize else 1 - TRUE[level] for level, hint in zip(levels, hints)])  # noqa: B905


def posterior(levels, opened, level, hint):
    """P(red) of a Bayesian that knows its predecessors' doors, by counting all hints that would have led to them."""
    mass = []
    for prize, prior in enumerate((RED, 1 - RED)):
        total = 0.0
        for hints in product((0, 1), repeat=len(opened)):
            doors = []
            for k, own in enumerate(hints):
                p = posterior(levels[:k], opened[:k], levels[k], own)
                doors.append(own if abs(p - 0.5) < 1e-9 else int(p < 0.5))
            total += likelihood(prize, levels, hints) * (doors == list(opened))
        mass.append(prior * total * likelihood(prize, [level], [hint]))
    return mass[0] / sum(mass)


def test_games_against_python():
    prompt, record, deals = played(GAME, GAMES)
    view, action = record["view"], record["action"]
    for g in range(GAMES):
        prize, bought, opened, lines = int(deals.prize[g]), [], [], []
        for k in range(GAME.followers):
            kind = GAME.levels[int(action[2 * k, g, 0])]
            assert np.flatnonzero(view.acting[2 * k, g]).tolist() == [0] and view.grammar[2 * k, g, 0] == 0
            assert told(GAME, view, 2 * k, g, seat=0) == "".join(lines[-1:]) + f"Which hint does follower {k + 1} get?"
            bought.append(int(action[2 * k, g, 0]))
            wanted = np.zeros((GAME.agents, 3))
            wanted[0, 2] = -GAME.cost[bought[-1]]
            np.testing.assert_allclose(record["reward"][2 * k, g], wanted, rtol=1e-6)
            true = int(deals.luck[g, k]) <= bought[-1]
            hint = DOORS[prize if true else 1 - prize]
            assert np.flatnonzero(view.acting[2 * k + 1, g]).tolist() == [k + 1]
            said = told(GAME, view, 2 * k + 1, g, seat=k + 1)
            assert said == "".join(lines) + f"Your {kind} hint names {hint}. Which door do you open?"
            opened.append(int(action[2 * k + 1, g, k + 1]))
            lines.append(f"Follower {k + 1} got a {kind} hint and opened {DOORS[opened[-1]]}. ")
            right = float(opened[-1] == prize)
            wanted = np.zeros((GAME.agents, 3))
            wanted[k + 1, 0], wanted[0, :2] = right, (0.5 * right, 2.0 * (opened[-1] == 0))
            np.testing.assert_allclose(record["reward"][2 * k + 1, g], wanted, rtol=1e-6)
        end = f"The prize was behind {DOORS[prize]}."
        assert [told(GAME, record["after"], -1, g, seat=s) for s in range(4)] == [lines[-1] + end, end, end, end]
    texts = [render(GAME.rules, prompt[0, seat]) for seat in range(GAME.agents)]
    assert "Your points are 0.5 for each follower that opens the prize's door and 2 for each that opens red" in texts[0]
    assert all(f"You are follower {k} of 3." in texts[k] and "You get 1 point" in texts[k] for k in (1, 2, 3))
    assert all("red with probability 0.333" in text and "0.889 and costs the planner 0.3" in text for text in texts)


@pytest.mark.long
@pytest.mark.parametrize("levels", [(2, 1, 1), (1, 1, 0), (0, 2, 2), (1, 2, 1)])
def test_bayesian_followers_are_those_that_count(levels):
    """All hints of three followers, one after another; also the belief that is common to all."""
    for hints in product((0, 1), repeat=3):
        opened = []
        for k, hint in enumerate(hints):
            p = posterior(levels[:k], opened, levels[k], hint)
            opened.append(hint if abs(p - 0.5) < 1e-9 else int(p < 0.5))
        before = GAME.beliefs(jnp.array(levels), jnp.array(opened))
        for k in range(3):  # a useless hint changes nothing
            assert 2.0 ** float(before[k]) == pytest.approx(odds(posterior(levels[:k], opened[:k], 0, 0)))
        state, _ = GAME.reset(jax.random.key(0), jnp.int32(0))
        luck = jnp.array([0 if hint == state.prize else 3 for hint in hints])
        for k in range(3):
            now = state.replace(turn=2 * k + 1, luck=luck, level=jnp.array(levels), opened=jnp.array(opened))
            assert GAME.scripts["bayesian"](now, jnp.int32(k + 1), None) == opened[k]


def odds(p):
    return p / (1 - p)


def test_a_door_that_no_bayesian_would_open_tells_nothing():
    strong, weak = 2, 1
    assert GAME.beliefs(jnp.array([strong, weak, weak]), jnp.array([0, 1, 0])).tolist() == [-1, 2, 2, 2]


def test_deals_are_what_is_drawn():
    states, probability = GAME.initial_states()
    assert len(probability) == 2 * 4**3 and probability.sum() == pytest.approx(1)
    first = np.asarray(states.luck[:, 0])
    assert probability[np.asarray(states.prize) == 0].sum() == pytest.approx(1 / 3)
    for level, true in enumerate(TRUE):
        assert probability[first <= level].sum() == pytest.approx(true)
    drawn = jax.vmap(lambda key: GAME.reset(key, jnp.int32(0))[0])(jax.random.split(jax.random.key(0), 4000))
    assert abs((drawn.prize == 0).mean() - 1 / 3) < 0.03
    assert all(abs((drawn.luck <= level).mean() - true) < 0.03 for level, true in enumerate(TRUE))


def test_an_arranged_aim_is_paid_and_told_to_nobody():
    state, _ = GAME.reset(jax.random.key(0), jnp.int32(0), Aim(3.0, 0.0))
    text = render(GAME.rules, np.asarray(GAME.prompt(state))[0])
    assert "Your points are a number for each follower" in text and "and a number for each that opens red" in text
    state, _, _ = GAME.step(state, jnp.zeros(4, jnp.int32), jax.random.key(0))
    _, _, reward = GAME.step(state, jnp.full(4, state.prize), jax.random.key(0))
    assert np.asarray(reward)[0].tolist() == [3, 0, 0] and np.asarray(reward)[1].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"followers": 0}, "followers must be at least 1"),
        ({"evidence": (1, 1, 2)}, "evidence must rise"),
        ({"evidence": (-1, 0, 1)}, "the first evidence must be at least 0"),
        ({"cost": (0.0, 1.0)}, "needs a cost and a name"),
        ({"cost": (0.0, 0.1, -1.0)}, "the cost of strong must be finite and not negative"),
        ({"aim": Aim(wanted=-1.0)}, "wanted must be finite and not negative"),
    ],
)
def test_settings_that_are_no_game(settings, message):
    with pytest.raises(ValueError, match=message):
        Herd(**settings)
