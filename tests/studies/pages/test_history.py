"""A freeze, its run and its page in a repository of git, and what must not be: each planted, and each found."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxmarl_llm.studies import commands, frozen
from jaxmarl_llm.studies.pages import history
from jaxmarl_llm.studies.pages.page import waiting_page

STUDY = """
import jax.numpy as jnp
import jax

from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, Higher, Paper, Study


def drawn(key, hparams):
    return {"x": hparams["level"] + jax.random.normal(key), "n": jnp.float32(1.0)}


STUDY = Study(
    paper=Paper("Nobody", "https://arxiv.org/abs/2602.00000", 2026, checked="paper"),
    question="Is more more?",
    claim="It is.",
    arms={"more": Computed(drawn, {"level": 3.0}), "less": Computed(drawn, {"level": 0.0})},
    method="more",
    metrics=("x",),
    predictions=(Higher("x", "more", than="less", by=BOUND, source="paper", where="Table 1"),),
    checks=(AtLeast("n", "more", 1.0),),
)
"""


def git(home: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=home, capture_output=True, check=True, text=True).stdout.strip()


def commit(home: Path, message: str) -> str:
    git(home, "add", "-A")
    git(home, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "-m", message)
    return git(home, "rev-parse", "HEAD")


PACKAGE = "toy_of_levels"


def new_package(folder: Path) -> Path:
    """A package with a study in a repository of its own."""
    home = folder / PACKAGE
    (home / "rooms").mkdir(parents=True)
    for room in (home, home / "rooms"):
        (room / "__init__.py").write_text("")
    (home / "rooms" / "levels.py").write_text(STUDY.replace("BOUND", "0.5"))
    git(folder, "init", "-q")
    commit(folder, "a study")
    return home


@pytest.fixture
def toy(tmp_path, monkeypatch):
    home = new_package(tmp_path / "repository")
    monkeypatch.syspath_prepend(home.parent)
    yield home
    forget()


def forget() -> None:
    """The study is imported anew."""
    for module in [module for module in sys.modules if module.startswith(PACKAGE)]:
        del sys.modules[module]


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., str]:
    """Runs a command of the package: what it prints, its error included."""
    return lambda *words: answer(monkeypatch, capsys.readouterr, *words)


def answer(patch: pytest.MonkeyPatch, printed: Callable, *words: str | Path) -> str:
    patch.setattr(sys, "argv", [PACKAGE, *map(str, words)])
    forget()
    try:
        commands.main(PACKAGE)
    except SystemExit as end:
        return f"{end.code if isinstance(end.code, str) else ''} {printed().err}"
    return printed().out


def freeze(home: Path, command) -> str:
    said = command("freeze", "levels", "--tried", "nothing, on no seeds", "--seeds", "8")
    assert "Commit it by itself" in said, said
    return commit(home.parent, "freeze")


@pytest.fixture(scope="module")
def first_of_all(tmp_path_factory) -> Path:
    """A repository with a table that was frozen, run and published, and a former one in the history."""
    folder = tmp_path_factory.mktemp("published")
    home = new_package(folder / "repository")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(home.parent)
        command = lambda *words: answer(patch, lambda: SimpleNamespace(out="", err=""), *words)
        for number in range(2):
            command("freeze", "levels", "--tried", "nothing, on no seeds", "--seeds", "8")
            commit(home.parent, "freeze")
            out = folder / f"run{number}"
            command("levels", "--frozen", "--out", out)
            command("publish", out, "--why", "The first of two.")
            command("pages", "--figures")
            commit(home.parent, "table")
        forget()
    return home.parent


@pytest.fixture
def published(first_of_all, tmp_path, monkeypatch):
    shutil.copytree(first_of_all, tmp_path / "repository")
    home = tmp_path / "repository" / PACKAGE
    monkeypatch.syspath_prepend(home.parent)
    yield home
    forget()


def edit(file: Path, change: Callable) -> None:
    content = json.loads(file.read_text())
    content = change(content) or content
    file.write_text(json.dumps(content, indent=1))


def test_seeds_follow_from_the_digest_and_nobody_chooses_them(published, command):
    assert command("pages", "--check") == ""
    folder = published / "results" / "levels"
    kept, results = (json.loads((folder / name).read_text()) for name in ("frozen.json", "results.json"))
    assert results["seeds"] == kept["seeds"] == frozen.seeds_of(kept["digest"], 8) and kept["seeds"][0] >= 1000
    (former,) = json.loads((folder / "history.json").read_text())
    assert former["seeds"] != kept["seeds"] and former["digest"] != kept["digest"]
    assert former["why"] == "The first of two." and former["verdicts"][0]["outcome"] == "holds"
    page = (folder / "README.md").read_text()
    assert "**Frozen** at" in page and "The first of two." in page and "Status: **holds here**" in page


def test_a_merge_that_drops_a_published_table_is_found(published, command):
    """A branch from before the second table takes all of its own side."""
    repository = published.parent
    main = git(repository, "rev-parse", "HEAD")
    git(repository, "checkout", "-q", f"{main}~2")  # before the second freeze
    (published / "rooms" / "further.txt").write_text("beside")
    commit(repository, "beside")
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b.c", "merge", "-q", "-s", "ours", main, "-m", "merge")
    assert command("pages") and not (published / "results/levels/history.json").exists()
    told = command("pages", "--check")
    assert "an entry of history.json was changed or removed" in told, told


@pytest.mark.parametrize("evil", [False, True])
def test_a_merge_changes_what_none_of_its_parents_has(published, command, evil):
    """A branch from before the freezes comes in. An entry of the history that is edited in the merge is found."""
    repository = published.parent
    main, first = git(repository, "rev-parse", "HEAD"), git(repository, "rev-list", "--max-parents=0", "HEAD")
    git(repository, "checkout", "-q", first)
    (published / "rooms" / "further.txt").write_text("beside")
    side = commit(repository, "beside")
    git(repository, "checkout", "-q", main)
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b.c", "merge", "-q", "--no-commit", "--no-ff", side)
    if evil:
        edit(published / "results/levels/history.json", lambda entries: entries[0].update(why="Nothing was seen."))
        command("pages")
    commit(repository, "merge")
    assert len(git(repository, "log", "-1", "--format=%P").split()) == 2
    told = command("pages", "--check")
    assert ("an entry of history.json was changed" in told) if evil else told == "", told


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda home: (home / "results/levels/frozen.json").unlink(), "levels is not frozen"),
        (
            lambda home: (home / "__init__.py").write_text("x = 1\n"),
            "is not committed: the table of a frozen study runs",
        ),
        (
            lambda home: edit(home / "results/levels/frozen.json", lambda kept: kept | {"tried": "x"}),
            "frozen.json is not committed",
        ),
        (
            lambda home: (
                edit(home / "results/levels/frozen.json", lambda kept: kept | {"seeds": [*range(1000, 1008)]}),
                commit(home.parent, "other seeds"),
            ),
            "was changed by hand",
        ),
        (
            lambda home: (
                (home / "rooms/levels.py").write_text(STUDY.replace("BOUND", "0.4")),
                commit(home.parent, "moved"),
            ),
            "The predictions of levels differ from the frozen ones",
        ),
        (
            lambda home: (
                (home / "rooms/levels.py").write_text(STUDY.replace("BOUND", "0.5").replace("3.0", "4.0")),
                commit(home.parent, "another level"),
            ),
            "The settings of levels differ from the frozen ones",
        ),
    ],
)
def test_a_table_is_refused(prepare, says, toy, command, tmp_path):
    freeze(toy, command)
    prepare(toy)
    assert says in command("levels", "--frozen", "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "results.json").exists()


def test_a_table_takes_no_other_seeds_and_results_may_differ(toy, command, tmp_path):
    freeze(toy, command)
    assert "--frozen runs the frozen table as it is: leave out --seeds" in command("levels", "--frozen", "--seeds", "3")
    (toy / "results" / "levels" / "frozen.json").with_name("notes.md").write_text("x")
    git(toy.parent, "add", "-A")  # a page that is being written
    assert "holds" in command("levels", "--frozen", "--out", tmp_path / "out")
    run = json.loads((tmp_path / "out" / "results.json").read_text())
    assert run["provenance"]["commit"] == git(toy.parent, "rev-parse", "HEAD")


def test_a_run_of_other_seeds_is_not_published(toy, command, tmp_path):
    freeze(toy, command)
    command("levels", "--seeds", "8", "--first-seed", "1000", "--out", tmp_path / "out")
    assert "is not the frozen table of levels" in command("publish", tmp_path / "out", "--why", "It looks better.")
    edit(tmp_path / "out" / "results.json", lambda results: results.update(predictions=[], sweep={"best": "higher"}))
    assert "is a sweep, from which a setting is chosen" in command("publish", tmp_path / "out", "--why", "The best.")
    assert not (toy / "results" / "levels" / "results.json").exists()


@pytest.mark.commands
def test_all_tables_that_wait_are_run_and_get_their_pages(toy, command, tmp_path, monkeypatch):
    """Once: nothing waits then. The results of another checkout are written. A table that fails stops no other."""
    main = f"from jaxmarl_llm.studies import commands\n\ncommands.main({PACKAGE!r})\n"
    (toy / "__main__.py").write_text(main)
    commit(toy.parent, "a command")
    freeze(toy, command)
    assert "Give --frozen" in command("run")
    monkeypatch.setenv("PYTHONPATH", f"{toy.parent}:{Path(__file__).parents[3]}")
    monkeypatch.setattr(os, "nice", lambda level: level)  # of this process
    git(toy.parent, "worktree", "add", "-q", str(tmp_path / "other"))
    other = tmp_path / "other" / PACKAGE
    options = ("run", "--frozen", "--out", tmp_path / "runs", "--into", other)
    broken = toy / "results" / "broken"  # it waits first, and has no study
    shutil.copytree(toy / "results" / "levels", broken)
    commit(toy.parent, "a table that cannot run")
    assert "The table of broken ended with status 2" in command(*options)
    assert "**Frozen** at" in (other / "results/levels/README.md").read_text()
    assert "[levels](results/levels/README.md)" in (other / "README.md").read_text()
    assert not (toy / "results/levels/results.json").exists()
    shutil.rmtree(broken)
    assert "0 tables" in command(*options)


def test_what_is_not_committed_cannot_be_frozen(toy, command):
    (toy / "__init__.py").write_text("x = 1\n")
    assert "must be in the parent commit" in command("freeze", "levels", "--tried", "nothing")


def move_bound(home: Path) -> None:
    """In the study, the freeze and the table alike, with a digest that fits."""
    (home / "rooms/levels.py").write_text(STUDY.replace("BOUND", "0.25"))
    folder = home / "results" / "levels"
    moved = lambda content: content["predictions"][0].update(by=0.25)
    edit(folder / "frozen.json", moved)
    edit(folder / "frozen.json", lambda kept: kept | {"digest": frozen.digest_of_freeze(kept)})
    edit(folder / "results.json", moved)


def in_folder(file: str, change: Callable) -> Callable[[Path], None]:
    return lambda home: edit(home / "results" / "levels" / file, change)


def swap(arms: dict) -> None:
    arms["arms"]["more"]["x"]["per_seed"][0] += 1.0


FALSIFICATIONS = {
    "a bound is moved everywhere": (move_bound, "not those of what it states"),
    "a bound is moved in the table": (
        in_folder("results.json", lambda x: x["predictions"][0].update(by=0.25)),
        "the predictions of the table are not the frozen ones",
    ),
    "a prediction is added after the run": (
        in_folder("results.json", lambda x: x["predictions"].append(dict(x["predictions"][0], by=0.1))),
        "the predictions of the table are not the frozen ones",
    ),
    "a prediction of the study is moved": (
        lambda home: (home / "rooms/levels.py").write_text(STUDY.replace("BOUND", "0.25")),
        "the predictions of the study are not the frozen ones",
    ),
    "an entry of the history is edited": (
        in_folder("history.json", lambda x: x[0]["verdicts"][0].update(outcome="not shown")),
        "an entry of history.json was changed or removed",
    ),
    "the history is deleted": (
        lambda home: (home / "results/levels/history.json").unlink(),
        "an entry of history.json was changed or removed",
    ),
    "seeds are swapped": (
        in_folder("results.json", lambda x: x.update(seeds=[*range(1000, 1008)])),
        "the seeds of the table are not the frozen ones",
    ),
    "seeds are swapped in the freeze too": (
        lambda home: [edit(home / f"results/levels/{x}.json", lambda y: y.update(seeds=[*range(1000, 1008)]))
                      for x in ("results", "frozen")],
        "its digest or its seeds are not those of what it states",
    ),
    "a setting is told otherwise": (
        in_folder("results.json", lambda x: x["settings"]["more"]["hparams"].update(level=2.0)),
        "the settings of the table are not the frozen ones",
    ),
    "numbers are changed": (in_folder("results.json", swap), "the numbers of the table were changed"),
    "the run is from before the freeze": (
        in_folder("results.json", lambda x: x["provenance"].update(commit="0" * 40)),
        "does not follow the freeze",
    ),
    "the run was in a tree that was not clean": (
        in_folder("results.json", lambda x: x["provenance"].update(commit=x["provenance"]["commit"] + "-dirty")),
        "does not follow the freeze",
    ),
    "the run is deleted": (
        lambda home: (home / "results/levels/results.json").unlink(),
        "frozen.json or results.json is gone",
    ),
    "the mark of the freeze is taken off": (
        in_folder("results.json", lambda x: x.pop("frozen") and None),
        "the freeze of the table was changed since",
    ),
}  # fmt: skip


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("what", FALSIFICATIONS)
def test_a_falsification_is_found(what, committed, published):
    falsify, says = FALSIFICATIONS[what]
    falsify(published)
    if committed:
        commit(published.parent, "nothing to see here")
    forget()
    assert any(says in sentence for sentence in history.faults(PACKAGE, published)), what


def test_a_second_freeze_without_a_table_of_the_first_is_found(toy, command):
    freeze(toy, command)
    (toy / "notes.md").write_text("x")
    commit(toy.parent, "another parent, other seeds")
    freeze(toy, command)
    assert any("is neither the latest one nor in" in fault for fault in history.faults(PACKAGE, toy))


def test_a_frozen_study_without_a_table_has_a_page_that_says_so(toy, command):
    freeze(toy, command)
    assert history.faults(PACKAGE, toy) == []
    text = waiting_page(PACKAGE, toy / "results/levels/frozen.json")
    assert "**Frozen** on " in text and "is not published" in text and "x: more above less" in text
    edit(toy / "results/levels/frozen.json", lambda x: x.update(tried="nothing"))
    assert history.faults(PACKAGE, toy) != []


def test_a_freeze_may_wait_for_its_table_and_a_third_one_may_not_skip_it(published, command):
    """The page says that the table is of the freeze before."""
    for number in range(2):
        (published / "notes.md").write_text(str(number))
        commit(published.parent, "another parent, other seeds")
        freeze(published, command)
        command("pages")
        faults = history.faults(PACKAGE, published)
        assert len(faults) == number and all("neither the latest one nor in" in fault for fault in faults)
        assert "A later freeze waits for its table" in (published / "results/levels/README.md").read_text()
