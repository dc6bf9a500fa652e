"""The pipeline: credit along the words of two seats, what is measured, what the arms share, and the exact success."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.teams.pipeline import EXACT, SOLO, STUDY, TEAM, as_they_act, by_step
from jaxmarl_llm.environments.teams.team_signals import Relay
from jaxmarl_llm.evaluation.exact import seats
from tests.support.recipe_plays import credited, differences, games


@pytest.fixture(scope="module")
def played():
    return games(dataclasses.replace(TEAM, groups=2, group_size=8, updates=1))


def test_credit_goes_from_word_to_word_through_both_seats(played):
    episodes, value = played.episodes, np.asarray(played.turn_value, np.float64)
    acted, paid = np.asarray(episodes.acted), np.asarray(episodes.reward[..., 0]).mean(2)
    assert (acted.sum(2) <= 1).all() and acted[..., 0].any() and acted[..., 1].any()
    want = np.zeros(value.shape)
    for b in range(len(acted)):
        later = following = 0.0
        for t in reversed(np.flatnonzero(acted[b].any(1))):
            seat = acted[b, t].argmax()
            later = paid[b, t] + following - value[b, t, seat] + 0.95 * later
            want[b, t, seat], following = later, value[b, t, seat]
    found, mean, std = credited(TEAM, played), want[acted].mean(), want[acted].std()
    np.testing.assert_allclose(np.asarray(found.advantage)[acted], (want[acted] - mean) / std, atol=1e-3)
    np.testing.assert_allclose(np.asarray(found.value_target)[acted], (want + value)[acted], atol=1e-4)


def test_metrics(played):
    episodes = played.episodes
    found = jax.jit(TEAM.measure)(episodes)
    answers = np.asarray(episodes.acted)[..., 1]
    won, right = (np.asarray(episodes.measured)[:, :, 0, i] for i in range(2))
    assert float(found["won"]) == pytest.approx(won.sum(1).mean())
    assert float(found["right"]) == pytest.approx(right[answers].mean())
    assert 0 < float(found["right"]) < 1


def test_arms_differ_in_update_and_seats_alone():
    for name, arm in STUDY.arms.items():
        base = EXACT if name.startswith("relay/") else TEAM
        known = {"game", "seats", "warm_start"} if name == "solo" else {"step", "epochs"}
        assert differences(base, arm) <= known, name
    assert SOLO.game == dataclasses.replace(TEAM.game, seats=1) and SOLO.all_hparams == TEAM.all_hparams
    assert as_they_act({}, jax.random.key(0), agents=3).tolist() == [0, 1, 2]
    assert by_step(SimpleNamespace(turn=np.array([0, 1, 2, 3, 5, 6]))).tolist() == [0, 0, 0, 1, 1, 2]


def test_exact_success_of_a_team(monkeypatch):
    """Random tables of three seats, against a loop over the deals and messages of the relay."""
    rng = np.random.default_rng(0)
    told = [rng.dirichlet(np.ones(3), n) for n in (3, 9, 3)]  # by number; by message and number; by message

    def tabulate(tree, policies, policy, budget, batch):
        table = np.zeros(tree.legal.shape)
        for i, (seat, example) in enumerate(zip(tree.owner, tree.example, strict=True)):
            (deal,), (moves,), _ = tree.histories(np.array([example]))
            first, second = np.asarray(tree.start[0].numbers)[deal]
            table[i] = (
                (told[0][first], told[1][3 * moves[0] + second], told[2][moves[1]])[seat]
                if seat == policies.seat
                else 0
            )
        return lambda weights: table

    monkeypatch.setattr(seats, "tabulate", tabulate)
    names = ("sender", "adder", "receiver")
    sets = {name: SimpleNamespace(policies=(name,), seat=seat) for seat, name in enumerate(names)}
    recipe = SimpleNamespace(game=Relay(3), seats=(names,), budget=1)
    parts = SimpleNamespace(recipe=recipe, policy_sets=sets, policy_set_of=dict(zip(names, names, strict=True)))
    want = np.mean(
        [
            sum(told[0][x][a] * told[1][3 * a + y][b] * told[2][b][(x + y) % 3] for a in range(3) for b in range(3))
            for x in range(3)
            for y in range(3)
        ]
    )
    found = seats.expected_reward(parts)(dict.fromkeys(names), jnp.zeros(()))
    assert found["value"] == pytest.approx(want, abs=1e-6)
