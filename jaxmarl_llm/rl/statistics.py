"""The kernel of all advantage estimators, their shared parts, and metrics of advantages and log-probabilities.

``estimate`` compares every sample with the samples of its key; ``key_of`` makes keys from named indices. Shapes: B
episodes, T turns, A seats.
"""

from typing import Literal

import jax.numpy as jnp
from jax import Array
from jax.ops import segment_max, segment_min

from jaxmarl_llm.rl.masked import keep, mean_of, segment_count, segment_mean, segment_unit, segment_variance
from jaxmarl_llm.rl.returns import Number, credit_to_acts, episode_return, return_to_go
from jaxmarl_llm.rl.shapes import check_shapes

Baseline = Literal["none", "mean", "leave_one_out"]
Scale = Literal["none", "std"]
Single = Literal["zero", "raw"]
Weight = Literal["episode", "turn"]
Returns = Literal["turn", "to_go", "episode"]
Index = tuple[Array, int]  # values, and the number of possible values


def estimate(
    accumulated: Array,
    where: Array,
    key: Array,
    num_keys: int,
    *,
    baseline: Baseline | Array,
    scale: Scale = "none",
    single: Single = "zero",
    weights: Array | None = None,
    scale_key: Index | None = None,
    eps: float = 1e-6,
) -> Array:
    """(accumulated - baseline[key]) / (scale[key] + eps): arrays [...] of one shape -> [...], 0 outside ``where``.

    The samples are the entries of ``where``, with weight 1 or the given ``weights`` [...].

        baseline  "none"; "mean" of the key's samples; "leave_one_out", the mean of the key's other samples, so that
                  x - leave_one_out = (x - mean) n / (n - 1); or an array [num_keys]
        scale     "none"; "std", the population standard deviation under the key, or under ``scale_key`` if given
        single    the result under either mean for a sample alone under its key: "zero", or "raw", the sample unscaled

    Equal samples get exactly 0 under either mean, and a key without spread is not scaled. Samples may be as large as
    1e30.
    Raises ValueError for an unknown option, if the shapes differ, or for weights with leave_one_out.
    """
    check_shapes("where accumulated key weights [...]", where, accumulated, key, weights)
    check_option("scale", scale, ("none", "std"))
    check_option("single", single, ("zero", "raw"))
    sample = keep(accumulated, where)
    count = segment_count(key, num_keys, where)[key]
    mean = weighted_mean(sample, key, num_keys, where, weights)[key]
    if not isinstance(baseline, str):
        advantage = sample - baseline[key]
    else:
        check_option("baseline", baseline, ("none", "mean", "leave_one_out"))
        advantage = sample if baseline == "none" else sample - mean
        if baseline == "leave_one_out":
            if weights is not None:
                raise ValueError("A leave-one-out baseline takes no weights: choose the mean.")
            advantage = advantage * count / jnp.maximum(count - 1, 1)
    if scale == "std":
        if scale_key is not None:
            key, num_keys = scale_key
            mean = weighted_mean(sample, key, num_keys, where, weights)[key]
        deviation = sample - mean
        unit = segment_unit(deviation, key, num_keys, where)[key]
        variance = weighted_mean((deviation / unit) ** 2, key, num_keys, where, weights)[key]
        std = jnp.sqrt(jnp.where(variance > 0, variance, 1)) * unit
        advantage = advantage / jnp.where(variance > 0, std + eps, 1)
    if single == "raw":
        advantage = jnp.where(count == 1, sample, advantage)
    return jnp.where(where, advantage, 0)


def whiten(advantage: Array, where: Array, *, weights: Array | None = None, eps: float = 1e-6) -> Array:
    """Advantages [...] of mean 0 and standard deviation 1 over the entries of ``where``, turns or tokens of a batch."""
    check_shapes("where advantage weights [...]", where, advantage, weights)
    key = jnp.zeros(where.shape, int)
    return estimate(advantage, where, key, 1, baseline="mean", scale="std", weights=weights, eps=eps)


def inliers(advantage: Array, where: Array, *, sigmas: Number = 3.0) -> Array:
    """bool [...]: the entries of ``where`` within ``sigmas`` standard deviations of their mean.

    Outliers can then be dropped: ``jnp.where(inliers(a, where), whiten(a, where), 0)``. An entry of n is at most
    sqrt(n - 1) deviations from the mean, so ten or fewer entries have no outlier at 3 sigmas.

    Zhang et al., R1-Reward (2025, StableReinforce), https://arxiv.org/abs/2505.02835. Its release compares the
    whitened advantage with the mean before whitening, less and plus 3. Both agree only for a mean of 0.
    """
    check_shapes("where advantage [...]", where, advantage)
    return where & (jnp.abs(whiten(advantage, where)) <= sigmas)


def high_covariance(
    drawn: Array, logp: Array, advantage: Array, where: Array, *, share: Number, low: Number, high: Number
) -> Array:
    """bool [...]: a random share of the tokens of ``where``, among those whose covariance is between ``low`` and
    ``high``.

    The covariance of a token is (A - mean A) (logp - mean logp). High ones narrow the policy most, and the tokens can
    be left out of a surrogate: ``jnp.where(chosen, 0, advantage)``. ``drawn`` are uniform random numbers. For n
    tokens max(floor(share n), 1) are chosen, or all between the bounds if these are fewer; for a share of 0 none.

    Cui et al., The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models (2025, Clip-Cov),
    https://arxiv.org/abs/2505.22617; formula of the code released for SPEAR, https://arxiv.org/abs/2509.22601.
    """
    check_shapes("where drawn logp advantage [...]", where, drawn, logp, advantage)
    centred = lambda x: keep(x, where) - mean_of(x, where).value
    covariance = centred(advantage) * centred(logp)
    between = where & (covariance > low) & (covariance < high)
    count = jnp.where(jnp.asarray(share) > 0, jnp.maximum(jnp.floor(share * where.sum()), 1), 0)
    order = jnp.argsort(jnp.where(between, drawn, jnp.inf), axis=None)
    rank = jnp.zeros(where.size, jnp.int32).at[order].set(jnp.arange(where.size, dtype=jnp.int32))
    return between & (rank.reshape(where.shape) < count)


def weighted_mean(x: Array, key: Array, num_keys: int, where: Array, weights: Array | None) -> Array:
    """The mean of x [...] under each key -> [num_keys], with ``weights`` [...] or without.

    The mean is exactly x if the entries of a key are equal.
    """
    check_shapes("where x key weights [...]", where, x, key, weights)
    mean = segment_mean(x, key, num_keys, where)
    if weights is None:
        return mean
    total = segment_mean(weights, key, num_keys, where)
    off = segment_mean(weights * (keep(x, where) - mean[key]), key, num_keys, where)
    return mean + off / jnp.where(total > 0, total, 1)


# Keys


def key_of(shape: tuple[int, ...], **indices: Index) -> Index:
    """One integer key from named indices (values, number of possible values): (int [*shape], number of keys).

    Values have the rank of ``shape`` and are broadcast to it: group [B,1,1], turn [1,T,1], agent [1,1,A]. The last
    index varies fastest. Raises ValueError for values whose shape does not fit; their range is not checked.
    """
    key, num_keys = jnp.zeros(shape, int), 1
    for name, (values, size) in indices.items():
        if values.ndim != len(shape) or any(n not in (1, m) for n, m in zip(values.shape, shape, strict=True)):
            raise ValueError(f"The index {name} has shape {values.shape}, which does not fit samples of shape {shape}.")
        key = key * size + jnp.broadcast_to(values, shape)
        num_keys *= size
    return key, num_keys


def group_index(group: Array, num_groups: int) -> Index:
    """The group of each episode as an index: group int [B]."""
    check_shapes("group [B]", group)
    return group[:, None, None], num_groups


def turn_index(acted: Array) -> Index:
    """The turn as an index of acted [B,T,A]."""
    check_shapes("acted [B,T,A]", acted)
    return jnp.arange(acted.shape[1])[None, :, None], acted.shape[1]


def agent_index(acted: Array) -> Index:
    """The seat as an index of acted [B,T,A]."""
    check_shapes("acted [B,T,A]", acted)
    return jnp.arange(acted.shape[2])[None, None, :], acted.shape[2]


def game_index(game: Array | None, num_games: int) -> Index:
    """(game [B,1,1], num_games), an Index, of game int [B]. None means one game and gives zeros [1,1,1]."""
    check_shapes("game [B]", game)
    return jnp.zeros((1, 1, 1), int) if game is None else game[:, None, None], num_games


# Samples and their weights


def accumulate(reward: Array, acted: Array, returns: str, gamma: Number = 1.0) -> Array:
    """Rewards [B,T,A], moved to acts (``credit_to_acts``), then summed as ``returns`` says: [B,T,A].

    ``returns`` is "turn", the reward of the turn, or "to_go", the return from the turn on, discounted by ``gamma``.
    With "episode" it is the undiscounted sum of the episode. Raises ValueError for another.
    """
    check_shapes("acted reward [B,T,...]", acted, reward)
    check_option("returns", returns, ("turn", "to_go", "episode"))
    reward = credit_to_acts(reward, acted)
    if returns == "to_go":
        return return_to_go(reward, gamma)
    return episode_return(reward) if returns == "episode" else reward


def act_weights(acted: Array, weight: str, **apart: Index) -> Array | None:
    """Weights [B,T,A] for samples that are acts, None if every act weighs 1 (``weight="turn"``).

    With ``weight="episode"`` the acts of a seat in an episode have the total weight 1. With indices ``apart``, the acts
    under each of their values do.
    """
    check_shapes("acted [B,T,A]", acted)
    check_option("weight", weight, ("episode", "turn"))
    if weight == "turn":
        return None
    episode = jnp.arange(len(acted))[:, None, None], len(acted)
    key, num_keys = key_of(acted.shape, episode=episode, agent=agent_index(acted), **apart)
    return 1 / jnp.maximum(segment_count(key, num_keys, acted), 1)[key]


def duration_weights(duration: Array, where: Array) -> Array:
    """duration / mean duration over the samples of ``where``: float32 [...] with mean 1, 0 outside.

    The weight multiplies the gradient of each sample where samples are used as they finish. Quick actions finish more
    often in the same time, and each then weighs less. Raises ValueError if the shapes differ.

    Yang et al., Reinforcement Learning for Machine Learning Engineering Agents (2025),
    https://arxiv.org/abs/2509.01684; from its abstract. The normalisation to mean 1 is ours.
    """
    check_shapes("where duration [...]", where, duration)
    mean = mean_of(duration, where).value
    return keep(duration, where) / jnp.where(mean > 0, mean, 1)


def first_informative(reward: Array, acted: Array, group: Array, num_groups: int, *, kept: int) -> Array:
    """bool [B,T,A]: the acts of the first ``kept`` groups whose episodes earn unlike sums; fewer if fewer are unlike.

    A group of equal sums has no advantage within itself. The dynamic sampling of DAPO plays further groups until enough
    are unlike; here a batch has more groups than are trained on. Seats of an episode count apart.

    Yu et al., DAPO: An Open-Source LLM Reinforcement Learning System at Scale (2025), https://arxiv.org/abs/2503.14476
    """
    check_shapes("acted reward [B,T,A] group [B]", acted, reward, group)
    total, where = accumulate(reward, acted, "episode")[:, 0], acted.any(1)
    high = segment_max(jnp.where(where, total, -jnp.inf).max(1), group, num_groups)
    low = segment_min(jnp.where(where, total, jnp.inf).min(1), group, num_groups)
    unlike = high > low  # false for a group without acts: the extremes of nothing are -inf and inf
    return acted & (unlike & (jnp.cumsum(unlike) <= kept))[group][:, None, None]


def check_option(name: str, given: str, possible: tuple[str, ...]) -> None:
    """Raises ValueError if ``given`` is not in ``possible``."""
    if given not in possible:
        raise ValueError(f"There is no {name} {given!r}: choose one of {', '.join(possible)}.")


# Metrics


def advantage_metrics(advantage: Array, acted: Array, group: Array, num_groups: int) -> dict[str, Array]:
    """Metrics of the advantages [B,T,A] of each agent over its acts in the batch: {name: float32 [A]}.

        advantage_mean        mean
        advantage_variance    population variance
        effective_group_size  (sum |a|)^2 / sum a^2 over the agent's acts in a group: the number of acts if all weigh
                              alike, 1 if one outweighs the rest, 0 if all are 0
        zero_groups           the share of groups with all advantages exactly 0, which give the agent no gradient

    The last two are means over the groups in which the agent acted. All are 0 for an agent that never acted.
    """
    check_shapes("acted advantage [B,T,A] group [B]", acted, advantage, group)
    agents = acted.shape[2]
    agent, _ = key_of(acted.shape, agent=agent_index(acted))
    key, num_keys = key_of(acted.shape, group=group_index(group, num_groups), agent=agent_index(acted))
    count = segment_count(key, num_keys, acted)
    size = keep(jnp.abs(advantage), acted)
    size = size / segment_unit(size, key, num_keys, acted)[key]
    first, second = segment_mean(size, key, num_keys, acted), segment_mean(size**2, key, num_keys, acted)
    effective = jnp.where(second > 0, count * first**2 / jnp.where(second > 0, second, 1), 0)
    owner, met = jnp.arange(num_keys) % agents, count > 0
    return {
        "advantage_mean": segment_mean(advantage, agent, agents, acted),
        "advantage_variance": segment_variance(advantage, agent, agents, acted),
        "effective_group_size": segment_mean(effective, owner, agents, met),
        "zero_groups": segment_mean(jnp.where(first == 0, 1.0, 0.0), owner, agents, met),
    }


def mismatch(scored: Array, sampled: Array, where: Array) -> dict[str, Array]:
    """Metrics of the difference between the log-probabilities [...] of scorer and sampler: {name: float32 scalar}.

        mismatch               mean |scored - sampled|
        effective_sample_size  (sum w)^2 / (n sum w^2) of the importance weights w = exp(scored - sampled) of n tokens:
                               1 if all weigh alike, 1/n if one outweighs the rest

    Both are 0 without tokens. Kong, Liu & Wong, Sequential imputations and Bayesian missing data problems (1994),
    https://doi.org/10.1080/01621459.1994.10476469.
    """
    check_shapes("where scored sampled [...]", where, scored, sampled)
    difference = keep(scored - sampled, where)
    weight = keep(jnp.exp(difference - jnp.max(jnp.where(where, difference, -jnp.inf), initial=-jnp.inf)), where)
    first, second = mean_of(weight, where).value, mean_of(weight**2, where).value
    effective = jnp.where(second > 0, first**2 / jnp.where(second > 0, second, 1), 0)
    return {"mismatch": mean_of(jnp.abs(difference), where).value, "effective_sample_size": effective}


def mutual_information(joint: Array) -> Array:
    """Mutual information in nats of two variables with joint frequencies [X, Y]: scalar.

    sum p(x, y) log(p(x, y) / (p(x) p(y))), with p the normalised frequencies.

    Textbook formula. Shannon, A Mathematical Theory of Communication (1948),
    https://doi.org/10.1002/j.1538-7305.1948.tb01338.x.
    """
    check_shapes("joint [X,Y]", joint)
    p = joint / joint.sum()
    apart = p.sum(0, keepdims=True) * p.sum(1, keepdims=True)
    return jnp.where(p > 0, p * (jnp.log(jnp.where(p > 0, p, 1)) - jnp.log(jnp.where(p > 0, apart, 1))), 0).sum()


def auc(joint: Array) -> Array:
    """Area under the ROC curve of scores with joint frequencies [X, 2]: scalar.

    It is P(x > y) + P(x = y) / 2 for scores x under label 1 and y under label 0; scores are in rising order. A label
    that never occurs gives 1/2.

    Textbook formula. Hanley and McNeil, The meaning and use of the area under a ROC curve (1982),
    https://doi.org/10.1148/radiology.143.1.7063747.
    """
    check_shapes("joint [X,L]", joint)
    if joint.shape[1] != 2:
        raise ValueError(f"joint has shape {list(joint.shape)}: [X, 2] is wanted, label 0 and label 1.")
    below = jnp.cumsum(joint[:, 0]) - joint[:, 0] / 2
    pairs = joint[:, 0].sum() * joint[:, 1].sum()
    return jnp.where(pairs > 0, (joint[:, 1] * below).sum() / jnp.where(pairs > 0, pairs, 1), 0.5)
