"""Opponents drawn with the deal, arranged, and learning in the game, against theory and loops.

The long case trains; the short ones check each opponent against theory or a loop.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.opponents import (
    MEMORY_ONE,
    Opponent,
    WithOpponent,
    memory_one,
    one_of,
    q_learner,
    situation,
)
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.social.matrix_games import PRISONERS_DILEMMA, MatrixGame
from jaxmarl_llm.keys import key_for
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Arranged
from jaxmarl_llm.training.setup import jit_rollout
from jaxmarl_llm.training.trainer import Trainer

PAYOFF = np.array(PRISONERS_DILEMMA)


def play(game, seats, groups=2, group_size=8, deal=None, seed=0):
    """(moves [B, T, 2], points [B, T, 2]) of scripts."""
    rollout = jit_rollout(Rollout(game, {}, Lineup((seats,) * groups, group_size)))
    episodes = rollout({}, jax.random.key(seed), *(() if deal is None else (deal,))).episodes
    return np.asarray(episodes.action), np.asarray(episodes.reward[..., 0])


def long_run(first, second):
    """Points a round, by the chain on CC, CD, DC, DD: the eigenvector of eigenvalue 1."""
    first, second = np.asarray(first, float), np.asarray(second, float)[[0, 1, 3, 2, 4]]
    own, other = first[1:, None], second[1:, None]
    chain = np.concatenate([own * other, own * (1 - other), (1 - own) * other, (1 - own) * (1 - other)], 1)
    values, vectors = np.linalg.eig(chain.T)
    share = np.real(vectors[:, np.argmin(np.abs(values - 1))])
    return share / share.sum() @ PAYOFF.reshape(4, 2)


def test_two_memory_one_players_earn_what_their_chain_says():
    one, other = np.array([0.6, 0.9, 0.2, 0.7, 0.3], np.float32), np.array([0.5, 0.8, 0.1, 0.6, 0.4], np.float32)
    game = WithOpponent(MatrixGame(rounds=400, exchange=False), memory_one())
    deal = np.stack([np.stack([one, other])] * 2)  # [groups, seats, 5]
    _, points = play(game, ("memory_one", "memory_one"), group_size=32, deal=deal)
    np.testing.assert_allclose(points[:, 20:].mean((0, 1)), long_run(one, other), atol=0.04)


def test_a_group_meets_one_opponent_and_other_groups_others():
    game = WithOpponent(MatrixGame(rounds=5), memory_one())
    keys = jax.vmap(lambda g: key_for(jax.random.key(3), 0, g))(jnp.array([0, 0, 1]))
    memory = jax.vmap(lambda key: game.reset(key, jnp.int32(0))[0].memory)(keys)
    assert memory.shape == (3, 2, 5) and ((memory >= 0) & (memory <= 1)).all()
    np.testing.assert_array_equal(memory[0], memory[1])
    assert (memory[0] != memory[2]).all() and (memory[0, 0] != memory[0, 1]).all()


def test_the_game_is_otherwise_as_it_was():
    plain, met = (play(game, ("tit_for_tat", "random")) for game in (G, WithOpponent(G, memory_one())))
    for a, b in zip(plain, met, strict=True):
        np.testing.assert_array_equal(a, b)
    check_game(WithOpponent(G, q_learner()))


G = MatrixGame(rounds=12)


@pytest.mark.parametrize("name", ["always_defect", "tit_for_tat", "grim", "win_stay_lose_shift"])
def test_scripts_that_remember_one_round_are_five_numbers(name):
    alone = WithOpponent(G, one_of({name: MEMORY_ONE[name]}))
    np.testing.assert_array_equal(play(alone, ("one_of", "random"))[0], play(G, (name, "random"))[0])


def test_one_of_a_mixture_is_drawn_by_its_weight():
    begin = jax.jit(jax.vmap(one_of(weights={"random": 2.0, "grim": 0.0}).begin))
    drawn = np.asarray(begin(jax.random.split(jax.random.key(0), 4000)))
    share = {name: (drawn == np.float32(chances)).all(1).mean() for name, chances in MEMORY_ONE.items()}
    wanted = {name: {"random": 2, "grim": 0}.get(name, 1) / 6 for name in MEMORY_ONE}
    assert share == pytest.approx(wanted, abs=0.03)


def test_situations():
    game = MatrixGame(rounds=2, exchange=False)
    for mine, theirs in itertools.product((0, 1), repeat=2):
        state, _ = game.reset(jax.random.key(0), jnp.int32(0))
        assert situation(state, jnp.int32(0)) == 0
        state, _, _ = game.step(state, jnp.array([mine, theirs]), jax.random.key(0))
        assert situation(state, jnp.int32(0)) == 1 + 2 * mine + theirs
        assert situation(state, jnp.int32(1)) == 1 + 2 * theirs + mine


def test_q_learning_against_a_loop():
    rate, discount = 0.4, 0.8
    game = WithOpponent(G, q_learner(rate, discount, explores=0.5))
    step, reset = jax.jit(game.step), jax.jit(game.reset)
    act = jax.jit(game.scripts["q_learner"])
    state, _ = reset(jax.random.key(0), jnp.int32(1))
    table, here = np.zeros((2, 5, 2)), [0, 0]
    for turn in range(G.rounds):
        keys = [key_for(jax.random.key(1), turn, seat) for seat in range(2)]
        moves = [int(act(state, jnp.int32(seat), keys[seat])) for seat in range(2)]
        state, _, _ = step(state, jnp.array(moves), jax.random.key(2))
        after = [1 + 2 * moves[seat] + moves[1 - seat] for seat in range(2)]
        for seat in range(2):
            goal = PAYOFF[moves[0], moves[1], seat] + discount * table[seat, after[seat]].max()
            table[seat, here[seat], moves[seat]] += rate * (goal - table[seat, here[seat], moves[seat]])
        here = after
        np.testing.assert_allclose(state.memory, table, rtol=1e-5)


def test_who_learns_in_the_game_ends_with_the_better_move():
    """Against who always cooperates defection pays 5 instead of 3."""
    game = WithOpponent(MatrixGame(rounds=400, exchange=False), q_learner(explores=0.2, discount=0.0))
    moves, _ = play(game, ("q_learner", "always_cooperate"))
    assert moves[:, :5, 0].mean() < 0.6 and moves[:, -40:, 0].mean() > 0.85


@pytest.mark.long
def test_training_arranges_who_is_met_and_learns_the_best_reply():
    """Against who cooperates whatever happens a policy learns to defect; the arranged opponent is the one it meets."""
    kind = lambda hparams, state, key, number: Arranged(deal=jnp.ones((2, 5)))
    game = WithOpponent(MatrixGame(rounds=2, exchange=False), memory_one())
    recipe = Recipe(
        game,
        (("me", "memory_one"),),
        estimator(advantages.rloo, per_agent=True),
        hparams={"learning_rate": 1e-2},
        arrange=kind,
        budget=1,
        groups=2,
        updates=30,
        measure=lambda episodes: {
            "met": (episodes.action[:, :, 1] == 0).mean(),
            "defects": (episodes.action[:, :, 0] == 1).mean(),
        },
    )
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    state = trainer.init()
    for number in range(30):
        state, metrics = trainer.update(state, number)
        assert metrics["met"][0] == 1
    assert metrics["defects"][0] > 0.9


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: WithOpponent(G, memory_one(name="grim")), "has a script 'grim' already"),
        (lambda: memory_one(0.5, 1.5), r"within \[0, 1\], got \[0.5, 1.5\]"),
        (lambda: one_of({"short": (1.0, 0.0)}), "five probabilities"),
        (lambda: one_of(weights={"tit for tat": 1.0}), "Weights are of always_cooperate"),
        (lambda: one_of(weights=dict.fromkeys(MEMORY_ONE, 0.0)), "not all 0"),
        (lambda: q_learner(rate=2.0), "rate, discount and explores"),
    ],
)
def test_opponents_that_cannot_be_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_an_opponent_of_ones_own():
    """Copies the move that seat 0 made two rounds ago: a memory that is carried through the game."""
    begin = lambda key: jnp.zeros(2, jnp.int32)
    act = lambda memory, state, seat, key: memory[0]
    learn = lambda memory, state, seat, action, reward, after: jnp.stack([memory[1], action[0]])
    moves, _ = play(WithOpponent(G, Opponent("late", begin, act, learn)), ("random", "late"))
    np.testing.assert_array_equal(moves[:, 2:, 1], moves[:, :-2, 0])
