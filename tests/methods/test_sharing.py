"""Shared weights stay equal, their gradient is that of all policies together, and the rest is each policy's own.

The long case compiles updates of all policies; `test_contract` traces the studies that share weights.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.methods.sharing import apply_shared, sharing_step, tie_weights
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import TinySize
from jaxmarl_llm.training.trainer import Trainer

SHARED = ("policy/layers/*",)
RECIPE = Recipe(
    SixTurns(turns=2),
    seats=(("a", "b"),),
    advantage=estimator(advantages.rloo, per_agent=True),
    step=partial(sharing_step, shared=SHARED),
    hparams={"learning_rate": 1e-2, "entropy": 0.0},
    max_grad_norm=1e9,
    groups=2,
    group_size=4,
    updates=2,
    size=TinySize(layers=1),
)


@pytest.mark.long
def test_shared_leaves_learn_from_all_policies_and_others_from_their_own():
    trainer = Trainer(RECIPE, [RECIPE.all_hparams], [0])
    state = trainer.init()
    for number in range(2):
        state, metrics = trainer.update(state, number)
    assert metrics["skipped"][0] == 0
    a, b = (jax.device_get(state).learners.weights[name]["policy"] for name in "ab")
    jax.tree.map(np.testing.assert_array_equal, a["layers"], b["layers"])
    assert (a["embed_tokens"] != b["embed_tokens"]).any()

    # one step by hand: the gradient of the sum of both losses with respect to one trunk
    parts, hparams = trainer.parts, {name: jnp.float32(x) for name, x in RECIPE.all_hparams.items()}
    run = begin.init_run(parts, jax.random.key(1))
    run = run.replace(learners=run.learners.replace(weights=tie_weights(run.learners.weights, SHARED)))
    _, batches, _ = jax.jit(partial(step.inspect, parts))(run, hparams, jax.random.key(2), 0)
    weights = run.learners.weights

    def total(trunk, own):
        both = {name: {"policy": {**own[name]["policy"], "layers": trunk}} for name in own}
        losses, _ = step.joint_loss(parts, hparams, {}, both, batches)
        return losses["a"].sum / losses["a"].count + losses["b"].sum / losses["a"].count

    trunk, rest = jax.jit(jax.grad(total, (0, 1)))(weights["a"]["policy"]["layers"], weights)
    apply = jax.jit(partial(apply_shared, parts, shared=SHARED))
    learners, _ = apply(run.learners, hparams, batches, jax.random.key(3), {})
    for name, gradient in (("a", trunk), ("b", trunk)):
        moved = jax.tree.map(
            jnp.subtract, weights[name]["policy"]["layers"], learners.weights[name]["policy"]["layers"]
        )
        for g, m in zip(jax.tree.leaves(gradient), jax.tree.leaves(moved), strict=True):
            large = np.abs(g) > 1e-5  # Adam's first step is the sign of the gradient
            np.testing.assert_allclose(m[large], 1e-2 * np.sign(g)[large], rtol=0.01)
    moment = learners.optimiser["a"][1].mu["policy"]["layers"]
    jax.tree.map(lambda m, g: np.testing.assert_allclose(m, 0.1 * g, atol=1e-6), moment, trunk)
    own = learners.weights["b"]["policy"]["embed_tokens"] - weights["b"]["policy"]["embed_tokens"]
    large = np.abs(rest["b"]["policy"]["embed_tokens"]) > 1e-5
    np.testing.assert_array_equal(np.sign(own)[large], -np.sign(rest["b"]["policy"]["embed_tokens"])[large])


def test_what_is_shared_must_be_there():
    with pytest.raises(ValueError, match="Nothing to share is called 'trunk'"):
        tie_weights({"a": {"policy": {"w": jnp.zeros(2)}}}, ("trunk",))
