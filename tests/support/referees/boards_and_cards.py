"""Board and card games, refereed from what was told and said."""

import re
from functools import partial

import numpy as np

from tests.support.told import Transcript, later, number


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


REFEREES = {
    "TicTacToe": partial(board_game, length=3),
    "ConnectFour": partial(board_game, length=4),
    "KuhnPoker": kuhn_poker,
    "LeducPoker": leduc_poker,
    "LiarsDice": liars_dice,
    "Hanabi": hanabi,
}
