"""The help desk: texts and points against plain Python, and exact values of players by enumeration."""

import itertools
import re
from collections import Counter
from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.teams.help_desk import DYNAMIC, RECORDED, STATIC, HelpDesk
from tests.support.team_plays import acted, played, row, told_apart_only_by, totals

GAME, SMALL = HelpDesk(), HelpDesk(accounts=2, fields=2, values=3)
PLAYERS = ("correct", "thorough", "hasty")


def words_of_user(kind: str, wish: list[str], heard: str, memory: dict) -> str:
    """The script of a user in plain Python; `memory` has what it told and if it corrected."""
    parts = ("account", "field", "new value")
    done, asked = "It is done" in heard, re.search(r"asks for the (.*)\.", heard)
    if kind == "static":
        return "everything" if "Your wish?" in heard else "nothing"
    if kind == "recorded":
        left = [part for part in parts if part not in memory["told"]]
        return "nothing" if done or not left else f"the {left[0]}"
    if asked:
        return f"the {asked.group(1)}"
    if "not as you wish" not in heard or memory["corrected"]:
        return "nothing"
    wrong = [part for part, is_at, name in zip(parts, memory["at"], wish, strict=False) if is_at != name]
    return f"the {[*wrong, 'new value'][0]}"


@pytest.mark.parametrize("kind", ("dynamic", "static", "recorded"))
@pytest.mark.parametrize("player", ("random", "hasty", "correct"))
def test_against_python(player, kind):
    record = played(GAME, player, kind)
    for g in range(40):
        assistant, user = (row(GAME, record, g, seat) for seat in (0, 1))
        wish = re.search(r"account is (\w+)\. The field is (\w+)\. The new value is (\w+)\.", user[0]).groups()
        cells = itertools.product(*GAME.names[:2])
        former = dict(zip(cells, (GAME.names[2][v] for v in record["state"].table[0, g].ravel()), strict=True))
        goal, table, memory = wish[:2], dict(former), {"told": set(), "corrected": False, "at": [None, None]}
        reported, heard, expect = False, " An assistant is here. Your wish?", ""
        for t, (seat, said) in enumerate(acted(GAME, record, g)):
            assert (assistant, user)[seat][1 + t] == heard and (assistant, user)[1 - seat][1 + t] == ""
            verb, name, event = said.split()[0], said.split()[-1], ""
            if seat == 1:
                assert t == 0 or said == words_of_user(kind, wish, heard, memory)
                done, told = "It is done" in heard, re.sub("^the ", "", said)
                told = ["account", "field", "new value"] if told == "everything" else [told] * (told != "nothing")
                memory["told"] |= {*told}
                memory["corrected"] |= done and bool(told)
                event = " The user calls." * (t == 0) + " The user is not content." * done if told else ""
                named = dict(zip(("account", "field", "new value"), wish, strict=True))
                expect = event + "".join(f" The {part} is {named[part]}." for part in told)
                expect = expect or " The user says nothing."
            elif verb == "ask":
                expect = f" It asks for the {'new ' * (name == 'value')}{name}."
            elif verb == "tell":
                reported |= name == former[goal]
                wished = table == {**former, goal: wish[2]}
                expect = " It is done, as you wish." if wished else " It is done, but not as you wish."
            elif verb == "open":
                memory["at"], expect = [name, None], " Opened."
            elif verb == "read":
                at = memory["at"] = [memory["at"][0], name if memory["at"][0] else None]
                expect = f" It says {table[tuple(at)]}." if at[0] else " No account is open."
            else:
                expect = " Written." if memory["at"][1] else " No field is read."
                table.update({tuple(memory["at"]): name} if memory["at"][1] else {})
            over = t + 1 == GAME.turns or (seat == 1 and "It is done" in heard and said == "nothing")
            assert over == record["after"].terminated[t, g]
            solved = over and reported and table == {**former, goal: wish[2]}
            assert (record["reward"][t, g] == solved).all()
            assert record["measured"][t, g].tolist() == [[seat == 0 and verb == "ask"], [0]]
            heard = expect
        assert over


def test_scripts_and_their_questions():
    for kind, questions in (("dynamic", 2), ("static", 0), ("recorded", 2)):
        assert np.array_equal(totals(played(GAME, "correct", kind))[:, 0], [[1, questions]] * 2000)
        assert np.array_equal(totals(played(GAME, "thorough", kind))[:, 0], [[1, 3]] * 2000)
    alike = played(GAME, "correct", "dynamic"), played(GAME, "correct", "recorded")
    assert all(acted(GAME, alike[0], g) == acted(GAME, alike[1], g) for g in range(60))


def test_deals_are_uniform():
    start = jax.tree.map(lambda x: x[0], played(GAME, "correct", "dynamic")["state"])
    account, field, value = start.wish.T
    further = (value - start.table[np.arange(2000), account, field]) % 4
    count = Counter(zip(account, field, further, start.first, strict=True))
    assert len(count) == 81 and 0 not in further and all(abs(n - 2000 / 81) < 30 for n in count.values())


def test_a_wish_is_told_to_the_user_alone():
    key = jax.random.key(0)
    start = jax.jit(jax.vmap(lambda first: GAME.reset(key, jnp.int32(0))[0].replace(wish=first)))
    assert told_apart_only_by(GAME, start(jnp.array([[0, 0, 1], [1, 2, 0]])), (1,))


@cache
def compiled():
    """(tables, numbers of the other draws, index of the assistant, kind) -> points of all deals of the small game."""
    user, key = SMALL.scripts["user"], jax.random.key(0)

    def play(table, rest, player, kind):
        def turn(carry, _):
            state, won = carry
            says = jnp.stack([SMALL.scripts[name](state, jnp.int32(0), key) for name in PLAYERS])[player]
            over = SMALL.view(state).terminated
            after, _, paid = SMALL.step(state, jnp.stack([says, user(state, jnp.int32(1), key)]), key)
            return (jax.tree.map(lambda x, y: jnp.where(over, x, y), state, after), won + paid[0, 0] * ~over), None

        state = SMALL.start(table, rest % 2, rest // 2 % 2, rest // 4 % 2, rest // 8, kind)
        return jax.lax.scan(turn, (state, jnp.float32(0)), None, SMALL.turns)[0][1]

    return jax.jit(jax.vmap(play, (0, 0, None, None)))


@pytest.mark.long
def test_exact_values_of_scripts():
    """Over all deals of the small game. A guess of two parts is right in one case of four."""
    tables = np.array(list(itertools.product(range(3), repeat=4)), np.int32).reshape(-1, 2, 2)
    table, rest = tables.repeat(24, 0), np.tile(np.arange(24), len(tables))
    wanted = {"correct": (1, 1, 1), "thorough": (1, 1, 1), "hasty": (13 / 18, 1, 1 / 4)}
    for player, by_kind in wanted.items():
        for kind, value in zip((DYNAMIC, STATIC, RECORDED), by_kind, strict=True):
            found = float(np.mean(compiled()(table, rest, PLAYERS.index(player), kind)))
            assert found == pytest.approx(value), (player, kind)


def best(turns: int, first: int, asks: bool, corrects: bool) -> Fraction:
    """The value of the best assistant in the small game that knows the table at the start, all zeros, by search over
    its beliefs. The user has told the part `first`; it answers questions if `asks`, and corrects once if `corrects`."""
    cells, names = list(itertools.product(range(2), range(2))), (range(2), range(2), (1, 2))

    def wished(table, wish):
        return all(value == (wish[2] if cell == wish[:2] else 0) for cell, value in zip(cells, table, strict=True))

    def split(belief, part, after):
        """The sum over the names of a part of the values of `after`, which takes a belief."""
        return sum(after(frozenset(w for w in belief if w[part] == name)) for name in names[part])

    @cache
    def worth(table, at, belief, corrected, turns) -> int:
        """The number of wishes of the belief that are served."""
        if turns == 0 or not belief:
            return 0
        options = []
        for account in range(2):
            options.append(worth(table, (account, None), belief, corrected, turns - 1))
        for field in range(2) if at[0] is not None else ():
            options.append(worth(table, (at[0], field), belief, corrected, turns - 1))
        for value in range(3) if at[1] is not None else ():
            changed = tuple(value if cell == at else old for cell, old in zip(cells, table, strict=True))
            options.append(worth(changed, at, belief, corrected, turns - 1))
        if asks and turns > 2:
            options += [split(belief, q, lambda b: worth(table, at, b, corrected, turns - 2)) for q in range(3)]
        served = frozenset(w for w in belief if wished(table, w))
        told, rest = len(served), belief - served
        if corrects and not corrected and turns > 2:
            groups: dict[tuple, set] = {}
            for w in rest:
                wrong = 0 if at[0] != w[0] else 1 if at[1] != w[1] else 2
                groups.setdefault((wrong, w[wrong]), set()).add(w)
            told += sum(worth(table, at, frozenset(group), True, turns - 2) for group in groups.values())
        return max(told, *options)

    wishes = list(itertools.product(*names))
    known = [frozenset(w for w in wishes if w[first] == name) for name in names[first]]
    return Fraction(sum(worth((0,) * 4, (None, None), b, False, turns - 1) for b in known), len(wishes))


def test_the_best_assistant_asks():
    """Exactly: corrections alone serve more than guesses, and less than questions."""
    for first in range(3):
        assert best(11, first, asks=True, corrects=True) == best(9, first, asks=True, corrects=False) == 1
        assert best(8, first, asks=True, corrects=False) < 1  # the call, two questions and four acts take nine turns
        assert best(11, first, asks=False, corrects=False) == Fraction(1, 4)
    assert [best(11, first, asks=False, corrects=True) for first in range(3)] == [1, Fraction(3, 4), Fraction(3, 4)]


def test_settings_that_cannot_be_said():
    for settings in ({"accounts": 0}, {"accounts": 5}, {"fields": 5}, {"values": 2}, {"values": 6}, {"turns": 0}):
        with pytest.raises(ValueError, match=r"at most|must be"):
            HelpDesk(**settings)
