"""Cores that a process may use: its affinity, and the quotas of its control groups in a tree of files made for it.

The long case multiplies in processes of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxmarl_llm.devices import surroundings
from jaxmarl_llm.devices.surroundings import usable_cores

ROOT = Path(__file__).parents[2]
V1 = "33 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct"
MEMORY = "34 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
V2 = "35 31 0:33 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
UNIFIED = "36 31 0:34 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
CONTAINER = "37 31 0:35 /docker/abc /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"
PERIOD = "/cpu.cfs_period_us"
QUOTA = "/cpu.cfs_quota_us"


def tree(root: Path, groups: str, mounts: list[str], files: dict[str, str]) -> Path:
    """A directory with `proc` and `sys` of such a process."""
    own = {"proc/self/cgroup": groups, "proc/self/mountinfo": "\n".join(mounts) + "\n"}
    for name, content in (own | {f"sys/fs/cgroup{name}": content for name, content in files.items()}).items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return root


CASES = {
    "no control groups": ("", [], {}, 64),
    "version 2, two cores": ("0::/job\n", [V2], {"/job/cpu.max": "200000 100000\n"}, 2),
    "version 2, no quota": ("0::/job\n", [V2], {"/job/cpu.max": "max 100000\n"}, 64),
    "version 2, the group around it has less": (
        "0::/slice/job/step\n",
        [V2],
        {
            "/slice/cpu.max": "300000 100000",
            "/slice/job/cpu.max": "max 100000",
            "/slice/job/step/cpu.max": "800000 100000",
        },
        3,
    ),
    "version 2, a core and a half": ("0::/\n", [V2], {"/cpu.max": "150000 100000\n"}, 1),
    "version 2, half a core": ("0::/\n", [V2], {"/cpu.max": "50000 100000\n"}, 1),
    "version 2, another period": ("0::/\n", [V2], {"/cpu.max": "40000 10000\n"}, 4),
    "version 1, four cores": (
        "5:memory:/other\n4:cpu,cpuacct:/slurm/job\n0::/\n",
        [MEMORY, V1, UNIFIED],
        {f"/cpu,cpuacct/slurm/job{QUOTA}": "400000\n", f"/cpu,cpuacct/slurm/job{PERIOD}": "100000\n"},
        4,
    ),
    "version 1, no quota": (
        "4:cpu,cpuacct:/job\n",
        [V1],
        {f"/cpu,cpuacct/job{QUOTA}": "-1\n", f"/cpu,cpuacct/job{PERIOD}": "100000\n"},
        64,
    ),
    "version 1, the group around it has less": (
        "4:cpu,cpuacct:/slurm/job\n",
        [V1],
        {
            f"/cpu,cpuacct/slurm{QUOTA}": "250000",
            f"/cpu,cpuacct/slurm{PERIOD}": "100000",
            f"/cpu,cpuacct/slurm/job{QUOTA}": "900000",
            f"/cpu,cpuacct/slurm/job{PERIOD}": "100000",
        },
        2,
    ),
    "version 1, in a container that sees its own groups alone": (
        "4:cpu:/docker/abc/inner\n",
        [CONTAINER],
        {
            f"/cpu/inner{QUOTA}": "300000",
            f"/cpu/inner{PERIOD}": "100000",
            f"/cpu{QUOTA}": "-1",
            f"/cpu{PERIOD}": "100000",
        },
        3,
    ),
    "a namespace in which the group is elsewhere": ("0::/../other\n", [V2], {"/cpu.max": "200000 100000"}, 2),
    "a damaged file": ("0::/\n", [V2], {"/cpu.max": "much\n"}, 64),
    "more than there are": ("0::/\n", [V2], {"/cpu.max": "9900000 100000\n"}, 64),
}


@pytest.mark.parametrize("case", CASES)
def test_the_smallest_quota_of_all_control_groups_holds(case, tmp_path, monkeypatch):
    groups, mounts, files, cores = CASES[case]
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)
    assert usable_cores(tree(tmp_path, groups, mounts, files)) == cores


def test_affinity_holds_where_it_is_less_than_the_quota(tmp_path, monkeypatch):
    root = tree(tmp_path, "0::/\n", [V2], {"/cpu.max": "600000 100000\n"})
    for given, cores in ((1, 1), (4, 4), (8, 6)):
        monkeypatch.setattr("os.sched_getaffinity", lambda process, n=given: set(range(n)), raising=False)
        assert usable_cores(root) == cores


def probe(code):
    """The output of a process that writes nothing to stderr."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=100)
    assert done.stderr == ""
    return done.stdout


PRODUCT = """
import hashlib, os
os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:{0}]))
import jax
from jaxmarl_llm.devices import distributed
distributed.use_cores({1})
a, b = (jax.random.normal(jax.random.key(seed), (5000, 64)) for seed in (1, 2))
print(hashlib.sha256(jax.device_get(jax.jit(lambda a, b: a.T @ b)(a, b)).tobytes()).hexdigest())
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_a_large_product_has_the_same_bits_on_one_core_as_on_two(monkeypatch):
    if usable_cores() < 2:
        pytest.skip("fewer than two cores")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    digests = {probe(PRODUCT.format(cores, most)) for cores, most in ((1, None), (2, None), (2, 1), (64, 2))}
    assert len(digests) == 1


PROBE = """
import os
os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:{0}]))
import jax
from jaxmarl_llm.devices import distributed, sharding, surroundings
distributed.use_cores()
print(surroundings.usable_cores(), jax.device_count(), len(sharding.cores(4)))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
@pytest.mark.parametrize(("cores", "said"), [(1, "1 1 0"), (2, "2 2 2")])
def test_a_process_has_a_device_for_each_core_that_it_may_use(cores, said, monkeypatch):
    if usable_cores() < cores:
        pytest.skip(f"fewer than {cores} cores")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert probe(PROBE.format(cores)) == said + "\n"


@pytest.mark.parametrize("option", surroundings.NUMBERS)
def test_options_that_decide_about_numbers_stand_as_they_were(option, monkeypatch, capsys):
    former = getattr(jax.config, option)
    other = {"jax_numpy_dtype_promotion": "strict", "jax_default_prng_impl": "rbg"}.get(option, not former)
    monkeypatch.setattr(sys, "argv", ["command"])
    jax.config.update(option, other)
    try:
        surroundings.settle()
        assert getattr(jax.config, option) == former
    finally:
        jax.config.update(option, former)
    assert f"{option.upper()} is {other} in the environment: this command takes {former}" in capsys.readouterr().err


@pytest.mark.parametrize("option", surroundings.BREAKING)
def test_a_script_with_an_option_that_breaks_programs_is_told_so(option):
    former = getattr(jax.config, option)
    jax.config.update(option, "strict" if isinstance(former, str) else not former)
    try:
        with pytest.raises(ValueError, match=f"{option} is .*: call jax.config.update"):
            surroundings.check_numbers()
    finally:
        jax.config.update(option, former)
