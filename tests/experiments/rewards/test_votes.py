"""Votes: whom each arm pays, against loops over what was played; how far apart the policies begin."""

import dataclasses
from collections import Counter

import jax
import numpy as np
import pytest

from experiments.rewards.votes import ARMS, MEMBERS, NOVICES
from tests.support.recipe_plays import credited, differences, games

arms = {name: dataclasses.replace(arm, groups=6, group_size=8) for name, arm in ARMS.items()}


def label(arm, answers, group, episode, seat):
    """What the arm pays this answer for; answers int [B, A]."""
    together, agents = group == group[episode], answers.shape[1]
    width = agents // 4
    own = range(seat // width * width, seat // width * width + width)
    if arm == "self":
        votes = Counter({a: int((answers[together, seat] == a).sum()) for a in range(5)})
    elif arm == "cross_view":
        votes = Counter({a: int((answers[together][:, [s for s in own if s != seat]] == a).sum()) for a in range(5)})
    elif arm == "teacher":
        votes = Counter({a: int((answers[together, own[1]] == a).sum()) for a in range(5)})
    else:
        votes = Counter()
        for s in range(agents):
            said = Counter(answers[together, s].tolist())
            weight = max(said.values()) if "weighted" in arm or arm == "alike" else 1
            for a, n in said.items():
                votes[a] += weight * n
    return min(votes, key=lambda a: (-votes[a], a))


@pytest.mark.parametrize("arm", ARMS)
def test_who_is_paid(arm):
    recipe = arms[arm]
    played = games(recipe)
    episodes, learns = played.episodes, np.asarray(played.learns)
    answers, right = np.asarray(episodes.action)[:, 0], np.asarray(episodes.reward)[:, 0, :, 0]
    group, paid = np.asarray(episodes.group), np.zeros(answers.shape)
    for b, seat in np.ndindex(answers.shape):
        paid[b, seat] = right[b, seat] if arm == "oracle" else answers[b, seat] == label(arm, answers, group, b, seat)
    found = credited(recipe, played)
    expected = np.zeros(answers.shape)
    for g in range(6):
        own = paid[group == g]
        expected[group == g] = (own - own.mean(0)) / (own.std(0) + 1e-6) * (own.std(0) > 0)
    np.testing.assert_allclose(np.asarray(found.advantage)[:, 0], np.where(learns, expected, 0), atol=1e-4)
    np.testing.assert_allclose(found.metrics["accuracy"], right[learns].mean(), atol=1e-6)
    labels = [label(arm, answers, group, b, s) for b, s in zip(*np.nonzero(learns), strict=True)]
    truth = {g: answers[group == g][right[group == g] > 0][0] for g in range(6)}
    if arm != "oracle":
        where = group[np.nonzero(learns)[0]]
        assert np.isclose(found.metrics["labels"], np.mean([x == truth[g] for x, g in zip(labels, where, strict=True)]))


def test_arms_differ_in_what_is_said_of_them():
    for name in ("oracle", "self", "plain"):
        assert differences(ARMS[name], ARMS["weighted"]) == {"selection"}
    assert differences(ARMS["alike"], ARMS["weighted"]) == {"warm_start"}
    assert differences(ARMS["plain_misled"], ARMS["weighted_misled"]) == {"selection"}
    assert all(recipe.learners == ("one", "two", "three", "four") for recipe in ARMS.values())
    answers = {name: len([x for x in arm.seats[0] if "/" not in x]) * arm.groups for name, arm in ARMS.items()}
    assert len({*answers.values()}) == 1  # a policy answers as often in every arm


def test_members_know_different_things_and_believe_the_same():
    """What scripts say is what policies begin with: of each question their most common answer."""
    game = ARMS["weighted"].game
    states, _ = game.initial_states()
    keys = jax.random.split(jax.random.key(0), 300)
    truth = np.asarray(jax.vmap(lambda s: game.tasks.task(s.task)[1])(states))
    known = []
    for member in MEMBERS:
        script = game.scripts[member.name]
        said = jax.jit(jax.vmap(lambda s, f=script: jax.vmap(lambda k: f(s, np.int32(0), k))(keys)))(states)
        top = np.array([np.bincount(x, minlength=5).argmax() for x in np.asarray(said)])
        known.append(top == truth)
    assert [int(x.sum()) for x in known] == [12] * 4 + [0]
    together = np.sum(known[:4], 0)
    assert len({tuple(x) for x in known[: len(NOVICES)]}) == 4 and (together > 0).mean() > 0.85
