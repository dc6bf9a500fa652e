"""The outputs of the notebooks, which are stored with them: executes the notebooks and writes or compares outputs.

python tools/notebooks.py                 # executes every notebook and stores its outputs
python tools/notebooks.py 08 10           # these alone
python tools/notebooks.py --check 08      # executes and prints each difference from the stored outputs

Texts are compared word by word, pictures by their presence. A number with a point may differ from the stored one by
TOLERANCE times the larger of 1 and the stored number; an integer may not differ. Training amplifies rounding, which
other processors and flags change. So a cell that prints measurements of a training has a `tolerance` in its metadata,
for all of its numbers, and its integers may differ by 1 at least.

A stored notebook names no path of a machine and has no warning, error or time. It starts with a badge that opens it in
Colab if pyproject.toml gives the address on GitHub: `[project.urls]` with `Repository = "https://github.com/..."`.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "notebooks"
TOLERANCE = 0.01
MAX_BYTES = 300_000
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
FORBIDDEN = re.compile(r"(?:^|[\s'\"(=:])/\w[\w.-]*/\w|[A-Z]:\\\w|Warning\b|site-packages")  # a path, or a warning
WAIT = re.compile(r"^[a-z ]+ (?:\.\.\.|took \d+ s)\n?", re.MULTILINE)  # printed by a Trainer, by the clock
COLAB = "https://colab.research.google.com"
TEXTS = "text/plain", "text/html", "text/markdown"
# tqdm recommends widgets, which no notebook uses; XLA reports slow compilations, which other work of the machine causes
ENVIRONMENT = {"PYTHONWARNINGS": "ignore:IProgress not found", "TF_CPP_MIN_LOG_LEVEL": "3"}


def read(path: Path) -> Any:
    return nbformat.read(path, 4)


def code_cells(book: Any) -> list[Any]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def execute(path: Path) -> Any:
    """The notebook with new outputs, run in its folder as Jupyter does, with this process's environment.

    Raises CellExecutionError if a cell fails.
    """
    book = read(path)
    kernel = dict(book.metadata)
    client = nbclient.NotebookClient(
        book,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(env={**os.environ, **ENVIRONMENT})
    for cell in code_cells(book):
        cell.outputs = [output for output in cell.outputs if WAIT.sub("", texts(output).get("stderr", "x"))]
    book.metadata = nbformat.from_dict(kernel)  # without the version of the Python that ran it
    return book


def texts(output: Any) -> dict[str, str]:
    """{kind: text} of an output. A picture has an empty text."""
    if output.output_type == "stream":
        return {output.name: output.text}
    if output.output_type == "error":
        return {"error": output.evalue}
    return {kind: str(data) if kind in TEXTS else "" for kind, data in sorted(output.data.items())}


def differences(stored: Any, executed: Any) -> Iterator[str]:
    """A sentence for each difference between the outputs of two notebooks with the same cells."""
    for number, (before, after) in enumerate(zip(code_cells(stored), code_cells(executed), strict=True), start=1):
        old, new = [[pair for x in cell.outputs for pair in texts(x).items()] for cell in (before, after)]
        if [kind for kind, _ in old] != [kind for kind, _ in new]:
            yield f"Cell {number} has outputs {new}; stored are {[kind for kind, _ in old]}."
            continue
        for (_, told), (_, says) in zip(old, new, strict=True):
            if not agree(told, says, before.metadata.get("tolerance")):
                yield f"Cell {number} says\n{says.rstrip()}\n    stored is\n{told.rstrip()}"


def agree(told: str, says: str, tolerance: float | None = None) -> bool:
    """bool: the texts agree, apart from spaces and from numbers within their tolerance."""
    if NUMBER.sub("#", told).split() != NUMBER.sub("#", says).split():
        return False
    for old, new in zip(NUMBER.findall(told), NUMBER.findall(says), strict=True):
        whole, scale = old.lstrip("+-").isdecimal(), max(1, abs(float(old)))
        allowed = (0 if whole else TOLERANCE * scale) if tolerance is None else max(whole, tolerance * scale)
        if abs(float(old) - float(new)) > allowed + 1e-9:
            return False
    return True


def faults(path: Path) -> Iterator[str]:
    """A sentence for each reason why a stored notebook is not fit for readers."""
    book = read(path)
    if path.stat().st_size > MAX_BYTES:
        yield f"It has {path.stat().st_size} bytes; at most {MAX_BYTES} are allowed."
    counts = [cell.execution_count for cell in code_cells(book)]
    if counts != [*range(1, len(counts) + 1)]:
        yield f"Its cells were not executed once each from top to bottom: {counts}."
    for number, cell in enumerate(code_cells(book), start=1):
        for kind, text in (pair for output in cell.outputs for pair in texts(output).items()):
            if kind in ("stderr", "error") or FORBIDDEN.search(text):
                yield f"Cell {number} shows {kind}: {text[:200]}"


def badge(path: Path, project: dict[str, Any]) -> str:
    """Markdown of a link that opens a notebook in Colab; empty if the project's address is not known."""
    home = project.get("urls", {}).get("Repository", "").removesuffix("/")
    if not home.startswith("https://github.com/"):
        return ""
    page = f"{COLAB}/github/{home.removeprefix('https://github.com/')}/blob/main/notebooks/{path.name}"
    return f"[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({page})"


def add_badge(book: Any, text: str) -> None:
    """Puts the badge into the first cell, below the title; a badge that is there is replaced."""
    title, *rest = book.cells[0].source.split("\n\n")
    rest = [part for part in rest if not part.startswith("[![Open in Colab]")]
    book.cells[0].source = "\n\n".join([title, *([text] if text else ()), *rest])


def main(arguments: list[str]) -> int:
    names = [argument for argument in arguments if argument != "--check"]
    paths = [path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if not names or path.name.startswith(tuple(names))]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wrong = 0
    for path in paths:
        book = execute(path)
        if "--check" in arguments:
            problems = [*differences(read(path), book)]
        else:
            add_badge(book, badge(path, project))
            nbformat.write(book, path)
            problems = [*faults(path)]
        wrong += len(problems)
        print(path.name, *(problems or ["is as it should be."]), sep="\n" if problems else " ", flush=True)
    return int(wrong > 0 or not paths)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
