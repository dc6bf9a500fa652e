"""A population against a loop: who survives and is copied, where all sit afterwards, what comes with the weights.

The long case compiles updates of three tables; the short ones check each generation against a loop.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.methods.population import evolve, seat_scores, society
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.training.update import Learners

TABLES, SEATS, SURVIVORS = 4, 3, 5
PLACES = TABLES * SEATS
RECIPE = Recipe(
    MatrixGame(rounds=1),
    seats=(("one", "other"),),
    advantage=estimator(advantages.rloo, per_agent=True),
    hparams={"learning_rate": 0.0},
    budget=1,
    groups=1,
    group_size=4,
    measure=seat_scores,
)


def people() -> Learners:
    """Everybody's weights say where they sit, and their moments say the same."""
    where = np.arange(PLACES, dtype=np.float32).reshape(TABLES, SEATS)
    of = lambda scale: {
        f"seat {s}": {"w": jnp.asarray(np.repeat(scale * where[:, s, None], 2, 1))} for s in range(SEATS)
    }
    moments = {name: optax.TraceState(trace=tree) for name, tree in of(10).items()}
    return Learners(of(1), moments, jnp.zeros(TABLES, jnp.int32))


def at(of, leaf=lambda tree: tree["w"]):
    """[places]: the first number of everybody's leaf."""
    return np.stack([np.asarray(leaf(tree))[:, 0] for tree in of.values()], 1).ravel()


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_the_next_generation_is_that_of_a_loop(noise):
    score = np.random.default_rng(3).permutation(PLACES).astype(np.float32).reshape(TABLES, SEATS)
    how = partial(evolve, survivors=SURVIVORS, noise=noise, selection="top")
    new, parent = jax.jit(how)(people(), jnp.asarray(score), jax.random.key(5))
    order = np.argsort(-score.ravel())
    children = sorted(int(order[i % SURVIVORS]) for i in range(PLACES))  # the best first, in turn
    parent = np.asarray(parent).ravel()
    assert sorted(parent.tolist()) == children
    assert np.array_equal(at(new.optimiser, lambda moments: moments.trace["w"]), 10 * parent)
    moved = at(new.weights) - parent
    assert (np.abs(moved) < 10 * noise + 1e-7).all() and ((moved == 0).sum() == (SURVIVORS if noise else PLACES))
    assert not np.array_equal(parent, np.sort(parent))  # all sit down anew


def test_every_place_is_as_likely():
    """The best of all, who survives, sits everywhere equally often."""
    score = jnp.arange(float(PLACES)).reshape(TABLES, SEATS)
    seats = jax.jit(jax.vmap(lambda key: evolve(people(), score, key, survivors=PLACES, selection="top")[1]))
    sat = (np.asarray(seats(jax.random.split(jax.random.key(0), 3000))).reshape(3000, -1) == PLACES - 1).mean(0)
    np.testing.assert_allclose(sat, 1 / PLACES, atol=0.025)


def test_a_seats_score_is_its_mean_return():
    reward = jnp.arange(24.0).reshape(2, 3, 2, 2)
    found = seat_scores(SimpleNamespace(reward=reward, acted=jnp.ones((2, 3, 2), bool)))
    by_seat = np.asarray(reward).sum((1, 3)).mean(0)
    assert [float(found["score/seat_0"]), float(found["score/seat_1"])] == by_seat.tolist()
    assert float(found["return"]) == by_seat.mean()


@pytest.mark.long
def test_a_society_plays_learns_and_goes_on():
    """Three tables at a rate of 0: weights are those of the parents by what was earned, alone or by the table."""
    trainer = Trainer(RECIPE, [RECIPE.all_hparams] * 3, range(3))
    generation, state = society(trainer, survivors=2), trainer.init()
    for number, share in enumerate((0.0, 0.0, 1.0)):
        before = jax.device_get(state.learners.weights)
        state, metrics = generation(state, number, share)
        score = np.stack([metrics["score/seat_0"], metrics["score/seat_1"]], 1)
        score = (score + share * score[:, ::-1]).ravel()
        parent = np.asarray(metrics["parent"]).ravel()
        kept = np.argsort(-score, kind="stable")[:2]
        assert set(parent.tolist()) == set(kept.tolist())
        assert np.bincount(parent, minlength=6)[kept].tolist() == [3, 3]
        pool = [jax.tree.map(lambda x, t=t: x[t], before[name]) for t in range(3) for name in ("one", "other")]
        for place in range(6):
            table, name = divmod(place, 2)
            here = jax.tree.map(lambda x, t=table: x[t], state.learners.weights[("one", "other")[name]])
            jax.tree.map(np.testing.assert_array_equal, jax.device_get(here), pool[parent[place]])


def test_what_is_no_society_is_refused():
    shared = replace(RECIPE, seats=(("one", "one"),))
    with pytest.raises(ValueError, match="one seat of one line-up"):
        society(Trainer(shared, [shared.all_hparams], [0]), survivors=1)
