"""REINFORCE, GRPO, RLOO, REINFORCE++ and their variants: returns compared with other samples of the batch.

For arguments and shapes of all estimators see the docstring of ``jaxmarl_llm.rl.advantages``.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxmarl_llm.rl.masked import keep, segment_count
from jaxmarl_llm.rl.returns import Number
from jaxmarl_llm.rl.shapes import check_shapes
from jaxmarl_llm.rl.statistics import (
    Returns,
    Scale,
    Single,
    Weight,
    accumulate,
    act_weights,
    agent_index,
    check_option,
    estimate,
    group_index,
    key_of,
    turn_index,
    weighted_mean,
    whiten,
)


def reinforce(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    returns: Returns = "episode",
    gamma: Number = 1.0,
) -> Array:
    """The return itself without a baseline: of the episode (undiscounted), or from the turn on (discounted by turns).

    The groups are not used. Textbook formula. Williams, Simple Statistical Gradient-Following Algorithms for
    Connectionist Reinforcement Learning (1992), https://doi.org/10.1007/BF00992696
    """
    check_shapes("acted reward [B,T,A] group [B]", acted, reward, group)
    return keep(accumulate(reward, acted, returns, gamma), acted)


def grpo(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    scale: Scale = "std",
    weight: Weight = "episode",
    per_agent: bool = False,
) -> Array:
    """(R - mean of the group) / (std of the group + eps), R the episode's sum; ``scale="none"`` is Dr. GRPO.

    ``weight`` chooses the samples of the group's statistics: one a seat and episode that acted, or one an act.
    ``per_agent`` computes statistics for each agent separately. Without it every seat of a group is compared with every
    other, which suits a team reward. With individual rewards the gradient is then biased: a seat's action changes the
    rewards of other seats, and so its own baseline.

    Shao et al., DeepSeekMath (2024), https://arxiv.org/abs/2402.03300.
    Liu et al., Understanding R1-Zero-Like Training: A Critical Perspective (2025), https://arxiv.org/abs/2503.20783.
    The formulas are those of the code released for Dr. MAS (see ``agent_wise``), with the population standard
    deviation.
    """
    check_shapes("acted reward [B,T,A] group [B]", acted, reward, group)
    return _compare_episodes(reward, acted, group, num_groups, weight, per_agent, baseline="mean", scale=scale)


def lite(
    reward: Array, acted: Array, group: Array, num_groups: int, *, weight: Weight = "episode", per_agent: bool = False
) -> Array:
    """(R - mean of the group) / (std of the batch + eps): ``grpo`` with the scale of the whole batch.

    A group with almost only successes or failures thus keeps small advantages. Options as in ``grpo``.

    Liu et al., Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning (2025, Lite PPO),
    https://arxiv.org/abs/2508.08221; formula from its description, as TRL's ``scale_rewards="batch"``.
    """
    check_shapes("acted reward [B,T,A] group [B]", acted, reward, group)
    arguments = reward, acted, group, num_groups, weight, per_agent
    return _compare_episodes(*arguments, whole_batch=True, baseline="mean", scale="std")


def rloo(
    reward: Array, acted: Array, group: Array, num_groups: int, *, weight: Weight = "episode", per_agent: bool = False
) -> Array:
    """R - mean of the group's other samples = (R - mean of the group) n / (n - 1); options as in ``grpo``.

    Only the sample itself is removed from its baseline. Other seats of the same episode remain, and under
    ``weight="turn"`` its other turns. The baseline is independent of the seat's own actions only with ``per_agent`` and
    ``weight="episode"``.

    Kool et al., Buy 4 REINFORCE Samples, Get a Baseline for Free! (2019), https://openreview.net/forum?id=r1lgTGL5DE
    Ahmadian et al., Back to Basics: Revisiting REINFORCE Style Optimization (2024), https://arxiv.org/abs/2402.14740
    Formula read in the code released for Dr. MAS.
    """
    check_shapes("acted reward [B,T,A] group [B]", acted, reward, group)
    return _compare_episodes(reward, acted, group, num_groups, weight, per_agent, baseline="leave_one_out")


def reinforce_plus_plus(
    reward: Array, acted: Array, group: Array, num_groups: int, *, gamma: Number = 1.0, weight: Weight = "turn"
) -> Array:
    """(G_t - mean) / (std + eps) over the whole batch, G the return-to-go; with gamma < 1 this is ReBN.

    Every seat is compared with every other, in every turn. The groups are not used. The paper's KL penalty is a
    separate loss here (``losses.kl_penalty``).

    Hu et al., REINFORCE++ (2025), https://arxiv.org/abs/2501.03262
    Liu et al., GEM: A Gym for Agentic LLMs (2025), https://arxiv.org/abs/2510.01051, for ReBN, from a description.
    Neither was compared with a release.
    """
    check_shapes("acted reward [B,T,A] group [B]", acted, reward, group)
    return whiten(accumulate(reward, acted, "to_go", gamma), acted, weights=act_weights(acted, weight))


def agent_wise(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    scale: Scale = "std",
    weight: Weight = "turn",
    single: Single = "zero",
) -> Array:
    """(R - mean) / (std + eps) over the calls of the same agent in the same group, R the episode's sum.

    A call is a turn in which the agent acted, so an episode with two calls weighs double (``weight``). The mean square
    advantage of each agent is then 1. Under the statistics of all agents together it would be
    (std_k^2 + (mean_k - mean)^2) / std^2. An agent with one call in a group gets 0, or its return with
    ``single="raw"``, as in the release.

    Feng et al., Dr. MAS: Stable Reinforcement Learning for Multi-Agent LLM Systems (2026),
    https://arxiv.org/abs/2602.08847; formula read in the released code, which takes the unbiased standard deviation.
    This takes the population's, so theirs is smaller by sqrt((n - 1) / n).
    """
    check_shapes("acted reward [B,T,A] group [B]", acted, reward, group)
    kernel: dict[str, Any] = {"baseline": "mean", "scale": scale, "single": single}
    return _compare_episodes(reward, acted, group, num_groups, weight, True, **kernel)


def turn_wise(
    reward: Array, acted: Array, group: Array, num_groups: int, *, returns: Returns = "turn", gamma: Number = 1.0
) -> Array:
    """(r_t - mean) / (std + eps) over the same agent's acts in the same turn of the same group.

    r_t is the reward of the act, as the caller has added the team's and the seat's. With ``returns="to_go"`` or
    ``"episode"`` it is a return. An act without a counterpart in another episode gets 0.

    Zhao et al., Stronger Together: On-Policy Reinforcement Learning for Collaborative LLMs (2025, AT-GRPO),
    https://arxiv.org/abs/2510.11062. From a description of its key, compared with neither paper nor release.
    """
    check_shapes("acted reward [B,T,A] group [B]", acted, reward, group)
    indices = {"group": group_index(group, num_groups), "turn": turn_index(acted), "agent": agent_index(acted)}
    key = key_of(acted.shape, **indices)
    return estimate(accumulate(reward, acted, returns, gamma), acted, *key, baseline="mean", scale="std")


def step_groups(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    observation: Array,
    step_weight: Number = 1.0,
    gamma: Number = 1.0,
    scale: Scale = "std",
    weight: Weight = "episode",
    per_agent: bool = False,
) -> Array:
    """``grpo`` plus step_weight times the group-relative return-to-go of acts with the same observation.

    ``observation`` int [B,T,A] identifies what the seat saw, e.g. by a hash. Acts with equal observations are compared
    within a group, across turns, episodes and (unless ``per_agent``) seats. An observation with a single act adds 0.
    ``weight`` and ``per_agent`` are the options of ``grpo``.

    Feng et al., Group-in-Group Policy Optimization for LLM Agent Training (2025, GiGPO),
    https://arxiv.org/abs/2505.10978: anchor-state groups; the sum as in the code released for Dr. MAS.
    """
    check_shapes("acted reward observation [B,T,A] group [B]", acted, reward, observation, group)
    whole = _compare_episodes(reward, acted, group, num_groups, weight, per_agent, baseline="mean", scale=scale)
    key = _step_keys(acted, group, num_groups, per_agent, observation)
    to_go = accumulate(reward, acted, "to_go", gamma)
    return whole + step_weight * estimate(to_go, acted, key, key.size, baseline="mean", scale=scale)


def shared_steps(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    observation: Array,
    action: Array,
    before: int = 0,
    scale: Scale = "std",
    per_agent: bool = False,
) -> Array:
    """The mean of ``grpo`` over the episodes of a group with the same step; a step of one episode keeps its value.

    A step is an observation with the action taken on it, int [B,T,A] each, and the observations of the ``before`` turns
    before it. A turn without an act counts as observation 0. Equal steps are compared within a group, across turns,
    episodes and (unless ``per_agent``) seats. An episode counts once for a step. A step shared by good and bad episodes
    is thus near 0. The mean over the episodes of a step equals the mean of their ``grpo``.

    Li et al., SALT: Step-level Advantage Assignment for Long-horizon Agents via Trajectory Graph (2025),
    https://arxiv.org/abs/2510.20022; from its abstract and summaries. The definition of equal steps is ours.
    """
    check_shapes("acted reward observation action [B,T,A] group [B]", acted, reward, observation, action, group)
    whole = grpo(reward, acted, group, num_groups, scale=scale, per_agent=per_agent)
    shifted = [jnp.pad(keep(observation, acted), ((0, 0), (back, 0), (0, 0))) for back in range(1, before + 1)]
    earlier = [names[:, : observation.shape[1]] for names in shifted]
    step = _step_keys(acted, group, num_groups, per_agent, observation, action, *earlier)
    episode = jnp.broadcast_to(jnp.arange(len(group))[:, None, None], acted.shape)
    of_episode = _joint_keys(step, episode)
    weights = 1 / jnp.maximum(segment_count(of_episode, step.size, acted)[of_episode], 1)
    return keep(weighted_mean(whole, step, step.size, acted, weights)[step], acted)


def _step_keys(acted: Array, group: Array, num_groups: int, per_agent: bool, *names: Array) -> Array:
    """Keys int [B,T,A] below B T A, equal for equal group and ``names`` [B,T,A], and with ``per_agent`` equal seat."""
    seat = {"agent": agent_index(acted)} if per_agent else {}
    start, _ = key_of(acted.shape, group=group_index(group, num_groups), **seat)
    return _joint_keys(start, *names)


def _joint_keys(*names: Array) -> Array:
    """Keys int [B,T,A] below B T A, equal if all ``names`` int [B,T,A] are equal."""
    columns = jnp.stack([name.ravel() for name in names], axis=1)
    keys = jnp.unique(columns, axis=0, return_inverse=True, size=len(columns))[1]
    return keys.reshape(names[0].shape)


def decoupled_grpo(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    weights: Array,
    weight: Weight = "episode",
    per_agent: bool = False,
    whitened: bool = True,
    tokens: Array | None = None,
) -> Array:
    """sum over components c of weights_c * grpo(reward_c), whitened over the batch: reward [B,T,A,C], weights [C].

    Each component is normalised in the group before the weighted sum, so large components do not hide small ones. Other
    options as in ``grpo``. Whitening also follows ``weight``; given ``tokens`` [B,T,A] it weighs each act by its
    tokens.
    Raises ValueError if there is not one weight for each component.

    Liu et al., GDPO: Group reward-Decoupled Normalization Policy Optimization (2026),
    https://arxiv.org/abs/2601.05242. Formula of the released code, which whitens over samples in TRL and over tokens in
    verl. An easy reward that counts only if a harder one is met: ``rewards.condition_on``.
    """
    check_shapes("acted tokens [B,T,A] reward [B,T,A,C] group [B]", acted, tokens, reward, group)
    if weights.shape != reward.shape[3:]:
        raise ValueError(f"weights has shape {weights.shape}, but there are {reward.shape[3:]} reward components.")
    of_component = lambda x: grpo(x, acted, group, num_groups, weight=weight, per_agent=per_agent)
    advantage = (jax.vmap(of_component, -1, -1)(reward) * weights[None, None, None, :]).sum(axis=-1)
    unit = act_weights(acted, weight) if tokens is None else tokens.astype(jnp.float32)
    return whiten(advantage, acted, weights=unit) if whitened else advantage


def _compare_episodes(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    weight: str,
    per_agent: bool,
    whole_batch: bool = False,
    **kernel: Any,
) -> Array:
    """The sums of episodes, compared within their group by ``estimate`` with the options ``kernel``, for every act."""
    check_option("weight", weight, ("episode", "turn"))
    total, where = accumulate(reward, acted, "episode"), acted
    if weight == "episode":
        total, where = total[:, :1], acted.any(axis=1, keepdims=True)
    indices = {"group": group_index(group, num_groups)} | ({"agent": agent_index(acted)} if per_agent else {})
    batch = {"agent": agent_index(acted)} if per_agent else {}
    scale_key = key_of(where.shape, **batch) if whole_batch else None
    advantage = estimate(total, where, *key_of(where.shape, **indices), scale_key=scale_key, **kernel)
    return keep(jnp.broadcast_to(advantage, acted.shape), acted)
