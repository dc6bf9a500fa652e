"""Python games that cannot continue: a context that is too small, environments that break the contract."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.bridges.python_games import Turn
from jaxmarl_llm.models import decoder
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.serving.calls import Call
from jaxmarl_llm.serving.python_rollout import PythonRollout
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from tests.support.toys import ByteTokenizer

BYTES = ByteTokenizer()


def tiny(tokenizer: ByteTokenizer, context: int) -> Config:
    return Config(tokenizer.vocab_size, 16, 24, 1, 2, 1, 8, context)


class Chatter:
    """One seat, told `heard` letters in every turn."""

    agents = 1

    def __init__(self, heard: int = 10, prompt: int = 70, begin: str = "x", acting: tuple[int, ...] = (0,)):
        self.heard, self.prompt, self.begin, self.acting = heard, prompt, begin, acting

    def reset(self, seed: int) -> tuple[Sequence[str], Turn]:
        return [self.begin * self.prompt], Turn({0: "y"}, (0,))

    def step(self, said: dict[int, str]) -> Turn:
        return Turn({0: "z" * self.heard}, self.acting, {0: 1.0})


def of_one(make: Any, group_size: int = 1, config: Config | None = None, masked: bool = True, **settings: Any):
    """A rollout of one group; without a config a script plays, and nothing compiles."""
    policy_sets = {"us": PolicySet(BYTES, ("us",), config, masked=masked)}
    scripts = {} if config else {"us": lambda seen: "hm"}
    return PythonRollout(
        make, policy_sets, Lineup((("us",),), group_size), 4, **{"budget": 4, "scripts": scripts, **settings}
    )


def test_a_game_that_outgrows_the_context_is_cut_off():
    markers, answer = BYTES.markers, 3
    prompt = len(markers.before_rules) + 70 + len(markers.hear_first) + 1 + len(markers.speak)
    heard = len(markers.hear) + 10 + len(markers.speak)
    for room, turns in ((3, 1), (4, 2), (4 + heard + answer, 3)):  # an answer may take 4 tokens
        rollout = of_one(Chatter, context=prompt + answer + heard + room)
        trajectory = jax.device_get(rollout({"us": {}}, jax.random.key(0)))
        rows, episodes = trajectory.rows["us"], trajectory.episodes
        assert rows.prompts.length.tolist() == [prompt]
        assert rows.length.tolist() == [turns * answer + (turns - 1) * heard]
        assert episodes.truncated.tolist() == [True] and episodes.terminated.tolist() == [False]
        assert episodes.acted[0, :, 0].tolist() == [t < turns for t in range(4)]
        assert episodes.reward[0, :, 0, 0].tolist() == [float(t < turns) for t in range(4)]


class Fragile(Chatter):
    """The first game of all ends in an exception."""

    broken = False

    def step(self, said: dict[int, str]) -> Turn:
        if not Fragile.broken:
            Fragile.broken = True
            raise RuntimeError("no luck")
        return super().step(said)


def test_after_a_game_that_raised_the_rollout_plays_again_and_between_batches_engines_hold_nothing():
    config = tiny(BYTES, 128)
    rollout, key = of_one(Fragile, group_size=2, config=config), jax.random.key(0)
    weights = {"us": {"params": decoder.init(config, key)}}
    with pytest.raises(RuntimeError, match="no luck"):
        rollout(weights, key)
    (engine,) = rollout.engines.values()
    assert not engine.busy and engine._prepared is None and engine._arrays is None
    again = jax.device_get(rollout(weights, key))
    assert engine._prepared is None and engine._arrays is None
    fresh = jax.device_get(of_one(Fragile, group_size=2, config=config)(weights, key))
    jax.tree.map(np.testing.assert_array_equal, again, fresh)
    with pytest.raises(ValueError, match="no weights now"):
        engine.submit(Call([1], (0, 0), (0, 0, 0, 0), 4))


def test_mistakes_are_named():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match=r"prompt of seat 0 has 10[0-9] tokens"):
        of_one(partial(Chatter, prompt=92), context=64)({"us": {}}, key)
    with pytest.raises(ValueError, match="lets no seat speak"):
        of_one(partial(Chatter, acting=()))({"us": {}}, key)
    with pytest.raises(ValueError, match=r"speaks of \[0, 1\]"):
        of_one(partial(Chatter, acting=(1,)))({"us": {}}, key)
    letters = iter("abc")
    with pytest.raises(ValueError, match="begin differently"):
        of_one(lambda: Chatter(begin=next(letters)), group_size=2)({"us": {}}, key)
    with pytest.raises(ValueError, match="budget of at least 2"):
        of_one(Chatter, budget=1)
    with pytest.raises(ValueError, match="holds 64"):
        of_one(Chatter, config=tiny(BYTES, 64), context=65)
    with pytest.raises(ValueError, match="unmasked"):
        of_one(Chatter, masked=False)
    with pytest.raises(ValueError, match="tokens for single bytes"):
        symbols = SymbolTokenizer(["x", "y"])
        PythonRollout(Chatter, {"us": PolicySet(symbols, ("us",), tiny(BYTES, 64))}, Lineup((("us",),), 1), 1)
    with pytest.raises(ValueError, match="The game has 1 seats"):
        PythonRollout(Chatter, {"us": PolicySet(BYTES, ("us",), tiny(BYTES, 64))}, Lineup((("us", "us"),), 1), 1)


def test_an_answer_that_is_no_turn_is_named():
    class Broken(Chatter):
        def step(self, said):
            return "won", 1.0

    with pytest.raises(ValueError, match=r"must give a Turn, this one gave \('won', 1.0\)"):
        of_one(Broken)({"us": {}}, jax.random.key(0))


def test_errors_of_an_environment_quote_the_answers():
    class Broken(Chatter):
        def step(self, said):
            raise RuntimeError("no such move")

    with pytest.raises(RuntimeError, match="no such move") as caught:
        of_one(Broken)({"us": {}}, jax.random.key(0))
    assert "when the seats said {0: 'hm'}" in caught.value.__notes__[0]
