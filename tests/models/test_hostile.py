"""Damaged and hostile files: refused in a sentence or loaded as they were; none hangs, runs code or half-converts.

The cases, and what of them must be refused, stand in tests/support/hostile.py.

The long cases damage each kind of file a dozen times; tests of each format refuse the commonest damages.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hostile import KINDS

pytest.importorskip("gguf")
ROOT = Path(__file__).parents[2]
ALL_OR_NOTHING = ("safetensors", "index", "cache", "gguf", "tables")  # damage here never makes another model


@pytest.mark.parametrize(
    "kinds, count",
    [
        pytest.param([*KINDS], 12, id="all kinds", marks=pytest.mark.long),  # the process takes longer than its cases
        *(pytest.param([kind], 150, id=kind, marks=pytest.mark.slow) for kind in KINDS),
    ],
)
def test_hostile_files_are_refused_in_a_sentence_or_load_as_they_were(tmp_path, kinds, count):
    home = tmp_path / "h"
    command = [sys.executable, "-m", "tests.support.hostile", ",".join(kinds), "0", str(count), str(home)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    for kind in kinds:
        of_kind = [case for case in cases if case["kind"] == kind]
        assert len(of_kind) == count and sum(case["must"] for case in of_kind) > count // 5
    for case in cases:
        possible = {"refused"} if case["must"] else {"refused", "same"}
        if not case["must"] and case["kind"] not in ALL_OR_NOTHING:
            possible.add("other")  # another value that may stand there
        assert case["outcome"] in possible, case
        if case["outcome"] == "refused":
            assert len(case["text"]) <= 500 and "\n" not in case["text"] and str(home) in case["text"], case
            assert case["text"].endswith("."), case
