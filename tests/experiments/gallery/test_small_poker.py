"""Texts of poker near and far, the exact level of policies that ignore their card, and what the metrics read."""

from itertools import product

import jax
import numpy as np
import pytest

from experiments.gallery.small_poker import OPENINGS, FarPoker, NearPoker, apart
from jaxmarl_llm.environments.classic.card_games import KuhnPoker, kuhn_equilibrium
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.past_policies import tree_of
from tests.support.told import render


def texts(game, deal: int, seat: int, moves=()) -> tuple[str, list[str]]:
    """The system message of a seat, and the messages that it reads before its answers."""
    state = jax.tree.map(lambda x: x[deal], game.initial_states()[0])
    rules, read = render(game.rules, np.asarray(game.prompt(state)[seat])), []
    view = game.view(state)
    for move in (*moves, None):
        if view.acting[seat]:
            read.append(render(game.observation, np.asarray(view.phrases[seat])))
        if move is not None:
            state, view, _ = game.step(state, np.full(2, move, np.int32), jax.random.key(0))
    return rules, read


def test_the_card_stands_where_it_is_said_to():
    """Deal 4 gives the first seat K and the second J. The first seat checks, the second bets."""
    assert texts(NearPoker(), 4, 0, (0, 1)) == (
        "Poker.",
        ["Strong. Check or bet?", "Strong. They bet. Fold or call?"],
    )
    assert texts(NearPoker(), 4, 1, (0,)) == ("Poker.", ["Weak. They checked. Check or bet?"])
    assert texts(FarPoker(), 4, 0, (0, 1)) == ("Poker. Strong.", ["Check or bet?", "They bet. Fold or call?"])
    assert texts(FarPoker(), 4, 1, (0,)) == ("Poker. Weak.", ["They checked. Check or bet?"])


@pytest.mark.parametrize("game", [NearPoker(), FarPoker()])
def test_the_rules_are_those_of_kuhn_poker(game):
    tree, kuhn = tree_of(game), tree_of(KuhnPoker())
    np.testing.assert_array_equal(tree.payoff, kuhn.payoff)
    np.testing.assert_array_equal(tree.information, kuhn.information)


def test_no_policy_that_ignores_its_card_is_nearer_than_two_thirds():
    """Over a grid of its four probabilities; one of these policies attains it, always to bet and to call as well."""
    tree = tree_of(KuhnPoker())
    answers = np.zeros(len(tree.owner), int)
    answers[tree.information[tree.information >= 0]] = np.asarray(tree.grammar)[tree.information >= 0]
    situation = np.where(tree.owner == 0, 3 * answers, 1 + answers)
    least = min(
        solve.nash_conv(tree, np.stack([x := np.array(p)[situation], 1 - x], 1))
        for p in product(np.linspace(0, 1, 7), repeat=4)
    )
    assert least == pytest.approx(2 / 3)
    assert solve.nash_conv(tree, np.tile([0.0, 1.0], (12, 1))) == pytest.approx(2 / 3)


def test_openings_are_those_with_the_lowest_and_the_highest_card():
    """In an equilibrium K opens with a bet three times as often as J."""
    alpha = 0.2
    bets = kuhn_equilibrium(alpha)[0]
    curves = {f"first_action/{place}": np.full((2, 3), np.nan) for place in range(12)}
    for place, bet in zip(range(3), bets, strict=True):
        curves[f"first_action/{place}"][:, -1] = 1 - bet
    np.testing.assert_allclose(apart(curves), 2 * alpha)
    tree = tree_of(NearPoker())
    cards = np.asarray(NearPoker().initial_states()[0].cards)[np.asarray(tree.deal)[:6], 0]
    assert [set(cards[tree.information[:6] == place]) for place in OPENINGS] == [{0}, {2}]
