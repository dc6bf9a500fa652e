"""CPU seconds of the test suite against its budget: `make budget` runs both sets of tests, from an empty cache.

User and system seconds are counted, of pytest, its workers and every process that a test starts. The clock depends on
other work of the machine, and CPU seconds hardly do. The command fails if a test fails or a set is over its budget.
"""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from jaxmarl_llm.studies import catalogue

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".pytest_cache" / "budget"  # compiled programs of this command alone
SETS = {  # target of the Makefile: CPU seconds with STUDIES studies, and those for each study beyond them
    "test": (1_000, 3),
    "test-commands": (1_850, 3),
}
STUDIES = 76


def allowed(target: str, studies: int) -> int:
    """CPU seconds that a set of tests may take with so many studies."""
    seconds, more = SETS[target]
    return seconds + more * max(0, studies - STUDIES)


def measure(target: str) -> tuple[float, int]:
    """(CPU seconds of a target of the Makefile, its exit status)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    status = subprocess.run(["make", target], cwd=ROOT, env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(CACHE)})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, status.returncode


def main() -> int:
    """Runs both sets and prints a line for each; the exit status is 1 if one fails or takes too long."""
    studies, failed, lines = len(catalogue.find("experiments")), False, []
    shutil.rmtree(CACHE, ignore_errors=True)
    for target in SETS:
        (seconds, status), most = measure(target), allowed(target, studies)
        failed |= status != 0 or seconds > most
        verdict = "tests failed" if status else "over budget" if seconds > most else "within budget"
        lines.append(f"make {target}: {seconds:.0f} CPU seconds of {most} with {studies} studies, {verdict}")
    shutil.rmtree(CACHE, ignore_errors=True)
    print("\n".join(lines))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
