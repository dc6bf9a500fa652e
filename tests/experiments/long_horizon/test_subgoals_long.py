"""Credit and the table as in the study `subgoals`; what is measured; the exact arms."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.long_horizon import subgoals
from experiments.long_horizon.subgoals_long import LONG, STUDY, estimate_advantages, measure, one_sidedness
from jaxmarl_llm.rl.value_table import ValueTable
from tests.experiments.long_horizon.test_subgoals import a_table, batch, experience_of


def both(arrays, credits, state):
    """{credit: (advantages here, advantages of `subgoals`)} with tables of the same state."""
    found = {}
    for credit in ("hae", "flat", "group"):
        numbers = {"credit": credit, "critic": "table"}
        here, there = (f(experience_of(*arrays), numbers, state) for f in (estimate_advantages, credits))
        found[credit] = here.advantage, there.advantage, here.state, there.state
    return found


@pytest.fixture(scope="module")
def found():
    state = ValueTable(*(jnp.asarray(x, jnp.float32) for x in a_table()))
    return jax.jit(both, static_argnums=1)(batch(), subgoals.estimate_advantages, state)


def test_credit_is_that_of_short_games(found):
    for here, there, state, other in found.values():
        np.testing.assert_allclose(here, there, atol=1e-5)
        jax.tree.map(np.testing.assert_array_equal, state, other)
    assert not np.allclose(found["hae"][0], found["flat"][0], atol=0.1)


def test_turns_and_one_sidedness():
    acted, action, options, reward, value = batch()
    episodes = experience_of(acted, action, options, reward, value).episodes
    assert float(measure(episodes)["turns"]) == pytest.approx(acted[:, 2::3].sum(1).mean())
    curves = {"switches": np.repeat([[0.5], [0.9], [0.0]], 20, 1), "won": np.zeros((3, 20))}
    np.testing.assert_allclose(one_sidedness(curves), [0, 0.8, 1])
    assert np.isnan(STUDY.derived["one-sided"]({"bias": np.zeros((3, 1))})).all()
    shape = LONG.init_state(SimpleNamespace(), jax.random.key(0)).count.shape
    assert shape == (36, 2 * LONG.game.game.situations)


@pytest.mark.long
def test_exact_arms_with_exact_values_are_unbiased():
    found = STUDY.arms["exact/hae"].compute(jax.random.key(5), {})
    assert all((x["bias"] < 1e-4) == ("wrong" not in name or name == "flat/wrong_value") for name, x in found.items())
    assert found["hae"]["noise"] < found["flat"]["noise"]
