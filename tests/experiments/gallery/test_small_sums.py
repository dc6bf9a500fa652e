"""The largest gradient of a team."""

import numpy as np

from experiments.gallery.small_sums import largest


def test_the_largest_gradient_is_of_any_agent_and_update():
    curves = {
        "gradient_norm/solver": np.array([[1.0, 3.0, 2.0], [0.5, 0.1, 0.2]]),
        "gradient_norm/verifier": np.array([[2.0, 1.0, np.nan], [0.1, 0.7, 0.3]]),
    }
    np.testing.assert_array_equal(largest(curves), [3.0, 0.7])
