"""What a recipe plays in a test, and its command with a real model."""

import dataclasses
import os
import runpy
import subprocess
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.models import decoder, loading
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.training.recipe import Parts, Recipe
from jaxmarl_llm.training.records import Experience, Run
from jaxmarl_llm.training.setup import setup
from jaxmarl_llm.training.step import make_experience
from jaxmarl_llm.training.update import Learners, Optimiser
from tests.support.families import random as numbers


def games(recipe: Recipe, seed: int = 0, rows: bool = False) -> Experience:
    """Games in which `random` takes the seats of all policies, with random values in place of a critic's.

    Nobody computes with a transformer: most of a game's time is theirs. What was read and said is kept with `rows`, for
    all seats under the first learner's name.
    """
    recipe, scripts = dataclasses.replace(recipe, critic=False), recipe.game.scripts
    seats = tuple(tuple(name if name in scripts else "random" for name in row) for row in recipe.seats)
    sets = {recipe.learners[0]: PolicySet(recipe.tokenizer(recipe.game), ("random",))} if rows else {}
    lineup = Lineup(seats * (recipe.groups // len(seats)), recipe.group_size)
    parts = Parts(recipe, sets, {}, Rollout(recipe.game, sets, lineup, recipe.budget), Optimiser())
    learns = np.array([[name in recipe.learners for name in row] for row in recipe.seats])
    learns = np.tile(learns, (recipe.groups // len(seats), 1))

    @jax.jit
    def play(key):
        trajectory = parts.rollout({name: {} for name in sets}, key)
        return make_experience(parts, Run(Learners({}, {}, jnp.int32(0)), ()), trajectory, key)._replace(score=None)

    played = play(jax.random.key(seed))._replace(groups=recipe.groups, learns=learns.repeat(recipe.group_size, 0))
    rng = np.random.default_rng(seed)
    random = lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32)
    return played._replace(turn_value=random(played.turn_value), token_value=jax.tree.map(random, played.token_value))


def untrained(recipe: Recipe, *seeds: int) -> tuple[Parts, list[dict]]:
    """What an evaluation is made from, as from a trainer, and the weights of a policy for each seed.

    The weights are random, without the program that would initialise them.
    """
    parts, (name,) = setup(recipe, "tiny", sharding.mesh(), loading.load), recipe.learners
    like = jax.eval_shape(partial(decoder.init, parts.policy_sets[name].config), jax.random.key(0))
    return parts, [{name: {"params": numbers(like, seed)}} for seed in seeds]


def credited(recipe: Recipe, *played: Experience, **hparams: float) -> Any:
    """The credit of an arm, for what was played; of several batches in turn, a list."""
    given = {**recipe.traced_hparams, **{name: jnp.float32(number) for name, number in hparams.items()}}
    state, found = recipe.init_state(None, None), []
    credit = jax.jit(lambda played, state: recipe.advantage(played._replace(groups=recipe.groups), given, state))
    for one in played:
        found.append(credit(one._replace(groups=0), state))
        state = found[-1].state
    return found if len(found) > 1 else found[0]


def differences(a: Recipe, b: Recipe) -> set[str]:
    """The settings in which two arms differ."""
    return {f.name for f in dataclasses.fields(Recipe) if getattr(a, f.name) != getattr(b, f.name)}


def with_a_real_model(name: str, out) -> str:
    """What the command prints in three updates of a real model, compiled as a user's; it must end well."""
    command = ["-m", "experiments", name, "--model", "smollm2", "--seeds", "1", "--updates", "3", "--out", str(out)]
    environment = {
        name: value for name, value in os.environ.items() if name != "XLA_FLAGS"
    }  # those of tests: no fast code
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=480, env=environment)
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
