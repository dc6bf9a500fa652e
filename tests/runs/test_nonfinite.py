"""Faults put into rewards, gradients and weights: updates are left out or the run ends, other lanes do not notice,
checkpoints stay good, and what was played is kept to look at.

The long cases compile whole updates with a fault; `test_left_out` compiles one, and `test_optimiser` skips a gradient.
"""

import dataclasses
import json
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.self_play.spiral import running
from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.runs.checkpoint import Checkpoints
from jaxmarl_llm.runs.health import RULES
from jaxmarl_llm.runs.log import RunLog
from jaxmarl_llm.runs.loop import train
from jaxmarl_llm.runs.nonfinite import save_nonfinite, transcript
from jaxmarl_llm.studies import registry, runner
from jaxmarl_llm.studies.cli import execute
from jaxmarl_llm.studies.study import Paper, Study
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import TinySize
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.training.watch import NonFiniteError
from tests.support.dilemma import small_dilemma
from tests.support.seeds import seeds_of
from tests.support.toys import Erratic

RECIPE = Recipe(
    SixTurns(turns=2),
    seats=(("a", "a"),),
    advantage=estimator(advantages.rloo, per_agent=True),
    groups=2,
    group_size=4,
    size=TinySize(layers=1),
)
DEEP = "a/policy/layers"


def trainer_of(recipe, seeds=1):
    return Trainer(recipe, [recipe.all_hparams] * seeds, range(seeds), "tiny")


@cache
def sound():
    return trainer_of(RECIPE)


@cache
def pair():
    return trainer_of(RECIPE, seeds=2)


def learn(trainer, state, number, spoil=lambda reward: reward):
    """An update from games whose rewards [runs, B, T, A, C] were changed after they were played."""
    played = trainer.programs.training_games({}, trainer.keys, jax.tree.map(jnp.copy, state.learners.weights), number)
    spoilt = spoil(played.episodes.reward)
    played = played.replace(episodes=played.episodes.replace(reward=spoilt))
    return trainer.programs.learn({}, trainer.keys, trainer.hparams_at(number), state, played, number)


def host(tree):
    return jax.tree.map(np.array, tree)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def finite(tree):
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


def run(trainer, out, steps, state=None, start=0, patience=3):
    """Training from a state or a checkpoint; the log says how it ended."""
    checkpoints = Checkpoints(out / "checkpoints", {}, resume=True)
    if state is None:
        start, state = checkpoints.restore(trainer.init()) or (0, trainer.init())
    lanes = [f"seed {i}" for i in range(len(trainer.keys))]
    with RunLog(out, trainer.seeds, {}, tell=print) as log:
        log.truncate(start)
        with save_nonfinite(trainer, lanes, out):
            step = lambda number, state: trainer.update(state, number)
            settings = {"log": log, "checkpoints": checkpoints, "every": 2, "patience": patience}
            return train(step, state, start=start, steps=steps, **settings)


@pytest.mark.long
def test_a_game_that_pays_what_is_not_finite_ends_the_run(tmp_path, capsys):
    run(sound(), tmp_path, 4)
    good = host(Checkpoints(tmp_path / "checkpoints", {}, resume=True).restore(sound().init())[1])
    broken = trainer_of(dataclasses.replace(RECIPE, game=Erratic(RECIPE.game, float("nan"))))
    with pytest.raises(
        NonFiniteError, match=r"seed 0 were skipped.*episodes/reward.*The last one's games are"
    ) as raised:
        run(broken, tmp_path, 99)
    assert raised.value.step in (6, 7)
    step, state = Checkpoints(tmp_path / "checkpoints", {}, resume=True).restore(sound().init())
    assert step == 6 and finite(state.learners.weights)
    assert same(good.learners.weights, state.learners.weights) and int(state.learners.skipped[0]) == 2
    home = tmp_path / f"nonfinite-{raised.value.step}"
    report = json.loads((home / "report.json").read_text())
    assert "episodes/reward" in report["not finite"]["games and advantages"]
    assert any(name.startswith(DEEP) for name in report["not finite"]["gradient norms"])
    assert set(report["not finite"]) <= {"games and advantages", "gradient norms", "metrics"}
    arrays = {name: x for name, x in np.load(home / "batch.npz").items()}  # none is saved as an object
    np.testing.assert_array_equal(arrays["episodes/reward"].shape, (8, 2, 2, 2))
    assert not np.isfinite(arrays["episodes/reward"]).any()
    assert arrays["a/sampled/advantage"].shape == arrays["a/sampled/mask"].shape
    assert "You play first." in (home / "games.md").read_text()
    ended = json.loads((tmp_path / "run.json").read_text())["ended"]
    assert ended["reason"] == "not finite" and str(home) in ended["sentence"]
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "an update was skipped: a loss, a gradient or new weights were not finite, or the rewards of every game" in told
    )
    lines = [json.loads(line) for line in (tmp_path / "health.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["metric"] == "skipped"] == [4]
    _, finished = run(sound(), tmp_path, 8)  # and goes on once the fault is mended
    assert finished


def poisoned(scores, batch, hparams):
    """A loss of the same value whose gradient is NaN."""
    total, metrics = losses.ppo(scores, batch, hparams)
    return Mean(total.sum + jnp.sqrt(0 * scores.logp.sum()), total.count), metrics


@pytest.mark.long
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_named(tmp_path):
    trainer = trainer_of(dataclasses.replace(RECIPE, loss=poisoned, groups=4, epochs=2, minibatches=2))
    state = trainer.init()
    before = host(state.learners.weights)
    with pytest.raises(NonFiniteError, match="gradient norms: ") as raised:
        run(trainer, tmp_path, 99, state, patience=1)
    assert same(before, raised.value.state.learners.weights)
    (home,) = tmp_path.glob("nonfinite-*")
    report = json.loads((home / "report.json").read_text())
    assert set(report["not finite"]) == {"gradient norms"}
    assert any(name.startswith(DEEP) for name in report["not finite"]["gradient norms"])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["skipped"] == 4 and line["loss"] is not None for line in lines)


@pytest.mark.long
def test_faults_of_one_lane_are_not_those_of_another():
    """Bit for bit: the program is the same, and what differs are the rewards of lane 1."""
    trainer, states = pair(), []
    for fault in (0.0, jnp.nan):
        state, metrics = trainer.init(), {}
        start = host(state.learners.weights)
        for number in range(3):
            state, metrics = learn(trainer, state, number, lambda reward, fault=fault: reward.at[1].add(fault))
        states.append(host((state.learners.weights, metrics)))
    lane = lambda tree, i: jax.tree.map(lambda x: x[i], tree)
    assert same(lane(states[0], 0), lane(states[1], 0))
    assert same(lane(start, 1), lane(states[1][0], 1)) and not same(lane(start, 1), lane(states[0][0], 1))
    assert states[1][1]["skipped"].tolist() == [0, 1]


@pytest.mark.long
def test_faults_in_a_weight_are_found(tmp_path):
    trainer = pair()

    def struck(state):
        leaf = state.learners.weights["a"]["policy"]["layers"]
        name = sorted(leaf)[0]
        hit = jax.tree.map(lambda x: x.at[1, 0].set(jnp.nan), leaf[name])
        weights = dict(state.learners.weights)
        weights["a"] = {**weights["a"], "policy": {**weights["a"]["policy"], "layers": {**leaf, name: hit}}}
        return state.replace(learners=state.learners.replace(weights=weights))

    with pytest.raises(NonFiniteError, match=f"seed 1 were skipped.*weights: {DEEP}"):
        run(trainer, tmp_path, 99, struck(trainer.init()), patience=2)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {(row["seed"], row["skipped"]) for row in rows} == {(0, 0), (1, 1)}
    assert json.loads(next(tmp_path.glob("nonfinite-*/report.json")).read_text())["runs"] == ["seed 1"]


@pytest.mark.long
def test_faults_do_not_enter_running_baselines():
    """A skipped update leaves the state of spiral's estimator as it was, and learning continues."""
    recipe = dataclasses.replace(
        RECIPE,
        advantage=partial(running, roles=1),
        init_state=lambda parts, key: advantages.init_role_baseline(1),
        hparams={"decay": 0.5},
    )
    trainer = trainer_of(recipe)
    state, metrics = learn(trainer, trainer.init(), 0, lambda reward: reward * jnp.nan)
    assert metrics["skipped"][0] == 1 and not state.state.known.any() and finite(host(state.state))
    state, metrics = learn(trainer, state, 1)
    assert metrics["skipped"][0] == 0 and state.state.known.all() and finite(host(state.state))
    before = host(state.state)
    state, metrics = learn(trainer, state, 2, lambda reward: reward * jnp.nan)
    assert metrics["skipped"][0] == 1 and same(before, host(state.state))


@pytest.mark.long
def test_an_update_can_be_looked_at_again():
    trainer = pair()
    state, _ = trainer.update(trainer.init(), 0)
    played, batch, again = trainer.replay_update(state, 1)
    _, metrics = trainer.update(state, 1)
    for name in set(again) & set(metrics):
        np.testing.assert_allclose(again[name], metrics[name], rtol=1e-3, atol=1e-5, err_msg=name)
    parts = {name: x for name, x in again.items() if name.startswith("gradient_norm/a/")}
    assert len(parts) > 5 and set(again) - set(parts) > {"loss", "gradient_norm/a"}
    np.testing.assert_array_equal(played.rows["a"].tokens, batch["a"].rows.tokens)


@pytest.mark.long
def test_what_is_watched_is_measured():
    """Rules are on metrics that there are: a change of their names would silence them. Games on the host alone have
    `cut_off`, which their tests read."""
    _, ppo = sound().update(sound().init(), 0)
    trainer = trainer_of(small_dilemma(hparams={"kl": 1.0}, reference=True))
    _, truncated = jax.eval_shape(
        lambda state: trainer.programs.update({}, trainer.keys, trainer.hparams_at(0), state, jnp.int32(0)),
        trainer.abstract(),
    )
    names = {name.split("/")[0] for name in (*ppo, *truncated)}
    assert {rule.metric for rule in RULES} - {"cut_off"} <= names
    assert float(ppo["length/a"][0]) == 1 and float(ppo["repeated/a"][0]) == 0


@pytest.mark.commands
def test_a_study_with_faults_ends_with_3_and_a_sentence(tmp_path, monkeypatch, capsys):
    arms = {"sound": RECIPE, "broken": dataclasses.replace(RECIPE, game=Erratic(RECIPE.game, float("inf")))}
    paper = Paper("None", "https://example.org", 2026, checked="abstract")
    study = Study(
        question="None?", claim="None.", arms=arms, method="sound", metrics=("return",), predictions=(), paper=paper
    )
    entry = registry.Entry("toy", __name__, study)
    settings = runner.Settings("toy", seeds=2, first_seed=3, updates=9, checkpoint_every=2, max_skipped=3, out=tmp_path)
    with pytest.raises(SystemExit) as ended:
        execute(lambda stop, console: runner.run(entry, settings, stop, console))
    assert ended.value.code == 3
    said = capsys.readouterr()
    assert "error: Training stopped at update" in said.err and "broken, seed 3 and broken, seed 4" in said.err
    assert "broken: Warning, update 1: skipped of seed 3, 4 is 1, 1" in " ".join(said.out.split())
    reasons = {arm: json.loads((tmp_path / arm / "run.json").read_text())["ended"]["reason"] for arm in arms}
    assert reasons == {"sound": "finished", "broken": "not finite"}
    assert list(tmp_path.glob("nonfinite-*/batch.npz"))
    (report,) = tmp_path.glob("nonfinite-*/report.json")
    assert json.loads(report.read_text(encoding="utf-8"))["runs"] == ["broken, seed 3", "broken, seed 4"]
    assert set().union(*seeds_of(tmp_path).values()) == {3, 4}


def spoilt_in_part(scores, batch, hparams):
    """A loss that is not finite for the half of the games in which the first seat got more than the mean."""
    total, metrics = losses.ppo(scores, batch, hparams)
    bad = batch.token.sum() % 2 == 0
    return Mean(total.sum * jnp.where(bad, jnp.nan, 1.0), total.count), metrics


@pytest.mark.slow
def test_faults_in_some_minibatches_are_said_to_be_looked_at_afterwards(tmp_path):
    recipe = dataclasses.replace(RECIPE, loss=spoilt_in_part, groups=8, minibatches=8)
    trainer = trainer_of(recipe)
    with pytest.raises(NonFiniteError, match="Games of the weights after it are in") as raised:
        run(trainer, tmp_path, 99, patience=1)
    assert 0 < raised.value.skipped < 8


@pytest.mark.long
def test_who_plays_is_shown():
    trainer = trainer_of(dataclasses.replace(RECIPE, seats=(("a", "b"), ("b", "a"))))
    played = jax.tree.map(lambda x: x[0], trainer.play(trainer.init()))
    text = transcript(trainer, played, 0)
    assert "Seat 0 (a)" in text and "Seat 1 (b)" in text and "You play first." in text
    assert "Seat 0 (b)" in transcript(trainer, played, 4)  # the second group's line-up
