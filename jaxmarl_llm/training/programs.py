"""The compiled programs of one recipe's runs, computed side by side or one after the other.

`base`, the pretrained weights, is an argument of every program, so that no program holds a model. `keys` is one too, so
that other seeds compile nothing. A trainer holds its programs, and they are freed with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.records import Arranged, Run
from jaxmarl_llm.training.step import Metrics, Part

# Maximum tokens of rows that a CPU computes at once. With rows of one width, an update of 100 runs of `sizes`, 60 of
# `horizon` and 130 of `policies` took 3.9, 3.4 and 2.6 seconds all at once. In chunks of 10, 5 and 10 runs it took 3.2,
# 2.1 and 1.7 seconds, and a third of the memory.
AT_ONCE = 20_000


@dataclasses.dataclass(frozen=True)
class RunMap:
    """Maps a function over runs: tiny policies side by side, on a CPU in chunks, pretrained policies in turn."""

    tiny: bool
    on_host: bool
    """Games are played in plain Python; all runs are then computed at once."""
    devices: int
    tokens: int
    """Maximum tokens of the games in one update of a run."""

    def __call__(self, function: Callable, *trees: Any, at_once: int | None = None) -> Any:
        """function(*trees of one run) for every run, `at_once` runs side by side if given."""
        runs = len(jax.tree.leaves(trees)[0])
        if runs == 1:  # mapping a single run would trace every loop several times
            result = function(*jax.tree.map(lambda x: x[0], trees))
            return jax.tree.map(lambda x: x[None], result)
        at_once = at_once or self.at_once(runs)
        if at_once == runs:
            return jax.vmap(function)(*trees)
        if at_once == 1:
            return jax.lax.map(lambda entry: function(*entry), trees)
        # by hand, since `batch_size` of `lax.map` fails for a leaf without entries
        parts = jax.tree.map(lambda x: x.reshape(runs // at_once, at_once, *x.shape[1:]), trees)
        results = jax.lax.map(lambda entry: jax.vmap(function)(*entry), parts)
        return jax.tree.map(lambda x: x.reshape(runs, *x.shape[2:]), results)

    def at_once(self, runs: int, tokens: int | None = None) -> int:
        """The number of runs to compute side by side, a divisor of `runs`. `tokens` is a run's maximum, by default that
        of an update's games."""
        if not self.tiny:
            return 1
        if jax.default_backend() != "cpu" or self.on_host:
            return runs
        tokens, limit = tokens or self.tokens, AT_ONCE * self.devices
        return max((n for n in range(1, runs + 1) if runs % n == 0 and n * tokens <= limit), default=1)


class Functions:
    """Functions of arrays for several runs, with hparams [runs] or [runs, updates] and a seed each. They close over all
    static settings; `cores` share the runs of an update."""

    def __init__(
        self,
        parts: Parts,
        hparams: Mapping[str, Any],
        seeds: Sequence[int],
        map_runs: RunMap,
        cores: Any = None,
    ):
        self.map_runs, self._hparams, self._cores = map_runs, hparams, cores
        self._without_base = dataclasses.replace(parts, base={})
        _, self._distinct, self._seed_of = np.unique(np.array(seeds), return_index=True, return_inverse=True)

    def hparams_at(self, number: Any) -> dict[str, Any]:
        """The hparams of an update, [runs]. Beyond its last update a schedule keeps its last value."""
        at = lambda x: x if x.ndim == 1 else x[:, jnp.minimum(number, x.shape[1] - 1)]
        return jax.tree.map(at, dict(self._hparams))

    def init_tiny(self, taught: bool, base: dict, keys: jax.Array) -> dict:
        """The result of `begin.init_tiny` for each distinct seed: runs of one seed start alike, and a warm start is
        expensive."""
        parts = self._parts(base)
        init = lambda key: begin.init_tiny(parts, key_for(key, START), taught)
        # by the warm start's tokens: trainers of other sizes then begin with equal weights
        at_once = self.map_runs.at_once(len(self._distinct), begin.tokens_taught(parts)) if taught else None
        return self.map_runs(init, keys[self._distinct], at_once=at_once)

    def sample(self, base: dict, key: jax.Array) -> tuple[Run, dict[str, Part]]:
        """(a run before training, {policy set: the batch of its first update}), with the hparams of the first run."""
        parts = self._parts(base)
        run = begin.init_run(parts, key_for(key, START))
        hparams = jax.tree.map(lambda x: x[0], self.hparams_at(0))
        return run, step.inspect(parts, run, hparams, key, jnp.int32(0))[1]

    def _parts(self, base: dict) -> Parts:
        return dataclasses.replace(self._without_base, base=base)

    def init(self, base: dict, keys: jax.Array, tiny: dict) -> Run:
        init = lambda key, tiny: begin.init_run(self._parts(base), key_for(key, START), tiny)
        states = self.map_runs(init, keys[self._distinct], tiny)
        return sharding.weights(jax.tree.map(lambda x: x[self._seed_of], states))

    def imitate(self, base: dict, keys: jax.Array, state: Run, number: jax.Array) -> tuple[Run, Metrics]:
        imitate_run = lambda run, key: begin.imitation_step(self._parts(base), run, key_for(key, START), number)
        state, metrics = self.map_runs(imitate_run, state, keys)
        return sharding.weights(state), sharding.everywhere(metrics)

    def update(self, base: dict, keys: jax.Array, state: Run, number: jax.Array) -> tuple[Run, Metrics]:
        parts = self._parts(base)
        own_step = parts.recipe.step or step.on_policy_step
        update_run = lambda run, hparams, key: own_step(parts, run, hparams, key, number)
        every = partial(self.map_runs, update_run)
        mapped = every if self._cores is None else sharding.by_cores(every, self._cores)
        state, metrics = mapped(state, self.hparams_at(number), keys)
        return sharding.weights(state), sharding.everywhere(metrics)

    def evaluation_games(self, base: dict, keys: jax.Array, state: Run, *, rollout: Rollout) -> Trajectory:
        def play(run: Run, key: jax.Array) -> Trajectory:
            parts = self._parts(base)
            return rollout(step.rollout_weights(parts, past.present(parts.recipe, run)), key_for(key, EVALUATE))

        return sharding.everywhere(self.map_runs(play, state, keys))

    def inspect(
        self, base: dict, keys: jax.Array, state: Run, number: jax.Array
    ) -> tuple[Trajectory, dict[str, Part], Metrics]:
        inspect_run = lambda run, hparams, key: step.inspect(self._parts(base), run, hparams, key, number)
        return sharding.everywhere(self.map_runs(inspect_run, state, self.hparams_at(number), keys))

    def arrange(self, runs: tuple[int, ...], keys: jax.Array, state: Run, number: jax.Array) -> Arranged:
        chosen = jax.tree.map(lambda x: x[np.array(runs)], (state, self.hparams_at(number), keys))
        parts = self._parts({})  # an arrangement depends on no model
        arrange_run = lambda run, hparams, key: step.arrange(parts, run, hparams, key_for(key, SHOW), number)
        return self.map_runs(arrange_run, *chosen)

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
        return sharding.everywhere(self.map_runs(examine_run, *chosen, arranged, played))

    def advantages(
        self,
        runs: tuple[int, ...],
        base: dict,
        state: Run,
        trajectory: Trajectory,
        number: jax.Array,
        arranged: Arranged,
    ) -> dict:
        chosen = jax.tree.map(lambda x: x[np.array(runs)], (state, self.hparams_at(number)))

        def estimate_run(run: Run, hparams: dict, trajectory: Trajectory, arranged: Arranged) -> dict[str, jax.Array]:
            return examine.advantages(self._parts(base), run, hparams, trajectory, jax.random.key(0), arranged)

        return sharding.everywhere(self.map_runs(estimate_run, *chosen, trajectory, arranged))

    def training_games(self, base: dict, keys: jax.Array, weights: dict, number: jax.Array) -> Trajectory:
        play = lambda weights, key: step.play(self._parts(base), weights, key_for(key, UPDATE, number))
        return self.map_runs(play, weights, keys)

    def learn(
        self, base: dict, keys: jax.Array, state: Run, trajectory: Trajectory, number: jax.Array
    ) -> tuple[Run, Metrics]:
        def learn(run, trajectory, hparams, key):
            return step.learn(self._parts(base), run, hparams, trajectory, key_for(key, UPDATE, number), {})

        state, metrics = self.map_runs(learn, state, trajectory, self.hparams_at(number), keys)
        return sharding.weights(state), sharding.everywhere(metrics)


class Programs:
    """The compiled `Functions`. `Functions` hold no reference to their programs, so that the last reference to these
    frees them."""

    def __init__(self, functions: Functions, kind: compiling.Kind):
        self._functions, self._kind = functions, kind
        self.init = compiling.jit(functions.init, OFTEN, kind, long=False)
        self.imitate = compiling.jit(functions.imitate, OFTEN, kind, donate_argnums=2)
        self.update = compiling.jit(functions.update, OFTEN, kind, donate_argnums=2)
        self.inspect = compiling.jit(functions.inspect, OFTEN, kind)
        self.arrange = compiling.jit(functions.arrange, SELDOM, kind, static_argnums=0)
        self.examine = compiling.jit(functions.examine, SELDOM, kind, static_argnums=0)
        self.advantages = compiling.jit(functions.advantages, SELDOM, kind, static_argnums=0)
        self.training_games = compiling.jit(functions.training_games, OFTEN, kind)
        self.learn = compiling.jit(functions.learn, OFTEN, kind, donate_argnums=2)
        self._games: dict[Rollout, compiling.Program] = {}

    def games(self, rollout: Rollout) -> compiling.Program:
        """The program (base, keys, state) -> games of every run, for this rollout. A static argument would keep the
        rollout alive in JAX's cache."""
        if rollout not in self._games:
            play = partial(self._functions.evaluation_games, rollout=rollout)
            self._games[rollout] = compiling.jit(play, OFTEN, self._kind)
        return self._games[rollout]
