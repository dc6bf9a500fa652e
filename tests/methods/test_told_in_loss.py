"""Forced modes and told replies have no gradient, unless replies are trained; then each is a token of its row.

The case is long, as it compiles a rollout and an update.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tools.tools import TOOL
from jaxmarl_llm.environments.teams.tool_calls import CALL, LAST, NUMBERS
from jaxmarl_llm.methods.told_in_loss import include_told
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.records import Advantages, TinySize
from jaxmarl_llm.training.trainer import Trainer


@pytest.mark.long
def test_gradients_of_forced_modes_and_of_replies():
    recipe = dataclasses.replace(TOOL.with_choice(modes="balanced"), warm_start=(), size=TinySize(layers=1))
    parts = Trainer(recipe, [recipe.all_hparams], [0]).parts
    hparams = recipe.traced_hparams

    @jax.jit
    def play(key):
        run = begin.init_run(parts, key)
        arranged = step.arrange(parts, run, hparams, key, jnp.int32(0))
        played = step.play(parts, run.learners.weights, key, arranged)
        heard = include_told(parts, played.rows["learner"], turn=LAST, grammar=NUMBERS)
        return run, arranged, played, played.replace(rows={**played.rows, "learner": heard})

    run, arranged, *games = play(jax.random.key(0))

    @jax.jit
    def norm(trajectory, credit):
        """The gradient's norm with an advantage of 1 at the acts of `credit` [B, T, A] and 0 elsewhere."""
        experience = step.make_experience(parts, run, trajectory, jax.random.key(0), {}, arranged)
        batches = step.make_batches(parts, experience, Advantages(credit.astype(jnp.float32)))
        loss = lambda weights: step.joint_loss(parts, hparams, {}, weights, batches)[0]["learner"].sum
        return sum(jnp.abs(x).sum() for x in jax.tree.leaves(jax.grad(loss)(run.learners.weights)))

    masked, trained = games
    episodes, rows = masked.episodes, masked.rows["learner"]
    turn, seat = jnp.arange(6)[None, :, None], jnp.arange(2)[None, None]
    chooses = (turn == 0) & (seat == 0)
    forced, free = ((episodes.group % 4 == 3)[:, None, None] == x for x in (False, True))
    calls = np.asarray(episodes.action[:, 0, 0] == CALL)
    assert norm(masked, forced & chooses) == 0 and norm(masked, free & chooses) > 0
    assert norm(masked, episodes.acted & (seat == 1)) == 0  # the calculator's seat
    heard = np.asarray(trained.rows["learner"].loss_mask & ~rows.loss_mask)
    np.testing.assert_array_equal(heard.sum(1), calls[np.asarray(rows.episode)])
    row, at = np.nonzero(heard)
    said = np.asarray(episodes.action)[np.asarray(rows.episode)[row], 4, 1]
    words = parts.rollout.layouts["learner"].policy_set.tokenizer.strings
    assert [words[i] for i in np.asarray(rows.tokens)[row, at]] == [f"{number:02d}" for number in said]
    answers = calls[:, None, None] & (turn == LAST) & (seat == 0)
    assert abs(norm(trained, answers) - norm(masked, answers)) > 1e-3
