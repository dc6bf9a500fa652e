"""Options of a command: a wrong word is one sentence with a neighbour, and help names what it takes."""

import dataclasses
from typing import Annotated

import pytest
import tyro

from jaxmarl_llm.text.arguments import options, read_arguments


@dataclasses.dataclass(frozen=True)
class Inner:
    last: int = 2


@dataclasses.dataclass(frozen=True)
class Settings:
    game: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GAME")]
    """The game.

    It is long."""
    against: Annotated[str, tyro.conf.arg(metavar="PLAYER")]
    """The other player."""
    first_seed: int = 0
    keep: Inner = Inner()


READ = "chess", "--against", "greedy"


def read(*words: str) -> Settings:
    return read_arguments(Settings, "python -m it", "Plays.", words, {"--lr": "--first-seed"})


def test_options_are_read():
    assert read(*READ, "--first_seed", "3", "--keep.last=1") == Settings("chess", "greedy", 3, Inner(1))
    assert options(Settings) == ["--help", "--against", "--first-seed", "--keep.last"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*READ, "--first-sed", "3"), "There is no option --first-sed. Did you mean --first-seed?"),
        ((*READ, "--first_sed=3"), "There is no option --first_sed. Did you mean --first-seed?"),
        (("chess", "--agains", "x"), "There is no option --agains. Did you mean --against?"),
        ((*READ, "--lr", "3"), "There is no option --lr. Did you mean --first-seed?"),
        ((*READ, "--xyz"), "There is no option --xyz."),
        ((), "Missing: GAME, --against PLAYER."),
        (("chess",), "Missing: --against PLAYER."),
        ((*READ, "--first-seed", "x"), "--first-seed: invalid literal for int() with base 10: 'x'."),
        (("chess", "--against"), "Missing value for argument '--against'. Expected 1 values."),
        ((*READ, "more"), "No option takes the word more."),
    ],
)
def test_a_wrong_word_is_one_sentence(words, says, capsys):
    with pytest.raises(SystemExit) as end:
        read(*words)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: {says} `python -m it --help` lists the options.\n"


def test_help_names_the_command_and_what_it_takes(capsys):
    with pytest.raises(SystemExit) as end:
        read("--help")
    assert not end.value.code and "usage: python -m it [-h] GAME --against PLAYER" in capsys.readouterr().out
