"""Rubrics: what each judge pays and which rubric comes next, against loops.

The long cases compile a batch of games.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.rewards.critical_verifier import STUDY as C2
from experiments.rewards.rubrics import MENTIONS_SINGLE, MENTIONS_SURE, RUBRICS, STUDY, Judge
from tests.support.recipe_plays import credited, differences, games

arms = {name: dataclasses.replace(arm, groups=8, group_size=8) for name, arm in STUDY.arms.items()}


@pytest.fixture(scope="module")
def played():
    return games(arms["fixed"])


def judged(arm, played, judge):
    return arms[arm].advantage(played, arms[arm].all_hparams, judge)


def test_the_rubrics_are_those_that_are_named():
    assert RUBRICS[MENTIONS_SURE].tolist() == [1, 0, 1, 0] and RUBRICS[MENTIONS_SINGLE].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("rubric", (MENTIONS_SURE, 13))
@pytest.mark.long
def test_grades_are_compared_within_a_question(played, rubric):
    judge = Judge(jnp.int32(rubric), jnp.zeros(15), jnp.int32(1))
    met = np.asarray(played.episodes.measured)[:, 0, 0]
    grade = (met * RUBRICS[rubric]).sum(1) / RUBRICS[rubric].sum()
    group, expected = np.asarray(played.episodes.group), np.zeros(len(grade))
    for g in range(8):
        own = grade[group == g]
        expected[group == g] = (own - own.mean()) / (own.std() + 1e-6)
    for arm in ("fixed", "evolving", "random", "hand"):
        found = judged(arm, played, judge)
        np.testing.assert_allclose(np.asarray(found.advantage)[:, 0, 0], expected, atol=1e-4)
        assert found.state.rubric == rubric and found.state.number == 2  # none is due


@pytest.mark.long
def test_the_meta_judge_takes_the_rubric_that_orders_best(played):
    before = jnp.zeros(15).at[3].set(20.0)
    judge = Judge(jnp.int32(MENTIONS_SURE), before, jnp.int32(5))
    found = judged("evolving", played, judge).state
    added = np.asarray(found.evidence) - 0.8 * np.asarray(before)
    assert found.rubric == np.argmax(found.evidence) and np.abs(added).max() > 0
    # a rubric of one criterion that the audit's right answers all meet orders no pair wrongly
    assert added[0] >= 0 and added[1] >= 0
    assert (np.abs(added) <= 16).all()  # 8 answers, at most 4 x 4 pairs of a right one and a wrong one
    fresh = Judge(jnp.int32(MENTIONS_SURE), jnp.zeros(15), jnp.int32(5))
    assert judged("fixed", played, fresh).state.rubric == MENTIONS_SURE


def test_an_audit_teaches_from_what_was_read_alone(played):
    judge = Judge(jnp.int32(MENTIONS_SURE), jnp.zeros(15), jnp.int32(5))
    found = np.asarray(judged("audit", played, judge).advantage)[:, 0, 0]
    right = np.asarray(played.episodes.reward)[:, 0, 0, 0] > 0
    assert 0 < np.count_nonzero(found) <= 8 and (found[right] >= 0).all() and (found[~right] <= 0).all()
    assert not judged("audit", played, judge.replace(number=jnp.int32(6))).advantage.any()


def test_arms_differ_in_judge_alone():
    for name, arm in STUDY.arms.items():
        assert differences(arm, STUDY.arms["fixed"]) <= {"advantage", "init_state"}, name
    for name, arm in C2.arms.items():
        assert differences(arm, C2.arms["c2"]) <= {"seats", "selection"}, name
    assert C2.arms["critical"].learners == ("verifier", "critic")


@pytest.mark.long
def test_a_judgement_is_of_the_verdict_that_the_arm_follows():
    arm = dataclasses.replace(C2.arms["c2"], groups=8, group_size=8)
    experience = games(arm)
    reward, facts = np.asarray(experience.episodes.reward), np.asarray(experience.episodes.measured)
    told = {"alone": reward[:, 1, 1, 0], "unfiltered": facts[:, 1, 0, 0], "c2": facts[:, 1, 2, 1]}
    for name, verdict in told.items():
        own = {**arm.all_hparams, **C2.arms[name].all_choices}
        found = arm.advantage(experience, own, ()).metrics
        np.testing.assert_allclose(found["judgement"], verdict.mean(), rtol=1e-6)
    advantage = np.asarray(credited(arm, experience).advantage)
    paid = reward[..., 0].sum(1) + reward[..., 1].sum(1)  # [B, A]
    group, expected = np.asarray(experience.episodes.group), np.zeros(paid.shape)
    for g in range(8):
        own = paid[group == g]
        expected[group == g] = (own - own.mean(0)) / (own.std(0) + 1e-6) * (own.std(0) > 0)
    acted = np.asarray(experience.episodes.acted)
    np.testing.assert_allclose(advantage, np.where(acted, expected[:, None], 0), atol=1e-4)
