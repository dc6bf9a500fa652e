"""The dilemma as a study: its advantages, its evaluation, and what a pretrained model trains with.

The long case compiles a pretrained model with an evaluation; the short ones check its settings and the evaluation of a
tiny one.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social.social_dilemma import ARMS, NAIVE, SCRIPTED, STUDY, TALK, TWO_MODELS, evaluate
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.training.setup import LORA, for_pretrained
from jaxmarl_llm.training.trainer import Model, Trainer
from tests.support.dilemma import small_dilemma
from tests.support.recipe_plays import credited, differences, exit_status, games, with_a_real_model


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--learning-rate", "1e-3", "nobody=1e-4"), "nobody"),
        (("--groups", "2"), "2 groups do not divide over the 4 line-ups"),
        (("--mesh", "data=3"), "does not divide over 3 devices"),
        (("--mesh", "rows=3"), "written as data=2,fsdp=4,tensor=1"),
        (("--keep.every", "-1"), "keep.every=-1: give a number of steps"),
    ],
)
def test_bad_input_is_one_sentence_and_not_zero(arguments, says, tmp_path, monkeypatch, capsys):
    assert exit_status("social_dilemma", *arguments, "--out", tmp_path, patch=monkeypatch) == 2
    printed = capsys.readouterr()
    assert says in printed.err + printed.out and "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (partial(small_dilemma, rounds=300), "too short by"),
        (lambda: small_dilemma(sampling=Sampling(top_p=0)), "top_p must lie between 1e-6 and 1"),
        (partial(small_dilemma, grad_accumulation=5), "do not divide into"),
        (partial(small_dilemma, seats=NAIVE.seats, snapshots=None), "but the line-ups are"),
        (lambda: small_dilemma(game=MatrixGame(payoff=((3, 3, 3), (0, 5)))), "payoff must have the shape"),
        (lambda: small_dilemma(rounds=0), "rounds must be at least 1, got 0"),
    ],
)
def test_a_recipe_that_cannot_work_is_one_sentence(recipe, says):
    with pytest.raises(ValueError, match=says):
        arm = recipe()
        Trainer(arm, [arm.all_hparams], [0])


def test_a_pretrained_model_trains_at_its_own_size():
    demo = for_pretrained(NAIVE)
    assert (demo.updates, demo.groups, demo.group_size, demo.grad_accumulation) == (24, 4, 16, 2)
    assert (demo.snapshots, demo.remat, demo.game.rounds, demo.all_hparams["learning_rate"]) == (None, "dots", 3, 3e-4)
    assert demo.learners == ("learner",) and demo.evaluate is not None and not demo.reference
    two = for_pretrained(TWO_MODELS)
    assert (two.updates, two.learners) == (24, ("seat_0", "seat_1"))
    assert [two.all_hparams[f"learning_rate/{name}"] for name in two.learners] == [3e-4, 3e-5]
    assert for_pretrained(TALK).game.talk and for_pretrained(TALK).budget == (8, 8, 24)
    assert Lora(32, 64.0, ("*",)) == LORA


@pytest.mark.parametrize("method", ["naive", "sum", "alignment"])
def test_the_method_is_the_advantage(method):
    arm = small_dilemma(3, ARMS[method])
    played = games(arm)
    episodes, reward = played.episodes, played.episodes.reward[..., 0] / 5
    of = (episodes.acted, episodes.group, 4)
    expected = {
        "naive": lambda: advantages.round_leave_one_out(reward, *of, gamma=0.9),
        "sum": lambda: advantages.round_leave_one_out(jnp.repeat(reward.sum(-1, keepdims=True), 2, -1), *of, gamma=0.9),
        "alignment": lambda: advantages.advantage_alignment(reward, *of, gamma=0.9, beta=0.5),
    }
    np.testing.assert_allclose(credited(arm, played).advantage, expected[method](), atol=1e-6)


@pytest.mark.slow
def test_the_reference_is_the_policy_before_training():
    """At first the divergence from it is 0, and its weight changes nothing; later both do."""
    assert not NAIVE.reference
    arm = small_dilemma(hparams={"kl": 1e-9, "learning_rate": 1e-2}, reference=True)
    trainer = Trainer(arm, [arm.all_hparams, arm.all_hparams | {"kl": 10.0}], [0, 0])
    state, seen = trainer.init(), []
    start = jax.tree.map(np.array, state.initial["learner"])
    for number in range(3):
        state, metrics = trainer.update(state, number)
        seen.append(np.asarray(metrics["kl/learner"]))
    np.testing.assert_allclose(seen[0], 0, atol=1e-9)
    assert seen[2].min() > 1e-6 and seen[2][1] < 0.7 * seen[2][0]
    jax.tree.map(np.testing.assert_array_equal, start, jax.tree.map(np.asarray, state.initial["learner"]))


@pytest.mark.long
def test_a_seat_has_its_own_weights_sampling_rate_and_evaluation():
    rates = {"learning_rate/seat_0": 1e-2, "learning_rate/seat_1": 1e-9}
    arm = small_dilemma(hparams=rates, seats=TWO_MODELS.seats, evaluate=partial(evaluate, group_size=2))
    models = {"seat_0": Model(), "seat_1": Model(sampling=Sampling(temperature=0.5))}
    trainer = Trainer(arm, [arm.all_hparams], [0], models)
    assert [policy_set.sampling[0].temperature for policy_set in trainer.policy_sets.values()] == [1.0, 0.5]
    state = trainer.init()
    before = jax.tree.map(np.array, state.learners.weights)
    found = arm.evaluate(trainer.parts)(trainer.weights(state, 0), jax.random.key(0))
    # in a round both earn 3, or one 5 and the other 0, or both 1
    total = 2 * (found["seat_0 against seat_1"] + found["seat_1 against seat_0"])
    assert set(np.round(total, 4)) <= {float(a + b) for a in (6, 5, 2) for b in (6, 5, 2)}
    assert found["seat_1 against always_defect"].max() <= 1 <= found["always_defect earns of seat_1"].min()
    state, _ = trainer.update(state, 0)
    moved = jax.tree.map(lambda a, b: float(abs(np.asarray(a) - b).max()), state.learners.weights, before)
    assert max(jax.tree.leaves(moved["seat_1"])) < 1e-8 and max(jax.tree.leaves(moved["seat_0"])) > 1e-3


def test_the_arms_of_the_study_differ_in_two_numbers():
    for arm in STUDY.arms.values():
        assert differences(STUDY.arms["naive"], arm) <= {"hparams"}
        assert {name for name, x in arm.hparams.items() if x != NAIVE.hparams[name]} <= {"joint", "beta"}
    assert list(STUDY.arms) == ["naive", "sum", "alignment"]
    pretrained = for_pretrained(STUDY.arms["sum"])
    assert (pretrained.snapshots, pretrained.seats, pretrained.game.rounds) == (None, (("learner", "learner"),), 3)


def test_the_evaluation_agrees_with_itself():
    """Points follow from cooperation against scripts whose moves are known, and cases divide the rounds."""
    trainer = Trainer(arm := small_dilemma(3), [arm.all_hparams], [0], "tiny")
    found = evaluate(trainer.parts, group_size=4)(trainer.weights(trainer.init(), 0), jax.random.key(0))
    cooperation = 1 - found["against always_defect"]  # in each game the share of its rounds
    assert 0 < cooperation.mean() < 1
    np.testing.assert_allclose(found["always_defect earns"], 1 + 4 * cooperation, atol=1e-6)
    given = found["against always_cooperate"]  # 3 a round for cooperation, 5 for defection
    np.testing.assert_allclose(found["always_cooperate earns"], 1.5 * (5 - given), atol=1e-5)
    gap = found["tit_for_tat earns"] - found["against tit_for_tat"]
    assert abs(gap).max() <= 5 / 3 + 1e-6  # it pays back all but the last
    for outcome in ("CD", "DD"):
        assert np.isfinite(found[f"P(cooperate) after {outcome}"]).any()
    count = (len(SCRIPTED) + 1) * 2 * 4  # opponents, labelings, games of each
    labels = [found[f"P(cooperate) called {label}"] for label in "AB"]
    assert labels[0].shape == (count,) and [np.isfinite(x).sum() for x in labels] == [count // 2] * 2
    assert set(np.unique(found["P(cooperate) first round"])) <= {0.0, 1.0}


@pytest.mark.slow
def test_three_updates_of_a_real_model_as_a_study(tmp_path):
    assert STUDY.method in with_a_real_model("social_dilemma", tmp_path)
