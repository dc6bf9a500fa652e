"""A help desk: an assistant changes one value of a table for a user who knows the wish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, draw, make_view, random_player
from jaxmarl_llm.text.grammar import Grammar

ASSISTANT, USER = 0, 1
ACCOUNTS, FIELDS = ("Ann", "Bob", "Cleo", "Dan"), ("bag", "meal", "plan", "seat")
VALUES = ("red", "blue", "green", "white", "black")
PARTS = ("account", "field", "new value")
NOTHING, EVERYTHING = 0, len(PARTS) + 1
USERS = DYNAMIC, STATIC, RECORDED = range(3)
"""The kinds of the script `user`, as the deal of a game names them."""
CALLS, SILENT, DISCONTENT, OPENED, NO_ACCOUNT, WRITTEN, NO_FIELD, WISH, ASKED = range(9)
RIGHT, WRONG, READ = 11, 12, 13
EVENTS = (
    *(" The user calls.", " The user says nothing.", " The user is not content.", " Opened.", " No account is open."),
    *(" Written.", " No field is read.", " An assistant is here. Your wish?"),
    *(f" It asks for the {part}." for part in PARTS),
    *(" It is done, as you wish.", " It is done, but not as you wish."),
    *(f" It says {value}." for value in VALUES),
)


class DeskState(struct.PyTreeNode):
    table: jax.Array  # int32 [accounts, fields]
    former: jax.Array  # int32 [accounts, fields], the table at the start
    wish: jax.Array  # int32 [3]: account, field and new value
    first: jax.Array  # int32, the part that a dynamic user tells first
    kind: jax.Array  # int32, the kind of the script `user`
    told: jax.Array  # bool [3], the parts that the user has told
    asked: jax.Array  # bool [3], the parts that the assistant has asked for
    cell: jax.Array  # int32 [2], the open account and the field read last, -1 for none
    reported: jax.Array  # bool, the former value was told
    turn: jax.Array  # int32
    seat: jax.Array  # int32, the seat that acts
    event: jax.Array  # int32, told to the seat that acts, -1: none
    parts: jax.Array  # bool [3], told to the assistant now
    corrected: jax.Array  # bool, the user has spoken after a told value
    left: jax.Array  # bool, the user has left


@dataclass(frozen=True)
class HelpDesk:
    """An assistant changes one value of a table for a user, the only one who knows account, field and new value.

    The user speaks first. In its turn the assistant asks for one of the three parts or tells the user a value, and then
    the user acts. Or it uses a tool, which answers at once: it opens an account, reads a field of the open account, or
    writes a value into the field read last. A write without a read field, and a read without an open account, change
    nothing. The user tells a part, everything or nothing, and cannot lie. After a told value it hears if the table is
    as it wishes; if it then says nothing, it leaves, which ends the game. The deal draws table, account, field and
    another value than the one in place, all uniformly.

    Component `solved`, to both in the last turn: 1 if exactly the wished value has been changed and the assistant has
    told its former value at least once, else 0. Measure `asked`: 1 to the assistant for a question.

    Scripts of the user, all of which speak the truth:

    - `dynamic` begins with one part, drawn with the deal, and answers questions. If a value is told and the table is
      wrong, it corrects the assistant, once, and leaves the second time. It corrects the account if another one is
      open, else the field if another one was read last, else the value.
    - `static` begins with everything and says nothing else.
    - `recorded` begins as `dynamic`. After questions it tells the next part that it has not told, whatever was asked,
      as in a dialogue with the script `correct`. It leaves after a told value.
    - `user` is the one of the deal, a number of `USERS` as third argument of `reset`; without it `dynamic`.

    Scripts of the assistant, each of which asks nothing of a seat that is the user:

    - `correct` asks for parts that it has not been told, just before they are needed. It restores wrong changes.
    - `hasty` never asks. It takes the first account and the first field if it was not told, and the next value.
    - `thorough` first asks for all three parts, whatever it was told, then plays as `correct`.

    As in MUA-RL (https://arxiv.org/abs/2508.18669) the final table is compared as a whole.
    Raises ValueError for accounts or fields outside 1 to 4, values outside 3 to 5, or turns < 1.
    """

    accounts: int = 3
    fields: int = 3
    values: int = 4
    turns: int = 11

    agents = 2
    roles = ("assistant", "user")
    components = ("solved",)
    measures = ("asked",)

    def __post_init__(self):
        at_least(1, accounts=self.accounts, fields=self.fields, turns=self.turns)
        at_least(3, values=self.values)
        if self.accounts > len(ACCOUNTS) or self.fields > len(FIELDS) or self.values > len(VALUES):
            raise ValueError(
                f"A table has at most {len(ACCOUNTS)} accounts, {len(FIELDS)} fields and {len(VALUES)} values, got "
                f"accounts={self.accounts}, fields={self.fields} and values={self.values}."
            )

    @property
    def seat_turns(self) -> int:
        return max(1, self.turns - 1)

    @property
    def actions(self) -> int:
        return len(PARTS) + self.accounts + self.fields + 2 * self.values

    @property
    def names(self) -> tuple[tuple[str, ...], ...]:
        """The accounts, the fields and the values."""
        return ACCOUNTS[: self.accounts], FIELDS[: self.fields], VALUES[: self.values]

    @property
    def rules(self) -> Fields:
        task = (
            f"A table has {self.accounts} accounts with {self.fields} fields each. A user wishes to change one value. "
            f"An assistant has {self.turns} turns for it, counting those of the user. Both get 1 point if at the end "
            "that value, and no other, is changed and the assistant has told what it was before."
        )
        assistant = " You are the assistant: ask the user, open an account, read its field, write, tell a value."
        user = " You are the user: tell the parts of your wish. You leave if you say nothing when all is done."
        wish = zip((" The account is", " The field is", " The new value is"), self.names, strict=True)
        return (task + assistant, task + user), *(tuple(f"{text} {name}." for name in names) for text, names in wish)

    @property
    def observation(self) -> Fields:
        """An event or a reading, then the parts of the wish that the user tells. All begin with a space."""
        told = zip(PARTS, self.names, strict=True)
        parts = (tuple(f" The {part} is {name}." for name in names) for part, names in told)
        return EVENTS[: READ + self.values], *parts

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        accounts, fields, values = self.names
        named = (("open", accounts), ("read", fields), ("write", values), ("tell", values))
        tools = (f"{verb} {name}" for verb, names in named for name in names)
        user = ("nothing", *(f"the {part}" for part in PARTS), "everything")
        return choice((*(f"ask for the {part}" for part in PARTS), *tools)), choice(user)

    @property
    def scripts(self) -> Mapping[str, Script]:
        def pair(assistant=self._correct, user=self._user):
            def play(state: DeskState, seat: jax.Array, key: jax.Array) -> jax.Array:
                return jnp.where(seat == ASSISTANT, assistant(state), user(state)).astype(jnp.int32)

            return play

        kinds = {
            name: pair(user=lambda state, kind=kind: self._user(state.replace(kind=jnp.int32(kind))))
            for name, kind in zip(("dynamic", "static", "recorded"), USERS, strict=True)
        }
        players = {"hasty": pair(self._hasty), "thorough": pair(self._thorough), "correct": pair()}
        return {"random": random_player(self.view), **players, "user": pair(), **kinds}

    def reset(self, key: jax.Array, group: jax.Array, given: jax.Array | None = None) -> tuple[DeskState, View]:
        keys = jax.random.split(key, 5)
        table = jax.random.randint(keys[0], (self.accounts, self.fields), 0, self.values, jnp.int32)
        account, field = draw(keys[1], self.accounts), draw(keys[2], self.fields)
        further, first = draw(keys[3], self.values - 1), draw(keys[4], len(PARTS))
        state = self.start(table, account, field, further, first, jnp.int32(DYNAMIC if given is None else given))
        return state, self.view(state)

    def start(self, table, account, field, further, first, kind) -> DeskState:
        """A deal. `further` + 1, modulo the number of values, is the distance from the value in place to the new
        one."""
        value = (table[account, field] + 1 + further) % self.values
        none, number = jnp.zeros(len(PARTS), bool), lambda n: jnp.int32(n)
        return DeskState(
            table=table,
            former=table,
            wish=jnp.stack([account, field, value]).astype(jnp.int32),
            first=number(first),
            kind=number(kind),
            told=none,
            asked=none,
            cell=jnp.full(2, -1, jnp.int32),
            reported=jnp.bool_(False),
            turn=number(0),
            seat=number(USER),
            event=number(WISH),
            parts=none,
            corrected=jnp.bool_(False),
            left=jnp.bool_(False),
        )

    def prompt(self, state: DeskState) -> jax.Array:
        return jnp.stack([jnp.array([0, -1, -1, -1], jnp.int32), jnp.concatenate([jnp.ones(1, jnp.int32), state.wish])])

    def step(self, state: DeskState, action: jax.Array, key: jax.Array) -> tuple[DeskState, View, jax.Array]:
        assists = state.seat == ASSISTANT
        after = jax.tree.map(
            lambda x, y: jnp.where(assists, x, y),
            self._assist(state, action[ASSISTANT]),
            self._hear(state, action[USER]),
        )
        after = after.replace(turn=state.turn + 1)
        solved = self._over(after) & self._as_wished(after) & after.reported
        paid = jnp.broadcast_to(solved, (2, 1)).astype(jnp.float32)
        asked = jnp.stack([assists & (action[ASSISTANT] < len(PARTS)), jnp.bool_(False)])[:, None]
        return after, self.view(after).replace(measured=asked.astype(jnp.float32)), paid

    def view(self, state: DeskState) -> View:
        parts = jnp.where(state.parts, state.wish, -1)
        seats = jnp.arange(2)
        text = jnp.concatenate([state.event[None], parts])
        return make_view(self, text, seats == state.seat, self._over(state), role=seats, grammar=seats)

    def _over(self, state: DeskState) -> jax.Array:
        return state.left | (state.turn >= self.turns)

    def _hears_result(self, state: DeskState) -> jax.Array:
        """True before a turn of the user that follows a told value."""
        return (state.event == RIGHT) | (state.event == WRONG)

    def _as_wished(self, state: DeskState) -> jax.Array:
        account, field, value = state.wish
        return (state.table == state.former.at[account, field].set(value)).all()

    def _act(self, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(the verb: 0 ask, 1 open, 2 read, 3 write, 4 tell; the number of its object)"""
        starts = jnp.cumsum(jnp.array([0, len(PARTS), self.accounts, self.fields, self.values]))
        verb = (action >= starts).sum() - 1
        return verb, action - starts[verb]

    def _number(self, verb: int, which: jax.Array) -> jax.Array:
        return which + sum((len(PARTS), self.accounts, self.fields, self.values)[:verb])

    def _assist(self, state: DeskState, action: jax.Array) -> DeskState:
        """The state after an act of the assistant, without the turn."""
        verb, which = self._act(action)
        asks, opens, reads, writes, tells = (verb == i for i in range(5))
        account, field = state.cell
        reads_well, writes_well = reads & (account >= 0), writes & (field >= 0)
        cell = jnp.where(opens, jnp.stack([which, -1]), jnp.where(reads_well, jnp.stack([account, which]), state.cell))
        event = jnp.stack([
            ASKED + which,
            OPENED,
            jnp.where(reads_well, READ + state.table[account, which], NO_ACCOUNT),
            jnp.where(writes_well, WRITTEN, NO_FIELD),
        ])  # fmt: skip
        after = state.replace(
            table=jnp.where(writes_well, state.table.at[account, field].set(which), state.table).astype(jnp.int32),
            asked=state.asked | (asks & (jnp.arange(len(PARTS)) == which)),
            cell=cell.astype(jnp.int32),
            reported=state.reported | (tells & (which == state.former[state.wish[0], state.wish[1]])),
            seat=jnp.where(asks | tells, USER, ASSISTANT).astype(jnp.int32),
            parts=jnp.zeros_like(state.parts),
        )
        done = jnp.where(self._as_wished(after), RIGHT, WRONG)
        return after.replace(event=jnp.where(tells, done, event[jnp.minimum(verb, 3)]).astype(jnp.int32))

    def _hear(self, state: DeskState, says: jax.Array) -> DeskState:
        """The state after words of the user, without the turn."""
        done, silent = self._hears_result(state), says == NOTHING
        parts = (says == EVERYTHING) | (jnp.arange(len(PARTS)) == says - 1)
        spoken = jnp.where(done, DISCONTENT, jnp.where(state.event == WISH, CALLS, -1))
        return state.replace(
            told=state.told | parts,
            seat=jnp.int32(ASSISTANT),
            event=jnp.where(silent, SILENT, spoken).astype(jnp.int32),
            parts=parts,
            corrected=state.corrected | (done & ~silent),
            left=done & silent,
        )

    def _user(self, state: DeskState) -> jax.Array:
        """The words of the script `user`."""
        calls, done = state.event == WISH, self._hears_result(state)
        wrong = state.cell != state.wish[:2]
        missing = 1 + jnp.where(wrong[0], 0, jnp.where(wrong[1], 1, 2))
        untold = jnp.where(state.told.all(), NOTHING, 1 + jnp.argmin(state.told))
        asked = 1 + jnp.clip(state.event - ASKED, 0, 2)
        dynamic = jnp.where(done, jnp.where((state.event == WRONG) & ~state.corrected, missing, NOTHING), asked)
        dynamic = jnp.where(calls, 1 + state.first, dynamic)
        static = jnp.where(calls, EVERYTHING, NOTHING)
        recorded = jnp.where(calls, 1 + state.first, jnp.where(done, NOTHING, untold))
        return jnp.stack([dynamic, static, recorded])[state.kind]

    def _correct(self, state: DeskState) -> jax.Array:
        return self._go(state, state.wish, jnp.where(state.told, -1, jnp.arange(len(PARTS))))

    def _hasty(self, state: DeskState) -> jax.Array:
        account, field = jnp.where(state.told[:2], state.wish[:2], 0)
        guess = jnp.stack([account, field, (state.former[account, field] + 1) % self.values])
        return self._go(state, jnp.where(state.told, state.wish, guess), jnp.full(len(PARTS), -1))

    def _thorough(self, state: DeskState) -> jax.Array:
        return jnp.where(state.asked.all(), self._correct(state), jnp.argmin(state.asked))

    def _go(self, state: DeskState, aim: jax.Array, question: jax.Array) -> jax.Array:
        """The next act towards `aim` int32 [3], where `question` int32 [3] has a question for each part of it that is
        to be asked for, -1 for the others."""
        (account, field, value), (ask_account, ask_field, ask_value) = aim, question
        cells = jnp.arange(self.accounts * self.fields)
        wrong = (state.table != state.former).ravel() & (cells != account * self.fields + field)
        restores = wrong.any() & (ask_account < 0) & (ask_field < 0)
        at = jnp.where(restores, jnp.argmax(wrong), account * self.fields + field)
        account, field = at // self.fields, at % self.fields
        value = jnp.where(restores, state.former[account, field], value)
        asks_value = (ask_value >= 0) & ~restores
        write = jnp.where(asks_value, ask_value, self._number(3, value))
        finished = ~asks_value & ~restores & (state.table[account, field] == value)
        act = jnp.where(finished, self._number(4, state.former[account, field]), write)
        read = jnp.where(ask_field >= 0, ask_field, self._number(2, field))
        act = jnp.where((state.cell[1] != field) & ~finished, read, act)
        enter = jnp.where(ask_account >= 0, ask_account, self._number(1, account))
        return jnp.where((state.cell[0] != account) & ~finished, enter, act)


GAMES = {"help_desk": HelpDesk}
