"""COPO's arms: advantages against the released formulas in NumPy, habits, the blended loss."""

from collections import Counter
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.credit_assignment.consistent import GROUPS, GRPO, STUDY, blended_loss
from jaxmarl_llm.rl.losses import Scores
from tests.support.recipe_plays import credited, differences, games


@pytest.fixture(scope="module")
def played():
    return games(GRPO)


def entropy(answers: np.ndarray) -> float:
    share = np.array([*Counter(answers.tolist()).values()]) / len(answers)
    return -(share * np.log2(share)).sum()


def released(reward: np.ndarray, answer: np.ndarray, discount: bool, soft_with_zero: bool):
    """(A_local, A_global, w) [groups, n] as in the release's `core_algos.py`, for rewards and answers [groups, n]."""
    n = reward.shape[1]
    uncertain = np.array([entropy(row) for row in answer])
    level = reward.mean(1) * (1 - (1 - 1 / n) / np.log2(n) * uncertain if discount else 1)
    between = (level - level.mean()) / (level.std(ddof=1) + 1e-6)
    within = (reward - reward.mean(1, keepdims=True)) / (reward.std(1, ddof=1, keepdims=True) + 1e-6)
    weight = np.repeat(1 / (1 + np.exp(-5 * (uncertain - 1)))[:, None], n, 1)
    return within, np.repeat(between[:, None], n, 1), weight * (reward != 0 if soft_with_zero else 1)


@pytest.mark.parametrize("arm", STUDY.arms)
def test_advantages_against_the_released_formulas(played, arm):
    episodes = played.episodes
    reward, answer = (
        np.asarray(x[:, 0, 0], np.float64).reshape(-1, 6) for x in (episodes.total_reward, episodes.action)
    )
    assert 0 < reward.mean() < 1 and (reward.max(1) > reward.min(1)).sum() > 3
    found = credited(GRPO.with_choice(**STUDY.arms[arm].selection), played)
    within, between, weight = released(reward, answer, arm != "copo_as_released", arm == "copo_as_released")
    if not arm.startswith("copo"):
        between, weight = np.zeros_like(within), np.ones_like(within)
    if arm == "batch_mean":
        within = (reward - reward.mean()) / reward.std()
    got = [
        np.asarray(x[:, 0, 0]).reshape(-1, 6) for x in (found.advantage, found.extra["between"], found.extra["weight"])
    ]
    for x, expected in zip(got, (within, between, weight), strict=True):
        np.testing.assert_allclose(x, expected, atol=2e-5)
    uniform = reward.max(1) == reward.min(1)
    blend = weight * within + (1 - weight) * between
    assert (np.abs(blend[uniform]) > 1e-6).all() == (arm not in ("grpo", "filtered"))
    assert float(found.metrics["silent"]) == pytest.approx(uniform.mean())
    assert float(found.metrics["all_wrong"]) == pytest.approx((reward.max(1) == 0).mean())
    assert float(found.metrics["positive"]) == pytest.approx((blend[reward == 0] > 0).mean())
    assert np.asarray(found.trained).sum() == 6 * (16 if arm != "filtered" else (~uniform).sum())


def test_the_released_mode_rewards_wrong_answers_to_easy_questions(played):
    """One wrong answer in a group of six, beside groups without a right one."""
    reward = np.zeros((GROUPS, 6))
    reward[0, 1:] = 1
    answer = np.where(reward == 1, 3, 4)
    shape = played.episodes.action.shape
    episodes = played.episodes.replace(
        reward=jnp.asarray(reward.reshape(*shape, 1), jnp.float32), action=jnp.asarray(answer.reshape(shape))
    )
    wrong = {}
    for arm in ("grpo", "copo_as_released"):
        found = credited(GRPO.with_choice(**STUDY.arms[arm].selection), played._replace(episodes=episodes))
        weight, local = found.extra["weight"][0, 0, 0], found.advantage[0, 0, 0]
        wrong[arm] = float(weight * local + (1 - weight) * found.extra["between"][0, 0, 0])
    assert wrong["grpo"] < -1 and wrong["copo_as_released"] > 1


def test_a_habit_is_right_in_every_third_question():
    quiz = GRPO.game.game.game
    states, _ = quiz.initial_states()
    said = jax.jit(jax.vmap(lambda state: GRPO.game.game.scripts["habit"](state, None, None)))(states)
    right = [bool(quiz.score_answer(q, said[q])[0]) for q in range(24)]
    assert right == [q % 3 == 0 for q in range(24)]


def test_the_loss_on_policy_is_the_mean_over_answers_of_the_blend():
    rng = np.random.default_rng(1)
    local, between, weight, logp = rng.uniform(size=(4, 5, 2)).astype(np.float32)
    mask = np.asarray([[1, 1], [1, 0], [1, 1], [0, 0], [1, 0]], bool)
    batch = SimpleNamespace(
        behaviour_logp=logp, advantage=local, extra={"between": between, "weight": weight}, mask=mask
    )
    gradient = jax.jit(jax.grad(lambda x: blended_loss(Scores(x, x), batch, {})[0].value))(logp)
    length = np.maximum(np.asarray(mask).sum(1, keepdims=True), 1)
    np.testing.assert_allclose(gradient, -(weight * local + (1 - weight) * between) * mask / length / 4, atol=1e-6)


def test_arms_differ_in_the_signal_or_in_the_groups():
    for name, arm in STUDY.arms.items():
        assert differences(GRPO, arm) == {"grpo": set(), "filtered": {"selection", "groups"}}.get(name, {"selection"})
