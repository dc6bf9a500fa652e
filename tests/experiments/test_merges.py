"""The study of merges: points against scripts by enumeration, and how far gains reach."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.self_play import merges as study
from jaxmarl_llm.devices import sharding
from jaxmarl_llm.models import loading
from jaxmarl_llm.training.setup import TINY, setup

PARTS = setup(study.train_in(study.GAMES), TINY, sharding.mesh(), loading.load)


def test_gain_is_the_mean_over_games_of_what_specialists_gain():
    base, best = {"kuhn": 0.1, "tic_tac_toe": 0.0}, {"kuhn": 0.5, "tic_tac_toe": 0.8}
    arm = {"kuhn": 0.3, "tic_tac_toe": 0.9}
    wanted = ((0.3 - 0.1) / (0.5 - 0.1) + (0.9 - 0.0) / (0.8 - 0.0)) / 2
    assert study.gain(arm, base, best) == pytest.approx(wanted)
    assert study.gain(base, base, best) == 0 and study.gain(best, base, best) == 1


@pytest.mark.long
def test_random_weights_play_as_random_players_do():
    """With embeddings of 0 all answers are alike: no points against random play, 1/4 of the keys are right."""
    config = PARTS.policy_sets[study.ME].config
    from jaxmarl_llm.models import decoder

    even = jax.tree.map(jnp.zeros_like, decoder.init(config, jax.random.key(0)))
    found = jax.jit(lambda key: study.points(PARTS, key, even))(jax.random.key(0))
    won = {name: float(x) for name, x in found.items()}
    assert abs(won["kuhn"]) < 0.25 and abs(won["tic_tac_toe"]) < 0.15
    generator, opened = np.random.default_rng(0), []
    for _ in range(4000):
        length = generator.integers(1, 5)
        opened.append(min(generator.binomial(6, 0.25), length) / length)
    assert won["lock_chain"] == pytest.approx(np.mean(opened), abs=0.06)
