"""Intervals against scipy and against numbers worked out by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from jaxmarl_llm.evaluate import student_interval, summarise


def test_an_interval_by_hand():
    # mean 2, standard deviation 1, error 1 / sqrt(3), t(0.975; 2) = 4.302653
    half = 4.302653 / math.sqrt(3)
    assert student_interval([1, 2, 3]) == pytest.approx((2, 2 - half, 2 + half), abs=1e-5)


@pytest.mark.parametrize("confidence", (0.5, 0.95, 0.99))
def test_an_interval_by_scipy(confidence):
    values = np.random.default_rng(0).normal(3, 2, 17)
    mean, low, high = student_interval(values, confidence)
    expected = stats.t.interval(confidence, df=16, loc=values.mean(), scale=values.std(ddof=1) / math.sqrt(17))
    assert (mean, low, high) == pytest.approx((values.mean(), *expected))
    test = stats.ttest_1samp(values, low)  # the ends are where a test just rejects
    assert test.pvalue == pytest.approx(1 - confidence)


def test_an_interval_covers_as_often_as_it_says():
    draws = np.random.default_rng(1).normal(size=(2000, 4))
    covered = np.mean([low <= 0 <= high for _, low, high in map(student_interval, draws)])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 2000)


def test_missing_values_are_left_out():
    assert student_interval([1, np.nan, 2, 3, np.nan]) == student_interval([1, 2, 3])


@pytest.mark.parametrize(("values", "mean"), [([4.0], 4.0), ([np.nan, 4.0], 4.0), ([], np.nan), ([np.nan], np.nan)])
def test_fewer_than_two_values_have_no_interval(values, mean):
    np.testing.assert_equal(student_interval(values), (mean, np.nan, np.nan))


def test_equal_values_have_an_interval_without_width():
    assert student_interval([2.0, 2.0, 2.0]) == (2, 2, 2)


def test_several_seeds_are_compared_by_their_means():
    values = np.array([[1.0, 3.0, np.nan], [4.0, 4.0, 4.0], [0.0, 1.0, 2.0]])
    found = summarise(values)
    assert found["per_seed"] == [2, 4, 1]
    assert (found["mean"], found["low"], found["high"]) == pytest.approx(student_interval([2, 4, 1]))


def test_one_seed_is_judged_over_its_games():
    games = [1.0, 5.0, np.nan, 3.0]
    found = summarise(np.array([games]))
    assert found["per_seed"] == [3]
    assert (found["mean"], found["low"], found["high"]) == pytest.approx(student_interval([1, 5, 3]))


def test_what_has_no_value_is_none():
    assert summarise(np.full((1, 3), np.nan)) == {"mean": None, "low": None, "high": None, "per_seed": [None]}
    found = summarise(np.array([[np.nan, np.nan], [1.0, 2.0]]))
    assert found == {"mean": 1.5, "low": None, "high": None, "per_seed": [None, 1.5]}
