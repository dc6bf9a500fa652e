"""CORY on words: advantages of a played batch against a loop; arms share a program.

The long case compiles play and scoring of two policies.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.teams.cory_words import ARMS, CORY, GAME
from jaxmarl_llm.devices import sharding
from jaxmarl_llm.methods.reward_models import review_judge
from jaxmarl_llm.models import loading
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.setup import setup


def random_judge(parts, key):
    return review_judge.pretrain(parts, key, length=GAME.length, steps=1)


SMALL = dataclasses.replace(CORY, warm_start=(), init_state=random_judge, group_size=2)


@pytest.mark.long
@pytest.mark.parametrize("arm", ["cory", "no_transfer", "alone"])
def test_advantages_against_a_loop(played, arm):
    """At its last word a seat is paid its score and, unless it has read the other review, its partner's."""
    experience, advantages, score = played(arm)
    episodes, share, shown = experience.episodes, float(arm != "alone"), arm == "cory"
    gains, values = np.zeros((2, *episodes.acted.shape))
    for name, rows in experience.rows.items():
        sampled = experience.sampled[name]
        for r, (b, seat) in enumerate(zip(rows.episode, rows.seat, strict=True)):
            reward = -0.5 * (sampled.behaviour_logp[r] - experience.reference_logp[name][r])[sampled.mask[r]]
            partner = 0 if seat == 1 and shown else score[b, 1 - seat]
            reward[-1] += score[b, seat] + share * partner
            value, gain = np.append(experience.token_value[name][r][sampled.mask[r]], 0), 0.0
            for t in reversed(range(GAME.length)):
                gain = reward[t] + value[t + 1] - value[t] + 0.95 * gain
                gains[b, seat * GAME.length + t, seat], values[b, seat * GAME.length + t, seat] = gain, value[t]
    np.testing.assert_allclose(advantages.value_target, gains + values, atol=2e-4)
    assert (values != 0).any() and (episodes.acted.sum((0, 1)) == GAME.length * len(score)).all()
    for seat in range(2):
        mine = gains[..., seat][episodes.acted[..., seat]]
        whitened = advantages.advantage[..., seat][episodes.acted[..., seat]]
        np.testing.assert_allclose(whitened, (mine - mine.mean()) / mine.std(), atol=2e-3)


@pytest.fixture(scope="module")
def played():
    """(arm) -> a batch of games, its advantages with beta 1/2, and the scores of both reviews."""
    parts = setup(SMALL, "tiny", sharding.mesh(), loading.load)
    run = begin.init_run(parts, jax.random.key(0))
    weights = jax.tree.map(lambda x: x + 0.02 * jax.random.normal(jax.random.key(3), x.shape), run.learners.weights)
    run = run.replace(learners=run.learners.replace(weights=weights))

    @jax.jit
    def play(hparams):
        games = step.collect_experience(parts, run, hparams, jax.random.key(1), jnp.int32(0))
        experience = games.experience
        film = experience.arranged.deal.film[experience.episodes.group]
        score = review_judge.score(run.state, jnp.stack([film, film], 1), GAME.both(experience.episodes.action))
        return experience._replace(score=None), games.advantages, score

    return lambda arm: jax.device_get(play(ARMS[arm].with_hparams(beta=0.5).traced_hparams))


def test_arms_share_a_program():
    assert all(arm.structure == CORY.structure for arm in ARMS.values())
