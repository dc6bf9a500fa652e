"""Further attempts: the points of an arm against a loop, the regression's loss, what is judged, and what arms share."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.exploration.retry import ATTEMPTS, FIVE, QUIZ, STUDY, arm_loss, arrange, judge, shape
from jaxmarl_llm.rl.losses import Batch, Scores
from tests.support.recipe_plays import credited, differences, games


@pytest.fixture(scope="module")
def played():
    return games(dataclasses.replace(FIVE, groups=8))


def points(said, right, decay, penalty):
    """The release's: 2^-t for a right answer, and the price of repetitions when the game ends."""
    paid = [(answer == right) * decay**t for t, answer in enumerate(said)]
    paid[-1] -= penalty * (1 - len({*said}) / len(said))
    return paid


@pytest.mark.parametrize(("decay", "penalty"), [(1.0, 0.0), (0.5, 0.5), (0.5, 0.0)])
def test_points_against_the_release(decay, penalty):
    games = [([3, 3, 1, 3, 7], 7), ([3, 3, 3, 3, 3], 1), ([4, 4, 2], 2), ([5], 5), ([5, 1, 2, 3, 4], 9)]
    games.append(([-1, -1, 4], 4))  # an empty answer, at which the release raises, is an answer like others
    reward, action, acted = np.zeros((3, len(games), ATTEMPTS))
    for b, (said, right) in enumerate(games):
        action[b, : len(said)], acted[b, : len(said)] = said, 1
        reward[b, : len(said)] = [answer == right for answer in said]
    found = jax.jit(shape)(jnp.asarray(reward), jnp.asarray(action), jnp.asarray(acted, bool), decay, penalty)
    for b, game in enumerate(games):
        want = points(*game, decay, penalty)
        np.testing.assert_allclose(found[b], [*want, *[0] * (ATTEMPTS - len(want))], atol=1e-6)
    assert found[3].tolist() == [1, 0, 0, 0, 0]  # one attempt has no price


@pytest.mark.parametrize("arm", ["ufo", "regression"])
def test_advantages_against_a_loop(played, arm):
    episodes = played.episodes
    acted, action, paid = (np.asarray(x)[..., 0] for x in (episodes.acted, episodes.action, episodes.reward[..., 0]))
    value, want = np.asarray(played.turn_value, np.float64)[..., 0], np.zeros(acted.shape)
    for b, turns in enumerate(acted.sum(1)):
        said = action[b, :turns].tolist()
        right = said[-1] if paid[b].any() else -1
        each = points(said, right, 0.5, 0.5)
        want[b, :turns] = np.cumsum(each[::-1])[::-1]
    found = credited(STUDY.arms[arm], played)
    if arm == "ufo":
        np.testing.assert_allclose(found.value_target[..., 0], want, atol=1e-5)
        want = np.where(acted, want - value, 0)
        want = np.where(acted, (want - want[acted].mean()) / want[acted].std(), 0)
    np.testing.assert_allclose(found.advantage[..., 0], want if arm == "ufo" else paid, atol=1e-4)
    assert set(acted.sum(1)) > {ATTEMPTS}


def test_the_regression_weighs_answers_by_their_points():
    """A right answer weighs e^2 = 7.39 times a wrong one."""
    logp, value = jnp.array([[-1.0, -2.0, 0.0]]), jnp.array([[0.5, 0.0, 9.0]])
    mask, zero = jnp.array([[True, True, False]]), jnp.zeros((1, 3))
    fields = dict.fromkeys((f.name for f in dataclasses.fields(Batch)), zero)
    batch = Batch(**{**fields, "mask": mask, "advantage": jnp.array([[1.0, 0.0, 5.0]]), "extra": {}})
    hparams = {**FIVE.all_hparams, "method": "regression"}
    found, _ = jax.jit(lambda: arm_loss(Scores(logp, zero, value), batch, hparams))()
    assert float(found.value) == pytest.approx((np.exp(2) + 2) / 2, rel=1e-5)


def test_what_is_judged():
    said = [([5], True), ([3, 3, 5], True), ([1, 1, 1, 1, 1], False), ([1, 2, 3, 4, 5], True)]
    action, acted, reward = np.zeros((3, len(said), ATTEMPTS, 1))
    for b, (answers, solved) in enumerate(said):
        action[b, : len(answers), 0], acted[b, : len(answers), 0] = answers, 1
        reward[b, len(answers) - 1, 0] = solved
    episodes = SimpleNamespace(action=action.astype(int), acted=acted.astype(bool), reward=reward[..., None])
    found = judge(episodes)
    want = {"first": 0.25, "solved by 5": 0.75, "gain": 0.5, "distinct": np.mean([2 / 3, 1 / 5, 1])}
    assert found == pytest.approx(want)
    right_at_once = SimpleNamespace(**{name: x[:1] for name, x in vars(episodes).items()})
    assert np.isnan(judge(right_at_once)["distinct"])


def test_a_first_answer_is_a_guess():
    """The best letter of a question is right in half of its games, and three letters solve all."""
    states, probability = QUIZ.initial_states()
    question, answer = np.broadcast_arrays(np.asarray(states.question)[:, None], np.arange(20))
    earned = np.asarray(jax.jit(QUIZ.score_answer)(question, answer))[..., 0]
    asked = question[:, 0] % QUIZ.questions
    for q in range(QUIZ.questions):
        chances = np.sort((probability[asked == q] * 12) @ earned[asked == q])[::-1]
        np.testing.assert_allclose(chances[:4], [1 / 2, 1 / 3, 1 / 6, 0], atol=1e-6)


def test_arms_share_a_program_and_one_ends_after_an_attempt():
    for name, arm in STUDY.arms.items():
        assert differences(FIVE, arm) <= ({"hparams", "groups"} if name == "one_equal" else {"hparams", "selection"}), (
            name
        )
    turns = {name: int(arrange(arm.traced_hparams, (), None, 0).turns) for name, arm in STUDY.arms.items()}
    assert turns == dict.fromkeys(STUDY.arms, ATTEMPTS) | {"one": 1, "one_equal": 1}
    assert STUDY.arms["one_equal"].groups == ATTEMPTS * FIVE.groups  # at least as many answers as five attempts give
