"""PettingZoo both ways: our games as its environments, and its environments as games for our policies.

https://pettingzoo.farama.org, `pip install pettingzoo`.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxmarl_llm.environments.base import phrases
from jaxmarl_llm.environments.bridges.action_spaces import check_space, legal_actions, member, read_action, read_mask
from jaxmarl_llm.environments.bridges.python_games import TextEnvironment, Turn
from jaxmarl_llm.environments.bridges.table import Table, parse

try:
    from gymnasium import spaces
    from pettingzoo import AECEnv
except ImportError:
    spaces, AECEnv = None, object  # type: ignore[assignment]

MASK = "action_mask"  # its name in an observation, or in infos
NOT_INSTALLED = "PettingZoo is not installed: run `pip install pettingzoo`."


class GameAEC(AECEnv):
    """A game as an AEC environment with agents "seat_0" to "seat_A-1".

    Agents that act at once are asked in this order. An observation is {"observation": int32 [K' + K + 2],
    "action_mask": int8 [N]}. Its entries are the fields of the rules, then those of the present text (1 + the phrase,
    0: none), then role and grammar. `infos[agent]["text"]` holds all texts that the agent was told and said so far.

    An action is a number, or the answer in words, which may hold a message. A reward is the sum of the game's
    components. A game in which all act in every turn becomes a parallel environment with
    `pettingzoo.utils.aec_to_parallel(GameAEC(game, simultaneous=True))`.
    Raises ValueError without PettingZoo, and for an illegal action.
    """

    def __init__(self, game: Any, name: str = "", simultaneous: bool = False):
        if spaces is None:
            raise ValueError(NOT_INSTALLED)
        super().__init__()
        self.game = game
        name = name or type(game).__name__
        self.metadata = {"name": name, "is_parallelizable": simultaneous, "render_modes": ["ansi"]}
        self.render_mode = "ansi"
        self.possible_agents = [f"seat_{seat}" for seat in range(game.agents)]
        fields = [*phrases(game.rules), *phrases(game.observation)]
        high = max([*map(len, fields), len(game.roles), len(game.grammars)])
        told, mask = spaces.Box(0, high, (len(fields) + 2,), np.int32), spaces.Box(0, 1, (game.actions,), np.int8)
        seats = self.possible_agents
        self.observation_spaces = {seat: spaces.Dict({"observation": told, "action_mask": mask}) for seat in seats}
        self.action_spaces = {seat: spaces.Discrete(game.actions) for seat in seats}

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Deals a game from the seed, or from a random seed if there is none."""
        del options
        table = Table(self.game, int(np.random.default_rng().integers(2**31)) if seed is None else seed)
        self.table, self.agents = table, list(self.possible_agents)
        self.actions: dict[int, tuple[int, str]] = {}
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._skip_agent_selection = None
        self._announce_turn()

    def _announce_turn(self) -> None:
        """Writes the texts of a new turn, and selects the first acting agent."""
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
        """Takes the selected agent's action; the game goes on when all agents that act in this turn have acted."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        seat, table = self.possible_agents.index(agent), self.table
        parsed = parse(table.grammar(seat), action.encode()) if isinstance(action, str) else _number(action)
        if parsed is None or not 0 <= parsed[0] < self.game.actions or not table.view.legal[seat, parsed[0]]:
            legal = np.flatnonzero(table.view.legal[seat]).tolist()
            raise ValueError(f"{agent} cannot answer {action!r} now: legal actions are {legal}.")
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.actions[seat] = parsed
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
        self._announce_turn()
        self._accumulate_rewards()


def _number(action: Any) -> tuple[int, str] | None:
    """A whole number (also NumPy's and JAX's) as `parse` returns it."""
    try:
        return operator.index(action), ""
    except TypeError:
        return None


def pettingzoo(
    make: Callable[[], Any],
    rules: str | tuple[str, ...] = "",
    tell: Callable[[str, Any], str] | None = None,
    read: Callable[[str, str], Any] | None = None,
) -> Callable[[], TextEnvironment]:
    """A function that makes games of a PettingZoo environment, AEC or parallel: an argument of PythonRollout.

    `tell(agent, observation)` turns an observation into a text. By default the observation is written out, and a mask
    adds the legal actions. The mask is `action_mask` of the observation or else of `infos[agent]`, for Discrete spaces.
    `read(agent, text)` turns an answer into an action or raises ValueError; the default is `action_spaces.read_action`.
    `rules` is one text for all agents, or a text for each.

    An answer that is no action, or not legal, is invalid. In its place the first action that the mask allows is played,
    or without a mask `action_spaces.member`. If agents act at once, an agent whose mask allows nothing is not asked.

    Raises ValueError without PettingZoo and for an object that does not make its environments. A game raises it for
    action spaces or masks that cannot be read, and for masks that let nobody act.
    """
    if spaces is None:
        raise ValueError(NOT_INSTALLED)
    if not callable(make):
        raise ValueError(f"make is a function that makes an environment, e.g. tictactoe_v3.env, and not {make!r}.")
    return lambda: _PettingZoo(make(), rules, tell, read)


def written_out(agent: str, observation: Any) -> str:
    """An observation as text: numbers in rows, texts unchanged, fields by name, without a mask."""
    if isinstance(observation, str):
        return observation
    if hasattr(observation, "_asdict"):  # a graph
        observation = observation._asdict()
    if isinstance(observation, Mapping):
        fields = {name: field for name, field in observation.items() if name != MASK}
        if list(fields) == ["observation"]:
            return written_out(agent, fields["observation"])
        return ", ".join(f"{name}: {written_out(agent, field)}" for name, field in fields.items())
    try:
        array = np.asarray(observation)
    except ValueError:  # parts of several shapes
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        several = isinstance(observation, tuple | list)
        return f"({', '.join(written_out(agent, part) for part in observation)})" if several else str(observation)
    formatter: Any = {"bool": "{:d}".format, "int": str, "float_kind": "{:g}".format}
    return " ".join(np.array2string(array, formatter=formatter, threshold=sys.maxsize).split())


class _PettingZoo:
    def __init__(self, env: Any, rules: str | tuple[str, ...], tell: Callable | None, read: Callable | None):
        self._env, self._rules, self._tell, self._read = env, rules, tell, read
        self._names = list(getattr(env, "possible_agents", ()))
        if not (self._names and hasattr(env, "action_space")):
            raise ValueError(f"{env!r} is no PettingZoo environment that lists its possible_agents before a game.")
        self.agents = len(self._names)
        self.name = str((getattr(env, "metadata", None) or {}).get("name") or type(env).__name__)
        self._spaces = {name: env.action_space(name) for name in self._names}
        for name, space in self._spaces.items():
            check_space(space, name, readable=read is not None)
        self._parallel = not hasattr(env, "agent_iter")

    def reset(self, seed: int) -> tuple[list[str], Turn]:
        rules = (self._rules,) * self.agents if isinstance(self._rules, str) else self._rules
        given = self._env.reset(seed=seed % 2**32)
        return list(rules), self._turn(given if self._parallel else None, dict.fromkeys(range(self.agents), 0.0))

    def step(self, said: dict[int, str]) -> Turn:
        actions, wrong = {name: self._instead(name) for name in self._masks}, []
        for seat, text in said.items():
            try:
                actions[self._names[seat]] = self._legal(self._names[seat], text)
            except ValueError:
                wrong.append(seat)
        if self._parallel:
            observations, rewards, *_, infos = self._env.step(actions)
            given = observations, infos
        else:
            [action] = actions.values()
            self._env.step(action)
            given, rewards = None, self._env.rewards
        if isinstance(rewards, Mapping):  # values are not converted: `WrongRewards` names values that are no numbers
            rewards = {seat: rewards.get(name, 0.0) for seat, name in enumerate(self._names)}
        return self._turn(given, rewards)._replace(invalid=tuple(wrong))

    def _instead(self, name: str) -> Any:
        """The action for an agent that is not asked, or whose answer is not legal."""
        space, mask = self._spaces[name], self._masks[name]
        return member(space) if mask is None or not mask.any() else legal_actions(space, mask)[0]

    def _legal(self, name: str, text: str) -> Any:
        """An answer as an action. Raises ValueError if it is no action, or not legal."""
        space, mask = self._spaces[name], self._masks[name]
        action = read_action(space, text) if self._read is None else self._read(name, text)
        if not space.contains(action) or not (mask is None or mask[int(action) - int(space.start)]):
            raise ValueError(f"{name!r} cannot answer {text!r} now.")
        return action

    def _turn(self, given: tuple[Any, Any] | None, reward: Any) -> Turn:
        """The next turn; `given` are a parallel environment's observations and infos. In an AEC environment, terminated
        agents make their empty step first."""
        env = self._env
        while (
            not self._parallel
            and env.agents
            and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection])
        ):
            env.step(None)
        if not env.agents:
            return Turn(reward=reward, done=True)
        observations, infos = given or ({env.agent_selection: env.observe(env.agent_selection)}, env.infos)
        self._masks = {name: self._mask(name, seen, infos) for name, seen in observations.items() if name in env.agents}
        acting = [name for name, mask in self._masks.items() if mask is None or mask.any()]
        if not acting:
            raise ValueError(f"The action masks of {env} leave {' and '.join(map(repr, self._masks))} no legal action.")
        told = {self._names.index(name): self._words(name, seen) for name, seen in observations.items()}
        return Turn(told, tuple(map(self._names.index, acting)), reward)

    def _mask(self, name: str, seen: Any, infos: Mapping[str, Any]) -> np.ndarray | None:
        given = seen.get(MASK) if isinstance(seen, Mapping) else None
        return read_mask(self._spaces[name], name, (infos.get(name) or {}).get(MASK) if given is None else given)

    def _words(self, name: str, seen: Any) -> str:
        if self._tell is not None:
            return self._tell(name, seen)
        text, mask = written_out(name, seen), self._masks.get(name)
        legal = [] if mask is None else legal_actions(self._spaces[name], mask)
        return f"{text} Legal actions: {' '.join(map(str, legal))}.".lstrip() if legal else text
