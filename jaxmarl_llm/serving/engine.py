"""Continuous batching: rows of many dialogues share the slots of one model, and none waits for another's end.

The host admits calls to free slots, and takes finished ones away, between short compiled runs (`slots`). A slot keeps
the tokens of its last row: a call that continues them reads only what is new. A call whose beginning another slot has
read copies that slot's cache. With a state (`Config.recurrent`) a call continues all that a slot has read, or nothing.
A token depends on the call's key, its row and its place in the answer, and not on the other calls, up to rounding.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.models.packing import heavy
from jaxmarl_llm.rollout import decode
from jaxmarl_llm.rollout.policy import PLAIN, Sampling
from jaxmarl_llm.rollout.team import PolicySet
from jaxmarl_llm.rollout.text_rows import power_of_two
from jaxmarl_llm.serving import slots as arrays
from jaxmarl_llm.serving.calls import FREE, Answer, Call, Candidates
from jaxmarl_llm.text.grammar import Grammar, lift

LEAST = 256  # tokens that a slot has room for
SAME = 8  # a beginning of at least so many tokens is copied from another slot
CHUNK = 256  # the most tokens that a slot reads at a time
SHORT = 32  # so many are read together with those of other slots
WIDTHS = 4, 16, SHORT, 64, CHUNK  # widths of chunks that slots read together: few, for few programs
AT_A_TIME = 8  # tokens that a slot says between two looks of the host
PAGES = 16  # grammars that are kept

_prepare = jax.jit(decode.prepare, static_argnums=0)


@dataclass(eq=False)
class _Slot:
    """A slot as the host sees it: a row, how much of it the cache holds, and the call that has the slot."""

    row: list[int] = field(default_factory=list)
    policy: int = 0
    read: int = 0  # tokens of the row in the cache
    call: Call | None = None
    answer: Answer = field(default_factory=Answer)
    page: int = 0
    state: int = 0
    used: float = 0.0  # when a call last had the slot
    owner: Any = None  # the last call's

    @property
    def reads(self) -> bool:
        """True if the slot's call has tokens to read before it speaks."""
        return self.call is not None and not self.answer.tokens and self.read < len(self.row)

    @property
    def speaks(self) -> bool:
        return self.call is not None and not self.reads


class Engine:
    """The policies of a set, with `slots` slots of at most `context` tokens each.

    `step` is one round: it admits calls, lets slots read or speak, and hands over what was said. `submit` may be called
    from any thread. Raises ValueError for a scripted set, or for a context that the model does not have.
    """

    def __init__(self, policy_set: PolicySet, weights: dict, slots: int = 16, context: int | None = None):
        if policy_set.config is None:
            raise ValueError("An engine needs a model, and these policies are scripted.")
        if slots < 1 or slots & (slots - 1):
            raise ValueError(f"slots is a power of two, got {slots}.")
        self.config, self.tokenizer, self.policy_set = policy_set.config, policy_set.tokenizer, policy_set
        room = self.config.max_position_embeddings
        self.context = room if context is None else context
        if not 2 <= self.context <= room:
            raise ValueError(f"context is from 2 tokens to the {room} of the model, got {context}.")
        self._adapted = policy_set.lora is not None and not policy_set.merged
        self.waiting: deque[Call] = deque()
        self._slots = [_Slot() for _ in range(slots)]
        self._tables = lru_cache(maxsize=4 * PAGES)(self._lift)
        self._grammars: list[Grammar] = [FREE]
        self._pages = arrays.pages_of([self._tables(FREE)])
        self.use(weights)
        self.tokens_read = self.tokens_said = self.calls = 0
        self.reset_shares()

    def use(self, weights: dict) -> None:
        """Takes new weights, and begins anew: later answers do not depend on earlier ones, bit for bit.

        Raises ValueError while calls are answered.
        """
        if self.busy:
            raise ValueError("The weights change only while no call is answered.")
        self._prepared = _prepare(self.policy_set, weights)
        self._owned: dict[Any, int] = {}  # {owner: the slot of its last call}
        self._slots = [_Slot() for _ in self._slots]
        self._arrays: Any = self._empty()

    def release(self) -> None:
        """Forgets weights, caches and calls until `use` gives new weights."""
        self.waiting.clear()
        self._slots = [_Slot() for _ in self._slots]
        self._prepared = self._arrays = None

    def abandon(self, why: str) -> None:
        """Ends all calls with the error `why`, and empties the slots: also after a program that failed."""
        answers = [(slot.call, slot.answer) for slot in self._slots if slot.call is not None]
        answers += [(self.waiting.popleft(), Answer()) for _ in range(len(self.waiting))]
        self._slots = [_Slot() for _ in self._slots]
        self._arrays = self._empty()
        for call, answer in answers:
            answer.finish, answer.error = "cancelled", why
            call.done(call, answer)

    def _empty(self) -> arrays.Slots:
        return arrays.empty(
            self.config, len(self._slots), min(LEAST if heavy(self.config) else LEAST // 8, power_of_two(self.context))
        )

    @property
    def busy(self) -> bool:
        """True while a call waits or is answered."""
        return bool(self.waiting) or any(slot.call is not None for slot in self._slots)

    def reset_shares(self) -> None:
        """Begins `utilisation` and `share_used` anew."""
        self.spoken = self.places = self.needed = self.computed = 0

    @property
    def share_used(self) -> float:
        """The share of the tokens computed so far that were no padding."""
        return self.needed / max(self.computed, 1)

    @property
    def utilisation(self) -> float:
        """The share of slots that spoke in the runs so far, of all slots."""
        return self.spoken / max(self.places, 1)

    def longest(self, call: Call) -> str:
        """Why the call cannot be answered; empty if it can."""
        if self._prepared is None:
            return "The engine has no weights now."
        if not call.tokens:
            return "The row is empty: it needs a token to continue."
        if call.budget < 1 or len(call.tokens) + call.budget > self.context:
            return (
                f"The dialogue has {len(call.tokens)} tokens and the answer up to {call.budget}: together they may "
                f"have {self.context}."
            )
        tables = self._tables(call.grammar)
        if call.grammar is not FREE and (need := int(tables.distance[tables.start[0]].min())) > call.budget:
            return f"The shortest answer that is possible has {need} tokens, and the answer may have {call.budget}."
        return ""

    def submit(self, call: Call) -> None:
        """Lets the call wait for a slot. Raises ValueError for a call that cannot be answered."""
        if why := self.longest(call):
            raise ValueError(why)
        self.waiting.append(call)

    def run(self, calls: Sequence[Call]) -> list[Answer]:
        """The answers to the calls, after all others that wait."""
        answers: dict[int, Answer] = {}
        for index, call in enumerate(calls):
            done = call.done

            def keep(call: Call, answer: Answer, index: int = index, done: Callable = done) -> None:
                answers[index] = answer
                done(call, answer)

            self.submit(replace(call, done=keep))
        while len(answers) < len(calls):
            self.step()
        return [answers[index] for index in range(len(calls))]

    def step(self) -> bool:
        """One round; false if there was nothing to do."""
        self._admit()
        reading = [number for number, slot in enumerate(self._slots) if slot.reads]
        if reading:
            self._read_all(reading)
        speaking = [number for number, slot in enumerate(self._slots) if slot.speaks]
        if speaking:
            self._speak(speaking)
        return bool(reading or speaking)

    def _admit(self) -> None:
        """Gives free slots to calls, in the order in which they came."""
        for slot in self._slots:
            if slot.call is not None and slot.call.cancelled():
                self._finish(slot, "cancelled")
        later: list[Call] = []
        while self.waiting and any(slot.call is None for slot in self._slots):
            call = self.waiting.popleft()
            if call.cancelled():
                call.done(call, Answer(finish="cancelled"))
            elif not self._place(call):
                later.append(call)
        self.waiting.extendleft(reversed(later))

    def _place(self, call: Call) -> bool:
        """Gives the call a slot; False if another slot is about to read the beginning of its row."""
        row = list(call.tokens)
        policy = call.policy if self._adapted else 0
        last = self._owned.get(call.owner) if call.owner is not None else None
        if last is not None and (slot := self._slots[last]).call is None and slot.owner == call.owner:
            shared = self._reusable(slot, row, policy)
            if shared >= min(slot.read, len(row) - 1):
                return self._occupy(last, call, row, policy, shared)
        ready = [self._reusable(slot, row, policy) for slot in self._slots]
        best = max(range(len(ready)), key=lambda number: ready[number])
        others = [] if self.config.recurrent else [x for x in self._slots if x.reads and x.policy == policy]
        if any(_common(slot.row, row) > ready[best] + SAME for slot in others):
            return False
        free = [number for number, slot in enumerate(self._slots) if slot.call is None]
        target = best
        if best not in free or ready[best] < min(self._slots[best].read, len(row) - 1):
            rest = [number for number in free if number != best] or free
            target = min(rest, key=lambda number: (self._slots[number].read > 0, self._slots[number].used))
        if target != best and ready[best] >= SAME:
            self._arrays = arrays.copy(self._arrays, np.int32(best), np.int32(target))
        elif target != best:
            ready[best] = 0
        return self._occupy(target, call, row, policy, ready[best])

    def _reusable(self, slot: _Slot, row: list[int], policy: int) -> int:
        """The tokens at the beginning of a row, without its last one, that a slot has read and can continue from."""
        common = min(_common(slot.row, row), slot.read, len(row) - 1) if slot.policy == policy else 0
        return common if common == slot.read or not self.config.recurrent else 0

    def _occupy(self, number: int, call: Call, row: list[int], policy: int, shared: int) -> bool:
        """Gives a slot, of which the first `shared` tokens stay read, to a call."""
        slot = self._slots[number]
        slot.owner = call.owner
        if call.owner is not None:
            self._owned[call.owner] = number
        slot.row, slot.policy, slot.read, slot.call, slot.answer = row, policy, shared, call, Answer()
        slot.page = self._page(call.grammar)
        slot.state = int(self._tables(call.grammar).start[0])
        self.calls += 1
        return True

    def _lift(self, grammar: Grammar) -> Any:
        spelled, end = self.tokenizer.token_bytes, self.tokenizer.end
        if end is None and grammar == FREE:  # text that only the budget ends: with an end that is no token
            tables = lift((grammar,), (*spelled, None), len(spelled))
            return tables._replace(token_class=tables.token_class[:-1])
        return lift((grammar,), spelled, end)

    def _page(self, grammar: Grammar) -> int:
        """The page of a grammar, which takes the place of one that nobody speaks if there are PAGES."""
        if grammar in self._grammars:
            return self._grammars.index(grammar)
        spoken = {0, *(slot.page for slot in self._slots if slot.call is not None)}
        unused = [page for page in range(len(self._grammars)) if page not in spoken]
        if len(self._grammars) >= PAGES and unused:
            self._grammars[unused[0]] = grammar
        else:
            self._grammars.append(grammar)
        self._pages = arrays.pages_of([self._tables(known) for known in self._grammars])
        return self._grammars.index(grammar)

    def _read_all(self, reading: list[int]) -> None:
        """Lets slots read the next chunk of their rows.

        Long chunks are read one by one if tokens are expensive, since shorter ones would be padded to them.
        """
        left = {number: len(self._slots[number].row) - self._slots[number].read for number in reading}
        alone = [number for number in reading if left[number] > SHORT and heavy(self.config)]
        for number in alone:
            self._read([number], power_of_two(min(left[number], CHUNK), 2 * SHORT))
        together = [number for number in reading if number not in alone]
        if together:
            longest = min(max(left[number] for number in together), CHUNK)
            self._read(together, next(width for width in WIDTHS if width >= longest))

    def _read(self, reading: list[int], width: int) -> None:
        """Lets slots read up to `width` tokens of their rows each."""
        pending = [self._slots[number].row[self._slots[number].read :][:width] for number in reading]
        at = self._places(reading)
        tokens, n = np.zeros((len(at), width), np.int32), np.zeros(len(at), np.int32)
        where = {number: place for place, number in enumerate(at.tolist())}
        for number, part in zip(reading, pending, strict=True):
            tokens[where[number], : len(part)], n[where[number]] = part, len(part)
        length, policy = self._column(at, "read"), self._column(at, "policy") if self._adapted else None
        self._widen(width)
        self._arrays = arrays.read(self.config, self._prepared, self._arrays, at, length, tokens, n, policy)
        for number, part in zip(reading, pending, strict=True):
            self._slots[number].read += len(part)
            self.tokens_read += len(part)
        self.needed, self.computed = self.needed + int(n.sum()), self.computed + tokens.size

    def _speak(self, speaking: list[int]) -> None:
        """Lets slots say a few tokens, and hands them over."""
        at, calls = self._places(speaking), {number: self._slots[number].call for number in speaking}
        for_all = lambda value, blank: [value(calls[n]) if n in calls else blank for n in at.tolist()]
        settings = for_all(lambda call: call.sampling, PLAIN)
        filtered = any(setting != Sampling(setting.temperature) or setting.temperature == 0 for setting in settings)
        top = min(arrays.TOP, self.config.vocab_size) * any(for_all(lambda call: call.top, False))
        kind = arrays.Kind(AT_A_TIME, top, filtered)
        slots = {n: self._slots[n] for n in speaking}
        facts = lambda fact: np.array([fact(slots[n]) if n in slots else 0 for n in at.tolist()], np.int32)
        run = arrays.Speaking(
            at=np.where(np.isin(at, speaking), at, len(self._slots)).astype(np.int32),
            length=self._column(at, "read"),
            policy=self._column(at, "policy") if self._adapted else None,
            key=np.array(for_all(lambda call: call.key, (0, 0)), np.uint32),
            event=np.array(for_all(lambda call: call.event, (0,) * 4), np.int32),
            page=facts(lambda slot: slot.page),
            state=facts(lambda slot: slot.state),
            begun=facts(lambda slot: len(slot.answer.tokens)),
            budget=np.array(for_all(lambda call: call.budget, 1), np.int32),
            last=facts(lambda slot: slot.row[-1]),
            sampling=arrays.sampling_columns(settings),
        )
        self._widen(AT_A_TIME + 1)
        self._arrays, said = arrays.speak(self.config, kind, self._prepared, self._arrays, self._pages, run)
        said = jax.device_get(said)
        self.places += len(self._slots) * int(said.said.max())
        self.computed += len(at) * int(said.said.max())
        for place, number in enumerate(at.tolist()):
            if number in calls:
                self._hand_over(self._slots[number], jax.tree.map(lambda x, place=place: x[place], said))

    def _hand_over(self, slot: _Slot, said: Any) -> None:
        """Adds tokens to the answer of a slot, and ends it where it is over."""
        call, answer, count = slot.call, slot.answer, int(said.said)
        assert call is not None
        self.spoken += count
        self.needed += count
        self.tokens_said += count
        started = bool(answer.tokens)
        tokens = said.tokens[:count].tolist()
        answer.tokens += tokens
        answer.logp += said.logp[:count].tolist()
        if call.top:
            chosen = zip(said.top[:count].tolist(), said.top_logp[:count].tolist(), strict=True)
            answer.top += [Candidates(tuple(ids), tuple(logp)) for ids, logp in chosen]
        slot.row += tokens
        slot.read += count - 1 + started
        slot.state = int(said.state)
        kept = None if call.stop is None else call.stop(answer.tokens)
        if kept is not None and kept <= len(answer.tokens):
            cut = len(answer.tokens) - kept
            del answer.tokens[kept:], answer.logp[kept:], answer.top[kept:], slot.row[len(slot.row) - cut :]
            slot.read = 0 if self.config.recurrent and slot.read > len(slot.row) else min(slot.read, len(slot.row))
            self._finish(slot, "stop")
        elif said.over:
            ended = answer.tokens[-1] == self.tokenizer.end or bool(self._ended(slot))
            self._finish(slot, "end" if ended else "length")
        else:
            call.said(call, answer)

    def _ended(self, slot: _Slot) -> bool:
        return bool(self._tables(self._grammars[slot.page]).ended[slot.state])

    def _finish(self, slot: _Slot, why: str) -> None:
        call, answer = slot.call, slot.answer
        assert call is not None
        answer.finish, slot.call, slot.used = why, None, time.monotonic()
        call.done(call, answer)

    def _places(self, numbers: list[int]) -> np.ndarray:
        """int32 [M]: these slots, M a power of four; places past them hold R, unless all slots take part."""
        count = min(4 ** math.ceil(math.log(len(numbers), 4)), len(self._slots))
        if count == len(self._slots):
            return np.arange(count, dtype=np.int32)
        return np.array([*numbers, *[len(self._slots)] * (count - len(numbers))], np.int32)

    def _column(self, at: np.ndarray, name: str) -> np.ndarray:
        known = [getattr(slot, name) for slot in self._slots]
        return np.array([known[n] if n < len(known) else 0 for n in at.tolist()], np.int32)

    def _widen(self, more: int) -> None:
        """Makes room for `more` tokens in every slot; idle slots that would need more than the context are emptied."""
        for slot in self._slots:
            if slot.call is None and slot.read + more > self.context:
                slot.row, slot.read = [], 0
        need = max(slot.read for slot in self._slots) + more
        if need > self._arrays.capacity:
            self._arrays = arrays.widen(self._arrays, min(power_of_two(need), self.context + CHUNK))


def _common(row: Sequence[int], other: Sequence[int]) -> int:
    """The number of tokens at the beginning that two rows share."""
    low, high = 0, min(len(row), len(other))
    if row[:SAME] != other[:SAME]:
        high = min(high, SAME)
    if row[:high] == other[:high]:
        return high
    while low < high:  # the first `low` tokens agree, and the first `high` + 1 do not
        middle = (low + high + 1) // 2
        low, high = (middle, high) if row[:middle] == other[:middle] else (low, middle - 1)
    return low
