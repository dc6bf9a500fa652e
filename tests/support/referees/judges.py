"""Games in which a seat or a rule judges answers, refereed from what was told and said."""

import re

import numpy as np

from tests.support.told import Transcript, asked, later, number


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
    paid = [[0, shift, followed, 0], [alone, 0, 0, 0], [0, shift * trusts, 0, final]]
    return np.stack([np.zeros((3, 4)), np.array(paid)])


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


def sum_duel(play: Transcript) -> np.ndarray:
    digits = [re.search(r"Your digits:((?: \d)+)$", rules).group(1).split() for rules in play.rules]  # type: ignore
    modulus = int(number(r"modulo (\d+)", play.rules[0]))
    wanted = [f" ={sum(map(int, own)) % modulus}" for own in digits]
    assert "You are the host" in play.rules[0] and "You are the guest" in play.rules[1]
    found, answer = np.zeros((len(play.turns), 2, 2)), ["", ""]
    for t, turn in enumerate(play.turns):
        assert all((seat in turn.said) == (not answer[seat]) for seat in range(2))
        for seat, said in turn.said.items():
            if "=" in said:
                answer[seat], found[t, seat, 1] = said, said == wanted[seat]
    assert all(answer) or len(play.turns) == number(r"After (\d+) turns", play.rules[0])
    wins = -1 if answer[1] == wanted[1] and answer[0] != wanted[0] else 1
    found[-1, :, 0] = wins, -wins
    return found


def reviews(play: Transcript) -> np.ndarray:
    length, words = int(number(r"a film, (\d+) words", play.rules[0])), [turn.said for turn in play.turns]
    known = re.search(r"known for (\w+), (\w+) and (\w+)\.", play.rules[0]).groups()  # type: ignore
    kinds = re.search(r"praise \((\w+), (\w+), (\w+)\)", play.rules[0]).groups()  # type: ignore
    expected = np.zeros((2 * length, 2, 1))
    for seat in range(2):
        said = [turn[seat].strip() for turn in words[seat * length : (seat + 1) * length]]
        praise = sum(said.count(word) for word in kinds)
        expected[(seat + 1) * length - 1, seat] = len({*known} & {*said}) / 3 - max(praise - 1, 0) / 4
        if seat == 0:
            assert [turn.told[1].strip() for turn in play.turns[1 : length + 1]] == said
    return expected


REFEREES = {
    "SumDuel": sum_duel,
    "Reviews": reviews,
    "Panel": panel,
    "Graded": graded,
    "Advised": advised,
    "Refereed": refereed,
    "Corpus": corpus,
    "Recycled": recycled,
}
