"""A farm's checklist: how often it is misread, what the judge follows, and each arm's credit, against loops."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.credit_assignment.checklists import AT_END, ITEMS, STUDY, follow, items, misread
from tests.support.recipe_plays import credited, differences, games


def small(arm):
    return dataclasses.replace(arm, groups=2, group_size=64)


@pytest.fixture(scope="module")
def played():
    return games(small(AT_END))


def test_every_reading_is_wrong_with_the_same_chance_anew():
    truth = jnp.arange(50_000).reshape(10_000, 5) % 3 == 0
    first, second = (np.asarray(misread(truth, jnp.float32(0.2), jax.random.key(i))) != truth for i in range(2))
    assert first.mean(0) == pytest.approx([0.2] * 5, abs=0.015)
    assert (first & second).mean() == pytest.approx(0.04, abs=0.005)  # a situation that is read again
    assert (first[:, 0] & first[:, 1]).mean() == pytest.approx(0.04, abs=0.01)  # two items of a turn
    assert (np.asarray(misread(truth, jnp.float32(0), jax.random.key(0))) == truth).all()


def test_items_are_met_by_the_works_that_were_done_in_order(played):
    action, acted = (np.asarray(x)[..., 0] for x in (played.episodes.action, played.episodes.acted))
    found, complete = np.asarray(items(played.episodes)), 0
    for b, says in enumerate(action):
        works = 0
        for t in np.flatnonzero(acted[b]):
            stops = says[t] == ITEMS and works == ITEMS - 1
            works += says[t] == works + 1 and not stops
            assert found[b, t].tolist() == [*(works > c for c in range(ITEMS - 1)), stops]
            complete += stops
    assert complete > 0


def judged(read, acted):
    """(the open item or -1 [T], items met [T]) of one game, by a loop."""
    met, opened, gained = 0, np.full(len(acted), -1), np.zeros(len(acted), int)
    for t in np.flatnonzero(acted):
        if met < ITEMS:
            opened[t], gained[t] = met, read[t, met]
            met += read[t, met]
    return opened, gained


def test_credit_against_a_loop(played):
    episodes, key = played.episodes, jax.random.split(played.key)[0]
    acted, group = np.asarray(episodes.acted)[..., 0], np.asarray(episodes.group)
    read = np.asarray(misread(items(episodes), jnp.float32(0.2), key))
    opened, gained = map(np.array, zip(*map(judged, read, acted), strict=True))
    total = gained.sum(1)
    assert len({*total}) == ITEMS + 1
    want = {name: np.zeros(acted.shape) for name in ("at_end", "by_turn")}
    for b, t in np.argwhere(acted):
        peers = group == group[b]
        want["at_end"][b, t] = (total[b] - total[peers].mean()) / ITEMS
        if (item := opened[b, t]) >= 0:
            want["by_turn"][b, t] = (total[b] > item) - (total[peers] > item).mean()
    for name, advantage in want.items():
        found = credited(small(STUDY.arms[name]), played).advantage
        np.testing.assert_allclose(np.asarray(found)[..., 0], advantage, atol=1e-5, err_msg=name)


def test_the_judge_closes_no_item_before_the_one_it_follows():
    read = np.ones((1, 7, ITEMS), bool)
    read[0, :3, 0] = False  # the first item is read late, all others always
    item, met = follow(jnp.array(read), jnp.arange(7)[None] < 6)
    assert item[0].tolist() == [0, 0, 0, 0, 1, 2, 3] and met[0].tolist() == [False] * 3 + [True] * 3 + [False]


def test_outcome_is_one_verdict_of_the_whole_game(played):
    right = STUDY.arms["outcome"].with_hparams(misread=0.0)
    found = np.asarray(credited(small(right), played).advantage)[..., 0]
    complete = np.asarray(played.episodes.reward)[:, :, 0, 0].sum(1) == 1
    mean = np.array(
        [complete[np.asarray(played.episodes.group) == g].mean() for g in np.asarray(played.episodes.group)]
    )
    acted = np.asarray(played.episodes.acted)[..., 0]
    np.testing.assert_allclose(found, np.where(acted, (complete - mean)[:, None], 0), atol=1e-6)


def test_arms_differ_in_credit_and_chances_alone():
    for arm in STUDY.arms.values():
        assert differences(AT_END, arm) <= {"selection", "hparams"}
    assert STUDY.arms["imitated"].all_hparams["learning_rate"] == 0
