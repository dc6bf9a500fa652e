"""The environment of a command: encodings of file names, a home directory, CPU cores, options of JAX."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

NUMBERS = {  # options of JAX that change numbers, with the values of all code and all results
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
}
# Programs are traced into millions of objects that live on. Python's own thresholds walk over them again and again:
# a study of two seeds and six updates takes 33 seconds of processor time with those and 30 with these.
COLLECTED = (50_000, 10, 10)
BREAKING = ("jax_enable_x64", "jax_numpy_dtype_promotion")  # with other values programs cannot be traced


def settle() -> None:
    """Makes a command independent of its environment, and reports changes on stderr. Call it before any computation.

    Options of JAX that change numbers get the values of `NUMBERS`, whatever the environment says. A user without a home
    directory gets a temporary one, because libraries keep caches and settings there. Garbage is collected seldom.

    Raises ValueError if an argument or the directory's name is no text: libraries in C++ and Rust cannot open it.
    Raises OSError if no temporary directory can be made.
    """
    for word in (*sys.argv[1:], os.getcwd()):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{word} is no text in the encoding of this system, {sys.getfilesystemencoding()}: set PYTHONUTF8=1, "
                "or give another name."
            ) from None
    gc.set_threshold(*COLLECTED)
    for option, value in NUMBERS.items():
        if (given := getattr(jax.config, option)) != value:
            jax.config.update(option, value)
            print(f"{option.upper()} is {given} in the environment: this command takes {value}.", file=sys.stderr)
    try:
        Path.home()
    except RuntimeError:
        home = tempfile.TemporaryDirectory(prefix="jaxmarl_llm-")
        atexit.register(home.cleanup)
        os.environ["HOME"] = home.name
        print(
            f"This user has no home directory: {home.name} serves until the end; HOME names another.", file=sys.stderr
        )


def run_command(main: Callable[[], object]) -> None:
    """Runs a command in settled surroundings. An error is one sentence and exit status 2, an interruption is 130."""
    try:
        settle()
        check_devices()
        main()
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def check_numbers() -> None:
    """Raises ValueError for an option of JAX with which no program can be traced.

    A script that does not call `settle` chooses these options itself.
    """
    for option in BREAKING:
        if (given := getattr(jax.config, option)) != NUMBERS[option]:
            raise ValueError(
                f"{option} is {given}, and policies are computed with {NUMBERS[option]}: call "
                f"jax.config.update({option!r}, {NUMBERS[option]!r}) first."
            )


def check_devices() -> None:
    """Raises ValueError if JAX cannot start the platforms that JAX_PLATFORMS names."""
    try:
        jax.default_backend()
    except (RuntimeError, AssertionError) as error:
        asked = jax.config.jax_platforms  # type: ignore[attr-defined]
        why = " ".join(str(error).split()) or "it is not installed"
        raise ValueError(
            f"JAX cannot start JAX_PLATFORMS={asked}, name one that is here, such as cpu: {why}."
        ) from None


def usable_cores(root: Path = Path("/")) -> int:
    """The number of cores that this process may use: the cores of its affinity, limited by its quota of CPU time.

    `taskset`, SLURM and cpusets set the affinity. The quota is the smallest among the process's control group and the
    groups around it, in cores, rounded down but at least 1. With 1.5 cores two devices would stop in every period and
    wait for each other. `root` is the directory of `proc` and `sys`.
    https://docs.kernel.org/admin-guide/cgroup-v2.html
    """
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([here, *map(int, _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """The CPU quotas, in cores, of this process's control groups; none on a system without control groups."""
    groups: dict[str, str] = {}  # {type of file system: path of this process's group}
    mounts: list[list[str]] = []
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0" or "cpu" in controllers.split(","):
                groups["cgroup2" if number == "0" else "cgroup"] = path
        lines = (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        mounts = [line.split() for line in lines if " - " in line]
    for mount in mounts:
        kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
        if kind not in groups or (kind == "cgroup" and "cpu" not in options):
            continue
        top, inside = Path(mount[3]), Path(groups[kind])  # in a container only groups below `top` are visible
        inside = inside.relative_to(top) if inside.is_relative_to(top) else Path()
        for group in (inside, *inside.parents):
            yield from _quota(root / mount[4].lstrip("/") / group)


def _quota(group: Path) -> Iterator[float]:
    """The quota of a control group, if it has one."""
    with contextlib.suppress(OSError, ValueError):  # no such file; "max", no quota
        quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        yield int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota, period = ((group / f"cpu.cfs_{x}_us").read_text(encoding="utf-8") for x in ("quota", "period"))
        if int(quota) > 0:  # -1: none
            yield int(quota) / int(period)
