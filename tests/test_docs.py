"""The pages of docs/ leave nothing out: names, games, studies, and what a command can be told.

The long case compiles every snippet of a page; the short ones read the pages.
"""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxmarl_llm
from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.studies import catalogue
from jaxmarl_llm.view import page as games_page
from tests.support import budget

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md")) + sorted((DOCS / "howto").glob("*.md"))


@pytest.fixture(scope="module")
def generate():
    sys.path.insert(0, str(ROOT / "tools"))
    yield importlib.import_module("generate")
    sys.path.remove(str(ROOT / "tools"))


def test_every_module_and_public_name_is_on_a_page_of_the_reference(generate):
    pages = generate.reference()
    text = "\n".join(pages.values())
    for path in sorted((ROOT / "jaxmarl_llm").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        assert f".. automodule:: {name}\n" in text or not path.read_text() or name == "jaxmarl_llm", name
    for name in jaxmarl_llm.__all__:
        assert re.search(rf"^\| `{name}` \| {{py:\w+}}`jaxmarl_llm\.[\w.]+\.{name}`", pages["reference/index.md"], re.M)
    for page in pages:
        assert page == "reference/index.md" or Path(page).stem in pages["reference/index.md"]


def test_every_study_has_its_page_with_all_of_its_runs(generate):
    pages = generate.methods()
    for name in catalogue.find("experiments"):
        assert f"({name}.md)" in pages["methods/index.md"] and f"\n{name}\n" in pages["methods/index.md"]
    measured = re.findall(r"^\| \[\w+\]\((\w+)\.md\)", str(pages["methods/seconds.md"]), re.MULTILINE)
    assert measured and set(measured) <= {*catalogue.find("experiments")}
    for file in (ROOT / "experiments/results").glob("*/results.json"):
        assert any(f"## Run: {file.parent.name}\n" in text for text in pages.values() if isinstance(text, str))
        drawn = file.with_name("curves.svg").exists()
        assert drawn == (f"]({file.parent.name}/curves.svg)" in pages["methods/gallery.md"])
    for name, text in pages.items():  # what notes link to beside them is another page here, or stands on this one
        if isinstance(text, str):
            assert not re.findall(r"\]\((?:transcript\.md|[^)]*README\.md)\)", text), name


def test_every_game_has_its_page(generate, monkeypatch):
    monkeypatch.setattr(generate, "game_page", lambda name, game, *more: name)
    monkeypatch.setattr(generate, "exact", lambda game: "")
    pages = generate.games()
    assert {f"games/{name}.md" for name in REGISTRY} == set(pages) - {"games/index.md"}
    assert all(f"[{name}]({name}.md)" in pages["games/index.md"] for name in REGISTRY)


def test_a_page_of_a_game_tells_what_the_game_tells(generate):
    game = REGISTRY["kuhn_poker"]()
    page = generate.game_page("kuhn_poker", game, generate.exact(game), generate.comparisons()["KuhnPoker"])
    assert "`check`, `bet`" in page and "seat 0 is told:" in page and "| seats | 2 |" in page
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
def test_docstrings_keep_their_signs(generate, docstring, shown):
    assert generate.restructure(docstring) == shown


def test_the_comment_beside_a_field_describes_it(generate):
    mark_comments = importlib.import_module("docstrings").mark_comments
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


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            generated = re.match(r"(\.\./)?(games|methods|reference|notebooks)/", target)
            assert generated or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_example_page_of_games_is_small_and_whole(generate, tmp_path):
    """The games are those of the present recorder, before and after training."""
    file, shown, _ = games_page.write(generate.EXAMPLE, tmp_path)
    assert file.stat().st_size < 300_000 and shown == 24
    games = games_page.read(generate.EXAMPLE / games_page.GAMES)
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
                (tmp_path / "repeat_digits.py").write_text(snippet)
            elif "fragile" in snippet:
                with pytest.warns(UserWarning, match="ZeroDivisionError: .* Episodes that failed: "):
                    exec(snippet, names)
            else:
                exec(snippet, names)
    assert len(capsys.readouterr().out.splitlines()) >= 5


def test_the_guide_names_the_budget_of_the_tests():
    guide = " ".join((ROOT / "AGENTS.md").read_text().split())
    for target, (seconds, more) in budget.SETS.items():
        assert re.search(rf"`make {target}` (?:has a budget|one) of {seconds}", guide)
        assert f"with {budget.STUDIES} studies and {more} more for each further study" in guide
        assert budget.allowed(target, budget.STUDIES + 2) == seconds + 2 * more
    assert budget.allowed("test", 3) == budget.allowed("test", budget.STUDIES)
