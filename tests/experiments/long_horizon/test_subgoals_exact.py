"""Advantages of the exact arms are those that `subgoals` trains with; bias and noise as theory has them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.long_horizon import subgoals
from experiments.long_horizon.subgoals_exact import STUDY, by_segments, flat
from jaxmarl_llm.environments.around.subgoals import by_level, together
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rl.value_table import ValueTable
from tests.experiments.long_horizon.test_subgoals import a_table, batch, experience_of


def both(arrays, state):
    """(whitened advantages of the exact arms, those of `subgoals`) of one batch."""
    experience = experience_of(*arrays)
    episodes = experience.episodes
    choice = episodes.acted & (episodes.legal.sum(-1) > 1)
    paid = jnp.where(episodes.acted, episodes.total_reward, 0)
    value = jnp.where(choice, state.values(episodes.measured[..., subgoals.SITUATION].astype(int)), 0)
    hae = by_level(by_segments(paid, value, episodes.acted, episodes.action, lam=subgoals.LAM))
    levels = [whiten(x, where) for x, where in zip(hae, by_level(choice), strict=True)]
    here = together(*levels), whiten(flat(paid, value, choice, lam=subgoals.LAM), choice)
    credits = ({"credit": credit, "critic": "table"} for credit in ("hae", "flat"))
    return here, tuple(subgoals.estimate_advantages(experience, x, state).advantage for x in credits)


def test_advantages_are_those_of_training():
    here, there = jax.jit(both)(batch(), ValueTable(*(jnp.asarray(x, jnp.float32) for x in a_table())))
    for x, y in zip(here, there, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)
    assert not np.allclose(here[0], here[1], atol=0.1)


@pytest.mark.long
def test_exact_values_are_unbiased():
    found = STUDY.arms["hae"].compute(jax.random.key(5), {})
    assert all((x["bias"] < 1e-4) == ("wrong" not in name or name == "flat/wrong_value") for name, x in found.items())
    assert found["hae"]["noise"] < found["flat"]["noise"]
