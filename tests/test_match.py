"""Matches: every seat, the same deals, results beside exact values, and errors before anything compiles.

The long cases compile matches of models; the short ones play scripts, which compile in a second.
"""

import json
import re
import runpy
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from jaxmarl_llm import match
from jaxmarl_llm.environments.classic.board_games import TicTacToe
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.match import Settings
from jaxmarl_llm.view import match_words
from tests.support.saved_policies import adapter_on, small_model, tiny_policy


def play(*sources: str, game: str = "kuhn_poker", **settings) -> tuple[match.Match, match.Played]:
    given = Settings(game, *sources, **settings)
    prepared = match.prepare(given)
    return prepared, match.play(prepared, given, Console(quiet=True))[0]


def sentence(prepared: match.Match, result: dict) -> str:
    return match_words.sentence(prepared.names, prepared.game, result)


@pytest.fixture
def command(monkeypatch, capsys):
    """The command, run in this process: (exit status, stdout, stderr)."""

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["match", *arguments])
        code = 0
        try:
            runpy.run_path(match.__file__, run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return command


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Two tiny policies of Kuhn poker, one of another game, a small model and an adapter on it."""
    home = tmp_path_factory.mktemp("match")
    for seed, name in enumerate(("a/policies/me", "b/policies/me")):
        tiny_policy(home / name, KuhnPoker(), seed)
    tiny_policy(home / "other", TicTacToe(), 0)
    small_model(home / "model")
    adapter_on(home / "model", home / "adapter")
    return home


@pytest.fixture(scope="module")
def scripts() -> tuple[match.Match, match.Played]:
    return play("honest", "random", games=6000)


def test_both_players_meet_the_same_deals_in_both_seats():
    """Two copies of a script that draws nothing: the seats of a deal earn the same, whoever sits there."""
    prepared, played = play("always_bet", "always_bet", games=401, at_once=64)
    assert prepared.deals == 201 and played.reward.shape == (402, 2, 1) and played.seat.tolist() == [0, 1] * 201
    np.testing.assert_array_equal(played.reward[::2], played.reward[1::2])
    assert len(np.unique(played.reward[::2, 0])) == 2  # deals differ
    mine, theirs = played.sides(played.reward[..., 0])
    np.testing.assert_array_equal(mine, -theirs)
    result = match.summarise(prepared, played)
    assert result["difference"] == (0, 0, 0)
    assert sentence(prepared, result).startswith("always_bet and itself earn the same, 0")


def test_games_earn_what_the_tree_says(scripts):
    """Means over sampled games against sums over the tree, by the first player's seat, in standard errors."""
    prepared, played = scripts
    known = match.exact(prepared)
    for seat in range(2):
        paid = played.reward[played.seat == seat, seat, 0]
        assert abs(paid.mean() - known["by_seat"][seat, 0]) < 4 * paid.std() / len(paid) ** 0.5
    np.testing.assert_allclose(known["by_seat"].sum(1), 0, atol=1e-12)
    assert np.abs(np.diff(known["by_seat"][:, 0])) > 0.05  # the seats differ


def test_the_sentence_says_who_earns_more(scripts):
    prepared, played = scripts
    result = match.summarise(prepared, played)
    mean, low, high = result["difference"]
    per_deal = np.array([played.reward[i, i % 2, 0] - played.reward[i, 1 - i % 2, 0] for i in range(6000)])
    assert mean == pytest.approx(per_deal.mean()) and low < mean < high
    said = sentence(prepared, result)
    size = match_words.interval((mean, low, high))
    assert said == f"honest earns {size} points a game more than random over 6000 games, both seats."
    turned = result | {"difference": (-mean, -high, -low)}
    assert sentence(prepared, turned) == said.replace("more", "less")
    assert " earns 0 [-3, 3] points" in sentence(prepared, result | {"difference": (0.0, -3.0, 3.0)})
    unclear = sentence(prepared, result | {"difference": (0.1, -0.2, 0.4)})
    assert "0.1 [-0.2, 0.4] points a game more" in unclear and unclear.endswith("no clear difference.")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("go", "a", "--against", "b"), "No game is called 'go'"),
        (("stairs", "random", "--against", "correct"), "stairs has one seat: there is nobody to play against"),
        (("kuhn_poker", "honest", "--against", "nobody"), "Scripted players of this game: random, equilibrium"),
        (("kuhn_poker", "honest", "--against", "rando"), "'rando'. Did you mean random? Scripted players of this game"),
        (
            ("kuhn_poker", "runs/none/policies/me", "--against", "random"),
            "There is no directory 'runs/none/policies/me'",
        ),
        (
            ("kuhn_poker", "{home}/a", "--against", "random"),
            "is no policy and no model: below it are {home}/a/policies/me",
        ),
        (("kuhn_poker", "honest", "--against", "random", "--games", "0"), "games must be from 1"),
        (("kuhn_poker", "{home}/other", "--against", "random"), "a tiny policy of another game"),
        (
            ("kuhn_poker", "honest", "--against", "random", "--out", "{home}"),
            "holds files already, which --out would overwrite: name a new directory",
        ),
    ],
)
def test_a_match_that_cannot_be_is_one_sentence(arguments, says, command, home):
    code, _, error = command(*(x.format(home=home) for x in arguments))
    assert code == 2 and says.format(home=home) in error and "Traceback" not in error
    assert ("Unknown model" in error) == ("nobody" in arguments)


def test_players_are_called_by_what_differs(home):
    scripts = KuhnPoker().scripts
    a, b = str(home / "a/policies/me"), str(home / "b/policies/me")
    assert match.label((a, b), scripts) == ("a/policies/me", "b/policies/me")
    assert match.label((a, "random"), scripts) == ("me", "random")
    assert match.label((a, a), scripts) == ("me", "me")
    assert match.label(("smollm2", "honest"), scripts) == ("smollm2", "honest")


def test_adapters_of_a_base_and_tiny_policies_have_their_sets(home):
    prepared = match.prepare(Settings("kuhn_poker", str(home / "adapter"), str(home / "a/policies/me")))
    assert prepared.names == ("adapter", "me") and {*prepared.policy_sets} == {"adapter", "me"}
    assert len({x.tokenizer.vocab_size for x in prepared.policy_sets.values()}) == 2
    both = match.prepare(Settings("kuhn_poker", str(home / "model"), str(home / "adapter")))
    assert both.weights["model"]["params"] is both.weights["adapter"]["params"]  # a base is read once


def test_a_match_is_not_overwritten(command, tmp_path):
    arguments = (
        "prisoners_dilemma",
        "tit_for_tat",
        "--against",
        "always_defect",
        "--games",
        "40",
        "--out",
        str(tmp_path),
    )
    code, said, _ = command(*arguments)
    assert code == 0
    rows = {line.split("  ")[0]: line.split()[-8:] for line in said.splitlines() if line.startswith("cooperates")}
    assert rows["cooperates at first"] == ["40", "of", "40", "rounds", "0", "of", "40", "rounds"]
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    code, _, error = command(*arguments)
    assert code == 2 and error == (
        f"error: {tmp_path} holds files already, which --out would overwrite: name a new directory.\n"
    )
    assert before == {file: file.read_bytes() for file in tmp_path.iterdir()} and before


def test_a_directory_that_cannot_be_is_one_sentence_before_games_are_played(command, monkeypatch):
    monkeypatch.setattr(match, "play", None)
    code, _, error = command("kuhn_poker", "honest", "--against", "random", "--out", "/proc/match")
    assert code == 2 and re.fullmatch(r"error: cannot write in the directory /proc/match \(.+\): name .+\n", error)


def test_a_share_of_rounds_is_a_count():
    assert match_words.count_of(1, 40) == "40 of 40 rounds"
    assert match_words.count_of(4 / 9, 9) == "4 of 9 rounds"
    assert match_words.count_of(float("nan"), 0) == "never met"


@pytest.mark.long
def test_policies_of_two_vocabularies_meet_and_their_games_are_shown(home, tmp_path, command):
    out = tmp_path / "games"
    tiny = str(home / "a/policies/me")
    code, said, error = command(
        "kuhn_poker", str(home / "adapter"), "--against", tiny, "--games", "60", "--out", str(out)
    )
    assert code == 0, error
    assert said.count("over 60 games, both seats") == 1 and "exact, all deals" in said and "NashConv" in said
    result = json.loads((out / "match.json").read_text())
    assert result["players"] == ["adapter", "me"] and result["games"] == 60
    games = [json.loads(line) for line in (out / "games.jsonl").read_text().splitlines()]
    assert len(games) == 16 and "games.html" in said
    for at, game in enumerate(games):
        names = [seat["policy"] for seat in game["seats"]]
        assert names == ["adapter", "me"][:: 1 if at % 2 == 0 else -1]
        for seat in game["seats"]:
            assert [message["role"] for message in seat["messages"][:2]] == ["system", "user"]
            for answer in seat["answers"]:
                (said_first, *_) = [token for token in answer["tokens"] if "logp" in token]
                assert said_first["top"] and max(p for _, p in said_first["top"]) <= 1
    cards = [[seat["messages"][1]["content"] for seat in game["seats"]] for game in games]
    assert all(
        first[0].split()[:3] == second[0].split()[:3] for first, second in zip(cards[::2], cards[1::2], strict=True)
    )


@pytest.mark.long
def test_a_tiny_policy_earns_what_its_table_says(home):
    prepared, played = play(str(home / "a/policies/me"), str(home / "b/policies/me"), games=4000)
    known = match.exact(prepared)
    mine, _ = played.sides(played.reward[..., 0])
    assert abs(mine.mean() - known["points"][0]) < 4 * mine.std() / len(mine) ** 0.5
    assert all(x >= 0 for x in known["nash_conv"]) and not jax.tree.leaves(prepared.weights)[0].is_deleted()


@pytest.mark.long
def test_messages_and_more_than_two_seats(home):
    prepared, played = play(str(home / "model"), "always_cooperate", game="prisoners_dilemma_talk", games=8, words=4)
    result = match.summarise(prepared, played)
    assert next(cells[1][0] for cells in result["cooperation"].values() if cells[1][1]) == 1  # the script cooperates
    prepared, played = play("always_give", "never_give", game="public_goods", games=10)
    assert prepared.seatings[1] == ("never_give", "always_give", "never_give") and len(played.reward) == 12
    mine, theirs = played.sides(played.reward.sum(-1))
    assert (mine < theirs).all() and sentence(prepared, match.summarise(prepared, played)).endswith("all seats.")
