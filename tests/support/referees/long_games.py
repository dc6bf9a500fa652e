"""Games of many turns, refereed from what was told and said."""

import re

import numpy as np

from tests.support.told import Transcript, later, number


def rooms(play: Transcript) -> np.ndarray:
    rules, expected = play.rules[0], []
    wanted, here = re.findall(r"ake the (\w+)\.", rules), re.search(r"You begin in the (\w+)", rules).group(1)  # type: ignore
    row, total = re.search(r"to east: ([\w, ]+)\.", rules).group(1).split(", "), len(wanted)  # type: ignore
    for turn, after in zip(play.turns, later(play), strict=True):
        assert f"You are in the {here}." in turn.told[0]
        said = turn.said[0]
        takes = bool(wanted) and said == f"take {wanted[0]}" and f"There is a {wanted[0]}." in turn.told[0]
        wanted = wanted[takes:]
        won = takes and not wanted
        each = re.search(r"You get 1/(\d) points for each", rules)
        assert each or "1 point for the last" in rules
        expected.append([[takes / int(each.group(1)) if each else float(won), float(won)]])
        step = {"west": -1, "east": 1}.get(said, 0)
        there = row[min(max(row.index(here) + step, 0), len(row) - 1)]
        told = "Taken. " if takes else "Nothing happens. " if there == here else "You are"
        assert after[0] == "" or after[0].startswith(told)
        here = there
    assert not wanted or len(play.turns) == number(r"have (\d+) turns", rules)
    assert total == 2
    return np.array(expected)


def wordle(play: Transcript) -> np.ndarray:
    rules, said = play.rules[0], [turn.said[0] for turn in play.turns]
    listed = re.search(r"hidden: ([\w, ]+)\.", rules).group(1).split(", ")  # type: ignore
    most, cost = number(r"it, (\d+) times", rules), number(r"guess costs ([\d.]*\d) points", rules)

    def replies(guess: str, secret: str) -> str:
        kinds = ("right" if a == b else "elsewhere" if a in secret else "not in it" for a, b in zip(guess, secret))  # noqa: B905
        return "".join(f"Letter {i + 1} is {kind}. " for i, kind in enumerate(kinds)) + "Which word?"

    told = [turn.told[0] for turn in play.turns]
    fits = [w for w in listed if all(replies(g, w) == t for g, t in zip(said, told[1:], strict=False))]
    assert set(play.turns[0].possible[0]) == set(listed) and told[0] == "Which word?"
    right = said[-1] in fits and (len(said) < most or play.turns[-1].reward[0, 0] > 0)  # the last reply is not told
    assert right or (len(said) == most and fits)
    return np.array([[[0.0, -cost]]] * (len(said) - 1) + [[[1.0, 0.0] if right else [0.0, -cost]]])


def maze(play: Transcript) -> np.ndarray:
    rules, place = play.rules[0], r"You are in row (\d+), column (\d+)"
    goal = tuple(int(x) for x in re.search(r"goal is in row (\d+), column (\d+)", rules).groups())  # type: ignore
    cost, steps = number(r"step costs ([\d.]*\d) points", rules), number(r"You have (\d+) steps", rules)
    move = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
    expected = []
    for i, turn in enumerate(play.turns):
        here = tuple(int(x) for x in re.search(place, turn.told[0]).groups())  # type: ignore
        opens = re.search(r"Open: ([\w, ]+)\.", turn.told[0]).group(1).split(", ")  # type: ignore
        by = move[turn.said[0]] if turn.said[0] in opens else (0, 0)
        there = (here[0] + by[0], here[1] + by[1])
        if i + 1 < len(play.turns):
            then = play.turns[i + 1].told[0]
            assert tuple(int(x) for x in re.search(place, then).groups()) == there  # type: ignore
            assert then.startswith("A wall. ") == (by == (0, 0)) and there != goal
        expected.append([[float(there == goal), -cost]])
    assert expected[-1][0][0] or len(play.turns) == steps
    return np.array(expected)


def lock_chain(play: Transcript) -> np.ndarray:
    """Which key is right is told to nobody, so the referee knows it: the nth, or so many further on as the series."""
    series = re.search(r" These locks are of series (\d)\.$", play.rules[0])
    first = int(series.group(1)) if series else 0
    key = {colour: "ABCDABC"[n + first] for n, colour in enumerate(("red", "green", "blue", "yellow"))}
    locks, opened, expected = number(r"There (?:is|are) (\d+) lock", play.rules[0]), 0, []
    for turn, after in zip(play.turns, later(play), strict=True):
        colour = re.search(r"The lock is (\w+)\.$", turn.told[0]).group(1)  # type: ignore
        right = turn.said[0] == key[colour]
        opened += right
        assert after[0] == "" or after[0].startswith("It opens. " if right else "It stays shut. ")
        expected.append([[float(right and opened == locks), right / locks]])
    assert opened == locks or len(play.turns) == number(r"You have (\d+) turns", play.rules[0])
    return np.array(expected)


def stairs(play: Transcript) -> np.ndarray:
    """Which answers are right is told to nobody, so the referee knows it."""
    total, right = int(number(r"There are (\d+) stairs", play.rules[0])), 0
    for i, turn in enumerate(play.turns):
        assert turn.told[0].startswith(f"Stair {i + 1}:")
        right = right + 1 if turn.said[0] == "ABC"[i % 3] else 0
    assert len(play.turns) == total
    return np.array([[[0.0]]] * (total - 1) + [[[right / total]]])


def quiz(play: Transcript) -> np.ndarray:
    """Which letters earn what is told to nobody, so the referee knows it: 18, 10 and 2 of 20, in three orders."""
    (turn,) = play.turns
    place = "ABCDEFGHIJKLMNOPQRST".index(turn.said[0]) - number(r"Question (\d+)", play.rules[0])
    return np.array([[[place % 20 < 18, 11 * place % 20 < 10, 7 * place % 20 < 2]]], float)


def instruments(play: Transcript) -> np.ndarray:
    """Which answers are right is told to nobody, so the referee knows it. Readings are facts of a deal."""
    names, readings = ("clock", "compass", "scale", "gauge"), ("low", "middle", "high")
    expected, seen, right, named = [], {}, 0, ""
    for i, turn in enumerate(play.turns):
        if i % 2 == 0:
            assert turn.told[0].endswith(f"Read the {names[i // 2]}.")
            named, good = turn.said[0], False
        else:
            called, reading = re.search(r"The (\w+) says (\w+)\. Your answer\?$", turn.told[0]).groups()  # type: ignore
            assert called == named and seen.setdefault(called, reading) == reading
            truth = seen.get(names[i // 2])
            letter = None if truth is None else "ABC"[(readings.index(truth) + i // 2) % 3]
            good = turn.reward[0, 1] > 0 if letter is None else turn.said[0] == letter  # a guess at what was not read
            right += good
        expected.append([[float(i == 7 and right == 4), float(good)]])
    assert len(play.turns) == 2 * number(r"You read (\d+) instruments", play.rules[0])
    return np.array(expected)


def farm(play: Transcript) -> np.ndarray:
    look, works, expected = number(r"A look pays ([\d.]*\d) points", play.rules[0]), 0, []
    order = re.search(r"in this order: (\w+), (\w+), (\w+)\.", play.rules[0]).groups()  # type: ignore
    for i, turn in enumerate(play.turns):
        assert turn.told[0] == f"Turn {i + 1}. The field is {('bare', 'ploughed', 'sown', 'watered')[works]}."
        said = turn.said[0]
        right = works < 3 and said == order[works]
        expected.append([[works / 3 * (said == "stop"), look * (said == "look"), right / 3]])
        works += right
    assert said == "stop" or len(play.turns) == number(r"You have (\d+) turns", play.rules[0])
    return np.array(expected)


def letters(play: Transcript) -> np.ndarray:
    """How many lines of a kind the reader likes is told to nobody, so the referee knows it."""
    lines, said = int(number(r"a letter of (\d+) lines", play.rules[0])), [turn.said[0] for turn in play.turns]
    assert [turn.told[0] for turn in play.turns] == [f"Line {i + 1}." for i in range(lines)]
    details, praise = said.count("detail"), said.count("praise")
    liked = (1 - abs(details - 3) / 3 + 1 - abs(praise - 2) / 2) / 2
    return np.array([[[0.0] * 3]] * (lines - 1) + [[[liked, details / lines, praise / lines]]])


def fork(play: Transcript) -> np.ndarray:
    """Where the road leads is told from the turn after the fork on."""
    told = [turn.told[0] for turn in play.turns]
    (place,) = (i for i, text in enumerate(told) if text == "You stand at the fork.")
    assert set(told[:place]) <= {"You walk on."} and len(set(told[place + 1 :])) == 1
    return np.array([[[0.0]]] * (len(play.turns) - 1) + [[[float("to the goal" in told[-1])]]])


def bandit(play: Transcript) -> np.ndarray:
    """The last pull's point is told to nobody."""
    pulls, expected = number(r"and (\d+) pulls", play.rules[0]), []
    for turn, after in zip(play.turns, later(play), strict=True):
        assert turn.said[0] in ("A", "B", "C") and turn.told[0].endswith("Which arm?")
        told = re.match(r"It paid (nothing|1 point)\. ", after[0]) if after[0] else None
        paid = told.group(1) == "1 point" if told else turn.reward[0, 0] > 0
        expected.append([[float(paid)]])
    assert len(play.turns) == pulls and play.turns[0].told[0] == "Which arm?"
    return np.array(expected)


REFEREES = {
    "Rooms": rooms,
    "Wordle": wordle,
    "Maze": maze,
    "LockChain": lock_chain,
    "Stairs": stairs,
    "Quiz": quiz,
    "Instruments": instruments,
    "Farm": farm,
    "Letters": letters,
    "Fork": fork,
    "Bandit": bandit,
}
