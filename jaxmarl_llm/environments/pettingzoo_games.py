"""PettingZoo both ways: our games as its environments, and its environments as games that our policies play.

https://pettingzoo.farama.org, `pip install pettingzoo`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxmarl_llm.environments.base import phrases
from jaxmarl_llm.environments.python_games import TextEnvironment, Turn
from jaxmarl_llm.environments.table import Table, parse

try:
    from gymnasium import spaces
    from pettingzoo import AECEnv
except ImportError:
    spaces, AECEnv = None, object  # type: ignore[assignment]


class GameAEC(AECEnv):
    """A game as an AEC environment: agents "seat_0" to "seat_A-1", who act in this order where several act at once.

    An observation is {"observation": int32 [K' + K + 2], "action_mask": int8 [N]}: of every field of the rules, then of
    what is told now, 1 + the phrase (0: none), then role and grammar. Texts are in `infos[agent]["text"]`: all that the
    agent was told and said so far. An action is a number, or the answer in words, which may hold a message. Rewards are
    the sums of the game's components. A game in which all act in every turn becomes a parallel environment with
    `pettingzoo.utils.aec_to_parallel(GameAEC(game, simultaneous=True))`.
    Raises ValueError without PettingZoo, and for an action that is not legal.
    """

    def __init__(self, game: Any, name: str = "", simultaneous: bool = False):
        if spaces is None:
            raise ValueError("PettingZoo is not installed: run `pip install pettingzoo`.")
        super().__init__()
        self.game = game
        name = name or type(game).__name__
        self.metadata = {"name": name, "is_parallelizable": simultaneous, "render_modes": ["ansi"]}
        self.render_mode = "ansi"
        self.possible_agents = [f"seat_{seat}" for seat in range(game.agents)]
        fields = [*phrases(game.rules), *phrases(game.observation)]
        most = max([*map(len, fields), len(game.roles), len(game.grammars)])
        told, mask = spaces.Box(0, most, (len(fields) + 2,), np.int32), spaces.Box(0, 1, (game.actions,), np.int8)
        seats = self.possible_agents
        self.observation_spaces = {seat: spaces.Dict({"observation": told, "action_mask": mask}) for seat in seats}
        self.action_spaces = {seat: spaces.Discrete(game.actions) for seat in seats}

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Deals a game from the seed; without one, from one that is drawn."""
        del options
        table = Table(self.game, int(np.random.default_rng().integers(2**31)) if seed is None else seed)
        self.table, self.agents = table, list(self.possible_agents)
        self.actions: dict[int, tuple[int, str]] = {}
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._skip_agent_selection = None
        self._told()

    def _told(self) -> None:
        """What a new turn tells everybody, and who acts first."""
        self.infos = {agent: {"text": "\n".join(self.table.seen[seat])} for seat, agent in self._living()}
        acting = np.flatnonzero(self.table.view.acting)
        self.agent_selection = self.possible_agents[acting[0] if len(acting) else 0]

    def _living(self) -> list[tuple[int, str]]:
        return [(seat, agent) for seat, agent in enumerate(self.possible_agents) if agent in self.agents]

    def observe(self, agent: str) -> dict[str, np.ndarray]:
        seat, view = self.possible_agents.index(agent), self.table.view
        told = [
            *(1 + self.table.prompt[seat]),
            *(1 + np.asarray(view.phrases[seat])),
            view.role[seat],
            view.grammar[seat],
        ]
        mask = np.asarray(view.legal[seat]) & bool(view.acting[seat])
        return {"observation": np.array(told, np.int32), "action_mask": mask.astype(np.int8)}

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def render(self) -> str:
        return "\n\n".join(f"{agent}: {self.infos[agent]['text']}" for _, agent in self._living())

    def close(self) -> None:
        """Nothing is open."""

    def step(self, action: int | str | None) -> None:
        """The selected agent's action; the game goes on when all have acted who act in this turn."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        seat, table = self.possible_agents.index(agent), self.table
        found = parse(table.grammar(seat), action.encode()) if isinstance(action, str) else (int(action or 0), "")
        if found is None or not 0 <= found[0] < self.game.actions or not table.view.legal[seat, found[0]]:
            legal = np.flatnonzero(table.view.legal[seat]).tolist()
            raise ValueError(f"{agent} cannot answer {action!r} now: legal actions are {legal}.")
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.actions[seat] = found
        waiting = [seat for seat in np.flatnonzero(table.view.acting) if seat not in self.actions]
        if waiting:
            self.agent_selection = self.possible_agents[waiting[0]]
            return
        numbers = np.zeros(self.game.agents, np.int32)
        for seat, (number, _) in self.actions.items():
            numbers[seat] = number
        paid = table.play(numbers, {seat: words for seat, (_, words) in self.actions.items()})
        self.actions = {}
        self.rewards = {agent: float(paid[seat].sum()) for seat, agent in self._living()}
        self.terminations = dict.fromkeys(self.agents, bool(table.view.terminated))
        self.truncations = dict.fromkeys(self.agents, bool(table.view.truncated))
        self._told()
        self._accumulate_rewards()


def pettingzoo(
    make: Callable[[], Any],
    rules: str | tuple[str, ...] = "",
    tell: Callable[[str, Any], str] | None = None,
    read: Callable[[str, str], Any] | None = None,
) -> Callable[[], TextEnvironment]:
    """Makes games of a PettingZoo environment, AEC or parallel: an argument of PythonRollout.

    `tell(agent, observation)` puts what an agent observes into words; without it, the array is written out, with the
    legal actions where there is a mask. `read(agent, text)` makes an action of an answer, or raises ValueError;
    without it, an action is the whole number that the text holds. `rules` are told to all, or to each its own. An
    answer that is no action, or not legal, is invalid: the first legal action is played in its place, or action 0.
    """
    return lambda: _PettingZoo(make(), rules, tell or written_out, read or whole_number)


def written_out(agent: str, observation: Any) -> str:
    """An observation as text: its numbers in rows, and the legal actions."""
    del agent
    array, mask = (observation["observation"], observation["action_mask"]) if isinstance(observation, dict) else (
        observation, None,
    )  # fmt: skip
    text = " ".join(np.array2string(np.asarray(array, np.float64), formatter={"float_kind": "{:g}".format}).split())
    return text if mask is None else f"{text} Legal actions: {' '.join(map(str, np.flatnonzero(mask)))}."


def whole_number(agent: str, text: str) -> int:
    """The number that an answer is. Raises ValueError if it is none."""
    del agent
    return int(text)


class _PettingZoo:
    def __init__(self, env: Any, rules: str | tuple[str, ...], tell: Callable, read: Callable):
        self._env, self._rules, self._tell, self._read = env, rules, tell, read
        self._names = list(env.possible_agents)
        self.agents = len(self._names)
        self._parallel = not hasattr(env, "agent_iter")

    def reset(self, seed: int) -> tuple[list[str], Turn]:
        rules = (self._rules,) * self.agents if isinstance(self._rules, str) else self._rules
        given = self._env.reset(seed=seed % 2**32)
        return list(rules), self._turn(given[0] if self._parallel else None, np.zeros(self.agents))

    def step(self, said: dict[int, str]) -> Turn:
        wrong, actions = [], {}
        for seat, text in said.items():
            name, space = self._names[seat], self._env.action_space(self._names[seat])
            legal = self._masks[seat]
            try:
                action = self._read(name, text)
                possible = space.contains(action) and (legal is None or bool(legal[action]))
            except ValueError:
                possible = False
            if not possible:
                wrong.append(seat)
                action = 0 if legal is None else int(np.flatnonzero(legal)[0])
            actions[name] = action
        if self._parallel:
            observations, rewards, *_ = self._env.step(actions)
        else:
            [action] = actions.values()
            self._env.step(action)
            observations, rewards = None, self._env.rewards
        paid = np.array([float(rewards.get(name, 0.0)) for name in self._names])
        return self._turn(observations, paid)._replace(invalid=tuple(wrong))

    def _turn(self, observations: dict[str, Any] | None, paid: np.ndarray) -> Turn:
        """What is told now. Agents of an AEC environment that are out make their empty step."""
        env = self._env
        while (
            not self._parallel
            and env.agents
            and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection])
        ):
            env.step(None)
        reward = {seat: float(x) for seat, x in enumerate(paid)}
        if not env.agents:
            return Turn(reward=reward, done=True)
        if observations is None:
            observations = {env.agent_selection: env.observe(env.agent_selection)}
        told = {self._names.index(name): self._tell(name, seen) for name, seen in observations.items()}
        self._masks = {
            self._names.index(name): seen.get("action_mask") if isinstance(seen, dict) else None
            for name, seen in observations.items()
        }
        return Turn(told, tuple(self._names.index(name) for name in observations if name in env.agents), reward)
