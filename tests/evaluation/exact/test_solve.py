"""Exact judges against OpenSpiel, plain loops over pure strategies, and what is known of these games."""

import dataclasses
from functools import cache
from itertools import product

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.environments.classic.board_games import ConnectFour, TicTacToe
from jaxmarl_llm.environments.classic.card_games import KuhnPoker, LeducPoker, LiarsDice, kuhn_equilibrium
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.teams import team_signals
from jaxmarl_llm.evaluation.exact import solve
from tests.support.clock import Clock, value
from tests.support.toys import Relay

GAMES = {"kuhn": KuhnPoker(), "leduc": LeducPoker(), "dice": LiarsDice(dice=1, sides=3), "clock": Clock()}
GAMES |= {"tic-tac-toe": TicTacToe(), "line of three": ConnectFour(columns=3, rows=2, line=3)}


@cache
def walked(name: str) -> solve.Tree:
    return solve.tree(GAMES[name])


def at_random(tree: solve.Tree, seed: int) -> np.ndarray:
    """A policy of any kind: some actions hardly ever played, some sets pure."""
    weights = np.random.default_rng(seed).gamma(0.3, size=tree.legal.shape) * tree.legal
    weights = np.where(weights.sum(1, keepdims=True) > 0, weights, tree.legal)
    return weights / weights.sum(1, keepdims=True)


def pure(tree: solve.Tree, seat: int):
    """All pure strategies of a seat, each with a copy of `base` in which the seat plays it."""
    sets = np.flatnonzero(tree.owner == seat)
    for actions in product(*(np.flatnonzero(tree.legal[i]) for i in sets)):
        table = np.zeros((len(sets), tree.legal.shape[1]))
        table[np.arange(len(sets)), actions] = 1
        yield sets, table


@pytest.mark.parametrize(
    ("name", "histories", "decisions", "sets"),
    [
        ("kuhn", 54, 24, 12),
        ("leduc", 10200, 4320, 936),
        ("tic-tac-toe", 549_946, 294_778, 294_778),
        ("clock", 33, 15, 5),
    ],
)
def test_trees_have_their_known_sizes(name, histories, decisions, sets):
    tree = walked(name)
    assert (len(tree.parent), (tree.seat >= 0).sum(), len(tree.owner)) == (histories, decisions, sets)
    assert sum(high - low for low, high in tree.levels) == histories
    assert tree.form.chance.dtype == tree.form.payoff.dtype == np.float64


@pytest.mark.parametrize("name", ["kuhn", "leduc", "clock"])
def test_action_values_are_those_of_a_walk_over_the_histories(name):
    """The mean over the histories of an information set, by what chance and the others did, of what comes of each."""
    tree = walked(name)
    policy, chance = at_random(tree, 1), np.asarray(tree.environment.initial_states()[1])
    over, agents = tree.seat < 0, tree.payoff.shape[1]
    worth = np.where(over[:, None], tree.payoff, 0)
    for node in range(len(tree.parent) - 1, -1, -1):  # children stand behind their parent
        if (up := tree.parent[node]) >= 0:
            worth[up] += policy[tree.information[up], tree.action[node]] * worth[node]
    others = np.repeat(chance[tree.deal][:, None], agents, 1)
    total, weight = np.zeros((2, *tree.legal.shape))
    for node, up in enumerate(tree.parent):
        if up >= 0:
            i, seat, action = tree.information[up], tree.seat[up], tree.action[node]
            others[node] = others[up] * np.where(np.arange(agents) == seat, 1, policy[i, action])
            total[i, action] += others[up, seat] * worth[node, seat]
            weight[i, action] += others[up, seat]
    wanted = np.where(weight > 0, total / np.where(weight > 0, weight, 1), np.nan)
    np.testing.assert_allclose(solve.action_values(tree, policy), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["kuhn", "leduc", "clock"])
def test_a_tree_holds_the_games_that_are_played(name):
    environment, tree, generator = GAMES[name], walked(name), np.random.default_rng(0)
    step = jax.jit(environment.step)
    for node in generator.choice(len(tree.parent), 30):
        deal, moves, length = (x[0] for x in tree.histories(np.array([node])))
        state = jax.tree.map(lambda leaf, deal=deal: leaf[deal], environment.initial_states()[0])
        view, paid = environment.view(state), np.zeros(environment.agents)
        for move in moves[:length]:
            assert view.acting.sum() == 1 and view.legal[view.acting.argmax(), move]
            state, view, reward = step(state, np.full(environment.agents, move, np.int32), jax.random.key(0))
            paid += reward.sum(1)
        assert (view.acting.argmax() if view.acting.any() else -1) == tree.seat[node]
        np.testing.assert_array_equal(paid, tree.payoff[node])
        assert (moves[length:] == -1).all()


def test_what_a_seat_is_not_told_it_cannot_tell_apart():
    tree = walked("clock")
    _, _, length = tree.histories(np.flatnonzero(tree.seat == 1))
    assert set(length) == {1, 2} and (tree.owner == 1).sum() == 1  # one information set at two times
    assert (tree.owner == 0).sum() == 3 and (tree.owner == 2).sum() == 1
    assert (solve.tree(Clock(leak=True)).owner == 1).sum() == 3


def test_an_information_set_can_be_read():
    """Alike for all histories that its owner cannot tell apart, and otherwise than any other set."""
    tree = walked("kuhn")
    last = np.array([np.flatnonzero(tree.information == i)[-1] for i in range(12)])
    texts = [solve.text_of(tree, i) for i in range(12)]
    assert (last != tree.example).all() and len(set(texts)) == 12
    assert [solve.text_of(dataclasses.replace(tree, example=last), i) for i in range(12)] == texts
    assert texts[-1].endswith("Your card is K.\nCheck or bet?\n> check\nThey bet. Fold or call?")


@pytest.mark.parametrize("weights", [None, (0.5, 3.0)])
def test_values_of_three_seats_by_a_loop(weights):
    tree = solve.tree(Clock(), weights)
    for seed in range(5):
        policy = at_random(tree, seed)
        go = [policy[tree.owner == seat, 1] for seat in range(3)]  # seat 0's sets stand in the order of the deals
        weighed = weights or (1, 1)
        loop = lambda a, b, c: value(a, b[0], c[0], weighed)  # noqa: B023
        np.testing.assert_allclose(solve.expected_value(tree, policy), loop(*go), atol=1e-12)
        best = [
            max(loop(*go[:seat], np.array(own), *go[seat + 1 :])[seat] for own in product((0, 1), repeat=len(go[seat])))
            for seat in range(3)
        ]
        np.testing.assert_allclose(solve.best_response_value(tree, policy), best, atol=1e-12)
        gain = sum(best) - loop(*go).sum()
        assert solve.nash_conv(tree, policy) == pytest.approx(gain)
        assert solve.exploitability(tree, policy) == pytest.approx(gain / 3)


def test_a_best_response_is_the_best_of_all_pure_strategies():
    tree = walked("kuhn")
    for seed in range(3):
        policy = at_random(tree, seed)
        found, answer = solve.best_response_value(tree, policy), solve.best_response(tree, policy)
        for seat in range(2):
            earned = []
            for sets, table in pure(tree, seat):
                against = policy.copy()
                against[sets] = table
                earned.append(solve.expected_value(tree, against)[seat])
            assert found[seat] == pytest.approx(max(earned), abs=1e-12) and len(earned) == 64
            joined = np.where(tree.owner[:, None] == seat, answer, policy)
            assert solve.expected_value(tree, joined)[seat] == pytest.approx(found[seat], abs=1e-12)


@pytest.mark.parametrize("alpha", [0, 0.2, 1 / 3])
def test_kuhns_equilibria_are_equilibria(alpha):
    tree, bet = walked("kuhn"), kuhn_equilibrium(alpha)
    deal, moves, _ = tree.histories(tree.example)
    situation = [{(): 0, (0,): 1, (1,): 2, (0, 1): 3}[tuple(m[m >= 0].tolist())] for m in moves]
    cards = np.asarray(KuhnPoker().initial_states()[0].cards)[deal, tree.owner]
    chance = bet[situation, cards]
    policy = np.stack([1 - chance, chance], 1)
    assert abs(solve.nash_conv(tree, policy)) < 1e-12
    np.testing.assert_allclose(solve.expected_value(tree, policy), [-1 / 18, 1 / 18], atol=1e-12)
    assert solve.nash_conv(tree, solve.uniform(tree)) > 0.9


def test_cfr_converges_on_kuhn():
    tree = walked("kuhn")
    found = {plus: [solve.nash_conv(tree, solve.cfr(tree, n, plus)) for n in (10, 100, 1000)] for plus in (False, True)}
    assert found[True][2] < 1e-3 and found[False][2] < 3e-3
    assert all(a > b > c for a, b, c in found.values())
    assert solve.expected_value(tree, solve.cfr(tree, 1000, True))[0] == pytest.approx(-1 / 18, abs=1e-3)


def test_perfect_play_of_tic_tac_toe_is_a_draw_that_nobody_beats():
    tree = walked("tic-tac-toe")
    policy = solve.minimax(tree)
    np.testing.assert_array_equal(solve.expected_value(tree, policy), 0)
    assert solve.nash_conv(tree, policy) == 0
    first = policy[tree.information[0]]
    assert (first == 1 / 9).all()  # every first move draws
    _, moves, length = tree.histories(tree.example)
    reply = policy[(length == 1) & (moves[:, 0] == 0)][0]  # to a corner only the centre
    np.testing.assert_array_equal(reply, np.arange(9) == 4)


def test_minimax_is_an_equilibrium_that_never_loses_what_the_game_is_worth():
    tree = walked("line of three")
    policy = solve.minimax(tree)
    assert abs(solve.nash_conv(tree, policy)) < 1e-12
    mixed = np.where(tree.owner[:, None] == 0, policy, at_random(tree, 1))
    assert solve.expected_value(tree, mixed)[0] >= solve.expected_value(tree, policy)[0] - 1e-12
    with pytest.raises(ValueError, match="perfect information"):
        solve.minimax(walked("kuhn"))


class Announced(MatrixGame):
    def initial_states(self):
        state, _ = self.reset(jax.random.key(0), 0)
        return jax.tree.map(lambda leaf: leaf[None], state), np.ones(1)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_game_has_a_tree_or_says_why_not(name):
    """A tree of at most 2,000 histories, whose deals add up to 1, or one sentence."""
    try:
        tree = solve.tree(REGISTRY[name](), limit=2_000)
    except ValueError as error:
        assert str(error).endswith(".")
    else:
        value = solve.expected_value(tree, solve.uniform(tree))
        assert np.isfinite(value).all() and len(value) == REGISTRY[name]().agents


def test_a_relay_is_worth_one_if_everybody_passes_on_what_they_know():
    tree = solve.tree(team_signals.Relay(2))
    assert solve.expected_value(tree, solve.uniform(tree)) == pytest.approx([0.5] * 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: solve.tree(MatrixGame()), r"MatrixGame has no initial_states\(\) and no view\(\): its histories"),
        (
            lambda: solve.tree(type("Viewed", (MatrixGame,), {"view": lambda self, state: None})()),
            r"^Viewed has no initial_states\(\): its histories cannot be enumerated\.$",
        ),
        (lambda: solve.tree(Relay()), "free messages"),
        (lambda: solve.tree(Clock(crowded=True)), "at the same time"),
        (lambda: solve.tree(Clock(hint=True)), "another legal"),
        (lambda: solve.tree(KuhnPoker(), limit=20), "more than 20 histories"),
        (lambda: solve.tree(KuhnPoker(), weights=(1, 2)), "weights must hold one number"),
        (lambda: solve.nash_conv(walked("kuhn"), np.ones((12, 3))), r"shape \(12, 2\)"),
        (lambda: solve.nash_conv(walked("kuhn"), np.full((12, 2), 0.4)), "sum to 1"),
        (lambda: solve.nash_conv(walked("kuhn"), np.full((12, 2), np.nan)), "sum to 1"),
        (lambda: solve.nash_conv(walked("leduc"), np.full((936, 3), 1 / 3)), "legal actions"),
    ],
)
def test_what_cannot_be_solved_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def spiel_states(name: str, tree: solve.Tree) -> tuple:
    """OpenSpiel's game and the information state string of every information set; equal sets, equal strings."""
    pyspiel = pytest.importorskip("pyspiel")
    game = pyspiel.load_game({"kuhn": "kuhn_poker", "leduc": "leduc_poker", "dice": "liars_dice(dice_sides=3)"}[name])
    deals = jax.device_get(GAMES[name].initial_states()[0])
    cards = deals.dice.reshape(len(deals.dice), -1) if name == "dice" else deals.cards
    live = np.flatnonzero(tree.seat >= 0)
    names: dict[int, str] = {}
    for node, deal, moves in zip(live, *tree.histories(live)[:2], strict=True):
        state, hidden, said = game.new_initial_state(), cards[deal].tolist(), moves[moves >= 0].tolist()
        while said or state.is_chance_node():
            state.apply_action(hidden.pop(0) if state.is_chance_node() else said.pop(0))
        assert state.current_player() == tree.seat[node]
        known = names.setdefault(int(tree.information[node]), state.information_state_string())
        assert known == state.information_state_string()
        assert state.legal_actions() == np.flatnonzero(tree.legal[tree.information[node]]).tolist()
    assert len(set(names.values())) == len(tree.owner) == len(names)
    return game, [names[i] for i in range(len(tree.owner))]


@pytest.mark.parametrize(("name", "policies"), [("kuhn", 100), ("leduc", 20), ("dice", 3)])
def test_nash_conv_is_openspiels(name, policies):
    tree = walked(name)
    game, names = spiel_states(name, tree)
    from open_spiel.python.algorithms import expected_game_score, exploitability
    from open_spiel.python.policy import TabularPolicy

    theirs = TabularPolicy(game)
    rows = [theirs.state_lookup[known] for known in names]
    assert len(rows) == len(theirs.action_probability_array)
    for seed in range(policies):
        policy = at_random(tree, seed)
        theirs.action_probability_array[rows] = policy
        assert solve.nash_conv(tree, policy) == pytest.approx(exploitability.nash_conv(game, theirs), abs=1e-9)
    score = expected_game_score.policy_value(game.new_initial_state(), [theirs, theirs])
    np.testing.assert_allclose(solve.expected_value(tree, policy), score, atol=1e-12)


@pytest.mark.parametrize("plus", [False, True])
def test_cfr_is_openspiels(plus):
    tree = walked("kuhn")
    game, names = spiel_states("kuhn", tree)
    from open_spiel.python.algorithms import cfr

    solver = cfr.CFRPlusSolver(game) if plus else cfr.CFRSolver(game)
    for iteration in range(1, 21):
        solver.evaluate_and_update_policy()
        theirs = solver.average_policy()
        rows = [theirs.state_lookup[known] for known in names]
        np.testing.assert_allclose(solve.cfr(tree, iteration, plus), theirs.action_probability_array[rows], atol=1e-12)
