"""The programs that train recipes: lanes do not mix, credit and loss are what the recipe says, habits are imitated.

The long cases compile whole updates, most of them twice; the short ones count the programs of an update that they run.
The case of a long update is slow: it compiles the same program as the other, since XLA_FLAGS sets the level here.
"""

import dataclasses
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.teams.team_search import RouterSearch
from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.methods.population import society
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rl.returns import gae
from jaxmarl_llm.rollout.trajectory import gather_sampled
from jaxmarl_llm.runs.checkpoint import Checkpoints
from jaxmarl_llm.runs.loop import resume
from jaxmarl_llm.studies.identity import describe
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.programs import RunMap
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Advantages, Snapshots, TinySize
from jaxmarl_llm.training.scoring import score_policies
from jaxmarl_llm.training.setup import Model
from jaxmarl_llm.training.trainer import Trainer

RECIPE = Recipe(
    SixTurns(turns=2),
    seats=(("a", "b"), ("b", "a")),
    advantage=estimator(advantages.rloo, per_agent=True),
    groups=2,
    group_size=4,
    updates=2,
    size=TinySize(layers=1),
)
ALONE = dataclasses.replace(RECIPE, seats=(("a", "a"),))  # one policy: half the program
ADAPTED = Model("tiny_base", Lora(4, 8.0))


def trained(recipe, lanes, updates=2):
    trainer = Trainer(recipe, [hparams for hparams, _ in lanes], [seed for _, seed in lanes], "tiny")
    state, metrics = trainer.init(), []
    for number in range(updates):
        state, found = trainer.update(state, number)
        metrics.append(found)
    return trainer, state, metrics


@pytest.mark.long
@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_has_the_same_bits_alone_and_in_any_company(long, monkeypatch):
    """Neither other runs, nor the number of updates asked for, nor the cores change a bit of weights and metrics."""
    monkeypatch.setattr("jaxmarl_llm.training.trainer.LONG", 0 if long else 10**9)
    fast = {"learning_rate": 1e-2}
    lanes = [(ALONE.all_hparams, 3), (ALONE.all_hparams | fast, 3), (ALONE.all_hparams | fast, 4)]
    of_lane = lambda found, lane: jax.tree.map(lambda x: np.asarray(x[lane]), (found[1].learners, found[2]))
    alone = trained(ALONE, lanes[2:])
    together = trained(dataclasses.replace(ALONE, updates=50), lanes)
    monkeypatch.setattr("jaxmarl_llm.training.trainer.SHARED", 0)
    monkeypatch.setattr("jaxmarl_llm.devices.surroundings.usable_cores", lambda: 2)
    shared = trained(ALONE, [lanes[2], *lanes])
    assert len(shared[0].cores) == 2 and not (alone[0].cores or together[0].cores)
    for found, lane in ((together, 2), (shared, 0), (shared, 3)):
        jax.tree.map(np.testing.assert_array_equal, of_lane(alone, 0), of_lane(found, lane))
    assert all(x.sharding.device_set == {jax.devices()[0]} for x in jax.tree.leaves(shared[1]))
    leaf = jax.tree.leaves(together[1].learners.weights)[0]
    assert not np.allclose(leaf[0], leaf[1])


@pytest.mark.parametrize(("width", "runs"), [(1, 3), (2, 4), (2, 5), (4, 1)])
def test_runs_are_mapped_in_parts_of_one_width(width, runs):
    x = jnp.arange(3.0 * runs).reshape(runs, 3)
    mapped = jax.jit(lambda x: RunMap(width)(lambda x: (x.sum(), x[:0], x.astype(jnp.int32)), x))
    sums, nothing, whole = mapped(x)
    np.testing.assert_array_equal(sums, x.sum(1))
    np.testing.assert_array_equal(whole, x)
    assert nothing.shape == (runs, 0) and "while(" in mapped.lower(x).compile().as_text()


@pytest.mark.parametrize(
    ("models", "ahead", "cores"),
    [
        pytest.param("tiny", True, 1, marks=pytest.mark.long),
        ("tiny", False, 1),
        pytest.param({"a": ADAPTED}, False, 1, marks=pytest.mark.long),
        pytest.param("tiny", True, 2, marks=pytest.mark.long),
    ],
)
def test_what_begins_and_updates_a_run_is_traced_and_compiled_once_ahead_or_not(
    models, ahead, cores, caplog, capsys, monkeypatch
):
    """And the waits for it are explained once each."""
    monkeypatch.setattr("jaxmarl_llm.devices.compiling.PATIENCE", 0.0)
    monkeypatch.setattr("jaxmarl_llm.training.trainer.SHARED", 0 if cores > 1 else 10**9)
    monkeypatch.setattr("jaxmarl_llm.devices.surroundings.usable_cores", lambda: cores)
    trainer = Trainer(ALONE, [ALONE.all_hparams] * cores, range(cores), models)
    assert len(trainer.cores) == (cores if cores > 1 else 0)
    count = lambda what: sum(what in record.getMessage() for record in caplog.records)
    jax.config.update("jax_log_compiles", True)  # in all threads
    try:
        if ahead:
            trainer.compile_update()
            assert count("compilation of jit(update)") == cores and count("compilation of jit(init)") == 0
        state = trainer.init()
        trainer.init()
        for number in range(2):
            state, metrics = trainer.update(state, number)
    finally:
        jax.config.update("jax_log_compiles", False)
    for name, times in (("init", 1), ("update", cores)):  # each core has a program
        assert (count(f"compilation of jit({name})"), count(f"tracing {name} for jit")) == (times, 1), name
    assert trainer.metric_names() == {*metrics}
    waits = capsys.readouterr().err
    assert waits.count("compiling the update took") == waits.count("making the first policies took") == 1


@pytest.mark.long
def test_a_schedule_is_followed_update_by_update():
    """A constant one gives the bits of the number itself; one that falls to 0 stops there, and stays there."""
    rate = ALONE.all_hparams["learning_rate"]
    constant, falling = optax.constant_schedule(rate), optax.piecewise_constant_schedule(rate, {1: 0.0})
    arms = [dataclasses.replace(ALONE, updates=2, hparams={"learning_rate": x}) for x in (rate, constant, falling)]
    assert arms[2].all_hparams["learning_rate"] == pytest.approx((rate, 0)) and arms[0].structure == arms[2].structure
    runs = [(arm.all_hparams, 3) for arm in arms]  # one program for both numbers of updates
    (_, state, _), (_, once, _) = trained(arms[0], runs, 3), trained(arms[0], runs, 1)
    for leaf, first in zip(*(jax.tree.leaves(run.learners.weights) for run in (state, once)), strict=True):
        np.testing.assert_array_equal(leaf[0], leaf[1])
        np.testing.assert_array_equal(leaf[2], first[0])
        assert not np.array_equal(leaf[0], first[0])
    described = [describe(arm)["hparams"]["learning_rate"] for arm in arms]
    assert described[0] == rate and described[1] == [pytest.approx(rate)] * 2 and described[2][1] == 0


@pytest.mark.long
def test_each_policy_learns_from_its_own_tokens():
    """A credit that pays seat 0 alone leaves the policy in seat 1 where it is, whatever the line-up."""
    once = dataclasses.replace(
        RECIPE,
        seats=(("a", "b"),),
        hparams={"entropy": 0.0},
        advantage=lambda experience, hparams, state: Advantages(
            experience.episodes.acted * jnp.array([1.0, 0.0])[None, None, :] * experience.episodes.reward[..., 0]
        ),
    )
    trainer = Trainer(once, [once.all_hparams], [0], "tiny")
    state = trainer.init()
    before = jax.tree.map(np.array, state.learners.weights)
    state, _ = trainer.update(state, 0)
    moved = {
        name: max(
            float(np.abs(x - y).max())
            for x, y in zip(jax.tree.leaves(before[name]), jax.tree.leaves(state.learners.weights[name]), strict=True)
        )
        for name in before
    }
    assert moved["a"] > 1e-4 and moved["b"] == 0


def by_turn(experience, hparams, state):
    episodes = experience.episodes
    return Advantages(*gae(episodes.reward.sum(-1), experience.turn_value, episodes.acted, gamma=1.0, lam=1.0))


@pytest.mark.long
def test_a_critic_is_asked_before_the_update_and_taught_the_target():
    def teach(experience, hparams, state):
        """The policy is left alone; the critic is to expect the return, which is 2 more in the second seat."""
        found = by_turn(experience, hparams, state)
        np.testing.assert_array_equal(
            *np.broadcast_arrays(experience.turn_value.shape, experience.episodes.acted.shape)
        )
        return Advantages(jnp.zeros_like(found.advantage), found.value_target)

    hparams = {"value": 1.0, "entropy": 0.0, "learning_rate": 1e-2}
    recipe = dataclasses.replace(ALONE, advantage=teach, critic=True, hparams=hparams, group_size=16)
    _, state, metrics = trained(recipe, [(recipe.all_hparams, 0)], 60)
    assert set(state.learners.weights["a"]) == {"policy", "value"}
    errors = [float(m["value_error/a"][0]) for m in metrics]
    assert errors[0] > 1.5 and np.mean(errors[-5:]) < 0.5


@pytest.mark.long
def test_the_loss_is_the_recipes():
    seen = []

    def loss(scores, batch, hparams):
        seen.append(sorted(hparams))
        total, metrics = losses.ppo_clip(scores.logp, batch.behaviour_logp, batch.advantage, batch.mask)
        return Mean(total.sum * 0, total.count), metrics

    still = dataclasses.replace(ALONE, loss=loss, hparams={"own": 1.0})
    trainer, state, metrics = trained(still, [(still.all_hparams, 0)], 1)
    assert seen and "own" in seen[0]
    start = trainer.init().learners.weights
    for a, b in zip(jax.tree.leaves(start), jax.tree.leaves(state.learners.weights), strict=True):
        np.testing.assert_array_equal(a, b)
    assert metrics[0]["ratio/a"][0] == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_buckets_change_nothing():
    """Of games in which a seat speaks once or twice, of runs side by side; all but rounding."""
    still = {"learning_rate": 1e-6}  # Adam makes a step of full length of a gradient that is rounding
    recipe = dataclasses.replace(
        ALONE, game=KuhnPoker(), advantage=by_turn, critic=True, hparams=still, groups=4, grad_accumulation=4
    )
    lanes = [(recipe.all_hparams, seed) for seed in range(3)]
    (_, _, whole), (trainer, _, cut) = (
        trained(dataclasses.replace(recipe, buckets=buckets), lanes, 1) for buckets in (1, 3)
    )
    for name, value in whole[0].items():
        np.testing.assert_allclose(value, cut[0][name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert trainer.recipe.buckets == 3 and whole[0]["gradient_norm/a"].min() > 0.01


@pytest.mark.slow
def test_games_played_ahead_come_from_weights_one_update_old(tmp_path):
    """What was sampled has the log-probabilities of the weights before; the rest is as if one device did it in turn."""
    recipe = dataclasses.replace(ALONE, groups=4, hparams={"learning_rate": 1e-2})
    trainer = Trainer(recipe, [recipe.all_hparams], [0], "tiny", "data=4", "fsdp=2,tensor=2")
    alone = Trainer(recipe, [recipe.all_hparams], [0], "tiny")
    one, older = alone.init(), None
    with sharding.use(trainer.mesh):
        state = trainer.init()
    for number in range(3):
        present = jax.tree.map(jnp.copy, one.learners.weights)
        played = alone.programs.training_games({}, alone.keys, older or present, number)
        np.testing.assert_array_equal(played.episodes.action, state.trajectory.episodes.action)
        lane = jax.tree.map(lambda x: x[0], played)
        sampled = gather_sampled(lane.rows["a"], lane.episodes.legal, alone.rollout.max_sampled_tokens("a"))
        scored = [
            score_policies(alone.parts, jax.tree.map(lambda x: x[0], own), "a", lane.rows["a"], sampled)[0].logp
            for own in (present, older or present)
        ]
        np.testing.assert_allclose(scored[1], sampled.behaviour_logp, atol=1e-5)
        assert np.allclose(scored[0], sampled.behaviour_logp, atol=1e-3) == (number == 0)
        one, expected = alone.programs.learn({}, alone.keys, alone.hparams_at(number), one, played, number)
        with sharding.use(trainer.mesh):
            state, metrics = trainer.update(state, number)
        assert metrics["stale"].tolist() == [min(number, 1)]
        for name in expected:
            np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
        older = present
        if number == 0:  # a checkpoint holds the games in flight
            with Checkpoints(tmp_path, {}) as checkpoints, sharding.use(trainer.mesh):
                checkpoints.save(1, state)
                checkpoints.wait()
                assert resume(trainer, checkpoints)[0] == 1
                state = checkpoints.restore(state)[1]
    devices = [{d for x in jax.tree.leaves(tree) for d in x.devices()} for tree in (state.learners, state.trajectory)]
    assert devices[0] == devices[1] == set(trainer.mesh.devices.flat)
    assert not devices[0] & set(trainer.rollout_mesh[0].devices.flat)
    with sharding.use(trainer.mesh):  # an update that is left out makes no version
        episodes = state.trajectory.episodes
        played = state.trajectory.replace(episodes=episodes.replace(reward=episodes.reward * jnp.nan))
        state, metrics = trainer.update(state.replace(trajectory=played), 3)
        assert metrics["stale"].tolist() == [1] and metrics["skipped"].tolist() == [1]
        assert trainer.update(state, 4)[1]["stale"].tolist() == [0]
    with pytest.raises(ValueError, match="without snapshots"):
        snapshots = dataclasses.replace(recipe, seats=(("a", "snapshot"),), snapshots=Snapshots(2))
        Trainer(snapshots, [snapshots.all_hparams], [0], "tiny", "data=4", "data=4")


@pytest.mark.long
def test_a_prior_is_imitated_in_each_seat():
    """The hasty router answers at once; who knows nothing sends the searcher in half of the cases."""
    recipe = Recipe(
        RouterSearch(keys=2, values=2, turns=4),
        seats=(("one", "one", "one"),),
        advantage=RECIPE.advantage,
        warm_start=(("hasty", "random", "random"),),
        warm_start_updates=40,
        groups=8,
        group_size=8,
        size=TinySize(layers=1),
    )
    calls = []
    for warm_start in (recipe.warm_start, ()):
        trainer = Trainer(dataclasses.replace(recipe, warm_start=warm_start), [recipe.all_hparams], [0], "tiny")
        episodes = trainer.play(trainer.init()).episodes
        assert episodes.valid[episodes.acted].all()
        calls.append(np.asarray(episodes.acted[0].sum(1).mean(0)))
    assert calls[0][1] < 0.6 * calls[1][1] and calls[0][2] > 0.9


def test_settings_that_cannot_work_are_one_sentence():
    with pytest.raises(ValueError, match="3 groups do not divide over the 2 line-ups"):
        Trainer(dataclasses.replace(RECIPE, groups=3), [RECIPE.all_hparams], [0], "tiny")
    with pytest.raises(ValueError, match="group_size must be at least 1"):
        Trainer(dataclasses.replace(RECIPE, group_size=0), [RECIPE.all_hparams], [0], "tiny")


@pytest.mark.long
def test_a_run_is_resumed_without_a_second_state(tmp_path, monkeypatch):
    """Bit for bit, onto the mesh, and nothing is begun anew."""
    trainer = Trainer(ALONE, [ALONE.all_hparams], [0], "tiny", "fsdp=2")
    with sharding.use(trainer.mesh), Checkpoints(tmp_path, {}) as checkpoints:
        assert resume(trainer, checkpoints)[0] == 0
        state, _ = trainer.update(trainer.init(), 0)
        checkpoints.save(1, state)
        checkpoints.wait()
        monkeypatch.setattr(trainer, "init", None)
        start, again = resume(trainer, checkpoints)
    assert start == 1
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(again), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
        np.testing.assert_array_equal(a, b)


@pytest.mark.long
def test_a_trainer_that_is_dropped_frees_its_programs_and_its_model():
    """No cache of JAX holds them, whatever was traced, lowered or compiled."""
    trainer = Trainer(ALONE, [ALONE.all_hparams], [0], {"a": ADAPTED})
    state = trainer.init()
    trainer.lower_update()
    trainer.programs.games(trainer.rollout).lower(trainer.base, trainer.keys, state)
    held = (trainer, trainer.programs, trainer.functions, trainer.rollout, *jax.tree.leaves(trainer.base))
    known = [weakref.ref(x) for x in held]
    assert len(known) > 10 and all(ref() is not None for ref in known)
    del trainer, state, held
    gc.collect()
    assert [ref() for ref in known] == [None] * len(known)


def test_a_state_that_an_update_has_taken_is_named():
    """By every method that reads a state; so is an object that is no state. No program is compiled."""
    recipe = dataclasses.replace(RECIPE, seats=(("a", "b"),))
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    used = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype)), trainer.abstract())
    jax.tree.leaves(used)[-1].delete()
    calls = {
        "update": lambda state: trainer.update(state, 1),
        "replay_update": lambda state: trainer.replay_update(state, 1),
        "play": trainer.play,
        "examine": lambda state: trainer.examine(state, [0]),
        "weights": lambda state: trainer.weights(state, 0),
        "generation": lambda state: society(trainer, survivors=1)(state, 1),
    }
    for call in calls.values():
        with pytest.raises(ValueError, match=r"^This state went into an earlier update, .* again with init\(\)\.$"):
            call(used)
        with pytest.raises(ValueError, match=r"^A state is wanted, .* got a NoneType\.$"):
            call(None)
        with pytest.raises(ValueError, match=r"got a tuple: update\(\) returns \(state, metrics\)\.$"):
            call((used, {}))
