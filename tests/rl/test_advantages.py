"""Presets against a loop that looks through all samples for every act, and by their laws."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import advantages

B, T, A, GROUPS = 12, 5, 2, 4
ROLES, GAMES = 3, 2
MEMORY = advantages.RoleBaselineState(
    jnp.array([[1.0, -2.0, 0.0], [0.5, 0.0, 3.0]]), jnp.array([[1, 1, 0], [1, 0, 1]], bool)
)
ROLE = {"num_roles": ROLES}
GAME = {"num_games": GAMES, **ROLE}
MARS = ("reward", "role", "game")


class Variant(NamedTuple):
    """A preset with settings, and the arrays it takes beside those of every preset (the first one is its reward)."""

    preset: Any
    options: dict[str, Any]
    takes: tuple[str, ...] = ("reward",)

    def __call__(self, x: dict[str, Any], num_groups: int = GROUPS, **numbers: Any) -> Any:
        more = {name: jnp.asarray(x[name]) for name in self.takes[1:]}
        given = (jnp.asarray(x[name]) for name in (self.takes[0], "acted", "group"))
        got = self.preset(*given, num_groups, **more, **self.options | numbers)
        return got[0] if isinstance(got, tuple) else got


VARIANTS = {
    "reinforce": Variant(advantages.reinforce, {}),
    "reinforce to go": Variant(advantages.reinforce, {"returns": "to_go", "gamma": 0.9}),
    "grpo": Variant(advantages.grpo, {}),
    "dr grpo": Variant(advantages.grpo, {"scale": "none"}),
    "grpo by turns": Variant(advantages.grpo, {"weight": "turn"}),
    "grpo per agent": Variant(advantages.grpo, {"per_agent": True}),
    "rloo": Variant(advantages.rloo, {}),
    "rloo by turns, per agent": Variant(advantages.rloo, {"weight": "turn", "per_agent": True}),
    "reinforce++": Variant(advantages.reinforce_plus_plus, {}),
    "rebn by episodes": Variant(advantages.reinforce_plus_plus, {"gamma": 0.9, "weight": "episode"}),
    "role baseline, first": Variant(
        advantages.role_baseline,
        {"state": advantages.init_role_baseline(ROLES, GAMES), **GAME},
        ("reward", "role", "game"),
    ),
    "role baseline": Variant(advantages.role_baseline, {"state": MEMORY, **GAME}, ("reward", "role", "game")),
    "role baseline by turns": Variant(
        advantages.role_baseline,
        {"state": advantages.init_role_baseline(ROLES), "weight": "turn", **ROLE},
        ("reward", "role"),
    ),
    "mars": Variant(advantages.turn_level, GAME, MARS),
    "mars by episodes": Variant(advantages.turn_level, {"weight": "episode", "gamma": 0.9, **GAME}, MARS),
    "episode pooled": Variant(
        advantages.turn_level, {"returns": "episode", "centre": None, "by": (), **ROLE}, ("reward", "role")
    ),
    "episode per role": Variant(
        advantages.turn_level,
        {"returns": "episode", "centre": None, "weight": "episode", **ROLE},
        ("reward", "role"),
    ),
    "to go pooled": Variant(advantages.turn_level, {"centre": None, "by": (), **ROLE}, ("reward", "role")),
    "to go per role": Variant(advantages.turn_level, {"centre": None, "whitened": False, **ROLE}, ("reward", "role")),
    "to go per role and turn": Variant(
        advantages.turn_level, {"centre": None, "by": ("role", "turn"), **ROLE}, ("reward", "role")
    ),
    "agent wise": Variant(advantages.agent_wise, {}),
    "agent wise raw": Variant(advantages.agent_wise, {"single": "raw"}),
    "agent wise by episodes": Variant(advantages.agent_wise, {"weight": "episode", "scale": "none"}),
    "turn wise": Variant(advantages.turn_wise, {}),
    "turn wise to go": Variant(advantages.turn_wise, {"returns": "to_go", "gamma": 0.9}),
    "step groups": Variant(advantages.step_groups, {"gamma": 0.9, "step_weight": 0.5}, ("reward", "observation")),
    "step groups per agent": Variant(
        advantages.step_groups, {"per_agent": True, "scale": "none", "weight": "turn"}, ("reward", "observation")
    ),
    "decoupled": Variant(advantages.decoupled, {}, ("components", "weights")),
    "decoupled by turns": Variant(
        advantages.decoupled, {"weight": "turn", "per_agent": True, "whitened": False}, ("components", "weights")
    ),
    "round": Variant(advantages.round_leave_one_out, {"gamma": 0.9}),
    "alignment": Variant(advantages.advantage_alignment, {"gamma": 0.9, "beta": 0.5}),
    "alignment of the paper": Variant(
        advantages.advantage_alignment, {"gamma": 0.9, "beta": 0.5, "leading_discount": True}
    ),
    "sequential": Variant(advantages.sequential_agents, {"gamma": 0.9, "lam": 0.8}, ("reward", "value")),
}
every_variant = pytest.mark.parametrize("name", VARIANTS)
COMPILED = {name: jax.jit(lambda x, name=name: VARIANTS[name](x)) for name in VARIANTS}


def batch(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Episodes that end at different turns, seats that act now and then or never, groups of all sizes from 0 on."""
    generator = np.random.default_rng(seed)
    length = generator.integers(1, T + 1, B)
    alive = np.arange(T)[None, :, None] < length[:, None, None]
    acted = (generator.random((B, T, A)) < 0.7) & alive
    acted[0, :, 1] = False
    reward = np.where(alive, generator.normal(size=(B, T, A)), 0).astype(np.float32)
    return reward, acted, generator.integers(0, GROUPS, B)


def full(seed: int) -> dict[str, np.ndarray]:
    """The same with all that any preset asks for: roles change within an episode, some observations recur."""
    reward, acted, group = batch(seed)
    generator = np.random.default_rng(seed + 100)
    other = np.where(reward != 0, 100 * generator.normal(size=reward.shape), 0).astype(np.float32)
    return {
        "reward": reward,
        "acted": acted,
        "group": group,
        "role": generator.integers(0, ROLES, (B, T, A)),
        "game": generator.integers(0, GAMES, B),
        "observation": generator.choice(np.array([-7, 0, 3, 2**31 - 1], np.int32), (B, T, A)),
        "value": generator.normal(size=(B, T, A)).astype(np.float32),
        "components": np.stack([reward, other], axis=-1),
        "weights": np.array([1.0, 0.5], np.float32),
    }


def of_episodes(x: dict[str, np.ndarray], change) -> dict[str, np.ndarray]:
    """``change`` applied to every array that has an episode axis."""
    return {name: field if name == "weights" else change(field) for name, field in x.items()}


def advantage(name: str, x: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(COMPILED[name](x))


def moved_by_hand(reward, acted):
    out = np.zeros(reward.shape)
    for b in range(len(reward)):
        for a in range(reward.shape[2]):
            acts = [t for t in range(reward.shape[1]) if acted[b, t, a]]
            for t in range(reward.shape[1]):
                if acts:
                    earlier = [s for s in acts if s <= t]
                    out[b, earlier[-1] if earlier else acts[0], a] += reward[b, t, a]
    return out


def to_go_by_hand(reward, gamma):
    turns = reward.shape[1]
    return np.stack([sum(gamma ** (s - t) * reward[:, s] for s in range(t, turns)) for t in range(turns)], axis=1)


def keyed(x, by):
    """The key of an act: the values of the named indices."""
    of = {
        "group": lambda b, t, a: x["group"][b],
        "game": lambda b, t, a: x["game"][b],
        "turn": lambda b, t, a: t,
        "agent": lambda b, t, a: a,
        "role": lambda b, t, a: x["role"][b, t, a],
        "observation": lambda b, t, a: x["observation"][b, t, a],
    }
    return lambda act: tuple(of[name](*act) for name in by)


def compared_by_hand(x, accumulated, by, baseline, scale="none", weight="turn", single="zero", given=None):
    """Look through all samples for each act: slow, and with no arithmetic in common with the kernel."""
    out = np.zeros(accumulated.shape)
    key, acts = keyed(x, by), list(zip(*np.nonzero(x["acted"]), strict=True))
    for own in acts:
        peers = [act for act in acts if key(act) == key(own)]
        same = lambda act, other: (act[0], act[2]) == (other[0], other[2])  # noqa: E731
        shares = [1 / sum(same(act, other) for other in peers) if weight == "episode" else 1.0 for act in peers]
        values = [accumulated[act] for act in peers]
        mean = np.average(values, weights=shares)
        left = mean
        if baseline == "leave_one_out":  # the first act of an episode stands for all of them
            ones = [act for i, act in enumerate(peers) if not any(same(act, other) for other in peers[:i])]
            others = [act for act in (ones if weight == "episode" else peers) if act != own]
            others = [act for act in others if weight == "turn" or not same(act, own)]
            left = np.mean([accumulated[act] for act in others]) if others else accumulated[own]
        if given is not None and key(own) in given:
            left = given[key(own)]
        out[own] = accumulated[own] - left
        if scale == "std":
            out[own] /= np.sqrt(np.average((np.array(values) - mean) ** 2, weights=shares)) + 1e-6
        if len(peers) == 1 and single == "raw":
            out[own] = accumulated[own]
    return out


def through_agents_by_hand(x, gamma, lam):
    out = np.zeros(x["reward"].shape)
    for b in range(len(out)):
        acts = [(t, a) for t in range(out.shape[1]) for a in range(out.shape[2]) if x["acted"][b, t, a]]
        paid = dict.fromkeys(acts, 0.0)
        for t in range(out.shape[1] if acts else 0):
            earner = max([act for act in acts if act[0] <= t], default=acts[0])
            paid[earner] += x["reward"][b, t].astype(float).mean()
        for i, act in enumerate(acts):
            decay = 1.0
            for j in range(i, len(acts)):
                passed = acts[j + 1][0] - acts[j][0] if j + 1 < len(acts) else 1
                after = x["value"][b][acts[j + 1]] if j + 1 < len(acts) else 0.0
                out[b][act] += decay * (paid[acts[j]] + gamma**passed * after - x["value"][b][acts[j]])
                decay *= gamma**passed * lam
    return out


def expected(name, x):
    reward, acted = x["reward"], x["acted"]
    sums = lambda moved: np.repeat(moved.sum(axis=1, keepdims=True), reward.shape[1], axis=1)  # noqa: E731
    moved = moved_by_hand(reward, acted)
    episode, to_go, plain = sums(moved), to_go_by_hand(moved, 0.9), to_go_by_hand(moved, 1.0)
    by_group, by_agent, by_round = ("group",), ("group", "agent"), ("group", "turn", "agent")
    compare = partial(compared_by_hand, x)
    whiten = lambda z, weight="turn": compare(z, (), "mean", "std", weight)  # noqa: E731
    if name.startswith("alignment"):
        own = compare(to_go, by=by_round, baseline="leave_one_out")
        out = own.copy()
        for t in range(reward.shape[1]):
            for a in range(2):
                past = sum(0.9 ** (t - k) * own[:, k, a] for k in range(t))
                out[:, t, a] += 0.5 * 0.9 * past * own[:, t, 1 - a]
            if "paper" in name:
                out[:, t] *= 0.9**t
        return np.where(acted, out, 0)
    if name.startswith("mars"):
        weight, gamma = ("episode", 0.9) if "episodes" in name else ("turn", 1.0)
        centred = compare(moved, ("game", "role"), "mean", weight=weight)
        less = compare(to_go_by_hand(centred, gamma), ("role",), "mean", weight=weight)
        return whiten(less, weight)
    if name.startswith("decoupled"):
        by, weight = (by_agent, "turn") if "turns" in name else (by_group, "episode")
        parts = [sums(moved_by_hand(x["components"][..., c], acted)) for c in range(2)]
        total = sum(w * compare(part, by, "mean", "std", weight) for w, part in zip(x["weights"], parts, strict=True))
        return total if "turns" in name else whiten(total, weight)
    known = {(g, r): float(MEMORY.mean[g, r]) for g in range(GAMES) for r in range(ROLES) if MEMORY.known[g, r]}
    game_role, faced = ("game", "role"), ("group", "observation")
    return {
        "reinforce": lambda: np.where(acted, episode, 0),
        "reinforce to go": lambda: np.where(acted, to_go, 0),
        "grpo": lambda: compare(episode, by=by_group, baseline="mean", scale="std", weight="episode"),
        "dr grpo": lambda: compare(episode, by=by_group, baseline="mean", weight="episode"),
        "grpo by turns": lambda: compare(episode, by=by_group, baseline="mean", scale="std"),
        "grpo per agent": lambda: compare(episode, by=by_agent, baseline="mean", scale="std", weight="episode"),
        "rloo": lambda: compare(episode, by=by_group, baseline="leave_one_out", weight="episode"),
        "rloo by turns, per agent": lambda: compare(episode, by=by_agent, baseline="leave_one_out"),
        "reinforce++": lambda: whiten(plain),
        "rebn by episodes": lambda: whiten(to_go, "episode"),
        "role baseline, first": lambda: compare(episode, by=game_role, baseline="mean", weight="episode"),
        "role baseline": lambda: compare(episode, by=game_role, baseline="mean", weight="episode", given=known),
        "role baseline by turns": lambda: compare(episode, by=("role",), baseline="mean"),
        "episode pooled": lambda: whiten(compare(episode, by=(), baseline="mean")),
        "episode per role": lambda: whiten(
            compare(episode, by=("role",), baseline="mean", weight="episode"), "episode"
        ),
        "to go pooled": lambda: whiten(plain),
        "to go per role": lambda: compare(plain, by=("role",), baseline="mean"),
        "to go per role and turn": lambda: whiten(compare(plain, by=("role", "turn"), baseline="mean")),
        "agent wise": lambda: compare(episode, by=by_agent, baseline="mean", scale="std"),
        "agent wise raw": lambda: compare(episode, by=by_agent, baseline="mean", scale="std", single="raw"),
        "agent wise by episodes": lambda: compare(episode, by=by_agent, baseline="mean", weight="episode"),
        "turn wise": lambda: compare(moved, by=by_round, baseline="mean", scale="std"),
        "turn wise to go": lambda: compare(to_go, by=by_round, baseline="mean", scale="std"),
        "step groups": lambda: (
            compare(episode, by=by_group, baseline="mean", scale="std", weight="episode")
            + 0.5 * compare(to_go, by=faced, baseline="mean", scale="std")
        ),
        "step groups per agent": lambda: (
            compare(episode, by=by_agent, baseline="mean") + compare(plain, by=(*faced, "agent"), baseline="mean")
        ),
        "round": lambda: compare(to_go, by=by_round, baseline="leave_one_out"),
        "sequential": lambda: whiten(through_agents_by_hand(x, 0.9, 0.8)),
    }[name]()


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
    pad = lambda f: np.pad(f, ((0, 3), (0, 2), *((0, 0),) * (f.ndim - 2))) if f.ndim > 1 else np.pad(f, (0, 3))  # noqa: E731
    got = advantage(name, of_episodes(x, pad))
    np.testing.assert_allclose(got[:B, :T], advantage(name, x), rtol=1e-4, atol=1e-5)
    assert not got[B:].any() and not got[:, T:].any()


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


@every_variant
def test_jit_and_no_jit_agree(name: str):
    x = full(6)
    np.testing.assert_allclose(VARIANTS[name](x), advantage(name, x), rtol=1e-4, atol=1e-5)


@every_variant
def test_vmapped_equals_alone_and_numbers_may_be_traced(name: str):
    variant, batches = VARIANTS[name], [full(seed) for seed in range(3)]
    numbers = {k: v for k, v in variant.options.items() if k in ("gamma", "beta", "lam", "step_weight", "state")}
    numbers |= {"decay": 0.9} if variant.preset is advantages.role_baseline else {}
    stacked = {field: jnp.stack([x[field] for x in batches]) for field in batches[0]}
    together = jax.jit(jax.vmap(lambda x, numbers: variant(x, **numbers), (0, None)))(stacked, numbers)
    alone = np.stack([advantage(name, x) for x in batches])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


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


def test_an_episode_weighs_once_however_often_a_seat_acts():
    reward, acted, group = np.zeros((2, 4, 1)), np.zeros((2, 4, 1), bool), jnp.zeros(2, int)
    reward[:, 0, 0] = 3.0, 0.0
    acted[0, :3], acted[1, 0] = True, True
    by_episode = advantages.grpo(jnp.asarray(reward), jnp.asarray(acted), group, 1, scale="none")
    by_turn = advantages.grpo(jnp.asarray(reward), jnp.asarray(acted), group, 1, scale="none", weight="turn")
    np.testing.assert_allclose(by_episode[:, 0, 0], [1.5, -1.5], rtol=1e-6)
    np.testing.assert_allclose(by_turn[:, 0, 0], [0.75, -2.25], rtol=1e-6)


def test_a_group_of_one():
    x = full(0) | {"reward": np.full((1, 1, 1), 0.7, np.float32), "acted": np.ones((1, 1, 1), bool)}
    x |= {"components": np.full((1, 1, 1, 2), 0.7, np.float32), "group": np.zeros(1, int), "game": np.zeros(1, int)}
    x |= {"role": np.zeros((1, 1, 1), int), "observation": np.zeros((1, 1, 1), int)}
    for name in VARIANTS:
        if not name.startswith(("reinforce to", "alignment", "sequential")):
            alone = {"reinforce": 0.7, "agent wise raw": 0.7, "role baseline": 0.7 - 1.0}.get(name, 0.0)
            np.testing.assert_allclose(VARIANTS[name](x, 1)[0, 0, 0], alone, rtol=1e-6, err_msg=name)


def test_leave_one_out_is_the_mean_baseline_times_n_over_n_minus_one():
    generator = np.random.default_rng(8)
    reward, acted = jnp.asarray(generator.normal(size=(6, 1, 1))), jnp.ones((6, 1, 1), bool)
    group = jnp.zeros(6, int)
    np.testing.assert_allclose(
        advantages.rloo(reward, acted, group, 1),
        advantages.grpo(reward, acted, group, 1, scale="none") * 6 / 5,
        rtol=1e-6,
    )


def test_second_moments_of_agents_under_global_and_under_their_own_statistics():
    generator = np.random.default_rng(9)
    score = np.stack([generator.normal(2.0, 0.3, 40), generator.normal(-1.0, 1.5, 40)], axis=1)[:, None, :]
    reward, acted, group = jnp.asarray(score, jnp.float32), jnp.ones((40, 1, 2), bool), jnp.zeros(40, int)
    pooled = np.asarray(advantages.grpo(reward, acted, group, 1))
    own = np.asarray(advantages.agent_wise(reward, acted, group, 1))
    for k in range(2):
        x = score[:, 0, k]
        identity = (x.var() + (x.mean() - score.mean()) ** 2) / score.var()
        np.testing.assert_allclose((pooled[:, 0, k] ** 2).mean(), identity, rtol=1e-4)
        np.testing.assert_allclose((own[:, 0, k] ** 2).mean(), 1, rtol=1e-4)


APART = (
    "grpo per agent",
    "rloo by turns, per agent",
    "agent wise",
    "agent wise raw",
    "agent wise by episodes",
    "turn wise",
    "turn wise to go",
    "step groups per agent",
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


def test_acting_once_for_a_common_reward_agent_wise_is_global():
    """Only agents that act conditionally or repeatedly can be treated differently."""
    reward, acted, group = batch(19)
    common = np.broadcast_to(reward[:, :, :1], reward.shape)
    acted = np.zeros_like(acted)
    acted[:, 0, 0] = acted[:, 1, 1] = True
    given = jnp.asarray(common), jnp.asarray(acted), jnp.asarray(group), GROUPS
    np.testing.assert_allclose(advantages.agent_wise(*given), advantages.grpo(*given), rtol=1e-4, atol=1e-5)
    acted[:5, 2, 1] = True
    given = given[0], jnp.asarray(acted), *given[2:]
    assert np.abs(advantages.agent_wise(*given) - advantages.grpo(*given)).max() > 0.01


def test_a_reshape_is_not_a_group():
    """MARTI's grouping: arrays cut into pieces of one group's size before they are split by agent.

    Each piece then holds rounds and agents of one episode. Seat 1 always earns 1 and seat 0 nothing, so that nobody
    did better than in the other episodes: the mistake praises seat 1 for being seat 1.
    """
    group_size, rounds = 4, 2
    reward, acted = np.zeros((2 * group_size, rounds, 2), np.float32), np.ones((2 * group_size, rounds, 2), bool)
    reward[:, -1, 1] = 1.0
    group = np.repeat(np.arange(2), group_size)
    total = np.broadcast_to(reward.sum(1, keepdims=True), reward.shape)
    pieces = total.reshape(-1, group_size)  # [episodes * rounds * agents / group_size, group_size]
    mistaken = ((pieces - pieces.mean(1, keepdims=True)) / (pieces.std(1, keepdims=True) + 1e-6)).reshape(reward.shape)
    np.testing.assert_allclose(mistaken[:, :, 1], 1, rtol=1e-4)
    given = jnp.asarray(reward), jnp.asarray(acted), jnp.asarray(group), 2
    np.testing.assert_array_equal(advantages.agent_wise(*given), np.zeros_like(reward))
    generator = np.random.default_rng(20)
    noisy = np.asarray(given[0] + jnp.asarray(generator.normal(size=reward.shape), jnp.float32))
    ours = np.asarray(advantages.agent_wise(jnp.asarray(noisy), *given[1:]))
    for g in range(2):
        for agent in range(2):
            scores = noisy[group == g].sum(1)[:, agent]
            right = (scores - scores.mean()) / scores.std()
            np.testing.assert_allclose(ours[group == g][:, 0, agent], right, rtol=1e-3, atol=1e-4)


ONCE = {"group": jnp.zeros(4, int), "num_groups": 1, "num_roles": 2}


def test_a_role_baseline_takes_d_squared_off_the_mean_square():
    """Rewards of +-1 with role means +-d: 1 without a baseline, 1 - d^2 with it, exactly (here d = 1/2)."""
    reward = jnp.array([[1.0, -1.0], [1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])[:, None, :]
    acted, role = jnp.ones((4, 1, 2), bool), jnp.broadcast_to(jnp.arange(2)[None, None, :], (4, 1, 2))
    plain = advantages.reinforce(reward, acted, ONCE["group"], 1)
    got, _ = advantages.role_baseline(reward, acted, **ONCE, role=role, state=advantages.init_role_baseline(2))
    assert (plain**2).mean() == 1 and (got**2).mean() == 1 - 0.5**2


def test_a_running_mean_starts_where_the_first_batch_is():
    """A naive copy that starts at 0 has a bias of mean * decay^n after n batches; this has none at any time."""
    reward = jnp.array([2.0, 4.0, 2.0, 4.0])[:, None, None]
    acted, role = jnp.ones((4, 1, 1), bool), jnp.zeros((4, 1, 1), int)
    update = jax.jit(lambda memory: advantages.role_baseline(reward, acted, **ONCE, role=role, state=memory, decay=0.5))
    memory, naive = advantages.init_role_baseline(2), 0.0
    for n in range(4):
        got, memory = update(memory)
        np.testing.assert_allclose(got.mean(), 0, atol=1e-6)
        assert reward.mean() - naive == 3 * 0.5**n
        naive = 0.5 * naive + 0.5 * 3.0


def test_a_running_mean_is_read_before_it_is_updated_and_kept_by_game_and_role():
    acted = jnp.ones((2, 1, 2), bool)
    role, game = jnp.array([[[0, 1]], [[1, 0]]]), jnp.array([0, 1])
    memory = advantages.RoleBaselineState(
        jnp.array([[10.0, 0.0], [0.0, 20.0]]), jnp.array([[True, False], [False, True]])
    )
    reward = jnp.array([[[1.0, 2.0]], [[3.0, 4.0]]])
    options = {"group": jnp.zeros(2, int), "num_groups": 1, "role": role, "num_roles": 2, "game": game, "num_games": 2}
    got, after = advantages.role_baseline(reward, acted, state=memory, decay=0.9, **options)
    np.testing.assert_allclose(got, [[[1 - 10, 0]], [[3 - 20, 0]]])
    np.testing.assert_allclose(after.mean, [[9.1, 2.0], [4.0, 0.9 * 20 + 0.1 * 3]], rtol=1e-6)
    assert after.known.all()
    idle, kept = advantages.role_baseline(reward, acted & False, state=memory, **options)
    assert not idle.any()
    jax.tree.map(np.testing.assert_array_equal, kept, memory)


def test_a_large_component_does_not_drown_a_small_one():
    x = full(21)
    larger = x | {"components": x["components"] * np.array([1.0, 1000.0], np.float32)}
    np.testing.assert_allclose(advantage("decoupled", larger), advantage("decoupled", x), rtol=1e-3, atol=1e-4)
    one = x | {"components": x["components"][..., :1], "weights": np.ones(1, np.float32)}
    np.testing.assert_allclose(
        VARIANTS["decoupled by turns"](one),
        advantages.agent_wise(jnp.asarray(x["reward"]), jnp.asarray(x["acted"]), jnp.asarray(x["group"]), GROUPS),
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
    np.testing.assert_array_equal(VARIANTS["step groups"](x, step_weight=0.0), whole)
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
    total = jax.jit(lambda change: (VARIANTS[name](x | {field: x[field] + change * direction}) * mix).sum())
    slope = (total(3e-3) - total(-3e-3)) / 6e-3
    np.testing.assert_allclose(jax.grad(total)(0.0), slope, rtol=2e-2, atol=1e-2)


def test_statistics_of_each_agent_equal_a_loop():
    x = full(27)
    got, acted, group = advantage("agent wise", x).copy(), x["acted"], x["group"]
    got[group == 2] = 0.0
    found = advantages.statistics(jnp.asarray(got), jnp.asarray(acted), jnp.asarray(group), GROUPS)
    for a in range(A):
        loss_mask = got[:, :, a][acted[:, :, a]]
        sizes, zeros = [], []
        for g in range(GROUPS):
            values = np.abs(got[group == g][:, :, a][acted[group == g][:, :, a]])
            if len(values):
                sizes.append(values.sum() ** 2 / (values**2).sum() if values.any() else 0.0)
                zeros.append(not values.any())
        wanted = {
            "advantage_mean": loss_mask.mean(),
            "advantage_variance": loss_mask.var(),
            "effective_group_size": np.mean(sizes),
            "zero_groups": np.mean(zeros),
        }
        assert set(found) == set(wanted) and 0 < wanted["zero_groups"] < 1
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name][a], value, rtol=1e-4, atol=1e-5, err_msg=name)
    nobody = advantages.statistics(jnp.asarray(got), jnp.asarray(acted) & False, jnp.asarray(group), GROUPS)
    assert all((value == 0).all() for value in nobody.values())


def test_equal_advantages_count_fully_and_one_that_outweighs_counts_once():
    acted, group = jnp.ones((4, 1, 2), bool), jnp.zeros(4, int)
    even = jnp.array([[1.0, 1e-6], [-1.0, 0.0], [1.0, 1e-6], [-1.0, 9.0]])[:, None, :]
    np.testing.assert_allclose(advantages.statistics(even, acted, group, 1)["effective_group_size"], [4, 1], rtol=1e-5)


def test_alignment_credit_of_three_rounds_written_out():
    reward = np.random.default_rng(11).normal(size=(2, 3, 2)).astype(np.float32)
    x, y = reward[0].astype(float), reward[1].astype(float)
    c, d = 0.8, 0.6  # gamma, beta
    first = [x[0, a] + c * x[1, a] + c * c * x[2, a] - y[0, a] - c * y[1, a] - c * c * y[2, a] for a in (0, 1)]
    second = [x[1, a] + c * x[2, a] - y[1, a] - c * y[2, a] for a in (0, 1)]
    third = [x[2, a] - y[2, a] for a in (0, 1)]
    by_hand = np.array(
        [
            [first[0], first[1]],
            [second[0] + d * c * (c * first[0]) * second[1], second[1] + d * c * (c * first[1]) * second[0]],
            [
                third[0] + d * c * (c * c * first[0] + c * second[0]) * third[1],
                third[1] + d * c * (c * c * first[1] + c * second[1]) * third[0],
            ],
        ]
    )
    got = advantages.advantage_alignment(
        jnp.asarray(reward), jnp.ones((2, 3, 2), bool), jnp.zeros(2, int), 1, gamma=c, beta=d
    )
    np.testing.assert_allclose(got[0], by_hand, rtol=1e-5, atol=1e-6)


def test_without_beta_alignment_is_the_round_baseline():
    reward, acted, group = (jnp.asarray(field) for field in batch(12))
    naive = advantages.round_leave_one_out(reward, acted, group, GROUPS, gamma=0.9)
    np.testing.assert_array_equal(
        advantages.advantage_alignment(reward, acted, group, GROUPS, gamma=0.9, beta=0.0), naive
    )


def test_whitening_is_over_the_acts_of_the_batch():
    reward, acted, _ = batch(14)
    got = np.asarray(advantages.whiten(jnp.asarray(reward), jnp.asarray(acted)))
    x = reward[acted]
    np.testing.assert_allclose(got[acted], (x - x.mean()) / x.std(), rtol=1e-4, atol=1e-5)
    assert not got[~acted].any()


def test_keys_number_all_combinations():
    indices = {"group": (jnp.arange(3)[:, None, None], 3), "agent": (jnp.arange(2)[None, None, :], 2)}
    key, num_keys = advantages.key_of((3, 4, 2), **indices)
    assert num_keys == 6
    np.testing.assert_array_equal(key[:, 3], [[0, 1], [2, 3], [4, 5]])
    with pytest.raises(ValueError, match=r"index group has shape \(5, 1, 1\)"):
        advantages.key_of((3, 4, 2), group=(jnp.zeros((5, 1, 1), int), 5))


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
        advantages.decoupled(reward[..., None], acted, group, 1, weights=jnp.ones(2))
    with pytest.raises(ValueError, match="turn, to_go, episode"):
        advantages.turn_wise(reward, acted, group, 1, returns="round")  # type: ignore[arg-type]
    key = jnp.zeros((2, 2, 3), int)
    with pytest.raises(ValueError, match="takes no weights"):
        advantages.estimate(reward, acted, key, 1, baseline="leave_one_out", weights=jnp.ones((2, 2, 3)))
    with pytest.raises(ValueError, match="leave_one_out"):
        advantages.estimate(reward, acted, jnp.zeros((2, 2, 3), int), 1, baseline="median")  # type: ignore[arg-type]
