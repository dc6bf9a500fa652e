"""Seats that move at once, asked one by one: the same pay-offs and knowledge, and a tree that can be solved."""

from itertools import product

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.around.one_by_one import OneByOne
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.social.public_goods import PublicGoods
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup

GOODS = PublicGoods(agents=3, multiplier=1.5, rounds=2, endowment=2)


def episodes_of(game, names):
    return jax.device_get(jax.jit(Rollout(game, {}, Lineup((names,) * 2, 2)))({}, jax.random.key(0)).episodes)


@pytest.mark.parametrize("game, names", [
    (GOODS, ("conditional", "never_give", "always_give")),
    (PublicGoods(rounds=2, fine=3.0), ("conditional", "never_give", "punisher")),
    (MatrixGame(rounds=3), ("tit_for_tat", "always_defect")),
    (KuhnPoker(), ("always_bet", "always_bet")),
])  # fmt: skip
def test_scripts_play_the_same_game(game, names):
    check_game(OneByOne(game))
    inside, outside = episodes_of(game, names), episodes_of(OneByOne(game), names)
    np.testing.assert_array_equal(inside.total_reward.sum(1), outside.total_reward.sum(1))
    assert outside.acted.sum() == inside.acted.sum() and (outside.acted.sum(2) <= 1).all()


def test_the_tree_knows_what_the_seats_know_and_pays_what_the_rules_pay():
    one_round = PublicGoods(agents=3, multiplier=1.5, rounds=1, endowment=2)
    tree = solve.tree(OneByOne(one_round))
    assert tree.levels == ((0, 1), (1, 4), (4, 13), (13, 40))
    assert tree.owner.tolist() == [0, 1, 2]  # a seat that answers later knows no more than one that answers first
    gifts = np.array(list(product(range(3), repeat=3)))
    np.testing.assert_allclose(tree.payoff[13:], 2 - gifts + 1.5 * gifts.sum(1, keepdims=True) / 3, atol=1e-6)
    nothing = np.eye(3)[np.zeros(3, int)]  # the dominant strategy
    assert solve.nash_conv(tree, nothing) == pytest.approx(0) and solve.nash_conv(tree, nothing[:, ::-1]) > 1
    assert len(solve.tree(OneByOne(GOODS)).owner) == 3 + 3 * 27  # in the second round all know the first


def test_words_that_are_heard_are_refused():
    with pytest.raises(ValueError, match="heard too early"):
        OneByOne(MatrixGame(talk=True))
