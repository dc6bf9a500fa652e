"""Warnings come once, when a threshold was passed for some updates, and again only after it was not for long."""

import pytest

from jaxmarl_llm.runs.health import CALM, RULES, Monitor, Rule, Warned, sentences


def warned(values, rule, name="x"):
    """The steps in which a rule on `x` begins to hold."""
    monitor = Monitor([rule])
    return [step for step, value in enumerate(values) if monitor.see(step, 0, {name: value, "other": 1e9})]


def test_a_warning_needs_some_updates_in_a_row_and_comes_once():
    rule = Rule("x", 1.0, "", updates=3)
    assert warned([2, 2, 0, 2, 2, 2, 2, 2], rule) == [5]
    assert warned([2, 2, 0, 2, 2, 2, 2, 2], rule, "x/policy") == [5]
    assert warned([2, 2, 0, 2, 2, 2, 2, 2], rule, "xs") == []


def test_it_comes_again_after_the_metric_was_back_for_long():
    calm = [0] * (CALM - 1)
    rule = Rule("x", 1.0, "", updates=2)
    assert warned([2, 2, *calm, 2, *calm, 2, 2], rule) == [1]
    assert warned([2, 2, *calm, 0, 2, 2], rule) == [1, CALM + 3]
    below = Rule("x", 1.0, "", below=True, updates=1)
    assert warned([0.5, 2, 0.5, 0.5, *[2] * CALM, 0.5], below) == [0, CALM + 4]


def test_what_it_began_with_counts_too():
    rising = Rule("x", 5.0, "", times=2.0, updates=1)
    assert warned([1, 1, 1, 4, 6], rising) == [4]  # twice what it was, but still little
    assert warned([9, 9, 9, 17, 19], rising) == [4]  # much, but always was
    falling = Rule("x", float("inf"), "", times=0.1, below=True, updates=1)
    assert warned([0.01, 1.0, 1.99, 0.11, 0.09], falling) == [4]
    assert warned([1, 0, 1, 1, 0, 0, 0.09], falling) == [6]  # where nobody speaks there is nothing to say


def test_a_policy_that_learns_to_be_cut_off_is_told_and_a_task_that_always_was_is_not():
    (rule,) = (rule for rule in RULES if rule.metric == "cut_off")
    assert warned([0.42, 0.5, 0.6, 0.92, 0.93, 0.97], rule, "cut_off") == [5]
    assert warned([0.95, 1.0, 0.97, 0.98, 1.0, 1.0], rule, "cut_off") == []


def test_numbers_that_are_not_finite_say_nothing():
    assert warned([2, None, 2, None, 2], Rule("x", 1.0, "", updates=3)) == [4]


def test_seeds_and_policies_are_watched_apart_and_told_together():
    monitor, found = Monitor([Rule("x", 1.0, "too much", updates=2, do="Stop.")]), []
    for step in range(2):
        for seed in range(3):
            found += monitor.see(step, seed, {"x/a": 2.0, "x/b": 0.0 if seed else 3.0})
    assert [(w.seed, w.metric, w.value) for w in found] == [(0, "x/a", 2), (0, "x/b", 3), (1, "x/a", 2), (2, "x/a", 2)]
    assert sentences(found, 3) == [
        "Warning, update 2: x/a of seed 0, 1, 2 is 2, 2, 2 (too much). Stop.",
        "Warning, update 2: x/b of seed 0 is 3 (too much). Stop.",
    ]
    assert sentences([Warned(0, 0, "x", 2.0, 1.0, 1.0, "too much", "")], 1) == ["Warning, update 1: x is 2 (too much)."]


def test_the_least_of_a_metric_is_passed_if_all_seats_pass_it():
    """A seat that a script plays has no advantage, and so no group with any."""
    monitor, found = Monitor([Rule("x", 0.9, "none", updates=2, least=True)]), []
    for step, seats in enumerate([(1, 0), (1, 0), (1, 1), (1, None), (None, None)]):
        found += monitor.see(step, 0, {f"x/seat_{seat}": value for seat, value in enumerate(seats)})
    assert [(w.step, w.metric, w.value) for w in found] == [(3, "x", 1)]


def test_a_rule_of_young_runs_is_silent_later():
    """Where all is solved no reward differs either."""
    rule = Rule("x", 0.9, "", updates=3, young=5)
    assert warned([0, 0, 1, 1, 1], rule) == [4] and warned([0, 0, 0, 1, 1, 1, 1], rule) == []


SOUND = {
    "skipped": 0,
    "left_out": 0,
    "zero_groups": 0.9,
    "entropy": 1.0,
    "length": 10.0,
    "full": 0.1,
    "repeated": 0.1,
    "kl": 0.01,
}
SOUND |= {"cut_off": 0.4, "invalid": 0.2, "approximate_kl": 0.001, "ratio": 1.0, "clipped": 0.1, "truncated": 0.1}
SICK = {
    "skipped": 2,
    "left_out": 3,
    "zero_groups": 1.0,
    "entropy": 0.05,
    "length": 30.0,
    "full": 0.9,
    "repeated": 0.6,
    "kl": 2.0,
}
SICK |= {"cut_off": 0.97, "invalid": 0.9, "approximate_kl": 0.5, "ratio": 3.0, "clipped": 0.7, "truncated": 0.7}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.metric)
def test_every_rule_knows_the_sick_from_the_sound(rule):
    assert warned([SOUND[rule.metric]] * 9, rule, rule.metric) == []
    assert warned([SOUND[rule.metric]] * 3 + [SICK[rule.metric]] * 5, rule, rule.metric) == [2 + rule.updates]
    assert rule.do.endswith(".")


def test_a_policy_that_began_at_random_does_not_drift():
    """Its entropy falls because it learns; a ratio that is off is a fault of any policy."""
    monitor, rows = Monitor(drift=False), [SOUND] * 3 + [SICK] * 5
    found = {warned.metric for step, row in enumerate(rows) for warned in monitor.see(step, 0, row)}
    drift = {"entropy", "length", "full", "repeated", "kl"}
    assert found == {*SICK} - drift
