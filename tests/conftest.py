"""Settings of the test run, in the environment before jax is imported, so that subprocesses inherit them."""

import os
from importlib.metadata import version
from pathlib import Path

# Most of a test's time is compilation: code that is not polished takes two thirds of it, without fusion emitters half.
flags = {"xla_force_host_platform_device_count": 8, "xla_backend_optimization_level": 0}
if version("jaxlib").startswith("0.10."):  # later ones do not know the flag, and end the process
    flags["xla_cpu_use_fusion_emitters"] = "false"
for flag, value in flags.items():
    if flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{flag}={value}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
# Subprocesses compile what the test before them has compiled.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.devices()  # begun: a command that a test calls in this process leaves its devices as they are


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """A compiled program holds memory maps, of which a process may have 65,530: with all tests' it dies."""
    yield
    jax.clear_caches()
