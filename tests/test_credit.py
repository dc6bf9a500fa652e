from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import credit

B, T, A, GROUPS = 12, 5, 2, 4
VARIANTS = {
    "reinforce": partial(credit.reinforce),
    "reinforce to go": partial(credit.reinforce, accumulate="to_go", gamma=0.9),
    "grpo": partial(credit.grpo),
    "dr grpo": partial(credit.grpo, scale="none"),
    "grpo by turns": partial(credit.grpo, weight="turn"),
    "grpo per agent": partial(credit.grpo, per_agent=True),
    "rloo": partial(credit.rloo),
    "rloo by turns, per agent": partial(credit.rloo, weight="turn", per_agent=True),
    "agent wise": partial(credit.agent_wise),
    "agent wise raw": partial(credit.agent_wise, single="raw"),
    "agent wise by episodes": partial(credit.agent_wise, weight="episode", scale="none"),
    "round": partial(credit.round_leave_one_out, gamma=0.9),
    "alignment": partial(credit.advantage_alignment, gamma=0.9, beta=0.5),
    "alignment of the paper": partial(credit.advantage_alignment, gamma=0.9, beta=0.5, leading_discount=True),
}
every_variant = pytest.mark.parametrize("name", VARIANTS)


def batch(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Episodes that end at different turns, seats that act now and then or never, groups of all sizes from 0 on."""
    generator = np.random.default_rng(seed)
    length = generator.integers(1, T + 1, B)
    alive = np.arange(T)[None, :, None] < length[:, None, None]
    acted = (generator.random((B, T, A)) < 0.7) & alive
    acted[0, :, 1] = False
    reward = np.where(alive, generator.normal(size=(B, T, A)), 0).astype(np.float32)
    return reward, acted, generator.integers(0, GROUPS, B)


def advantage(name: str, reward, acted, group, num_groups: int = GROUPS) -> np.ndarray:
    return np.asarray(VARIANTS[name](jnp.asarray(reward), jnp.asarray(acted), jnp.asarray(group), num_groups))


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


def compared_by_hand(accumulated, acted, group, by, baseline, scale="none", weight="turn", single="zero"):
    """Look through all samples for each act: slow, and with no arithmetic in common with the kernel."""
    out = np.zeros(accumulated.shape)

    def key(b, t, a):
        return tuple({"group": group[b], "turn": t, "agent": a}[name] for name in by)

    first: dict[tuple[int, int], int] = {}
    for b, t, a in zip(*np.nonzero(acted), strict=True):
        first.setdefault((b, a), t)
    samples = [s for s in zip(*np.nonzero(acted), strict=True) if weight == "turn" or first[s[0], s[2]] == s[1]]
    for b, t, a in zip(*np.nonzero(acted), strict=True):
        own = (b, t if weight == "turn" else first[b, a], a)
        peers = [accumulated[s] for s in samples if key(*s) == key(*own)]
        others = [accumulated[s] for s in samples if key(*s) == key(*own) and s != own]
        x = accumulated[b, t, a]
        if baseline == "mean":
            out[b, t, a] = x - np.mean(peers)
        elif others:
            out[b, t, a] = x - np.mean(others)
        if scale == "std":
            out[b, t, a] /= np.std(peers) + 1e-6
        if not others:
            out[b, t, a] = x if single == "raw" else 0
    return out


def expected(name, reward, acted, group):
    moved = moved_by_hand(reward, acted)
    episode = np.repeat(moved.sum(axis=1, keepdims=True), reward.shape[1], axis=1)
    to_go = to_go_by_hand(moved, 0.9)
    by_group, by_agent, by_round = ("group",), ("group", "agent"), ("group", "turn", "agent")
    compare = partial(compared_by_hand, acted=acted, group=group)
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
    return {
        "reinforce": lambda: np.where(acted, episode, 0),
        "reinforce to go": lambda: np.where(acted, to_go, 0),
        "grpo": lambda: compare(episode, by=by_group, baseline="mean", scale="std", weight="episode"),
        "dr grpo": lambda: compare(episode, by=by_group, baseline="mean", weight="episode"),
        "grpo by turns": lambda: compare(episode, by=by_group, baseline="mean", scale="std"),
        "grpo per agent": lambda: compare(episode, by=by_agent, baseline="mean", scale="std", weight="episode"),
        "rloo": lambda: compare(episode, by=by_group, baseline="leave_one_out", weight="episode"),
        "rloo by turns, per agent": lambda: compare(episode, by=by_agent, baseline="leave_one_out"),
        "agent wise": lambda: compare(episode, by=by_agent, baseline="mean", scale="std"),
        "agent wise raw": lambda: compare(episode, by=by_agent, baseline="mean", scale="std", single="raw"),
        "agent wise by episodes": lambda: compare(episode, by=by_agent, baseline="mean", weight="episode"),
        "round": lambda: compare(to_go, by=by_round, baseline="leave_one_out"),
    }[name]()


@every_variant
@pytest.mark.parametrize("seed", range(3))
def test_presets_equal_a_loop(name: str, seed: int):
    reward, acted, group = batch(seed)
    got = advantage(name, reward, acted, group)
    assert got.dtype == np.float32 and not got[~acted].any()
    np.testing.assert_allclose(got, expected(name, reward, acted, group), rtol=1e-4, atol=1e-5)


def test_every_preset_is_among_the_variants():
    assert set(credit.PRESETS.values()) == {variant.func for variant in VARIANTS.values()}


@every_variant
def test_permuted_episodes_permute_the_result(name: str):
    reward, acted, group = batch(3)
    order = np.random.default_rng(0).permutation(B)
    permuted = advantage(name, reward[order], acted[order], group[order])
    np.testing.assert_allclose(permuted, advantage(name, reward, acted, group)[order], rtol=1e-5, atol=1e-6)


@every_variant
def test_padding_changes_nothing(name: str):
    reward, acted, group = batch(4)
    longer = np.pad(reward, ((0, 3), (0, 2), (0, 0))), np.pad(acted, ((0, 3), (0, 2), (0, 0))), np.pad(group, (0, 3))
    got = advantage(name, *longer)
    np.testing.assert_allclose(got[:B, :T], advantage(name, reward, acted, group), rtol=1e-5, atol=1e-6)
    assert not got[B:].any() and not got[:, T:].any()


@every_variant
def test_a_seat_that_never_acts_changes_nothing(name: str):
    reward, acted, group = batch(5)
    changed = reward.copy()
    changed[0, :, 1] = np.nan
    np.testing.assert_array_equal(advantage(name, changed, acted, group), advantage(name, reward, acted, group))


@every_variant
def test_jit_agrees_and_discounts_may_be_traced(name: str):
    reward, acted, group = batch(6)
    variant = VARIANTS[name]
    numbers = {k: v for k, v in variant.keywords.items() if k in ("gamma", "beta")}
    jitted = jax.jit(lambda reward, acted, group, numbers: variant(reward, acted, group, GROUPS, **numbers))
    np.testing.assert_allclose(
        jitted(reward, acted, group, numbers), advantage(name, reward, acted, group), rtol=1e-5, atol=1e-6
    )


@every_variant
def test_vmapped_equals_alone(name: str):
    batches = [batch(seed) for seed in range(3)]
    stacked = [jnp.stack(field) for field in zip(*batches, strict=True)]
    together = jax.vmap(lambda *arrays: VARIANTS[name](*arrays, GROUPS))(*stacked)
    alone = np.stack([advantage(name, *one) for one in batches])
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [0.1, -0.3, 1.0, 77.7])
@pytest.mark.parametrize("name", [name for name in VARIANTS if not name.startswith("reinforce")])
def test_a_constant_group_gets_exactly_zero(name: str, value: float):
    reward = np.zeros((7, 3, 2), np.float32)
    reward[:, 2] = value
    got = advantage(name, reward, np.ones((7, 3, 2), bool), np.zeros(7, int))
    np.testing.assert_array_equal(got, np.zeros_like(got))


@pytest.mark.parametrize("name", ["grpo by turns", "agent wise"])
def test_a_mean_baseline_leaves_mean_zero_under_every_key(name: str):
    reward, acted, group = batch(7)
    got = advantage(name, reward, acted, group)
    for g in range(GROUPS):
        seats = [(0, 1)] if name == "grpo by turns" else [(0,), (1,)]
        for agents in seats:
            mine = got[group == g][:, :, agents][acted[group == g][:, :, agents]]
            assert abs(mine.sum()) < 1e-4


def test_an_episode_weighs_once_however_often_a_seat_acts():
    reward, acted, group = np.zeros((2, 4, 1)), np.zeros((2, 4, 1), bool), jnp.zeros(2, int)
    reward[:, 0, 0] = 3.0, 0.0
    acted[0, :3], acted[1, 0] = True, True
    by_episode = credit.grpo(jnp.asarray(reward), jnp.asarray(acted), group, 1, scale="none")
    by_turn = credit.grpo(jnp.asarray(reward), jnp.asarray(acted), group, 1, scale="none", weight="turn")
    np.testing.assert_allclose(by_episode[:, 0, 0], [1.5, -1.5], rtol=1e-6)
    np.testing.assert_allclose(by_turn[:, 0, 0], [0.75, -2.25], rtol=1e-6)


def test_a_group_of_one():
    reward, acted, group = jnp.full((1, 1, 1), 0.7), jnp.ones((1, 1, 1), bool), jnp.zeros(1, int)
    for name in ("grpo", "rloo", "agent wise", "round"):
        assert VARIANTS[name](reward, acted, group, 1) == 0
    assert VARIANTS["agent wise raw"](reward, acted, group, 1) == reward


def test_leave_one_out_is_the_mean_baseline_times_n_over_n_minus_one():
    generator = np.random.default_rng(8)
    reward, acted = jnp.asarray(generator.normal(size=(6, 1, 1))), jnp.ones((6, 1, 1), bool)
    group = jnp.zeros(6, int)
    np.testing.assert_allclose(
        credit.rloo(reward, acted, group, 1), credit.grpo(reward, acted, group, 1, scale="none") * 6 / 5, rtol=1e-6
    )


def test_second_moments_of_agents_under_global_and_under_their_own_statistics():
    generator = np.random.default_rng(9)
    score = np.stack([generator.normal(2.0, 0.3, 40), generator.normal(-1.0, 1.5, 40)], axis=1)[:, None, :]
    reward, acted, group = jnp.asarray(score, jnp.float32), jnp.ones((40, 1, 2), bool), jnp.zeros(40, int)
    pooled = np.asarray(credit.grpo(reward, acted, group, 1))
    own = np.asarray(credit.agent_wise(reward, acted, group, 1))
    for k in range(2):
        x = score[:, 0, k]
        identity = (x.var() + (x.mean() - score.mean()) ** 2) / score.var()
        np.testing.assert_allclose((pooled[:, 0, k] ** 2).mean(), identity, rtol=1e-4)
        np.testing.assert_allclose((own[:, 0, k] ** 2).mean(), 1, rtol=1e-4)


def test_agents_do_not_mix_unless_the_key_says_so():
    reward, acted, group = batch(10)
    changed = reward + np.array([0.0, 5.0], np.float32) * np.linspace(0, 1, B)[:, None, None].astype(np.float32)
    for name in ("grpo per agent", "rloo by turns, per agent", "agent wise", "round"):
        before, after = advantage(name, reward, acted, group), advantage(name, changed, acted, group)
        np.testing.assert_array_equal(before[:, :, 0], after[:, :, 0])
    assert (advantage("grpo", reward, acted, group) != advantage("grpo", changed, acted, group))[:, :, 0].any()


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
    got = credit.advantage_alignment(
        jnp.asarray(reward), jnp.ones((2, 3, 2), bool), jnp.zeros(2, int), 1, gamma=c, beta=d
    )
    np.testing.assert_allclose(got[0], by_hand, rtol=1e-5, atol=1e-6)


def test_without_beta_alignment_is_the_round_baseline():
    reward, acted, group = (jnp.asarray(field) for field in batch(12))
    naive = credit.round_leave_one_out(reward, acted, group, GROUPS, gamma=0.9)
    np.testing.assert_array_equal(credit.advantage_alignment(reward, acted, group, GROUPS, gamma=0.9, beta=0.0), naive)


def test_rewards_belong_to_the_act_before_them():
    reward = jnp.array([1.0, 2.0, 4.0, 8.0, 16.0])[None, :, None]
    acted = jnp.array([False, True, False, True, False])[None, :, None]
    np.testing.assert_array_equal(credit.credit_to_acts(reward, acted)[0, :, 0], [0, 7, 0, 24, 0])
    np.testing.assert_array_equal(credit.credit_to_acts(reward, acted & False), jnp.zeros((1, 5, 1)))


def test_episode_sums_survive_the_move_where_a_seat_acts():
    reward, acted, _ = batch(13)
    moved = credit.credit_to_acts(jnp.asarray(reward), jnp.asarray(acted))
    np.testing.assert_allclose(moved.sum(axis=1), np.where(acted.any(1), reward.sum(1), 0), rtol=1e-5, atol=1e-6)
    assert not np.asarray(moved)[~acted].any()


def test_returns_follow_their_recursion():
    reward = jnp.array([1.0, 0.0, 4.0])[None, :, None]
    np.testing.assert_allclose(credit.return_to_go(reward, 0.5)[0, :, 0], [2.0, 2.0, 4.0])
    np.testing.assert_array_equal(credit.return_to_go(reward)[:, 0], credit.episode_return(reward)[:, 0])


def test_whitening_is_over_the_acts_of_the_batch():
    reward, acted, _ = batch(14)
    got = np.asarray(credit.whiten(jnp.asarray(reward), jnp.asarray(acted)))
    x = reward[acted]
    np.testing.assert_allclose(got[acted], (x - x.mean()) / x.std(), rtol=1e-4, atol=1e-5)
    assert not got[~acted].any()


def test_keys_number_all_combinations():
    indices = {"group": (jnp.arange(3)[:, None, None], 3), "agent": (jnp.arange(2)[None, None, :], 2)}
    key, num_keys = credit.key_of((3, 4, 2), **indices)
    assert num_keys == 6
    np.testing.assert_array_equal(key[:, 3], [[0, 1], [2, 3], [4, 5]])
    with pytest.raises(ValueError, match=r"index group has shape \(5, 1, 1\)"):
        credit.key_of((3, 4, 2), group=(jnp.zeros((5, 1, 1), int), 5))


def test_impossible_requests_are_refused():
    reward, acted, group = jnp.zeros((2, 2, 3)), jnp.ones((2, 2, 3), bool), jnp.zeros(2, int)
    with pytest.raises(ValueError, match="two seats, but there are 3"):
        credit.advantage_alignment(reward, acted, group, 1, gamma=0.9, beta=0.5)
    with pytest.raises(ValueError, match="episode, turn"):
        credit.grpo(reward, acted, group, 1, weight="token")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="leave_one_out"):
        credit.estimate(reward, acted, jnp.zeros((2, 2, 3), int), 1, baseline="median")  # type: ignore[arg-type]
