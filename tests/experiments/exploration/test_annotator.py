"""Names of cells against a walk, labels and comparisons, and rewards against a loop."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.exploration import annotator
from experiments.exploration.annotator import ALONE, CELLS, DISTANCE, STUDY
from experiments.exploration.novelty import LENGTH, MAZE, START
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from tests.support.recipe_plays import differences


@pytest.fixture(scope="module")
def state():
    return jax.jit(lambda: annotator.begin(None, jax.random.key(0)))()


def test_names_of_cells_are_those_of_a_walk(state):
    rollout = Rollout(MAZE, {}, Lineup((("random",),) * 8, 4), 1)
    deal = jnp.full(8, START[0]), jnp.ones(8, jnp.int32), jnp.zeros(8, jnp.int32)
    episodes = jax.jit(lambda: rollout({}, jax.random.key(0), deal).episodes)()
    met = set()
    for actions, told, acted in zip(*map(np.asarray, (episodes.action, episodes.told, episodes.acted)), strict=True):
        cell = START[0]
        for t in range(1, int(acted.sum())):
            cell = MAZE.plans[0].after[cell, actions[t - 1, 0]]
            assert told[t, 0] == state["names"][cell]
            met.add(int(cell))
    assert len(met) > 10 and len({*np.asarray(state["names"]).tolist()}) == CELLS


def test_labels_are_given_once_and_are_wrong_at_times(state):
    met, label = jnp.arange(CELLS) < 9, jax.jit(annotator.label_new)
    after = label(state, met, jax.random.key(0))
    assert int(after["asked"].sum()) == annotator.LABELS and not (after["asked"] & ~met).any()
    for i in range(1, 9):
        before, after = after, label(after, met, jax.random.key(i))
        assert (after["label"] == before["label"])[before["asked"]].all()
    assert (after["asked"] == met).all() and (after["label"] == 0)[9:].all()
    many = jax.jit(jax.vmap(lambda key: annotator.label_new(state, met, key)))(
        jax.random.split(jax.random.key(1), 4000)
    )
    asked, given = np.asarray(many["asked"]), np.asarray(many["label"])
    wrong = (given != (DISTANCE < LENGTH))[asked].mean()
    assert wrong == pytest.approx(annotator.WRONG, abs=0.02)
    assert asked[:, :9].mean(0) == pytest.approx(annotator.LABELS / 9, abs=0.03)


def test_comparisons_and_scores(state):
    """Over many comparisons the nearer wins 80%, equals half; a step of the scores against a loop."""
    met = jnp.arange(CELLS) % 3 == 0
    compare = jax.jit(annotator.compare_pairs)
    many = jax.jit(jax.vmap(lambda key: annotator.compare_pairs(state, met, key)["wins"]))
    wins = np.asarray(many(jax.random.split(jax.random.key(2), 4000))).sum(0)
    assert wins.sum() == pytest.approx(4000 * annotator.PAIRS) and wins[~np.asarray(met)].sum() == 0
    nearer, equal = DISTANCE[:, None] < DISTANCE, DISTANCE[:, None] == DISTANCE
    assert wins[nearer].sum() / wins[~equal].sum() == pytest.approx(1 - annotator.WRONG, abs=0.02)
    np.testing.assert_allclose(wins[equal], wins.T[equal])
    given = state | {"wins": jnp.asarray(wins, jnp.float32)}
    after = compare(given, met, jax.random.key(3))
    wins, score = np.asarray(after["wins"]), np.zeros(CELLS)
    for _ in range(annotator.STEPS):
        slope = np.zeros(CELLS)
        for i, j in np.argwhere(wins + wins.T > 0):
            slope[i] += wins[i, j] - (wins[i, j] + wins[j, i]) / (1 + np.exp(score[j] - score[i]))
        score = score + slope / np.maximum((wins + wins.T).sum(1), 1)
    np.testing.assert_allclose(after["score"], score, atol=1e-4)


def test_rewards_against_a_loop(state):
    """A single episode and its silent companion: the advantage is that of the difference of their rewards."""
    walk = np.array([START[0], 3, 5, 3, 3, 7, 5])
    told = np.zeros((2, len(walk)), np.int32)
    told[0] = np.asarray(state["names"])[walk]
    acted = np.stack([np.ones(len(walk), bool), np.arange(len(walk)) < 1])
    rng = np.random.default_rng(0)
    score, label = rng.normal(size=CELLS), rng.integers(0, 2, CELLS).astype(float)
    given = state | {"score": jnp.asarray(score, jnp.float32), "label": jnp.asarray(label, jnp.float32)}
    given["moments"] = jnp.asarray([10.0, 4.0, 9.0])

    @jax.jit
    def credit(hparams):
        episodes = SimpleNamespace(
            told=jnp.asarray(told)[..., None],
            acted=jnp.asarray(acted)[..., None],
            reward=jnp.zeros((2, len(walk), 1, 1)),
        )
        acts = episodes.acted, jnp.zeros(2, jnp.int32), 1
        experience = SimpleNamespace(episodes=episodes, acts=acts, key=jax.random.key(0))
        return annotator.estimate_advantages(experience, hparams, given)

    after = walk[1:]
    times = np.array([(after[: t + 1] == cell).sum() for t, cell in enumerate(after)])
    mean = (4 + score[after].sum()) / 16
    standard = (score[after] - mean) / np.sqrt((9 + (score[after] ** 2).sum()) / 16 - mean**2)
    r = {"none": 0 * times, "retrieval": label[after], "released": score[after]}
    r["ranking"] = np.where(standard > annotator.LEAST, standard, 0)
    for name, arm in STUDY.arms.items():
        result = credit(arm.traced_hparams)
        total = (0.04 * r[name] / times**3 * 0.9 ** np.arange(len(after))).sum()
        want = 0 if abs(total) < 1e-9 else np.sign(total)  # two returns: one deviation above and below their mean
        np.testing.assert_allclose(result.advantage[:, 0, 0], [want, -want], atol=1e-3, err_msg=name)
        assert result.state["met"].nonzero()[0].tolist() == sorted({*after.tolist()})
        np.testing.assert_allclose(result.state["moments"][0], 16)


def test_arms_share_a_program():
    for name, arm in STUDY.arms.items():
        assert differences(ALONE, arm) <= {"selection"}, name
