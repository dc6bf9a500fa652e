"""The wheel and the workflows: what a user installs without a clone, and what a public repository runs."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jaxmarl_llm"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def build(folder: Path) -> Path:
    """A wheel of the package, built from a copy, because setuptools also packs what older builds left in a clone."""
    source = folder / "source"
    copytree(PACKAGE, source / PACKAGE.name, ignore=ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / name, source)
    done = pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(source))
    if "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("setuptools cannot be downloaded")
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def pip(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True)


@pytest.mark.commands
def test_the_loop_of_the_readme_runs_from_a_wheel(tmp_path):
    wheel, installed, elsewhere = build(tmp_path), tmp_path / "installed", tmp_path / "elsewhere"
    files = {str(x.relative_to(ROOT)) for x in PACKAGE.rglob("*") if x.is_file() and "__pycache__" not in x.parts}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == files and "jaxmarl_llm/view/web/page.html" in packed
    done = pip("install", "--no-deps", "--target", str(installed), str(wheel))
    assert done.returncode == 0, done.stderr
    loop = re.search(r"## The loop\n+```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = loop[1].replace("range(10)", "range(2)") + "\nprint(jm.__file__)\n"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=elsewhere, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *updates, home = done.stdout.splitlines()
    assert home == str(installed / "jaxmarl_llm/__init__.py") and "1 [" in "".join(updates)
    studies = [sys.executable, "-P", "-m", "experiments"]
    done = subprocess.run(studies, cwd=elsewhere, env=environment, capture_output=True, text=True)
    assert "No module named experiments" in done.stderr


def test_the_readme_says_what_a_wheel_lacks():
    (sentence,) = re.findall(r"[^.\n]*\bwheel\b[^.\n]*", (ROOT / "README.md").read_text())
    assert "clone" in sentence and "python -m experiments" in sentence


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_is_there(path):
    jobs, makefile = yaml.safe_load(path.read_text())["jobs"], (ROOT / "Makefile").read_text()
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    scripts = [ROOT / command for command in commands if command.startswith(".")]
    assert all(os.access(script, os.X_OK) for script in scripts)
    text = "\n".join([*commands, *(script.read_text() for script in scripts)])
    targets = re.findall(r"(?m)^ *make ([\w-]+)", text)
    assert targets and all(f"\n{target}:" in makefile for target in targets)
