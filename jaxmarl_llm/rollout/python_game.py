"""One episode of a Python game: its environment, its random generators, and the observations of its seats."""

from __future__ import annotations

import numbers
import random
import reprlib
import warnings
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from jaxmarl_llm.environments.base import LARGEST
from jaxmarl_llm.environments.bridges.python_games import TextEnvironment, Turn


class Dice:
    """A context in which the global generators of Python and NumPy have a separate state, started from a seed."""

    def __init__(self, seed: int):
        self._state = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    def _swap(self) -> None:
        saved = self._state
        self._state = random.getstate(), np.random.get_state()  # noqa: NPY002 - environments draw from them
        random.setstate(saved[0])
        np.random.set_state(saved[1])  # noqa: NPY002


def make_environment(make: Callable[[], TextEnvironment]) -> TextEnvironment:
    """The environment that `make` returns. Raises ValueError unless it is a text environment."""
    if not callable(make):
        raise ValueError(f"make is a class or a function that makes an environment for each game, and not {make!r}.")
    environment = make()
    has = not isinstance(environment, type) and all(hasattr(environment, name) for name in ("reset", "step"))
    if not has or not isinstance(getattr(environment, "agents", None), int | np.integer):
        raise ValueError(
            f"make() is {environment!r}: a text environment has agents, a number, reset and step, as the functions "
            "textarena, reasoning_gym, pettingzoo and openenv make it of theirs."
        )
    return environment


def finite_reward(reward: Any) -> float:
    """A reward rounded to float32; NaN for any object that is no number up to LARGEST in size."""
    if getattr(reward, "shape", None) == () and reward is not np.ma.masked:
        reward = reward.item()
    if not isinstance(reward, numbers.Real | Decimal):
        return np.nan
    try:
        value = float(reward)
    except (OverflowError, ValueError):  # an integer beyond all floats; a signalling NaN
        return np.nan
    return float(np.float32(value)) if abs(value) <= LARGEST else np.nan


class Game:
    """One episode: the environment, its dice, and the texts that each seat has seen."""

    def __init__(self, make: Callable[[], TextEnvironment], seed: int):
        self.dice = Dice(seed)
        with self.dice:
            self.environment = make_environment(make)
            rules, self.now = self.environment.reset(seed)
        self.rules = list(rules)
        self.seen = [[text] for text in self.rules]
        self.cut = False
        self._check()

    @property
    def in_progress(self) -> bool:
        return not (self.now.done or self.cut)

    def step(self, said: dict[int, str]) -> None:
        for seat, text in said.items():
            self.seen[seat].append(text)
        try:
            with self.dice:
                self.now = self.environment.step(said)
        except Exception as error:
            error.add_note(f"The environment raised this when the seats said {said!r}.")
            raise
        self._check()

    def _check(self) -> None:
        if not isinstance(self.now, Turn):
            raise ValueError(f"An environment's reset and step must give a Turn, this one gave {self.now!r}.")
        seats = range(self.environment.agents)
        if not isinstance(self.now.reward, Mapping):  # a wrong reward for every seat
            self.now = self.now._replace(reward=dict.fromkeys(seats, self.now.reward))
        named = {*self.now.told, *self.now.acting, *self.now.reward}
        if not self.now.done and not self.now.acting:
            raise ValueError("The environment is not done, but lets no seat speak.")
        if len(self.rules) != len(seats) or not named <= set(seats):
            raise ValueError(
                f"The environment has seats 0 to {len(seats) - 1}, but gives rules to {len(self.rules)} and speaks of "
                f"{sorted(named)}."
            )
        for seat, text in self.now.told.items():
            self.seen[seat] += [text] if text else []


class WrongRewards:
    """Reports rewards that are no finite numbers: the first of a batch, for ten batches at most. `run` names the run
    that plays; "": the only one."""

    MOST = 10

    def __init__(self) -> None:
        self.tell: Callable[[str], object] = warnings.warn
        self.run = ""
        self._batches, self._episodes, self._sentence = 0, set[int](), ""

    def read(self, game: Game, episode: int, turn: int, said: Mapping[int, str]) -> dict[int, float]:
        """The rewards of a turn by seat, given the answers `said` by seat.

        A reward that is no finite number becomes NaN, is noted for the report and cuts the game off.
        """
        rewards = {seat: finite_reward(paid) for seat, paid in game.now.reward.items()}
        seat = next((seat for seat, reward in rewards.items() if np.isnan(reward)), None)
        if seat is not None:
            game.cut = True
            if not self._episodes:
                answers = "; ".join(f"seat {speaker} said {text!r}" for speaker, text in said.items())
                name = getattr(game.environment, "name", type(game.environment).__name__)
                self._sentence = (
                    f"{name} paid seat {seat} of episode {episode} {reprlib.repr(game.now.reward[seat])} in turn "
                    f"{turn}, after {answers}: a reward is a number up to 1e30."
                )
            self._episodes.add(episode)
        return rewards

    def report(self) -> None:
        """Reports the wrong rewards of the batch that ends here."""
        if self._episodes and self._batches < self.MOST:
            self._batches += 1
            of_run = f"In a game of {self.run}, " if self.run else ""
            self.tell(f"{of_run}{self._sentence} Episodes left out: {len(self._episodes)}.")
        self._episodes.clear()
