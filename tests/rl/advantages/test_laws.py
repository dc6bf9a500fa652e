"""Every preset against a loop that looks through all samples for every act, and by the laws of all presets."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import advantages
from tests.support.advantage_variants import (
    GROUPS,
    VARIANTS,
    A,
    B,
    T,
    advantage,
    compiled,
    every_variant,
    expected,
    full,
    keyed,
    of_episodes,
)


@every_variant
@pytest.mark.parametrize("seed", range(3))
def test_presets_equal_a_loop(name: str, seed: int):
    x = full(seed)
    got = advantage(name, x)
    assert got.dtype == np.float32 and not got[~x["acted"]].any()
    np.testing.assert_allclose(got, expected(name, x), rtol=2e-4, atol=2e-5)


def test_every_preset_is_among_the_variants_and_in_the_table():
    assert set(advantages.PRESETS.values()) == {variant.preset for variant in VARIANTS.values()}
    table = {line.split()[0] for line in advantages.__doc__.splitlines() if line.startswith("    ") and line.split()}
    assert set(advantages.PRESETS) <= table


@every_variant
def test_permuted_episodes_permute_the_result(name: str):
    x = full(3)
    order = np.random.default_rng(0).permutation(B)
    permuted = advantage(name, of_episodes(x, lambda field: field[order]))
    np.testing.assert_allclose(permuted, advantage(name, x)[order], rtol=1e-4, atol=1e-5)


@every_variant
def test_padding_changes_nothing(name: str):
    x = full(4)
    pad = lambda f: np.pad(f, ((0, 3), (0, 2), *((0, 0),) * (f.ndim - 2))) if f.ndim > 1 else np.pad(f, (0, 3))
    got = advantage(name, of_episodes(x, pad))
    np.testing.assert_allclose(got[:B, :T], advantage(name, x), rtol=1e-4, atol=1e-5)
    assert not got[B:].any() and not got[:, T:].any()


@pytest.mark.parametrize("name", ["grpo", "mars"])
def test_jit_changes_nothing(name: str):
    np.testing.assert_allclose(VARIANTS[name](full(4)), advantage(name, full(4)), rtol=1e-4, atol=1e-5)


@every_variant
def test_a_seat_that_never_acts_changes_nothing(name: str):
    x = full(5)
    if name == "sequential":  # a team's reward is that of all its seats: what the others know of it does not count
        changed = x | {"value": np.where(x["acted"], x["value"], np.nan).astype(np.float32)}
    else:
        changed = {name: field.copy() for name, field in x.items()}
        changed["reward"][0, :, 1] = changed["components"][0, :, 1] = np.nan
    for field in ("role", "observation"):
        changed[field] = np.where(x["acted"], x[field], 0)
    np.testing.assert_array_equal(advantage(name, changed), advantage(name, x))


@cache
def vmapped() -> dict[str, jax.Array]:
    """Every variant of three batches at once, its numbers traced."""
    traced = ("gamma", "beta", "lam", "step_weight", "state")
    numbers = {
        name: {key: value for key, value in variant.options.items() if key in traced}
        | ({"decay": 0.9} if variant.preset is advantages.role_baseline else {})
        for name, variant in VARIANTS.items()
    }
    batches = [full(seed) for seed in range(3)]
    stacked = {field: np.stack([x[field] for x in batches]) for field in batches[0]}
    run = lambda x, numbers: {name: VARIANTS[name](x, **own) for name, own in numbers.items()}
    return jax.jit(jax.vmap(run, (0, None)))(stacked, numbers)


@every_variant
def test_vmapped_equals_alone_and_numbers_may_be_traced(name: str):
    alone = np.stack([advantage(name, full(seed)) for seed in range(3)])
    np.testing.assert_allclose(vmapped()[name], alone, rtol=1e-4, atol=1e-5)


# without a critic or a discount, and not by turns that were paid differently
COMPARED = [
    name
    for name in VARIANTS
    if name not in ("reinforce", "reinforce to go", "rebn by episodes", "role baseline", "step groups", "sequential")
    and not name.startswith("mars")
]


@pytest.mark.parametrize("value", [0.1, -0.3, 77.7])
@pytest.mark.parametrize("name", COMPARED)
def test_a_constant_group_gets_exactly_zero(name: str, value: float):
    x = full(0)
    x["reward"], x["acted"] = np.zeros_like(x["reward"]), np.ones_like(x["acted"])
    x["reward"][:, T - 1] = value
    x["components"] = np.stack([x["reward"], 3 * x["reward"]], axis=-1)
    x["group"] = np.zeros_like(x["group"])
    got = advantage(name, x)
    np.testing.assert_array_equal(got, np.zeros_like(got))


KEYS = {
    "grpo by turns": ("group",),
    "agent wise": ("group", "agent"),
    "turn wise": ("group", "turn", "agent"),
    "reinforce++": (),
    "role baseline by turns": ("role",),
    "mars": (),
    "to go per role": ("role",),
    "to go per role and turn": ("role", "turn"),
    "sequential": (),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_mean_baseline_leaves_mean_zero_under_every_key(name: str):
    x = full(7)
    got, key, sums = advantage(name, x), keyed(x, KEYS[name]), {}
    for act in zip(*np.nonzero(x["acted"]), strict=True):
        sums.setdefault(key(act), []).append(got[act])
    assert len(sums) > (1 if KEYS[name] else 0)
    for values in sums.values():
        assert abs(np.mean(values)) < 1e-5


def test_a_group_of_one():
    """One act in the whole batch, of role 0 in game 0."""
    x = {name: field if name == "weights" else np.zeros_like(field) for name, field in full(0).items()}
    x["acted"][0, 0, 0], x["reward"][0, 0, 0], x["components"][0, 0, 0] = True, 0.7, 0.7
    for name in VARIANTS:
        if not name.startswith(("reinforce to", "alignment", "sequential")):
            alone = {"reinforce": 0.7, "agent wise raw": 0.7, "role baseline": 0.7 - 1.0}.get(name, 0.0)
            np.testing.assert_allclose(advantage(name, x)[0, 0, 0], alone, rtol=1e-6, err_msg=name)


APART = (
    "grpo per agent",
    "rloo by turns, per agent",
    "agent wise",
    "agent wise raw",
    "agent wise by episodes",
    "turn wise",
    "turn wise to go",
    "step groups per agent",
    "shared steps after others",
    "decoupled by turns",
    "round",
)


def test_agents_do_not_mix_unless_the_key_says_so():
    x = full(10)
    bonus = np.array([0.0, 5.0], np.float32) * np.linspace(0, 1, B)[:, None, None].astype(np.float32)
    changed = x | {"reward": x["reward"] + bonus, "components": x["components"] + bonus[..., None]}
    for name in VARIANTS:
        if not name.startswith(("reinforce to", "alignment")) and name != "reinforce":
            before, after = advantage(name, x)[:, :, 0], advantage(name, changed)[:, :, 0]
            if (
                name in APART
                or name == "agent wise raw"
                or name == "agent wise by episodes"
                or name == "turn wise to go"
            ):
                np.testing.assert_array_equal(before, after, err_msg=name)
            elif name != "role baseline":  # a given baseline mixes nobody
                assert (before != after).any(), name


def test_a_large_component_does_not_drown_a_small_one():
    x = full(21)
    larger = x | {"components": x["components"] * np.array([1.0, 1000.0], np.float32)}
    np.testing.assert_allclose(advantage("decoupled", larger), advantage("decoupled", x), rtol=1e-3, atol=1e-4)
    one = x | {"components": x["components"][..., :1], "weights": np.ones(1, np.float32)}
    np.testing.assert_allclose(
        jax.jit(VARIANTS["decoupled by turns"].__call__)(one),
        compiled(advantages.agent_wise, x["reward"], x["acted"], x["group"], GROUPS),
        rtol=1e-4,
        atol=1e-5,
    )


def test_observations_are_names():
    """Any integers do, and what nobody else saw, or weighs nothing, leaves the episode's advantage."""
    x = full(22)
    other = {-7: 12, 0: -2147483648, 3: 5, 2147483647: 0}
    renamed = x | {"observation": np.vectorize(other.get)(x["observation"]).astype(np.int32)}
    np.testing.assert_allclose(advantage("step groups", renamed), advantage("step groups", x), rtol=1e-6)
    unique = x | {"observation": np.arange(B * T * A).reshape(B, T, A).astype(np.int32)}
    whole = advantage("grpo", x)
    np.testing.assert_array_equal(advantage("step groups", unique), whole)
    np.testing.assert_array_equal(jax.jit(partial(VARIANTS["step groups"], step_weight=0.0))(x), whole)
    assert np.abs(advantage("step groups", x) - whole).max() > 0.1


def test_roles_and_games_keep_their_own_statistics():
    """A bonus for a role moves nothing once rewards are centred by role, and everything where all are pooled."""
    x = full(23)
    x["reward"] = np.where(x["acted"], x["reward"], 0)
    bonus = x | {"reward": x["reward"] + np.where(x["acted"] & (x["role"] == 1), 2, 0).astype(np.float32)}
    np.testing.assert_allclose(advantage("mars", bonus), advantage("mars", x), rtol=1e-3, atol=1e-4)
    assert np.abs(advantage("to go pooled", bonus) - advantage("to go pooled", x)).max() > 0.1
    assert np.abs(advantage("to go per role", bonus) - advantage("to go per role", x)).max() > 0.1


@pytest.mark.parametrize("name", ["agent wise", "step groups", "decoupled", "mars by episodes", "role baseline"])
def test_gradients_by_rewards_are_finite_differences(name: str):
    """Rewards may be learned: credit is differentiable in them, also where groups have no spread."""
    x = full(24)
    field = VARIANTS[name].takes[0]
    x[field][x["group"] == 1] = 0.0
    direction = np.random.default_rng(25).normal(size=x[field].shape).astype(np.float32)
    direction[x["group"] == 1] = 0.0
    mix = np.random.default_rng(26).normal(size=x["acted"].shape)
    total = lambda change: (VARIANTS[name](x | {field: x[field] + change * direction}) * mix).sum()
    along = jax.jit(jax.value_and_grad(total))
    slope = (along(3e-3)[0] - along(-3e-3)[0]) / 6e-3
    np.testing.assert_allclose(along(0.0)[1], slope, rtol=2e-2, atol=1e-2)


def test_impossible_requests_are_refused():
    reward, acted, group = jnp.zeros((2, 2, 3)), jnp.ones((2, 2, 3), bool), jnp.zeros(2, int)
    with pytest.raises(ValueError, match="two seats, but there are 3"):
        advantages.advantage_alignment(reward, acted, group, 1, gamma=0.9, beta=0.5)
    with pytest.raises(ValueError, match="episode, turn"):
        advantages.grpo(reward, acted, group, 1, weight="token")  # type: ignore[arg-type]
    options = {"role": jnp.zeros((2, 2, 3), int), "num_roles": 2}
    with pytest.raises(ValueError, match="key 'seat'"):
        advantages.turn_level(reward, acted, group, 1, by=("seat",), **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(1, 3\) means of games and roles: needed are \(1, 2\)"):
        advantages.role_baseline(reward, acted, group, 1, state=advantages.init_role_baseline(3), **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weights has shape"):
        advantages.decoupled_grpo(reward[..., None], acted, group, 1, weights=jnp.ones(2))
    with pytest.raises(ValueError, match="turn, to_go, episode"):
        advantages.turn_wise(reward, acted, group, 1, returns="round")  # type: ignore[arg-type]
    key = jnp.zeros((2, 2, 3), int)
    with pytest.raises(ValueError, match="takes no weights"):
        advantages.estimate(reward, acted, key, 1, baseline="leave_one_out", weights=jnp.ones((2, 2, 3)))
    with pytest.raises(ValueError, match="leave_one_out"):
        advantages.estimate(reward, acted, jnp.zeros((2, 2, 3), int), 1, baseline="median")  # type: ignore[arg-type]
