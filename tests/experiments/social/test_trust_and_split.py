"""Trust-and-Split: its credit and measures against loops over what was played, and what its arms differ in."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import trust_and_split as study
from experiments.social.trust_and_split import NAIVE, STUDY, TURNS, against, split
from jaxmarl_llm.keys import DEAL, batch_keys
from jaxmarl_llm.training.recipe import SNAPSHOT
from jaxmarl_llm.training.setup import for_pretrained, jit_rollout
from tests.support.recipe_plays import credited, differences, games, untrained, with_a_real_model

GAME = dataclasses.replace(NAIVE.game, rounds=2)
SMALL = {"game": GAME, "groups": 2, "group_size": 6, "updates": 2, "warm_start": ()}
arms = {name: dataclasses.replace(arm, **SMALL) for name, arm in STUDY.arms.items()}
BEATS = {(1, 0), (2, 1), (0, 2)}  # paper rock, scissors paper, rock scissors


@pytest.fixture(scope="module")
def played():
    """Games, and their hands [B, rounds, 2]."""
    one = games(arms["naive"])
    deal = jax.jit(lambda group: jax.vmap(GAME.reset)(batch_keys(jax.random.key(0), DEAL, group), group)[0].hands)
    return one, np.asarray(deal(one.episodes.group))


@pytest.mark.parametrize("arm", STUDY.arms)
def test_a_round_is_credited_with_what_was_said_in_it(played, arm):
    episodes, recipe = played[0].episodes, arms[arm]
    acted, group = np.asarray(episodes.acted), np.asarray(episodes.group)
    reward = np.asarray(episodes.reward[..., 0], np.float64) / 25
    batch, rounds = len(group), GAME.rounds
    earned = np.array([[reward[b, 3 * r : 3 * r + 3].sum(0) for r in range(rounds)] for b in range(batch)])
    if arm == "sum":
        earned = earned.sum(2, keepdims=True).repeat(2, 2)
    own = np.zeros_like(earned)
    for b in range(batch):
        others = [c for c in range(batch) if group[c] == group[b] and c != b]
        to_go = lambda c, r: sum(0.9 ** (s - r) * earned[c, s] for s in range(r, rounds))
        for r in range(rounds):
            own[b, r] = to_go(b, r) - np.mean([to_go(c, r) for c in others], 0)
    expected = np.zeros(acted.shape)
    for b, t, seat in zip(*np.nonzero(acted), strict=True):
        r = t // TURNS
        snapshots = sum(0.9 ** (r - k) * own[b, k, seat] for k in range(r))
        expected[b, t, seat] = own[b, r, seat] + recipe.hparams["beta"] * 0.9 * snapshots * own[b, r, 1 - seat]
    found = np.asarray(credited(recipe, played[0]).advantage)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (acted.sum((0, 1)) == 2 * batch * rounds).all()  # one line and one claim a round
    assert abs(expected).max() > 0.1


def test_what_is_measured_is_what_was_dealt(played):
    episodes, hands = played[0].episodes, played[1]
    claim, points = np.asarray(episodes.action)[:, 2::3], np.asarray(episodes.reward)[:, 2::3, :, 0]
    winners, losers = [], []
    for b in range(len(hands)):
        for r in range(GAME.rounds):
            for seat in range(2):
                if claim[b, r].any():  # of two who claim nothing nobody can tell
                    won = (hands[b, r, seat], hands[b, r, 1 - seat]) in BEATS
                    (winners if won else losers).append(claim[b, r, seat])
    found = jax.jit(lambda episodes: split(episodes, game=GAME))(episodes)
    assert found["claim of the winner"] == pytest.approx(np.mean(winners), rel=1e-5)
    assert found["claim of the loser"] == pytest.approx(np.mean(losers), rel=1e-5)
    assert found["points"] == pytest.approx(points.mean(), rel=1e-5)
    assert found["efficiency"] == pytest.approx(points.sum(2).mean() / 50, rel=1e-5)


@pytest.mark.parametrize("claims", [(5, 0), (0, 5), (0, 4), (5, 5), (3, 1), (1, 3)])
@pytest.mark.parametrize("winner", [0, 1])
def test_who_won_is_read_from_the_points(claims, winner):
    """Also where one claims nothing, from the other one's points."""
    value = np.where(np.arange(2) == winner, 10.0, 1.0)
    points = value * 5 * np.array(claims) / max(5, sum(claims))

    class Episodes:
        reward = jnp.zeros((1, 3, 2, 1)).at[0, 2, :, 0].set(points)
        action = jnp.zeros((1, 3, 2), int).at[0, 2].set(np.array(claims))
        acted = jnp.ones((1, 3, 2), bool)

    found = split(Episodes, game=dataclasses.replace(GAME, rounds=1))
    assert found["claim of the winner"] == claims[winner] and found["claim of the loser"] == claims[1 - winner]


def test_what_the_arms_differ_in():
    for name, arm in STUDY.arms.items():
        held = {"reference", "pretrained"} if name.startswith("kl/") else set()
        assert differences(NAIVE, arm) <= {"hparams", *held}
        assert for_pretrained(arm).hparams["kl"] == (0.1 if held else 0.05)  # a pretrained model is held in all arms
        changed = {name for name in NAIVE.hparams if arm.hparams[name] != NAIVE.hparams[name]}
        assert changed <= {"joint", "beta", "kl"}
    weights = {name: tuple(arm.hparams[x] for x in ("joint", "beta", "kl")) for name, arm in STUDY.arms.items()}
    assert weights == {
        "naive": (0, 0, 0), "sum": (1, 0, 0), "alignment": (0, 0.5, 0),
        "kl/naive": (0, 0, 0.1), "kl/alignment": (0, 0.5, 0.1), "kl/beta_2": (0, 2, 0.1), "kl/beta_5": (0, 5, 0.1),
    }  # fmt: skip


def test_a_real_model_talks_in_words():
    pretrained = for_pretrained(STUDY.arms["alignment"])
    assert (
        not pretrained.game.signals
        and pretrained.game.talk
        and pretrained.game.coins == 10
        and pretrained.measure.keywords["game"] == pretrained.game
    )
    assert SNAPSHOT not in str(pretrained.seats) and pretrained.budget == (8, 24)
    hparams = (pretrained.hparams[name] for name in ("entropy", "beta", "reward_scale"))
    assert pretrained.reference and tuple(hparams) == (0, 0.5, 25)


def test_what_scripted_players_meet(monkeypatch):
    """A greedy player's points, and claims with the losing hand, are counted again, game by game."""
    parts, (policy,) = untrained(arms["naive"], 0)
    seen = []

    def kept(rollout):
        play = jit_rollout(rollout)
        return lambda *given: seen.append(play(*given)) or seen[-1]

    monkeypatch.setattr(study, "jit_rollout", kept)
    found = against(parts)(policy, jax.random.key(0))
    assert 25 / 11 < found["greedy earns"] < 50  # at the least half of what the losing hand is worth
    episodes = seen[0].episodes
    claim, points = np.asarray(episodes.action)[:, 2::3], np.asarray(episodes.reward)[:, 2::3, :, 0]
    group, earned, answers = np.asarray(episodes.group), [], {True: [], False: []}
    for b in range(len(group)):
        own = group[b] % 2
        if group[b] % 4 < 2:
            earned.append(points[b, :, 1 - own].mean())
            assert (claim[b, :, 1 - own] == 5).all()
        paid = points[b] / np.maximum(5 * claim[b] / np.maximum(5, claim[b].sum(1, keepdims=True)), 1e-9)  # a coin
        wins = [(row > 5)[own] or (0 < row[1 - own] < 5) for row in paid]
        if claim[b].any(1).all() and wins[0] and not wins[1]:
            answers[bool(claim[b, 0, 1 - own] == 0)].append(claim[b, 1, own])
    assert found["greedy earns"] == pytest.approx(np.mean(earned), rel=1e-5)
    assert found["claim after a yield"] == pytest.approx(np.mean(answers[True]), rel=1e-5)
    assert found["claim after a claim"] == pytest.approx(np.mean(answers[False]), rel=1e-5)


@pytest.mark.slow
def test_three_updates_of_a_real_model(tmp_path):
    assert STUDY.method in with_a_real_model("trust_and_split", tmp_path)
