from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from toys import FOREIGN, ByteTokenizer, Whispers

from jaxmarl_llm import adapters, credit, losses, model, policy, sharding
from jaxmarl_llm.adapters import Lora
from jaxmarl_llm.environments.matrix_games import MatrixGame
from jaxmarl_llm.masked import Mean
from jaxmarl_llm.model import Config
from jaxmarl_llm.rollout import Rollout
from jaxmarl_llm.team import Family, Lineup, strings
from jaxmarl_llm.tokens import SymbolTokenizer
from jaxmarl_llm.trajectory import per_token, spoken
from jaxmarl_llm.update import Optimiser, update

GAME = MatrixGame(rounds=3)
TOKENIZER = SymbolTokenizer(strings(GAME))
CONFIG = Config(TOKENIZER.vocab_size, 16, 24, 1, 2, 1, 6, 32)
LORA = Lora(2, 4.0, ("q_proj", "v_proj", "down_proj"))
LINEUP = Lineup((("a", "b"), ("b", "a"), ("a", "a"), ("b", "grim"), ("grim", "b")) * 2, members=2)
ROLLOUT = Rollout(GAME, {"lora": Family(TOKENIZER, ("a", "b"), CONFIG, LORA)}, LINEUP)
SIDE = ROLLOUT.sides["lora"]
OPENINGS, ROWS = len(SIDE.places), len(SIDE.policy)
# so large an epsilon that Adam's step is a smooth function of the gradient
OPTIMISER = Optimiser(eps=1e-2, minibatches=2)


def start() -> tuple[dict, dict]:
    """A base that nobody trains, and two adapters that learn, neither of them zero."""
    base = model.init(CONFIG, jax.random.key(0))
    generator = np.random.default_rng(0)
    shape = jax.eval_shape(partial(adapters.init, lora=LORA), jax.random.key(0), base)
    return base, {
        name: jax.tree.map(lambda x: jnp.asarray(0.3 * generator.normal(size=x.shape), jnp.float32), shape)
        for name in "ab"
    }


def loss(base: dict, weights: dict, batch: tuple) -> tuple[Mean, dict[str, Mean]]:
    rows, said, advantage = batch
    adapted = adapters.concatenate([weights["a"], weights["b"]], [LORA] * 2)
    scores = policy.score(CONFIG, base, rows, said, SIDE.tables, adapted, rows.policy)
    return losses.alignment(scores.logp, said.behaviour, advantage, scores.entropy, said.where)


@jax.jit
def whole_step(base, learners, key):
    """Rollout, spoken tokens, credit, loss with its gradient, update: everything a step of training does."""
    weights = learners.weights
    trajectory = ROLLOUT({"lora": {"params": base, "adapters": (weights["a"], weights["b"])}}, key)
    episodes, rows = trajectory.episodes, trajectory.rows["lora"]
    reward, acted = episodes.reward[..., 0], episodes.acted
    advantage = credit.advantage_alignment(reward, acted, episodes.group, len(LINEUP.seats), gamma=0.9, beta=0.5)
    said = spoken(rows, episodes.legal, ROLLOUT.most_spoken("lora"))
    batch = rows, said, per_token(advantage, rows, said)
    value, gradient = jax.value_and_grad(lambda weights: loss(base, weights, batch)[0].value)(weights)
    learners, metrics = update(OPTIMISER, partial(loss, base), learners, batch, OPENINGS, jnp.float32(0.01), key)
    return trajectory, value, gradient, learners, metrics


def relative(actual, expected, tolerance: float = 1e-5) -> None:
    """Every leaf agrees, relative to its norm."""
    for (path, a), b in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b), jax.tree_util.keystr(path)


def test_eight_devices_agree_with_one():
    base, weights = start()
    learners, key = OPTIMISER.init(weights), jax.random.key(7)
    alone, *expected = whole_step(base, learners, key)
    mesh = sharding.data_mesh(8)
    sharding.check_groups(mesh, OPENINGS)
    with jax.set_mesh(mesh):
        inputs = sharding.replicate((base, learners, key), mesh)
        assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(inputs))
        trajectory, *found = whole_step(*inputs)
    rows = trajectory.rows["lora"]
    for field in ("tokens", "length", "mine", "turn", "state", "left"):
        np.testing.assert_array_equal(getattr(rows, field), getattr(alone.rows["lora"], field), err_msg=field)
    np.testing.assert_allclose(rows.logp, alone.rows["lora"].logp, atol=1e-5)
    np.testing.assert_array_equal(trajectory.episodes.action, alone.episodes.action)
    assert len(np.unique(trajectory.episodes.action.reshape(LINEUP.episodes, -1), axis=0)) > 8  # games differ

    parts = rows.tokens.addressable_shards
    assert len({part.device for part in parts}) == 8
    assert sorted(part.index[0].indices(ROWS) for part in parts) == [
        (start, start + ROWS // 8, 1) for start in range(0, ROWS, ROWS // 8)
    ]

    (value, gradient, after, metrics), (one_value, one_gradient, one_after, one_metrics) = found, expected
    relative(value, one_value)
    relative(gradient, one_gradient)
    relative(after.weights, one_after.weights)
    for name in one_metrics:  # a divergence is a difference of nearly equal numbers
        np.testing.assert_allclose(metrics[name], one_metrics[name], rtol=1e-5, atol=1e-7, err_msg=name)
    assert after.skipped == 0 and min(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) > 0


@pytest.mark.slow
def test_messages_between_tokenizers_cross_devices():
    families = {
        name: Family(tokenizer, (name,), Config(tokenizer.vocab_size, 16, 24, 1, 2, 1, 8, 256))
        for name, tokenizer in (("own", ByteTokenizer()), ("theirs", ByteTokenizer(FOREIGN, shuffle=1)))
    }
    game = Whispers(np.ones((2, 3, 3), bool), turns=2)
    rollout = Rollout(game, families, Lineup((("own", "theirs", "own"),) * 8, 1), 6)
    weights = {n: {"params": model.init(f.config, jax.random.key(0))} for n, f in families.items()}
    run = jax.jit(rollout, compiler_options={"xla_backend_optimization_level": 0})
    alone, mesh = run(weights, jax.random.key(1)), sharding.data_mesh(8)
    with jax.set_mesh(mesh):
        split = run(*sharding.replicate((weights, jax.random.key(1)), mesh))
    for name, rows in split.rows.items():
        assert len(rows.tokens.sharding.device_set) == 8 and alone.cut[name] == split.cut[name] > 0
        for field in ("tokens", "length", "mine", "turn"):
            np.testing.assert_array_equal(getattr(rows, field), getattr(alone.rows[name], field))


def test_rows_are_left_alone_without_a_mesh_or_on_one_device():
    x = jnp.arange(16.0)
    assert sharding.rows(x) is x
    with jax.set_mesh(sharding.data_mesh()):
        assert sharding.rows(x) is x
    mesh = sharding.data_mesh(4)
    with jax.set_mesh(mesh):
        split = jax.jit(sharding.rows)(x).sharding
    assert split.is_equivalent_to(NamedSharding(mesh, PartitionSpec("data")), 1)


@pytest.mark.parametrize("devices", [0, 9])
def test_more_devices_than_there_are_are_refused(devices):
    with pytest.raises(ValueError, match=f"data mesh of {devices} devices was asked for, but 8 are here"):
        sharding.data_mesh(devices)


def test_openings_that_do_not_divide_over_the_mesh_are_refused():
    mesh = sharding.data_mesh(8)
    sharding.check_groups(mesh, 16)
    with pytest.raises(ValueError, match=r"^A batch of 12 openings .* does not divide over 8 devices .*multiple"):
        sharding.check_groups(mesh, 12)
