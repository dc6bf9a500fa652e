"""A run with a ring, a critic, branches or carried state is killed, and ends with the bits of one that was not."""

import json
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

RUNS = {"imitate_success": "from_the_start", "archer": "archer", "branching": "aepo", "corridor": "schedule"}


@pytest.mark.slow
@pytest.mark.parametrize("study", RUNS)
def test_faults_a_killed_run_goes_on_with_what_it_had_kept(study, tmp_path):
    """imitate_success's ring holds five updates: at the end it is full, of batches from before and after the kill."""
    found, arm = [], RUNS[study]
    given = [study, "--arms", arm, "--seeds", "1", "--updates", "14", "--checkpoint-every", "2"]
    for out, kill in ((tmp_path / "one", False), (tmp_path / "other", True)):
        command = [sys.executable, "-m", "experiments", *given, "--out", str(out)]
        if kill:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            metrics, until = out / arm / "metrics.jsonl", time.monotonic() + 300
            while not (metrics.exists() and metrics.read_text().count("\n") >= 7) and time.monotonic() < until:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL and not (out / "results.json").exists()
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        state = ocp.load(out / "checkpoints" / arm / "14" / "state")
        found.append((jax.tree.leaves(state), json.loads((out / "results.json").read_text())["arms"]))
    (one, table), (other, same) = found
    assert table == same and len(one) > 30
    for x, y in zip(one, other, strict=True):
        np.testing.assert_array_equal(x, y)
