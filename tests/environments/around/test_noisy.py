"""Scripts that err do so as often as said, and never illegally."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.classic.card_games import LeducPoker
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.teams.discussion import Discussion

GAME = Noisy(Discussion(Arithmetic(5, "+"), 3, 1), (Errs("novice", "correct", (0.6, 0.9, 0.25)),))


def test_it_keeps_to_the_contract():
    check_game(GAME)


def test_a_script_errs_at_the_rate_of_its_role():
    novice, correct, n = GAME.scripts["novice"], GAME.scripts["correct"], 4000
    state, view = GAME.reset(jax.random.key(0), jnp.int32(0))
    for phase, (rate, answers) in enumerate(((0.6, 5), (0.9, 2), (0.25, 4))):
        meant = int(correct(state, jnp.int32(0), jax.random.key(0)))
        keys = jax.random.split(jax.random.key(1 + phase), n)
        said = np.asarray(jax.vmap(lambda key, state=state: novice(state, jnp.int32(0), key))(keys))
        share = np.bincount(said, minlength=answers) / n
        want = np.full(answers, (1 - rate) / (answers - 1))
        want[meant] = rate
        np.testing.assert_allclose(share, want, atol=0.03)
        action = jnp.array([correct(state, jnp.int32(seat), jax.random.key(0)) for seat in range(3)])
        state, view, _ = GAME.step(state, action, jax.random.key(2))
    assert not view.acting.any()


def test_what_is_illegal_is_never_said():
    game = Noisy(LeducPoker(), (Errs("wild", "random", 0.0),))
    state, view = game.reset(jax.random.key(0), jnp.int32(0))
    for t in range(game.turns):
        seat = jnp.argmax(view.acting).astype(jnp.int32)
        keys = jax.random.split(jax.random.key(t), 50)
        said = jax.vmap(lambda key, state=state, seat=seat: game.scripts["wild"](state, seat, key))(keys)
        if view.acting.any():
            assert view.legal[seat][said].all()
        state, view, _ = game.step(state, jnp.full(2, said[0]), keys[0])


@pytest.mark.parametrize(
    ("errs", "says"),
    [
        ((Errs("novice", "correct", 1.5),), "within"),
        ((Errs("novice", "correct", (0.5, 0.5)),), "one a role"),
        ((Errs("novice", "nobody", 0.5),), "no script"),
        ((Errs("correct", "correct", 0.5),), "already"),
        ((Errs("a", "correct", 0.5), Errs("a", "random", 0.5)), "already"),
    ],
)
def test_bad_input_is_named(errs, says):
    with pytest.raises(ValueError, match=says):
        Noisy(Discussion(), errs)
