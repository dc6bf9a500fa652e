"""Estimators beside the exact gradient: their expectation over all groups of two games, and what is measured."""

from functools import cache, partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.one_by_one import OneByOne
from jaxmarl_llm.environments.social.public_goods import PublicGoods
from jaxmarl_llm.environments.solo.fork import Fork
from jaxmarl_llm.environments.solo.stairs import Stairs
from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.evaluation.exact.estimators import (
    METRICS,
    WRONG,
    at_once,
    gradients,
    measure,
    named_inputs,
    play,
    variants,
)
from jaxmarl_llm.evaluation.exact.exact_gradient import Tables, exact, tables
from jaxmarl_llm.rl.advantages.registry import ESTIMATORS, apply, required_inputs

GIFTS = OneByOne(PublicGoods(agents=2, multiplier=1.5, rounds=1, endowment=2))
GAMES = {"stairs": Stairs(2), "fork": Fork(2), "six": SixTurns(2), "gifts": GIFTS}
UNBIASED = ("reinforce", "reinforce_to_go", "rloo_per_agent", "round_leave_one_out", "gae_lambda_1", "role_baseline")


@cache
def game(name: str) -> Tables:
    return tables(GAMES[name])


def drawn(game: Tables) -> jax.Array:
    logits = np.random.default_rng(1).normal(size=game.tree.legal.shape)
    return jax.nn.softmax(jnp.where(game.tree.legal, jnp.asarray(logits, jnp.float32), -jnp.inf))


def pairs(game: Tables, policy: np.ndarray):
    """All groups of two games of one deal: histories and actions of their games, and the groups' probabilities."""
    deal, moves, length = game.tree.histories(np.flatnonzero(game.tree.seat < 0))
    assert (length == length[0]).all()
    paths, chance = np.zeros((len(moves), length[0] + 1), int), np.ones(len(moves))
    paths[:, 0] = deal
    for turn in range(length[0]):
        at = paths[:, turn]
        chance *= policy[game.tree.information[at], moves[:, turn]]
        paths[:, turn + 1] = game.child[at, moves[:, turn]]
    one, other = np.array([(a, b) for a, b in product(range(len(deal)), repeat=2) if deal[a] == deal[b]]).T
    both = np.stack([one, other], 1).ravel()
    return paths[both], moves[both], chance[one] * chance[other] * game.chance[deal[one]]


@pytest.mark.parametrize("name", GAMES)
def test_expectations_over_all_groups_of_two_games(name):
    """Those that are unbiased are the exact gradient; a critic that is wrong is so without its value alone."""
    one = game(name)
    policy = drawn(one)
    history, action, chance = pairs(one, np.asarray(policy))
    assert chance.sum() == pytest.approx(1)
    groups = len(chance)
    right = (*UNBIASED, "gae_lambda_0", "utterance_critic", "crossed", "counterfactual")
    group, off = np.repeat(np.arange(groups), 2), jnp.cos(jnp.arange(len(policy)) * 2.0)

    @jax.jit
    def expected(policy, history, action, chance):
        known = exact(one, policy)
        inputs = named_inputs(one, policy, known, history, action, jnp.asarray(group), groups)
        wrong = inputs | {"value": jnp.where(inputs["acted"], inputs["value"] + off[inputs["observation"]], 0)}
        given = [x for x in right if {*required_inputs(ESTIMATORS[x])} <= {*inputs}]
        found = {estimator: apply(ESTIMATORS[estimator], inputs) for estimator in (*given, "grpo")}
        found |= {f"{x}{WRONG}": apply(ESTIMATORS[x], wrong) for x in ("gae_lambda_1", "gae_lambda_0")}
        weighed = jnp.stack(list(found.values())) * (chance * groups)[group][None, :, None, None]
        return dict(zip(found, gradients(one, policy, inputs, weighed), strict=True)), known.gradient

    found, truth = expected(policy, history, action, jnp.asarray(chance, jnp.float32))
    assert ("crossed" in found) == (name == "gifts")
    for estimator in ({*right} & {*found}) | {f"gae_lambda_1{WRONG}"}:
        np.testing.assert_allclose(found[estimator], truth, atol=1e-6, err_msg=estimator)
    biased = np.abs(found["grpo"] - truth).max() > 1e-2
    assert biased == (name != "fork")  # of two games that pay 0 or 1, GRPO is RLOO
    turns_of_a_seat = {"stairs": 2, "fork": 2, "six": 1, "gifts": 1}[name]
    assert (np.abs(found[f"gae_lambda_0{WRONG}"] - truth).max() > 1e-2) == (turns_of_a_seat > 1)


def test_at_once_is_one_turn_with_the_rewards_of_other_joint_actions():
    """Against the rules: what each would be paid with another gift, and with the group's other gifts."""
    one = game("gifts")
    assert at_once(one) and not any(at_once(game(name)) for name in ("stairs", "fork", "six"))
    policy = drawn(one)
    inputs = jax.device_get(jax.jit(lambda key: play(one, policy, exact(one, policy), key, 2, 3))(jax.random.key(0)))
    assert inputs["acted"].shape == (6, 1, 2) and inputs["acted"].all()
    gifts, pays = inputs["action"][:, 0], lambda *gifts: 2 - np.array(gifts) + 1.5 * sum(gifts) / 2
    for episode, (a, b) in enumerate(gifts):
        np.testing.assert_allclose(inputs["reward"][episode, 0], pays(a, b))
        for other in range(3):
            found = inputs["alternatives"][episode, 0, :, other]
            np.testing.assert_allclose(found, [pays(other, b)[0], pays(a, other)[1]])
    for group, i, j in product(range(2), range(3), range(3)):
        np.testing.assert_allclose(inputs["joint"][group, i, j], pays(gifts[3 * group + i, 0], gifts[3 * group + j, 1]))


def test_a_critic_that_has_seen_every_game_as_often_as_it_is_played_knows_the_advantages():
    one = game("six")
    policy = jnp.asarray(np.where(one.tree.legal, 1 / one.tree.legal.sum(1, keepdims=True), 0), jnp.float32)
    history, action, _ = pairs(one, np.asarray(policy))
    group = jnp.arange(len(history)) // 2
    inputs = named_inputs(one, policy, exact(one, policy), history, action, group, len(history) // 2)
    found = apply(ESTIMATORS["fitted_critic"], inputs)
    np.testing.assert_allclose(found, inputs["exact"], atol=1e-5)
    assert np.abs(found).max() > 0.1


def test_games_are_played_as_the_policy_says():
    one = game("fork")
    policy = drawn(one)
    inputs = jax.jit(lambda key: play(one, policy, exact(one, policy), key, 500, 8))(jax.random.key(0))
    known = exact(one, policy)
    assert float(inputs["reward"].sum((1, 2)).mean()) == pytest.approx(float(known.returns[0]), abs=0.05)
    assert (np.ptp(np.asarray(inputs["observation"][:, 0, 0]).reshape(500, 8), 1) == 0).all()  # one deal a group
    assert "correct" in inputs and "beta" not in inputs
    assert float(inputs["exact"].mean()) == pytest.approx(0, abs=0.01)


def test_what_is_measured():
    """A constant is neither signal nor noise; truth correlates with itself; half of it is biased by a half."""
    one, policy = game("stairs"), drawn(game("stairs"))
    estimators = {name: ESTIMATORS[name] for name in ("exact", "rloo", "gae_lambda_0", "advantage_alignment")}
    estimators |= {"nothing": lambda exact: 0 * exact, "half": lambda exact: exact / 2}
    found = jax.jit(lambda key: measure(one, policy, estimators, key, batches=200))(jax.random.key(0))
    found = {name: {metric: float(x) for metric, x in metrics.items()} for name, metrics in found.items()}
    assert set(found) == {*variants(estimators)} - {"advantage_alignment"}  # there is one seat
    assert all(set(metrics) == {*METRICS} for metrics in found.values())
    for name in ("exact", "rloo", "gae_lambda_0"):
        assert found[name]["bias"] < 4 * found[name]["noise"] / np.sqrt(200)
        assert abs(found[name]["direction"] - 1) < 0.05
    assert found["nothing"] == dict.fromkeys(METRICS, 0.0) | {"bias": pytest.approx(1), "silent groups": 1.0}
    assert found["half"]["bias"] == pytest.approx(0.5, abs=0.05)
    assert found["half"]["noise"] == pytest.approx(found["exact"]["noise"], rel=1e-3)
    assert found["exact"]["correlation"] == pytest.approx(1, abs=1e-4)
    assert found["rloo"]["correlation"] < 0.9 and found["rloo"]["silent groups"] > 0
    assert found["gae_lambda_0" + WRONG]["direction"] < 0.97


def test_batches_that_cannot_be_halved_and_estimators_that_cannot_be_given_their_inputs():
    one = game("stairs")
    for batches in (0, 3):
        with pytest.raises(ValueError, match="even number"):
            measure(one, drawn(one), ESTIMATORS, jax.random.key(0), batches=batches)
    for none in ({"groups": 0}, {"group_size": 0}):
        with pytest.raises(ValueError, match="a group of a game at least"):
            measure(one, drawn(one), ESTIMATORS, jax.random.key(0), **none)
    with pytest.raises(ValueError, match=r"None of mine can do with .*, exact, "):
        measure(one, drawn(one), {"mine": lambda beta: beta}, jax.random.key(0))
    mistyped = {"mine": lambda rewards: rewards, "rloo": ESTIMATORS["rloo"]}
    with pytest.raises(ValueError, match="mine asks for rewards, but there are acted, "):
        measure(one, drawn(one), mistyped, jax.random.key(0))


def test_what_an_estimator_of_ones_own_can_get_wrong():
    """Advantages of seats that did not act count for nothing; another shape, and no policy, are said in a sentence."""
    one, key = game("six"), jax.random.key(0)
    legal = one.tree.legal
    estimators = {
        "everywhere": lambda reward: jnp.broadcast_to(reward.sum((1, 2), keepdims=True), reward.shape),
        "masked": lambda reward, acted: jnp.where(acted, reward.sum((1, 2), keepdims=True), 0),
    }
    found = jax.jit(lambda key: measure(one, drawn(one), estimators, key, batches=2))(key)
    assert found["everywhere"] == found["masked"]
    with pytest.raises(ValueError, match=r"\[episodes, turns, seats\], here \[64, 2, 2\]: got the shape \[64, 2\]"):
        measure(one, drawn(one), {"mine": lambda reward: reward.sum(2)}, key)
    with pytest.raises(ValueError, match="A policy of this game has the shape"):
        measure(one, drawn(one)[:-1], ESTIMATORS, key)
    with pytest.raises(ValueError, match="probabilities of legal actions"):
        measure(one, np.ones(legal.shape), ESTIMATORS, key)


def test_every_registered_estimator_can_be_measured_in_one_of_the_games():
    given = set()
    for name in GAMES:
        one, policy = game(name), drawn(game(name))
        play_one = partial(play, one, policy, groups=1, group_size=1)
        given |= {*jax.eval_shape(play_one, exact(one, policy), jax.random.key(0))}
    for name, of in ESTIMATORS.items():
        assert {*required_inputs(of)} <= given, name
