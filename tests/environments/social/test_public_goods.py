"""Public goods against plain Python: rewards, what is told, scripted players, where the dilemma lies."""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.social.public_goods import PublicGoods, State
from tests.support.told import answers, played, render, told

GAMES = 60
SETTINGS = {
    "at once": PublicGoods(rounds=3, endowment=4),
    "at once, fines": PublicGoods(rounds=3, endowment=4, threshold=3, fine=3, cost=1),
    "in turn": PublicGoods(rounds=3, endowment=4, sequential=True),
    "in turn, partial": PublicGoods(agents=4, rounds=3, endowment=2, threshold=4, sequential=True, partial=True),
    "in turn, fines": PublicGoods(rounds=2, endowment=2, sequential=True, fine=2.5, cost=0.5),
}


@cache
def plays(name):
    return played(SETTINGS[name], GAMES)


def half_up(total, count):
    return int(np.floor(total / count + 0.5))


class Referee:
    """Every seat has a queue of what happened since it acted last, as far as it may know."""

    def __init__(self, game, first):
        self.game, self.first, self.round, self.stage = game, first, 0, 0
        self.n, self.gifts, self.history = game.agents, {}, []
        self.news = {seat: [] for seat in range(self.n)}

    @property
    def order(self):
        if not self.game.sequential:
            return [list(range(self.n))]
        return [[(self.first + self.round + k) % self.n] for k in range(self.n)]

    @property
    def fining(self):
        return self.stage == len(self.order)

    @property
    def over(self):
        return self.round == self.game.rounds

    def acting(self):
        return set() if self.over else set(range(self.n)) if self.fining else set(self.order[self.stage])

    def say(self, seat):
        """Text for a seat that acts; its queue is emptied."""
        news, self.news[seat] = sorted(self.news[seat]), []
        old = [text for r, _, _, text in news if r < self.round]
        new = [text for r, _, _, text in news if r == self.round]
        begin = [f"Round {self.round + 1}."]
        if self.round > 0 and not self.fining:
            begin = [f"Round {self.round} is over.", *old, f"\nRound {self.round + 1}."]
        number = f" You are number {self.stage + 1} of {self.n} to give: how many coins do you give?"
        ask = number if self.game.sequential else " How many coins do you give?"
        return "".join([*begin, *new, " Whom do you fine?" if self.fining else ask])

    def close(self, seat):
        """Text for a seat after the end: what it has not been told of the last round."""
        return "".join([f"Round {self.round} is over.", *(text for *_, text in sorted(self.news[seat]))])

    def tell(self, kind, about, text, seats):
        for seat in seats:
            if seat != about:
                self.news[seat].append((self.round, kind, about, text))

    def conditional(self, seat):
        if self.fining:
            return 0
        known = [self.gifts[k] for r, kind, k, _ in self.news[seat] if (r, kind) == (self.round, 1)]
        if known:
            return half_up(sum(known), len(known))
        if not self.history:
            return self.game.endowment
        return half_up(sum(c for k, c in enumerate(self.history[-1]) if k != seat), self.n - 1)

    def punisher(self, seat):
        if not self.fining:
            return self.game.endowment
        least, who = min((self.gifts[k], k) for k in range(self.n) if k != seat)
        return who + 1 if least < self.gifts[seat] else 0

    def step(self, action):
        """Reward [A][C]."""
        game, width = self.game, len(self.game.components)
        reward = [[0.0] * width for _ in range(self.n)]
        if self.fining:
            for seat in range(self.n):
                target = f"player {action[seat]}" if action[seat] else "nobody"
                self.tell(2, seat, f" Player {seat + 1} fined {target}.", range(self.n))
                if action[seat]:
                    reward[seat][1] -= game.cost
                    reward[action[seat] - 1][2] -= game.fine
        else:
            for seat in self.order[self.stage]:
                self.gifts[seat] = int(action[seat])
                after = [s for group in self.order[self.stage + 1 :] for s in group]
                seats = after[:1] if game.partial else range(self.n)
                self.tell(1, seat, f" Player {seat + 1} gave {action[seat]}.", seats)
            if len(self.gifts) == self.n:
                total = sum(self.gifts.values())
                share = game.multiplier * total / self.n if total >= game.threshold else 0.0
                self.tell(0, -1, f" The project pays {round(share, 2):g} to each of you.", range(self.n))
                for seat in range(self.n):
                    reward[seat][0] = game.endowment - self.gifts[seat] + share
        self.stage += 1
        if self.stage == len(self.order) + (game.fine > 0):
            self.history.append([self.gifts[k] for k in range(self.n)])
            self.round, self.stage, self.gifts = self.round + 1, 0, {}
        return reward


@pytest.mark.parametrize("name", SETTINGS)
def test_games_against_python(name):
    game = SETTINGS[name]
    _, record, deals = plays(name)
    view, action = record["view"], record["action"]
    for g in range(GAMES):
        referee = Referee(game, int(deals.first[g]))
        for t in range(game.turns):
            acting = referee.acting()
            assert set(np.flatnonzero(view.acting[t, g])) == acting
            for seat in range(game.agents):
                if seat not in acting:
                    assert told(game, view, t, g, seat=seat) == ""
                    continue
                numbers = {str(c) for c in range(game.endowment + 1)}
                names = {"nobody"} | {f"player {k + 1}" for k in range(game.agents) if k != seat}
                assert answers(game, view, t, g, seat=seat) == (names if referee.fining else numbers)
                scripted = {script: int(a[t, g, seat]) for script, a in record["scripted"].items()}
                assert scripted.pop("conditional") == referee.conditional(seat)
                assert scripted.pop("always_give") == (0 if referee.fining else game.endowment)
                assert scripted.pop("never_give") == 0
                if game.fine:
                    assert scripted.pop("punisher") == referee.punisher(seat)
                assert set(scripted) == {"random"}
                assert told(game, view, t, g, seat=seat) == referee.say(seat)
            np.testing.assert_allclose(record["reward"][t, g], referee.step(action[t, g]), rtol=1e-6)
            assert record["after"].terminated[t, g] == referee.over
        for seat in range(game.agents):
            assert told(game, record["after"], -1, g, seat=seat) == referee.close(seat)
    assert not record["after"].truncated.any()


def payoffs(game):
    """{what each gave: what each gets} in one round of a game at once."""
    profiles = list(product(range(game.endowment + 1), repeat=game.agents))
    state, _ = game.reset(jax.random.key(0), jnp.int32(0))
    step = jax.jit(jax.vmap(game.step, (None, 0, None)))
    reward = step(state, jnp.array(profiles, jnp.int32), jax.random.key(0))[2][..., 0]
    return dict(zip(profiles, np.asarray(reward, float), strict=True))


def test_an_example_by_hand():
    table = payoffs(PublicGoods(agents=3, multiplier=1.5, endowment=10))
    assert table[10, 4, 0].tolist() == [7, 13, 17]  # 14 coins * 1.5 = 21, 7 for each, and 0, 6, 10 were kept
    assert table[10, 10, 10].tolist() == [15, 15, 15] and table[0, 0, 0].tolist() == [10, 10, 10]
    assert table[0, 10, 10].tolist() == [20, 10, 10]


@pytest.mark.parametrize("multiplier", (0.5, 1.6, 3.5))
def test_giving_nothing_is_dominant_and_giving_all_is_best_for_all(multiplier):
    n, most = 3, 2
    table = payoffs(PublicGoods(agents=n, multiplier=multiplier, endowment=most))
    for profile, reward in table.items():
        for seat in range(n):
            if profile[seat] < most:
                more = table[*profile[:seat], profile[seat] + 1, *profile[seat + 1 :]]
                assert (more[seat] < reward[seat]) == (multiplier < n)
                assert (more.sum() > reward.sum()) == (multiplier > 1)
    welfare = {profile: reward.sum() for profile, reward in table.items()}
    assert max(welfare, key=welfare.get) == ((most,) * n if multiplier > 1 else (0,) * n)


def test_below_the_threshold_the_project_pays_nothing():
    table = payoffs(PublicGoods(agents=2, multiplier=2, endowment=3, threshold=4))
    assert table[3, 0].tolist() == [0, 3] and table[3, 1].tolist() == [4, 6] and table[2, 2].tolist() == [5, 5]


def test_fines_cost_both_and_are_components_of_their_own():
    game = PublicGoods(agents=3, endowment=2, fine=3, cost=1)
    assert game.components == ("payoff", "fining", "fined") and PublicGoods().components == ("payoff",)
    step, key = jax.jit(game.step), jax.random.key(0)
    state, _, reward = step(game.reset(key, jnp.int32(0))[0], jnp.array([2, 2, 0]), key)
    assert (np.asarray(reward)[:, 1:] == 0).all()
    _, _, reward = step(state, jnp.array([3, 3, 0]), key)
    assert np.asarray(reward).tolist() == [[0, -1, 0], [0, -1, 0], [0, 0, -6]]
    _, _, reward = step(state, jnp.array([1, 7, -1]), key)  # not legal: oneself, nobody there, no action
    assert (np.asarray(reward) == 0).all()


def test_a_partial_view_does_not_tell_what_was_given_before_the_one_before():
    seen = {}
    for partial, gift in product((False, True), range(3)):
        game = PublicGoods(agents=3, rounds=1, endowment=2, sequential=True, partial=partial)
        state, views = jax.tree.map(lambda leaf: leaf[0], game.initial_states()[0]), []
        for action in ([gift, 0, 0], [0, 1, 0]):
            state, view, _ = jax.jit(game.step)(state, jnp.array(action), jax.random.key(0))
            views.append(view)
        seen[partial, gift] = [told(game, view, seat=seat) for view, seat in zip(views, (1, 2), strict=True)]
    first, last = zip(*(seen[True, gift] for gift in range(3)), strict=True)
    assert len(set(first)) == 3 and len(set(last)) == 1
    assert len({seen[False, gift][1] for gift in range(3)}) == 3


def test_deals_are_who_begins():
    for game, count in ((PublicGoods(agents=4, sequential=True), 4), (PublicGoods(agents=4), 1)):
        states, probability = game.initial_states()
        assert states.first.tolist() == list(range(count))
        assert probability.dtype == np.float64 and probability.tolist() == [1 / count] * count
    game = PublicGoods(agents=4, sequential=True)
    reset = jax.jit(jax.vmap(lambda key: game.reset(key, jnp.int32(0))[0]))
    state = reset(jax.random.split(jax.random.key(1), 4000))
    assert isinstance(state, State)
    assert (abs(np.bincount(state.first, minlength=4) / 4000 - 0.25) < 4 * (0.1875 / 4000) ** 0.5).all()


def test_the_rules_tell_the_numbers():
    for name, game in SETTINGS.items():
        prompt = plays(name)[0]
        for seat in range(game.agents):
            text = render(game.rules, prompt[0, seat])
            assert f"{game.rounds} rounds for {game.agents} players. You are player {seat + 1}." in text
            assert f"multiplied by {game.multiplier:g}" in text and f"0 to {game.endowment}." in text
            assert ("just before you" in text) == game.partial and ("one after another" in text) == game.sequential
            assert (f"costs you {game.cost:g} and takes {game.fine:g}" in text) == (game.fine > 0)
            assert (f"less than {game.threshold}" in text) == (game.threshold > 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agents": 1}, "agents must be at least 2, got 1"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"endowment": 0}, "endowment must be at least 1"),
        ({"multiplier": float("nan")}, "multiplier must be finite"),
        ({"fine": -1.0}, "fine must be finite and not negative, got -1.0"),
        ({"partial": True}, "partial is for sequential games"),
        ({"partial": True, "sequential": True, "fine": 2.0}, "partial must be False"),
    ],
)
def test_settings_that_are_no_game(settings, message):
    with pytest.raises(ValueError, match=message):
        PublicGoods(**settings)
