"""Several processes that run one program with JAX's distributed runtime: start, agreement, files written once."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import tempfile
import traceback
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import ArrayLike

from jaxmarl_llm.devices import surroundings

UNKNOWN = 70  # the exit code after an unexpected error
HEARTBEAT = 30  # seconds without a message after which a process counts as dead and all others end
NEVER = 10**6  # seconds; a single process may be silent while a laptop sleeps
SIMULATED = 8  # the limit of devices that a single process connects: open files grow with its square, up to 1,024


def initialize() -> None:
    """Joins the other processes of this run, if there are any. Call it before any computation.

    SLURM and Open MPI describe the processes themselves. Otherwise three variables do: JAX_COORDINATOR_ADDRESS
    (host:port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID, or JOB_COMPLETION_INDEX in a Kubernetes job. After
    the death of a process JAX ends the others within HEARTBEAT seconds. Raises ValueError for variables that contradict
    each other.

    A single process with 2 to SIMULATED simulated devices initializes as process 0 of 1. Its devices then add in the
    same order as several processes and compute the same bits. It does not if jax has already started (a notebook), if
    the machine has no name or is not Linux, or if stdout is closed; the order may then differ.
    """
    named = "JAX_COORDINATOR_ADDRESS" in os.environ
    tasks = max(int(os.environ.get(name, 1)) for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"))
    if jax.distributed.is_initialized():
        return
    if not (named or tasks > 1):
        if 1 < _simulated_devices() <= SIMULATED and sys.platform == "linux" and sys.stdout is not None:
            _join_alone()
        return
    jax.config.update("jax_enable_preemption_service", False)  # the service would take SIGTERM from `train`
    where: dict[str, str | int] = {}
    if named:
        number = os.environ.get("JAX_PROCESS_ID", os.environ.get("JOB_COMPLETION_INDEX", ""))
        count = os.environ.get("JAX_NUM_PROCESSES", "")
        if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
            raise ValueError(
                "JAX_COORDINATOR_ADDRESS is set, so JAX_NUM_PROCESSES must be a number, and JAX_PROCESS_ID (or "
                f"JOB_COMPLETION_INDEX) one below it, got {count!r} and {number!r}."
            )
        address = os.environ["JAX_COORDINATOR_ADDRESS"]
        if not re.fullmatch(r".+:\d{1,5}", address):
            raise ValueError(f"JAX_COORDINATOR_ADDRESS is written as host:port, got {address!r}.")
        where = {"coordinator_address": address, "num_processes": int(count), "process_id": int(number)}
    jax.distributed.initialize(**where, heartbeat_timeout_seconds=HEARTBEAT)  # type: ignore[arg-type]
    with mute_stdout():
        any_process(False)
    print(
        f"Process {jax.process_index()} of {jax.process_count()}, {jax.local_device_count()} devices here. If another "
        f"one dies, this one ends within {HEARTBEAT} seconds; the same command resumes from the last checkpoint.",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def _join_alone() -> None:
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_check_proxy_envs", False)
    os.environ["no_grpc_proxy"] = "127.0.0.1"  # noqa: SIM112 - else a proxy is asked for this machine
    with contextlib.suppress(OSError, RuntimeError):  # the machine has no name; jax has started
        socket.getaddrinfo(socket.gethostname(), None)  # Gloo looks it up too
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            here = f"127.0.0.1:{free.getsockname()[1]}"
        jax.distributed.initialize(
            here, 1, 0, cluster_detection_method="deactivate", coordinator_bind_address=here,
            heartbeat_timeout_seconds=NEVER,
        )  # fmt: skip


def use_cores(limit: int | None = None) -> None:
    """Gives this process a CPU device for each core it may use, at most `limit`, so that devices can share runs
    (`sharding.cores`).

    XLA gets as many threads as devices, on a single core two (PJRT_NPROC). Their number decides how XLA cuts up large
    matrix products, and so their rounding. One core and two give the same bits.

    Call it before any computation. It does nothing if several devices are simulated or several processes run.
    """
    if _simulated_devices() == 1 and not jax.distributed.is_initialized():
        cores = min(surroundings.usable_cores(), limit or sys.maxsize)
        with contextlib.suppress(RuntimeError):  # jax has started
            jax.config.update("jax_num_cpu_devices", cores)
            os.environ["PJRT_NPROC"] = str(max(2, cores))


def _simulated_devices() -> int:
    """The number of CPU devices that the flags of this process simulate."""
    flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return max(jax.config.jax_num_cpu_devices, int(flag[1]) if flag else 1)  # type: ignore[attr-defined]


@contextlib.contextmanager
def mute_stdout() -> Iterator[None]:
    """A context without stdout: Gloo, which adds over processes on CPUs, writes a line per device."""
    if sys.stdout is None:  # closed; its number may belong to another file
        yield
        return
    stdout = os.dup(1)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def is_main_process() -> bool:
    """True in the only process that writes logs, results and records."""
    return jax.process_index() == 0


@contextlib.contextmanager
def output_directory(directory: Path) -> Iterator[Path]:
    """The directory in the main process; in other processes a temporary directory, deleted afterwards."""
    if is_main_process():
        yield directory
    else:
        with tempfile.TemporaryDirectory() as other:
            yield Path(other)


def any_process(flag: bool) -> bool:
    """True if the flag is true in any process. Waits for all processes and for their devices."""
    return flag if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.array(flag)).any())


def check_same(words: list[str]) -> None:
    """Raises ValueError in every process unless all have the same words, without which some would wait for ever."""
    checksum = zlib.crc32("\0".join(words).encode())
    if jax.process_count() > 1 and len(set(multihost_utils.process_allgather(np.uint32(checksum)).tolist())) > 1:
        raise ValueError("The processes of this run were given different arguments: start all with the same command.")


def broadcast(numbers: ArrayLike) -> np.ndarray:
    """The main process's numbers, int32, in every process."""
    array = np.asarray(numbers, np.int32)
    return array if jax.process_count() == 1 else np.asarray(multihost_utils.broadcast_one_to_all(array))


def agree(numbers: Sequence[int]) -> tuple[int, ...]:
    """The main process's whole numbers, of any count, in every process."""
    length = int(broadcast(len(numbers)))
    return tuple(broadcast([*numbers, *[0] * length][:length]).tolist())


def exit_all(code: int) -> None:
    """Ends this process at once if it is one of several; JAX then ends the others, which may be waiting for it."""
    several = False
    with contextlib.suppress(RuntimeError, AssertionError):  # JAX could not start
        several = jax.distributed.is_initialized() and jax.process_count() > 1
    if several:
        if code == UNKNOWN:
            traceback.print_exc()
        if code in (1, UNKNOWN):  # 1: a file could not be written, maybe because another process died
            print("Another process died, or this one failed: the same command resumes from the last checkpoint.",
                  file=sys.stderr)  # fmt: skip
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
