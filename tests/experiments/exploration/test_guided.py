"""Which attempts are guided, made and compared, and in which rows they are trained.

The long case compiles one update of all arms.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.exploration.guided import GAME, PAIRS, STUDY, TOLD, estimate_advantages
from jaxmarl_llm.training.trainer import Trainer
from tests.support.recipe_plays import differences


def test_the_guide_speaks_where_the_arm_says():
    for name, arm in STUDY.arms.items():
        deal = arm.arrange(arm.all_hparams, (), jax.random.key(0), jnp.int32(0)).deal
        second = {"alone": 0, "always": TOLD}.get(name, TOLD)
        first = TOLD if name == "always" else 0
        assert np.asarray(deal.turns).tolist() == [first, second] * PAIRS
        assert differences(STUDY.arms["alone"], arm) <= {"selection"}
    assert STUDY.arms["removed"].all_choices["row"] == "removed" and GAME.texts[-1] == " The guide is silent."


def test_attempts_of_a_question_are_compared_and_a_success_is_not_followed_by_another():
    rng, members, turns = np.random.default_rng(0), 3, 2
    solved = rng.random((PAIRS, 2, members)) < 0.4
    reward = np.zeros((PAIRS * 2 * members, turns, 1, 1), np.float32)
    reward[:, -1, 0, 0] = solved.ravel()
    group = np.repeat(np.arange(2 * PAIRS), members)
    acted = np.ones((len(group), turns, 1), bool)
    episodes = SimpleNamespace(reward=jnp.array(reward), group=jnp.array(group))
    experience = SimpleNamespace(episodes=episodes, acts=(jnp.array(acted), jnp.array(group), 2 * PAIRS))
    found = jax.jit(lambda: estimate_advantages(experience, {}, ()))()
    credit, trained = (np.asarray(x).reshape(PAIRS, 2, members, turns) for x in (found.advantage, found.trained))
    second = []
    for q in range(PAIRS):
        made = [(k, i) for k in range(2) for i in range(members) if k == 0 or not solved[q, 0, i]]
        points = np.array([solved[q, k, i] for k, i in made], float)
        for (k, i), point in zip(made, points, strict=True):
            wanted = (point - points.mean()) / (points.std() + 1e-6)
            np.testing.assert_allclose(credit[q, k, i], wanted, atol=1e-4)
        assert [tuple(x) for x in np.argwhere(trained[q, ..., 0])] == made
        second += [solved[q, k, i] for k, i in made if k]
    assert found.metrics["solved guided"] == pytest.approx(np.mean(second)) and solved[:, 0].any()


@pytest.mark.long
def test_the_first_ratio_is_that_of_the_rows_that_are_trained():
    """1 in the words that were read and in the words without advice, but not if the advice was in the other ones."""
    import dataclasses

    arms = [STUDY.arms[name] for name in ("kept", "removed", "weighted")]
    small = dataclasses.replace(arms[0], group_size=2, warm_start_updates=30, evaluate=None)
    trainer = Trainer(small, [arm.all_hparams for arm in arms], [0, 0, 0])
    _, metrics = trainer.update(trainer.init(), 0)
    kept, removed, weighted = metrics["ratio/learner"]
    assert abs(kept - 1) < 1e-4 and abs(removed - 1) < 1e-4 and abs(weighted - 1) > 0.02
