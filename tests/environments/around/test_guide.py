"""A guide: its advice, its silence, the follower, and nothing else of the game."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.guide import Guidance, Guided
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.environments.teams.team_search import RouterSearch
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup

INNER = LockChain(4, 6, in_order=True, decoys=2)
GAME = Guided(INNER)
GAMES_PLAYED, KEYS = 400, 6


def play(game, script, *guidance):
    """(actions [B, T], solved [B], advice [B, T]) of games of a script."""

    def one(key):
        state, _ = game.reset(key, 0, *guidance)

        def turn(carry, t):
            state, over = carry
            event = jax.random.fold_in(key, t)
            action = game.scripts[script](state, jnp.int32(0), event)
            advice = state.advice[0] if hasattr(state, "advice") else jnp.int32(-1)
            state, view, reward = game.step(state, action[None], event)
            paid = jnp.where(over, 0, reward[0, 0])
            return (state, over | view.terminated), (action, paid, jnp.where(over, -1, advice))

        _, (actions, paid, advice) = jax.lax.scan(turn, (state, jnp.bool_(False)), jnp.arange(game.turns))
        return actions, paid.sum(), advice

    return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), GAMES_PLAYED))


def test_nothing_else_of_the_game_changes():
    check_game(GAME)
    plain, guided = play(INNER, "random", jnp.int32(4)), play(GAME, "random", Guidance(3, True, jnp.int32(4)))
    for name, a, b in zip(("actions", "solved"), plain, guided, strict=False):
        np.testing.assert_array_equal(a, b, name)


def test_a_follower_opens_the_locks_that_it_is_told_and_guesses_the_others():
    _, solved, advice = play(GAME, "follower", Guidance(6, True, jnp.int32(4)))
    assert (solved == 1).all() and (np.asarray(advice)[:, :4] == np.arange(4)).all()
    actions, _, advice = play(GAME, "follower", Guidance(2, True, jnp.int32(4)))
    assert (np.asarray(actions)[:, :2] == [0, 1]).all()
    assert (np.asarray(advice)[:, 2:4] == KEYS).all()  # silence
    share = np.bincount(np.asarray(actions)[:, 2], minlength=KEYS) / GAMES_PLAYED
    assert np.abs(share - 1 / KEYS).max() < 0.06


def test_random_advice_names_each_key_and_silence_alike():
    _, _, advice = play(GAME, "follower", Guidance(6, False, jnp.int32(4)))
    told = np.asarray(advice)[np.asarray(advice) >= 0]
    share = np.bincount(told, minlength=KEYS + 1) / len(told)
    assert np.abs(share - 1 / (KEYS + 1)).max() < 0.03


def test_the_guide_speaks_in_one_phrase_before_each_answer():
    reset, step = jax.jit(lambda key: GAME.reset(key, 0, Guidance(1, True, jnp.int32(4)))), jax.jit(GAME.step)
    state, view = reset(jax.random.key(0))
    assert GAME.observation[-1][int(view.phrases[0, -1])] == " A guide would answer A."
    _, view, _ = step(state, jnp.zeros(1, jnp.int32), jax.random.key(1))
    assert GAME.observation[-1][int(view.phrases[0, -1])] == " The guide is silent."


def test_a_guide_that_recalls_reads_the_row_of_the_observation():
    """Observations have a result and a colour, 4 and 10 phrases. The table knows two of the locks, after any result."""
    game = Guided(INNER, recalls=True)
    check_game(game)
    assert game.situations == 5 * 11 and game.measures == (*INNER.measures, "situation")
    table = np.full(game.situations, KEYS)
    for result in range(4):
        table[(result + 1) * 11 + 1], table[(result + 1) * 11 + 3] = 0, 2  # red and blue
    deal = Guidance(6, True, jnp.int32(4), jnp.asarray(table))
    actions, _, advice = play(game, "follower", deal)
    assert (np.asarray(actions)[:, 0] == 0).all() and (np.asarray(advice)[:, 1] == KEYS).all()

    @jax.jit
    def turns(actions):
        state, _ = game.reset(jax.random.key(0), 0, deal)

        def turn(state, action):
            state, view, _ = game.step(state, action[None], jax.random.key(1))
            return state, (view.measured[0], view.phrases[0])

        return jax.lax.scan(turn, state, actions)[1]

    measured, told = map(np.asarray, turns(jnp.array([0, 3, 5, 1, 2])))
    # red at the start, then green after it opens, stays shut, nothing happens; then blue
    assert measured[:, -1].tolist() == [1 * 11 + 1, 2 * 11 + 2, 3 * 11 + 2, 4 * 11 + 2, 2 * 11 + 3]
    assert told[:, -1].tolist() == [KEYS, KEYS, KEYS, 2, KEYS]


def test_a_guide_that_recalls_nothing_is_silent():
    game = Guided(INNER, recalls=True)
    _, _, advice = play(game, "random", Guidance(6, True, jnp.int32(4)))
    assert {*np.asarray(advice).ravel().tolist()} <= {-1, KEYS}


def test_what_cannot_be_guided_is_refused():
    with pytest.raises(ValueError, match="no script 'wise'"):
        Guided(INNER, "wise")
    with pytest.raises(ValueError, match="asks for other answers"):
        Guided(RouterSearch())


def test_without_a_deal_the_guide_is_silent():
    rollout, silence = (
        Rollout(GAME, {}, Lineup((("random",),), 1), 1),
        Guidance(jnp.zeros(1, jnp.int32), jnp.ones(1, bool)),
    )
    told = jax.jit(lambda deal: rollout({}, jax.random.key(0), deal).episodes.told)
    np.testing.assert_array_equal(told(None), told(silence))
