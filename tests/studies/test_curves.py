"""When a learning curve reaches a bound, and how far it falls."""

import numpy as np

from jaxmarl_llm.studies.curves import (
    at_first,
    fall_from_peak,
    largest_rise,
    last_mean,
    last_over_first,
    last_share,
    mean_over_updates,
    mean_while,
    rise_since,
    share_left,
    share_of_falls,
    sum_until,
    updates_to,
    when_reached,
)


def test_ninety_per_cent_is_reached_by_five_updates_together():
    share = np.full((3, 40), 0.5)
    share[0, 10:] = 1.0  # the fifth of five at 1 is update 14, and 4 of 5 average to 0.9: their window starts at 9
    share[1, 20] = 1.0  # once is not reached
    share[2] = 0.95
    assert updates_to({"right": share}, metric="right").tolist() == [10, 40, 1]


def test_what_is_sum_until_then_is_summed_over_the_updates_so_far():
    curves = {"right": np.full((2, 40), 0.5), "calls": np.arange(80).reshape(2, 40) + 1}
    curves["right"][0, 10:] = 1.0  # reached in update 10
    assert sum_until(curves, metric="right", spent="calls").tolist() == [55, sum(range(41, 81))]


def test_the_fall_is_from_the_best_tenth_to_the_last():
    share = np.zeros((2, 40))
    share[0, 10:14], share[0, 36:] = 0.8, 0.3  # a tenth is four updates
    share[1] = np.arange(40)
    np.testing.assert_allclose(fall_from_peak({"right": share}, metric="right"), [0.5, 0])


def test_the_share_of_falls_counts_no_rounding():
    values = np.array([[0.1, 0.2, 0.2 - 1e-8, 0.1, 0.3], [1, 2, 3, 4, 5]])
    assert share_of_falls({"value": values}, metric="value").tolist() == [0.25, 0]
    assert np.isnan(share_of_falls({"loss": values}, metric="value")).all()


def test_who_rises_sooner_has_the_higher_mean():
    soon, late = np.r_[np.zeros(2), np.ones(6)], np.r_[np.zeros(6), np.ones(2)]
    assert mean_over_updates({"right": np.array([soon, late])}, metric="right").tolist() == [0.75, 0.25]


def test_a_mean_while_a_task_is_not_solved():
    curves = {"solved": np.array([[0.1, 0.5, 0.9], [0.6, 0.7, 0.8]]), "found": np.array([[1.0, 2.0, 9.0], [1, 2, 3]])}
    np.testing.assert_allclose(mean_while(curves, metric="found", low="solved"), [1.5, np.nan])


def test_a_share_is_of_the_last_tenth_and_of_cases_that_were_met():
    curves = {"x/sum": np.ones((2, 20)), "x/count": np.full((2, 20), 4.0)}
    curves["x/sum"][0, -2:], curves["x/count"][1] = 3.0, 0.0
    found = last_share(curves, metric="x")
    assert found[0] == 0.75 and np.isnan(found[1])


def test_a_mean_of_a_metric_that_only_some_arms_measure():
    curves = {"x": np.arange(40.0).reshape(2, 20)}
    assert last_mean(curves, metric="x").tolist() == [18.5, 38.5] and np.isnan(last_mean(curves, metric="y")).all()


def test_the_first_update_of_a_metric_that_only_some_arms_measure():
    curves = {"x": np.arange(40.0).reshape(2, 20)}
    assert rise_since(curves, metric="x", first=3).tolist() == [17.5, 17.5]
    assert np.isnan([rise_since(curves, metric="y", first=3), mean_over_updates(curves, metric="y")]).all()
    np.testing.assert_allclose(share_left(curves, metric="x"), [18.5 / 0.5, 38.5 / 20.5])
    assert at_first(curves, metric="x").tolist() == [0, 20] and np.isnan(at_first(curves, metric="y")).all()


def test_the_largest_rise_is_above_any_earlier_value_that_was_measured():
    curves = {"x": np.array([[3.0, np.nan, 1.0, 2.5, np.nan, 2.0], [1.0, np.nan, 2.0, 0.5, np.nan, 2.2]])}
    wanted = []
    for seed in curves["x"]:
        seen = [value for value in seed if np.isfinite(value)]
        wanted.append(max(seen[j] - seen[i] for i in range(len(seen)) for j in range(i, len(seen))))
    assert largest_rise(curves, metric="x").tolist() == wanted == [1.5, 1.7000000000000002]
    assert np.isnan(largest_rise(curves, metric="y")).all()


def test_a_metric_when_another_first_reaches_a_bound():
    curves = {"kl": np.stack([np.linspace(0, 1, 21)] * 2), "points": np.stack([np.linspace(0, 2, 21)] * 2)}
    curves["kl"][1] = 0
    at = when_reached(curves, metric="points", other="kl", bound=0.3)
    np.testing.assert_allclose(at, [0.6, 1.8])  # a window of five updates; the last one where there is none


def test_the_end_as_a_share_of_the_start():
    assert last_over_first({"pairs": np.r_[80.0, np.full(18, 50.0), 20.0][None]}, metric="pairs").tolist() == [0.4375]
