"""Every command of the README and of the pages runs as it stands there, in a clone; training is cut to an update.

A slow test: SmolLM2 compiles for a minute in many of them.
"""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/howto").glob("*.md"))]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ELSEWHERE = {  # beginnings of commands that no test can run as they stand, and why
    "experiments mars --model Qwen/Qwen3-1.7B": "a model of the hub, on eight accelerators",
    "experiments small_model --model qwen3-1.7b": "a model of the hub, on an accelerator",
    "experiments prompts --data gsm8k_train.jsonl": "a model and data that are not here, on an accelerator",
    "experiments freeze mars": "mars is frozen; tests/studies/pages/test_history.py freezes a toy",
    "experiments mars --frozen": "the whole table; tests/studies/pages/test_history.py runs a toy's",
    "experiments publish runs/mars-frozen": "needs that table; tests/studies/pages/test_history.py publishes a toy's",
    "experiments.benchmarks": "minutes to half an hour, and torch",
}
TRAINED = "experiments/policies/exploitability-rloo-learner"
SCRIPT = r"""import re; exec(re.search("(?s)```python.(.*?)```", open("docs/howto/one_gpu.md").read())[1])"""
NEEDED = {  # what a command reads that an earlier line of its page, in Python or in words, made
    "runs/demo": "python -m experiments demo",
    "runs/other": "python -m experiments mars --arms centred --seeds 1 --updates 1 --out runs/other",
    "runs/debug": "python -m experiments mars --arms centred --seeds 1 --updates 1 --out runs/debug",
    "runs/exploitability-tiny": "python -m experiments exploitability --arms rloo --seeds 1 --updates 1",
    "runs/answer/me": f"mkdir -p runs/answer && cp -r {TRAINED} runs/answer/me",
    "runs/league/learner": f"mkdir -p runs/league && cp -r {TRAINED} runs/league/learner",
    "runs/self/learner": f"mkdir -p runs/self && cp -r {TRAINED} runs/self/learner",
    "runs/opponent": "python -m experiments exploitability --arms rloo --seeds 1 --updates 1 --out runs/opponent",
    "problems.jsonl": f"python -c '{SCRIPT}'",
    "./tiny-qwen3": f"python -c '{SCRIPT}'",
    "questions.jsonl": "for i in $(seq 50); do "
    r"""printf '{"prompt": "What is %d plus 2?", "answer": %d}\n' $i $((i + 2)); done > questions.jsonl""",
    "rewards:brief": r"printf 'def brief(completions):\n    return [1.0 for text in completions]\n' > rewards.py",
}
PLACEHOLDERS = {"NAME or silent": "kuhn_poker", "=DIR": "=runs/demo/naive-0/policies/learner"}
COMMAND = re.compile(r"((?:\b[A-Z_]+=\S+ )*)(?:\.venv/bin/)?python -m ([^`#\n]*)")
ANSWERS = "\n".join(["check", "call", *map(str, range(9))] * 50)  # to a game in which a command takes a seat
REFUSED = {"runs/nan": 3}  # a run whose page says how it ends: its exit status


def commands() -> list[tuple[str, str]]:
    """(variables before it, words after `python -m`) of every command of the texts, each once."""
    text = "\n".join(path.read_text() for path in TEXTS)
    return list(dict.fromkeys((variables, words.strip()) for variables, words in COMMAND.findall(text)))


def cut(words: str, number: int) -> str:
    """The words with one update in place of many, a directory of their own, and names in place of placeholders."""
    for placeholder, name in PLACEHOLDERS.items():
        words = words.replace(placeholder, name)
    if re.match(r"experiments (?!plan|pages|release|dialogues)\w", words) and not any(out in words for out in REFUSED):
        words = re.sub(r" --updates \d+", "", words) + " --updates 1"
        words += "" if "--out" in words else f" --out runs/{number}"
    return words


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone of what is committed, with the interpreter of this process as `python`."""
    folder = tmp_path_factory.mktemp("clone") / "project"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    return folder


def surroundings(clone: Path) -> dict[str, str]:
    """The environment of a user: eight simulated devices, none of the tests' compiler settings."""
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    return {**os.environ, **devices, "PYTHONPATH": str(clone), "PATH": binaries}


def answers(command: str, clone: Path, address: str) -> bool:
    """Whether a server that the command starts answers at the address within five minutes."""
    with subprocess.Popen(f"exec {command}", shell=True, cwd=clone, env=surroundings(clone)) as server:
        try:
            for _ in range(300):
                try:
                    with urllib.request.urlopen(address, timeout=5) as answer:
                        return answer.status == 200
                except (urllib.error.URLError, OSError):
                    assert server.poll() is None, command
                    time.sleep(1)
            return False
        finally:
            server.terminate()


@pytest.mark.parametrize("number", range(len(commands())), ids=lambda number: commands()[number][1])
def test_a_command_of_the_texts_runs(number, clone):
    variables, words = commands()[number]
    for beginning, reason in ELSEWHERE.items():
        if words.startswith(beginning):
            pytest.skip(reason)
    for path, made in NEEDED.items():
        if path in words and not (clone / path.replace("rewards:brief", "rewards.py")).exists():
            subprocess.run(made, shell=True, cwd=clone, env=surroundings(clone), check=True)
    command = f"{variables}python -m {cut(words, number)}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if words.startswith("jaxmarl_llm.serve"):
        named = command if len(words.split()) > 1 else f"{command} runs/demo"
        assert answers(f"{named} --port {port}", clone, f"http://127.0.0.1:{port}/v1/models")
    elif words.startswith("http.server"):
        assert answers(f"{command} {port}", clone, f"http://127.0.0.1:{port}/games.html")
    else:
        done = subprocess.run(
            command, shell=True, cwd=clone, env=surroundings(clone), input=ANSWERS, text=True, capture_output=True
        )
        status = next((status for out, status in REFUSED.items() if out in words), 0)
        assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
