"""Several processes on loopback run one program: as one process would, and again after one of them was killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from jaxmarl_llm.devices import distributed, surroundings
from jaxmarl_llm.studies.cli import STOPPED

ROOT = Path(__file__).parents[2]
# The cheapest study with an evaluation on the host: no warm start, games of three turns.
RUN = "rloo"
COMMAND = ["exploitability", "--seeds", "1", "--mesh", "data=2,fsdp=2", "--groups", "4", "--group-size", "4"]
COMMAND += ["--layers", "1"]
COMMAND += ["--checkpoint-every", "1", "--keep.last", "10"]


def start(out: Path, processes: int, updates: tuple[int, ...] = (6,) * 4) -> list[subprocess.Popen]:
    """A command over four devices, divided among so many processes; one alone is started as on a laptop."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = re.sub(r"(platform_device_count)=\d+", rf"\1={4 // processes}", os.environ["XLA_FLAGS"])
    several = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": str(processes)}
    command = [sys.executable, "-m", "experiments", *COMMAND, "--out", str(out), "--updates"]
    return [
        subprocess.Popen(
            [*command, str(updates[i])],
            cwd=ROOT,
            env={**os.environ, "XLA_FLAGS": flags, **(several | {"JAX_PROCESS_ID": str(i)} if processes > 1 else {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]


def end(running: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """(exit code, what it said) of each."""
    said = [process.communicate(timeout=600)[1] for process in running]
    return [(process.returncode, text) for process, text in zip(running, said, strict=True)]


def run(out: Path, processes: int) -> Path:
    for code, said in end(start(out, processes)):
        assert code == 0, said
    return out


def curve(out: Path, name: str) -> list[float]:
    return [json.loads(line)[name] for line in (out / RUN / "metrics.jsonl").read_text().splitlines()]


def leaves(out: Path) -> dict[str, np.ndarray]:
    """Of the last checkpoint, by path, read onto one device."""
    saved, here = out / "checkpoints" / RUN / "6" / "state", jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here)
    example = jax.tree.map(abstract, ocp.metadata(saved).metadata)
    found = jax.tree.leaves_with_path(ocp.load(saved, example))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(x) for path, x in found}


def assert_same_bits(one: Path, other: Path) -> None:
    first, second = leaves(one), leaves(other)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return run(tmp_path_factory.mktemp("hosts") / "two", 2)


@pytest.mark.parametrize(
    "processes", [pytest.param(1, marks=pytest.mark.commands), pytest.param(4, marks=pytest.mark.slow)]
)
def test_the_number_of_processes_changes_nothing(tmp_path, two, processes):
    other = run(tmp_path / "other", processes)
    for name in ("return", "loss", "entropy/learner", "gradient_norm/learner"):
        assert curve(other, name) == curve(two, name)
    for name in ("before.json", "after.json"):
        assert (other / RUN / name).read_text() == (two / RUN / name).read_text()
    assert_same_bits(other, two)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_faults_one_killed_in_mid_step_ends_the_others_and_the_restart_equals_an_unbroken_run(tmp_path, two, victim):
    running = start(tmp_path / "broken", 2)
    deadline = time.monotonic() + 500
    while not (tmp_path / "broken" / "checkpoints" / RUN / "2").exists():
        assert time.monotonic() < deadline and running[0].poll() is None
        time.sleep(0.05)
    killed = time.monotonic()
    running[victim].send_signal(signal.SIGKILL)
    (code, said), (code_of_victim, _) = (end(running)[i] for i in (1 - victim, victim))
    assert code_of_victim == -signal.SIGKILL and code != 0
    assert time.monotonic() - killed < distributed.HEARTBEAT + 30
    assert "resumes from the last checkpoint" in said
    assert "another task died" in said or "Another process died" in said  # JAX's words, or ours if a collective failed
    run(tmp_path / "broken", 2)
    assert curve(tmp_path / "broken", "loss") == curve(two, "loss")
    assert_same_bits(tmp_path / "broken", two)


@pytest.mark.slow
def test_a_signal_to_one_stops_all_at_the_same_step(tmp_path, two):
    running = start(tmp_path / "broken", 2)
    while not (tmp_path / "broken" / "checkpoints" / RUN / "1").exists():
        assert running[0].poll() is None
        time.sleep(0.05)
    running[1].send_signal(signal.SIGTERM)
    assert [code for code, _ in end(running)] == [STOPPED, STOPPED]
    ended = json.loads((tmp_path / "broken" / RUN / "run.json").read_text())["ended"]
    assert ended["reason"] == "stopped" and ended["steps"] < 6
    run(tmp_path / "broken", 2)
    assert_same_bits(tmp_path / "broken", two)


REQUEUED = """#!/usr/bin/env bash
echo "$@" >> {told}
exit {code}
"""


@pytest.mark.parametrize("code", [0, 2, STOPPED, 128 + signal.SIGTERM])
def test_a_job_of_slurm_that_was_told_to_end_is_queued_again(tmp_path, code):
    for name, own in (("srun", code), ("scontrol", 0)):
        (tmp_path / name).write_text(REQUEUED.format(told=tmp_path / f"{name}.txt", code=own))
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["experiments/clusters/slurm.sh", "mars", "--seeds", "1"], cwd=ROOT, env=environment)
    assert done.returncode == code
    assert (tmp_path / "srun.txt").read_text().endswith("-m experiments mars --seeds 1\n")
    told = tmp_path / "scontrol.txt"
    assert (told.read_text() if told.exists() else "") == "requeue 7\n" * (code > 3)


def test_variables_that_do_not_belong_together_are_refused(monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    for count, number in (("", "0"), ("2", ""), ("2", "2"), ("two", "0")):
        monkeypatch.setenv("JAX_NUM_PROCESSES", count)
        monkeypatch.setenv("JAX_PROCESS_ID", number)
        with pytest.raises(ValueError, match="JAX_NUM_PROCESSES must be a number, and JAX_PROCESS_ID"):
            distributed.initialize()
    monkeypatch.setenv("JAX_NUM_PROCESSES", "1")
    for address in ("", "127.0.0.1", "127.0.0.1:port", ":1"):
        monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", address)
        with pytest.raises(ValueError, match="host:port"):
            distributed.initialize()


@pytest.mark.commands
def test_processes_with_different_arguments_end_with_a_sentence(tmp_path):
    first, second = start(tmp_path, 2, updates=(6, 7))
    for code, said in end([first, second]):
        assert code == 2 and said.strip().splitlines()[-1].endswith("start all with the same command."), said


PROBE = """
import jax
from jaxmarl_llm.devices import distributed, sharding
distributed.initialize()
distributed.use_cores()
sharding.mesh(f"data={jax.device_count()}")
print(jax.process_count(), jax.device_count(), jax.distributed.is_initialized())
distributed.exit_all(1)
"""


@pytest.mark.parametrize("devices, joined", [(1, False), (2, True), (distributed.SIMULATED + 1, False)])
def test_a_process_alone_joins_nobody_but_for_simulated_devices_and_has_one_a_core(devices, joined):
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    environment["http_proxy"] = "http://127.0.0.1:9"  # where nobody is
    environment.pop("no_grpc_proxy", None)  # set by a command that a test called in this process
    command = [sys.executable, "-c", PROBE]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    here = surroundings.usable_cores() if devices == 1 else devices
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"1 {here} {joined}\n")


def test_a_process_alone_does_without_a_name_and_without_stdout():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    nameless = "import socket; socket.gethostname = lambda: 'nobody.invalid'\n" + PROBE
    command = [sys.executable, "-c", nameless]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "1 2 False\n")
    closed = ["bash", "-c", '"$0" -c "$1" >&-', sys.executable, PROBE]
    done = subprocess.run(closed, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


LATE = """
import time
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxmarl_llm.devices import distributed, sharding
distributed.initialize()
mesh = sharding.mesh("data=2,fsdp=2")

@jax.jit
def spend(work):
    return jax.lax.fori_loop(0, work, lambda _, x: jnp.tanh(x @ x), jnp.eye(512)).sum().astype(int)

spend(0).block_until_ready()
began = time.monotonic()
spend(1000).block_until_ready()
work = int(60_000 / (time.monotonic() - began))  # for 60 seconds

@jax.jit
@jax.shard_map(mesh=mesh, in_specs=(), out_specs=PartitionSpec(), check_vma=False)
def add():
    own = jax.lax.axis_index(sharding.ROWS)
    return jax.lax.psum(own + jnp.minimum(spend(jnp.where(own == 1, work, 0)), 0), sharding.ROWS)

print(add())
"""


@pytest.mark.slow
def test_a_device_may_come_late_to_a_sum():
    """Later than Gloo waits for a first meeting (30 seconds), and XLA without it for any (40)."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    command = [sys.executable, "-c", LATE]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr
    assert time.monotonic() - began > 45


def test_one_process_leads_and_agrees_with_itself(tmp_path):
    assert (
        distributed.is_main_process()
        and distributed.any_process(True)
        and not distributed.any_process(False)
        and distributed.broadcast([3, 4]).tolist() == [3, 4]
    )
    with distributed.output_directory(tmp_path) as home:
        assert home == tmp_path
    distributed.initialize()
    distributed.exit_all(1)


SRUN = """#!/usr/bin/env bash
shift  # --kill-on-bad-exit
for i in 0 1; do
  SLURM_JOB_ID={job} SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 \\
    SLURM_PROCID=$i SLURM_LOCALID=$i "$@" & pids[$i]=$!
done
for pid in "${{pids[@]}}"; do wait $pid || exit 1; done
"""


@pytest.mark.slow
def test_the_recipe_for_slurm_runs(tmp_path):
    """With an srun that starts two processes here, as SLURM's own would."""
    srun = tmp_path / "srun"
    srun.write_text(SRUN.format(job=os.getpid()))
    srun.chmod(0o755)
    command = ["experiments/clusters/slurm.sh", "mars", "--arms", "centred", "--seeds", "1", "--updates", "2"]
    flags = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "XLA_FLAGS": flags,
        "PYTHON": sys.executable,
    }
    done = subprocess.run(
        [*command, "--mesh", "data=2", "--out", str(tmp_path / "out")],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Process 1 of 2" in done.stderr and done.stdout.count("Claim about a whole run, not tested by this run") == 1
    assert json.loads((tmp_path / "out" / "results.json").read_text())["updates"] == 2


def test_the_recipe_for_kubernetes_names_what_processes_read():
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all((ROOT / "experiments" / "clusters" / "kubernetes.yaml").read_text())
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    named = {variable["name"]: variable["value"] for variable in pod["containers"][0]["env"]}
    host, port = named["JAX_COORDINATOR_ADDRESS"].split(":")
    assert host == f"{job['metadata']['name']}-0.{service['metadata']['name']}" and int(port) > 1023
    assert pod["subdomain"] == service["metadata"]["name"]
    assert spec["completionMode"] == "Indexed" and int(named["JAX_NUM_PROCESSES"]) == spec["completions"]
    assert spec["parallelism"] == spec["completions"]  # or some would wait for others that never start
    hopeless = spec["podFailurePolicy"]["rules"][0]
    assert pod["restartPolicy"] == "Never"  # as the policy asks
    assert hopeless["onExitCodes"]["containerName"] == pod["containers"][0]["name"]
    assert hopeless["action"] == "FailJob" and STOPPED not in hopeless["onExitCodes"]["values"]
