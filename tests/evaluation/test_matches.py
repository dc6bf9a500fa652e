"""Intervals against scipy, formulas and published numbers; social metrics against loops and numbers by hand."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from jaxmarl_llm.evaluation import matches, statistics
from jaxmarl_llm.evaluation.statistics import (
    holm,
    interquartile_interval,
    paired_interval,
    probability_of_improvement,
    sign_flip_interval,
    sign_flip_test,
    student_interval,
    summarise,
    wilson_interval,
)


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


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_is_newcombes(successes, n, low, high):  # Newcombe (1998), table I, method 3
    assert wilson_interval(successes, n) == pytest.approx((successes / n, low, high), abs=5e-5)


@pytest.mark.parametrize(("successes", "n", "confidence"), [(0, 1, 0.9), (7, 9, 0.95), (40, 40, 0.99)])
def test_wilsons_interval_by_its_formula(successes, n, confidence):
    z, rate = stats.norm.ppf((1 + confidence) / 2), successes / n
    centre, scale = rate + z * z / (2 * n), 1 + z * z / n
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    expected = (rate, (centre - half) / scale, (centre + half) / scale)
    assert wilson_interval(successes, n, confidence) == pytest.approx(expected, abs=1e-12)


def test_no_games_have_no_rate():
    np.testing.assert_equal(wilson_interval(0, 0), (np.nan, np.nan, np.nan))
    for successes, n in ((3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="from 0 to n = 2"):
            wilson_interval(successes, n)


def test_an_interquartile_mean_is_of_the_middle_half():
    values = [100.0, 1, 2, 3, 4, 5, 6, -50, np.nan, 7, 8]  # of ten the middle six
    mean, low, high = interquartile_interval(values)
    assert (
        mean == np.mean([2, 3, 4, 5, 6, 7]) and low < mean < high and (low, high) == interquartile_interval(values)[1:]
    )
    np.testing.assert_equal(interquartile_interval([3.0]), (3.0, np.nan, np.nan))
    rng, covered = np.random.default_rng(3), 0
    for _ in range(200):
        _, low, high = interquartile_interval(rng.normal(size=20), resamples=300)
        covered += low <= 0 <= high
    assert 170 <= covered <= 199  # of the 95% that it says, a little less for twenty values


def test_how_often_one_is_above_the_other_by_counting():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 6, 9).astype(float), rng.integers(0, 5, 7).astype(float)
    pairs = [(x > y) + (x == y) / 2 for x in a for y in b]
    assert probability_of_improvement([*a, np.nan], b) == pytest.approx(np.mean(pairs))
    assert np.isnan(probability_of_improvement([np.nan], b))


def test_holm_by_its_steps():
    p = np.array([0.04, 0.01, 0.03, 0.005, 0.9])
    expected, least = {}, 0.0
    for i, index in enumerate(np.argsort(p)):
        least = max(least, (5 - i) * p[index])
        expected[index] = min(least, 1)
    np.testing.assert_allclose(holm(p), [expected[i] for i in range(5)])
    np.testing.assert_allclose(holm(p), [0.09, 0.04, 0.09, 0.025, 0.9])
    assert holm([]).shape == (0,)


def test_a_difference_is_where_welchs_test_just_rejects():
    a, b = np.random.default_rng(0).normal(size=(2, 12)) * np.array([[1.0], [3.0]])
    found, low, high = statistics.difference_interval(a, b, 0.9)
    assert found == pytest.approx(a.mean() - b.mean()) and low < found < high
    for end in (low, high):
        assert stats.ttest_ind(a - end, b, equal_var=False).pvalue == pytest.approx(0.1)


def flipped(differences: list[Fraction]) -> Fraction:
    """The sign-flip test in exact arithmetic, pattern by pattern."""
    patterns = list(itertools.product((-1, 1), repeat=len(differences)))
    far = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in patterns]
    return Fraction(sum(x >= abs(sum(differences)) for x in far), len(patterns))


@pytest.mark.parametrize("n", (0, 1, 2, 5, 8))
def test_signs_flipped_one_pattern_at_a_time(n):
    generator = np.random.default_rng(n)
    for _ in range(20):  # success rates in tenths, so that sums tie, though not in floating point
        a, b = generator.integers(0, 11, (2, n))
        exact = flipped([Fraction(int(x - y), 10) for x, y in zip(a, b, strict=True)])
        assert sign_flip_test(a / 10, b / 10) == float(exact) == sign_flip_test(b / 10, a / 10)


def test_signs_flipped_by_scipy():
    a, b = np.random.default_rng(0).normal(size=(2, 10)) + np.array([[0.7], [0.0]])
    expected = stats.permutation_test(
        (a, b), lambda x, y, axis: np.mean(x - y, axis), permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_test(a, b) == pytest.approx(expected.pvalue, abs=1e-12)


@pytest.mark.parametrize("n", (1, 5, 10, 20))
def test_the_smallest_p_of_n_pairs(n):
    better = np.random.default_rng(n).random(n) + 0.1
    assert sign_flip_test(better, np.zeros(n)) == 2 / 2**n


def test_equal_pairs_show_nothing():
    assert sign_flip_test([0.1, 0.7, 0.3], [0.1, 0.7, 0.3]) == 1
    assert sign_flip_test([], []) == 1


def test_a_sign_flip_test_rejects_no_more_often_than_it_says():
    found = [sign_flip_test(d, np.zeros(6)) for d in np.random.default_rng(0).normal(size=(2000, 6))]
    for level in (2 / 64, 6 / 64, 0.5):  # attainable: there it is exact
        assert abs(np.mean(np.array(found) <= level) - level) < 4 * math.sqrt(level * (1 - level) / 2000)


def test_a_paired_interval_is_where_the_paired_test_just_rejects():
    a, b = np.random.default_rng(3).normal(size=(2, 9))
    found, low, high = paired_interval(a, b, 0.9)
    assert found == pytest.approx((a - b).mean()) and low < found < high
    for end in (low, high):
        assert stats.ttest_rel(a - end, b).pvalue == pytest.approx(0.1)


def test_more_than_twenty_pairs_are_sampled():
    """Against all 2^21 patterns; the same call gives the same number."""
    difference = np.random.default_rng(5).normal(0.4, 1, 21)
    sums = np.zeros(1)
    for x in difference:
        sums = np.concatenate([sums + x, sums - x])
    exact = np.mean(np.abs(sums) >= abs(difference.sum()) - 1e-9)
    found = sign_flip_test(difference, np.zeros(21))
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact / 2**18)) and 0 < found != exact
    assert found == sign_flip_test(difference, np.zeros(21))


@pytest.mark.parametrize("n", (8, 10, 21))
def test_a_sign_flip_interval_is_what_the_test_does_not_reject(n):
    a, b = np.random.default_rng(n).normal(size=(2, n))
    found, low, high = sign_flip_interval(a, b, 0.9)
    assert found == pytest.approx((a - b).mean()) and low < found < high
    step = 1e-3 if n > 20 else 1e-9
    for inside, outside in ((low + step, low - step), (high - step, high + step)):
        assert sign_flip_test(a - inside, b) > 0.1 - 1e-3 * (n > 20)
        assert sign_flip_test(a - outside, b) <= 0.1 + 2e-3 * (n > 20)


def test_a_sign_flip_interval_by_hand():
    """Five differences have 31 means of subsets; 90% leaves out one at each end, the least and the largest value."""
    assert sign_flip_interval([1, 2, 4, 8, 16], np.zeros(5), 0.9) == (6.2, 1.0, 16.0)
    assert np.isnan(sign_flip_interval([1, 2, 4, 8, 16], np.zeros(5))[1:]).all()  # 5 pairs cannot have 95%


def test_pairs_without_both_values_are_left_out():
    a, b = [1.0, np.nan, 4.0, 2.0, 7.0], [0.5, 1.0, np.inf, 3.0, 2.0]
    kept = [1.0, 2.0, 7.0], [0.5, 3.0, 2.0]
    assert paired_interval(a, b) == paired_interval(*kept) and sign_flip_test(a, b) == sign_flip_test(*kept)


def test_what_cannot_be_paired_is_refused():
    for test in (paired_interval, sign_flip_test):
        with pytest.raises(ValueError, match=r"same length \[n\], got shapes \(3,\) and \(2,\)"):
            test([1, 2, 3], [1, 2])


def test_a_match_by_hand():
    ours, theirs, seat = [1, 1, 0, -1, 1, 0], [-1, -1, 0, 1, -1, 0], [0, 0, 0, 1, 1, 1]
    found = matches.head_to_head(ours, theirs, seat)
    assert found["games"] == 6 and found["points"] == student_interval(ours)
    assert [found[name][0] for name in ("win", "draw", "loss")] == pytest.approx([3 / 6, 2 / 6, 1 / 6])
    assert found["by_seat"][0]["win"] == wilson_interval(2, 3) and found["by_seat"][0]["loss"] == wilson_interval(0, 3)
    assert found["by_seat"][1]["points"] == student_interval([-1, 1, 0]) and set(found["by_seat"]) == {0, 1}
    with pytest.raises(ValueError, match="same games"):
        matches.head_to_head(ours, theirs[:2], seat)


def test_cross_play_by_hand():
    calls = []

    def play(a, b):
        calls.append((a, b))
        together = 3.0 if a == b else 1.0
        return [[together, together + (a == "y")], [together + 1, together + (a == "y")]]

    found = matches.cross_play(("x", "y"), play)
    assert calls == [("x", "x"), ("x", "y"), ("y", "x"), ("y", "y")] and found["names"] == ("x", "y")
    np.testing.assert_allclose(found["mean"], [[[3.5, 3], [1.5, 1]], [[1.5, 2], [3.5, 4]]])
    assert (found["mean"][0, 1, 0], found["low"][0, 1, 0], found["high"][0, 1, 0]) == student_interval([1, 2])
    assert found["self_play"] == pytest.approx((3.5 + 3 + 3.5 + 4) / 4)
    assert found["cross_play"] == pytest.approx((1.5 + 1 + 1.5 + 2) / 4)
    assert math.isnan(matches.cross_play(("x",), play)["cross_play"])
    with pytest.raises(ValueError, match=r"payoffs \[B, 2\]"):
        matches.cross_play(("x",), lambda a, b: [1, 2])


def test_ratings_order_players_by_their_strength():
    pytest.importorskip("openskill")
    strength, generator = {"weak": 0.0, "middle": 1.0, "strong": 2.0}, np.random.default_rng(0)
    games = []
    for _ in range(200):
        names = generator.choice(list(strength), 2, replace=False).tolist()
        games.append((names, [strength[name] + generator.gumbel() for name in names]))
    found = matches.ratings(games)
    assert found["weak"][0] < found["middle"][0] < found["strong"][0]
    assert all(sigma < 3 for _, sigma in found.values())
    draw = matches.ratings([(("a", "b"), (1.0, 1.0))])
    assert draw["a"][0] == pytest.approx(draw["b"][0]) == pytest.approx(25)
    (three,) = [matches.ratings([(("a", "b", "c"), (5.0, 7.0, 6.0))])]
    assert three["b"][0] > three["c"][0] > three["a"][0]


@pytest.fixture
def reward():
    return np.random.default_rng(0).integers(-1, 3, (20, 6, 3)) * 1.0


def test_returns_and_equality_by_a_loop(reward):
    np.testing.assert_allclose(matches.collective_return(reward), [game.sum() for game in reward])
    found = matches.equality(reward)
    for game, value in zip(reward, found, strict=True):
        returns = sorted(game.sum(0))
        if min(returns) < 0 or sum(returns) == 0:
            assert np.isnan(value)
        else:  # the Gini coefficient by ranks
            gini = 2 * sum((i + 1) * r for i, r in enumerate(returns)) / (3 * sum(returns)) - 4 / 3
            assert value == pytest.approx(1 - gini)
    assert np.isfinite(found).any() and np.isnan(found).any()
    by_hand = np.array([[[2.0, 2.0]], [[4.0, 0.0]], [[3.0, 1.0]], [[0.0, 0.0]], [[3.0, -1.0]]])
    np.testing.assert_allclose(matches.equality(by_hand), [1, 0.5, 0.75, np.nan, np.nan])


def test_sustainability_by_a_loop(reward):
    reward[0] = -1
    reward[1, :, 2] = 0
    for game, value in zip(reward, matches.sustainability(reward), strict=True):
        times = [[t for t in range(6) if game[t, a] > 0] for a in range(3)]
        means = [np.mean(when) for when in times if when]
        assert value == pytest.approx(np.mean(means)) if means else np.isnan(value)


def test_peace_by_a_loop():
    generator = np.random.default_rng(1)
    harmed, played = generator.random((8, 5, 3)) < 0.4, np.arange(5) < generator.integers(0, 6, 8)[:, None]
    played[0] = False
    for game, turns, value in zip(harmed, played, matches.peace(harmed, played), strict=True):
        free = [sum(not hurt for hurt in game[t]) for t in range(5) if turns[t]]
        assert value == pytest.approx(np.mean(free)) if free else np.isnan(value)


def test_cooperation_after_each_outcome_by_a_loop():
    generator = np.random.default_rng(2)
    action, length = generator.integers(0, 2, (30, 6, 2)), generator.integers(1, 7, 30)
    acted = np.broadcast_to((np.arange(6) < length[:, None])[..., None], action.shape)
    rate, count = matches.cooperation_after(action, acted)
    for seat in range(2):
        seen = {name: [] for name in matches.OUTCOMES}
        for game, rounds in zip(action, length, strict=True):
            for t in range(rounds):
                name = "first" if t == 0 else "".join("CD"[game[t - 1, a]] for a in (seat, 1 - seat))
                seen[name].append(game[t, seat] == 0)
        assert count[seat].tolist() == [len(seen[name]) for name in matches.OUTCOMES]
        np.testing.assert_allclose(rate[seat], [np.mean(seen[name]) for name in matches.OUTCOMES])


def test_tit_for_tat_against_always_defect_by_hand():
    action = np.array([[[0, 1], [1, 1], [1, 1]]])  # tit-for-tat in seat 0
    rate, count = matches.cooperation_after(action, np.ones_like(action, bool))
    np.testing.assert_array_equal(rate[0], [1, np.nan, 0, np.nan, 0])
    np.testing.assert_array_equal(count, [[1, 0, 1, 0, 1], [1, 0, 0, 1, 1]])
    np.testing.assert_array_equal(matches.cooperation_after(action, np.ones_like(action, bool), 1)[0][1, :1], [1])


def test_exploitation_is_paired():
    defector, victim = np.array([9.0, 10.0, 21.0]), np.array([4.0, 5.0, 15.0])
    assert matches.exploitation(defector, victim) == student_interval([5, 5, 6])
