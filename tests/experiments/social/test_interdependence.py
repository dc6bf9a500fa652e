"""What the arms want, against plain Python, and the equilibria that calculus knows."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import interdependence as study
from jaxmarl_llm.evaluation.exact.subgame_perfect import backward_induction

HPARAMS = {"dependence": 0.0, "wants": "own"}


@pytest.mark.parametrize("dependence", study.DIAL)
def test_everybody_gives_two_and_four_times_the_dependence(dependence):
    arm = study.ARMS[f"d{dependence:g}"]
    exact = backward_induction(study.compute_utility(study.GAME.payoffs(study.GAME.terms), arm.all_hparams))
    assert exact.path.tolist() == [round(2 + 4 * dependence)] * 3 and float(exact.margin) > 0.1


@pytest.mark.parametrize("kind", ["minimum", "nash"])
def test_an_equal_reward_is_highest_where_all_give_what_is_best_for_all(kind):
    arm = study.ALIKE[kind]
    table = np.asarray(study.compute_utility(study.GAME.payoffs(study.GAME.terms), arm.all_hparams))
    assert np.unravel_index(table[..., 0].argmax(), table.shape[:3]) == (6, 6, 6)
    assert backward_induction(jnp.asarray(table)).path.tolist() == [6, 6, 6]


def test_what_an_arm_wants_of_payoffs():
    utility = jnp.array([[1.0, 8.0, 27.0], [-1.0, 2.0, 3.0]])
    half = study.compute_utility(utility, HPARAMS | {"dependence": 0.5})
    assert half.tolist() == [[18.5, 22.0, 31.5], [1.5, 3.0, 3.5]]
    minimum, nash = (study.compute_utility(utility, HPARAMS | {"wants": kind}) for kind in ("minimum", "nash"))
    np.testing.assert_allclose(minimum + 2 * nash, [[3 + 2 * 18.0] * 3, [-3.0] * 3], rtol=1e-5)
