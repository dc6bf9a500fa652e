"""The notebooks run from top to bottom, and what they teach is true."""

from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


def executed(name: str):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.read(NOTEBOOKS / name, 4)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(NOTEBOOKS.parent)}}).execute()
    return book


def test_a_game_is_written_and_learnt():
    cells = [cell for cell in executed("write_a_game.ipynb").cells if cell.cell_type == "code"]
    said = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    first, last = (float(x) for x in said.rpartition("updates:")[2].split())
    assert first < 0.5 and last > 0.6  # chance is a third; two words of three are enough for two thirds
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)


def test_notebooks_are_kept_without_their_outputs():
    nbformat = pytest.importorskip("nbformat")
    for path in NOTEBOOKS.glob("*.ipynb"):
        cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in cells), path.name
