"""Settings of the test run, in the environment before jax is imported, so that subprocesses inherit them."""

import functools
import gc
import os
from importlib.metadata import version
from pathlib import Path

# Most of a test's time is compilation: unoptimised code takes two thirds of that time, without fusion emitters half.
flags = {"xla_force_host_platform_device_count": 8, "xla_backend_optimization_level": 0}
KNOWN = version("jaxlib").startswith("0.10.")
if KNOWN:  # a later jaxlib may not know these flags, and would end the process
    flags["xla_cpu_use_fusion_emitters"] = "false"
    flags["xla_cpu_parallel_codegen_split_count"] = 1  # programs are small: 32 parts of each cost a third more time
for flag, value in flags.items():
    if flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{flag}={value}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
gc.set_threshold(200_000, 50, 100)  # a program is traced into millions of short-lived objects
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
# Workers and subprocesses share compiled programs.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import jax  # noqa: E402
import pytest  # noqa: E402
from jax._src.interpreters import mlir  # noqa: E402

PROGRAMS: list[str] = []  # names of the programs that this process compiled or read from the cache, in turn


def remember_program(event: str, seconds: float, fun_name: str = "", **_: object) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        PROGRAMS.append(fun_name)


jax.monitoring.register_event_duration_secs_listener(remember_program)

new_context, shared_context = mlir.make_ir_context, functools.cache(mlir.make_ir_context)


def context() -> mlir.ir.Context:
    """The MLIR context of a program: one for all of a test module. A program that JAX runs while it lowers another one
    gets its own, because it would become part of the other."""
    shared = shared_context()
    return new_context() if mlir.ir.Context.current is shared else shared


if KNOWN:  # its internals
    mlir.make_ir_context = context  # to make a context for each program is a quarter of a small program's time
jax.devices()  # starts the backend: a command that a test calls in this process cannot change its devices

# A compiled program holds memory maps, and Linux kills a process that needs more than 65,530 of them. Other systems say
# nothing about maps, so that there every module forgets its programs.
MAPS, MOST_MAPS = Path("/proc/self/maps"), 40_000


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Forgets compiled programs when they are many; few are kept, as every module calls the same small operations."""
    yield
    shared_context.cache_clear()
    if not MAPS.exists() or MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


@pytest.fixture
def compiled_programs():
    """A function that lists the names of the programs compiled since the test began.

    Their number is the same on every machine, and a program from the cache counts as well.
    """
    before = len(PROGRAMS)
    return lambda: PROGRAMS[before:]
