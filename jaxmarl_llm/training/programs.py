"""The compiled programs of one recipe's runs, computed one after another or side by side.

`base`, the pretrained weights, is an argument of every program, so that no program holds a model. `keys` and `hparams`
are arguments too: other seeds and numbers compile nothing, and no constant rounds otherwise. A trainer holds its
programs, and they are freed with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.devices import compiling, sharding
from jaxmarl_llm.devices.compiling import OFTEN, SELDOM
from jaxmarl_llm.keys import EVALUATE, SHOW, START, UPDATE, key_for
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.trajectory import Trajectory
from jaxmarl_llm.training import begin, examine, past, step
from jaxmarl_llm.training.examine import Examined
from jaxmarl_llm.training.recipe import Hparams, Parts
from jaxmarl_llm.training.records import Arranged, Run
from jaxmarl_llm.training.step import Metrics, Part

MANY = 32
"""Runs of tiny policies side by side on a GPU or TPU. On a CPU runs are computed one after another: side by side they
take as long, within 40% either way, and their program compiles longer."""


@dataclasses.dataclass(frozen=True)
class RunMap:
    """Maps a function over runs, `width` runs at a time, so that the bits of a run depend on no other run.

    The program computes runs in a loop whose length the compiler does not know. It fills the last part of the loop with
    copies of the last run. So a run is computed by the same operations alone and beside others.
    """

    width: int
    alone: bool = False
    """There is one run, of pretrained policies: no loop copies its weights."""

    def __call__(self, function: Callable, *trees: Any) -> Any:
        """function(*trees of one run) for every run."""
        runs = len(jax.tree.leaves(trees)[0])
        if self.alone and runs == 1:
            result = function(*jax.tree.map(lambda x: x[0], trees))
            return jax.tree.map(lambda x: x[None], result)
        side_by_side = jax.jit(function if self.width == 1 else jax.vmap(function))  # traced once for shape and loop

        def take(part: Any) -> tuple[Any, Any]:
            """(indices of the runs of a part, past the end for copies of the last run; their trees)."""
            at = part if self.width == 1 else part * self.width + jnp.arange(self.width)
            return at, jax.tree.map(lambda x: x[jnp.minimum(at, runs - 1)], trees)

        def compute(part: jax.Array, results: Any) -> Any:
            at, given = take(part)
            return jax.tree.map(lambda x, new: x.at[at].set(new, mode="drop"), results, side_by_side(*given))

        first = jax.eval_shape(lambda: side_by_side(*take(jnp.int32(0))[1]))
        shape = lambda x: (runs, *x.shape[self.width > 1 :])
        results = jax.tree.map(lambda x: jnp.zeros(shape(x), x.dtype), first)

        parts = jax.lax.optimization_barrier(jnp.int32(-(-runs // self.width)))  # else XLA unrolls a loop of one part
        return jax.lax.fori_loop(0, parts, compute, results)


def run_map(tiny: bool) -> RunMap:
    """The `RunMap` of this backend: MANY runs of tiny policies at a time on a GPU or TPU, otherwise one at a time."""
    return RunMap(MANY if tiny and jax.default_backend() != "cpu" else 1, alone=not tiny)


class Functions:
    """Functions of arrays for several runs, with hparams [runs] of an update and a seed each. They close over all
    static settings."""

    def __init__(self, parts: Parts, seeds: Sequence[int], tiny: bool):
        self._map_runs = run_map(tiny)
        self._without_base = dataclasses.replace(parts, base={})
        _, self._distinct, self._seed_of = np.unique(np.array(seeds), return_index=True, return_inverse=True)

    def init_tiny(self, taught: bool, base: dict, keys: jax.Array) -> dict:
        """The result of `begin.init_tiny` for each distinct seed: runs of one seed start alike, and a warm start is
        expensive."""
        parts = self._parts(base)
        init = lambda key: begin.init_tiny(parts, key_for(key, START), taught)
        return self._map_runs(init, keys[self._distinct])

    def sample(self, base: dict, hparams: Hparams, key: jax.Array) -> tuple[Run, dict[str, Part]]:
        """(a run before training, {policy set: the batch of its first update}), with the hparams of the first run."""
        parts = self._parts(base)
        run = begin.init_run(parts, key_for(key, START))
        hparams = jax.tree.map(lambda x: x[0], hparams)
        return run, step.inspect(parts, run, hparams, key, jnp.int32(0))[1]

    def _parts(self, base: dict) -> Parts:
        return dataclasses.replace(self._without_base, base=base)

    def init(self, base: dict, keys: jax.Array, tiny: dict) -> Run:
        init = lambda key, tiny: begin.init_run(self._parts(base), key_for(key, START), tiny)
        states = self._map_runs(init, keys[self._distinct], tiny)
        return sharding.weights(jax.tree.map(lambda x: x[self._seed_of], states))

    def imitate(self, base: dict, keys: jax.Array, state: Run, number: jax.Array) -> tuple[Run, Metrics]:
        imitate_run = lambda run, key: begin.imitation_step(self._parts(base), run, key_for(key, START), number)
        state, metrics = self._map_runs(imitate_run, state, keys)
        return sharding.weights(state), sharding.everywhere(metrics)

    def update(
        self, base: dict, keys: jax.Array, hparams: Hparams, state: Run, number: jax.Array
    ) -> tuple[Run, Metrics]:
        parts = self._parts(base)
        own_step = parts.recipe.step or step.on_policy_step
        update_run = lambda run, hparams, key: own_step(parts, run, hparams, key, number)
        state, metrics = self._map_runs(update_run, state, hparams, keys)
        return sharding.weights(state), sharding.everywhere(metrics)

    def evaluation_games(self, base: dict, keys: jax.Array, state: Run, *, rollout: Rollout) -> Trajectory:
        def play(run: Run, key: jax.Array) -> Trajectory:
            parts = self._parts(base)
            return rollout(step.rollout_weights(parts, past.present(parts.recipe, run)), key_for(key, EVALUATE))

        return sharding.everywhere(self._map_runs(play, state, keys))

    def inspect(
        self, base: dict, keys: jax.Array, hparams: Hparams, state: Run, number: jax.Array
    ) -> tuple[Trajectory, dict[str, Part], Metrics]:
        inspect_run = lambda run, hparams, key: step.inspect(self._parts(base), run, hparams, key, number)
        return sharding.everywhere(self._map_runs(inspect_run, state, hparams, keys))

    def arrange(
        self, runs: tuple[int, ...], keys: jax.Array, hparams: Hparams, state: Run, number: jax.Array
    ) -> Arranged:
        chosen = jax.tree.map(lambda x: x[np.array(runs)], (state, hparams, keys))
        parts = self._parts({})  # an arrangement depends on no model
        arrange_run = lambda run, hparams, key: step.arrange(parts, run, hparams, key_for(key, SHOW), number)
        return self._map_runs(arrange_run, *chosen)

    def examine(
        self,
        runs: tuple[int, ...],
        base: dict,
        keys: jax.Array,
        state: Run,
        arranged: Arranged,
        played: Trajectory | None,
    ) -> Examined:
        chosen = jax.tree.map(lambda x: x[np.array(runs)], (state, keys))
        examine_run = lambda run, key, *given: examine.examine(self._parts(base), run, key_for(key, SHOW), *given)
        return sharding.everywhere(self._map_runs(examine_run, *chosen, arranged, played))

    def advantages(
        self,
        runs: tuple[int, ...],
        base: dict,
        hparams: Hparams,
        state: Run,
        trajectory: Trajectory,
        arranged: Arranged,
    ) -> dict:
        chosen = jax.tree.map(lambda x: x[np.array(runs)], (state, hparams))

        def estimate_run(run: Run, hparams: dict, trajectory: Trajectory, arranged: Arranged) -> dict[str, jax.Array]:
            return examine.advantages(self._parts(base), run, hparams, trajectory, jax.random.key(0), arranged)

        return sharding.everywhere(self._map_runs(estimate_run, *chosen, trajectory, arranged))

    def training_games(self, base: dict, keys: jax.Array, weights: dict, number: jax.Array) -> Trajectory:
        play = lambda weights, key: step.play(self._parts(base), weights, key_for(key, UPDATE, number))
        return self._map_runs(play, weights, keys)

    def learn(
        self, base: dict, keys: jax.Array, hparams: Hparams, state: Run, trajectory: Trajectory, number: jax.Array
    ) -> tuple[Run, Metrics]:
        def learn(run, trajectory, hparams, key):
            return step.learn(self._parts(base), run, hparams, trajectory, key_for(key, UPDATE, number), {})

        state, metrics = self._map_runs(learn, state, trajectory, hparams, keys)
        return sharding.weights(state), sharding.everywhere(metrics)


class Programs:
    """The compiled `Functions`. `Functions` hold no reference to their programs, so that the last reference to these
    frees them."""

    def __init__(self, functions: Functions, kind: compiling.Kind):
        self._functions, self._kind = functions, kind
        self.init = compiling.jit(functions.init, OFTEN, kind, long=False)
        self.imitate = compiling.jit(functions.imitate, OFTEN, kind, donate_argnums=2)
        self.update = compiling.jit(functions.update, OFTEN, kind, donate_argnums=3)
        self.inspect = compiling.jit(functions.inspect, OFTEN, kind)
        self.arrange = compiling.jit(functions.arrange, SELDOM, kind, static_argnums=0)
        self.examine = compiling.jit(functions.examine, SELDOM, kind, static_argnums=0)
        self.advantages = compiling.jit(functions.advantages, SELDOM, kind, static_argnums=0)
        self.training_games = compiling.jit(functions.training_games, OFTEN, kind)
        self.learn = compiling.jit(functions.learn, OFTEN, kind, donate_argnums=3)
        self._games: dict[Rollout, compiling.Program] = {}

    def games(self, rollout: Rollout) -> compiling.Program:
        """The program (base, keys, state) -> games of every run, for this rollout. A static argument would keep the
        rollout alive in JAX's cache."""
        if rollout not in self._games:
            play = partial(self._functions.evaluation_games, rollout=rollout)
            self._games[rollout] = compiling.jit(play, OFTEN, self._kind)
        return self._games[rollout]
