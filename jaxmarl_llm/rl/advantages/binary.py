"""Advantages for binary rewards: an episode's sum lies in [0, 1]. Arrays in, arrays out.

The arguments are those of every preset; `consistency` needs `answer` as well. A seat is compared with
all seats of its group.
"""

import jax.numpy as jnp
from jax import Array
from jax.nn import sigmoid
from jax.scipy.special import betaln, xlog1py, xlogy

from jaxmarl_llm.rl.masked import keep, segment_count, segment_mean
from jaxmarl_llm.rl.returns import Number
from jaxmarl_llm.rl.shapes import check_shapes
from jaxmarl_llm.rl.statistics import accumulate, estimate


def beta_normalised(reward: Array, acted: Array, group: Array, num_groups: int) -> Array:
    """(R - p) / f(p), p the group's share of right answers, f the density of a Beta law fitted to the batch's shares.

    The law is Beta(max(1, 1 + a/3), max(1, 1 + b/3)), with a = (m (1 - m) / v - 1) m and b the same with 1 - m. Here m
    and v are the mean and the unbiased variance of p over the groups. The factor 1 / f is at most 1e6. With both
    parameters 1 the result is the reward less the group mean; with 3/2 it is GRPO up to a factor.

    Xiao et al., BNPO: Beta Normalization Policy Optimization (2025), https://arxiv.org/abs/2506.02864; formula of the
    released code.
    """
    check_shapes("acted reward [B,T,A] group [B]", acted, reward, group)
    total, where, key = _episode_sums(reward, acted, group)
    count = segment_count(key, num_groups, where)
    share = jnp.where(count > 1, segment_mean(total, key, num_groups, where), 0)  # a group of one: as released
    known = count > 0
    n = jnp.maximum(known.sum(), 2)
    mean = jnp.where(known, share, 0).sum() / n
    variance = jnp.where(known, (share - mean) ** 2, 0).sum() / (n - 1)
    moment = mean * (1 - mean) / jnp.maximum(variance, 1e-12) - 1
    alpha, beta = (jnp.maximum(1, 1 + moment * x / 3) for x in (mean, 1 - mean))
    density = jnp.exp(xlogy(alpha - 1, share) + xlog1py(beta - 1, -share) - betaln(alpha, beta))
    weight = jnp.minimum(1 / jnp.maximum(density, 1e-30), 1e6)
    return _to_acts((total - share[key]) * weight[key], acted)


def consistency(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    answer: Array,
    discount: bool = True,
    right_only: bool = False,
    slope: Number = 5.0,
    threshold: Number = 1.0,
) -> Array:
    """w A_local + (1 - w) A_global of ``consistency_parts``, with its options: one advantage for any loss.

    Han et al., COPO: Consistency-Aware Policy Optimization (2025), https://arxiv.org/abs/2508.04138; formula of the
    released code. The paper clips the two terms separately, as ``losses.blended_clip`` does. On-policy, both have the
    same gradient.
    """
    check_shapes("acted reward [B,T,A] group answer [B]", acted, reward, group, answer)
    within, between, weight = consistency_parts(
        reward, acted, group, num_groups,
        answer=answer, discount=discount, right_only=right_only, slope=slope, threshold=threshold,
    )  # fmt: skip
    return weight * within + (1 - weight) * between


def consistency_parts(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    answer: Array,
    discount: bool = True,
    right_only: bool = False,
    slope: Number = 5.0,
    threshold: Number = 1.0,
) -> tuple[Array, Array, Array]:
    """(A_local, A_global, w) [B,T,A]: advantages within and between groups, and the weight of the first.

    H is the entropy in bits of ``answer`` int [B] within the group, and w = sigmoid(slope (H - threshold)). With
    ``right_only`` w is 0 for a reward of 0. A_local is GRPO with the unbiased deviation. A_global is the z-score, over
    the groups, of a group's mean reward. With ``discount`` the mean is first multiplied by 1 - H (1 - 1/n) / log2(n),
    for n episodes in the group. The release uses ``discount=False, right_only=True`` ("soft with zero"): a wrong answer
    to an easy question then has a positive advantage.

    Han et al., COPO: Consistency-Aware Policy Optimization (2025), https://arxiv.org/abs/2508.04138; formula of the
    released code.
    """
    check_shapes("acted reward [B,T,A] group answer [B]", acted, reward, group, answer)
    total, where, key = _episode_sums(reward, acted, group)
    episodes = where.any((1, 2))
    same_group = (group[:, None] == group[None]) & episodes[:, None] & episodes[None]
    n = jnp.maximum(same_group.sum(1), 1)
    share = (same_group & (answer[:, None] == answer[None])).sum(1) / n
    count = segment_count(key, num_groups, where)
    entropy = segment_mean(-jnp.log2(jnp.maximum(share, 1e-30))[:, None, None], key, num_groups, where)
    size = jnp.maximum(count, 2)
    factor = 1 - entropy * (1 - 1 / size) / jnp.log2(size) if discount else 1.0
    level, known = segment_mean(total, key, num_groups, where) * factor, count > 0
    between = estimate(level, known, jnp.zeros(num_groups, int), 1, baseline="mean", scale="std")
    groups = jnp.maximum(known.sum(), 2)
    between = between * jnp.sqrt((groups - 1) / groups)  # unbiased deviations, here and below
    within = estimate(total, where, key, num_groups, baseline="mean", scale="std") * jnp.sqrt((size - 1) / size)[key]
    weight = sigmoid(slope * (entropy[key] - threshold)) * (jnp.where(total != 0, 1, 0) if right_only else 1)
    return _to_acts(within, acted), _to_acts(between[key], acted), _to_acts(weight, acted)


def _episode_sums(reward: Array, acted: Array, group: Array) -> tuple[Array, Array, Array]:
    """(reward sums of episodes [B,1,A], true for seats that acted bool [B,1,A], the group int [B,1,A])."""
    total, where = accumulate(reward, acted, "episode")[:, :1], acted.any(axis=1, keepdims=True)
    return keep(total, where), where, jnp.broadcast_to(group[:, None, None], where.shape)


def _to_acts(advantage: Array, acted: Array) -> Array:
    return keep(jnp.broadcast_to(advantage, acted.shape), acted)
