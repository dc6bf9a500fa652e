"""Scripted players as tables: their moves at every history, and the scripts that have no table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.contributions import Contributions
from jaxmarl_llm.evaluation.exact import players, solve

KUHN = KuhnPoker()


@pytest.fixture(scope="module")
def tree() -> solve.Tree:
    return players.tree_of(KUHN, 100)


def test_a_table_holds_the_moves_of_its_script(tree):
    """Every history of the tree is played again here, move by move, and the script is asked."""
    table = players.script_table(tree, KUHN.scripts["honest"])
    solve.checked_policy(tree, table)
    nodes = np.flatnonzero(tree.seat >= 0)
    for node, deal, moves, n in zip(nodes, *tree.histories(nodes), strict=True):
        state = jax.tree.map(lambda leaf, deal=deal: leaf[deal], tree.start[0])
        for move in moves[:n].tolist():
            state = KUHN.step(state, jnp.full(2, move, jnp.int32), jax.random.key(0))[0]
        action = int(KUHN.scripts["honest"](state, jnp.int32(tree.seat[node]), jax.random.key(1)))
        assert table[tree.information[node], action] == 1


def test_scripts_without_a_table_are_refused(tree):
    np.testing.assert_array_equal(players.script_table(tree, KUHN.scripts["random"]), solve.uniform(tree))
    with pytest.raises(ValueError, match="draws its actions"):
        players.script_table(tree, KUHN.scripts["equilibrium"])
    sees = lambda state, seat, key: (state.cards[1 - seat] == 2).astype(jnp.int32)
    with pytest.raises(ValueError, match="knows more than its seat was told"):
        players.script_table(tree, sees)


def test_payoffs_of_seatings_are_means_over_deals_and_other_seats(tree):
    bet, honest = (players.script_table(tree, KUHN.scripts[name]) for name in ("always_bet", "honest"))
    paid = players.match_payoffs(tree, honest, bet)
    states, chance = KUHN.initial_states()
    for seat in range(2):
        by_hand = np.zeros(2)
        for deal, probability in enumerate(chance):
            state = jax.tree.map(lambda leaf, deal=deal: leaf[deal], states)
            while not (view := KUHN.view(state)).terminated:
                actor = int(view.acting.argmax())
                script = KUHN.scripts["honest" if actor == seat else "always_bet"]
                move = script(state, jnp.int32(actor), jax.random.key(0))
                state, _, reward = KUHN.step(state, jnp.full(2, move, jnp.int32), jax.random.key(0))
                by_hand += probability * np.asarray(reward, np.float64)[[seat, 1 - seat], 0]
        np.testing.assert_allclose(paid[seat], by_hand, atol=1e-9)


@pytest.mark.long
def test_seats_that_move_at_once_are_asked_in_turn():
    assert players.tree_of(Contributions(), 1000).environment.agents == 3
