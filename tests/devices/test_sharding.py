"""Rollouts and updates on meshes of devices: those of one device, and split as the rules say.

The long cases compile an update on each mesh; the short ones read the sharding of every leaf.
"""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxmarl_llm.devices import hlo, sharding
from jaxmarl_llm.devices.lanes import any_lane
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.models.attention import CHUNK, MANY
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout import policy
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.rollout.trajectory import gather_sampled, per_token
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.update import Optimiser, update
from tests.support.toys import FOREIGN, ByteTokenizer, Whispers

GAME = MatrixGame(rounds=3)
TOKENIZER = SymbolTokenizer(strings(GAME))
CONFIG = Config(TOKENIZER.vocab_size, 16, 32, 1, 4, 2, 8, 32)
LORA = Lora(2, 4.0, ("q_proj", "v_proj", "down_proj"))
LINEUP = Lineup((("a", "b"), ("b", "a"), ("a", "grim"), ("grim", "b")) * 8, group_size=2)
ROLLOUT = Rollout(GAME, {"all": PolicySet(TOKENIZER, ("a", "b"), CONFIG, LORA)}, LINEUP)
MESHES = [
    "data=2,fsdp=2,tensor=2",
    *(pytest.param(axes, marks=pytest.mark.slow) for axes in ("data=8", "fsdp=8", "tensor=4")),
]
# so large an epsilon that Adam's step is a smooth function of the gradient
OPTIMISER = Optimiser(eps=1e-2, minibatches=2)


def start() -> dict:
    """Weights and two adapters of them, none zero; all of them learn."""
    base = decoder.init(CONFIG, jax.random.key(0))
    generator = np.random.default_rng(0)
    shape = jax.eval_shape(partial(lora.init, lora=LORA), jax.random.key(0), base)
    own = {
        name: jax.tree.map(lambda x: jnp.asarray(0.3 * generator.normal(size=x.shape), jnp.float32), shape)
        for name in "ab"
    }
    return own | {"base": base}


def loss(weights: dict, batch: tuple) -> tuple[Mean, dict[str, Mean]]:
    rows, sampled, advantage = batch
    adapted = lora.concatenate([weights["a"], weights["b"]], [LORA] * 2)
    scorer = policy.Scorer(CONFIG, ROLLOUT.layouts["all"].tables, remat="full")
    scores = scorer(weights["base"], rows, sampled, adapted, rows.policy)
    return losses.alignment(scores.logp, sampled.behaviour_logp, advantage, scores.entropy, sampled.mask)


@jax.jit
def whole_step(learners, key):
    """Rollout, spoken tokens, credit, loss with its gradient, update: everything a step of training does."""
    a, b, base = (learners.weights[name] for name in ("a", "b", "base"))
    trajectory = ROLLOUT({"all": {"params": base, "adapters": (a, b)}}, key)
    episodes, rows = trajectory.episodes, trajectory.rows["all"]
    reward, acted = episodes.reward[..., 0], episodes.acted
    advantage = advantages.advantage_alignment(reward, acted, episodes.group, len(LINEUP.seats), gamma=0.9, beta=0.5)
    sampled = gather_sampled(rows, episodes.legal, ROLLOUT.max_sampled_tokens("all"))
    batch = rows, sampled, per_token(advantage, rows, sampled)
    learners, metrics = update(OPTIMISER, loss, learners, batch, len(rows.prompts.length), jnp.float32(0.01), key)
    return trajectory, sharding.weights(learners), metrics


@pytest.fixture(scope="module")
def alone():
    return whole_step(OPTIMISER.init(start()), jax.random.key(7))


def relative(actual, expected, tolerance: float = 1e-5) -> None:
    """Every leaf agrees, relative to its norm."""
    for (path, a), b in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b), jax.tree_util.keystr(path)


@pytest.mark.long
@pytest.mark.parametrize("axes", MESHES)
def test_every_mesh_agrees_with_one_device(axes, alone):
    alone, *expected = alone
    mesh = sharding.mesh(axes)
    for layout in ROLLOUT.layouts.values():
        sharding.check_groups(mesh, len(layout.assignments))
    learners = sharding.place(OPTIMISER.init(start()), mesh)
    with sharding.use(mesh):
        trajectory, *found = whole_step(learners, jax.random.key(7))
    for name, rows in trajectory.rows.items():
        for field in ("tokens", "length", "loss_mask", "turn", "grammar_state", "tokens_left"):
            np.testing.assert_array_equal(getattr(rows, field), getattr(alone.rows[name], field), err_msg=field)
        np.testing.assert_allclose(rows.logp, alone.rows[name].logp, atol=1e-5)
    np.testing.assert_array_equal(trajectory.episodes.action, alone.episodes.action)
    assert len(np.unique(trajectory.episodes.action.reshape(LINEUP.episodes, -1), axis=0)) > 8  # games differ

    parts = trajectory.rows["all"].tokens.addressable_shards
    count = mesh.shape["data"] * mesh.shape["fsdp"]
    assert len({part.device for part in parts}) == mesh.size
    assert len({part.index[0].start for part in parts}) == count and {len(part.data) for part in parts} == {96 // count}

    (after, metrics), (one_after, one_metrics) = found, expected
    relative(after.weights, one_after.weights)
    relative(after.optimiser, one_after.optimiser)  # means of the gradients and of their squares
    for name in one_metrics:  # a divergence is a difference of nearly equal numbers
        np.testing.assert_allclose(metrics[name], one_metrics[name], rtol=1e-5, atol=1e-7, err_msg=name)
    means = [chain[1].mu for chain in after.optimiser.values()]
    assert after.skipped == 0 and min(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(means)) > 0


LARGE = Config(512, 256, 1024, 8, 4, 2, 64, 64)  # 32 MB, beside which a few tokens take nothing


@partial(jax.jit, donate_argnums=0)
def large_update(learners, tokens, prompts):
    def loss(weights, batch):
        hidden, _ = decoder.forward(LARGE, weights["one"], *batch, remat="full")
        logits = decoder.logits(
            LARGE, sharding.gather_weights({"embed_tokens": weights["one"]["embed_tokens"]}), hidden
        )
        return Mean((logits**2).sum(), jnp.float32(8)), {}

    batch = tokens, prompts
    learners, _ = update(Optimiser(grad_accumulation=2), loss, learners, batch, 16, jnp.float32(0.1), jax.random.key(0))
    return sharding.weights(learners)


@jax.jit
def large_decode(params, tokens):
    prepared, cache = (
        decoder.prepare(LARGE, params),
        jax.tree.map(sharding.split_cache, decoder.empty_cache(LARGE, 16, 24)),
    )
    more = lambda carry: decoder.append(LARGE, prepared, carry[0], tokens, jnp.ones(16, jnp.int32))
    hidden = jnp.zeros((16, 1, LARGE.hidden_size))
    return jax.lax.while_loop(lambda carry: any_lane((carry[0].length < 8).any()), more, (cache, hidden))[1]


@pytest.mark.parametrize(
    ("axes", "parts"),
    [
        ("", 1),
        ("fsdp=4,tensor=2", 8),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("fsdp=8", 8), ("tensor=4", 4))),
    ],
)
def test_nothing_is_replicated_that_the_rules_split(axes, parts):
    """By XLA's own figures: arguments are parts, and what a device holds beside them is less than the model."""
    mesh = sharding.mesh(axes)
    learners = jax.eval_shape(lambda key: Optimiser().init({"one": decoder.init(LARGE, key)}), jax.random.key(0))
    where = sharding.shardings(learners, mesh)
    abstract = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), learners, where)
    whole = sum(leaf.size * 4 for leaf in jax.tree.leaves(learners.weights))
    layer, ints = whole / LARGE.num_hidden_layers, partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    with sharding.use(mesh):
        prompts = decoder.Prompts(ints((16, 4)), ints((16,)))
        training = large_update.lower(abstract, ints((16, 8)), prompts).compile()
        decoding = large_decode.lower(abstract.weights["one"], ints((16, 1))).compile()
    assert jax.tree.all(
        jax.tree.map(lambda x, a, b: a.is_equivalent_to(b, x.ndim), learners, training.output_shardings, where)
    )
    update_memory, decode_memory = training.memory_analysis(), decoding.memory_analysis()
    assert update_memory.argument_size_in_bytes < 3 * whole / parts * 1.01
    assert decode_memory.argument_size_in_bytes < whole / parts * 1.01
    # new weights and moments are written over the old: beside these they would be 3 times the whole
    assert update_memory.temp_size_in_bytes < 2.5 * whole / parts + 2 * layer
    assert decode_memory.temp_size_in_bytes < 2 * whole / parts + layer


def loops(text: str) -> dict[str, list[str]]:
    """Of a compiled program: {condition or body of a loop: the collectives in it, and in what that runs}."""
    _, computations, _ = hlo.read(text)

    def within(name: str) -> list[str]:
        own = [one.kind for one in computations[name] if one.kind.removesuffix("-start") in hlo.COLLECTIVES]
        return own + [kind for one in computations[name] for called in one.called for kind in within(called)]

    return {
        f"{one.path} {part}": within(called)
        for inside in computations.values()
        for one in inside
        if one.kind == "while"
        for part, called in zip(("cond", "body"), one.called, strict=True)
    }


@pytest.mark.parametrize(
    "labels", [pytest.param(("A", "B"), marks=pytest.mark.slow), ("cooperation", "defection")], ids=["short", "long"]
)
def test_on_a_data_mesh_a_decode_loop_holds_no_collective_but_its_condition(labels):
    """Also where much follows from a token, and is read along a long cache."""
    game, tokenizer = MatrixGame(rounds=3, talk=True, labels=labels), ByteTokenizer()
    policy_set = PolicySet(tokenizer, ("one",), Config(tokenizer.vocab_size, 16, 24, 1, 2, 1, 8, 1024))
    rollout, mesh = Rollout(game, {"one": policy_set}, Lineup((("one", "one"),) * 8, 2), 12), sharding.mesh("data=8")
    params = sharding.place(decoder.init(policy_set.config, jax.random.key(0)), mesh)
    if len(labels[0]) > 1:
        assert rollout.layouts["one"].tables.forced.shape[1] >= CHUNK and rollout.layouts["one"].slots > MANY
    with sharding.use(mesh):
        text = jax.jit(rollout).lower({"one": {"params": params}}, jax.random.key(0)).compile().as_text()
    decode = {name: inside for name, inside in loops(text).items() if re.search(r"decode/while (cond|body)$", name)}
    assert len(decode) == 2
    for name, inside in decode.items():
        assert inside == (["all-reduce"] if name.endswith("cond") else []), name


@pytest.mark.slow
def test_messages_between_tokenizers_cross_devices():
    policy_sets = {
        name: PolicySet(tokenizer, (name,), Config(tokenizer.vocab_size, 16, 24, 1, 2, 1, 8, 256))
        for name, tokenizer in (("own", ByteTokenizer()), ("theirs", ByteTokenizer(FOREIGN, shuffle=1)))
    }
    game = Whispers(np.ones((2, 3, 3), bool), turns=2)
    rollout = Rollout(game, policy_sets, Lineup((("own", "theirs", "own"),) * 8, 1), 6)
    weights = {n: {"params": decoder.init(f.config, jax.random.key(0))} for n, f in policy_sets.items()}
    run = jax.jit(rollout, compiler_options={"xla_backend_optimization_level": 0})
    alone, mesh = run(weights, jax.random.key(1)), sharding.mesh("data=8")
    with jax.set_mesh(mesh):
        split = run(*sharding.place((weights, jax.random.key(1)), mesh))
    for name, rows in split.rows.items():
        assert (
            len(rows.tokens.sharding.device_set) == 8
            and alone.truncated_message_tokens[name] == split.truncated_message_tokens[name] > 0
        )
        for field in ("tokens", "length", "loss_mask", "turn"):
            np.testing.assert_array_equal(getattr(rows, field), getattr(alone.rows[name], field))


def test_rows_are_left_alone_without_a_mesh_on_one_device_or_where_they_do_not_divide():
    x = jnp.arange(16.0)
    assert sharding.rows(x) is x
    with jax.set_mesh(sharding.mesh()):
        assert sharding.rows(x) is x
    mesh = sharding.mesh("data=2,fsdp=2")
    with jax.set_mesh(mesh):
        split = jax.jit(sharding.rows)(x).sharding
        assert all(sharding.rows(part) is part for part in (x[:6], x[:5]))
    assert split.is_equivalent_to(NamedSharding(mesh, PartitionSpec(("data", "fsdp"))), 1)


def test_as_many_cores_as_divide_runs_share_them(monkeypatch):
    for count, runs, expected in ((1, 10, 0), (2, 10, 2), (2, 9, 0), (4, 10, 2), (4, 9, 3), (4, 8, 4), (64, 40, 8)):
        monkeypatch.setattr("jaxmarl_llm.devices.surroundings.usable_cores", lambda count=count: count)
        assert len(sharding.cores(runs)) == expected
    tree = {"a": jnp.arange(16.0).reshape(8, 2), "b": jnp.arange(8)}
    parts = sharding.split_runs(tree, 4)
    assert [part["b"].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    jax.tree.map(np.testing.assert_array_equal, sharding.join_runs(parts), tree)


def test_a_rule_follows_a_leaf_wherever_it_lies():
    mesh = sharding.mesh("fsdp=2,tensor=4")
    spec = partial(sharding.spec, mesh=mesh)
    assert spec("layers/q_proj", (2, 8, 16)) == PartitionSpec(None, "tensor", "fsdp")
    assert spec("optimiser/a/1/mu/policy/layers/down_proj", (3, 2, 8, 16)) == PartitionSpec(
        None, None, "fsdp", "tensor"
    )
    assert spec("past/policy/q_proj/b", (5, 2, 8, 3)) == PartitionSpec(None, None, "tensor", None)
    assert spec("embed_tokens", (16, 8)) == PartitionSpec(("tensor", "fsdp"), None)
    assert spec("embed_tokens", (12, 8)) == PartitionSpec(("tensor",), None)  # 8 do not divide 12, 4 do
    assert spec("layers/q_proj", (2, 6, 16)) == PartitionSpec(None, None, "fsdp")
    for path, shape in (("layers/input_layernorm", (2, 16)), ("norm", (16,))):
        assert not any(spec(path, shape))


@pytest.mark.parametrize("axes", ["rows=2", "data", "data=0", "data=-1", "data=x", "data=2;fsdp=2"])
def test_a_mesh_that_is_none_is_refused(axes):
    with pytest.raises(ValueError, match="A mesh is written as data=2,fsdp=4,tensor=1"):
        sharding.mesh(axes)


def test_more_devices_than_there_are_or_an_axis_twice_are_refused():
    with pytest.raises(ValueError, match=r"A mesh of 16 devices was asked for \(data=4,fsdp=4\), but 8 are here"):
        sharding.mesh("data=4,fsdp=4")
    with pytest.raises(ValueError, match="names each axis once"):
        sharding.mesh("data=2,data=2")


def test_prompts_that_do_not_divide_over_the_mesh_are_refused():
    mesh = sharding.mesh("data=4,fsdp=2")
    sharding.check_groups(mesh, 16)
    with pytest.raises(ValueError, match=r"^A batch of 12 prompts .* does not divide over 8 devices .*multiple"):
        sharding.check_groups(mesh, 12)
