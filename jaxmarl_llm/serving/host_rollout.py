"""The parts that rollouts on the host share: row layouts, an engine for each policy set with a model, and reports."""

from __future__ import annotations

import abc
import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.rollout.layout import Messages, rows_of_seats
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.text_rows import power_of_two, text_layout
from jaxmarl_llm.rollout.trajectory import Trajectory
from jaxmarl_llm.serving.engine import Engine


def warn_again(text: str) -> None:
    """Warns, also if the same warning was shown before."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(text, stacklevel=2)


class Failures:
    """Reports programs that failed: the first of a batch, for ten batches at most."""

    MOST = 10

    def __init__(self) -> None:
        self.tell: Callable[[str], object] = warn_again
        self.run = ""  # the name of the run, if there are several
        self._batches, self.count = 0, 0
        self._sentences: dict[int, str] = {}  # by episode

    def add(self, episode: int, why: str) -> None:
        self.count += 1
        self._sentences[episode] = why

    def report(self, episodes: int) -> None:
        """Reports the failures of the batch that ends here."""
        if self.count and self._batches < self.MOST:
            self._batches += 1
            run = f"{self.run}: " * bool(self.run)
            first = min(self._sentences)
            why = f"Episode {first} failed: {self._sentences[first]}"
            self.tell(f"{run}{why} Episodes that failed: {self.count} of {episodes}.")
        self.count = 0
        self._sentences.clear()


class HostRollout(abc.ABC):
    """A rollout of games of `agents` seats and at most `turns` turns, with utterances of at most `budget` tokens.

    `slots` is the number of rows that are computed at once, rounded up to a power of two; None: all rows of a set.
    Raises ValueError before anything compiles for a line-up that cannot play, a budget below 2 or as long as the
    context, or a wrong context.
    """

    wrong_rewards: Any  # WrongRewards of games, or Failures

    @abc.abstractmethod
    def __call__(self, weights: dict[str, dict], key: jax.Array) -> Trajectory: ...

    def __init__(
        self,
        policy_sets: dict[str, PolicySet],
        lineup: Lineup,
        agents: int,
        turns: int,
        budget: int,
        context: int | None = None,
        slots: int | None = None,
        scripts: Mapping[str, Any] | None = None,
    ):
        if not isinstance(budget, int) or budget < 2:
            raise ValueError(f"budget is a whole number of at least 2 (a token and the end), got {budget!r}.")
        seats: Any = SimpleNamespace(agents=agents, scripts=scripts or {}, accepts_illegal=True)
        lineup.check(seats, policy_sets)
        self.policy_sets, self.lineup, self.agents, self.turns, self.budget = policy_sets, lineup, agents, turns, budget
        self.messages = Messages({}, 0, 0)  # an observation is no message
        self.layouts = {name: text_layout(name, policy_sets[name], lineup, context) for name in policy_sets}
        for name, layout in self.layouts.items():
            if budget >= layout.context:
                raise ValueError(
                    f"An answer of {budget} tokens, the budget, leaves no room in the context of {name}, "
                    f"{layout.context} tokens."
                )
        self.row_of = {name: rows_of_seats(layout, lineup.episodes, agents) for name, layout in self.layouts.items()}
        self.slots, self.engines = slots, dict[str, Engine]()

    def max_sampled_tokens(self, policy_set: str) -> int:
        """The largest number of trained tokens in a row of this policy set."""
        return self.turns * (self.budget - 1)

    @contextlib.contextmanager
    def with_weights(self, weights: dict[str, dict]) -> Iterator[dict[str, Engine]]:
        """A context in which the engines, by policy set, have these weights. After it they hold neither weights nor
        caches, so that an update has the memory."""
        for name, policy_set in self.policy_sets.items():
            if policy_set.config is None:
                continue
            if name in self.engines:
                self.engines[name].use(weights[name])
            else:
                layout = self.layouts[name]
                slots = power_of_two(self.slots or len(layout.episode), 1)
                self.engines[name] = Engine(policy_set, weights[name], slots, layout.context)
            self.engines[name].reset_shares()
        try:
            yield self.engines
        finally:
            for engine in self.engines.values():
                engine.release()

    def utilisation(self) -> dict[str, jax.Array]:
        """By policy set, the share of the tokens computed in the last batch that were no padding, float32."""
        shares = {name: engine.share_used for name, engine in self.engines.items()}
        return {name: jnp.float32(shares.get(name, 0)) for name in self.layouts}
