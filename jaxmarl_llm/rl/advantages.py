"""Credit: what a turn is compared with, and how that is scaled. Arrays in, arrays out.

Every method is advantage = (accumulated reward - baseline[key]) / scale[key], then perhaps whitened. Methods differ in
what is accumulated (``returns.py``), in the key (question, turn, agent, role), in the baseline and in the scale:
``estimate`` is that kernel, the presets name the combinations. A preset takes

    reward [B,T,A] float   components weighted and summed already; 0 after the end of an episode
    acted  [B,T,A] bool    which seats spoke in that turn
    group  [B] int         0..num_groups-1; episodes of a group start alike; num_groups is static

and returns the advantage [B,T,A], float32, exactly 0 where a seat did not act. B episodes, T turns, A seats. A reward
counts for the seat's latest act before it (``credit_to_acts``). Discounts and weights may be traced. Exceptions:
``role_baseline`` also returns its memory, ``sequential_agents`` its critic's target, ``decoupled`` takes components.

    preset                accumulated             key                       baseline       scale  after
    reinforce             episode or to go        -                         none           none
    grpo                  episode                 group                     mean           std    (none: Dr. GRPO)
    rloo                  episode                 group                     leave one out  none
    reinforce_plus_plus   to go (gamma<1: ReBN)   whole batch               mean           std
    role_baseline         episode                 game, role                running mean   none
    turn_level            centred turns, to go    role                      mean           none   whitened
    agent_wise            episode                 group, agent              mean           std
    turn_wise             the turn's reward       group, turn, agent        mean           std
    step_groups           episode; to go          group; and observation    mean           std    weighted sum
    decoupled             episode, by component   group                     mean           std    sum, whitened
    round_leave_one_out   to go                   group, turn, agent        leave one out  none
    advantage_alignment   to go                   group, turn, agent        leave one out  none   both seats' product
    sequential_agents     GAE through agents      -                         critic         none   whitened

Where a seat acts often, ``weight`` says what weighs one in a statistic: "turn", each of its acts, or "episode", all its
acts of an episode (under one key) together.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxmarl_llm.rl.masked import keep, segment_count, segment_mean, segment_variance
from jaxmarl_llm.rl.returns import Number, Targets, credit_to_acts, episode_return, gae_through_agents, return_to_go

Baseline = Literal["none", "mean", "leave_one_out"]
Scale = Literal["none", "std"]
Weight = Literal["episode", "turn"]
Returns = Literal["turn", "to_go", "episode"]
Index = tuple[Array, int]  # values, and how many there are


def estimate(
    accumulated: Array,
    where: Array,
    key: Array,
    num_keys: int,
    *,
    baseline: Baseline | Array,
    scale: Scale = "none",
    single: Literal["zero", "raw"] = "zero",
    weights: Array | None = None,
    eps: float = 1e-6,
) -> Array:
    """(accumulated - baseline[key]) / (scale[key] + eps): arrays [...] of one shape -> [...], 0 outside ``where``.

    The entries where ``where`` is true are the samples, of weight one or as ``weights`` [...] says. ``baseline`` is
    nothing, the mean of the key's samples, the mean of its other samples, x - leave_one_out = (x - mean) n / (n - 1),
    or given, [num_keys]. ``scale`` is nothing or the population standard deviation. Equal samples get exactly 0 under
    either mean, and a key without spread is not scaled. A sample alone under its key has nothing to be compared with: 0
    under either mean, or with ``single="raw"`` itself, unscaled.
    Raises ValueError for an unknown option, if the shapes differ, or for weights with leave_one_out.
    """
    _check("scale", scale, ("none", "std"))
    _check("single", single, ("zero", "raw"))
    sample = keep(accumulated, where)
    count = segment_count(key, num_keys, where)[key]
    mean = _mean(sample, key, num_keys, where, weights)[key]
    if not isinstance(baseline, str):
        advantage = sample - baseline[key]
    else:
        _check("baseline", baseline, ("none", "mean", "leave_one_out"))
        advantage = sample if baseline == "none" else sample - mean
        if baseline == "leave_one_out":
            if weights is not None:
                raise ValueError("A leave-one-out baseline takes no weights: choose the mean.")
            advantage = advantage * count / jnp.maximum(count - 1, 1)
    if scale == "std":
        variance = _mean((sample - mean) ** 2, key, num_keys, where, weights)[key]
        advantage = advantage / jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1)) + eps, 1)
    if single == "raw":
        advantage = jnp.where(count == 1, sample, advantage)
    return jnp.where(where, advantage, 0)


def whiten(advantage: Array, where: Array, *, weights: Array | None = None, eps: float = 1e-6) -> Array:
    """Mean 0 and standard deviation 1 over the entries that count, turns or tokens, of the whole batch: [...]."""
    key = jnp.zeros(where.shape, int)
    return estimate(advantage, where, key, 1, baseline="mean", scale="std", weights=weights, eps=eps)


def key_of(shape: tuple[int, ...], **indices: Index) -> Index:
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


def reinforce(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    returns: Returns = "episode",
    gamma: Number = 1.0,
) -> Array:
    """The return itself, of the episode (undiscounted) or from the turn on (discounted by turns); no baseline.

    Williams 1992. Textbook formula. The groups are not used.
    """
    return keep(_accumulated(reward, acted, returns, gamma), acted)


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

    ``weight`` says what a sample of the group's statistics is: each seat of each episode that acted, once, or each
    turn in which a seat acted. ``per_agent`` keeps the statistics of each agent apart. Without it every seat of a
    group is compared with every other, which suits a team's common reward; where seats have rewards of their own, a
    seat's action then moves its baseline through the other seats' rewards, and the gradient is biased.
    Shao et al. 2024 (DeepSeekMath), Liu et al. 2025 (Dr. GRPO); the formulas as in the code released for Dr. MAS, but
    with the population standard deviation.
    """
    return _per_episode(reward, acted, group, num_groups, weight, per_agent, baseline="mean", scale=scale)


def rloo(
    reward: Array, acted: Array, group: Array, num_groups: int, *, weight: Weight = "episode", per_agent: bool = False
) -> Array:
    """R - mean of the group's other samples = (R - mean of the group) n / (n - 1); options as in ``grpo``.

    What is left out is one sample: other seats, and under ``weight="turn"`` other turns, of the same episode remain in
    the baseline. It is independent of the seat's own actions only with ``per_agent`` and ``weight="episode"``.
    Kool et al. 2019, Ahmadian et al. 2024; the formula as in the code released for Dr. MAS.
    """
    return _per_episode(reward, acted, group, num_groups, weight, per_agent, baseline="leave_one_out")


def reinforce_plus_plus(
    reward: Array, acted: Array, group: Array, num_groups: int, *, gamma: Number = 1.0, weight: Weight = "turn"
) -> Array:
    """(G_t - mean) / (std + eps) over the whole batch, G the return-to-go; with gamma < 1 it is what is called ReBN.

    Every seat is compared with every other, in every turn. The groups are not used. Hu 2025 (REINFORCE++), without its
    penalty on the KL; ReBN from a description, neither compared with a release.
    """
    return whiten(_accumulated(reward, acted, "to_go", gamma), acted, weights=_shares(acted, weight))


class RoleBaselineState(NamedTuple):
    mean: Array  # float32 [games, roles], running mean of the returns
    known: Array  # bool [games, roles], whether the role was ever played


def init_role_baseline(num_roles: int, num_games: int = 1) -> RoleBaselineState:
    """Nothing known yet: the first batch in which a role is played gives its baseline."""
    return RoleBaselineState(jnp.zeros((num_games, num_roles)), jnp.zeros((num_games, num_roles), bool))


def role_baseline(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    role: Array,
    num_roles: int,
    state: RoleBaselineState,
    decay: Number = 0.95,
    game: Array | None = None,
    num_games: int = 1,
    weight: Weight = "episode",
) -> tuple[Array, RoleBaselineState]:
    """(R - running mean of its (game, role), the memory after this batch): R the episode's sum.

    role [B,T,A], game [B]. The baseline is the mean as the batch found it, or the batch's own where the role was never
    played before; afterwards mean <- decay mean + (1 - decay) batch mean for the roles that were played. A seat that
    changes its role counts for each role it had. Not so in SPIRAL's release: there it starts at 0, which biases the
    first 1 / (1 - decay) updates, and what is left is discounted by gamma^(turns to the end). The groups are not used.
    Raises ValueError if the memory is of other games or roles. Liu et al. 2025 (SPIRAL), role-conditioned advantage.
    """
    if state.mean.shape != (num_games, num_roles):
        raise ValueError(
            f"The memory holds {state.mean.shape} means of games and roles: needed are {(num_games, num_roles)}."
        )
    key, num_keys = key_of(acted.shape, game=_game(game, num_games), role=(role, num_roles))
    total = _accumulated(reward, acted, "episode")
    weights = _shares(acted, weight, role=(role, num_roles))
    mean, known = state.mean.ravel(), state.known.ravel()
    batch, played = _mean(total, key, num_keys, acted, weights), segment_count(key, num_keys, acted) > 0
    advantage = estimate(total, acted, key, num_keys, baseline=jnp.where(known, mean, batch))
    after = jnp.where(played, jnp.where(known, decay * mean + (1 - decay) * batch, batch), mean)
    shape = num_games, num_roles
    return advantage, RoleBaselineState(after.reshape(shape), (known | played).reshape(shape))


def turn_level(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    role: Array,
    num_roles: int,
    game: Array | None = None,
    num_games: int = 1,
    returns: Returns = "to_go",
    gamma: Number = 1.0,
    centre: tuple[str, ...] | None = ("game", "role"),
    by: tuple[str, ...] = ("role",),
    whitened: bool = True,
    weight: Weight = "turn",
) -> Array:
    """Rewards of turns less their mean, return-to-go, less its mean by role, whitened over the batch: MARS's order.

    ``centre`` and ``by`` key the two means, each by any of group, game, role, agent and turn, () over everything;
    ``centre=None`` leaves the rewards as they are. role [B,T,A], game [B]. Which turn, six arms of settings:

        episode, pooled                 returns="episode", centre=None, by=()
        episode, per role               returns="episode", centre=None
        return-to-go, pooled            centre=None, by=()
        return-to-go, per role          centre=None
        centred turns, return-to-go     (the defaults)
        return-to-go, per role and turn centre=None, by=("role", "turn")

    Raises ValueError for an unknown key. MARS; read in its release, which takes the mean of the distinct values where
    this takes that of all of them.
    """
    indices: dict[str, Index] = {
        "group": (group[:, None, None], num_groups),
        "game": _game(game, num_games),
        "role": (role, num_roles),
        "agent": _agents(acted),
        "turn": _turns(acted),
    }
    for name in (*(centre or ()), *by):
        _check("key", name, tuple(indices))

    def less_mean(x: Array, names: tuple[str, ...]) -> Array:
        used = {name: indices[name] for name in names}
        moving = {name: index for name, index in used.items() if name in ("role", "turn")}
        weights = _shares(acted, weight, **moving)
        return estimate(x, acted, *key_of(acted.shape, **used), baseline="mean", weights=weights)

    reward = credit_to_acts(reward, acted)
    if centre is not None:
        reward = less_mean(reward, centre)
    advantage = less_mean(_accumulated(reward, acted, returns, gamma), by)
    return whiten(advantage, acted, weights=_shares(acted, weight)) if whitened else advantage


def agent_wise(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    scale: Scale = "std",
    weight: Weight = "turn",
    single: Literal["zero", "raw"] = "zero",
) -> Array:
    """(R - mean) / (std + eps) over the calls of the same agent in the same group, R the episode's sum.

    A call is a turn in which the agent acted, so an episode in which it was called twice weighs double (``weight``).
    The mean square advantage of an agent is then 1, whereas under the statistics of all agents together it is
    (std_k^2 + (mean_k - mean)^2) / std^2. An agent called once in a group gets 0, or with ``single="raw"`` its score,
    as in the release. Dr. MAS; formula read in the released code, which takes the unbiased standard deviation where
    this takes the population's, so that theirs is smaller by sqrt((n - 1) / n).
    """
    kernel: dict[str, Any] = {"baseline": "mean", "scale": scale, "single": single}
    return _per_episode(reward, acted, group, num_groups, weight, True, **kernel)


def turn_wise(
    reward: Array, acted: Array, group: Array, num_groups: int, *, returns: Returns = "turn", gamma: Number = 1.0
) -> Array:
    """(r_t - mean) / (std + eps) over the same agent's acts in the same turn of the same group.

    r_t is what the act was paid, the team's reward and the seat's own as the caller has added them, or with
    ``returns="to_go"`` or ``"episode"`` a return. An act that no other episode has gets 0. AT-GRPO, from a
    description of its key: neither paper nor release was compared.
    """
    key = key_of(acted.shape, group=(group[:, None, None], num_groups), turn=_turns(acted), agent=_agents(acted))
    accumulated = _accumulated(reward, acted, returns, gamma)
    return estimate(accumulated, acted, *key, baseline="mean", scale="std")


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
    """``grpo`` plus step_weight times the same of the return-to-go among acts that faced the same observation.

    ``observation`` int [B,T,A] names what the seat saw by any integers, a hash say; equal ones are compared within a
    group, across turns, episodes and (unless ``per_agent``) seats, each act once. An observation met once adds 0.
    ``weight`` and ``per_agent`` are those of ``grpo``. Feng et al. 2025 (GiGPO), anchor-state groups; the sum as in the
    code released for Dr. MAS.
    """
    whole = _per_episode(reward, acted, group, num_groups, weight, per_agent, baseline="mean", scale=scale)
    seat = {"agent": _agents(acted)} if per_agent else {}
    start, _ = key_of(acted.shape, group=(group[:, None, None], num_groups), **seat)
    faced = jnp.stack([start.ravel(), observation.ravel()], axis=1)
    key = jnp.unique(faced, axis=0, return_inverse=True, size=start.size)[1].reshape(acted.shape)
    to_go = _accumulated(reward, acted, "to_go", gamma)
    return whole + step_weight * estimate(to_go, acted, key, key.size, baseline="mean", scale=scale)


def decoupled(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    weights: Array,
    weight: Weight = "episode",
    per_agent: bool = False,
    whitened: bool = True,
) -> Array:
    """sum over components c of weights_c * grpo(reward_c), whitened over the batch: reward [B,T,A,C], weights [C].

    Each component is normalised by its own mean and deviation in the group before it is weighed, so that none is lost
    beside a larger one. Other options as in ``grpo``; whitening follows ``weight`` too. Raises ValueError if there is
    not one weight for each component. GDPO, from a third party's note: not compared with paper or release.
    """
    if weights.shape != reward.shape[3:]:
        raise ValueError(f"weights has shape {weights.shape}, but there are {reward.shape[3:]} reward components.")
    one = lambda x: grpo(x, acted, group, num_groups, weight=weight, per_agent=per_agent)  # noqa: E731
    advantage = (jax.vmap(one, -1, -1)(reward) * weights[None, None, None, :]).sum(axis=-1)
    return whiten(advantage, acted, weights=_shares(acted, weight)) if whitened else advantage


def round_leave_one_out(reward: Array, acted: Array, group: Array, num_groups: int, *, gamma: Number = 1.0) -> Array:
    """G_t - mean of G_t over the other episodes of the group, for the same turn and agent; G the return-to-go.

    Turns in which the other episodes' agent did not act are no samples. Formula read in the code released for
    advantage alignment with language models.
    """
    key = key_of(acted.shape, group=(group[:, None, None], num_groups), turn=_turns(acted), agent=_agents(acted))
    return estimate(_accumulated(reward, acted, "to_go", gamma), acted, *key, baseline="leave_one_out")


def advantage_alignment(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    gamma: Number,
    beta: Number,
    leading_discount: bool = False,
) -> Array:
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


def sequential_agents(
    reward: Array, acted: Array, group: Array, num_groups: int, *, value: Array, whitened: bool = True, **options: Any
) -> Targets:
    """``returns.gae_through_agents`` (with its options) whitened over all acts of the batch, and the critic's target.

    value [B,T,A], before each act. The team's reward of a turn is the mean over its seats, which is a common reward
    itself. The groups are not used. MARFT's credit, see there; it normalises over agents jointly, as this does.
    """
    given = gae_through_agents(reward.mean(axis=2), value, acted, **options)
    return given._replace(advantage=whiten(given.advantage, acted)) if whitened else given


_OF_EPISODES = reinforce, grpo, rloo, agent_wise, role_baseline, decoupled
_OF_TURNS = reinforce_plus_plus, turn_level, turn_wise, step_groups, round_leave_one_out, advantage_alignment
PRESETS = {preset.__name__: preset for preset in (*_OF_EPISODES, *_OF_TURNS, sequential_agents)}


def statistics(advantage: Array, acted: Array, group: Array, num_groups: int) -> dict[str, Array]:
    """What each agent's advantages [B,T,A] look like, over its acts in the batch: {name: float32 [A]}.

    ``advantage_mean`` and ``advantage_variance`` (population); ``effective_group_size``: (sum |a|)^2 / sum a^2 over the
    agent's acts of a group, the number of acts if all weigh alike, 1 if one outweighs the rest, 0 if all are 0;
    ``zero_groups``: the share of groups whose advantages are all exactly 0, from which the agent learns nothing. The
    last two are means over the groups in which the agent acted. All are 0 for an agent that never acted.
    """
    agents = acted.shape[2]
    agent, _ = key_of(acted.shape, agent=_agents(acted))
    key, num_keys = key_of(acted.shape, group=(group[:, None, None], num_groups), agent=_agents(acted))
    count = segment_count(key, num_keys, acted)
    size = keep(jnp.abs(advantage), acted)
    first, second = segment_mean(size, key, num_keys, acted), segment_mean(size**2, key, num_keys, acted)
    effective = jnp.where(second > 0, count * first**2 / jnp.where(second > 0, second, 1), 0)
    owner, met = jnp.arange(num_keys) % agents, count > 0
    return {
        "advantage_mean": segment_mean(advantage, agent, agents, acted),
        "advantage_variance": segment_variance(advantage, agent, agents, acted),
        "effective_group_size": segment_mean(effective, owner, agents, met),
        "zero_groups": segment_mean(jnp.where(first == 0, 1.0, 0.0), owner, agents, met),
    }


def _accumulated(reward: Array, acted: Array, how: str, gamma: Number = 1.0) -> Array:
    _check("accumulate", how, ("turn", "to_go", "episode"))
    reward = credit_to_acts(reward, acted)
    if how == "to_go":
        return return_to_go(reward, gamma)
    return episode_return(reward) if how == "episode" else reward


def _per_episode(
    reward: Array, acted: Array, group: Array, num_groups: int, weight: str, per_agent: bool, **kernel: Any
) -> Array:
    _check("weight", weight, ("episode", "turn"))
    total, where = _accumulated(reward, acted, "episode"), acted
    if weight == "episode":
        total, where = total[:, :1], acted.any(axis=1, keepdims=True)
    indices = {"group": (group[:, None, None], num_groups)} | ({"agent": _agents(acted)} if per_agent else {})
    advantage = estimate(total, where, *key_of(where.shape, **indices), **kernel)
    return keep(jnp.broadcast_to(advantage, acted.shape), acted)


def _shares(acted: Array, weight: str, **apart: Index) -> Array | None:
    """Weights [B,T,A] under which a seat's acts of an episode (apart by the given indices) weigh one together."""
    _check("weight", weight, ("episode", "turn"))
    if weight == "turn":
        return None
    episode = jnp.arange(len(acted))[:, None, None], len(acted)
    key, num_keys = key_of(acted.shape, episode=episode, agent=_agents(acted), **apart)
    return 1 / jnp.maximum(segment_count(key, num_keys, acted), 1)[key]


def _mean(x: Array, key: Array, num_keys: int, where: Array, weights: Array | None) -> Array:
    """The (weighted) mean under each key [num_keys], exactly their value if a key's entries are equal."""
    mean = segment_mean(x, key, num_keys, where)
    if weights is None:
        return mean
    total = segment_mean(weights, key, num_keys, where)
    off = segment_mean(weights * (keep(x, where) - mean[key]), key, num_keys, where)
    return mean + off / jnp.where(total > 0, total, 1)


def _agents(acted: Array) -> Index:
    return jnp.arange(acted.shape[2])[None, None, :], acted.shape[2]


def _turns(acted: Array) -> Index:
    return jnp.arange(acted.shape[1])[None, :, None], acted.shape[1]


def _game(game: Array | None, num_games: int) -> Index:
    return jnp.zeros((1, 1, 1), int) if game is None else game[:, None, None], num_games


def _check(name: str, given: str, possible: tuple[str, ...]) -> None:
    if given not in possible:
        raise ValueError(f"There is no {name} {given!r}: choose one of {', '.join(possible)}.")
