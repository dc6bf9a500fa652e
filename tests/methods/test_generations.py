"""Generations against a loop: who survives, who copies whom, and what noise is added.

The long cases compile updates of several learners, or merge leaf by leaf; the short ones check each generation against
a loop. The slow case has past selves in the games.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.keys import ARRANGE, SELECT, UPDATE, key_for
from jaxmarl_llm.methods import generations
from jaxmarl_llm.methods.generations import evolving, first_generation, imitation, merge_policies, next_generation
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Arranged, TinySize
from jaxmarl_llm.training.trainer import Trainer

WEIGHTS = {"w": jnp.arange(14.0).reshape(7, 2), "b": 10 * jnp.arange(7.0)}
SCORE = jnp.array([3.0, 9.0, 1.0, 7.0, 5.0, 2.0, 8.0])


def test_the_best_survive_where_they_are_and_the_others_copy_them_in_turn():
    new, parent = jax.jit(lambda key: next_generation(WEIGHTS, SCORE, key, survivors=3))(jax.random.key(0))
    best = [1, 6, 3]
    wanted, rest = {i: i for i in best}, [4, 0, 5, 2]  # by falling score
    wanted |= {place: best[i % 3] for i, place in enumerate(rest)}
    assert parent.tolist() == [wanted[i] for i in range(7)]
    for name, leaf in WEIGHTS.items():
        np.testing.assert_array_equal(new[name], np.asarray(leaf)[parent])


def test_noise_is_for_children_alone_and_of_its_size():
    weights = {"w": jnp.zeros((8, 4000))}
    new, _ = next_generation(weights, jnp.arange(8.0), jax.random.key(1), survivors=4, noise=jnp.float32(0.5))
    assert not np.asarray(new["w"][4:]).any()
    np.testing.assert_allclose(new["w"][:4].std(1), 0.5, rtol=0.05)
    assert abs(np.corrcoef(new["w"][:4])[0, 1]) < 0.1


def test_a_random_selection_does_not_look_at_the_score():
    def survived(key):
        _, parent = next_generation(WEIGHTS, SCORE, key, survivors=3, selection="random")
        return jnp.zeros(7).at[parent].set(1)

    kept = jax.vmap(survived)(jax.random.split(jax.random.key(2), 3000))
    np.testing.assert_allclose(kept.mean(0), 3 / 7, atol=0.05)
    assert (kept.sum(1) == 3).all()


def test_nobody_can_survive():
    with pytest.raises(ValueError, match="1 to 7 can survive, not 0"):
        next_generation(WEIGHTS, SCORE, jax.random.key(0), survivors=0)


def test_a_selection_that_is_none_is_no_random_one():
    with pytest.raises(ValueError, match="one of top, random, not 'best'"):
        next_generation(WEIGHTS, SCORE, jax.random.key(0), survivors=3, selection="best")


def test_imitation_is_that_of_a_loop_and_as_likely_as_its_formula():
    """Everyone meets each other one equally often and copies by the difference of scores."""
    once = jax.jit(lambda key: imitation(WEIGHTS, SCORE, key, intensity=0.4))
    new, model = once(jax.random.key(0))
    for name, leaf in WEIGHTS.items():
        np.testing.assert_array_equal(new[name], np.stack([np.asarray(leaf)[j] for j in model.tolist()]))
    models = np.asarray(jax.vmap(lambda key: once(key)[1])(jax.random.split(jax.random.key(1), 6000)))
    for i in range(7):
        for j in set(range(7)) - {i}:
            wanted = 1 / (1 + np.exp(-0.4 * (float(SCORE[j]) - float(SCORE[i])))) / 6
            assert abs((models[:, i] == j).mean() - wanted) < 0.02


def test_only_who_copies_varies_and_one_alone_cannot():
    weights = {"w": jnp.zeros((7, 3000))}
    new, model = imitation(weights, SCORE, jax.random.key(3), intensity=1.0, noise=jnp.float32(0.5))
    copied = np.asarray(model) != np.arange(7)
    assert 0 < copied.sum() < 7
    np.testing.assert_allclose(np.asarray(new["w"]).std(1), np.where(copied, 0.5, 0), rtol=0.05)
    with pytest.raises(ValueError, match="two policies at least, got 1"):
        imitation({"w": jnp.zeros((1, 2))}, jnp.zeros(1), jax.random.key(0))


@pytest.mark.long
def test_merged_policies_are_the_base_and_shares_of_what_each_learnt():
    base = {"w": jnp.ones(2), "b": jnp.float32(3)}
    share = jnp.array([0.5, 0.0, 1.0, 0.0, -1.0, 0.0, 0.25])
    found = jax.jit(merge_policies)(base, WEIGHTS, share)
    for name, leaf in WEIGHTS.items():
        want = np.array(base[name])
        for i in range(7):
            want = want + share[i] * (np.asarray(leaf)[i] - np.array(base[name]))
        np.testing.assert_allclose(found[name], want, rtol=1e-6)
    mean = merge_policies(base, WEIGHTS, jnp.full(7, 1 / 7))
    np.testing.assert_allclose(mean["w"], WEIGHTS["w"].mean(0), rtol=1e-6)


def earned(episodes):
    """The sum of rewards of each of four groups and seat."""
    reward = episodes.reward.sum((1, 3))  # [B, 2]
    return {f"earned/{g}/{seat}": (reward[:, seat] * (episodes.group == g)).sum() for g in range(4) for seat in (0, 1)}


@pytest.mark.long
def test_learners_of_a_recipe_evolve_by_what_they_earned():
    """Four learners play each other in pairs; every second update the better half survives."""
    names, pairs = ("a", "b", "c", "d"), (("a", "b"), ("a", "b"), ("c", "d"), ("c", "d"))
    recipe = Recipe(
        MatrixGame(rounds=2),
        seats=pairs,
        advantage=estimator(advantages.rloo, per_agent=True),
        step=partial(evolving, every=2, survivors=2),
        init_state=first_generation,
        hparams={"noise": 0.0, "learning_rate": 0.0},
        measure=earned,
        budget=1,
        groups=4,
        group_size=4,
        size=TinySize(layers=1),
    )
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    state, total = trainer.init(), np.zeros(4)
    for number in range(2):
        before = jax.device_get(state)
        state, metrics = trainer.update(state, number)
        for seat in range(2):
            for g in range(4):
                total[names.index(pairs[g][seat])] += metrics[f"earned/{g}/{seat}"][0]
        if number == 0:
            assert [int(metrics[f"parent/{name}"][0]) for name in names] == [0, 1, 2, 3]
            np.testing.assert_allclose(np.asarray(state.state.total)[0], total, rtol=1e-5)
    order = np.argsort(-total, kind="stable")
    parent = np.empty(4, int)
    parent[order] = order[np.arange(4) % 2]
    assert [int(metrics[f"parent/{name}"][0]) for name in names] == parent.tolist() and len(set(total)) > 2
    for i, name in enumerate(names):
        of = before.learners.weights[names[parent[i]]]
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.learners.weights[name]), of)
    assert not np.asarray(state.state.games).any()
    for wrong, says in (({"step": partial(evolving, every=0, survivors=1)}, "at least one update"),
                        ({"hparams": {}}, "noise")):  # fmt: skip
        bad = replace(recipe, **wrong)
        with pytest.raises(ValueError, match=says):
            Trainer(bad, [bad.all_hparams], [0]).lower_update()


def test_who_survives_is_drawn_by_another_key_than_what_is_arranged(monkeypatch):
    """Of the update's key the purposes differ."""
    purposes = {generations: set(), step: set()}
    for module, met in purposes.items():
        monkeypatch.setattr(module, "key_for", lambda key, *of, met=met: met.add(of[0]) or key_for(key, *of))
    recipe = Recipe(
        MatrixGame(rounds=1),
        seats=(("a", "b"),),
        advantage=estimator(advantages.rloo, per_agent=True),
        step=partial(evolving, every=1, survivors=1),
        init_state=first_generation,
        arrange=lambda hparams, state, key, number: Arranged(turns=jax.random.randint(key, (1,), 1, 2)),
        hparams={"noise": 0.0, "learning_rate": 0.0},
        budget=1,
        groups=1,
        group_size=2,
    )
    parts, key = Trainer(recipe, [recipe.all_hparams], [0]).parts, jax.random.key(0)
    run = jax.eval_shape(partial(begin.init_run, parts), key)
    jax.eval_shape(partial(recipe.step, parts), run, recipe.traced_hparams, key, jnp.int32(0))
    assert ARRANGE in purposes[step] and SELECT in purposes[generations]
    assert not purposes[step] & purposes[generations] - {UPDATE}


@pytest.mark.slow
def test_who_evolves_may_meet_past_selves():
    """The copy of the better is made of the present ones; `initial/b` stays who it was."""
    recipe = Recipe(
        MatrixGame(rounds=1),
        seats=2 * (("a", "b"),) + 2 * (("a", "initial/b"),),
        advantage=estimator(advantages.rloo, per_agent=True),
        step=partial(evolving, every=1, survivors=1),
        init_state=first_generation,
        hparams={"noise": 0.0, "learning_rate": 1e-2},
        budget=1,
        groups=4,
        group_size=4,
    )
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    start = jax.device_get(trainer.init())
    state, metrics = trainer.update(trainer.init(), 0)
    a, b = (jax.device_get(state).learners.weights[name] for name in "ab")
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert int(metrics["parent/a"][0]) == int(metrics["parent/b"][0])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state).initial["b"], start.initial["b"])
    assert any(
        (x != y).any() for x, y in zip(jax.tree.leaves(b["policy"]), jax.tree.leaves(start.initial["b"]), strict=True)
    )
