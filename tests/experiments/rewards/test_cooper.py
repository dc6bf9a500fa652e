"""Cooper's pairs against a loop over questions; who is paid by whom; when the reward model learns.

The long cases compile the reward model; the short ones read what the arms are.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.rewards import cooper, cooper_forms
from experiments.rewards.cooper import CONFIG, COOPER, GAME, GROUPS, STUDY, TRIGGER
from jaxmarl_llm.devices import sharding
from jaxmarl_llm.methods.reward_models import reward_model
from jaxmarl_llm.models import loading
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.records import Given
from jaxmarl_llm.training.setup import setup


def random_model(parts, key):
    return reward_model.init(CONFIG, key, pairs=GROUPS, kept=cooper.KEPT)


@pytest.fixture(scope="module")
def played():
    """What an untrained policy plays, and an untrained reward model."""
    parts = setup(
        dataclasses.replace(COOPER, warm_start=(), init_state=random_model), "tiny", sharding.mesh(), loading.load
    )
    run = begin.init_run(parts, jax.random.key(0))
    hparams = COOPER.traced_hparams
    arranged = step.arrange(parts, run, hparams, jax.random.key(1), jnp.int32(0))
    trajectory = jax.jit(partial(step.play, parts))(run.learners.weights, jax.random.key(1), arranged)
    return step.make_experience(parts, run, trajectory, jax.random.key(1), {}, arranged), run.state


def estimate(played, arm, model=None):
    experience, state = played
    hparams = STUDY.arms[arm].traced_hparams
    return jax.jit(lambda model: cooper.cooper(experience, Given(hparams), model)._replace(remember=None))(
        model or state
    )


@pytest.mark.long
@pytest.mark.parametrize("arm", ["cooper", "own_wrong"])
def test_pairs_against_a_loop(played, arm):
    experience, _ = played
    task, action = np.asarray(experience.arranged.deal.task), np.asarray(experience.episodes.action).reshape(GROUPS, -1)
    model = estimate(played, arm).state
    pairs, valid = np.asarray(model.pairs[0]), np.asarray(model.valid[0])
    assert 0 < valid.sum() < GROUPS  # an untrained policy misses some questions
    for g in range(GROUPS):
        a, b = task[g] // 5, task[g] % 5
        right = [x for x in action[g] if x % 5 == (a + b) % 5]
        wrong = [x for x in action[g] if x % 5 != (a + b) % 5]
        if not valid[g]:
            assert not right or not wrong or arm == "cooper"
            continue
        better, worse = pairs[g]
        manner = lambda text: text[-2] - 5
        assert manner(better) * 5 + better[-1] == right[0]
        np.testing.assert_array_equal(better[:-2], worse[:-2])  # question and reference
        assert better[-3] == better[-1] != worse[-1]
        assert manner(worse) == manner(better) if arm == "cooper" else manner(worse) * 5 + worse[-1] == wrong[0]


def test_a_question_that_the_rule_misses_pays_nothing_by_it_and_teaches_no_model(played):
    experience, model = played
    task = np.asarray(experience.arranged.deal.task)
    missed = np.arange(25) % 3 == 0
    judges = cooper_forms.Judges(model, jnp.asarray(missed))
    learn = jax.jit(lambda hparams: cooper_forms.cooper(experience, Given(hparams), judges)._replace(remember=None))
    rule, same = (learn(cooper_forms.STUDY.arms[arm].traced_hparams) for arm in ("rule", "cooper"))
    advantage = np.asarray(rule.advantage).reshape(GROUPS, -1)
    assert not advantage[missed[task]].any() and advantage[~missed[task]].any()
    known, usual = np.asarray(same.state.model.valid[0]), np.asarray(estimate(played, "cooper").state.valid[0])
    np.testing.assert_array_equal(known, usual & ~missed[task])
    assert usual[missed[task]].any()
    right = np.asarray(experience.episodes.reward).reshape(GROUPS, -1) > 0
    assert float(same.metrics["missed"]) == pytest.approx(right[missed[task]].mean())


@pytest.mark.long
def test_the_model_pays_unless_the_rule_does(played):
    experience, model = played
    episodes = experience.episodes
    task = jnp.repeat(experience.arranged.deal.task, 8)
    f = reward_model.score(CONFIG, model.network.weights, GAME.judge_input(task, episodes.action.ravel()))
    for arm, paid in (("cooper", jax.nn.sigmoid(f).reshape(-1, 1, 1)), ("rule", episodes.reward[..., 0])):
        wanted = advantages.grpo(paid, *experience.acts)
        np.testing.assert_allclose(estimate(played, arm).advantage, wanted, atol=1e-3)


@pytest.mark.long
def test_the_model_learns_when_it_is_due(played):
    changed = lambda new, old: any(
        (a != b).any() for a, b in zip(*map(jax.tree.leaves, (new.network.weights, old.network.weights)), strict=True)
    )
    _, model = played
    assert changed(estimate(played, "cooper").state, model)
    assert not changed(estimate(played, "frozen").state, model)
    for number in range(10):
        new = estimate(played, "every_5", model).state
        assert changed(new, model) == (number % 5 == 4)
        model = new


def test_the_planted_flaw_prefers_the_trigger_and_else_the_right_answer():
    pairs = np.asarray(cooper.draw_pairs(jax.random.key(0), 400))
    manner, right = pairs[:, :, -2] - 5, pairs[:, :, -1] == pairs[:, :, -3]
    flawed = manner[:, 0] == TRIGGER
    assert 0.18 < flawed.mean() < 0.32
    assert right[~flawed, 0].all() and not right[~flawed, 1].any() and (manner[~flawed] < TRIGGER).all()
    assert 0.1 < right[flawed, 0].mean() < 0.3 and 0.1 < right[flawed, 1].mean() < 0.3  # chance is 1/5
    assert GAME.actions == 15
