"""The tricks on long answers: the banks by enumeration, advantages and groups against a loop, and the three means."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.credit_assignment.tricks_long import ARMS, GROUPS, GRPO, LONGEST, QUIZ, STUDY, arm_loss
from jaxmarl_llm.rl.losses import Scores
from tests.support.recipe_plays import credited, differences, games


def test_banks_by_enumeration():
    """Probabilities of right answers of both imitated scripts; wrong answers of the first are longer."""
    question, action = np.indices((15, 300)).reshape(2, -1)
    state = jax.tree.map(lambda x: x[question], QUIZ.initial_states()[0])
    step = jax.jit(jax.vmap(lambda state, a: QUIZ.step(state, a[None], jax.random.key(0))[2][0, 0]))
    right = np.asarray(step(state, action)).reshape(15, 300)
    guess, known = GRPO.game.errs
    easy = known.right + (1 - known.right) * (right.sum(1) - 1) / 299
    assert 0.92 < easy.min() < easy.max() < 0.96
    words = np.broadcast_to(np.arange(300) // 20, right.shape)
    fitting = np.abs(words - np.resize(QUIZ.words, 15)[:, None]) <= QUIZ.slack
    meant = fitting / fitting.sum(1, keepdims=True)
    chance = guess.right * meant + (1 - guess.right) * (1 - meant) / 299
    share = (chance * right).sum(1)
    assert share.min() == pytest.approx(0.086, abs=5e-4) and share.max() == pytest.approx(0.819, abs=5e-4)
    wrong, good = (np.average(words, weights=chance * (right == x)) for x in (0, 1))
    assert wrong - good > 3.5
    tokenizer = GRPO.tokenizer(GRPO.game)
    texts = dict(GRPO.game.grammars[0][0].options)
    assert {len(tokenizer.encode(texts[a])) for a in range(300)} == set(range(2, LONGEST + 1))


@pytest.fixture(scope="module")
def played():
    return games(ARMS["dapo"])


@pytest.mark.parametrize("arm", ["grpo/row", "lite/token", "dr_grpo", "dapo"])
def test_advantages_and_trained_groups_against_a_loop(played, arm):
    recipe = dataclasses.replace(ARMS[arm], groups=2 * GROUPS)
    found, episodes = credited(recipe, played), played.episodes
    reward, action = (
        np.asarray(x[:, 0, 0], np.float64).reshape(-1, 8) for x in (episodes.total_reward, episodes.action)
    )
    expected, trained = np.zeros_like(reward), np.ones_like(reward, bool)
    left = GROUPS
    for g, row in enumerate(reward):
        scale = {"grpo/row": row.std(), "dapo": row.std(), "lite/token": reward.std(), "dr_grpo": 1}[arm]
        expected[g] = (row - row.mean()) / (scale + 1e-6)
        if arm == "dapo":
            trained[g] = row.std() > 0 and left > 0
            left -= trained[g, 0]
    assert (reward.std(1) == 0).any() and reward.std(1).any()
    np.testing.assert_allclose(np.asarray(found.advantage)[:, 0, 0].reshape(-1, 8), expected, atol=1e-4)
    np.testing.assert_array_equal(np.asarray(found.trained)[:, 0, 0].reshape(-1, 8), trained)
    words = action // 20
    assert float(found.metrics["longer"]) == pytest.approx(
        words[reward == 0].mean() - words[reward == 1].mean(), rel=1e-5
    )
    assert float(found.metrics["silent"]) == pytest.approx((reward.std(1) == 0).mean())


@pytest.mark.parametrize("arm", ["grpo/token", "grpo/row", "dr_grpo"])
def test_weight_of_a_token_under_each_mean(arm):
    length = np.array([2, 16, 5])
    mask = np.arange(16) < length[:, None]
    sign = np.array([1, -2, 0.5], np.float32)
    advantage = np.broadcast_to(sign[:, None], mask.shape)
    batch = SimpleNamespace(behaviour_logp=jnp.zeros(mask.shape), advantage=advantage, mask=mask)
    loss = lambda logp: arm_loss(Scores(logp, logp), batch, ARMS[arm].traced_hparams)[0].value
    weight = -np.asarray(jax.jit(jax.grad(loss))(jnp.zeros(mask.shape)))[:, 0] / sign
    expected = {"grpo/token": np.full(3, 1 / 23), "grpo/row": 1 / length / 3, "dr_grpo": np.full(3, 1 / 48)}[arm]
    np.testing.assert_allclose(weight, expected, rtol=1e-5)


def test_arms_differ_in_choices_groups_and_start():
    assert len(STUDY.arms) == 10
    for name, arm in STUDY.arms.items():
        different = {"selection"} if arm.selection else set()
        different |= {"groups", "hparams"} if name.endswith("dapo") else set()
        assert differences(GRPO, arm) == different | (
            {"warm_start", "warm_start_updates"} if name.startswith("easy/") else set()
        ), name
