"""Predictions and their verdicts: by hand, by brute force over sign patterns, and against scipy."""

import itertools
import json

import numpy as np
import pytest
from scipy import stats

from jaxmarl_llm.studies.pages import results
from jaxmarl_llm.studies.pages.verdicts import STATUSES, judge, passes, status
from jaxmarl_llm.studies.predictions import (
    AtLeast,
    AtMost,
    Higher,
    Lower,
    NotHigher,
    NotLower,
    Within,
    record_of,
)

UP, DOWN = np.arange(1.0, 11), -np.arange(1.0, 11)
MIXED = np.array([3.0, -4, 5, -4, 3, -4, 2, -1, 1, 0.5])
PAPER = {"source": "paper", "where": "Table 1"}


def found(prediction, a, b=None, **more):
    """A results.json with the metric x of the arms a and b."""
    b = np.zeros(len(a)) if b is None else b
    arms = results.collect({}, final={"a": {"x": a}, "b": {"x": b}})["arms"]
    predictions = prediction if isinstance(prediction, list) else [prediction]
    told = {"predictions": [record_of(x) for x in predictions], "arms": arms, "seeds": [*range(len(a))]} | more
    return json.loads(json.dumps(told), parse_constant=lambda name: None)


@pytest.mark.parametrize(
    ("prediction", "a", "outcome"),
    [
        (Higher("x", "a", than="b"), UP, "holds"),
        (Lower("x", "a", than="b"), UP, "contradicted"),
        (Lower("x", "a", than="b"), DOWN, "holds"),
        (Higher("x", "a", than="b"), MIXED, "not shown"),
        (Higher("x", "a", than="b"), UP[:7], "not shown"),  # fewer than eight seeds
        (Higher("x", "a", than="b"), UP[:1], "not shown"),
        (Higher("x", "a", than="b"), np.zeros(10), "not shown"),
        (Higher("x", "a", than="b"), np.ones(10), "holds"),  # equal in all seeds: n = 1, and no test
        (Higher("x", "a", than="b", by=2.0), UP, "holds"),
        (Higher("x", "a", than="b", by=20.0), UP, "contradicted"),
        (NotLower("x", "a", than="b", by=5.0), MIXED, "holds"),
        (NotLower("x", "a", than="b", by=0.01), MIXED, "not shown"),
        (NotLower("x", "a", than="b", by=0.5), DOWN, "contradicted"),
        (NotHigher("x", "a", than="b", by=5.0), MIXED, "holds"),
        (NotHigher("x", "a", than="b", by=0.5), UP, "contradicted"),
        (Within("x", "a", than="b", by=5.0), MIXED, "holds"),
        (Within("x", "a", than="b", by=0.5), MIXED, "not shown"),
        (Within("x", "a", than="b", by=0.5), UP, "contradicted"),
        (AtLeast("x", "a", 2.0), UP, "holds"),
        (AtLeast("x", "a", 5.0), UP, "not shown"),
        (AtMost("x", "a", 2.0), UP, "contradicted"),
    ],
)
def test_a_verdict_by_hand(prediction, a, outcome):
    (verdict,) = judge(found(prediction, a))
    assert verdict.outcome == outcome and f": {outcome}" in verdict.sentence
    equal = len(np.unique(a)) == 1
    assert (verdict.p is None) == equal and verdict.seeds == (1 if equal else len(a))
    assert ("excluded" in verdict.told) == (
        outcome == "not shown" and len(a) > 7 and type(prediction) is Higher and not equal
    )


def test_what_only_the_correction_hides_is_said():
    """Nine of ten seeds agree: p is below 0.05, but not four times p."""
    a, b = np.array([5.0, 6, 7, 5, 6, 7, 5, 6, 7, -9]), np.zeros(10)
    stated = [Higher("x", "a", than="b", **PAPER), *(AtLeast("x", "b", i, **PAPER) for i in (0.0,))]
    more = [Higher("x", f"c{i}", than="b", **PAPER) for i in range(3)]
    arms = {"a": {"x": a}, "b": {"x": b}} | {f"c{i}": {"x": MIXED + i / 10} for i in range(3)}
    collected = results.collect({}, final=arms)["arms"]
    run = {"predictions": [record_of(x) for x in (*stated, *more)], "arms": collected, "seeds": [*range(10)]}
    first = judge(run)[0]
    assert first.outcome == "not shown" and first.p <= 0.05 < first.adjusted
    assert first.told.endswith("; in the predicted direction, but not after the correction")


def test_equal_seeds_are_counted_beside_those_that_keep_a_prediction():
    a, b = np.array([0.0, 0, 0, 1, 1, 1, 1, 1]), np.array([0.0, 0, 0, 0, 0, 0, 0, 2])
    stated = [kind("x", "a", than="b", **PAPER) for kind in (Higher, Lower)]
    more, less = (verdict.told for verdict in judge(found(stated, a, b)))
    assert "4 of 8 seeds keep it (3 equal)" in more and "1 of 8 seeds keep it (3 equal)" in less
    assert "equal" not in judge(found(stated[:1], a + 0.5, b))[0].told


def test_p_is_the_share_of_sign_patterns_and_holm_multiplies_it():
    generator = np.random.default_rng(3)
    a, b = generator.normal(0.7, 1, 9), generator.normal(0, 1, 9)
    stated = [
        Higher("x", "a", than="b", **PAPER),
        AtLeast("x", "a", -1.0, **PAPER),
        Higher("x", "b", than="a", **PAPER),
    ]
    verdicts = judge(found(stated, a, b))
    for verdict, difference in zip(verdicts, (a - b, a + 1, b - a), strict=True):
        sums = [abs(np.dot(signs, difference)) for signs in itertools.product((1, -1), repeat=9)]
        assert verdict.p == np.mean([x >= abs(difference.sum()) - 1e-9 for x in sums])
    smallest, *rest = sorted((verdict.p, verdict.adjusted) for verdict in verdicts)
    assert smallest[1] == min(1, 3 * smallest[0]) and all(adjusted >= smallest[1] for _, adjusted in rest)


def test_an_interval_is_what_the_test_does_not_reject():
    difference = np.random.default_rng(4).normal(0.5, 1, 10)
    (verdict,) = judge(found(Higher("x", "a", than="b"), difference))
    low, high = verdict.effect["low"], verdict.effect["high"]

    def p(shift):  # scipy's permutation test, exact
        test = stats.permutation_test((difference - shift,), np.mean, permutation_type="samples", n_resamples=np.inf)
        return test.pvalue

    assert p(low + 1e-6) > 0.05 > p(low - 1e-6) and p(high - 1e-6) > 0.05 > p(high + 1e-6)


def test_a_metric_that_was_never_reached_is_compared_by_rank():
    """One seed of a never got there: its number says nothing of how far off it was, and its rank is the last."""
    a, b = np.array([10.0, 12, 11, 9, 13, 12, 10, 500]), np.array([20.0, 22, 21, 19, 23, 22, 20, 500])
    (verdict,) = judge(found(Lower("x", "a", than="b"), a, b, censored={"x": 500.0}))
    ranks = stats.rankdata(np.concatenate([a, b]))
    difference = ranks[:8] - ranks[8:]
    sums = [abs(np.dot(signs, difference)) for signs in itertools.product((1, -1), repeat=8)]
    assert verdict.p == np.mean([x >= abs(difference.sum()) - 1e-9 for x in sums])
    assert verdict.outcome == "holds" and "never reached in 1 of 8 and 1 of 8" in verdict.told


def test_a_run_that_is_shorter_or_skipped_updates_shows_nothing():
    prediction = Higher("x", "a", than="b")
    assert judge(found(prediction, UP, shorter=True))[0].outcome == "not shown"
    assert judge(found(prediction, UP, skipped={"b": 2}))[0].outcome == "not shown"
    assert judge(found(Higher("y", "a", than="b"), UP))[0].told == "not measured in this run"


@pytest.mark.parametrize(
    ("stated", "word"),
    [
        ([], "not tested"),
        ([("theory", UP)], "not tested"),
        ([("paper", UP), ("paper", UP), ("pilot", DOWN)], "holds here"),
        ([("paper", DOWN)], "contradicted here"),
        ([("paper", UP), ("paper", DOWN)], "mixed"),
        ([("paper", UP), ("paper", MIXED)], "mixed"),
        ([("paper", MIXED)], "not shown"),
        ([("paper", UP), ("condition", MIXED)], "condition not met"),
        ([("paper", UP), ("condition", UP)], "holds here"),
    ],
)
def test_the_status_is_of_the_papers_predictions_alone(stated, word):
    arms = {"zero": {"x": np.zeros(10)}} | {f"arm{i}": {"x": values} for i, (_, values) in enumerate(stated)}
    predictions = [
        Higher("x", f"arm{i}", than="zero", source="theory" if source == "condition" else source, where="here",
               condition=source == "condition")
        for i, (source, _) in enumerate(stated)
    ]  # fmt: skip
    collected = results.collect({}, final=arms)["arms"]
    verdicts = judge({"predictions": [record_of(x) for x in predictions], "arms": collected, "seeds": [*range(10)]})
    assert status(verdicts) == word and word in STATUSES


def test_a_check_is_about_means():
    told = found([], UP)
    assert passes(AtLeast("x", "a", 1.0), told) == (True, 10, 10)
    assert passes(AtLeast("x", "a", 4.5), told) == (True, 6, 10) and not passes(AtLeast("x", "a", 6.0), told)[0]
    assert passes(Higher("x", "a", than="b"), told)[0] and not passes(Lower("x", "a", than="b"), told)[0]
    assert passes(Within("x", "a", than="b", by=6.0), told) == (True, 6, 10)
    assert passes(AtLeast("y", "a", 0.0), told) == (False, 0, 0)


@pytest.mark.parametrize(
    ("shift", "noise", "small"),
    [
        (0.005, 0.001, True),  # shown
        (0.02, 0.001, False),
        (0.0, 0.001, True),  # not shown, and the interval allows no more
        (0.005, 0.1, False),  # not shown, and the interval allows much more
    ],
)
def test_a_difference_of_less_than_a_hundredth_is_said_to_be_small(shift, noise, small):
    b = 1 + np.linspace(0, 0.1, 10)
    for prediction in (Higher("x", "a", than="b"), Lower("x", "a", than="b")):
        (verdict,) = judge(found(prediction, b + shift + noise * MIXED / 10, b))
        assert (", small: under 1% of either arm" in verdict.sentence) == small
        assert (verdict.outcome != "not shown") == (shift > 0 and noise < 0.1)
    (verdict,) = judge(found(NotLower("x", "a", than="b", by=0.5), b + shift, b))
    assert "small" not in verdict.sentence  # it states no direction
