"""Environments of the package `verifiers` as agent programs: their rollouts and their scores, our policies.

`pip install 'jaxmarl_llm[verifiers]'`. Roles of an environment are seats: `Recipe(verifiers_game("gsm8k-v1"), ...)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from typing import Any

from jaxmarl_llm.environments.bridges.agent_programs import AgentEpisode, AgentProgram


def verifiers_game(environment: Any, tasks: int = 1000, **settings: Any) -> AgentProgram:
    """An environment of verifiers 0.4 as a recipe's game; `settings` are those of `AgentProgram`, such as `turns`.

    `environment` is the id of a taskset, an `EnvConfig` or a dict of its fields, or an `Env`, which is made anew from
    its config. Each role without a client of its own is a seat, under the role's name. An episode plays one of the
    first `tasks` tasks, drawn by its seed: a group shares the task. `Env.run_episode` plays it, with all hooks, tools
    and stops.

    Rewards: the reward of a trace, the weighted sum of its scores, is paid to its seat at the trace's last answer.
    Metrics are not kept.

    A role without a harness asks once for each user turn, in this process; a harness that it names runs as verifiers
    runs it. A request that differs from how the seat is trained fails the episode: another temperature, n above 1, a
    response format. So do an episode that is not `complete`, and a role that the environment marks as not trainable:
    give such a role a client.

    Raises ValueError without the package, without tasks, and for an environment that has only roles with clients.
    """
    player = _Player(environment, tasks)
    return AgentProgram(player, seats=player.seats, **settings)


class _Player:
    """An agent program: `await player(episode)` plays an episode of the environment."""

    def __init__(self, environment: Any, tasks: int):
        try:
            import verifiers.v1 as package

            from jaxmarl_llm.environments.bridges import verifiers_parts as parts
        except ImportError as error:
            raise ValueError(
                "These environments need further packages: pip install 'jaxmarl_llm[verifiers]'."
            ) from error
        self._vf, self._parts = package, parts
        self._env = self._make(environment)
        self._roles: dict[str, Any] = {
            name: role for name, role in self._env.config if isinstance(role, package.AgentConfig) and not role.client
        }
        self.seats, self._tasks = tuple(self._roles), list(self._env.taskset.take(tasks))
        if not self.seats:
            raise ValueError("Every role of the environment has a client of its own: none is left for a policy.")
        if not self._tasks:
            raise ValueError("The environment has no tasks.")
        self._serving: _Serving | None = None

    async def __call__(self, episode: AgentEpisode) -> dict[str, list[float]]:
        async with self._open() as env:
            return await self._play(episode, env)

    def _make(self, environment: Any) -> Any:
        """The environment, with one server for its requests, and the harness of this process where none is named."""
        package = self._vf
        given: Any = {"taskset": {"id": environment}} if isinstance(environment, str) else environment
        named = isinstance(given, package.Env)
        config = given.config if named else package.resolve_env_config(given)
        make = type(given) if named else package.environment_class(config.taskset.id, config.id)
        changes: dict[str, Any] = {"interception": package.interception.InterceptionServerConfig()}
        if package.default_agent_harness(config.taskset.id).id == "bash":  # verifiers' own default, which runs code
            alone: dict[str, Any] = {
                "harness": package.HarnessConfig(id=self._parts.install_chat()),
                "runtime": package.SubprocessConfig(),
            }
            for name, role in config:
                if isinstance(role, package.AgentConfig) and role.harness is None:
                    changes[name] = role.model_copy(update=alone)
        return make(config.model_copy(update=changes))

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        """The environment with its servers: the first episode of those at play starts them, the last one stops them."""
        serving = self._serving = self._serving or _Serving(self._env)
        serving.users += 1
        try:
            await serving.ready.wait()
            if serving.error is not None:
                raise serving.error
            yield serving.env
        finally:
            serving.users -= 1
            if not serving.users:
                self._serving = None
                serving.end.set()
                await serving.task

    async def _play(self, episode: AgentEpisode, env: Any) -> dict[str, list[float]]:
        """Plays an episode: the rewards of each seat's answers. Raises RuntimeError for one that failed."""
        package, asked = self._vf, env._interception.clients  # no public name leads to the server
        clients = {seat: self._parts.SeatClient(episode.client(seat)) for seat in self.seats}
        changes, keys = {}, []
        for seat, role in self._roles.items():
            address = package.TrainClientConfig(base_url=str(episode.client(seat).base_url), api_key_var="NONE")
            changes[seat] = role.model_copy(update={"client": address, "model": seat})
            keys.append(address.model_dump_json())
            asked[keys[-1]] = clients[seat]
        played = copy.copy(env)
        played.config = env.config.model_copy(update=changes)
        task = self._tasks[episode.seed % len(self._tasks)]
        context = package.ModelContext("policy", changes[self.seats[0]].client)
        try:
            result = await played.run_episode(task, context)
        finally:
            for key in keys:
                del asked[key]
        if refusals := [client.refused for client in clients.values() if client.refused]:
            raise RuntimeError(refusals[0])  # errors of the environment follow from it
        if not played.complete(result):
            raise RuntimeError(_failure(result))
        return {seat: _pay_by_answer(seat, clients[seat].spoke, result.traces) for seat in self.seats}


class _Serving:
    """A copy of an environment whose servers run in a task of their own until `end`."""

    def __init__(self, env: Any):
        self.env, self.users = copy.copy(env), 0
        self.error: Exception | None = None
        self.ready, self.end = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        try:
            async with self.env.serving():
                self.ready.set()
                await self.end.wait()
        except Exception as error:
            self.error = error
        finally:
            self.ready.set()


def _pay_by_answer(seat: str, spoke: list[str], traces: list[Any]) -> list[float]:
    """The reward of each answer of a seat; `spoke` holds the traces of its answers.

    Raises ValueError for a seat that the environment marks as not trainable.
    """
    paid = [0.0] * len(spoke)
    for trace in traces:
        turns = [turn for turn, name in enumerate(spoke) if name == trace.id]
        if turns and not trace.agent.trainable:
            raise ValueError(f"The environment does not train its role {seat}: give this role a client of its own.")
        if turns:
            paid[turns[-1]] += trace.reward
    return paid


def _failure(result: Any) -> str:
    """Why an episode of verifiers failed: the first error of its traces, or its own."""
    errors = [error for trace in result.traces for error in trace.errors] + list(result.errors)
    return f"{errors[0].type}: {errors[0].message}" if errors else "the environment calls it incomplete"
