"""Bargaining games against plain Python: points, what is told, private values, scripted players."""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.social.deal_or_no_deal import DealOrNoDeal, scenarios
from jaxmarl_llm.environments.social.trading import SimpleNegotiation
from jaxmarl_llm.environments.social.trust_and_split import TrustAndSplit
from tests.support.told import answers, played, render, told

GAMES = 60
HANDS, ITEMS, GOODS = ("rock", "paper", "scissors"), ("book", "hat", "ball"), ("wheat", "wood", "sheep", "brick", "ore")
BEATS = {("rock", "scissors"), ("scissors", "paper"), ("paper", "rock")}
GAME = {
    "trust": TrustAndSplit(),
    "trust, three rounds": TrustAndSplit(rounds=3, coins=4, high=7, low=2),
    "trust, no words": TrustAndSplit(rounds=2, talk=False),
    "trust, signals": TrustAndSplit(rounds=3, coins=1, signals=True, trust=0.5),
    "deal": DealOrNoDeal(messages=3),
    "deal, no words": DealOrNoDeal(messages=0),
    "trade": SimpleNegotiation(turns=8, quantities=(1, 12)),
    "trade, words": SimpleNegotiation(turns=5, quantities=(2,), talk=True, zero_sum=True),
}
NAMES = {kind: [name for name in GAME if name.startswith(kind)] for kind in ("trust", "deal", "trade")}


@cache
def plays(name):
    return played(GAME[name], GAMES)


def silent_after(record):
    assert (record["after"].phrases[-1] == -1).all()
    over(record)


def over(record):
    assert record["after"].terminated[-1].all()
    assert not record["after"].acting[-1].any()
    hears = record["after"].hears
    assert hears is None or not hears[-1].any()


def line(game, view, t, g, seat, meanings=1):
    """A seat that talks may do nothing else."""
    assert game.grammars[view.grammar[t, g, seat]] == game.grammars[1]
    assert np.flatnonzero(view.legal[t, g, seat]).tolist() == list(range(meanings))


@pytest.mark.parametrize("name", NAMES["trust"])
def test_trust_and_split_against_python(name):
    game = GAME[name]
    _, record, deals = plays(name)
    view, believed = record["view"], []
    for g in range(GAMES):
        t, first, say = 0, int(deals.first[g]), "Name a hand to them." if game.signals else "Say one line to them."
        result = ["", ""]
        for round in range(game.rounds):
            hand = [HANDS[h] for h in deals.hands[g, round]]
            assert hand[0] != hand[1]
            start = [f"{result[seat]}Round {round + 1}. You have {hand[seat]}." for seat in range(2)]
            heard = [f"They say:\n<{seat}>" for seat in range(2)]  # of seat
            if game.talk:
                for seat in (first, 1 - first):
                    text = f"{start[seat]} {say}" if seat == first else f"{start[seat]}\n{heard[first]}\n{say}"
                    assert view.acting[t, g].tolist() == [seat == 0, seat == 1]
                    assert told(game, view, t, g, seat=seat) == text
                    assert told(game, view, t, g, seat=1 - seat) == ""
                    line(game, view, t, g, seat, meanings=3 if game.signals else 1)
                    assert (record["reward"][t, g] == 0).all()
                    truth = HANDS.index(hand[seat]) if game.signals else 0
                    assert all(a[t, g, seat] == truth for script, a in record["scripted"].items() if script != "random")
                    if game.signals:
                        heard[seat] = f"They say: {HANDS[record['action'][t, g, seat]]}."
                    t += 1
            ask = ["How many coins do you claim?"] * 2
            if game.talk:
                ask[first] = f"{heard[1 - first]}\n{ask[first]}"
            else:
                ask = [f"{start[seat]} {ask[seat]}" for seat in range(2)]
            claim = record["action"][t, g].tolist()
            assert view.acting[t, g].all()
            for seat in range(2):
                assert told(game, view, t, g, seat=seat) == ask[seat]
                assert answers(game, view, t, g, seat=seat) == {str(c) for c in range(game.coins + 1)}
                value = game.high if (hand[seat], hand[1 - seat]) in BEATS else game.low
                points = value * game.coins * claim[seat] / max(game.coins, sum(claim))
                np.testing.assert_allclose(record["reward"][t, g, seat, 0], points, rtol=1e-6)
                scripted = {script: a[t, g, seat] for script, a in record["scripted"].items()}
                last = record["action"][t - game._turns, g, 1 - seat] if round else game.coins // 2
                assert (scripted["greedy"], scripted["fair"]) == (game.coins, game.coins // 2)
                assert (scripted["yielding"], scripted["tit_for_tat"]) == (0, last)
                if game.signals:
                    believed.append((scripted["trusting"], heard[1 - seat][10:-1], hand[seat]))
            result = [f"They had {hand[1 - seat]} and claimed {claim[1 - seat]}.\n" for seat in range(2)]
            first, t = 1 - first, t + 1
        for seat in range(2):  # the last round is told, too
            assert told(game, record["after"], t - 1, g, seat=seat) == result[seat].strip()
    over(record)
    yields = [claim == 0 for claim, theirs, mine in believed if (theirs, mine) in BEATS]
    assert all(claim == game.coins for claim, theirs, mine in believed if (theirs, mine) not in BEATS)
    assert not believed or abs(np.mean(yields) - game.trust) < 4 * 0.5 / len(yields) ** 0.5


def test_shares_of_coins_by_hand():
    game = TrustAndSplit(talk=False)
    states, probability = game.initial_states()
    assert len(probability) == 12 and probability.tolist() == [1 / 12] * 12
    assert {(f, *h) for f, (h,) in zip(states.first.tolist(), states.hands.tolist(), strict=True)} == {
        (f, a, b) for f, a, b in product(range(2), range(3), range(3)) if a != b
    }
    won = next(i for i, (h,) in enumerate(states.hands.tolist()) if h == [1, 0])  # paper beats rock
    state = jax.tree.map(lambda leaf: leaf[won], states)
    claims = jnp.array(list(product(range(11), repeat=2)))
    step = jax.jit(jax.vmap(game.step, (None, 0, None)))
    points = np.asarray(step(state, claims, jax.random.key(0))[2])[..., 0].reshape(11, 11, 2)
    assert points[10, 0].tolist() == [100, 0] and points[0, 10].tolist() == [0, 10]
    assert points[5, 5].tolist() == [50, 5] and points[10, 10].tolist() == [50, 5]
    assert points[4, 3].tolist() == [40, 3]  # what nobody claims is lost
    np.testing.assert_allclose(points[10, 5], [200 / 3, 10 / 3], rtol=1e-6)
    assert (np.diff(points[..., 0], axis=0) > 0).all() and (np.diff(points[..., 1], axis=1) > 0).all()  # claim all
    assert points.sum(2).max() == points.sum(2)[10, 0] == 100  # but all to the winner is best for both together


def test_deals_of_trust_and_split_are_drawn_alike():
    game = TrustAndSplit()
    state = jax.jit(jax.vmap(lambda key: game.reset(key, jnp.int32(0))[0]))(jax.random.split(jax.random.key(0), 6000))
    number = np.asarray(state.hands[:, 0, 0] * 3 + state.hands[:, 0, 1]) * 2 + np.asarray(state.first)
    count = np.unique(number, return_counts=True)[1] / 6000
    assert len(count) == 12 and (abs(count - 1 / 12) < 4 * (11 / 144 / 6000) ** 0.5).all()
    assert len(TrustAndSplit(rounds=2).initial_states()[1]) == 72
    with pytest.raises(ValueError, match="6 rounds have 2 \\* 6\\^6 deals"):
        TrustAndSplit(rounds=6).initial_states()


def test_scenarios_are_those_of_the_paper():
    counts, values = scenarios()
    assert ((counts.sum(1) >= 5) & (counts.sum(1) <= 7)).all() and (counts >= 1).all() and counts.max() == 5
    assert ((values * counts[:, None]).sum(2) == 10).all() and (values >= 0).all()
    assert ((values > 0).any(1)).all() and (values > 0).all(1).any(1).all()
    assert len({(*c, *v.ravel()) for c, v in zip(counts.tolist(), values, strict=True)}) == len(counts)
    found = 0  # counted another way
    for pool in product(range(1, 6), repeat=3):
        if 5 <= sum(pool) <= 7:
            worth = [
                (a, b, (10 - a * pool[0] - b * pool[1]) // pool[2])
                for a in range(11)
                for b in range(11)
                if a * pool[0] + b * pool[1] <= 10 and (10 - a * pool[0] - b * pool[1]) % pool[2] == 0
            ]
            found += sum(
                all(x or y for x, y in zip(v, w, strict=True)) and any(x and y for x, y in zip(v, w, strict=True))
                for v, w in product(worth, worth)
            )
    assert found == len(counts)
    states, probability = DealOrNoDeal().initial_states()
    assert len(probability) == 2 * found and abs(probability.sum() - 1) < 1e-12
    np.testing.assert_array_equal(states.counts[::2], counts)
    np.testing.assert_array_equal(states.values[1::2], values)
    assert set(states.first[:2].tolist()) == {0, 1}


def taken(text):
    return [int(part.split("=")[1]) for part in text.split()]


@pytest.mark.parametrize("name", NAMES["deal"])
def test_deal_or_no_deal_against_python(name):
    game = GAME[name]
    prompt, record, deals = plays(name)
    view, n = record["view"], game.messages
    texts = dict(game.grammars[0][0].options)
    for g in range(GAMES):
        counts, values, first = deals.counts[g].tolist(), deals.values[g].tolist(), int(deals.first[g])
        for seat in range(2):
            items = [
                f"{c} {item}{'s' * (c > 1)} (worth {v} each to you)"
                for c, item, v in zip(counts, ITEMS, values[seat], strict=True)
            ]
            assert render(game.rules, prompt[g, seat]).endswith(f"There are {', '.join(items)}.")
        for t in range(n):
            seat = (first + t) % 2
            heard = f"They say:\n<{1 - seat}>\n" if t else ""
            assert view.acting[t, g].tolist() == [seat == 0, seat == 1]
            assert told(game, view, t, g, seat=seat) == f"{heard}Say one line to them."
            assert told(game, view, t, g, seat=1 - seat) == ""
            line(game, view, t, g, seat)
            assert (record["reward"][t, g] == 0).all()
        assert view.acting[n, g].all()
        last = (first + n - 1) % 2
        takes = [taken(texts[a]) for a in record["action"][n, g].tolist()]
        agreed = [a + b for a, b in zip(*takes, strict=True)] == counts
        for seat in range(2):
            heard = f"They say:\n<{last}>\n" if n and seat != last else ""
            assert told(game, view, n, g, seat=seat) == f"{heard}What do you take?"
            splits = product(*(range(c + 1) for c in counts))
            expected = {" ".join(f"{item}={k}" for item, k in zip(ITEMS, split, strict=True)) for split in splits}
            assert answers(game, view, n, g, seat=seat) == expected
            assert record["reward"][n, g, seat, 0] == agreed * np.dot(takes[seat], values[seat])
            scripted = {script: taken(texts[int(a[n, g, seat])]) for script, a in record["scripted"].items()}
            assert scripted["greedy"] == counts and scripted["yielding"] == [0, 0, 0]
            assert scripted["even"] == [c // 2 + (seat == 0) * (c % 2) for c in counts]
    silent_after(record)


def test_a_deal_pays_only_if_the_proposals_are_complementary():
    game = DealOrNoDeal(messages=0)
    number = {text: action for action, text in game.grammars[0][0].options}
    state, _ = game.reset(jax.random.key(0), jnp.int32(0))
    state = state.replace(counts=jnp.array([1, 2, 3]), values=jnp.array([[1, 3, 1], [4, 0, 2]]))
    moves = [
        ("book=0 hat=2 ball=1", "book=1 hat=0 ball=2"),  # 3 * 2 + 1 and 4 + 2 * 2
        ("book=0 hat=2 ball=3", "book=1 hat=0 ball=0"),
        ("book=1 hat=2 ball=1", "book=1 hat=0 ball=2"),  # both want the book
        ("book=0 hat=2 ball=0", "book=1 hat=0 ball=2"),  # a ball is left
        ("book=5 hat=5 ball=5", "book=0 hat=0 ball=0"),  # more than there is
    ]
    actions = jnp.array([[number[a], number[b]] for a, b in moves])
    reward = jax.jit(jax.vmap(game.step, (None, 0, None)))(state, actions, jax.random.key(0))[2]
    assert reward[..., 0].tolist() == [[7, 8], [9, 4], [0, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("name", NAMES["trade"])
def test_trade_against_python(name):
    game = GAME[name]
    prompt, record, deals = plays(name)
    view, options = record["view"], dict(game.grammars[0][0].options)
    offers, accepted = {}, 0  # text: change of the goods of the one who made it
    for give, want in product(range(5), repeat=2):
        for x, y in product(game.quantities, repeat=2):
            if give != want:
                change = [0] * 5
                change[give], change[want] = -x, y
                offers[f"offer {x} {GOODS[give]} for {y} {GOODS[want]}"] = np.array(change)
    assert set(options.values()) == {"accept", "deny", "pass", *offers} and game.actions == 3 + len(offers)
    base = np.array([5, 10, 15, 25, 40])
    for g in range(GAMES):
        goods, values = deals.goods[g].copy(), deals.values[g]
        gain, last = np.zeros(2, int), None
        for seat in range(2):
            worth = ", ".join(f"{name} {value}" for name, value in zip(GOODS, values[seat], strict=True))
            assert render(game.rules, prompt[g, seat]).endswith(f"One of each is worth to you: {worth}.")
        for t in range(game.turns):
            seat = (int(deals.first[g]) + t) % 2
            assert view.acting[t, g].tolist() == [seat == 0, seat == 1]
            have = ", ".join(f"{n} {name}" for n, name in zip(goods[seat], GOODS, strict=True))
            words = f" They say:\n<{1 - seat}>" if game.talk and last else ""
            expected = f"They {last}.{words}" if last else "You begin."
            assert told(game, view, t, g, seat=seat) == f"{expected}\nYou have {have}. Your move?"
            assert told(game, view, t, g, seat=1 - seat) == ""
            pending = offers.get(last)
            legal = {text for text, change in offers.items() if (goods[seat] + np.minimum(change, 0) >= 0).all()}
            legal |= {"pass"} if pending is None else {"deny"}
            can = pending is not None and (goods[seat] - pending >= 0).all()
            legal |= {"accept"} if can else set()
            assert answers(game, view, t, g, seat=seat) == legal
            assert options[int(record["scripted"]["stubborn"][t, g, seat])] == ("pass" if pending is None else "deny")
            likes = can and values[seat] @ -pending > 0
            for script in ("fair", "greedy"):
                said = options[int(record["scripted"][script][t, g, seat])]
                assert (said == "accept") == likes and said in legal
                if said in offers:
                    scores = {o: min(values[seat] @ d, -(base @ d)) if script == "fair" else values[seat] @ d
                              for o, d in offers.items() if o in legal}  # fmt: skip
                    assert scores[said] == max(scores.values()) > 0
            last, reward = options[int(record["action"][t, g, seat])], np.zeros(2)
            if last == "accept":
                change = np.stack([pending, pending])
                change[seat] *= -1
                goods += change
                reward += (change * values).sum(1)
                accepted += 1
            gain += reward.astype(int)
            if game.zero_sum:
                reward = np.sign(gain - gain[::-1]) * (t == game.turns - 1)
            np.testing.assert_array_equal(record["reward"][t, g, :, 0], reward)
    assert accepted
    silent_after(record)


def trading(game):
    """A game in the middle: 5 of each, values 5, 10, 15, 25, 40 but for ore, worth 32 to seat 0; seat 0 begins."""
    state, _ = game.reset(jax.random.key(0), jnp.int32(0))
    values = jnp.array([[5, 10, 15, 25, 32], [5, 10, 15, 25, 40]])
    return state.replace(first=jnp.int32(0), goods=jnp.full((2, 5), 5), values=values)


def test_trade_is_not_zero_sum_unless_asked_and_a_denied_offer_is_gone():
    number = {text: action for action, text in SimpleNegotiation().grammars[0][0].options}
    moves = ["offer 1 ore for 4 wood", "deny", "offer 1 ore for 4 wood", "accept"]
    for zero_sum in (False, True):
        game = SimpleNegotiation(turns=4, zero_sum=zero_sum)
        step, state, rewards, views = jax.jit(game.step), trading(game), [], []
        for move in moves:
            state, view, reward = step(state, jnp.full((2,), number[move]), jax.random.key(0))
            rewards.append(reward[:, 0].tolist())
            views.append(view)
        assert rewards[:3] == [[0, 0]] * 3 and rewards[3] == ([1, -1] if zero_sum else [8, 0])
        assert not views[1].legal[:, number["accept"]].any() and views[2].legal[1, number["accept"]]
        assert state.goods.tolist() == [[5, 9, 5, 5, 4], [5, 1, 5, 5, 6]] and views[3].terminated
    state = trading(game).replace(turn=jnp.int32(3), gain=jnp.array([3, 8]))
    assert step(state, jnp.full((2,), number["pass"]), jax.random.key(0))[2][:, 0].tolist() == [-1, 1]


def test_what_cannot_be_given_is_neither_offered_nor_accepted():
    game = SimpleNegotiation()
    number = {text: action for action, text in game.grammars[0][0].options}
    state = trading(game)
    state = state.replace(goods=state.goods.at[1, 1].set(3).at[0, 4].set(1))
    step = jax.jit(game.step)
    state, view, _ = step(state, jnp.full((2,), number["offer 1 ore for 4 wood"]), jax.random.key(0))
    assert not view.legal[1, number["accept"]] and view.legal[1, number["deny"]] and not view.legal[1, number["pass"]]
    assert not view.legal[1, number["offer 4 wood for 1 ore"]] and view.legal[1, number["offer 2 wood for 1 ore"]]
    after, _, reward = step(state, jnp.full((2,), number["accept"]), jax.random.key(0))  # not legal: nothing happens
    assert (after.goods == state.goods).all() and (reward == 0).all()


def test_fair_traders_gain_by_trade():
    game = SimpleNegotiation(turns=2)
    number = {text: action for action, text in game.grammars[0][0].options}
    step, key = jax.jit(game.step), jax.random.key(0)
    state = trading(game)
    state = state.replace(values=state.values.at[0, 2].set(18))
    fair, total, moves = jax.jit(game.scripts["fair"]), np.zeros(2), []
    for t in range(2):
        action = fair(state, jnp.int32(t), key)
        state, _, reward = step(state, jnp.broadcast_to(action, (2,)), key)
        total += np.asarray(reward)[:, 0]
        moves.append(int(action))
    # seat 0 has ore for 32 and sheep for 18: 4 * 18 - 2 * 32 and 2 * 40 - 4 * 15
    assert moves == [number["offer 2 ore for 4 sheep"], number["accept"]] and total.tolist() == [8, 20]


@pytest.mark.parametrize("name", GAME)
def test_nobody_is_told_what_only_the_other_one_knows(name):
    game = GAME[name]
    hidden = {"trust": "hands", "deal": "values", "trade": "values"}[name.split(",")[0]]
    fixed = [game.reset(jax.random.key(k), jnp.int32(0))[0] for k in range(2)]
    a = fixed[0]
    value = getattr(a, hidden)
    if hidden == "hands":  # rock is met by paper or by scissors
        own = value.at[:, 0].set(0)
        changed = [own.at[:, 1].set(1), own.at[:, 1].set(2)]
    else:
        changed = [value.at[1].set(v) for v in (getattr(fixed[0], hidden)[1], getattr(fixed[1], hidden)[1])]
    assert (changed[0] != changed[1]).any()
    step, rows = jax.jit(game.step), []
    for version in changed:
        state = a.replace(**{hidden: version})
        view, seen = game._view(state), [render(game.rules, np.asarray(game.prompt(state))[0])]
        for _ in range(game._turns if hidden == "hands" else game.turns):  # hands are told after the round
            seen.append((told(game, view, seat=0), view.legal[0].tolist(), view.grammar[0].item()))
            action = jnp.argmax(view.legal, 1).astype(jnp.int32)
            state, view, _ = step(state, action, jax.random.key(0))
        rows.append(seen)
    assert rows[0] == rows[1]


def test_trade_does_not_tell_what_the_other_one_has():
    game = GAME["trade"]
    state, texts = trading(game), set()
    for n in (2, 9):
        other = state.replace(goods=state.goods.at[1].set(n))
        texts.add((told(game, game._view(other), seat=0), tuple(game._view(other).legal[0].tolist())))
    assert len(texts) == 1


def test_messages_are_heard_by_the_other_one_only():
    for name in ("trust, three rounds", "deal", "trade, words"):
        view = plays(name)[1]["after"]
        assert view.hears.any() and not (view.hears & np.eye(2, dtype=bool)).any()
        assert not (view.hears.any(3) & view.acting & ~view.acting[..., ::-1]).any()  # who spoke waits, or all act


@pytest.mark.parametrize(
    ("game", "settings", "message"),
    [
        (TrustAndSplit, {"rounds": 0}, "rounds must be at least 1, got 0"),
        (TrustAndSplit, {"low": 10.0}, "high > low >= 0, got high 10.0 and low 10.0"),
        (TrustAndSplit, {"signals": True, "talk": False}, "they need talk"),
        (TrustAndSplit, {"trust": 1.5}, "trust must be from 0 to 1, got 1.5"),
        (DealOrNoDeal, {"messages": -1}, "messages must be at least 0, got -1"),
        (SimpleNegotiation, {"turns": 1}, "turns must be at least 2"),
        (SimpleNegotiation, {"quantities": (1, 1)}, r"different numbers of 1 to 25, got \(1, 1\)"),
        (SimpleNegotiation, {"quantities": ()}, "different numbers"),
        (SimpleNegotiation, {"quantities": (0, 1)}, "different numbers"),
    ],
)
def test_settings_that_are_no_game(game, settings, message):
    with pytest.raises(ValueError, match=message):
        game(**settings)
