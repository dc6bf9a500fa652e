"""Rollouts of agent programs: many episodes at once on the host, answers computed together, records as `Rollout`'s.

Shapes: B episodes, A seats, T turns, which are the answers of all seats in order; of one policy set R rows, S tokens.
"""

from __future__ import annotations

import asyncio
import os
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.bridges.agent_programs import AgentEpisode, AgentProgram, paid_by_turn
from jaxmarl_llm.keys import DEAL
from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.rollout.names import name_text
from jaxmarl_llm.rollout.policy import sampling_of
from jaxmarl_llm.rollout.python_game import finite_reward
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.text_rows import TextRowLayout, pad, power_of_two, seeds
from jaxmarl_llm.rollout.trajectory import Episodes, Rows, Trajectory
from jaxmarl_llm.serving.dialogues import Dialogues, Message, Row, Span
from jaxmarl_llm.serving.host_rollout import Failures, HostRollout
from jaxmarl_llm.serving.service import Episode, Request, Seat, Served, Service, running


class Ended(NamedTuple):
    """The turns, pay and rows of an episode."""

    spoke: list[int]  # the seat of every turn
    paid: dict[tuple[int, int], float]  # by turn and seat
    rows: list[list[Row]]  # by seat
    failed: bool


class AgentRollout(HostRollout):
    """Plays a batch of an agent program: rollout(weights, key) -> Trajectory, as `Rollout`, but without jit.

    A seat has a row for each dialogue that it holds: the longest stands where `layouts` has the seat's row, and further
    ones follow the rows of all seats. The number of rows is that of the layout times a power of two.
    Raises ValueError before anything compiles for a line-up that cannot play, a budget below 2, or a wrong context.
    """

    def __init__(self, game: AgentProgram, policy_sets: dict[str, PolicySet], lineup: Lineup, budget: int):
        super().__init__(policy_sets, lineup, game.agents, game.turns, budget, game.context, game.slots)
        self.game, self.wrong_rewards = game, Failures()

    def __call__(self, weights: dict[str, dict], key: jax.Array) -> Trajectory:
        with self.with_weights(weights), ThreadPoolExecutor(1, "episodes") as beside:
            ended = beside.submit(asyncio.run, self._play(key)).result()  # a notebook's thread has a loop of its own
        self.wrong_rewards.report(len(ended))
        if all(episode.failed and not episode.paid for episode in ended):
            ended = [self._without_lesson(episode) for episode in ended]
        episodes = self._record(ended)
        numbered = {name: self._rows(name, ended) for name in self.layouts}
        rows = {name: record_rows(self.layouts[name], given) for name, given in numbered.items()}
        kinds = {name: pad([row.kinds if row else [] for *_, row in given])[0] for name, given in numbered.items()}
        cut = {name: jnp.int32(0) for name in rows}
        small = {name: x.astype(np.int8) for name, x in kinds.items()}
        return jax.tree.map(jnp.asarray, Trajectory(episodes, rows, self.utilisation(), cut, small))

    def _without_lesson(self, episode: Ended) -> Ended:
        """The episode with a reward for every turn that is not finite, so that an update from such episodes alone is
        skipped. A seat that said nothing says one token in a further turn: only what was said can be paid."""
        silent = [seat for seat in range(self.game.agents) if seat not in episode.spoke]
        spoke, rows = [*episode.spoke, *silent][: self.game.turns], [*episode.rows]
        for turn in range(len(episode.spoke), len(spoke)):
            rows[spoke[turn]] = [Row([0, 0], 0, [0, 0], [Span(1, turn, (0.0,), self.budget)])]
        paid = {(turn, seat): float("nan") for turn, seat in enumerate(spoke)}
        return episode._replace(spoke=spoke, rows=rows, paid=paid)

    async def _play(self, key: jax.Array) -> list[Ended]:
        """Plays all episodes."""
        data = jax.random.key_data(key).tolist()
        served = {
            policy: Served(engine, index if engine.policy_set.lora else 0)
            for engine in self.engines.values()
            for index, policy in enumerate(engine.policy_set.policies)
        }
        service = Service(served)
        connect = _connector(service)
        deals, gate = seeds(key, DEAL, len(self.lineup.seats)), asyncio.Semaphore(self.game.at_once)
        size = self.lineup.group_size

        async def play(index: int) -> Ended:
            async with gate:
                line_up = self.lineup.seats[index // size]
                return await self._episode(service, connect, index, deals[index // size], line_up, data)

        async with running(service):
            ended = await asyncio.gather(*(play(index) for index in range(self.lineup.episodes)))
            while any(engine.busy for engine in self.engines.values()):  # calls of programs that failed
                await asyncio.sleep(0.001)
            return ended

    async def _episode(
        self,
        service: Service,
        connect: Callable[[str, str], Any],
        index: int,
        seed: int,
        line_up: Sequence[str],
        key: Sequence[int],
    ) -> Ended:
        """Plays an episode to its end, or to its failure."""
        game, name, over = self.game, f"{index}", [False]
        seat_of = lambda number: self._seat(service, index, number, line_up[number], key)
        record = Episode({seat: seat_of(number) for number, seat in enumerate(game.seats)}, game.turns)
        service.open_episode(name, record)

        async def say(seat: str, messages: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
            stop = settings.get("stop") or ()
            request = Request(
                tuple(Message(message["role"], message["content"]) for message in messages),
                budget=settings.get("max_tokens"),
                stop=(stop,) if isinstance(stop, str) else tuple(stop),
            )
            choices = await service.answer(request, name, seat, gone=lambda: over[0])
            return choices[0].message.text

        episode = AgentEpisode(seed, game.seats, say, partial(connect, name))
        paid, why = await self._play_program(episode)
        over[0] = True
        silent = [seat for number, seat in enumerate(game.seats) if number not in record.spoke]
        why = why or (f"{silent[0]} never spoke." if silent else "")
        rewards, wrong_pay = _read_pay(paid, game.seats, record.spoke) if not why else ({}, "")
        if why := why or wrong_pay:
            rewards, _ = _read_pay(episode.rewards, game.seats, record.spoke, whole=False)
        if why:
            self.wrong_rewards.add(index, why if why.endswith(".") else f"{why}.")
        rows = service.close_episode(name)
        numbers = {at: finite_reward(reward) for at, reward in rewards.items()}
        if wrong := [at for at, reward in numbers.items() if np.isnan(reward)]:
            given, seat = rewards[wrong[0]], game.seats[wrong[0][1]]
            self.wrong_rewards.add(index, f"The reward of seat {seat!r} is {given!r}, which is no finite number.")
        return Ended(record.spoke, numbers, [rows[seat] for seat in game.seats], bool(why))

    async def _play_program(self, episode: AgentEpisode) -> tuple[Any, str]:
        """(the pay that the program returns, why it failed or "")."""
        try:
            return await asyncio.wait_for(self.game.play(episode), self.game.timeout), ""
        except TimeoutError:
            return None, f"it took more than {self.game.timeout:g} seconds."
        except ImportError as error:  # no further episode would go better
            raise ValueError(f"The program lacks a package. {error}") from error
        except Exception as error:  # a program is anybody's code
            return None, f"{type(error).__name__}: {error}{_place(error)}"

    def _seat(self, service: Service, index: int, number: int, policy: str, key: Sequence[int]) -> Seat:
        engine, which = service.models[policy]
        chosen = sampling_of(engine.policy_set.sampling, max(which, 0))
        return Seat(policy, key, index, number, chosen, self.budget, Dialogues(engine.tokenizer, kept=None))

    def _record(self, ended: Sequence[Ended]) -> Episodes:
        """The events of the episodes."""
        game = self.game
        group: Any = np.repeat(np.arange(len(self.lineup.seats), dtype=np.int32), self.lineup.group_size)
        shape = (len(ended), game.turns, game.agents)
        record: dict[str, Any] = {name: np.zeros(shape, np.int32) for name in ("action", "role", "told")}
        record |= {name: np.zeros(shape, bool) for name in ("acted", "valid")}
        record |= {"reward": np.zeros((*shape, 1), np.float32), "legal": np.zeros((*shape, 1), bool)}
        for index, episode in enumerate(ended):
            for turn, seat in enumerate(episode.spoke):
                for name in ("acted", "valid", "legal"):
                    record[name][index, turn, seat] = True
            for (turn, seat), paid in episode.paid.items():
                record["reward"][index, turn, seat, 0] = paid
            for seat, rows in enumerate(episode.rows):
                for row in rows:
                    for start, span in zip([0, *(x.start for x in row.spans)], row.spans, strict=False):
                        heard = str(row.tokens[start : span.start])
                        record["told"][index, span.turn, seat] = name_text(heard)
        failed = np.array([episode.failed for episode in ended])
        ends: dict[str, Any] = {"terminated": ~failed, "truncated": failed}
        return Episodes(**record, **ends, group=group, game=np.zeros_like(group))

    def _rows(self, name: str, ended: Sequence[Ended]) -> list[tuple[int, int, int, Row | None]]:
        """The rows of a policy set, as (episode, seat, policy, tokens)."""
        layout = self.layouts[name]
        first, further = [], []
        for episode, seat, policy in zip(layout.episode, layout.seat, layout.policy, strict=True):
            rows = sorted(ended[episode].rows[seat], key=lambda row: -len(row.spans))
            first.append((int(episode), int(seat), int(policy), rows[0] if rows else None))
            further += [(int(episode), int(seat), int(policy), row) for row in rows[1:]]
        count = len(first) * power_of_two(-(-(len(first) + len(further)) // len(first)), 1)
        every = [*first, *further]
        return every + [(*first[0][:3], None)] * (count - len(every))


def _place(error: Exception) -> str:
    """ " (FILE, line N)" of the innermost line outside installed packages and this one; "" if there is none."""
    folders = str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    libraries = tuple(f"{folder}{os.sep}" for folder in folders)
    lines = [x for x in traceback.extract_tb(error.__traceback__) if not x.filename.startswith(libraries)]
    return f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""


def _read_pay(
    paid: Any, seats: Sequence[str], spoke: Sequence[int], *, whole: bool = True
) -> tuple[dict[tuple[int, int], Any], str]:
    """(rewards by turn and seat, why they cannot be read or "")."""
    try:
        return paid_by_turn(paid, seats, spoke, whole=whole), ""
    except (ValueError, TypeError) as error:
        return {}, str(error)


def _connector(service: Service) -> Callable[[str, str], Any]:
    """(episode, seat) -> OpenAI's client; the packages of a server are imported by the first program that asks."""

    @cache
    def clients() -> Any:
        try:
            from jaxmarl_llm.serving.clients import Clients
        except ImportError as error:
            raise ImportError("A client needs further ones: pip install 'jaxmarl_llm[serve]'.") from error
        return Clients(service)

    return lambda episode, seat: clients().client(episode, seat)


def record_rows(layout: TextRowLayout, rows: Sequence[tuple[int, int, int, Row | None]]) -> Rows:
    """The record of rows, given as (episode, seat, policy, tokens); None is a row without tokens."""
    prompts, tokens = [], []
    for *_, row in rows:
        start = 1 if row is None else row.spans[0].start
        prompts.append([0] if row is None else row.tokens[:start])
        tokens.append([] if row is None else row.tokens[start:])
    columns: dict[str, Any] = {}
    columns["tokens"], columns["length"] = pad(tokens)
    shape = columns["tokens"].shape
    columns |= {"loss_mask": np.zeros(shape, bool), "logp": np.zeros(shape, np.float32)}
    columns |= {"turn": np.zeros(shape, np.int32), "tokens_left": np.zeros(shape, np.int16)}
    for number, (*_, row) in enumerate(rows):
        for span in row.spans if row is not None else ():
            at = span.start - len(prompts[number])
            said = slice(at, at + len(span.logp))
            columns["turn"][number, at:] = span.turn  # also what is heard before the next answer, until it is set
            columns["loss_mask"][number, said], columns["logp"][number, said] = True, span.logp
            columns["tokens_left"][number, said] = span.budget + 1 - np.arange(len(span.logp))
        _turns_of_heard(columns, number)
    columns["grammar_state"] = np.where(columns["loss_mask"], layout.tables.start[0], 0).astype(np.int16)
    columns["prompt"] = np.arange(len(rows), dtype=np.int32)
    named = zip(("episode", "seat", "policy"), zip(*(row[:3] for row in rows), strict=True), strict=True)
    filled, length = pad(prompts)
    return Rows(
        prompts=Prompts(jnp.asarray(filled), jnp.asarray(length)),
        **columns,
        **{field: jnp.asarray(values, jnp.int32) for field, values in named},
    )


def _turns_of_heard(columns: Mapping[str, Any], number: int) -> None:
    """Gives the tokens heard between two answers the turn of the later one."""
    mask, turn, later = columns["loss_mask"][number], columns["turn"][number], None
    for at in range(len(mask) - 1, -1, -1):
        if mask[at]:
            later = turn[at]
        elif later is not None:
            turn[at] = later
