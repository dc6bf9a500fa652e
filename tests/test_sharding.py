from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxmarl_llm import adapters, credit, losses, model, policy, sharding
from jaxmarl_llm.adapters import Lora
from jaxmarl_llm.environments.matrix_games import MatrixGame
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
FAMILIES = {"full": Family(TOKENIZER, ("a",), CONFIG), "lora": Family(TOKENIZER, ("b", "c"), CONFIG, LORA)}
LINEUP = Lineup((("a", "b"), ("c", "a"), ("b", "a"), ("a", "c")) * 2, members=2)
OPENINGS = len(LINEUP.seats)  # of each family
ROLLOUT = Rollout(GAME, FAMILIES, LINEUP)
# so large an epsilon that Adam's step is a smooth function of the gradient
OPTIMISER = Optimiser(eps=1e-2, minibatches=2)


def start() -> tuple[dict, dict]:
    """A base that nobody trains, and the weights that learn: a full tree and two adapters, none of them zero."""
    base = model.init(CONFIG, jax.random.key(0))
    full = model.init(CONFIG, jax.random.key(1))
    generator = np.random.default_rng(0)
    shape = jax.eval_shape(partial(adapters.init, lora=LORA), jax.random.key(0), base)
    new = [jax.tree.map(lambda x: jnp.asarray(0.3 * generator.normal(size=x.shape), jnp.float32), shape) for _ in "bc"]
    return base, {"a": full, "b": new[0], "c": new[1]}


def loss(base: dict, weights: dict, batch: dict):
    total, metrics = None, {}
    for name, (rows, said, advantage) in batch.items():
        adapted = adapters.concatenate([weights["b"], weights["c"]], LORA) if name == "lora" else None
        params = base if name == "lora" else weights["a"]
        owner = rows.policy if name == "lora" else None
        scores = policy.score(CONFIG, params, rows, said, ROLLOUT.sides[name].tables, adapted, owner)
        value, found = losses.alignment(scores.logp, said.behaviour, advantage, scores.entropy, said.where)
        total = value if total is None else total + value
        metrics |= {f"{name}/{key}": mean for key, mean in found.items()}
    return total, metrics


def whole_step(base, learners, key):
    """Rollout, spoken tokens, credit, loss with its gradient, update: everything a step of training does."""
    weights = learners.weights
    play = {"full": {"params": weights["a"]}, "lora": {"params": base, "adapters": (weights["b"], weights["c"])}}
    trajectory = ROLLOUT(play, key)
    episodes = trajectory.episodes
    advantage = credit.advantage_alignment(
        episodes.reward[..., 0], episodes.acted, episodes.group, OPENINGS, gamma=0.9, beta=0.5
    )
    batch = {}
    for name, rows in trajectory.rows.items():
        said = spoken(rows, episodes.legal, ROLLOUT.most_spoken(name))
        batch[name] = (rows, said, per_token(advantage, rows, said))
    own = partial(loss, base)
    (value, _), gradient = jax.value_and_grad(lambda w: (lambda t, m: (t.value, m))(*own(w, batch)), has_aux=True)(
        weights
    )
    learners, metrics = update(OPTIMISER, own, learners, batch, OPENINGS, jnp.float32(0.01), key)
    return trajectory, value, gradient, learners, metrics


def relative(actual, expected, tolerance: float) -> None:
    for (path, a), b in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b), jax.tree_util.keystr(path)


def test_eight_devices_agree_with_one():
    base, weights = start()
    learners, key = OPTIMISER.init(weights), jax.random.key(7)
    alone = jax.jit(whole_step)(base, learners, key)
    mesh = sharding.data_mesh(8)
    sharding.check_groups(mesh, OPENINGS)
    with jax.set_mesh(mesh):
        inputs = sharding.replicate((base, learners, key), mesh)
        assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(inputs))
        spread = jax.jit(whole_step)(*inputs)
    trajectory, value, gradient, after, metrics = spread
    for name, rows in trajectory.rows.items():
        expected = alone[0].rows[name]
        for field in ("tokens", "length", "mine", "turn", "state", "left"):
            np.testing.assert_array_equal(getattr(rows, field), getattr(expected, field), err_msg=field)
        np.testing.assert_allclose(rows.logp, expected.logp, atol=1e-5)
        size = rows.tokens.shape
        split = NamedSharding(mesh, PartitionSpec(sharding.DATA))
        assert rows.tokens.sharding.is_equivalent_to(split, 2)
        parts = sorted(rows.tokens.addressable_shards, key=lambda part: part.index[0].start or 0)
        assert len({part.device for part in parts}) == 8
        assert [part.data.shape for part in parts] == [(size[0] // 8, size[1])] * 8
    np.testing.assert_array_equal(trajectory.episodes.action, alone[0].episodes.action)
    assert len(np.unique(trajectory.episodes.action.reshape(16, -1), axis=0)) > 8  # games differ
    relative(value, alone[1], 1e-5)
    relative(gradient, alone[2], 1e-5)
    relative(after.weights, alone[3].weights, 1e-5)
    relative(metrics, alone[4], 1e-4)
    assert after.skipped == 0 and min(float(np.abs(g).max()) for g in jax.tree.leaves(gradient)) > 0


def test_rows_are_left_alone_without_a_mesh_or_on_one_device():
    x = jnp.arange(16.0)
    assert sharding.rows(x) is x
    with jax.set_mesh(sharding.data_mesh()):
        assert sharding.rows(x) is x
    with jax.set_mesh(sharding.data_mesh(4)) as mesh:
        assert jax.jit(sharding.rows)(x).sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec("data")), 1)


@pytest.mark.parametrize("devices", [0, 9])
def test_more_devices_than_there_are_are_refused(devices):
    with pytest.raises(ValueError, match=f"data mesh of {devices} devices was asked for, but 8 are here"):
        sharding.data_mesh(devices)


def test_openings_that_do_not_divide_over_the_mesh_are_refused():
    mesh = sharding.data_mesh(8)
    sharding.check_groups(mesh, 16)
    with pytest.raises(ValueError, match=r"^A batch of 12 openings .* does not divide over 8 devices .*multiple"):
        sharding.check_groups(mesh, 12)
