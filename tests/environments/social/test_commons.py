"""Harvest and donor game against plain Python: the stock, what is told, scripted players, where the dilemma lies."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.social.commons import DonorGame, Harvest
from tests.support.told import answers, played, render, told

GAMES = 60
HARVESTS = {
    "monitored": Harvest(rounds=4, capacity=20, start=20, growth=0.5, most=4),
    "only the sum": Harvest(agents=2, rounds=5, capacity=12, start=6, growth=1.0, most=4, monitoring=False),
    "fines": Harvest(rounds=3, capacity=12, start=10, growth=0.8, most=3, fine=2, cost=0.5),
}
DONORS = {
    "even": DonorGame(rounds=6, start=4, most=3),
    "odd": DonorGame(agents=3, rounds=5, start=2, most=4, benefit=3, memory=1),
}


@cache
def plays(name):
    return played({**HARVESTS, **DONORS}[name], GAMES)


def growth(game, stock):
    return int(np.floor(game.growth * stock * (1 - stock / game.capacity) + 0.5))


def sustainable(game, stock):
    return min(max((stock + growth(game, stock) - game.capacity // 2) // game.agents, 0), game.most)


def test_growth_is_logistic_in_whole_units():
    game = Harvest(capacity=10, start=10, growth=0.8, agents=2, most=1)
    assert [growth(game, s) for s in range(11)] == [0, 1, 1, 2, 2, 2, 2, 2, 1, 1, 0]
    state, _ = game.reset(jax.random.key(0), jnp.int32(0))
    step = jax.jit(jax.vmap(lambda s: game.step(state.replace(stock=s), jnp.zeros(2, jnp.int32), jax.random.key(0))[0]))
    assert step(jnp.arange(11)).stock.tolist() == [0, 2, 3, 5, 6, 7, 8, 9, 9, 10, 10]


@pytest.mark.parametrize("name", HARVESTS)
def test_harvests_against_python(name):
    game = HARVESTS[name]
    _, record, _ = plays(name)
    view, n = record["view"], game.agents
    players, rationed, ended = range(1, n + 1), 0, 0
    for g in range(GAMES):
        stock, round, fining, t = game.start, 0, False, 0
        asked, fined, available = [0] * n, [0] * n, 0
        while fining or (round < game.rounds and stock > 0):
            action = record["action"][t, g].tolist()
            for seat in range(n):
                others = [k for k in players if k != seat + 1]
                took = [f" Player {k} wanted {asked[k - 1]}." for k in others]
                took = took if game.monitoring else [f" Together you wanted {sum(asked)}."]
                if sum(asked) > available:
                    took.append(f" There were only {available}, shared in proportion.")
                if fining:
                    expected = [f"Round {round + 1}.", *took, f" The stock is {stock}. Whom do you fine?"]
                    options = {"nobody", *(f"player {k}" for k in others)}
                else:
                    now = f"Round {round + 1}. The stock is {stock}. How much do you take?"
                    named = ["nobody", *(f"player {k}" for k in players)]
                    fines = [f" Player {k} fined {named[fined[k - 1]]}." for k in others]
                    past = [f"Round {round} is over.", *(fines if game.fine else took), "\n"] if round else []
                    expected, options = [*past, now], {str(h) for h in range(game.most + 1)}
                assert told(game, view, t, g, seat=seat) == "".join(expected)
                assert answers(game, view, t, g, seat=seat) == options
                scripted = {script: int(a[t, g, seat]) for script, a in record["scripted"].items()}
                rest = [asked[k - 1] for k in others]
                mean = int(np.floor(sum(rest) / (n - 1) + 0.5))
                if game.fine:
                    worst = others[rest.index(max(rest))] if max(rest) > asked[seat] else 0
                    assert scripted.pop("sanctioner") == (worst if fining else sustainable(game, stock))
                assert scripted.pop("sustainable") == (0 if fining else sustainable(game, stock))
                conditional = mean if round else sustainable(game, stock)
                assert scripted.pop("conditional") == (0 if fining else conditional)
                assert scripted.pop("greedy") == (0 if fining else game.most)
                assert scripted.pop("abstain") == 0 and set(scripted) == {"random"}
            reward = np.zeros((n, len(game.components)))
            if fining:
                fined = action
                for seat, target in enumerate(fined):
                    if target:
                        reward[seat, 1] -= game.cost
                        reward[target - 1, 2] -= game.fine
            else:
                asked, available = action, stock + growth(game, stock)
                scale = min(1, available / max(sum(asked), 1))
                reward[:, 0] = [h * scale for h in asked]
                stock = max(0, available - sum(asked))
                rationed += scale < 1
            np.testing.assert_allclose(record["reward"][t, g], reward, rtol=1e-6)
            round, fining = (round, True) if game.fine and not fining else (round + 1, False)
            t += 1
            ended += round < game.rounds and stock == 0
            assert record["after"].terminated[t - 1, g] == ((round == game.rounds or stock == 0) and not fining)
        for seat in range(n):  # the last round is told, too
            others = [k for k in players if k != seat + 1]
            result = [f" Player {k} wanted {asked[k - 1]}." for k in others]
            result = result if game.monitoring else [f" Together you wanted {sum(asked)}."]
            if sum(asked) > available:
                result.append(f" There were only {available}, shared in proportion.")
            if game.fine:
                result = [f" Player {k} fined {named[fined[k - 1]]}." for k in others]
            end = "".join([f"Round {round} is over.", *result, f" The stock is {stock}."])
            assert told(game, record["after"], t - 1, g, seat=seat) == end
        assert not record["after"].acting[t - 1, g].any()
    assert rationed and ended  # both happened


def run(game, *names):
    """Rewards [T, A] of the first component, by scripted players that sit for the whole game."""
    step, key = jax.jit(game.step), jax.random.key(0)
    scripts = [jax.jit(game.scripts[name]) for name in names]
    state, view = game.reset(key, jnp.int32(0))
    total = []
    while not view.terminated:
        action = jnp.stack([script(state, jnp.int32(seat), key) for seat, script in enumerate(scripts)])
        state, view, reward = step(state, action, key)
        total.append(np.asarray(reward)[:, 0])
    return np.array(total)


def test_greed_pays_the_one_and_ruins_all():
    game = Harvest(agents=2, rounds=8, capacity=20, start=20, growth=0.8, most=5)
    kept, ruined, mixed = (
        run(game, *names) for names in (["sustainable"] * 2, ["greedy"] * 2, ["sustainable", "greedy"])
    )
    # by hand: 20 - 10 = 10, which grows by 4; then all take 4 in each round. Greedy: 20 -> 10 -> 14 - 10 = 4 -> 4 + 3
    assert kept.sum(1).tolist() == [10, *[4] * 7] and kept.sum() == 38
    assert ruined.sum(1).tolist() == [10, 10, 7] and len(kept) == 8
    assert mixed[:, 1].sum() > kept[:, 1].sum() and mixed.sum() < kept.sum()

    @cache
    def optimum(stock, rounds):  # of the sum, by dynamic programming over what is taken together
        if rounds == 0 or stock == 0:
            return 0
        there = stock + growth(game, stock)
        return max(h + optimum(there - h, rounds - 1) for h in range(min(there, 10) + 1))

    assert ruined.sum() < kept.sum() <= optimum(20, 8) <= kept.sum() + 10  # the last round may take what is left


def test_in_the_last_round_to_take_all_is_dominant():
    game = Harvest(agents=2, rounds=1, capacity=8, start=5, growth=0.5, most=5)
    state, _ = game.reset(jax.random.key(0), jnp.int32(0))
    actions = jnp.stack(jnp.meshgrid(jnp.arange(6), jnp.arange(6), indexing="ij"), -1).reshape(36, 2)
    reward = jax.jit(jax.vmap(game.step, (None, 0, None)))(state, actions, jax.random.key(0))[2]
    reward = np.asarray(reward).reshape(6, 6, 2)
    assert (np.diff(reward[..., 0], axis=0) > 0).all() and (np.diff(reward[..., 1], axis=1) > 0).all()
    assert reward.sum(2).max() <= 6 + 1e-5  # 5 units and their growth of 1
    np.testing.assert_allclose(reward[5, 3], [6 * 5 / 8, 6 * 3 / 8], rtol=1e-6)


def test_without_monitoring_only_the_sum_is_told():
    texts = {}
    for monitoring in (False, True):
        game = Harvest(agents=3, monitoring=monitoring)
        state, _ = game.reset(jax.random.key(0), jnp.int32(0))
        step = jax.jit(game.step)
        texts[monitoring] = [
            told(game, step(state, jnp.array([4, *others]), jax.random.key(0))[1], seat=0)
            for others in ([1, 6], [5, 2])
        ]
    assert texts[False][0] == texts[False][1] and texts[True][0] != texts[True][1]


@pytest.mark.parametrize("name", DONORS)
def test_donor_games_against_python(name):
    game = DONORS[name]
    _, record, deals = plays(name)
    view = record["view"]
    for g in range(GAMES):
        coins, gifts = [game.start] * game.agents, [[] for _ in range(game.agents)]
        for t in range(game.rounds):
            recipient = deals.recipient[g, t].tolist()
            pairs = [(a, b) for a, b in enumerate(recipient) if b >= 0]
            met = [seat for pair in pairs for seat in pair]
            assert len(set(met)) == len(met) == game.agents // 2 * 2  # nobody is in two pairs
            reward = np.zeros((game.agents, 2))
            assert [(a, recipient[a]) for a in np.flatnonzero(view.acting[t, g])] == pairs
            for seat in set(range(game.agents)) - {a for a, _ in pairs}:
                assert told(game, view, t, g, seat=seat) == ""
            before = [list(given) for given in gifts]
            for donor, other in pairs:
                known = before[other][::-1][: game.memory]
                trace = [f" Before that {x}." for x in known[1:]]
                trace = [f" They last gave {known[0]}.", *trace] if known else [" They were never asked to give."]
                text = [f"Round {t + 1}. You have {coins[donor]} coins. You meet player {other + 1}.", *trace]
                assert told(game, view, t, g, seat=donor) == "".join([*text, " How many coins do you give?"])
                most = min(game.most, coins[donor])
                assert answers(game, view, t, g, seat=donor) == {str(x) for x in range(most + 1)}
                scripted = {script: int(a[t, g, donor]) for script, a in record["scripted"].items()}
                assert scripted.pop("reciprocal") == min(known[0] if known else most, most)
                good = not known or np.mean(known) >= game.most / 2
                assert scripted.pop("discriminator") == (most if good else 0)
                assert scripted.pop("always_give") == most and scripted.pop("never_give") == 0
                assert set(scripted) == {"random"}
                gift = int(record["action"][t, g, donor])
                gifts[donor].append(gift)
                reward[donor, 0] -= gift
                reward[other, 1] += game.benefit * gift
            coins = [c + int(r) for c, r in zip(coins, reward.sum(1), strict=True)]
            np.testing.assert_array_equal(record["reward"][t, g], reward)
            assert record["after"].terminated[t, g] == (t == game.rounds - 1)
    assert (record["after"].phrases[-1] == -1).all()


def test_giving_costs_the_donor_and_helps_all():
    game = DonorGame(agents=2, rounds=1, most=5, benefit=2)
    state, view = game.reset(jax.random.key(0), jnp.int32(0))
    donor = int(np.flatnonzero(view.acting)[0])
    step = jax.jit(jax.vmap(game.step, (None, 0, None)))
    reward = np.asarray(step(state, jnp.broadcast_to(jnp.arange(8)[:, None], (8, 2)), jax.random.key(0))[2])
    assert reward[:, donor].tolist() == [[-min(x, 5), 0] for x in range(8)]  # more than can be given is as the most
    assert reward[:, 1 - donor].tolist() == [[0, 2 * min(x, 5)] for x in range(8)]
    assert (np.diff(reward[:6, donor].sum(-1)) < 0).all() and (np.diff(reward[:6].sum((1, 2))) > 0).all()


def test_pairs_are_drawn_anew_and_alike():
    game = DonorGame(agents=4, rounds=3)
    reset = jax.jit(jax.vmap(lambda key: game.reset(key, jnp.int32(0))[0].recipient))
    recipient = np.asarray(reset(jax.random.split(jax.random.key(0), 2000)))
    for other in range(1, 4):  # seat 0 gives in half of the rounds, to each other one in a sixth
        assert abs((recipient[:, :, 0] == other).mean() - 1 / 6) < 4 * (5 / 36 / 6000) ** 0.5
    assert abs((recipient[:, 0] == recipient[:, 1]).all(-1).mean() - 1 / 12) < 0.03  # rounds are independent


def test_nobody_is_told_the_coins_of_others():
    game = DonorGame(rounds=2)
    state, view = game.reset(jax.random.key(0), jnp.int32(0))
    donor = int(np.flatnonzero(view.acting)[0])
    step = jax.jit(game.step)
    texts = set()
    for coins in (5, 9):
        poor = state.replace(coins=state.coins.at[(np.arange(4) != donor)].set(coins))
        view = step(poor, jnp.zeros(4, jnp.int32), jax.random.key(0))[1]
        texts.add(tuple(told(game, view, seat=seat) for seat in range(4) if seat == donor))
    assert len(texts) == 1


def test_the_rules_tell_the_numbers():
    for name, game in HARVESTS.items():
        for seat in range(game.agents):
            text = render(game.rules, plays(name)[0][0, seat])
            assert f"{game.rounds} rounds for {game.agents} players. You are player {seat + 1}." in text
            assert f"grows by {game.growth:g} * stock * (1 - stock / {game.capacity})" in text
            assert ("told what each of you wanted" in text) == game.monitoring
            assert (f"costs you {game.cost:g} and takes {game.fine:g}" in text) == (game.fine > 0)
    for name, game in DONORS.items():
        text = render(game.rules, plays(name)[0][0, 1])
        assert "You are player 2." in text and f"{game.benefit} times" in text and f"with {game.start} coins" in text


def test_a_harvest_has_one_deal():
    game = HARVESTS["monitored"]
    states, probability = game.initial_states()
    state, _ = game.reset(jax.random.key(3), jnp.int32(0))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b), states, state)
    assert probability.tolist() == [1.0]


@pytest.mark.parametrize(
    ("game", "settings", "message"),
    [
        (Harvest, {"agents": 1}, "agents must be at least 2, got 1"),
        (Harvest, {"most": 0}, "most must be at least 1"),
        (Harvest, {"start": 61}, "start must lie between 1 and the capacity of 60, got 61"),
        (Harvest, {"growth": 1.5}, "growth must lie above 0 and not above 1, got 1.5"),
        (Harvest, {"cost": float("inf")}, "cost must be finite"),
        (Harvest, {"fine": 1.0, "monitoring": False}, "monitoring must be True"),
        (DonorGame, {"agents": 1}, "agents must be at least 2"),
        (DonorGame, {"memory": 0}, "memory must be at least 1, got 0"),
        (DonorGame, {"start": -1}, "start must be at least 0, got -1"),
    ],
)
def test_settings_that_are_no_game(game, settings, message):
    with pytest.raises(ValueError, match=message):
        game(**settings)
