"""CoMAS with answers that are easy to check: rewards against a loop, what scores know, which questions are taught."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.teams.comas_checked import BOXES, STUDY
from tests.support.recipe_plays import credited, differences, games

arms = {name: dataclasses.replace(arm, groups=3, group_size=4) for name, arm in STUDY.arms.items()}


@pytest.fixture(scope="module")
def played():
    return games(arms["comas"])


def rewards(game, episodes, donor):
    """(episode, turn, seat, agent, points) of every act, by hand; scores of discussion donor[b] pay discussion b."""
    reward, acted = np.asarray(episodes.reward), np.asarray(episodes.acted)
    last = game.turns - 1
    for b, t, seat in zip(*np.nonzero(acted), strict=True):
        agent = seat // game.turns
        scores = reward[b if t == last else donor[b], last, agent * game.turns + last]
        yield b, t, seat, agent, scores[t]


@pytest.mark.parametrize("name", ["comas", "shuffled"])
def test_an_act_is_paid_by_a_score_of_its_own_discussion_or_of_another(played, name):
    recipe, episodes = arms[name], played.episodes
    games_played = np.arange(len(episodes.acted))
    other = np.asarray(jax.random.permutation(played.key, len(games_played)))
    assert (other != games_played).any()
    acts = list(rewards(recipe.game, episodes, other if name == "shuffled" else games_played))
    assert {points for *_, points in acts} == {-1, 0, 0.5, 1}
    want = np.zeros(episodes.acted.shape)
    for one in range(3):
        own = [act for act in acts if act[3] == one]
        points = np.array([act[4] for act in own])
        for (b, t, seat, *_), advantage in zip(own, (points - points.mean()) / points.std(), strict=True):
            want[b, t, seat] = advantage
    np.testing.assert_allclose(credited(recipe, played).advantage, want, atol=2e-4)


def test_what_scores_know_against_all_pairs_of_answers(played):
    recipe, episodes = arms["comas"], played.episodes
    tau, right = (np.asarray(recipe.game.whole(x)) for x in (episodes.reward, episodes.measured))
    tau, right = tau[:, -1, :, 0].ravel(), right[:, 0, :, 0].ravel() > 0
    pairs = [float(x > y) + (x == y) / 2 for x in tau[right] for y in tau[~right]]
    found = jax.jit(recipe.measure)(episodes)
    assert float(found["auc"]) == pytest.approx(np.mean(pairs), abs=1e-5)
    np.testing.assert_allclose([found["score"], found["accuracy"]], [tau.mean(), right.mean()], atol=1e-6)


def test_scorers_are_taught_on_other_orders_than_they_judge():
    """The taught orders are even permutations, the others odd."""
    recipe = arms["comas"]
    taught, judged = recipe.warm_start_deal(None), recipe.arrange({}, (), None, 0).deal
    orders = [{*map(tuple, BOXES.orders[first:end])} for first, end in (taught, judged)]
    assert len(orders[0]) == len(orders[1]) == 60 and not orders[0] & orders[1]
    deal = jax.jit(jax.vmap(lambda key: recipe.game.reset(key, 0, judged)[0].game.game.task))
    asked = deal(jax.random.split(jax.random.key(0), 1000))
    assert {*asked.tolist()} == {*range(60, 120)}


def test_arms_differ_in_what_they_say():
    assert differences(arms["comas"], arms["shuffled"]) == {"selection"}
    assert differences(arms["comas"], arms["untrained"]) == {"hparams"}
    for arm in arms.values():
        assert arm.game.game.errs[0].right[0] == 1 / len(BOXES.answers)  # imitated solutions are random
    np.testing.assert_allclose(STUDY.derived["auc at start"]({"auc": np.array([[0.9] * 4 + [0.5] * 8])}), [0.9])
