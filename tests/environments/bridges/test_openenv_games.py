"""A real OpenEnv server on loopback, played and learnt from."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxmarl_llm.environments.bridges.openenv_games import openenv, written_out
from tests.support.python_learning import learn

installed = importlib.util.find_spec("openenv") is not None
needs_openenv = pytest.mark.skipif(not installed, reason="openenv-core is not installed")


@pytest.fixture(scope="module")
def server():
    """The process and its address."""
    command = [sys.executable, "-m", "tests.support.openenv_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


def test_observations_are_their_text_or_their_fields():
    assert written_out({"text": "hello", "reward": 1.0, "done": False, "metadata": {}}) == "hello"
    assert written_out({"text": "hello", "hint": "no", "left": 2}) == '{"text": "hello", "hint": "no", "left": 2}'
    assert written_out({"text": "hello", "hint": None}) == "hello"
    assert written_out({"text": "hello", "legal": [0, 2]}) == '{"text": "hello", "legal": [0, 2]}'
    assert written_out({"board": [0, 1]}) == '{"board": [0, 1]}'


@pytest.mark.skipif(installed, reason="openenv-core is installed")
def test_without_the_package_it_says_what_to_install():
    with pytest.raises(ValueError, match="OpenEnv is not installed: run `pip install openenv-core`"):
        openenv("http://127.0.0.1:1")


@needs_openenv
@pytest.mark.commands
def test_policies_learn_in_a_served_environment(server):
    _, address = server

    # as it is played alone: the seed deals, rewards are paid as they are earned, the end ends
    game, again = openenv(address, "Answer a number.")(), openenv(address)()
    rules, turn = game.reset(3)
    assert rules == ["Answer a number."] and turn.acting == (0,) and turn.told[0].startswith("It is ")
    assert again.reset(3)[1] == turn
    shown = {again.reset(seed)[1].told[0] for seed in range(20)}
    assert shown == {"It is red.", "It is green.", "It is blue."}
    first, last = game.step({0: "1"}), game.step({0: "2"})
    assert (first.reward, first.done, last.reward, last.done) == ({0: 1.0}, False, {0: 0.0}, True)
    assert first.told == {0: turn.told[0].replace("is", "was")}

    def number(text):
        return {"message": str(int(text))}

    game = openenv(address, read=number)()
    _, turn = game.reset(0)
    refused = game.step({0: "what?"})
    assert refused.invalid == (0,) and refused.told == turn.told and not refused.done
    with pytest.raises(ConnectionError, match=r"did not answer: .*this word breaks the game"):
        again.step({0: "break"})

    earned = learn(openenv(address), (("learner",),), turns=2)
    assert earned[0] < 0.5 and np.mean(earned[-3:]) > 0.9, earned

    process, _ = server
    process.kill()
    process.wait()
    with pytest.raises(ConnectionError, match="did not answer"):
        again.reset(0)
