"""The README and the pages of docs/ are true: the example runs and shows what it says, commands exist."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import tyro

from experiments import demo, prompts
from jaxmarl_llm import match, play
from jaxmarl_llm.devices import sharding
from jaxmarl_llm.environments import REGISTRY, make_game
from jaxmarl_llm.planning import plan
from jaxmarl_llm.studies import catalogue, frozen, registry
from jaxmarl_llm.studies.pages import dialogues, pages, publish, release
from jaxmarl_llm.studies.settings import Settings, select_arms

ROOT = Path(__file__).parents[1]
OPTIONS = {
    "pages": pages.Options,
    "release": release.Options,
    "dialogues": dialogues.Options,
    "freeze": frozen.Options,
    "publish": publish.Options,
    "prompts": prompts.Options,
    "demo": demo.Options,
}
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/howto").glob("*.md"))]


def test_the_example_trains_on_what_was_sampled_with_ratio_one_and_shows_what_it_says(capsys):
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(example[1], names)
    ratio, norm = (np.asarray(names["metrics"][name]) for name in ("ratio/learner", "gradient_norm/learner"))
    assert ratio.shape == norm.shape == (3,) and abs(ratio - 1).max() < 1e-5
    assert names["metrics"]["return"].shape == (3,) and norm.min() > 0 and len(set(norm.tolist())) == 3
    shown = [np.array(line.split(), float) for line in re.findall(r"\[(.*)\]", capsys.readouterr().out)]
    first, last = re.search(r"from ([\d.]+) to ([\d.]+)", example[1]).groups()
    np.testing.assert_allclose([shown[0].mean(), shown[-1].mean()], [float(first), float(last)], atol=0.1)


def test_tables_and_picture_are_what_the_code_makes():
    spec = importlib.util.spec_from_file_location("tools_readme", ROOT / "tools/readme.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    readme = (ROOT / "README.md").read_text()
    assert made.fill(readme) == readme, "run python tools/readme.py"
    assert all(f"`{name}`" in readme for name in REGISTRY) and readme.count("/README.md)") >= 9
    demo = json.loads(made.DEMO.read_text())
    assert made.picture(demo).count(b"<path") == (ROOT / "docs/overview.svg").read_bytes().count(b"<path")


def test_it_is_short():
    """Its tables aside, which grow with every study and game."""
    prose = re.sub(r"(?s)<!-- \w+: .*?<!-- end -->", "", (ROOT / "README.md").read_text())
    assert len([word for word in prose.split() if re.search(r"\w", word)]) <= 650


def test_links_lead_to_files():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_make_targets_and_files_named_exist(path):
    readme, makefile = path.read_text(), (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake (\w+)", re.sub(r"(?m)^\|.*$", "", readme)):  # tables ask what makes what
        assert f"\n{target}:" in makefile
    for name in re.findall(r"`(\w+\.py)`", readme):
        assert any(any((ROOT / folder).rglob(name)) for folder in ("jaxmarl_llm", "experiments")), name
    rooms = re.findall(r"^\| `(\w+)/` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert len(rooms) >= 10
    for room in rooms:
        assert (ROOT / room).is_dir() or (ROOT / "jaxmarl_llm" / room).is_dir(), room


def commands() -> list[tuple[str, str]]:
    """(module, arguments) of every `python -m ...` in a text, each once."""
    text = "\n".join(path.read_text() for path in TEXTS)
    found = re.findall(r"python -m ([\w.]+)([^#`\n]*)", text)
    return list(dict.fromkeys((module, arguments.strip()) for module, arguments in found))


@pytest.mark.parametrize(("module", "arguments"), commands())
def test_commands_can_be_given(module, arguments):
    name, *rest = words = shlex.split(arguments) or [""]
    if module == "jaxmarl_llm.play":
        game = make_game(tyro.cli(play.Settings, args=words).game)
        assert tyro.cli(play.Settings, args=words).seat < game.agents
    elif module == "jaxmarl_llm.match":
        assert make_game(tyro.cli(match.Settings, args=words).game).agents > 1
    elif (module, name) == ("experiments", "plan"):
        settings = tyro.cli(plan.Settings, args=rest)
        if settings.recipe == "prompts":
            assert settings.data is not None
        else:
            plan.recipe_of(settings, plan.study_of("experiments", settings)).check()
    elif module == "experiments" and name in OPTIONS:
        tyro.cli(OPTIONS[name], args=rest)
    elif module == "experiments" and words == ["GiGPO"]:  # a search
        assert catalogue.listing(module, name)
    elif module == "experiments" and name:
        settings = tyro.cli(Settings, args=words)
        assert select_arms(settings, registry.load("experiments", settings.study).study)
    else:
        assert importlib.util.find_spec(module), module


def studies_on_a_mesh() -> list[str]:
    """The arguments of the commands of the texts and of the recipes for clusters that run a study over devices."""
    text = "\n".join(path.read_text() for path in (*TEXTS, ROOT / "experiments/clusters/slurm.sh"))
    pod = (ROOT / "experiments/clusters/kubernetes.yaml").read_text()
    found = re.findall(r"(?:-m experiments|slurm\.sh) ((?!plan ).*--mesh[^#\n]*)", text)
    found.append(" ".join(re.findall(r"^ +- (.*)$", pod.partition("- experiments\n")[2].partition("env:")[0], re.M)))
    return list(dict.fromkeys(arguments.strip(" `") for arguments in found))


@pytest.mark.parametrize("arguments", studies_on_a_mesh())
def test_the_episodes_of_the_commands_divide_over_their_devices(arguments):
    settings = tyro.cli(Settings, args=shlex.split(arguments))
    devices = sharding.counts(settings.mesh)
    for recipe in select_arms(settings, registry.load("experiments", settings.study).study).values():
        recipe.check()
        learning = sum(name not in recipe.game.scripts for name in recipe.seats[0])
        prompts = recipe.groups * learning
        assert prompts % (devices["data"] * devices["fsdp"] * recipe.grad_accumulation * recipe.minibatches) == 0


def test_all_commands_are_found():
    assert len(studies_on_a_mesh()) == 8 and len(commands()) > 20
