"""Teams with one reward, refereed from what was told and said."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np

from jaxmarl_llm.environments.judged.explanations import SCIENCE
from tests.support.told import Transcript, asked, later, number


def solver_verifier(play: Transcript) -> np.ndarray:
    right, loops = asked(play.rules[0]), number(r"(\d+) answers at most", play.rules[0])
    assert asked(play.rules[1]) == right and "1 point for each true verdict" in play.rules[1]
    expected, answer = [], None
    for turn, after in zip(play.turns, later(play), strict=True):
        ((seat, said),) = turn.said.items()
        points = np.zeros((2, 2))
        if seat == 0:
            answer = int(said)
            assert f"They answer {said}." in after[1]
        else:
            over = said == "approve" or len(expected) + 1 == 2 * loops
            assert over == (turn is play.turns[-1])
            points[:, 0] = over and answer == right
            points[1, 1] = (said == "approve") == (answer == right)
        expected.append(points)
    return np.stack(expected)


def pioneer_observer(play: Transcript) -> np.ndarray:
    expected = []
    for turn in play.turns:
        ((seat, said),) = turn.said.items()
        assert "A right answer is 1 point to its player." in play.rules[seat]
        expected.append([[float(k == seat and int(said) == asked(play.rules[seat]))] for k in range(2)])
    (first,), (second,) = (turn.said for turn in play.turns)
    assert f"They answer {play.turns[0].said[first]}." in play.turns[1].told[second]
    return np.array(expected)


def relay(play: Transcript) -> np.ndarray:
    dealt = sum(int(n.group(1)) for rules in play.rules if (n := re.search(r"Your number is (\d+)\.", rules)))
    modulus = number(r"sum mod (\d+)", play.rules[0])
    for (before, turn), seat in zip(pairwise(play.turns), (1, 2), strict=True):
        assert f"They say {before.said[seat - 1]}." in turn.told[seat]
    right = float(int(play.turns[-1].said[2]) == dealt % modulus)
    return np.array([[[0.0]] * 3] * 2 + [[[right]] * 3])


def halves(play: Transcript) -> np.ndarray:
    total = sum(number(r"Your number is (\d+)\.", rules) for rules in play.rules)
    right = total % number(r"mod (\d+)", play.rules[0])
    assert all(f"They send {play.turns[0].said[1 - k]}." in play.turns[1].told[k] for k in range(2))
    won = float(all(int(text) == right for text in play.turns[1].said.values()))
    return np.array([[[0.0]] * 2, [[won]] * 2])


def six_turns(play: Transcript) -> np.ndarray:
    """The texts keep the right letters secret: what pays in one turn pays whenever the colour comes again."""
    expected, right = [], {}
    for turn in play.turns:
        ((seat, said),) = turn.said.items()
        colour = re.fullmatch(r"It is (\w+)\.", turn.told[seat]).group(1)  # type: ignore
        if turn.reward[seat, 0] == 1:
            assert right.setdefault(colour, said) == said
        points = np.zeros((2, 2))
        points[seat] = 1 if right.get(colour) == said else -0.2, 2 * seat
        expected.append(points)
    return np.stack(expected)


def router_search(play: Transcript) -> np.ndarray:
    key = re.search(r"What is (\w)\?", play.rules[0]).group(1)  # type: ignore
    cost, most = number(r"costs you ([\d.]*\d) points", play.rules[0]), number(r"in (\d+) turns at most", play.rules[0])
    expected, known, named = [], {}, []
    for turn in play.turns:
        ((seat, said),) = turn.said.items()
        told = dict(re.findall(r" (\w) is (\d+)\.", turn.told[0]))
        assert all(known.setdefault(k, v) == v for k, v in told.items())
        assert turn.told[1] in ("", " Which key?") and all(f" {k} is {v}." in turn.told[2] for k, v in told.items())
        points = np.zeros((3, 2))
        if seat == 2:  # a value that nobody has looked up is told to nobody
            points[:, 0] = said == known[key] if key in known else turn.reward[0, 0]
        elif seat == 0:
            points[0, 1] = -cost * (said == "search" and key in known)
        else:
            points[1, 1] = -cost * (said in named)
            named.append(said)
        expected.append(points)
    assert next(iter(play.turns[-1].said)) == 2 or len(play.turns) == most
    return np.stack(expected)


def flow(play: Transcript) -> np.ndarray:
    """What no look-up has told and no tool has read is told to nobody: such an answer is believed."""
    begin, hops = re.search(r"Begin at (\w)\. Follow (\d)", play.rules[0]).groups()  # type: ignore
    most, expected, marks = number(r"in (\d+) steps at most", play.rules[0]), [], {}
    entries: dict[str, str] = {}
    last, named, done, mark, steps = begin, "", "", None, 0
    for turn in play.turns:
        ((seat, said),) = turn.said.items()
        points, slip = np.zeros((4, 3)), False
        if seat in (0, 2) and done == "mark":
            mark = re.match(r" The mark is (\d)\. ", turn.told[seat]).group(1)  # type: ignore
            assert marks.setdefault(last, mark) == mark
        elif (seat == 0 and done) or seat == 2:
            key, last = re.match(r" (\w) has the entry (\w)\. ", turn.told[seat]).groups()  # type: ignore
            assert key == done and entries.setdefault(key, last) == last != key
        if seat == 0:
            named = said
        elif seat == 1:
            assert turn.told[1] == (" Read the mark." if named == "mark" else f" Look up {named}.")
            done, steps, points[0, 1], slip = said, steps + 1, 1, said != named
        elif seat == 2:
            slip = (said == "stop") != (done == "mark")
        else:
            read = re.match(r" The mark is (\d)\. ", turn.told[3])
            mark = read.group(1) if read else None
            chain = [begin]
            while len(chain) <= int(hops) and chain[-1] in entries:
                chain.append(entries[chain[-1]])
            known = len(chain) > int(hops) and chain[-1] in marks
            points[:, 0] = said == marks[chain[-1]] if known else turn.reward[0, 0]
            slip = mark is not None and said != mark
        points[seat, 2] = slip
        expected.append(points)
    assert steps <= most and next(iter(play.turns[-1].said)) == 3
    return np.stack(expected)


def twenty_questions(play: Transcript) -> np.ndarray:
    secret = re.search(r"It is the (\w+)\.$", play.rules[1]).group(1)  # type: ignore
    table = {name: set(holds.split(", ")) for name, holds in re.findall(r"(\w+) \(([^)]*)\)", play.rules[0])}
    expected, question = [], ""
    for turn, after in zip(play.turns, later(play), strict=True):
        ((seat, said),) = turn.said.items()
        points = np.zeros((2, 3))
        if seat == 1:
            points[1, 2] = (said == "yes") == (question in table[secret])
            assert f"They say {said}." in after[0]
        elif said in table:
            points[:, 0] = said == secret
            assert turn is play.turns[-1]
        else:
            question, points[0, 1] = said, -0.01
            assert f"Does this hold: {said}?" in after[1]
        expected.append(points)
    return np.stack(expected)


def discussion(play: Transcript) -> np.ndarray:
    """Nobody is told whose answer it scores, so of three components the sums are known: each score is one answer's."""
    expected, right = [], asked(play.rules[0])
    for turn, after in zip(play.turns, later(play), strict=True):
        points = turn.reward.copy()
        if "Your answer?" in turn.told[0]:
            points[:] = [[0, 0, 0, int(turn.said[seat]) == right, 0] for seat in sorted(turn.said)]
            shown = Counter(re.search(r"Someone answers (\d+)\.", text).group(1) for text in after)  # type: ignore
            assert shown == Counter(turn.said.values())
        elif "Score" in turn.told[0]:
            scores = [(int(text) - 1) / 2 for text in turn.said.values() if text != "none"]
            none = [0.0] * (len(points) - len(scores))
            assert sorted(points[:, 0]) == sorted(scores + none)
            assert sorted(points[:, 1]) == sorted([1 - score for score in scores] + none)
            assert [-float(turn.said[seat] == "none") for seat in sorted(turn.said)] == points[:, 2].tolist()
            shown = {seat: re.search(r"Someone answers (\d+)\.", turn.told[seat]).group(1) for seat in turn.said}  # type: ignore
            for seat, text in turn.said.items():
                truth = int(int(shown[seat]) == right)
                assert points[seat, 4] == (0 if text == "none" else 1 - abs((int(text) - 1) / 2 - truth))
        else:
            points[:] = 0
        expected.append(points)
    return np.stack(expected)


def replies(play: Transcript) -> np.ndarray:
    (turn,) = play.turns
    return np.array([[[float(int(turn.said[0]) == asked(play.rules[0]))]]])


def explanations(play: Transcript) -> np.ndarray:
    """The game pays nothing; the number of the question, which only measures, is that of its text."""
    (one,) = (i for i, science in enumerate(SCIENCE) if science.question in play.rules[0])
    assert not any(text in play.rules[0] for text in SCIENCE[one][1:])  # what an expert says is told to nobody
    return np.array([[[0.0, one]]])


def whispers(play: Transcript) -> np.ndarray:
    word = re.search(r"The word is (\w+)\.", play.rules[0]).group(1)  # type: ignore
    last = len(play.rules) - 1
    assert all(f"<{seat - 1}>" in play.turns[seat].told[seat] for seat in range(1, last + 1))
    won = float(play.turns[-1].said[last] == word)
    return np.array([[[0.0]] * (last + 1)] * last + [[[won]] * (last + 1)])


def help_desk(play: Transcript) -> np.ndarray:
    """A field is read before it is written, so that its first reading is its value at the start of the game."""
    wish = r"account is (\w+)\. The field is (\w+)\. The new value is (\w+)\.$"
    account, field, value = re.search(wish, play.rules[1]).groups()  # type: ignore
    goal, most, opened, read = (account, field), number(r"has (\d+) turns", play.rules[0]), None, None
    former: dict[tuple[str, str], str] = {}
    table: dict[tuple[str, str], str] = {}
    told, expected = set(), []
    for turn, after in zip(play.turns, later(play), strict=True):
        ((seat, said),) = turn.said.items()
        verb, word = said.split()[0], said.split()[-1]
        if seat == 0:
            assert verb != "read" or not after[0] or ("No account" in after[0]) == (opened is None)
            if verb == "open":
                opened, read = word, None
            elif verb == "read" and opened:
                read = opened, word
                if after[0]:
                    seen = re.fullmatch(r" It says (\w+)\.", after[0]).group(1)  # type: ignore
                    assert table.setdefault(read, former.setdefault(read, seen)) == seen
            elif verb == "write" and read:
                table[read] = word
            elif verb == "tell":
                told.add(word)
        changed = {cell for cell, now in table.items() if now != former[cell]}
        wished = changed == {goal} and table[goal] == value
        assert "It is done" not in after[1] or ("not as you wish" in after[1]) == (not wished)
        expected.append([[0.0, float(seat == 0 and verb == "ask")], [0.0, 0.0]])
    assert len(play.turns) == most or (seat, said) == (1, "nothing")
    won = float(wished and former[goal] in told)
    expected[-1] = [[won, expected[-1][0][1]], [won, 0.0]]
    return np.array(expected)


def calls(play: Transcript) -> np.ndarray:
    """A price is that of the mode, and the sum is that of the numbers of the rules."""
    rules, mode = play.rules[0], play.turns[0].said[0]
    thought, call = (
        number(r"chance of [\d.]+, for ([\d.]*\d) points", rules),
        number(r"its value, for ([\d.]*\d)", rules),
    )
    numbers = re.search(r"wait for: (\d+) \+ (\d+) \+ (\d+)\.$", rules).groups()  # type: ignore
    size = number(r"modulo (\d+)", rules)
    right = sum(map(int, numbers)) % size
    expected = np.zeros((len(play.turns), 2, 3))
    expected[0, 0, 1] = -{"instant": 0, "think": thought, "call": call}[mode]
    expected[-1, 0, 0] = int(play.turns[-1].said[0]) == right
    if mode == "call":
        expected[3, 0, 2] = sum(int(turn.said[0]) for turn in play.turns[1:4]) % size == right
    return expected


def fact_memory(play: Transcript) -> np.ndarray:
    """The builder is told the mentions, the reader the question; a value that is not read is told to nobody."""
    built, named, answered = play.turns
    heard = re.findall(r"(\w) was heard (once|\d+)", built.told[0])
    mentions = {letter: 1 if count == "once" else int(count) for letter, count in heard}
    kept = built.said[0].split(" and ")
    assert named.told[1].startswith(f"Kept: {built.said[0]}. ") and "share of all mentions" in play.rules[0]
    question = re.search(r"The question is (\w)", named.told[1]).group(1)  # type: ignore
    places = {"first": 0, "second": 1}
    value = re.match(r"It is (\d)\.", answered.told[1])
    assert (value is None) == (named.said[1] == "neither")
    right = answered.reward[0, 2]
    if value and kept[places[named.said[1]]] == question:
        right = answered.said[1] == value.group(1)
    points = np.zeros((3, 2, 4))
    points[0, 0, 0] = sum(mentions[x] for x in kept) / sum(mentions.values())
    place = next((x for x, i in places.items() if kept[i] == question), "neither")
    points[2, 1, 1] = named.said[1] == place and (right or place == "neither")
    points[2, :, 2], points[2, :, 3] = right, question in kept
    return points


def handover(play: Transcript) -> np.ndarray:
    """The last try's result is told to nobody."""
    locks, tries = number(r"(\d+) locks in a row", play.rules[0]), number(r"in (\d+) tries", play.rules[0])
    expected, shift, lock, count, log = [], 0, 0, 0, []
    for turn, after in zip(play.turns, later(play), strict=True):
        ((seat, said),) = turn.said.items()
        points = np.zeros((3, 4))
        if seat == 1:
            log = re.findall(r"Lock (\d), key (\w) (\w+)\.", turn.told[1])
            place, key, result = log[("first", "second", "third", "fourth", "fifth", "sixth").index(said)]
            points[:, 2:] = place == "1", place != "1" and result == "opened"
            assert after[2].startswith(f"Note: lock {place}, key {key} {result}. ")
            shift, lock, count = 2, 0, 0
        else:
            assert seat == shift and turn.told[seat].endswith(f"Lock {lock + 1}: which key?")
            count += 1
            told = re.match(r"(Opened|Failed)\. ", after[seat])
            last = count == tries or lock + 1 == locks
            opens = told.group(1) == "Opened" if told else last and turn.reward[seat, 0] > 0
            lock += opens
            if not told:
                points[seat, 0] = lock == locks
                points[1, 1] = (2 * points[2, 0] - 1) * (shift == 2)
        expected.append(points)
    return np.stack(expected)


def team_graph(play: Transcript) -> np.ndarray:
    """Accuracies by all votes of all chains: right, wrong or none each."""
    rules, expected, chains, newest, last = play.rules[0], [], [], None, 0.0
    price, limit = number(r"costs you ([\d.]*\d) points", rules), number(r"There are (\d+) turns", rules)
    chances = re.search(r"with chance ([\d.]*\d), .* with chance ([\d.]*\d) and .* with chance ([\d.]*\d)\.$", rules)
    right, passes, fooled = map(float, chances.groups())  # type: ignore
    for i, turn in enumerate(play.turns):
        said, idle = turn.said[0], False
        assert turn.told[0].startswith(f"Solvers: {len(chains)}. Verifiers: ")
        chains += [0] * (said == "solver")
        if said == "verifier":
            idle, newest = newest == [], []
        elif said.startswith("check"):
            newest.append(said)
            chains[int(said[-1]) - 1] += 1
        ends = said == "stop" or i + 1 == limit
        votes = {(0, 0): 1.0}
        for checks in chains:
            yes, no = right * passes**checks, (1 - right) * fooled**checks
            after: Counter = Counter()
            for (a, b), chance in votes.items():
                after.update({(a + 1, b): chance * yes, (a, b + 1): chance * no, (a, b): chance * (1 - yes - no)})
            votes = dict(after)
        accuracy = sum(x * (a > b or (a == b > 0) / 2) for (a, b), x in votes.items())
        adds = said in ("solver", "verifier")
        expected.append([[accuracy * ends, -price * adds, accuracy - last, adds, idle or (ends and newest == [])]])
        last = accuracy
    return np.array(expected, float)


REFEREES = {
    "TeamGraph": team_graph,
    "Calls": calls,
    "HelpDesk": help_desk,
    "FactMemory": fact_memory,
    "Handover": handover,
    "SolverVerifier": solver_verifier,
    "PioneerObserver": pioneer_observer,
    "Relay": relay,
    "Halves": halves,
    "SixTurns": six_turns,
    "RouterSearch": router_search,
    "Flow": flow,
    "TwentyQuestions": twenty_questions,
    "Discussion": discussion,
    "Replies": replies,
    "Explanations": explanations,
    "Whispers": whispers,
}
