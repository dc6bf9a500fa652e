"""Pages of two megabytes for what programs on a CPU write to, where Linux gives them to those who ask (`madvise`).

XLA takes a program's memory anew for every execution, and its first write to each page of 4 kB is a fault: 600,000 in a
step of SmolLM2 with 8 games. In pairs of processes on two cores, huge pages took 0.94 of the time of a step of SmolLM2,
0.95 and 0.99 of a decoded token of 1 and 8 rows, 0.85 to 1.02 of updates of four studies, and no more memory.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TUNABLES, ASKS = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"


def ask_for_huge() -> None:
    """Starts this process's command again, once, with glibc asking for them; what it has done is lost.

    Nothing happens where the kernel waits for no such request, with another C library, or if GLIBC_TUNABLES says
    already whether to ask: `glibc.malloc.hugetlb=0` keeps small pages.
    """
    given = os.environ.get(TUNABLES, "")
    with contextlib.suppress(OSError):  # no Linux, or a Python that cannot be started again
        if ASKS not in given and platform.libc_ver()[0] == "glibc" and "[madvise]" in ENABLED.read_text():
            asked = {TUNABLES: ":".join(filter(None, (given, f"{ASKS}=1")))}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | asked)
