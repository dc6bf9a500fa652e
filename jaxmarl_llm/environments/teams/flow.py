"""A flow of four roles: a planner names steps, an executor does them, a verifier ends them, a generator answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, digits, draw, make_view, random_player, uniform
from jaxmarl_llm.text.grammar import Grammar, options_of

PLANNER, EXECUTOR, VERIFIER, GENERATOR = range(4)
GO_ON, STOP = 0, 1


class FlowState(struct.PyTreeNode):
    chain: jax.Array  # int32 [keys]: the entry of each key is the next one, that of the last key is the first
    marks: jax.Array  # int32 [keys], by key
    hops: jax.Array  # int32: entries to follow
    seen: jax.Array  # bool [keys], looked up
    last: jax.Array  # int32, the key that the tool reads: the entry of the last look-up, at first chain[0]
    mark: jax.Array  # int32, the mark read last, -1: none
    steps: jax.Array  # int32, steps done
    seat: jax.Array  # int32, the seat that acts
    named: jax.Array  # int32, the step that the planner named last
    done: jax.Array  # int32, the step that the executor did last, -1: none
    answered: jax.Array  # bool


@dataclass(frozen=True)
class Flow:
    """A team of planner, executor, verifier and generator is asked for the mark of a key at the end of a chain.

    The entry of each key is another key, and each key has a mark. A question names a key to begin at and a number of
    entries to follow, `fewest` to `hops`. A step is a look-up of a key, which tells its entry, or the tool, which tells
    the mark of the last entry that was told. So a question of n entries takes n look-ups, each of the entry before, and
    then the tool.

    The planner, which alone is told the question, names a step. The executor is told it, and does that one or another.
    The verifier is told the result and says go on or stop. After "go on" the planner is told the result and names the
    next step. After "stop", or after `steps` steps, the generator is told the mark that was read last, and answers. All
    entries, marks and questions are drawn by the deal, so nothing can be memorised. The modules are those of AgentFlow:
    https://arxiv.org/abs/2510.05592.

    Component `solved`, paid to all four in the last turn: 1 for the right mark.

    Measures:

    - `step`: 1 to the planner for each step that the executor did.
    - `slip`: 1 to a seat that did not do as it was told. A slip is another step than the named one, or another mark
      than the one read last. "Go on" after a mark and "stop" after an entry are slips too.

    Script `correct` makes no slip, and its planner names the first key of the chain that was not looked up, until the
    question is answered. If the tool would read another key, it looks up the last one again. Script `erring` does the
    same, but each seat gives another of its answers, uniformly, with its chance in `noise`.

    Raises ValueError for keys outside 3 to 26, marks < 2, hops outside 1 to keys - 1, and fewest outside 1 to hops.
    Raises it also for steps < hops + 1 and a noise that is not four chances.
    """

    keys: int = 5
    marks: int = 6
    hops: int = 3
    fewest: int = 1
    steps: int = 6
    noise: tuple[float, ...] = (0.5, 0.1, 0.03, 0.03)

    agents = 4
    roles = ("planner", "executor", "verifier", "generator")
    components = ("solved",)
    measures = ("step", "slip")

    def __post_init__(self):
        at_least(2, marks=self.marks)
        if not 3 <= self.keys <= 26:
            raise ValueError(f"keys must be 3 to 26, as there are letters, got {self.keys}.")
        if not 1 <= self.hops < self.keys:
            raise ValueError(f"hops must be 1 to {self.keys - 1} with {self.keys} keys, got {self.hops}.")
        if not 1 <= self.fewest <= self.hops:
            raise ValueError(f"fewest must be 1 to hops={self.hops}, got {self.fewest}.")
        at_least(self.hops + 1, steps=self.steps)
        if len(self.noise) != 4 or not all(0 <= chance <= 1 for chance in self.noise):
            raise ValueError(f"noise must be a chance within [0, 1] for each of four seats, got {self.noise}.")

    @property
    def letters(self) -> tuple[str, ...]:
        return tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: self.keys])

    @property
    def tool(self) -> int:
        """The number of the step that tells a mark; smaller ones are look-ups of keys."""
        return self.keys

    @property
    def turns(self) -> int:
        return 3 * self.steps

    @property
    def seat_turns(self) -> int:
        return self.steps

    @property
    def actions(self) -> int:
        return max(self.keys + 1, self.marks)

    @property
    def rules(self) -> Fields:
        team = (
            f"The entry of each key from A to {self.letters[-1]} is another key, and each key has a mark. A team of "
            f"four is asked for the mark of a key, in {self.steps} steps at most. A step is a key to look up, or "
            "mark, the tool that reads the mark of the last entry. All get 1 point for the right mark."
        )
        parts = (
            "You are the planner: you name the next step.",
            "You are the executor: you do the step that the planner names.",
            "You are the verifier: you say stop if a mark was read, and else go on.",
            f"You are the generator: you name the mark that was read last. Answer 0 to {self.marks - 1}.",
        )
        begin = tuple(f" Begin at {letter}." for letter in self.letters)
        follow = tuple(f" Follow {n + 1} {'entries' if n else 'entry'}, then read the mark." for n in range(self.hops))
        return tuple(f"{team} {part}" for part in parts), begin, follow

    @property
    def observation(self) -> Fields:
        """A result is a key and its entry, or a mark. The executor is told a step."""
        results = (*(f" {letter} has the entry" for letter in self.letters), " The mark is", " No mark was read.")
        values = (*(f" {letter}." for letter in self.letters), *(f" {mark}." for mark in digits(self.marks)))
        steps = (*(f" Look up {letter}." for letter in self.letters), " Read the mark.")
        return results, values, steps, (" Next step?", " Go on or stop?", " Which mark?")

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice((*self.letters, "mark")), choice(("go on", "stop")), choice(digits(self.marks))

    @property
    def scripts(self) -> Mapping[str, Script]:
        noise = jnp.asarray(self.noise, jnp.float32)
        sayable = jnp.asarray([[n in options_of(grammar) for n in range(self.actions)] for grammar in self.grammars])

        def correct(state: FlowState, seat: jax.Array, key: jax.Array) -> jax.Array:
            mark = jnp.where(state.mark >= 0, state.mark, draw(key, self.marks))
            answers = [self._next(state), state.named, self._verdict(state), mark]
            return jnp.stack(answers)[seat].astype(jnp.int32)

        def erring(state: FlowState, seat: jax.Array, key: jax.Array) -> jax.Array:
            first, second, third = jax.random.split(key, 3)
            meant = correct(state, seat, first)
            others = sayable[jnp.maximum(seat - 1, 0)] & (jnp.arange(self.actions) != meant)
            return jnp.where(jax.random.uniform(second) < noise[seat], uniform(third, others), meant)

        return {"random": random_player(self.view), "correct": correct, "erring": erring}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[FlowState, View]:
        chain, marks, hops = jax.random.split(key, 3)
        order = jax.random.permutation(chain, jnp.arange(self.keys, dtype=jnp.int32))
        state = FlowState(
            chain=order,
            marks=jax.random.randint(marks, (self.keys,), 0, self.marks, jnp.int32),
            hops=self.fewest + draw(hops, self.hops - self.fewest + 1),
            seen=jnp.zeros(self.keys, bool),
            last=order[0],
            mark=jnp.int32(-1),
            steps=jnp.int32(0),
            seat=jnp.int32(PLANNER),
            named=jnp.int32(0),
            done=jnp.int32(-1),
            answered=jnp.bool_(False),
        )
        return state, self.view(state)

    def prompt(self, state: FlowState) -> jax.Array:
        seats = jnp.arange(4, dtype=jnp.int32)
        question = [jnp.where(seats == PLANNER, x, -1).astype(jnp.int32) for x in (state.chain[0], state.hops - 1)]
        return jnp.stack([seats, *question], 1)

    def step(self, state: FlowState, action: jax.Array, key: jax.Array) -> tuple[FlowState, View, jax.Array]:
        said, seat = action[state.seat], state.seat
        plans, does, answers = (seat == n for n in (PLANNER, EXECUTOR, GENERATOR))
        looks, reads = does & (said < self.tool), does & (said == self.tool)
        steps = state.steps + does
        after_step = jnp.where(steps < self.steps, VERIFIER, GENERATOR)
        after_verdict = jnp.where(said == GO_ON, PLANNER, GENERATOR)
        after = state.replace(
            seen=state.seen | (looks & (jnp.arange(self.keys) == said)),
            last=jnp.where(looks, self._entry(state, said), state.last).astype(jnp.int32),
            mark=jnp.where(reads, state.marks[state.last], state.mark),
            steps=steps,
            seat=jnp.where(plans, EXECUTOR, jnp.where(does, after_step, after_verdict)).astype(jnp.int32),
            named=jnp.where(plans, said, state.named).astype(jnp.int32),
            done=jnp.where(does, said, state.done).astype(jnp.int32),
            answered=answers,
        )
        told = [said, state.named, self._verdict(state), jnp.where(state.mark >= 0, state.mark, said)]
        slips = (jnp.arange(4) == seat) & (said != jnp.stack(told)[seat])
        measured = jnp.stack([(jnp.arange(4) == PLANNER) & does, slips], 1).astype(jnp.float32)
        solved = answers & (said == state.marks[state.chain[state.hops]])
        reward = jnp.broadcast_to(solved, (4, 1)).astype(jnp.float32)
        return after, self.view(after).replace(measured=measured), reward

    def view(self, state: FlowState) -> View:
        seats, acting = jnp.arange(4), jnp.arange(4) == state.seat
        read = state.done == self.tool
        step = jnp.where(state.done < 0, -1, state.done)
        entry = self._entry(state, state.done)
        value = jnp.where(read, self.keys + state.mark, entry)
        known = state.mark >= 0
        to_generator = [jnp.where(known, self.tool, self.tool + 1), jnp.where(known, self.keys + state.mark, -1)]
        result = [jnp.where(seats == GENERATOR, x, y) for x, y in zip(to_generator, (step, value), strict=True)]
        told = (state.done >= 0) & (seats != EXECUTOR) | (seats == GENERATOR)
        text = [jnp.where(told, x, -1) for x in result]
        order = jnp.where(seats == EXECUTOR, state.named, -1)
        text += [order, jnp.array([0, -1, 1, 2])]
        return make_view(self, text, acting, state.answered, role=seats, grammar=jnp.array([0, 0, 1, 2]))

    def _entry(self, state: FlowState, key: jax.Array) -> jax.Array:
        """The entry of a key."""
        place = jnp.argmax(state.chain == key)
        return state.chain[(place + 1) % self.keys]

    def _next(self, state: FlowState) -> jax.Array:
        """The step that the correct planner names."""
        ahead = jnp.argmin(jnp.append(state.seen[state.chain], False))
        ready = jnp.where(state.last == state.chain[state.hops], self.tool, state.chain[state.hops - 1])
        return jnp.where(ahead < state.hops, state.chain[jnp.minimum(ahead, self.keys - 1)], ready)

    def _verdict(self, state: FlowState) -> jax.Array:
        return jnp.where(state.done == self.tool, STOP, GO_ON)


GAMES = {"flow": Flow}
