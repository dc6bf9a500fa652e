"""What a recipe plays in a test, and its command with a real model."""

import dataclasses
import runpy
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.training.recipe import Experience, Recipe
from jaxmarl_llm.training.step import make_experience
from jaxmarl_llm.training.trainer import Trainer


def games(recipe: Recipe, seed: int = 0) -> Experience:
    """Games of random policies, with random values in place of the critic's."""
    recipe = dataclasses.replace(recipe, critic=False, warm_start=())
    trainer = Trainer(recipe, [recipe.all_hparams], [seed], "tiny")
    state = trainer.init()
    first = lambda tree: jax.tree.map(lambda x: x[0], tree)  # noqa: E731
    played = make_experience(trainer.parts, first(state).learners.weights, first(trainer.play(state)))
    rng = np.random.default_rng(seed)
    random = lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32)  # noqa: E731
    return played._replace(turn_value=random(played.turn_value), token_value=jax.tree.map(random, played.token_value))


def credited(recipe: Recipe, played: Experience, **hparams: float):
    """The credit of an arm, for what was played."""
    hparams = {name: jnp.float32(number) for name, number in {**recipe.all_hparams, **hparams}.items()}
    return jax.jit(lambda played: recipe.advantage(played._replace(groups=recipe.groups), hparams, ()))(
        played._replace(groups=0)
    )


def differences(a: Recipe, b: Recipe) -> set[str]:
    """The settings in which two arms differ."""
    return {f.name for f in dataclasses.fields(Recipe) if getattr(a, f.name) != getattr(b, f.name)}


def with_a_real_model(name: str, out) -> str:
    """What the command prints in three updates of a real model; it must end well."""
    command = ["-m", "experiments", name, "--model", "smollm2", "--seeds", "1", "--updates", "3", "--out", str(out)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=480)
    assert done.returncode == 0, done.stderr
    return done.stdout


def exit_status(*arguments: str, patch) -> int | str | None:
    """How the command ends, run in this process: the machine's time goes into work, not into imports."""
    patch.setattr(sys, "argv", ["experiments", *map(str, arguments)])
    try:
        runpy.run_module("experiments", run_name="__main__")
    except SystemExit as end:
        return end.code
    return 0
