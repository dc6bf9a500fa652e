"""CoMAS: who is paid what for which act, whitened for whom, and what the scores know.

The long case compiles a batch of games.
"""

import dataclasses

import numpy as np
import pytest

from experiments.rewards.comas import STUDY
from tests.support.recipe_plays import credited, differences, games

arms = {name: dataclasses.replace(arm, groups=3, group_size=4) for name, arm in STUDY.arms.items()}


@pytest.fixture(scope="module")
def played():
    return {name: games(arms[name]) for name in ("comas", "self_score", "no_evaluator")}


def acts(game, episodes):
    """(episode, agent, role, seat, turn) of every act, and the points of the scores by hand, in loops."""
    reward, facts, acted = (np.asarray(x) for x in (episodes.reward, episodes.measured, episodes.acted))
    turns, phases = game.turns, game.game.game.phases
    found = []
    for b, t, seat in zip(*np.nonzero(acted), strict=True):
        agent = seat // turns
        assert seat % turns == t  # each text in a context of its own
        solve, evaluate, none = reward[b, turns - 1, agent * turns + turns - 1]
        judged = facts[b, turns - 1, agent * turns + turns - 1, 1]
        found.append((b, agent, phases[t], seat, t, {0: solve, 1: evaluate, 2: none}[phases[t]], judged))
    return found


@pytest.mark.parametrize("name", ["comas", "by_role", "truth", "neutral", "self_score", "no_evaluator"])
@pytest.mark.long
def test_an_act_earns_what_its_score_says_and_is_compared_with_its_agents(played, name):
    experience, recipe = played.get(name, played["comas"]), arms[name]
    found = credited(recipe, experience)
    acted = acts(recipe.game, experience.episodes)
    price, truth = recipe.hparams["format"], recipe.hparams["truth"]
    points = [p * price + truth * judged if role == 2 else p for *_, role, _, _, p, judged in acted]
    want = np.zeros(experience.episodes.acted.shape)
    keys = [(agent, role) if name == "by_role" else agent for _, agent, role, *_ in acted]
    for key in set(keys):
        own = [i for i, other in enumerate(keys) if other == key]
        mean, std = np.mean([points[i] for i in own]), np.std([points[i] for i in own])
        for i in own:
            b, _, _, seat, t, *_ = acted[i]
            want[b, t, seat] = (points[i] - mean) / (std + 1e-6)
    np.testing.assert_allclose(np.asarray(found.advantage), want, atol=2e-4)
    scorer = np.mean([want[b, t, seat] for b, _, role, seat, t, *_ in acted if role == 2])
    np.testing.assert_allclose(found.metrics["scorer's advantage"], scorer, atol=1e-4)
    if name == "by_role":
        assert abs(scorer) < 1e-4
    if name == "comas":  # nobody pays a scorer, and all are compared with those who are paid
        assert scorer < -0.3


def test_an_unparsed_score_costs_the_scorer_one_and_pays_nobody(played):
    """A copy of the release reads it as a 2, which pays both and removes the price."""
    episodes, game = played["comas"].episodes, arms["comas"].game
    none = np.asarray(episodes.action)[:, -1] == 3
    none &= np.asarray(episodes.acted)[:, -1]
    assert none.any()
    paid = np.asarray(episodes.reward)[:, -1]
    assert (paid[none][:, 2] == -1).all() and (paid[~none][:, 2] == 0).all()
    per_game = paid.sum(1)
    np.testing.assert_allclose(per_game[:, 0] + per_game[:, 1], game.game.agents - none.sum(1), atol=1e-6)


def test_what_scores_know_is_their_mutual_information_with_the_truth(played):
    recipe, episodes = arms["comas"], played["comas"].episodes
    found = recipe.measure(episodes)
    scores, facts = (np.asarray(recipe.game.whole(x)) for x in (episodes.reward, episodes.measured))
    tau, right = scores[:, -1, :, 0].ravel(), facts[:, 0, :, 0].ravel()
    information = 0.0
    for s in (0, 0.5, 1):
        for r in (0, 1):
            p = np.mean((tau == s) & (right == r))
            information += p * np.log(p / (np.mean(tau == s) * np.mean(right == r))) if p else 0
    np.testing.assert_allclose(found["information"], information, atol=1e-5)
    np.testing.assert_allclose(found["accuracy"], right.mean(), atol=1e-6)
    np.testing.assert_allclose(found["score"], tau.mean(), atol=1e-6)
    unscored = np.asarray(episodes.action)[:, -1][np.asarray(episodes.acted)[:, -1]] == 3
    np.testing.assert_allclose(found["unscored"], unscored.mean(), atol=1e-6)


def test_arms_differ_in_what_they_say():
    assert differences(arms["comas"], arms["truth"]) == differences(arms["comas"], arms["neutral"]) == {"hparams"}
    assert arms["weak"].game.game.errs[0].right[:2] == arms["comas"].game.game.errs[0].right[:2]
    np.testing.assert_allclose(
        STUDY.derived["gain"]({"accuracy": np.array([[0.5] * 4 + [0.6] * 8 + [0.75] * 8])}), [0.25]
    )
