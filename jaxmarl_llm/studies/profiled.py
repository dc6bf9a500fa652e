"""The option `--profile`: one update under JAX's profiler, and a table of its seconds by part."""

from __future__ import annotations

import time
from pathlib import Path

import jax
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxmarl_llm.devices import distributed, sharding
from jaxmarl_llm.runs.log import RunLog
from jaxmarl_llm.runs.profile import LOGGING, OTHER, STEP, breakdown, scopes
from jaxmarl_llm.training.trainer import Trainer

WARM = 3  # updates before the traced one


def profile(trainer: Trainer, out: Path, console: Console) -> dict[str, float]:
    """Traces an update into `out`/profile, prints its seconds by part, and returns {part of `profile.ROWS`: seconds}.

    The log is written after the update; training writes it while the next update runs. Raises ValueError for a trainer
    with a rollout mesh, which plays ahead.
    """
    if trainer.rollout_mesh is not None:
        raise ValueError("The profile is of a step that plays and learns in turn: leave out --rollout-mesh.")
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # the Python tracer slows down the host
    with (
        distributed.output_directory(out) as directory,
        RunLog(home := directory / "profile", trainer.seeds, {}) as log,
        sharding.use(trainer.mesh),
    ):
        log.truncate(0)
        with console.status("Setting up"):
            state = trainer.init()
            # without it, the cache may return a program from before the scopes were named
            jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
            advance = trainer.lower_update().compile()

        def step(number: int, state: dict) -> dict:
            with jax.profiler.TraceAnnotation(STEP):
                state, metrics = jax.block_until_ready(trainer.update(state, number))
                with jax.profiler.TraceAnnotation(LOGGING):
                    log.scalars(number, jax.device_get(metrics))
            return state

        for number in range(WARM):
            began = time.perf_counter()
            state = step(number, state)
        untraced = time.perf_counter() - began
        with jax.profiler.trace(str(home), profiler_options=options):
            step(WARM, state)
        text = advance.as_text()
        assert text is not None  # XLA's programs have one
        spent = breakdown(home, scopes(text))
    wall = sum(spent.values())
    table = Table(title=f"One update; without the trace {untraced:.4f} s", show_footer=True)
    table.add_column("", footer="wall time")
    table.add_column("seconds", footer=f"{wall:.4f}", justify="right")
    table.add_column("share", footer="100%", justify="right")
    for name, seconds in spent.items():
        table.add_row(name, f"{seconds:.4f}", f"{seconds / wall:.1%}")
    console.print(table)
    if jax.default_backend() == "gpu" and spent[OTHER] > wall / 2:
        console.print("Operations in command buffers have no name: set XLA_FLAGS=--xla_gpu_enable_command_buffer=")
    console.print(f"The trace, for TensorBoard with its profile plugin: {escape(str(home))}")
    return spent
