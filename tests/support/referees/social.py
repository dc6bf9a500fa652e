"""Dilemmas, public goods, gifts and bargaining, refereed from what was told and said."""

import re

import numpy as np

from tests.support.told import Transcript, later, number


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
        assert all(f"Player {k + 1} gave {gifts[k]}." in heard for k in range(agents) if k != seat)
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
            value = lambda k, o=offer: int(o[0]) * worth[k][o[1]] - int(o[2]) * worth[k][o[3]]
            points[seat], points[1 - seat] = value(seat), -value(1 - seat)
        made = re.fullmatch(r"offer (\d+) (\w+) for (\d+) (\w+)", said)
        offer = made.groups() if made else None
        assert not made or have[offer[1]] >= int(offer[0])
        assert after[1 - seat] == "" or after[1 - seat].startswith(f"They {said}.")
        expected.append(points)
    return np.stack(expected)


REFEREES = {
    "MatrixGame": matrix_game,
    "PublicGoods": public_goods,
    "Contributions": contributions,
    "Herd": herd,
    "Harvest": harvest,
    "DonorGame": donor_game,
    "TrustAndSplit": trust_and_split,
    "DealOrNoDeal": deal_or_no_deal,
    "SimpleNegotiation": trading,
}
