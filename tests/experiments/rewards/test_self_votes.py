"""Self-votes: whom each label pays, against loops over what was played; the loss against NumPy."""

import dataclasses
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.rewards.self_votes import LABELS, STUDY, near_start
from jaxmarl_llm.rl.losses import Batch, Scores
from tests.support.recipe_plays import credited, differences, games

ARMS = {name: dataclasses.replace(arm, groups=6, group_size=8) for name, arm in STUDY.recipes.items()}
VOTER = {"self": 0, "cross_view": 1, "teacher": 2}  # whose answers are the label of seat 0, and 1 ^ it of seat 1


@pytest.fixture(scope="module")
def played():
    return games(ARMS["self"])


@pytest.mark.parametrize("arm", LABELS)
def test_who_is_paid(arm, played):
    episodes, learns = played.episodes, np.asarray(played.learns)
    answers, right = np.asarray(episodes.action)[:, 0], np.asarray(episodes.reward)[:, 0, :, 0]
    group, expected = np.asarray(episodes.group), np.zeros(answers.shape)
    assert learns[0].tolist() == [True, True, False, False]
    for g in range(6):
        own = np.flatnonzero(group == g)
        for seat in (0, 1):
            paid = right[own, seat]
            if arm != "oracle":
                said = Counter(answers[own, VOTER[arm] ^ seat].tolist())
                paid = answers[own, seat] == min(said, key=lambda a, said=said: (-said[a], a))
            expected[own, seat] = (paid - paid.mean()) / (paid.std() + 1e-6)
    found = credited(ARMS[arm], played)
    np.testing.assert_allclose(np.asarray(found.advantage)[:, 0], expected, atol=1e-4)
    np.testing.assert_allclose(found.metrics["accuracy"], right[learns].mean(), atol=1e-6)
    shares = np.bincount(answers[learns], minlength=5) / learns.sum()
    np.testing.assert_allclose(found.metrics["answer entropy"], -(shares * np.log(shares)).sum(), atol=1e-5)


def test_odd_seats_read_the_other_wording():
    """The phrases of a question [fields] are those of its numbers, of which one wording exchanges the two."""
    game = ARMS["self"].game
    prompts = [np.asarray(game.prompt(state))[:2, 1:].tolist() for state in tasks(game)]
    wordings = [own for own, _ in prompts]
    for task, (own, other) in enumerate(prompts):
        assert own == wordings[task] and other == wordings[task % 5 * 5 + task // 5]


def tasks(game):
    states, _ = game.initial_states()
    return [jax.tree.map(lambda x, i=i: x[i], states) for i in range(game.tasks.size)]


def test_the_loss_is_a_policy_gradient_and_the_divergence_from_the_start():
    rng = np.random.default_rng(0)
    logp, old, start, advantage = rng.normal(-1, 0.2, (4, 3, 2)).astype(np.float32)
    mask = np.array([[1, 1], [1, 0], [0, 1]], bool)
    zero = jnp.zeros((3, 2), jnp.int32)
    batch = Batch(
        zero, zero, old, mask, advantage, advantage, advantage, zero[:, 0], zero[:, 0], zero[:, 0], zero, start
    )
    hparams = dict(ARMS["self"].all_hparams)
    total, metrics = near_start(Scores(jnp.asarray(logp), jnp.ones((3, 2))), batch, hparams)
    expected = divergence = 0.0
    for i, j in zip(*np.nonzero(mask), strict=True):
        ratio = np.exp(logp[i, j] - old[i, j])
        expected -= min(ratio * advantage[i, j], np.clip(ratio, 0.8, 1.2) * advantage[i, j])
        d = start[i, j] - logp[i, j]
        divergence += np.exp(d) - d - 1
    np.testing.assert_allclose(total.value, (expected + 0.005 * divergence) / mask.sum(), rtol=1e-5)
    np.testing.assert_allclose(metrics["kl"].value, divergence / mask.sum(), rtol=1e-5)


def test_arms_differ_in_their_label_alone():
    assert all(differences(arm, ARMS["self"]) <= {"selection"} for arm in ARMS.values())
    assert [arm.all_choices["label"] for arm in ARMS.values()] == list(LABELS)
