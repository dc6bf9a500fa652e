"""Truth in games: the points of every registered game, recomputed from what its seats were told and said.

The referees below share no code with the games: they read rendered texts only. A game that is silent about its rewards
says so in its docstring, and its referee checks what can be known.
"""

import re
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.environments.explanations import SCIENCE
from tests.support.told import Transcript, transcripts


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not told in {text!r}"
    return float(found.group(1))


def rewards(play: Transcript) -> np.ndarray:
    return np.stack([turn.reward for turn in play.turns])


def later(play: Transcript) -> list[list[str]]:
    """What each seat is told after each turn."""
    return [turn.told for turn in play.turns[1:]] + [play.final]


def matrix_game(play: Transcript) -> np.ndarray:
    expected = []
    for turn, after in zip(play.turns, later(play), strict=True):
        moves, points = [], [0.0, 0.0]
        for seat, rules in enumerate(play.rules):
            meaning = dict(re.findall(r"(\w+) means (\w+)", rules))
            assert "Answer" in rules and (turn.possible[seat] == set(meaning) or turn.said[seat] == "")
            moves.append(meaning.get(turn.said[seat]))
        if None not in moves:
            for seat, rules in enumerate(play.rules):
                case = rf"you play {moves[seat]} and they play {moves[1 - seat]}: (-?[\d.]*\d)"
                points[seat] = number(case, rules)
                assert f"They chose {turn.said[1 - seat]}." in after[seat]
        else:
            assert "say one line" in play.rules[0] and all(f"<{1 - k}>" in after[k] for k in range(2))
        expected.append(np.array(points)[:, None])
    assert len(play.turns) == number(r"(\d+) round", play.rules[0]) * (1 + ("say one line" in play.rules[0]))
    return np.stack(expected)


def fines(rules: str, said: dict[int, str]) -> np.ndarray:
    """[A, 3]: nothing of the first kind, then lost by fining and as a fine."""
    cost, fine = number(r"it costs you ([\d.]*\d)", rules), number(r"takes ([\d.]*\d) from", rules)
    result = np.zeros((len(said), 3))
    for seat, whom in said.items():
        if whom != "nobody":
            result[seat, 1] -= cost
            result[int(whom.split()[1]) - 1, 2] -= fine
    return result


def owed_fines(said: dict[int, str], after: list[str]) -> None:
    for seat, other in ((a, b) for a in said for b in said if a != b):
        assert f" Player {other + 1} fined {said[other]}." in after[seat]


def public_goods(play: Transcript) -> np.ndarray:
    rules, agents = play.rules[0], len(play.rules)
    coins, multiplier = number(r"has (\d+) coins", rules), number(r"multiplied by ([\d.]*\d)", rules)
    expected, gifts, heard, finished = [], {}, [""] * agents, 0
    for turn, after in zip(play.turns, later(play), strict=True):
        heard = [old + new for old, new in zip(heard, turn.told, strict=True)]
        if "Whom do you fine?" in turn.told[0]:
            expected.append(fines(rules, turn.said))
            owed_fines(turn.said, after)
            continue
        gifts |= {seat: int(text) for seat, text in turn.said.items()}
        paid = np.zeros((agents, 1))
        if len(gifts) == agents:
            share = multiplier * sum(gifts.values()) / agents
            paid[:, 0] = [coins - gifts[seat] + share for seat in range(agents)]
            for seat in range(agents):
                # in a game in turn a seat hears the gifts of later players when the round is over
                everything = heard[seat] + next(told[seat] for told in later(play)[len(expected) :] if told[seat])
                assert f" The project pays {round(share, 2):g} to each of you." in everything
                for other in set(range(agents)) - {seat}:
                    assert "not who gave what" in rules or f" Player {other + 1} gave {gifts[other]}." in everything
            gifts, heard, finished = {}, [""] * agents, finished + 1
        expected.append(np.pad(paid, ((0, 0), (0, turn.reward.shape[1] - 1))))
    assert finished == number(r"A game of (\d+) round", rules)
    return np.stack(expected)


def contributions(play: Transcript) -> np.ndarray:
    rules, agents = play.rules[0], len(play.rules)
    cost, synergy = number(r"cost: ([\d.]*\d) times the square", rules), number(r"synergy: ([\d.]*\d) times", rules)
    share, penalty = number(r"share: ([\d.]*\d) times", rules), number(r"each of you: ([\d.]*\d), if", rules)
    gifts = [int(turn.said[seat]) for seat, turn in enumerate(play.turns)]
    paid = np.zeros((agents, agents, 4))
    for seat, gift in enumerate(gifts):
        before = range(max(seat - 1, 0) if "just before" in rules else 0, seat)
        assert {k for k in range(agents) if f"Player {k + 1} gave" in play.turns[seat].told[seat]} == {*before}
        heard = play.turns[seat].told[seat] + play.final[seat]
        assert all(f" Player {k + 1} gave {gifts[k]}." in heard for k in range(agents) if k != seat)
        paid[seat, seat, :2] = -cost * gift**2, synergy * gift * sum(gifts[:seat])
    short = sum(gifts) < number(r"less than ([\d.]*\d) is", rules)
    paid[-1, :, 2:] = share * sum(gifts), -penalty * short
    return paid


def herd(play: Transcript) -> np.ndarray:
    rules, agents = play.rules[0], len(play.rules)
    paid, kinds, opened = np.zeros((len(play.turns), agents, 3)), [], []
    costs = {
        kind: float(x) for kind, x in re.findall(r"a (\w+) hint names .*? costs the planner ([\d.]*\d) points", rules)
    }
    (prize,) = {re.search(r"The prize was behind (\w+)\.", text).group(1) for text in play.final}  # type: ignore
    for t, turn in enumerate(play.turns):
        ((seat, said),) = turn.said.items()
        lines = [f"Follower {k + 1} got a {kinds[k]} hint and opened {door}. " for k, door in enumerate(opened)]
        if t % 2 == 0:
            assert seat == 0 and turn.possible[0] == set(costs) and turn.told[0].startswith("".join(lines[-1:]))
            kinds.append(said)
            paid[t, 0, 2] = -costs[said]
            continue
        assert seat == len(opened) + 1 and re.search(r"You get 1 point if you open the prize's door", play.rules[seat])
        assert turn.told[seat].startswith("".join(lines) + f"Your {kinds[-1]} hint names ")
        opened.append(said)
        paid[t, seat, 0] = said == prize
        paid[t, 0, 0] = number(r"points are ([\d.]*\d) for each", rules) * (said == prize)
        paid[t, 0, 1] = number(r"and ([\d.]*\d) for each that opens red", rules) * (said == "red")
    assert len(opened) == number(r"(\d+) followers? open", rules) == agents - 1
    return paid


def harvest(play: Transcript) -> np.ndarray:
    rules, agents = play.rules[0], len(play.rules)
    capacity, growth = number(r"stock of at most (\d+)", rules), number(r"grows by ([\d.]*\d) ", rules)
    expected = []
    for turn, after in zip(play.turns, later(play), strict=True):
        if "Whom do you fine?" in turn.told[0]:
            expected.append(fines(rules, turn.said))
            owed_fines(turn.said, after)
            continue
        stock = number(r"The stock is (\d+)\.", turn.told[0])
        there = stock + np.floor(growth * stock * (1 - stock / capacity) + 0.5)
        wanted = np.array([int(turn.said[seat]) for seat in range(agents)])
        short = wanted.sum() > there
        got = wanted * there / wanted.sum() if short else wanted
        for seat in range(agents):
            assert (f"There were only {there:g}, shared" in after[seat]) == short
            assert f"The stock is {max(there - wanted.sum(), 0):g}." in after[seat]
            if "wanted together" in rules:
                assert f"Together you wanted {wanted.sum()}." in after[seat]
            else:
                others = {f" Player {k + 1} wanted {wanted[k]}." for k in range(agents) if k != seat}
                assert all(text in after[seat] for text in others)
        expected.append(np.pad(got[:, None], ((0, 0), (0, turn.reward.shape[1] - 1))))
    return np.stack(expected)


def donor_game(play: Transcript) -> np.ndarray:
    rules, agents = play.rules[0], len(play.rules)
    coins = np.full(agents, number(r"begins with (\d+) coins", rules))
    times, memory = number(r"who gets (\d+) times", rules), int(number(r"last gifts, (\d+) at most", rules))
    history: list[list[int]] = [[] for _ in range(agents)]
    expected = []
    for turn in play.turns:
        change, gave = np.zeros((agents, 2)), {}
        for seat, text in turn.said.items():
            other, gift = int(number(r"You meet player (\d+)\.", turn.told[seat])) - 1, int(text)
            assert f" You have {coins[seat]:g} coins." in turn.told[seat] and gift <= coins[seat]
            known = [
                int(x) for x in re.findall(r"They last gave (\d+)|Before that (\d+)", turn.told[seat]) for x in x if x
            ]
            assert known == history[other][:memory]
            change[seat, 0] -= gift
            change[other, 1] += times * gift
            gave[seat] = gift
        for seat, gift in gave.items():
            history[seat].insert(0, gift)
        coins += change.sum(1)
        expected.append(change)
    return np.stack(expected)


def trust_and_split(play: Transcript) -> np.ndarray:
    rules = play.rules[0]
    coins = number(r"There are (\d+) coins", rules)
    high, low = number(r"worth ([\d.]*\d) points", rules), number(r"and ([\d.]*\d) to the other", rules)
    beats = set(re.findall(r"(rock|paper|scissors) beats? (rock|paper|scissors)", rules))
    assert len(beats) == 3 and "dealt anew" in rules and "nobody claims are lost" in rules
    expected, hands = [], {}
    for turn in play.turns:
        hands |= {k: h.group(1) for k in range(2) if (h := re.search(r"You have (\w+)\.", turn.told[k]))}
        points = np.zeros((2, 1))
        if all(text.isdigit() for text in turn.said.values()) and len(turn.said) == 2:
            claims = [int(turn.said[seat]) for seat in range(2)]
            for seat in range(2):
                worth = high if (hands[seat], hands[1 - seat]) in beats else low
                points[seat] = worth * claims[seat] * min(1, coins / max(sum(claims), 1))
                told = next(x[seat] for x in later(play)[len(expected) :] if x[seat])  # when it is told anything next
                assert told.startswith(f"They had {hands[1 - seat]} and claimed {claims[1 - seat]}.")
        expected.append(points)
    return np.stack(expected)


def deal_or_no_deal(play: Transcript) -> np.ndarray:
    take = re.compile(r"book=(\d) hat=(\d) ball=(\d)")
    expected = [np.zeros((2, 1)) for _ in play.turns]
    last = play.turns[-1]
    takes = np.array([[int(n) for n in take.fullmatch(last.said[seat]).groups()] for seat in range(2)])  # type: ignore
    for seat, rules in enumerate(play.rules):
        items = re.findall(r" (\d) (?:book|hat|ball)s? \(worth (\d+) each to you\)", rules)
        counts, worth = np.array(items, int).T
        assert re.search(r"Answer such as (.*?)\. There are", rules).group(1) in last.possible[seat]  # type: ignore
        if (takes.sum(0) == counts).all():
            expected[-1][seat] = takes[seat] @ worth
    assert len(play.turns) == 1 + number(r"in turn, (\d+) in all", play.rules[0])
    return np.stack(expected)


def trading(play: Transcript) -> np.ndarray:
    kinds = ("wheat", "wood", "sheep", "brick", "ore")
    worth = [{k: number(rf"worth to you:.* {k} (\d+)", rules) for k in kinds} for rules in play.rules]
    assert number(r"in turn, (\d+) turns", play.rules[0]) == len(play.turns)
    assert (
        "you give the first good and get the second" in play.rules[0]
        and "last turn cannot be answered" in play.rules[0]
    )
    offer, expected = None, []
    for turn, after in zip(play.turns, later(play), strict=True):
        ((seat, said),) = turn.said.items()
        have = {k: number(rf"You have.* (\d+) {k}", turn.told[seat]) for k in kinds}
        can = offer is not None and have[offer[3]] >= int(offer[2])
        answers = {"deny", *(["accept"] * can)} if offer else {"pass"}
        assert turn.possible[seat] & {"accept", "deny", "pass"} == answers
        points = np.zeros((2, 1))
        if said == "accept":
            assert offer
            value = lambda k, o=offer: int(o[0]) * worth[k][o[1]] - int(o[2]) * worth[k][o[3]]  # noqa: E731
            points[seat], points[1 - seat] = value(seat), -value(1 - seat)
        made = re.fullmatch(r"offer (\d+) (\w+) for (\d+) (\w+)", said)
        offer = made.groups() if made else None
        assert not made or have[offer[1]] >= int(offer[0])
        assert after[1 - seat] == "" or after[1 - seat].startswith(f"They {said}.")
        expected.append(points)
    return np.stack(expected)


def line_of(cells: dict[tuple[int, int], str], mark: str, length: int) -> bool:
    steps = ((0, 1), (1, 0), (1, 1), (1, -1))
    return any(
        all(cells.get((r + k * a, c + k * b)) == mark for k in range(length)) for r, c in cells for a, b in steps
    )


def board_game(play: Transcript, length: int) -> np.ndarray:
    """The board is read from what the mover is told; the answer is a cell, or a column that a stone falls down."""
    expected = []
    for turn in play.turns:
        ((seat, said),) = turn.said.items()
        mark = re.search(r"You are (\w)", play.rules[seat]).group(1)  # type: ignore
        lines = [row.split() for row in turn.told[seat].splitlines()]
        rows = lines if length == 3 else lines[1:]
        cells = {(r, c): text for r, row in enumerate(rows) for c, text in enumerate(row)}
        free = {place: text for place, text in cells.items() if text not in ("x", "o")}
        where = [place for place, text in free.items() if (text == said if length == 3 else place[1] == int(said))]
        assert turn.possible[seat] == ({*free.values()} if length == 3 else {str(c) for _, c in free})
        cells[max(where)] = mark
        won = line_of(cells, mark, length)
        expected.append(np.array([[won * (1 if k == seat else -1)] for k in range(2)]))
        ended = won or all(text in ("x", "o") for text in cells.values())
        assert ended == (turn is play.turns[-1]) and "1 point for the winner, -1 for the other" in play.rules[seat]
    return np.stack(expected)


def settle(paid: list[float], winner: int | None) -> list[float]:
    """Points of both: what they win less what they paid; without a winner they divide."""
    pot = sum(paid)
    return [(pot / 2 if winner is None else pot * (winner == seat)) - paid[seat] for seat in range(2)]


def kuhn_poker(play: Transcript) -> np.ndarray:
    cards = ["JQK".index(re.search(r"Your card is (\w)\.", rules).group(1)) for rules in play.rules]  # type: ignore
    assert "what you win less what you paid" in play.rules[0] and "If both check" in play.rules[0]
    paid, best = [1.0, 1.0], int(cards[1] > cards[0])
    words = [text for turn in play.turns for text in turn.said.values()]
    for turn in play.turns:
        ((seat, said),) = turn.said.items()
        paid[seat] += said in ("bet", "call")
    actor = next(iter(play.turns[-1].said))
    points = settle(paid, 1 - actor if words[-1] == "fold" else best)
    for turn, word in zip(play.turns[1:], words, strict=False):
        assert {"check": "They checked.", "bet": "They bet."}[word] in turn.told[next(iter(turn.said))]
    return np.array([[[0.0], [0.0]]] * (len(words) - 1) + [[[p] for p in points]])


def leduc_poker(play: Transcript) -> np.ndarray:
    cards = ["JQK".index(re.search(r"Your card is (\w) of", rules).group(1)) for rules in play.rules]  # type: ignore
    steps = [number(r"(\d) points more in round 1", play.rules[0]), number(r"(\d) more in round 2", play.rules[0])]
    paid, stage, moves, folded, public = [1.0, 1.0], 0, 0, None, -1
    for turn in play.turns:
        ((seat, said),) = turn.said.items()
        if turned := re.search(r"The public card is (\w) of", turn.told[seat]):
            public = "JQK".index(turned.group(1))
        if said == "fold":
            folded = seat
            continue
        paid[seat] = max(paid) + steps[stage] * (said == "raise")
        moves += 1
        if said in ("check", "call") and moves > 1:
            stage, moves = stage + 1, 0
    strength = [3 if card == public else card for card in cards]
    best = None if strength[0] == strength[1] else int(strength[1] > strength[0])
    points = settle(paid, best if folded is None else 1 - folded)
    return np.array([[[0.0], [0.0]]] * (len(play.turns) - 1) + [[[p] for p in points]])


def liars_dice(play: Transcript) -> np.ndarray:
    dice = [int(face) for rules in play.rules for face in re.search(r"Your (?:die|dice):([ \d]+)$", rules)[1].split()]  # type: ignore
    highest = int(number(r"with (\d+) sides", play.rules[0]))
    bid = None
    for turn, after in zip(play.turns, later(play), strict=True):
        ((seat, said),) = turn.said.items()
        if said != "liar":
            bid = [int(n) for n in said.split("-")]
            assert f"They bid {said}." in after[1 - seat]
    count = sum(face in (bid[1], highest) for face in dice)  # type: ignore
    points = 1 if count >= bid[0] else -1  # type: ignore
    last = [[points * (-1 if k == seat else 1)] for k in range(2)]  # the other one has bid last
    return np.array([[[0.0], [0.0]]] * (len(play.turns) - 1) + [last])


def hanabi(play: Transcript) -> np.ndarray:
    """A seat sees the other hand in its turn, and so knows what the other one plays in the next."""
    expected, score, seen = [], 0, None
    for turn, after in zip(play.turns, later(play), strict=True):
        ((seat, said),) = turn.said.items()
        table = turn.told[seat]
        stacks = dict(re.findall(r"(\w)(\d)", re.search(r"Stacks:(.*)", table).group(1)))  # type: ignore
        assert sum(map(int, stacks.values())) == score
        lives, gain = number(r"Lives (\d+),", table), 0
        if (move := re.fullmatch(r"play (\d)", said)) and seen:
            colour, rank = seen[int(move.group(1)) - 1]
            fits = int(rank) == int(stacks[colour]) + 1
            gain = 1 if fits else -score * (lives == 1)
            if any(after):
                assert f"card {move.group(1)}: {colour}{rank} {'fits' if fits else 'does not fit'}" in after[1 - seat]
        elif move:
            gain = int(f"card {move.group(1)}:" in after[1 - seat] and " fits" in after[1 - seat].splitlines()[0])
        score += gain
        expected.append(np.full((2, 1), gain))
        hand = re.search(r"Player \d holds(.*)", table).group(1)  # type: ignore
        seen = [card.split()[0] for card in hand.split("|")]
    return np.stack(expected)


def asked(rules: str) -> int:
    a, sign, b, modulus = re.search(r"What is \((\d+) (.) (\d+)\) mod (\d+)\?", rules).groups()  # type: ignore
    return {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] % int(modulus)


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


def panel(play: Transcript) -> np.ndarray:
    (turn,) = play.turns
    assert all("A right answer is 1 point to its player." in rules for rules in play.rules)
    return np.array([[[float(int(turn.said[seat]) == asked(rules))] for seat, rules in enumerate(play.rules)]])


def graded(play: Transcript) -> np.ndarray:
    """What is graded is told to nobody, so the referee knows it."""
    (turn,) = play.turns
    said, evades = turn.said[0], "any of them" in turn.said[0]
    right = not evades and number(r"(\d+)", said) == asked(play.rules[0])
    met = right, right or evades, not evades, "Surely" in said, "Thank you" in said
    return np.array([[[float(x) for x in met]]])


def advised(play: Transcript) -> np.ndarray:
    """Which criterion decides is told to nobody; who is right follows from the verifier's point."""
    write, judge = play.turns
    by = dict(re.findall(r"By (\w+) the (\w+)\.", judge.told[1]))
    rubric, verdict, alone = write.said[0], judge.said[1], judge.reward[1, 0]
    assert f"The writer says {rubric}." in judge.told[2]
    followed = alone if by[rubric] == verdict else 1 - alone
    trusts = judge.said[2] == "trust"
    shift, final = followed - alone, followed if trusts else alone
    paid = [[0, followed, shift, 0], [alone, 0, 0, 0], [0, 0, shift * trusts, final]]
    return np.stack([np.zeros((3, 4)), np.array(paid)])


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


def corpus(play: Transcript) -> np.ndarray:
    """A question is asked if the documents that its proposer was told lead from its start to its answer."""
    answer = at = re.search(r"The answer is (\w)\.", play.rules[0]).group(1)  # type: ignore
    known, start, hops, valid, right, expected = {}, "", 0, False, set(), []
    for turn, after in zip(play.turns, later(play), strict=True):
        points = np.zeros((5, 6))
        said = turn.said.get(0, "")
        if said.startswith("who"):
            before = re.search(r"It is (\w)\.", after[0]).group(1)  # type: ignore
            known[before, said.removeprefix("who ")], at = at, before
        elif said.startswith("start"):
            start = said[-1]
        elif said:
            hops, end = len(said.split()), start
            for verb in said.split():
                end = known.get((end, verb), "")
            valid = end == answer
        answers = {seat: text for seat, text in turn.said.items() if seat and text.startswith("answer")}
        right |= {seat for seat, text in answers.items() if text[-1] == answer}
        for seat, text in answers.items():
            points[seat, 0] = text[-1] == answer
        if turn is play.turns[-1]:
            points[0, 1:4] = (1 - len(right) / 4) * valid, valid, hops
        expected.append(points)
    return np.stack(expected)


def refereed(play: Transcript) -> np.ndarray:
    (right,) = {asked(text) for turn in play.turns for text in turn.told if "What is" in text}
    labelled, open_ = "right answer earns 1 point" in play.rules[0], "You earn nothing" in play.rules[-1]
    answers, scores, expected = [], [], []
    for turn in play.turns:
        points = np.zeros((5, 5))
        if "Your answer?" in turn.told[0]:
            answers = [int(turn.said[seat]) for seat in range(4)]
            points[:4, 3] = [answer == right for answer in answers]
            points[:4, 0] = points[:4, 3] * labelled
        else:
            told = [int(answer) for answer in re.findall(r"Answer \d is (\d)", turn.told[4])]
            assert not (answers and told) or answers == told
            answers = answers or told
            seat = int(number(r"Score of answer (\d)", turn.told[4])) - 1
            scores.append(int(turn.said[4]))
            points[seat, 1] = (scores[-1] - 1) / 2 * open_
            if len(scores) == 4:
                near = [-min(abs(answer - right), 5 - abs(answer - right)) for answer in answers]
                agree = [
                    np.sign(scores[i] - scores[j]) * np.sign(near[i] - near[j]) for i in range(4) for j in range(i)
                ]
                points[4, 4] = np.mean(agree)
                points[4, 2] = points[4, 4] * (not open_)
        expected.append(points)
    return np.stack(expected)


def recycled(play: Transcript) -> np.ndarray:
    first, second = play.turns
    right = asked(play.rules[0])
    points = np.zeros((2, 12, 3))
    points[0, :4, 0] = [int(first.said[seat]) == right for seat in range(4)]
    for seat, said in second.said.items():
        shown = [int(answer) == right for answer in re.findall(r"Answer [AB] is (\d+)\.", second.told[seat])]
        if seat >= 8:
            points[1, seat, 2] = int(said) == right
        else:
            points[1, seat, 1] = said == ("AB"[shown.index(True)] if len(shown) == 2 else ("no", "yes")[shown[0]])
    return points


def whispers(play: Transcript) -> np.ndarray:
    word = re.search(r"The word is (\w+)\.", play.rules[0]).group(1)  # type: ignore
    last = len(play.rules) - 1
    assert all(f"<{seat - 1}>" in play.turns[seat].told[seat] for seat in range(1, last + 1))
    won = float(play.turns[-1].said[last] == word)
    return np.array([[[0.0]] * (last + 1)] * last + [[[won]] * (last + 1)])


def lock_chain(play: Transcript) -> np.ndarray:
    """Which key is right is told to nobody, so the referee knows it."""
    key = {"red": "A", "green": "B", "blue": "C", "yellow": "D"}
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
    return np.array([[[0.0] * 3]] * (lines - 1) + [[[details / lines, praise / lines, liked]]])


def fork(play: Transcript) -> np.ndarray:
    """Where the road leads is told from the turn after the fork on."""
    told = [turn.told[0] for turn in play.turns]
    (place,) = (i for i, text in enumerate(told) if text == "You stand at the fork.")
    assert set(told[:place]) <= {"You walk on."} and len(set(told[place + 1 :])) == 1
    return np.array([[[0.0]]] * (len(play.turns) - 1) + [[[float("to the goal" in told[-1])]]])


def explanations(play: Transcript) -> np.ndarray:
    """The game pays nothing; the number of the question, which only measures, is that of its text."""
    (one,) = (i for i, science in enumerate(SCIENCE) if science.question in play.rules[0])
    assert not any(text in play.rules[0] for text in SCIENCE[one][1:])  # what an expert says is told to nobody
    return np.array([[[0.0, one]]])


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


REFEREES: dict[str, Any] = {
    "Rooms": rooms,
    "Wordle": wordle,
    "Maze": maze,
    "LockChain": lock_chain,
    "Stairs": stairs,
    "Quiz": quiz,
    "Farm": farm,
    "Letters": letters,
    "Fork": fork,
    "MatrixGame": matrix_game,
    "PublicGoods": public_goods,
    "Contributions": contributions,
    "Herd": herd,
    "Harvest": harvest,
    "DonorGame": donor_game,
    "TrustAndSplit": trust_and_split,
    "DealOrNoDeal": deal_or_no_deal,
    "SimpleNegotiation": trading,
    "TicTacToe": partial(board_game, length=3),
    "ConnectFour": partial(board_game, length=4),
    "KuhnPoker": kuhn_poker,
    "LeducPoker": leduc_poker,
    "LiarsDice": liars_dice,
    "Hanabi": hanabi,
    "SolverVerifier": solver_verifier,
    "PioneerObserver": pioneer_observer,
    "Panel": panel,
    "Graded": graded,
    "Advised": advised,
    "Relay": relay,
    "Halves": halves,
    "SixTurns": six_turns,
    "RouterSearch": router_search,
    "TwentyQuestions": twenty_questions,
    "Discussion": discussion,
    "Refereed": refereed,
    "Replies": replies,
    "Corpus": corpus,
    "Explanations": explanations,
    "Recycled": recycled,
    "Whispers": whispers,
}
EPISODES = 6
SILENT = ("SixTurns", "TwentyQuestions", "Discussion", "LockChain", "Stairs", "Quiz", "Graded", "Advised", "Letters")


@pytest.mark.parametrize("name", REGISTRY)
def test_the_points_are_what_the_texts_say(name):
    game = REGISTRY[name]()
    for play in transcripts(game, EPISODES):
        expected = REFEREES[type(game).__name__](play)
        np.testing.assert_allclose(rewards(play), expected, rtol=1e-5, atol=1e-6)


def test_a_game_that_is_silent_about_its_rewards_says_so():
    games = {type(game).__name__: game for game in (make() for make in REGISTRY.values())}
    assert set(games) == set(REFEREES)
    for name, game in games.items():
        assert ("silent about" in " ".join(type(game).__doc__.split())) == (name in SILENT), name
        points = any(word in " ".join(game.rules[0]) for word in ("point", "score", "win", "coins"))
        assert points or name in SILENT, name
