"""pass@k, coverage and success by turn, against the enumeration of all subsets and against the chance itself."""

from itertools import combinations, product

import numpy as np
import pytest

from jaxmarl_llm.evaluation.statistics import coverage, pass_at_k, success_by_turn

N = 6


@pytest.mark.parametrize("k", range(1, N + 1))
def test_against_all_subsets(k):
    """Every pattern of six attempts that fail or reach one of two outcomes."""
    patterns = np.array(list(product((-1, 0, 3), repeat=N)))
    subsets = [patterns[:, list(members)] for members in combinations(range(N), k)]
    held = np.array([[(subset == outcome).any(1) for outcome in (0, 3)] for subset in subsets])
    np.testing.assert_allclose(pass_at_k((patterns == 3).sum(1), N, k), held[:, 1].mean(0), atol=1e-12)
    np.testing.assert_allclose(coverage(patterns, k), held.sum(1).mean(0), atol=1e-12)


def test_all_attempts_and_one():
    outcomes = np.array([[2, 2, -1, 5, -1, 0], [-1] * 6, [4] * 6])
    assert coverage(outcomes) == pytest.approx([3, 0, 1])
    assert pass_at_k([0, 1, 6], N, 1) == pytest.approx([0, 1 / 6, 1])
    assert pass_at_k(3, 200, 100) == pytest.approx(1 - 100 * 99 * 98 / (200 * 199 * 198))


def test_its_mean_is_the_chance_and_that_of_the_plain_estimate_is_not():
    p, k = 0.2, 4
    successes = np.random.default_rng(0).binomial(N, p, 200_000)
    assert pass_at_k(successes, N, k).mean() == pytest.approx(1 - (1 - p) ** k, abs=0.004)
    assert (1 - (1 - successes / N) ** k).mean() < 1 - (1 - p) ** k - 0.03


def test_success_by_turn():
    assert success_by_turn([0, 2, -1, 2, 1], 4) == pytest.approx([0.2, 0.4, 0.8, 0.8])


@pytest.mark.parametrize(
    ("successes", "k", "says"), [(0, 0, "k = 0"), (0, 7, "k = 7"), (7, 1, "0 to 6"), (-1, 1, "-1")]
)
def test_settings(successes, k, says):
    with pytest.raises(ValueError, match=says):
        pass_at_k(np.array(successes), N, k)
