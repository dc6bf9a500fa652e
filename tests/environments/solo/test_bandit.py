"""The bandit: how often arms pay, what is told of it, and bandits that change from pull to pull."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.solo.bandit import Bandit
from tests.support.team_plays import acted, played, row

GAMES, PULLS = 3000, 6


@cache
def pulls(fresh):
    """Random players: (chances [games, arms], arm and paid, int [games, pulls] each, what was told before)."""
    game = Bandit(pulls=PULLS, fresh=fresh)

    def play(key):
        state, _ = game.reset(jax.random.fold_in(key, PULLS), 0)
        chances = state.chances

        def pull(state, t):
            choose, luck = jax.random.split(jax.random.fold_in(key, t))
            arm, told = jax.random.randint(choose, (1,), 0, 3, jnp.int32), state.told
            state, _, reward = game.step(state, arm, luck)
            return state, (arm[0], reward[0, 0], told)

        return chances, *jax.lax.scan(pull, state, jnp.arange(PULLS))[1]

    return jax.device_get(jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), GAMES)))


def test_arms_pay_with_their_chance_and_the_seat_is_told():
    chance, arm, paid, told = pulls(False)
    assert np.abs(chance.mean(0) - 0.5).max() < 0.02 and np.abs(chance.var(0) - 1 / 12).max() < 0.005
    mine = np.take_along_axis(chance, arm, 1)
    for low in np.arange(0, 1, 0.25):
        here = (mine >= low) & (mine < low + 0.25)
        assert paid[here].mean() == pytest.approx(low + 0.125, abs=0.02)
    np.testing.assert_array_equal(told[:, 1:], 1 + paid[:, :-1])
    assert not told[:, 0].any()
    game = Bandit(pulls=PULLS)
    record = played(game, "random", games=20)
    for g in range(20):
        rules, *heard = row(game, record, g, 0)
        assert "3 arms, A, B, C, and 6 pulls" in rules and rules.endswith("the same in all pulls.")
        before = [f"It paid {'1 point' if point else 'nothing'}. " for point in record["reward"][:-1, g, 0, 0]]
        assert heard == [f"{text}Which arm?" for text in ("", *before)]
        assert [word for _, word in acted(game, record, g)] == ["ABC"[a] for a in record["action"][:, g, 0]]


def test_only_a_bandit_that_stays_can_be_learnt():
    """The chance of a point after a point of the same arm is E[p^2] / E[p] = 2/3, and 1/2 with fresh chances."""
    for fresh, expected in ((False, 2 / 3), (True, 1 / 2)):
        _, arm, paid, _ = pulls(fresh)
        again = (arm[:, 1:] == arm[:, :-1]) & (paid[:, :-1] > 0)
        assert paid[:, 1:][again].mean() == pytest.approx(expected, abs=0.02)
        assert paid.mean() == pytest.approx(0.5, abs=0.02)
    assert Bandit(fresh=True).rules[0][0].endswith("drawn anew before each pull.")


def test_chances_are_drawn_from_those_that_are_given():
    game = Bandit(pulls=PULLS, chances=(0.1, 0.9))
    drawn = jax.jit(jax.vmap(lambda key: game.reset(key, 0)[0].chances))(jax.random.split(jax.random.key(0), GAMES))
    np.testing.assert_allclose(np.unique(drawn), [0.1, 0.9], rtol=1e-6)
    share = np.asarray(drawn) > 0.5
    assert np.abs(share.mean(0) - 0.5).max() < 0.03 and np.abs(np.corrcoef(share.T) - np.eye(3)).max() < 0.06


@pytest.mark.parametrize("fresh", [False, True])
def test_a_known_arm_has_its_chance_in_every_pull(fresh):
    game = Bandit(pulls=PULLS, fresh=fresh, chances=(0.1, 0.9), known=0.6)
    drawn = np.asarray(
        jax.jit(jax.vmap(lambda key: game.reset(key, 0)[0].chances))(jax.random.split(jax.random.key(0), GAMES))
    )
    np.testing.assert_allclose(drawn[:, 0], 0.6, rtol=1e-6)
    np.testing.assert_allclose(np.unique(drawn[:, 1:]), [0.1, 0.9], rtol=1e-6)
    always = jax.jit(jax.vmap(lambda key: game.step(game.reset(key, 0)[0], jnp.zeros(1, jnp.int32), key)[2][0, 0]))
    assert always(jax.random.split(jax.random.key(1), GAMES)).mean() == pytest.approx(0.6, abs=0.03)
    assert "Arm A pays 1 point with a chance of 0.6. Another arm pays" in game.rules[0][0]


def test_results_may_stay_untold():
    """The same arms pay the same, and no pull is followed by its result."""
    told, untold = (played(Bandit(pulls=PULLS, told=told), "random", games=20) for told in (True, False))
    np.testing.assert_array_equal(told["reward"], untold["reward"])
    for g in range(20):
        assert row(Bandit(pulls=PULLS, told=False), untold, g, 0)[1:] == ["Which arm?"] * PULLS


def test_persistent_stays_with_a_point_and_moves_on_without():
    record = played(Bandit(pulls=PULLS), "persistent", games=20)
    arm, paid = record["action"][..., 0].T, record["reward"][:, :, 0, 0].T
    assert (arm[:, 0] == 0).all()
    np.testing.assert_array_equal(arm[:, 1:], (arm[:, :-1] + (paid[:, :-1] == 0)) % 3)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"pulls": 0}, "at least 1"),
        ({"arms": 1}, "at least 2"),
        ({"arms": 9}, "at most 8"),
        ({"chances": (2,)}, "between"),
        ({"known": 1.5}, "known=1.5"),
    ],
)
def test_settings(settings, says):
    with pytest.raises(ValueError, match=says):
        Bandit(**settings)
