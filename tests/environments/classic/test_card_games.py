"""Kuhn poker, Leduc poker and liar's dice: against OpenSpiel, what each seat is told, points, scripted players."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker, LeducPoker, LiarsDice, kuhn_equilibrium
from tests.support.openspiel import compare

KEY = jax.random.key(0)
J, Q, K = range(3)
PASS, BET = 0, 1
FOLD, CALL, RAISE = 0, 1, 2
KUHN, LEDUC, LIAR = KuhnPoker(), LeducPoker(), LiarsDice()
GAMES = {
    "kuhn": (KUHN, "kuhn_poker"),
    "leduc": (LEDUC, "leduc_poker"),
    "liar": (LIAR, "liars_dice"),
    "liar, 2 dice": (LiarsDice(2, 3), "liars_dice(numdice=2,dice_sides=3)"),
}
# Histories, those that are over, information states. Both games of liar's dice have 12 bids, so 2^12 sequences of them
# (and a call after each but the empty one), 36 deals and 6 hands.
COMPARED = {
    "kuhn": (6 * 9, 6 * 5, 12),
    "leduc": (120 * 85, 120 * 49, 936),
    "liar": (36 * (2**13 - 1), 36 * (2**12 - 1), 6 * 2**12),
    "liar, 2 dice": (36 * (2**13 - 1), 36 * (2**12 - 1), 6 * 2**12),
}
STEP = {game: jax.jit(game.step) for game, _ in GAMES.values()}


def dealt(state) -> list[list[int]]:
    """What is hidden in stacked states, in the order in which OpenSpiel draws it."""
    drawn = np.asarray(state.dice if hasattr(state, "dice") else state.cards)
    return drawn.reshape(len(drawn), -1).tolist()


def deal(game, *drawn: int):
    """The initial state with these cards or dice."""
    states, _ = game.initial_states()
    return jax.tree.map(lambda leaf: leaf[dealt(states).index(list(drawn))], states)


def told(game, state, seat: int, prompt: bool = False) -> str:
    fields, texts = (
        (game.rules, game.prompt(state)[seat]) if prompt else (game.observation, game.view(state).phrases[seat])
    )
    return "".join(field[i] for field, i in zip(fields, texts.tolist(), strict=True) if i >= 0)


def played(game, state, *moves: int):
    """What each seat was told before each move, the points of both after all, and the last view."""
    texts, points, view = [], np.zeros(2), game.view(state)
    for move in moves:
        actor = int(view.acting.argmax())
        assert view.acting.sum() == 1 and view.legal[actor, move]
        texts.append((told(game, state, 0), told(game, state, 1)))
        state, view, reward = STEP[game](state, jnp.full((2,), move, jnp.int32), KEY)
        points += np.asarray(reward[:, 0])
    return texts, points.tolist(), view


@pytest.mark.parametrize("name", GAMES)
def test_every_history_is_openspiels(name):
    pyspiel = pytest.importorskip("pyspiel")
    game, spiel = GAMES[name]
    state, _ = game.initial_states()
    view = jax.jit(jax.vmap(game.view))(state)
    information = lambda state, seat: state.information_state_string(seat)
    found = compare(game, pyspiel.load_game(spiel), state, view, dealt(state), information=information)
    assert found == COMPARED[name]


def test_random_games_with_more_dice_are_openspiels():
    pyspiel = pytest.importorskip("pyspiel")
    state, view = jax.jit(jax.vmap(LiarsDice(dice=5).reset))(jax.random.split(KEY, 500), jnp.arange(500))
    game = pyspiel.load_game("liars_dice(numdice=5)")
    found = compare(LiarsDice(dice=5), game, state, view, dealt(state), np.random.default_rng(0))
    assert found.ended == 500


@pytest.mark.parametrize("name", GAMES)
def test_deals_are_all_there_and_drawn_as_often_as_they_say(name):
    game, _ = GAMES[name]
    states, chance = game.initial_states()
    hands = [tuple(hand) for hand in dealt(states)]
    assert len(set(hands)) == len(hands) == {"kuhn": 6, "leduc": 120}.get(name, 36)
    assert chance.dtype == np.float64 and abs(chance.sum() - 1) < 1e-12
    n = 60_000
    state, view = jax.jit(jax.vmap(game.reset, (0, None)))(jax.random.split(KEY, n), jnp.int32(0))
    drawn = np.array(dealt(state))
    counts = np.array([(drawn == hand).all(1).sum() for hand in hands])
    assert counts.sum() == n
    assert (abs(counts - n * chance) < 5 * np.sqrt(n * chance)).all()
    first = jax.tree.map(lambda leaf: leaf[0], (state, view))
    jax.tree.map(np.testing.assert_array_equal, game.view(first[0]), first[1])


def test_chances_of_rolls_of_two_dice():
    states, chance = LiarsDice(dice=2, sides=2).initial_states()
    found = dict(zip(map(tuple, dealt(states)), chance.tolist(), strict=True))
    one = {(0, 0): 1 / 4, (0, 1): 1 / 2, (1, 1): 1 / 4}
    assert found == {a + b: one[a] * one[b] for a, b in product(one, one)}


@pytest.mark.parametrize(
    ("moves", "points"),
    [
        ((PASS, PASS), 1),  # the higher card takes the other's ante
        ((BET, PASS), 1),  # a fold costs the ante
        ((BET, BET), 2),  # a call costs the bet too
        ((PASS, BET, BET), 2),
        ((PASS, BET, PASS), -1),
    ],
)
def test_kuhn_charges_its_bets(moves, points):
    assert played(KUHN, deal(KUHN, K, J), *moves)[1] == [points, -points]
    shown = moves[-1] == moves[-2] if len(moves) == 2 else moves[-1] == BET
    lower = -points if shown else points  # a fold costs the same with any card
    assert played(KUHN, deal(KUHN, J, K), *moves)[1] == [lower, -lower]


def test_what_is_told_in_kuhn():
    state = deal(KUHN, Q, J)
    assert told(KUHN, state, 0, prompt=True).endswith("You act first. Your card is Q.")
    assert told(KUHN, state, 1, prompt=True).endswith("You act second. Your card is J.")
    texts, _, view = played(KUHN, state, PASS, BET, BET)
    assert texts == [
        ("Check or bet?", ""),
        ("", "They checked. Check or bet?"),
        ("They bet. Fold or call?", ""),
    ]
    assert view.terminated and not view.acting.any() and (view.phrases == -1).all()
    assert played(KUHN, state, BET, PASS)[0][1] == ("", "They bet. Fold or call?")


def kuhn_value(first: np.ndarray, second: np.ndarray) -> float:
    """Expected points of seat 0, exactly, when the seats bet with these chances [situation, card]."""

    def value(state, history) -> float:
        view = KUHN.view(state)
        if view.terminated:
            return 0.0
        seat, situation = int(view.acting.argmax()), min(history, 3)
        bet = (first, second)[seat][situation, int(state.cards[seat])]
        total = 0.0
        for move, chance in ((PASS, 1 - bet), (BET, bet)):
            if chance:
                after, _, reward = STEP[KUHN](state, jnp.full((2,), move, jnp.int32), KEY)
                total += chance * (float(reward[0, 0]) + value(after, 2 * history + 1 + move))
        return total

    states, chance = KUHN.initial_states()
    each = [value(jax.tree.map(lambda leaf: leaf[i], states), 0) for i in range(len(chance))]  # noqa: B023
    return float(np.dot(each, chance))


@pytest.mark.parametrize("alpha", (0.0, 0.2, 1 / 3))
def test_kuhn_is_worth_a_loss_of_one_eighteenth_to_the_first_seat(alpha):
    policy = kuhn_equilibrium(alpha)
    assert abs(kuhn_value(policy, policy) + 1 / 18) < 1e-12


def test_no_pure_policy_of_kuhn_gains_on_the_equilibrium():
    policy = kuhn_equilibrium(1 / 3)
    bets = np.ones((4, 3))
    honest = bets * np.array([0, 0, 1])
    for other in (bets, 0 * bets, honest):
        assert kuhn_value(other, policy) < -1 / 18 + 1e-12 and kuhn_value(policy, other) > -1 / 18 - 1e-12
    assert kuhn_value(policy, 0 * bets) == pytest.approx(2 / 9)  # bets with J and K, 2 of 3, take 1; Q splits


def frequency(game, name: str, state, seat: int, n: int = 4000) -> np.ndarray:
    """How often a scripted player does what [N]."""
    keys = jax.random.split(jax.random.key(1), n)
    found = jax.jit(jax.vmap(game.scripts[name], (None, None, 0)))(state, jnp.int32(seat), keys)
    assert found.dtype == jnp.int32
    return np.bincount(found, minlength=game.actions) / n


def test_the_equilibrium_player_of_kuhn_bets_as_often_as_its_table():
    game = KuhnPoker(alpha=0.2)
    script, table = jax.jit(jax.vmap(game.scripts["equilibrium"], (None, None, 0))), kuhn_equilibrium(0.2)
    keys = jax.random.split(jax.random.key(1), 4000)
    for situation, history in enumerate((0, 1, 2, 4)):
        for card, seat in product(range(3), [int(0 < situation < 3)]):
            cards = jnp.full((2,), (card + 1) % 3, jnp.int32).at[seat].set(card)
            state = deal(game, 0, 1).replace(cards=cards, history=jnp.int32(history))
            share, chance = float(script(state, jnp.int32(seat), keys).mean()), table[situation, card]
            assert abs(share - chance) <= 5 * (chance * (1 - chance) / 4000) ** 0.5, (situation, card)


def test_the_other_players_of_kuhn():
    for card, seat in product(range(3), range(2)):
        cards = [card, (card + 1) % 3][:: 1 - 2 * seat]
        state = deal(KUHN, *cards)
        assert int(KUHN.scripts["always_bet"](state, jnp.int32(seat), KEY)) == BET
        assert int(KUHN.scripts["honest"](state, jnp.int32(seat), KEY)) == (BET if card == K else PASS)
    assert abs(frequency(KUHN, "random", state, 0)[BET] - 0.5) < 0.05


JH, JS, QH, QS, KH, KS = range(6)


def test_what_is_told_in_leduc():
    state = deal(LEDUC, KH, QS, QH)
    assert told(LEDUC, state, 0, prompt=True).endswith("You act first in both rounds. Your card is K of hearts.")
    assert told(LEDUC, state, 1, prompt=True).endswith("You act second in both rounds. Your card is Q of spades.")
    texts, points, view = played(LEDUC, state, CALL, RAISE, RAISE, CALL, CALL, RAISE, CALL)
    assert [text[turn % 2] for turn, text in enumerate(texts)] == [
        "Round 1. Check or raise?",
        "They checked. Check or raise?",
        "They raised by 2. Fold, call or raise?",
        "They raised by 2. Fold or call?",
        "They called. Round 2. The public card is Q of hearts. Check or raise?",
        "You called. Round 2. The public card is Q of hearts. They checked. Check or raise?",
        "They raised by 4. Fold, call or raise?",
    ]
    assert all(text[1 - turn % 2] == "" for turn, text in enumerate(texts))
    assert points == [-9, 9] and view.terminated and (view.phrases == -1).all()  # ante, 2 and 2, 4


@pytest.mark.parametrize(
    ("first_round", "seat", "text"),
    [
        ((CALL, CALL), 0, "They checked. Round 2. The public card is J of spades. Check or raise?"),
        ((CALL, CALL, CALL), 1, "You checked. Round 2. The public card is J of spades. They checked. Check or raise?"),
        ((CALL, RAISE, CALL), 0, "You called. Round 2. The public card is J of spades. Check or raise?"),
        (
            (CALL, RAISE, CALL, RAISE),
            1,
            "They called. Round 2. The public card is J of spades. They raised by 4. Fold, call or raise?",
        ),
        ((RAISE, CALL), 0, "They called. Round 2. The public card is J of spades. Check or raise?"),
        ((RAISE, CALL, CALL, RAISE, RAISE), 1, "They raised by 4. Fold or call?"),
    ],
)
def test_the_first_turn_after_the_public_card(first_round, seat, text):
    state = deal(LEDUC, KH, QS, JS)
    for move in first_round:
        state = STEP[LEDUC](state, jnp.full((2,), move, jnp.int32), KEY)[0]
    assert told(LEDUC, state, seat) == text and told(LEDUC, state, 1 - seat) == ""


@pytest.mark.parametrize(
    ("cards", "moves", "points"),
    [
        ((KH, QS, JS), (CALL, CALL, CALL, CALL), 1),
        ((KH, QS, QH), (CALL, CALL, CALL, CALL), -1),  # a pair beats the higher card
        ((JH, QS, JS), (RAISE, RAISE, CALL, RAISE, RAISE, CALL), 13),
        ((QH, QS, JS), (RAISE, CALL, CALL, CALL), 0),  # equal cards
        ((JH, QS, JS), (RAISE, FOLD), 1),
        ((JH, QS, JS), (RAISE, RAISE, FOLD), -3),
        ((JH, QS, JS), (CALL, RAISE, RAISE, CALL, CALL, RAISE, RAISE, FOLD), 9),
    ],
)
def test_points_of_leduc(cards, moves, points):
    assert played(LEDUC, deal(LEDUC, *cards), *moves)[1] == [points, -points]


def test_the_honest_player_of_leduc():
    def answers(state, seat, *moves):
        for move in moves:
            state = STEP[LEDUC](state, jnp.full((2,), move, jnp.int32), KEY)[0]
        return int(LEDUC.scripts["honest"](state, jnp.int32(seat), KEY))

    king, queen, jack = (deal(LEDUC, card, JS, QS) for card in (KH, QH, JH))
    assert [answers(state, 0) for state in (king, queen, jack)] == [RAISE, CALL, CALL]
    assert [answers(state, 0, CALL, RAISE) for state in (king, queen, jack)] == [RAISE, CALL, FOLD]
    assert answers(deal(LEDUC, JS, KH, QS), 1, RAISE, RAISE) == CALL  # no third raise
    assert [answers(state, 0, CALL, CALL) for state in (king, queen, jack)] == [CALL, RAISE, CALL]
    assert [answers(state, 0, CALL, CALL, CALL, RAISE) for state in (king, queen, jack)] == [CALL, RAISE, FOLD]


def test_what_is_told_in_liars_dice():
    game = LiarsDice(2, 3)
    state = deal(game, 0, 2, 1, 1)
    assert told(game, state, 0, prompt=True).endswith("You bid first. Your dice: 1 3")
    assert told(game, state, 1, prompt=True).endswith("You bid second. Your dice: 2 2")
    bids = dict((text, action) for action, text in game.grammars[0][0].options)
    texts, points, _ = played(game, state, bids["1-3"], bids["3-2"], bids["4-3"], bids["liar"])
    assert [text[turn % 2] for turn, text in enumerate(texts)] == [
        "Make a bid.",
        "They bid 1-3. Bid higher or answer liar.",
        "They bid 3-2. Bid higher or answer liar.",
        "They bid 4-3. Answer liar.",
    ]
    assert points == [-1, 1]


@pytest.mark.parametrize(
    ("bid", "holds"),
    [("1-1", True), ("2-1", True), ("3-1", False), ("3-2", True), ("4-2", False), ("1-3", True), ("2-3", False)],
)
def test_the_highest_face_counts_as_every_face(bid, holds):
    game = LiarsDice(2, 3)
    bids = dict((text, action) for action, text in game.grammars[0][0].options)
    first = played(game, deal(game, 0, 2, 1, 1), bids[bid], bids["liar"])[1]  # dice 1 3 and 2 2
    assert first == ([1, -1] if holds else [-1, 1])
    second = played(game, deal(game, 1, 1, 0, 2), 0, bids[bid], bids["liar"])[1] if bid != "1-1" else first[::-1]
    assert second == first[::-1]


def test_the_honest_player_of_liars_dice():
    game = LiarsDice(2, 6)
    bids = [text for _, text in game.grammars[0][0].options]
    state = deal(game, 2, 2, 1, 5)  # dice 3 3 and 2 6
    answers = {}
    for bid in (-1, *range(len(bids) - 1)):
        for seat in range(2):
            chosen = game.scripts["honest"](state.replace(bid=jnp.int32(bid)), jnp.int32(seat), KEY)
            answers["" if bid < 0 else bids[bid], seat] = bids[int(chosen)]
    assert [answers[bid, 0] for bid in ("", "1-2", "1-3", "2-2", "2-3")] == ["1-3", "1-3", "2-3", "2-3", "liar"]
    assert [answers[bid, 1] for bid in ("", "1-1", "1-6", "2-1", "2-2")] == ["1-1", "1-2", "2-2", "2-2", "liar"]


def test_the_random_players_draw_from_all_that_is_legal():
    leduc = STEP[LEDUC](deal(LEDUC, KH, QS, JS), jnp.full((2,), RAISE, jnp.int32), KEY)[0]
    for game, state in ((LEDUC, leduc), (LEDUC, deal(LEDUC, KH, QS, JS)), (LIAR, deal(LIAR, 1, 2))):
        legal = np.asarray(game.view(state).legal[0])
        assert (abs(frequency(game, "random", state, 0) - legal / legal.sum()) < 0.05).all()


@pytest.mark.parametrize("name", GAMES)
def test_a_seat_is_not_told_what_is_hidden(name):
    """Deals that differ in the other one's cards or dice and in the public card: nothing that is told differs."""
    game, _ = GAMES[name]
    states, _ = game.initial_states()
    hands, half = np.array(dealt(states)), 1 if hasattr(states, "cards") else game.dice
    step, prompt = jax.jit(jax.vmap(game.step, (0, None, None))), np.asarray(jax.vmap(game.prompt)(states))
    moves = {"kuhn": (PASS, BET), "leduc": (CALL, RAISE, RAISE)}.get(name, (0, 3, 5))
    texts = [prompt, np.asarray(jax.vmap(game.view)(states).phrases)]
    for move in moves:
        states, view, _ = step(states, jnp.full((2,), move, jnp.int32), KEY)
        texts.append(np.asarray(view.phrases))
    for seat, own in enumerate((hands[:, :half], hands[:, half : 2 * half])):
        seen = np.concatenate([text[:, seat] for text in texts], 1)
        for hand in np.unique(own, axis=0):
            assert len(np.unique(seen[(own == hand).all(1)], axis=0)) == 1
        assert len(np.unique(seen, axis=0)) == len(np.unique(own, axis=0))


@pytest.mark.parametrize("name", [name for name in GAMES if name != "kuhn"])  # where nothing is ever illegal
def test_illegal_actions_are_played_as_documented(name):
    game, _ = GAMES[name]

    def play(state, *moves):
        for move in moves:
            state = STEP[game](state, jnp.full((2,), move, jnp.int32), KEY)[0]
        return state

    same = lambda a, b: jax.tree.map(np.testing.assert_array_equal, a, b)
    states, _ = game.initial_states()
    state = jax.tree.map(lambda leaf: leaf[0], states)
    if name == "leduc":
        same(play(state, FOLD), play(state, CALL))
        same(play(state, RAISE, RAISE, RAISE), play(state, RAISE, RAISE, CALL))
    else:
        same(play(state, game.actions - 1), play(state, game.actions - 2))
        same(play(state, 4, 2), play(state, 4, 5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KuhnPoker(alpha=0.5), "alpha must be from 0 to 1/3.*got 0.5"),
        (lambda: KuhnPoker(alpha=-0.1), "got -0.1"),
        (lambda: LiarsDice(dice=0), "at least 1 die, with at least 2 sides, got 0 with 6"),
        (lambda: LiarsDice(sides=1), "got 1 with 1 sides"),
    ],
)
def test_settings_that_are_no_game(make, message):
    with pytest.raises(ValueError, match=message):
        make()
