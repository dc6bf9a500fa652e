"""A process that starts itself again, once, with huge pages asked for."""

import json
import os
import subprocess
import sys

import pytest

from jaxmarl_llm.devices import pages

PROGRAM = """
import json, os, sys
from pathlib import Path
from jaxmarl_llm.devices import pages
pages.ENABLED = Path(sys.argv[2])
print("began", flush=True)
pages.ask_for_huge()
print(json.dumps([os.environ.get(pages.TUNABLES), sys.argv[1:], sys.flags.dev_mode, "jax" in sys.modules]))
"""


@pytest.mark.parametrize(
    ("kernel", "given", "ends_as", "starts"),
    [
        ("always [madvise] never", None, "glibc.malloc.hugetlb=1", 2),
        ("always [madvise] never", "glibc.malloc.check=0", "glibc.malloc.check=0:glibc.malloc.hugetlb=1", 2),
        ("always [madvise] never", "glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0", 1),
        ("[always] madvise never", None, None, 1),
        ("", None, None, 1),  # no such file
    ],
)
def test_a_command_starts_again_once_and_as_it_was_given(tmp_path, kernel, given, ends_as, starts):
    if sys.platform != "linux":
        pytest.skip("glibc is Linux's")
    (program := tmp_path / "program.py").write_text(PROGRAM)
    (enabled := tmp_path / "enabled").write_text(kernel)
    if not kernel:
        enabled.unlink()
    environment = {name: value for name, value in os.environ.items() if name != pages.TUNABLES}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | ({pages.TUNABLES: given} if given else {})
    command = [sys.executable, "-X", "dev", "-W", "ignore", str(program), "a b", str(enabled)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    *began, last = ran.stdout.splitlines()
    assert began == ["began"] * starts
    assert json.loads(last) == [ends_as, ["a b", str(enabled)], True, False]
