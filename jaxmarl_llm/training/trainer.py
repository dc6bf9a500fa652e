"""A recipe's runs on a mesh: initialises, updates, plays and examines them, with the compiled programs of `programs`.

A run is one arm and one seed. Runs of tiny policies share a program. On a CPU it computes them one after another, and
cores share the runs of a long training. The bits of a run depend on its recipe, hparams and seed alone. `step`
defines an update.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.devices import compiling, sharding
from jaxmarl_llm.devices.compiling import OFTEN
from jaxmarl_llm.devices.distributed import is_main_process
from jaxmarl_llm.environments.bridges.python_games import HostGame
from jaxmarl_llm.keys import EVALUATE, SHOW, UPDATE, key_for
from jaxmarl_llm.models import loading
from jaxmarl_llm.rl.choices import stack_runs
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.trajectory import Trajectory
from jaxmarl_llm.training import begin, past, step
from jaxmarl_llm.training.examine import Examined
from jaxmarl_llm.training.host_games import host_games
from jaxmarl_llm.training.left_out import without_places
from jaxmarl_llm.training.programs import Functions, Programs
from jaxmarl_llm.training.recipe import Recipe, check_hparams
from jaxmarl_llm.training.records import Arranged, Run
from jaxmarl_llm.training.setup import TINY, Model, playing_mesh, setup, small
from jaxmarl_llm.training.step import Metrics, Part
from jaxmarl_llm.training.watch import Watch

# An update of a run is long from this number of tokens: its program is compiled for speed. The recipe alone decides it,
# so that an arm rounds alike with any number of updates and seeds.
LONG = 1_500
# Cores share the runs of a training from this number of tokens, over all updates of all runs. A shorter training is
# faster on one core, since other programs compile while it trains. The bits of a run do not depend on it.
SHARED = 10_000_000


class Ahead(struct.PyTreeNode):
    """Runs whose next games are already played, with weights one update old."""

    run: Run  # leaves [runs, ...]
    trajectory: Trajectory  # games of the next update
    version: jax.Array  # int32 [runs], number of updates that changed the weights
    played_by: jax.Array  # int32 [runs], the version that played `trajectory`

    @property
    def learners(self) -> Any:
        return self.run.learners


class Trainer:
    """The programs of one recipe structure. A run has hparams and a seed; a state is a `Run` with leaves [runs, ...].

    `models` is one source for all policies, or {policy: Model}. `mesh` is a text as `sharding.mesh` reads it; with
    several devices, calls of a trainer need the context `with sharding.use(trainer.mesh)`.

    `rollout_mesh` is a mesh of other devices, which play the games of update n + 1 while `mesh` learns from update n.
    The weights that play are then one update old (counted by `metrics["stale"]`). Log-probabilities of sampled tokens
    stay exact, and the loss must correct by importance weights. States are `Ahead`.

    A wait for compilation is explained on stderr, once for `init` and once for `update`, unless `quiet`.

    With `load=loading.abstract` a trainer can be lowered but not run. Raises ValueError, before anything compiles, for
    settings that cannot work.
    """

    def __init__(
        self,
        recipe: Recipe,
        hparams: Sequence[Mapping[str, float | Sequence[float] | str]],
        seeds: Sequence[int],
        models: str | Mapping[str, Model] = TINY,
        mesh: str = "",
        rollout_mesh: str = "",
        load: Callable[..., loading.Loaded] = loading.load,
        max_skipped: int = 10,
        quiet: bool = False,
    ):
        check_runs(hparams, seeds)
        self.mesh = sharding.mesh(mesh)
        self.parts = setup(recipe, models, self.mesh, load)
        self.recipe, self.policy_sets, self.rollout = recipe, self.parts.policy_sets, self.parts.rollout
        self.learners, self.base = self.parts.learners, self.parts.base
        self.tiny = not {*self.base} & {*self.parts.learner_sets}  # no learner starts from a model
        self.small = small(self.policy_sets)
        self.rollout_mesh: tuple[Any, dict] | None = None  # the mesh that plays, and the bases on it
        self.on_host = isinstance(recipe.game, HostGame)
        playing = playing_mesh(self.parts, self.mesh, rollout_mesh)
        if playing is not None:
            self.parts = dataclasses.replace(self.parts, ahead=True)
            self.rollout_mesh = playing, sharding.place(self.base, playing)
        self.seeds = tuple(seeds)
        self._unexplained = {"init", "update"} if is_main_process() and not quiet else set()
        self.keys = jax.vmap(jax.random.key)(jnp.array(seeds, jnp.uint32))
        tokens = begin.tokens_of(self.parts) if self.tiny and not self.on_host else 0
        self.watch = Watch(None if self.on_host else recipe.game, [f"seed {seed}" for seed in seeds], max_skipped)
        # The cores that share the runs of an update; between updates a state lies on the first device.
        shared = tokens * len(seeds) * recipe.updates >= SHARED and self.mesh.size == 1 and not rollout_mesh
        shared = shared and self.small  # each core has its copy of frozen policies
        self.cores = sharding.cores(len(seeds)) if shared else ()
        half = any(members.config is not None and members.config.dtypes.half for members in self.policy_sets.values())
        self._hparams = by_run(recipe, hparams)
        self.functions = Functions(self.parts, seeds, self.tiny)
        self.programs = Programs(self.functions, compiling.Kind(self.small, tokens >= LONG, half))
        self._split = jax.jit(partial(sharding.split_runs, count=max(1, len(self.cores))))
        self._join = jax.jit(sharding.join_runs)

    @cached_property
    def _bases(self) -> list[dict]:
        """The weights of frozen policies on each of the cores that share the runs."""
        return [jax.device_put(self.base, core) for core in self.cores]

    @cached_property
    def _tiny_shape(self) -> dict:
        return self._add_sharding(jax.eval_shape(partial(self.functions.init_tiny, False), self.base, self.keys))

    def _add_sharding(self, shapes: Any) -> Any:
        """Shapes with their sharding on the mesh."""
        where = sharding.shardings(shapes, self.mesh)
        return jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), shapes, where)

    # called by commands

    def hparams_at(self, number: Any) -> dict[str, Any]:
        """The hparams of an update, leaves [runs]. Beyond its last update a schedule keeps its last value."""
        at = lambda x: x if x.ndim == 1 else x[:, jnp.minimum(number, x.shape[1] - 1)]
        return jax.tree.map(at, self._hparams)

    def init_tiny(self) -> dict:
        """Initial weights of tiny policies after their warm start, by learner: leaves [distinct seeds, ...]. They are
        equal for trainers with equal models, mesh and seeds whose recipes agree in `warm_start_of`."""
        where = jax.tree.map(lambda x: x.sharding, self._tiny_shape)
        taught = partial(self.functions.init_tiny, True)
        program = jax.jit(taught, out_shardings=where, compiler_options=compiling.options(OFTEN))
        return program(self.base, self.keys)

    def init(
        self,
        on_step: Callable[[int, Metrics], None] = lambda number, metrics: None,
        tiny: dict | None = None,
    ) -> Any:
        """The state before training, after the warm start: a `Run` with leaves [runs, ...], or an `Ahead`.

        `on_step` is called after every update of the warm start of pretrained policies, with its metrics [runs]. `tiny`
        is the result of `init_tiny`, if it is known.
        """
        self.watch.begin()
        with self._explain("init", "compiling and making the first policies"):
            tiny = self.init_tiny() if tiny is None else tiny
            with sharding.use(self.mesh):  # placed, since leaves that depend on no weights have no sharding yet
                state = sharding.place(self.programs.init(self.base, self.keys, tiny), self.mesh)
        for number in range(self.recipe.warm_start_updates if self.recipe.warm_start and not self.tiny else 0):
            state, metrics = self.programs.imitate(self.base, self.keys, state, jnp.int32(number))
            on_step(number, metrics)
        if self.rollout_mesh is None:
            return state
        version = jnp.zeros(len(self.keys), jnp.int32)
        return Ahead(state, self._play_ahead(state, 0), version, version)

    def abstract(self) -> Any:
        """The shapes of a state, into which a checkpoint is restored; no arrays are held."""
        if self.rollout_mesh is not None:
            return self.init()
        with sharding.use(self.mesh):
            return self._add_sharding(self.programs.init.eval_shape(self.base, self.keys, self._tiny_shape))

    def metric_names(self) -> set[str]:
        """The names of the metrics of `update`, by tracing alone; none where `compile_update` does nothing."""
        if self.on_host or self.rollout_mesh:
            return set()
        with sharding.use(self.mesh):
            given = self.base, self.keys, self.hparams_at(0), self.abstract(), jnp.int32(0)
            return {*without_places(self.programs.update.eval_shape(*given)[1])}

    def compile_update(self) -> None:
        """Compiles the program of `update` ahead of its first call; another thread may do so. Does nothing if games are
        played on the host or on a rollout mesh."""
        if self.on_host or self.rollout_mesh:
            return
        programs = [self.lower_update(core) for core in self.cores or (None,)]
        with ThreadPoolExecutor(len(programs), "compile") as beside:
            list(beside.map(lambda program: program.compile(), programs))

    def lower_update(self, core: jax.sharding.Sharding | None = None) -> Any:
        """The lowered program of an update, or of one core's part of it. It exists only if games are played in that
        program."""
        given, base = (self.keys, self.hparams_at(0)), self.base
        with sharding.use(self.mesh):
            state = self.abstract()
            if core is not None:
                given, runs = self._split(given)[0], len(self.keys) // len(self.cores)
                base = self._bases[self.cores.index(core)]
                state = jax.tree.map(
                    lambda x: jax.ShapeDtypeStruct((runs, *x.shape[1:]), x.dtype, sharding=core), state
                )
            return self.programs.update.lower(base, *given, state, jnp.int32(0))

    def update(self, state: Any, number: int) -> tuple[Any, Metrics]:
        """Makes update `number` of every run. Returns the new state and metrics [runs]. The old state is donated: its
        memory is reused, and no later call can read it.

        Raises ValueError for a state that an earlier update took, and NonFiniteError once a run has skipped
        `max_skipped` updates in a row (0: never), one update later.
        """
        check_state(state)
        first = "playing the first games and compiling the update" if self.on_host else "compiling the update"
        with self._explain("update", first):
            state, metrics = self._dispatch(state, number)
        self.watch(number, metrics, state)
        return state, without_places(metrics)

    def _explain(self, call: str, text: str) -> contextlib.AbstractContextManager:
        """Explains the wait of the first call of a method."""
        first = call in self._unexplained
        self._unexplained.discard(call)
        return compiling.announce(text) if first else contextlib.nullcontext()

    def _dispatch(self, state: Any, number: int) -> tuple[Any, Metrics]:
        hparams, at = self.hparams_at(number), jnp.int32(number)
        if self.on_host:
            played = self._host_games(state, UPDATE, number)
            return self.programs.learn(self.base, self.keys, hparams, state, played, at)
        if self.rollout_mesh is None:
            if not self.cores:
                return self.programs.update(self.base, self.keys, hparams, state, at)
            split = self._split((self.keys, hparams)), self._split(state), self.cores, self._bases
            results = [
                self.programs.update(base, *given, jax.device_put(part, core), at)
                for given, part, core, base in zip(*split, strict=True)
            ]
            return self._join(jax.device_put(results, self.mesh.devices.item()))
        following = self._play_ahead(state.run, number + 1)
        run, metrics = self.programs.learn(self.base, self.keys, hparams, state.run, state.trajectory, at)
        learned = metrics["skipped"] < self.recipe.epochs * self.recipe.minibatches
        new = Ahead(run, following, state.version + learned, state.version)
        return new, metrics | {"stale": state.version - state.played_by}

    def _host_games(self, state: Run, purpose: int, *number: int, runs: Sequence[int] | None = None) -> Trajectory:
        """Games in plain Python for some or all runs."""
        runs = range(len(self.keys)) if runs is None else runs
        keys = [key_for(self.keys[i], purpose, *number) for i in runs]
        names = [self.watch.names[i] for i in runs] if len(self.keys) > 1 else None
        return host_games(self.rollout, [self.weights(state, i) for i in runs], keys, names)

    def _play_ahead(self, state: Run, number: int) -> Trajectory:
        """The games of an update, played on the rollout mesh with the present weights."""
        assert self.rollout_mesh is not None
        mesh, base = self.rollout_mesh
        with sharding.use(mesh):
            played = self.programs.training_games(
                base, self.keys, sharding.place(state.learners.weights, mesh), jnp.int32(number)
            )
        return sharding.spread(played, self.mesh)

    def replay_update(self, state: Any, number: int) -> tuple[Trajectory, dict[str, Part], Metrics]:
        """Repeats the standard step of an update for inspection: (games, {policy set: batch}, metrics with the gradient
        norm of each leaf), [runs, ...]. For a skipped update, `state` may be from before or after it. A recipe
        with its own step, or with a game in plain Python, gives games only."""
        check_state(state)
        if self.recipe.step is not None or self.on_host:
            return self.play(state), {}, {}
        run = state.run if isinstance(state, Ahead) else state
        return self.programs.inspect(self.base, self.keys, self.hparams_at(number), run, jnp.int32(number))

    def play(self, state: Any, rollout: Rollout | None = None) -> Trajectory:
        """Games of every run with its present weights, leaves [runs, ...]: training games, or games of another
        rollout."""
        check_state(state)
        run = state.run if isinstance(state, Ahead) else state
        if rollout is None and self.on_host:
            return self._host_games(run, EVALUATE)
        return self.programs.games(rollout or self.rollout)(self.base, self.keys, run)

    def examine(self, state: Any, runs: Sequence[int], number: int = 0) -> Examined:
        """A batch of games of some runs with all that is known of their tokens, leaves [len(runs), ...], before update
        `number`. These are no training games, and every call deals the same ones."""
        check_state(state)
        run, runs = state.run if isinstance(state, Ahead) else state, tuple(runs)
        hparams, arranged = self.hparams_at(number), Arranged()
        if self.recipe.arrange is not None and self.recipe.step is None:
            arranged = self.programs.arrange(runs, self.keys, hparams, run, jnp.int32(number))
        played = self._host_games(run, SHOW, runs=runs) if self.on_host else None
        games = self.programs.examine(runs, self.base, self.keys, run, arranged, played)
        if self.recipe.step is not None:
            return games
        advantage = self.programs.advantages(runs, self.base, hparams, run, games.trajectory, arranged)
        return games.replace(advantage=advantage)

    def weights(self, state: Any, run: int) -> dict[str, dict]:
        """The weights of one run, by policy set, in the form of a rollout."""
        check_state(state)
        single = jax.tree.map(lambda x: x[run], state.run if isinstance(state, Ahead) else state)
        return step.rollout_weights(self.parts, past.present(self.recipe, single))

    def sample_batch(self, seed: int = 0) -> tuple[Run, dict[str, Part]]:
        """(a run before training, {policy set: the batch of its first update}), for a notebook."""
        return jax.jit(self.functions.sample)(self.base, self.hparams_at(0), jax.random.key(seed))


def check_runs(hparams: Any, seeds: Any) -> None:
    """Raises ValueError unless there is a list of hparams and one of seeds, with an entry of each for every run."""
    if isinstance(hparams, Mapping) or not hasattr(hparams, "__len__"):
        raise ValueError(f"A list with the hparams of each run is wanted, got one {type(hparams).__name__}: [hparams].")
    if not hasattr(seeds, "__len__"):
        raise ValueError(f"A list with the seed of each run is wanted, got {seeds!r}: [{seeds!r}] is one run.")
    if len(hparams) != len(seeds):
        raise ValueError(f"Each run has hparams and a seed: got {len(hparams)} hparams and {len(seeds)} seeds.")


def check_state(state: Any) -> None:
    """Raises ValueError for an object that is no state, and for a state whose memory an update has reused."""
    if not isinstance(state, Run | Ahead):
        pair = ": update() returns (state, metrics)" if isinstance(state, tuple) else ""
        raise ValueError(f"A state is wanted, which init() or update() returns, got a {type(state).__name__}{pair}.")
    arrays = (x for x in jax.tree.leaves(state) if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer))
    if any(x.is_deleted() for x in arrays):
        raise ValueError(
            "This state went into an earlier update, which reuses its memory: use the state that the update returned, "
            "or begin again with init()."
        )


def by_run(recipe: Recipe, hparams: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The hparams of several runs as arrays, `choices.stack_runs`. Raises ValueError unless each run has exactly the
    names of `Recipe.all_hparams`."""
    names = recipe.all_hparams
    for run in hparams:
        if wrong := [*(set(names) ^ set(run))]:
            has = "lacks" if wrong[0] in names else "has"
            raise ValueError(f"A run {has} the hparam {wrong[0]!r}: give it Recipe.all_hparams, {', '.join(names)}.")
        check_hparams(run, recipe.choices)
    return stack_runs(recipe.choices, hparams)
