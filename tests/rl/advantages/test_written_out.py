"""Presets on batches small enough to check by hand, and identities between presets."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.rl import advantages
from tests.support.advantage_variants import GROUPS, batch, compiled


def test_an_episode_weighs_once_however_often_a_seat_acts():
    reward, acted, group = np.zeros((2, 4, 1)), np.zeros((2, 4, 1), bool), jnp.zeros(2, int)
    reward[:, 0, 0] = 3.0, 0.0
    acted[0, :3], acted[1, 0] = True, True
    by_episode = compiled(advantages.grpo, jnp.asarray(reward), jnp.asarray(acted), group, 1, scale="none")
    by_turn = compiled(advantages.grpo, jnp.asarray(reward), jnp.asarray(acted), group, 1, scale="none", weight="turn")
    np.testing.assert_allclose(by_episode[:, 0, 0], [1.5, -1.5], rtol=1e-6)
    np.testing.assert_allclose(by_turn[:, 0, 0], [0.75, -2.25], rtol=1e-6)


def test_leave_one_out_is_the_mean_baseline_times_n_over_n_minus_one():
    generator = np.random.default_rng(8)
    reward, acted = jnp.asarray(generator.normal(size=(6, 1, 1))), jnp.ones((6, 1, 1), bool)
    group = jnp.zeros(6, int)
    np.testing.assert_allclose(
        compiled(advantages.rloo, reward, acted, group, 1),
        compiled(advantages.grpo, reward, acted, group, 1, scale="none") * 6 / 5,
        rtol=1e-6,
    )


def test_second_moments_of_agents_under_global_and_under_their_own_statistics():
    generator = np.random.default_rng(9)
    score = np.stack([generator.normal(2.0, 0.3, 40), generator.normal(-1.0, 1.5, 40)], axis=1)[:, None, :]
    reward, acted, group = jnp.asarray(score, jnp.float32), jnp.ones((40, 1, 2), bool), jnp.zeros(40, int)
    pooled = np.asarray(compiled(advantages.grpo, reward, acted, group, 1))
    own = np.asarray(compiled(advantages.agent_wise, reward, acted, group, 1))
    for k in range(2):
        x = score[:, 0, k]
        identity = (x.var() + (x.mean() - score.mean()) ** 2) / score.var()
        np.testing.assert_allclose((pooled[:, 0, k] ** 2).mean(), identity, rtol=1e-4)
        np.testing.assert_allclose((own[:, 0, k] ** 2).mean(), 1, rtol=1e-4)


def test_acting_once_for_a_common_reward_agent_wise_is_global():
    """Only agents that act conditionally or repeatedly can be treated differently."""
    reward, acted, group = batch(19)
    common = np.broadcast_to(reward[:, :, :1], reward.shape)
    acted = np.zeros_like(acted)
    acted[:, 0, 0] = acted[:, 1, 1] = True
    given = jnp.asarray(common), jnp.asarray(acted), jnp.asarray(group), GROUPS
    np.testing.assert_allclose(
        compiled(advantages.agent_wise, *given), compiled(advantages.grpo, *given), rtol=1e-4, atol=1e-5
    )
    acted[:5, 2, 1] = True
    given = given[0], jnp.asarray(acted), *given[2:]
    assert np.abs(compiled(advantages.agent_wise, *given) - compiled(advantages.grpo, *given)).max() > 0.01


def test_a_reshape_is_not_a_group():
    """MARTI's grouping cuts arrays into pieces of a group's size before it splits them by agent.

    Each piece then holds rounds and agents of one episode. Here seat 1 always earns 1 and seat 0 nothing, so no episode
    is better than another. The mistake gives seat 1 a positive advantage for its seat alone.
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
    np.testing.assert_array_equal(compiled(advantages.agent_wise, *given), np.zeros_like(reward))
    generator = np.random.default_rng(20)
    noisy = np.asarray(given[0] + jnp.asarray(generator.normal(size=reward.shape), jnp.float32))
    ours = np.asarray(compiled(advantages.agent_wise, jnp.asarray(noisy), *given[1:]))
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
    plain = compiled(advantages.reinforce, reward, acted, ONCE["group"], 1)
    got, _ = compiled(
        advantages.role_baseline, reward, acted, **ONCE, role=role, state=advantages.init_role_baseline(2)
    )
    assert (plain**2).mean() == 1 and (got**2).mean() == 1 - 0.5**2


def test_a_running_mean_starts_where_the_first_batch_is():
    """A naive copy that starts at 0 has a bias of mean * decay^n after n batches; this has none at any time."""
    reward = jnp.array([2.0, 4.0, 2.0, 4.0])[:, None, None]
    acted, role = jnp.ones((4, 1, 1), bool), jnp.zeros((4, 1, 1), int)
    update = jax.jit(
        lambda memory: compiled(advantages.role_baseline, reward, acted, **ONCE, role=role, state=memory, decay=0.5)
    )
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
    got, after = compiled(advantages.role_baseline, reward, acted, state=memory, decay=0.9, **options)
    np.testing.assert_allclose(got, [[[1 - 10, 0]], [[3 - 20, 0]]])
    np.testing.assert_allclose(after.mean, [[9.1, 2.0], [4.0, 0.9 * 20 + 0.1 * 3]], rtol=1e-6)
    assert after.known.all()
    idle, kept = compiled(advantages.role_baseline, reward, acted & False, state=memory, **options)
    assert not idle.any()
    jax.tree.map(np.testing.assert_array_equal, kept, memory)


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
    got = compiled(
        advantages.advantage_alignment,
        jnp.asarray(reward),
        jnp.ones((2, 3, 2), bool),
        jnp.zeros(2, int),
        1,
        gamma=c,
        beta=d,
    )
    np.testing.assert_allclose(got[0], by_hand, rtol=1e-5, atol=1e-6)


def test_without_beta_alignment_is_the_round_baseline():
    reward, acted, group = (jnp.asarray(field) for field in batch(12))
    naive = compiled(advantages.round_leave_one_out, reward, acted, group, GROUPS, gamma=0.9)
    np.testing.assert_array_equal(
        compiled(advantages.advantage_alignment, reward, acted, group, GROUPS, gamma=0.9, beta=0.0), naive
    )


def rewards_apart(seed: int):
    """Shuffled groups of eight one-turn episodes with three binary rewards of chance 0.9, 0.5 and 0.1."""
    generator = np.random.default_rng(seed)
    group = generator.permutation(np.repeat(np.arange(6), 8))
    reward = (generator.random((48, 1, 1, 3)) < np.array([0.9, 0.5, 0.1])).astype(np.float32)
    return reward, np.ones((48, 1, 1), bool), group


def test_decoupled_whitened_over_samples_and_over_tokens_by_a_loop():
    reward, acted, group = rewards_apart(0)
    weights, tokens = np.array([1.0, 2.0, 0.5], np.float32), np.random.default_rng(1).integers(1, 9, 48)
    each = np.zeros((48, 3))
    for i in range(48):
        for c in range(3):
            own = reward[group == group[i], 0, 0, c].astype(float)
            each[i, c] = (reward[i, 0, 0, c] - own.mean()) / (own.std() + 1e-6) if own.std() else 0
    total = each @ weights
    options = {"weights": jnp.asarray(weights)}
    by_sample = compiled(advantages.decoupled_grpo, reward, acted, group, 6, **options)[:, 0, 0]
    np.testing.assert_allclose(by_sample, (total - total.mean()) / total.std(), rtol=1e-4, atol=1e-5)
    lengths = jnp.asarray(tokens)[:, None, None]
    by_token = compiled(advantages.decoupled_grpo, reward, acted, group, 6, tokens=lengths, **options)[:, 0, 0]
    said = np.repeat(total, tokens)  # every token once
    np.testing.assert_allclose(by_token, (total - said.mean()) / said.std(), rtol=1e-4, atol=1e-5)


def test_the_sum_has_an_advantage_for_each_sum_and_gdpo_for_each_vector():
    said = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 1], [1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]])
    one = said[:, None, None].astype(np.float32), np.ones((8, 1, 1), bool), np.zeros(8, int)
    vectors = {tuple(x) for x in said}
    assert (len(vectors), len({sum(x) for x in vectors})) == (4, 2)
    distinct = lambda x: len(np.unique(np.round(np.asarray(x), 4)))
    assert distinct(compiled(advantages.grpo, one[0].sum(-1), *one[1:])) == len({sum(x) for x in vectors})
    assert distinct(compiled(advantages.decoupled_grpo, *one, weights=jnp.ones(3))) == len(vectors)


def test_a_constant_added_to_the_rewards_of_a_group_changes_nothing_where_the_group_is_the_baseline():
    reward, acted, group = rewards_apart(3)
    own = np.arange(6, dtype=np.float32)[group][:, None, None]
    for of in (advantages.grpo, advantages.lite, advantages.rloo, advantages.round_leave_one_out):
        plain, moved = (compiled(of, x, acted, group, 6) for x in (reward[..., 2], reward[..., 2] + own))
        np.testing.assert_allclose(moved, plain, atol=1e-5)
    shift = own[..., None] * np.array([1.0, -2.0, 3.0], np.float32)  # of each component its own
    plain, moved = (
        compiled(advantages.decoupled_grpo, x, acted, group, 6, weights=jnp.ones(3)) for x in (reward, reward + shift)
    )
    np.testing.assert_allclose(moved, plain, atol=1e-4)
    for of, change in ((advantages.reinforce, own), (advantages.reinforce_plus_plus, own)):  # it moves those
        moved = compiled(of, reward[..., 2] + change, acted, group, 6)
        assert np.abs(moved - compiled(of, reward[..., 2], acted, group, 6)).max() > 0.1
    same = compiled(advantages.reinforce_plus_plus, reward[..., 2] + 5, acted, group, 6)  # one constant for all
    np.testing.assert_allclose(
        same, compiled(advantages.reinforce_plus_plus, reward[..., 2], acted, group, 6), atol=1e-4
    )
