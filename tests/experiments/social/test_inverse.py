"""Where a curve crosses a bound."""

import jax.numpy as jnp
import pytest

from experiments.social import inverse as study


@pytest.mark.parametrize(
    ("errors", "wanted"),
    [
        ([0.9, 0.7, 0.3] + [0.1] * 10, 2 ** (4 + 0.5)),
        ([0.3] * 13, 8),
        ([0.9] * 13, 2**15),
        ([0.9, 0.5] + [0.1] * 11, 16),
    ],
)
def test_the_samples_at_which_an_error_is_small_enough(errors, wanted):
    assert float(study.samples(jnp.array(errors), 0.5)) == pytest.approx(wanted, rel=1e-4)
