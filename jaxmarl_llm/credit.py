"""Credit: which reward a turn is held to have earned, and compared with what. Arrays in, arrays out.

Every method is advantage = (accumulated reward - baseline[key]) / scale[key]. Methods differ in what is accumulated,
in the key (question, turn, agent), in the baseline and in the scale: ``estimate`` is that kernel, the presets name the
combinations. A preset takes

    reward [B,T,A] float   components weighted and summed already; 0 after the end of an episode
    acted  [B,T,A] bool    which seats spoke in that turn
    group  [B] int         0..num_groups-1; episodes of a group start alike; num_groups is static

and returns the advantage [B,T,A], float32, exactly 0 where a seat did not act. B episodes, T turns, A seats. A reward
counts for the seat's latest act before it (``credit_to_acts``). Discounts and weights may be traced.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxmarl_llm.masked import keep, segment_count, segment_mean, segment_variance

Number = float | jax.Array
Baseline = Literal["none", "mean", "leave_one_out"]
Scale = Literal["none", "std"]
Weight = Literal["episode", "turn"]


def estimate(
    accumulated: jax.Array,
    where: jax.Array,
    key: jax.Array,
    num_keys: int,
    *,
    baseline: Baseline,
    scale: Scale = "none",
    single: Literal["zero", "raw"] = "zero",
    eps: float = 1e-6,
) -> jax.Array:
    """(accumulated - baseline[key]) / (scale[key] + eps): arrays [...] of one shape -> [...], 0 outside ``where``.

    The entries where ``where`` is true are the samples, each of weight one. ``baseline`` is nothing, the mean of the
    key's samples, or the mean of its other samples, x - leave_one_out = (x - mean) n / (n - 1). ``scale`` is nothing or
    the population standard deviation. Equal samples get exactly 0 under either mean, and a key without spread is not
    scaled. A sample alone under its key has nothing to be compared with: 0, or with ``single="raw"`` itself, unscaled.
    Raises ValueError for an unknown option, or if the shapes differ.
    """
    _check("baseline", baseline, ("none", "mean", "leave_one_out"))
    _check("scale", scale, ("none", "std"))
    _check("single", single, ("zero", "raw"))
    sample = keep(accumulated, where)
    count = segment_count(key, num_keys, where)[key]
    advantage = sample
    if baseline != "none":
        advantage = sample - segment_mean(sample, key, num_keys, where)[key]
    if baseline == "leave_one_out":
        advantage = advantage * count / jnp.maximum(count - 1, 1)
    if scale == "std":
        deviation = jnp.sqrt(segment_variance(sample, key, num_keys, where))[key]
        advantage = advantage / jnp.where(deviation > 0, deviation + eps, 1)
    if single == "raw":
        advantage = jnp.where(count == 1, sample, advantage)
    return jnp.where(where, advantage, 0)


def whiten(advantage: jax.Array, where: jax.Array, *, eps: float = 1e-6) -> jax.Array:
    """Mean 0 and standard deviation 1 over the whole batch: [...] -> [...]. Whitened returns-to-go are REINFORCE++."""
    return estimate(advantage, where, jnp.zeros(where.shape, int), 1, baseline="mean", scale="std", eps=eps)


def key_of(shape: tuple[int, ...], **indices: tuple[jax.Array, int]) -> tuple[jax.Array, int]:
    """One integer key from named indices, each (values, how many there are): int [*shape], and the number of keys.

    Values are broadcast to ``shape``, so they have its rank: group [B,1,1], turn [1,T,1], agent [1,1,A]. The last
    index varies fastest. Raises ValueError for an index whose values do not fit.
    """
    key, num_keys = jnp.zeros(shape, int), 1
    for name, (values, size) in indices.items():
        if values.ndim != len(shape) or any(n not in (1, m) for n, m in zip(values.shape, shape, strict=True)):
            raise ValueError(f"The index {name} has shape {values.shape}, which does not fit samples of shape {shape}.")
        key = key * size + jnp.broadcast_to(values, shape)
        num_keys *= size
    return key, num_keys


def credit_to_acts(reward: jax.Array, acted: jax.Array) -> jax.Array:
    """Move each reward to the act that it follows: [B,T,A] -> [B,T,A], 0 where a seat did not act.

    That is the seat's latest act in the same or an earlier turn. A reward that comes before the seat's first act goes
    to the first act, so that a seat that acts at all keeps its episode's sum. A seat that never acts gets nothing.
    """
    episodes, turns, agents = acted.shape
    latest = jax.lax.cummax(jnp.where(acted, jnp.arange(turns)[None, :, None], -1), axis=1)
    target = jnp.where(latest < 0, jnp.argmax(acted, axis=1, keepdims=True), latest)
    ever = jnp.broadcast_to(acted.any(axis=1, keepdims=True), acted.shape)
    b, a = jnp.arange(episodes)[:, None, None], jnp.arange(agents)[None, None, :]
    return jnp.zeros(acted.shape).at[b, target, a].add(keep(reward, ever))


def return_to_go(reward: jax.Array, gamma: Number = 1.0) -> jax.Array:
    """G_t = r_t + gamma G_{t+1}, with G = 0 after the last turn: [B,T,A] -> [B,T,A]."""

    def step(later: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = now + gamma * later
        return total, total

    first = jnp.zeros_like(reward[:, 0])
    return jnp.moveaxis(jax.lax.scan(step, first, jnp.moveaxis(reward, 1, 0), reverse=True)[1], 0, 1)


def episode_return(reward: jax.Array) -> jax.Array:
    """The sum over all turns, in every turn: [B,T,A] -> [B,T,A]."""
    return jnp.broadcast_to(reward.sum(axis=1, keepdims=True), reward.shape)


def reinforce(
    reward: jax.Array,
    acted: jax.Array,
    group: jax.Array,
    num_groups: int,
    *,
    accumulate: Literal["episode", "to_go"] = "episode",
    gamma: Number = 1.0,
) -> jax.Array:
    """The return itself, of the episode (undiscounted) or from the turn on (discounted by turns); no baseline.

    Williams 1992. Textbook formula. The groups are not used.
    """
    _check("accumulate", accumulate, ("episode", "to_go"))
    reward = credit_to_acts(reward, acted)
    return keep(episode_return(reward) if accumulate == "episode" else return_to_go(reward, gamma), acted)


def grpo(
    reward: jax.Array,
    acted: jax.Array,
    group: jax.Array,
    num_groups: int,
    *,
    scale: Scale = "std",
    weight: Weight = "episode",
    per_agent: bool = False,
    eps: float = 1e-6,
) -> jax.Array:
    """(R - mean of the group) / (std of the group + eps), R the episode's sum; ``scale="none"`` is Dr. GRPO.

    ``weight`` says what a sample of the group's statistics is: each seat of each episode that acted, once, or each
    turn in which a seat acted. ``per_agent`` keeps the statistics of each agent apart. Without it every seat of a
    group is compared with every other, which suits a team's common reward; where seats have rewards of their own, a
    seat's action then moves its baseline through the other seats' rewards, and the gradient is biased.
    Shao et al. 2024 (DeepSeekMath), Liu et al. 2025 (Dr. GRPO); the formulas as in the code released for Dr. MAS, but
    with the population standard deviation.
    """
    return _per_episode(
        reward, acted, group, num_groups, weight, per_agent, {"baseline": "mean", "scale": scale, "eps": eps}
    )


def rloo(
    reward: jax.Array,
    acted: jax.Array,
    group: jax.Array,
    num_groups: int,
    *,
    weight: Weight = "episode",
    per_agent: bool = False,
) -> jax.Array:
    """R - mean of the group's other samples = (R - mean of the group) n / (n - 1); options as in ``grpo``.

    What is left out is one sample: other seats, and under ``weight="turn"`` other turns, of the same episode remain in
    the baseline. It is independent of the seat's own actions only with ``per_agent`` and ``weight="episode"``.
    Kool et al. 2019, Ahmadian et al. 2024; the formula as in the code released for Dr. MAS.
    """
    return _per_episode(reward, acted, group, num_groups, weight, per_agent, {"baseline": "leave_one_out"})


def agent_wise(
    reward: jax.Array,
    acted: jax.Array,
    group: jax.Array,
    num_groups: int,
    *,
    scale: Scale = "std",
    weight: Weight = "turn",
    single: Literal["zero", "raw"] = "zero",
    eps: float = 1e-6,
) -> jax.Array:
    """(R - mean) / (std + eps) over the calls of the same agent in the same group, R the episode's sum.

    A call is a turn in which the agent acted, so an episode in which it was called twice weighs double (``weight``).
    The mean square advantage of an agent is then 1, whereas under the statistics of all agents together it is
    (std_k^2 + (mean_k - mean)^2) / std^2. An agent called once in a group gets 0, or with ``single="raw"`` its score,
    as in the release. Dr. MAS; formula read in the released code, which takes the unbiased standard deviation where
    this takes the population's, so that theirs is smaller by sqrt((n - 1) / n).
    """
    kernel = {"baseline": "mean", "scale": scale, "single": single, "eps": eps}
    return _per_episode(reward, acted, group, num_groups, weight, True, kernel)


def round_leave_one_out(
    reward: jax.Array, acted: jax.Array, group: jax.Array, num_groups: int, *, gamma: Number = 1.0
) -> jax.Array:
    """G_t - mean of G_t over the other episodes of the group, for the same turn and agent; G the return-to-go.

    Turns in which the other episodes' agent did not act are no samples. Formula read in the code released for
    advantage alignment with language models.
    """
    returns = return_to_go(credit_to_acts(reward, acted), gamma)
    turn = jnp.arange(acted.shape[1])[None, :, None], acted.shape[1]
    key = key_of(acted.shape, group=(group[:, None, None], num_groups), turn=turn, agent=_agents(acted))
    return estimate(returns, acted, *key, baseline="leave_one_out")


def advantage_alignment(
    reward: jax.Array,
    acted: jax.Array,
    group: jax.Array,
    num_groups: int,
    *,
    gamma: Number,
    beta: Number,
    leading_discount: bool = False,
) -> jax.Array:
    """Credit of a seat that also values what its past advantages make of the other seat's: two seats, moving at once.

    A*_t = A1_t + beta gamma (sum_{k<t} gamma^(t-k) A1_k) A2_t, with A1 this seat's and A2 the other seat's advantage by
    ``round_leave_one_out``; the sum is D_t = gamma (D_{t-1} + A1_{t-1}), D_0 = 0. A turn in which the other seat does
    not act has no second term. ``leading_discount`` multiplies A*_t by gamma^t, as in the paper; the released
    configurations leave it out. Raises ValueError unless there are two seats.
    Duque et al., Advantage Alignment; formula read in the code released for language models.
    """
    if acted.shape[2] != 2:
        raise ValueError(f"Advantage alignment is defined for two seats, but there are {acted.shape[2]}.")
    own = round_leave_one_out(reward, acted, group, num_groups, gamma=gamma)
    through = return_to_go(own[:, ::-1], gamma)[:, ::-1]  # the recursion of a return, run forwards: it holds k = t too
    past = gamma * jnp.pad(through[:, :-1], ((0, 0), (1, 0), (0, 0)))
    credit = own + beta * gamma * past * own[:, :, ::-1]
    if leading_discount:
        credit = credit * jnp.broadcast_to(gamma ** jnp.arange(acted.shape[1])[None, :, None], credit.shape)
    return keep(credit, acted)


PRESETS = {
    "reinforce": reinforce,
    "grpo": grpo,
    "rloo": rloo,
    "agent_wise": agent_wise,
    "round_leave_one_out": round_leave_one_out,
    "advantage_alignment": advantage_alignment,
}


def _per_episode(
    reward: jax.Array,
    acted: jax.Array,
    group: jax.Array,
    num_groups: int,
    weight: Weight,
    per_agent: bool,
    kernel: dict[str, Any],
) -> jax.Array:
    _check("weight", weight, ("episode", "turn"))
    total = episode_return(credit_to_acts(reward, acted))
    where = acted
    if weight == "episode":
        total, where = total[:, :1], acted.any(axis=1, keepdims=True)
    indices = {"group": (group[:, None, None], num_groups)} | ({"agent": _agents(acted)} if per_agent else {})
    advantage = estimate(total, where, *key_of(where.shape, **indices), **kernel)
    return keep(jnp.broadcast_to(advantage, acted.shape), acted)


def _agents(acted: jax.Array) -> tuple[jax.Array, int]:
    return jnp.arange(acted.shape[2])[None, None, :], acted.shape[2]


def _check(name: str, given: str, possible: tuple[str, ...]) -> None:
    if given not in possible:
        raise ValueError(f"There is no {name} {given!r}: choose one of {', '.join(possible)}.")
