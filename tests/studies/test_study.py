"""Studies that cannot be judged, the registry, and the digest of a study's code."""

import dataclasses
import json
import sys
import textwrap
from functools import partial

import pytest

from experiments._template import STUDY
from jaxmarl_llm.studies import catalogue, registry
from jaxmarl_llm.studies.curves import last_mean, updates_to
from jaxmarl_llm.studies.identity import describe, source_digest, source_files
from jaxmarl_llm.studies.study import AtMost, Higher


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "best"}, "The method of the study toy is 'best', but its arms are per_agent, joint"),
        (
            {"predictions": (Higher("success", "per_agent", than="joined", source="theory", where="here"),)},
            "of the arm 'joined', but its arms are",
        ),
        ({"checks": (AtMost("success", "none", 1),)}, "of the arm 'none'"),
        ({"predictions": (Higher("success", "per_agent", than="joint"),)}, "but not whose prediction it is"),
        ({"predictions": (Higher("success", "per_agent", than="joint", source="paper"),)}, "but not whose prediction"),
        ({"checks": (AtMost("success", "joint", 1, source="theory"),)}, "is a check, which has no source"),
        ({"expected": {("smollm2", "none"): "It learns."}}, "expects a result of smollm2 in the arm 'none'"),
        ({"metrics": ()}, "must state metrics"),
        ({"claim": ""}, "must state claim"),
        ({"scope": ""}, "is tiny, any or a model's name, got ''"),
        ({"paper": dataclasses.replace(STUDY.paper, url="")}, "needs a link"),
        (
            {"paper": None, "predictions": (Higher("a", "joint", than="per_agent", source="paper", where="Table 1"),)},
            "predicts a: joint above per_agent of a paper, and names none",
        ),
    ],
)
def test_a_study_that_cannot_be_judged_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(STUDY, **changes).check("toy")


def test_an_idea_of_ones_own_needs_no_paper():
    own = tuple(dataclasses.replace(x, source="theory") for x in STUDY.predictions)
    dataclasses.replace(STUDY, paper=None, predictions=own).check("toy")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of two studies and a game, which can be edited."""
    files = {
        "study_one.py": "from toy_house import game\nSTUDY = 1\n",
        "sub/study_two.py": "from toy_house.other import x\n\nSTUDY = 2\n",
        "game.py": "from toy_house.rules import LETTERS\n",
        "rules.py": "LETTERS = 3\n",
        "other.py": "x = 1\n",
        "_template.py": "a = 1\nSTUDY = 3\n",
    }
    home = tmp_path / "toy_house"
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(textwrap.dedent(text))
    for folder in (home, home / "sub"):
        (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield home
    for name in [name for name in sys.modules if name.startswith("toy_house")]:
        del sys.modules[name]


def test_studies_are_found_by_name(package):
    assert catalogue.find("toy_house") == {"study_one": "toy_house.study_one", "study_two": "toy_house.sub.study_two"}
    with pytest.raises(ValueError, match=r"no study 'study_on'\. Did you mean study_one\? `python -m [\w.]+` lists"):
        registry.load("toy_house", "study_on")
    with pytest.raises(ValueError, match="no package 'nowhere_at_all'"):
        catalogue.find("nowhere_at_all")


def test_two_studies_of_one_name_are_refused(package):
    (package / "sub" / "study_one.py").write_text("a = 1\nSTUDY = 1\n")
    with pytest.raises(
        ValueError, match=r"toy_house\.study_one and toy_house\.sub\.study_one are both called study_one"
    ):
        catalogue.find("toy_house")


@pytest.mark.parametrize(
    ("file", "matters"),
    [("study_one.py", True), ("game.py", True), ("rules.py", True), ("other.py", False), ("sub/study_two.py", False)],
)
def test_only_the_imports_of_a_study_are_its_code(package, file, matters):
    before = source_digest(["toy_house.study_one"])
    (package / file).write_text((package / file).read_text() + "# edited\n")
    assert (source_digest(["toy_house.study_one"]) != before) == matters


def test_all_files_of_a_package_are_code_where_it_is_imported_itself(package):
    (package / "games").mkdir()
    (package / "games" / "__init__.py").write_text("REGISTRY = {}\n")
    (package / "games" / "chess.py").write_text("GAMES = {}\n")
    (package / "games" / "go.py").write_text("GAMES = {}\n")
    for line in ("from toy_house.games import REGISTRY", "from toy_house import games", "import toy_house.games"):
        (package / "study_one.py").write_text(f"{line}\nSTUDY = 1\n")
        assert "toy_house.games.chess" in source_files(["toy_house.study_one"])
    (package / "study_one.py").write_text("from toy_house.games.go import GAMES\nSTUDY = 1\n")
    assert "toy_house.games.chess" not in source_files(["toy_house.study_one"])


def test_a_new_file_is_no_code_of_an_old_study(package):
    before = source_digest(["toy_house.study_one"])
    (package / "study_three.py").write_text("a = 1\nSTUDY = 1\n")
    assert source_digest(["toy_house.study_one"]) == before


def test_another_study_or_game_is_no_code_of_a_study():
    """Of this repository: what trains `mars` is its code, another game and the pages of results are not."""
    seen = set(source_files(["experiments.credit_assignment.mars", "jaxmarl_llm.studies.program"]))
    assert {
        "jaxmarl_llm.rl.advantages",
        "jaxmarl_llm.environments.teams.team_signals",
        "jaxmarl_llm.training.trainer",
    } <= seen
    others = {
        "jaxmarl_llm.environments.classic.board_games",
        "jaxmarl_llm.studies.pages.pages",
        "experiments.teams.cory",
    }
    assert not seen & others


class Callable:
    """An object that can be called and has no name."""

    def __call__(self, x):
        return x


def test_settings_describe_their_arm():
    """Arms that differ in a lambda, or in what a function closes over, differ; one arm is described alike each time."""

    def made(x):
        def inner(y):
            return x + y

        return inner

    one, other = (lambda x: x + 1), (lambda x: x + 2)
    assert describe(one) != describe(other) and describe(one) == describe(one)
    assert describe(made(1)) != describe(made(2)) and describe(made(1)) == describe(made(1))
    assert describe(made) == f"{__name__}.test_settings_describe_their_arm.<locals>.made"
    halved = [lambda rate: lambda n: rate * 0.5**n, lambda rate: lambda n: rate * 0.25**n]  # in a function within one
    bound = [lambda x, factor=factor: x * factor for factor in (1, 2)]
    for first, second in (halved, bound, (partial(made, 1), partial(made, 2))):
        assert describe(first) != describe(second)
    assert describe(Callable()) == f"{__name__}.Callable"
    json.dumps(describe({"of": made(object()), "numbers": (1, 2.0, None), "partial": partial(made, x=one)}))


def test_what_a_shorter_run_never_reached_stands_at_its_own_end():
    """`turns` counts no rise, and arms of unlike lengths keep the study's values."""
    rises = {name: partial(updates_to, metric="success") for name in ("updates to 90%", "games")}
    censored = {"updates to 90%": 60, "games": 480, "turns": 9}
    study = dataclasses.replace(STUDY, derived=rises, censored=censored)
    whole = {name: arm.updates for name, arm in study.arms.items()}
    half = {name: updates // 2 for name, updates in whole.items()}
    assert study.censored_after(whole) == censored
    assert study.censored_after(half) == {"updates to 90%": 30, "games": 240, "turns": 9}
    assert study.censored_after(half | {"joint": whole["joint"]}) == censored


def test_a_study_knows_the_metric_whose_rise_it_counts():
    counted, free = partial(updates_to, metric="success"), partial(last_mean, metric="x")
    derived = {"updates to 90%": counted, "other": len, "mean": free}
    study = dataclasses.replace(STUDY, derived=derived, censored={"updates to 90%": 60, "other": 1})
    assert study.counts == {"updates to 90%": "success"}
