"""Returns and advantages from rewards, with or without a critic. Arrays in, arrays out.

Steps run along axis 1 of [B,T,...]: turns of seats [B,T,A], tokens of rows [R,M], turns of a team [B,T]. Only the steps
in ``where`` count: the acts of a seat, or the trained tokens. The next step is always the next that counts. A reward at
any other step moves to the latest step before it that counts (``credit_to_acts``). Episodes end within their array,
with value 0 after the end; for a truncated episode ``last`` [B,...] is the value after the cut.

The functions with a critic share the TD error delta. V is the critic's value before the step, r the reward, and ' means
the next step that counts. V' is 0 or ``last`` after the last step.

    delta = r + d V' - V        d = gamma^n with ``discount="steps"``, for n array steps from this step to the next that
                                counts; d = gamma with ``discount="acts"``; d = gamma before ``last``

Alternating seats are thus discounted by the turns of the game under "steps" (as in ``return_to_go``), and by their own
acts under "acts". The functions return ``Targets``, 0 outside ``where``. Values and importance weights are constants:
gradients flow through rewards and discounts only. Wrong shapes and unknown options raise ValueError.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.masked import keep, segment_count, segment_mean
from jaxmarl_llm.rl.shapes import check_shapes

Number = float | jax.Array
Discount = Literal["steps", "acts"]


class Targets(NamedTuple):
    """Advantages of steps and the value targets of their critic, 0 outside ``where``."""

    advantage: jax.Array  # [B,T,...], for the policy
    value_target: jax.Array  # [B,T,...], for the critic


def credit_to_acts(reward: jax.Array, acted: jax.Array) -> jax.Array:
    """Moves each reward to the act that it follows: [B,T,...] -> [B,T,...], 0 where a seat did not act.

    The act is the seat's latest in the same or an earlier turn. A reward before the seat's first act moves to the first
    act, so that a seat with any act keeps the sum of its episode. A seat that never acts gets 0.
    """
    check_shapes("acted reward [B,T,...]", acted, reward)
    acts_at_all = jnp.broadcast_to(acted.any(axis=1, keepdims=True), acted.shape)
    kept = keep(reward, acts_at_all)
    latest = jax.lax.cummax(jnp.where(acted, _steps(acted), -1), axis=1)
    target = jnp.where(latest < 0, jnp.argmax(acted, axis=1, keepdims=True), latest)
    flat = lambda x: x.reshape(*x.shape[:2], -1)
    b, a = jnp.arange(acted.shape[0])[:, None, None], jnp.arange(flat(acted).shape[2])[None, None, :]
    return jnp.zeros(flat(kept).shape, kept.dtype).at[b, flat(target), a].add(flat(kept)).reshape(acted.shape)


def return_to_go(reward: jax.Array, gamma: Number = 1.0) -> jax.Array:
    """G_t = r_t + gamma G_{t+1}, with G = 0 after the last turn: [B,T,...] -> [B,T,...]."""
    check_shapes("reward [B,T,...]", reward)
    everywhere = jnp.ones(reward.shape, bool)
    reward = keep(reward, everywhere)
    return _backward(reward, jnp.full(reward.shape, gamma, reward.dtype), everywhere)


def episode_return(reward: jax.Array) -> jax.Array:
    """The sum over all turns, in every turn: [B,T,...] -> [B,T,...]."""
    check_shapes("reward [B,T,...]", reward)
    return jnp.broadcast_to(reward.sum(axis=1, keepdims=True), reward.shape)


def gae(
    reward: jax.Array,
    value: jax.Array,
    where: jax.Array,
    *,
    gamma: Number = 1.0,
    lam: Number = 1.0,
    last: jax.Array | None = None,
    discount: Discount = "steps",
) -> Targets:
    """Generalised advantage estimation: A = delta + d lam A', target = A + V; all arrays [B,T,...], ``last`` [B,...].

    Arrays are [B,T,A] for seats, [B,T] for a team, or [R,M] for tokens with rewards of tokens. Seats are independent.
    lam = 1 gives the return less the value, lam = 0 the one-step error. Textbook formula.

    Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation (2015),
    https://arxiv.org/abs/1506.02438
    """
    check_shapes("where reward value [B,T,...] last [B,...]", where, reward, value, last)
    return _gae(_chain(reward, value, where, gamma, last, _step_times(where, discount)), lam)


def n_step(
    reward: jax.Array,
    value: jax.Array,
    where: jax.Array,
    n: int,
    *,
    gamma: Number = 1.0,
    last: jax.Array | None = None,
    discount: Discount = "steps",
) -> Targets:
    """G^n = r + d G^{n-1}', G^0 = V: the rewards of n steps and the value after them; the advantage is G^n - V.

    Arrays as in ``gae``. With n at least the array's length this is the whole return. n is static.

    Textbook formula. Sutton & Barto, Reinforcement Learning: An Introduction (2018), chapter 7,
    http://incompleteideas.net/book/the-book-2nd.html
    """
    check_shapes("where reward value [B,T,...] last [B,...]", where, reward, value, last)
    if n < 1:
        raise ValueError(f"An n-step return needs at least one step, got n = {n}.")
    chain = _chain(reward, value, where, gamma, last, _step_times(where, discount))
    extend = lambda _, returns: chain.reward + chain.discount * chain.next(returns)
    return _targets(chain, jax.lax.fori_loop(0, n, extend, chain.value) - chain.value)


def v_trace(
    reward: jax.Array,
    value: jax.Array,
    log_ratio: jax.Array,
    where: jax.Array,
    *,
    gamma: Number = 1.0,
    lam: Number = 1.0,
    rho: Number = 1.0,
    c: Number = 1.0,
    last: jax.Array | None = None,
    discount: Discount = "steps",
) -> Targets:
    """Returns corrected for off-policy data: log_ratio = log pi - log mu of each step [B,T,...], mu the sampler.

    With w = min(pi/mu, rho) and u = lam min(pi/mu, c): target v = V + e, e = w delta + d u e'. The advantage is
    w (r + d (lam v' + (1 - lam) V') - V), already weighted by w. On-policy with lam = 1, v is the return. The log-ratio
    of a turn is the sum over its tokens.

    Espeholt et al., IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures (2018),
    https://arxiv.org/abs/1802.01561; lam as in rlax.
    """
    check_shapes("where reward value log_ratio [B,T,...] last [B,...]", where, reward, value, log_ratio, last)
    chain = _chain(reward, value, where, gamma, last, _step_times(where, discount))
    ratio = jnp.exp(jax.lax.stop_gradient(keep(log_ratio, where)))  # infinity is truncated below
    weight, trace = jnp.minimum(ratio, rho), lam * jnp.minimum(ratio, c)
    target = chain.value + _backward(weight * chain.delta, chain.discount * trace, where)
    later = lam * chain.next(target) + (1 - lam) * chain.next(chain.value)
    advantage = weight * (chain.reward + chain.discount * later - chain.value)
    return Targets(keep(advantage, where), keep(target, where))


def gae_through_agents(
    reward: jax.Array,
    value: jax.Array,
    acted: jax.Array,
    *,
    gamma: Number = 1.0,
    lam: Number = 1.0,
    last: jax.Array | None = None,
    discount: Discount = "steps",
    step: jax.Array | None = None,
) -> Targets:
    """GAE along all acts of a team, turn by turn and within a turn by seat: team reward [B,T], the rest [B,T,A].

    delta = r + d V' - V, with ' the next act of any agent, in the same turn or later. The reward of a turn goes to the
    last act in it, or to the latest act before it. Let n be the environment steps between two acts: d is gamma^n, so 1
    between agents of one step. With ``discount="acts"`` d is gamma.

    ``step`` int [B,T] is the environment step of each turn, e.g. turn // agents where agents answer each other in turns
    of their own. By default a turn is a step. ``last`` is [B]. The value of an act should see all messages before it.

    Liao et al., MARFT: Multi-Agent Reinforcement Fine-Tuning (2025), https://arxiv.org/abs/2504.16129; the order of
    its released buffers, from a description: not compared with the release.
    """
    check_shapes("acted value [B,T,A] step [B,T] last [B]", acted, value, step, last)
    episodes, turns, agents = acted.shape
    if reward.shape != (episodes, turns):
        raise ValueError(f"The team's reward has shape {reward.shape}: it must be {(episodes, turns)}, one for a turn.")
    flat = lambda x: x.reshape(episodes, -1)
    by_agent = jnp.zeros(acted.shape, reward.dtype).at[:, :, -1].set(reward)
    time = None
    if _is_first(discount):
        step = jnp.broadcast_to(jnp.arange(turns)[None, :], reward.shape) if step is None else step
        time = jnp.repeat(step, agents, axis=1)
    chain = _chain(flat(by_agent), flat(keep(value, acted)), flat(acted), gamma, last, time)
    advantage, target = _gae(chain, lam)
    return Targets(advantage.reshape(acted.shape), target.reshape(acted.shape))


def on_last_token(reward: jax.Array, turn: jax.Array, where: jax.Array) -> jax.Array:
    """Moves the rewards of turns [R,T] to tokens [R,M]: each to the last token of ``where`` in its turn.

    ``turn`` [R,M] does not decrease along the tokens of ``where``. The reward of a turn without such tokens moves to
    the latest earlier turn with some. For rows of a rollout, the reward is ``reward[rows.episode, :, rows.seat]``.
    """
    check_shapes("where turn [R,M] reward [R,T]", where, turn, reward)
    spoke, _, ends = _turn_ends(turn, where, reward.shape[1])
    moved = jnp.take_along_axis(credit_to_acts(reward, spoke), jnp.where(where, turn, 0), axis=1)
    return keep(moved, ends)


def gae_by_token(
    reward: jax.Array,
    value: jax.Array,
    turn: jax.Array,
    where: jax.Array,
    *,
    gamma: Number = 1.0,
    lam: Number = 1.0,
    last: jax.Array | None = None,
    discount: Literal["tokens", "turns"] = "tokens",
) -> Targets:
    """GAE from token to token, through all turns of a row: rewards of turns [R,T], the rest [R,M], ``last`` [R].

    The reward of a turn is at its last token (``on_last_token``). The discount gamma applies to every token that
    counts, or with ``discount="turns"`` to every turn. lam applies to every token. Textbook formula; for the paper see
    ``gae``.
    """
    check_shapes("where turn value [R,M] reward [R,T] last [R]", where, turn, value, reward, last)
    time = turn if _is_first(discount, "turns", "tokens") else None
    return _gae(_chain(on_last_token(reward, turn, where), value, where, gamma, last, time), lam)


def gae_bi_level(
    reward: jax.Array,
    value: jax.Array,
    turn: jax.Array,
    where: jax.Array,
    *,
    gamma: Number = 1.0,
    lam: Number = 1.0,
    token_gamma: Number = 1.0,
    token_lam: Number = 1.0,
    last: jax.Array | None = None,
    discount: Discount = "steps",
) -> Targets:
    """GAE over turns first; the value target of a turn is then the reward of its last token for GAE over its tokens.

    Shapes as in ``gae_by_token``. The value of a turn is the value before its first token. The token level does not
    bootstrap across turns, since the target of a turn includes all later rewards. With token_gamma = token_lam = 1 the
    advantage of a token is the target of its turn less the token's value.

    After Wang et al., RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn Reinforcement Learning (2025),
    https://arxiv.org/abs/2504.20073. A copy of its released code takes the value at the turn's last token and one lam
    for both levels. It skips a turn with a reward of exactly 0.
    """
    check_shapes("where turn value [R,M] reward [R,T] last [R]", where, turn, value, reward, last)
    spoke, begins, ends = _turn_ends(turn, where, reward.shape[1])
    place = jnp.arange(len(turn))[:, None], jnp.where(begins, turn, reward.shape[1])
    before = jnp.zeros(reward.shape, value.dtype).at[place].set(value, mode="drop")
    upper = gae(reward, before, spoke, gamma=gamma, lam=lam, last=last, discount=discount)
    chain = _chain(on_last_token(upper.value_target, turn, where), value, where, token_gamma, None, None)
    return _gae(chain._replace(discount=jnp.where(ends, 0, chain.discount)), token_lam)


def fitted_critic(
    reward: jax.Array,
    observation: jax.Array,
    action: jax.Array,
    probability: jax.Array,
    acted: jax.Array,
    num_observations: int,
    *,
    gamma: Number = 1.0,
) -> jax.Array:
    """Q(s, a) - V(s) [B,T,A], with Q and V the tabular utterance critic fitted to these episodes until it converges.

        Q(s, a) = mean over acts a in s of r + gamma V(s'),   V(s) = sum over a of policy(a | s) Q(s, a),   V(end) = 0

    The tables start at 0 and are swept T times. The result is the fixed point of ArCHer's two regressions for tables
    and unlimited resampling of actions, if no observation returns within an episode.

    observation int [B,T,A] is below ``num_observations`` (static), action int [B,T,A]; probability [B,T,A,N] is the
    policy's where a seat acts. V(s) omits actions never taken in s and renormalises the probabilities of the others.

    Zhou et al., ArCHer (2024), equations 3 and 4, https://arxiv.org/abs/2402.19446, from its abstract.
    """
    check_shapes(
        "acted reward observation action [B,T,A] probability [B,T,A,N]", acted, reward, observation, action, probability
    )
    options, where = probability.shape[-1], acted
    pair, row = (observation * options + action).ravel(), jnp.where(where, observation, num_observations).ravel()
    policy = jnp.zeros((num_observations, options)).at[row].set(probability.reshape(-1, options), mode="drop")
    count = segment_count(pair, num_observations * options, where.ravel()).reshape(policy.shape)
    taken = jnp.where(count > 0, policy, 0)
    share = taken / jnp.maximum(taken.sum(1, keepdims=True), jnp.finfo(taken.dtype).tiny)
    chain = _chain(reward, jnp.zeros(where.shape), where, gamma, None, None)

    def sweep(_: int, q: jax.Array) -> jax.Array:
        target = chain.reward + chain.discount * chain.next(keep((share * q).sum(1)[observation], where))
        return segment_mean(target.ravel(), pair, policy.size, where.ravel()).reshape(policy.shape)

    q = jax.lax.fori_loop(0, where.shape[1], sweep, jnp.zeros(policy.shape))
    return keep(q[observation, action] - (share * q).sum(1)[observation], where)


def joint_value(value: jax.Array, known: jax.Array) -> jax.Array:
    """The joint value of a team, the sum over seats of their latest known values: [B,T,A], bool [B,T,A] -> [B,T].

    V_t = sum over seats of v at the seat's latest turn up to t with ``known``, 0 before its first. Each term sees only
    the view of its seat. All seats of a team then share one baseline: ``gae(team_reward, joint_value(value, known),
    played)``. Gradients flow, so a loss on the sum trains the value of every seat. A value stays until its seat has a
    newer one, also after the seat has left the game.

    Sunehag et al., Value-Decomposition Networks For Cooperative Multi-Agent Learning (2017, VDN),
    https://arxiv.org/abs/1706.05296
    """
    check_shapes("known value [B,T,A]", known, value)
    latest = jax.lax.cummax(jnp.where(known, _steps(known), -1), axis=1)
    carried = jnp.take_along_axis(keep(value, known), jnp.maximum(latest, 0), axis=1)
    return keep(carried, latest >= 0).sum(axis=2)


class _Chain(NamedTuple):
    """The steps that count, each linked to the next; every array [B,T,...]."""

    reward: jax.Array
    value: jax.Array
    discount: jax.Array  # from this step to the next that counts, or to `last`
    after: jax.Array  # int, index of the next step that counts; T after the last
    last: jax.Array  # [B,...]
    where: jax.Array

    def next(self, x: jax.Array) -> jax.Array:
        """x at the next step that counts, ``last`` after the last."""
        return jnp.take_along_axis(jnp.concatenate([x, self.last[:, None]], axis=1), self.after, axis=1)

    @property
    def delta(self) -> jax.Array:
        return self.reward + self.discount * self.next(self.value) - self.value


def _chain(
    reward: jax.Array,
    value: jax.Array,
    where: jax.Array,
    gamma: Number,
    last: jax.Array | None,
    time: jax.Array | None,
) -> _Chain:
    value = jax.lax.stop_gradient(keep(value, where))
    last = jnp.zeros_like(value[:, 0]) if last is None else jax.lax.stop_gradient(last).astype(value.dtype)
    if last.shape != value[:, 0].shape:
        raise ValueError(f"last has shape {last.shape}, but the values after the last step are {value[:, 0].shape}.")
    after, steps = _next_step(where), where.shape[1]
    if time is None:
        discount = jnp.full(where.shape, gamma, value.dtype)
    else:
        then = jnp.take_along_axis(jnp.concatenate([time, time[:, -1:]], axis=1), after, axis=1)
        passed = jnp.where(where & (after < steps), then - time, 1)
        discount = jnp.power(jnp.asarray(gamma, value.dtype), passed)
    return _Chain(credit_to_acts(reward, where), value, discount, after, last, where)


def _gae(chain: _Chain, lam: Number) -> Targets:
    return _targets(chain, _backward(chain.delta, chain.discount * lam, chain.where))


def _targets(chain: _Chain, advantage: jax.Array) -> Targets:
    return Targets(keep(advantage, chain.where), keep(advantage + chain.value, chain.where))


def _backward(x: jax.Array, decay: jax.Array, where: jax.Array) -> jax.Array:
    """y = x + decay y' over the steps that count, with y' at the next of them; 0 elsewhere: [B,T,...] -> [B,T,...]."""
    first = tuple(jnp.moveaxis(array, 1, 0) for array in (x, decay, where))
    return jnp.moveaxis(jax.lax.scan(_step_back, jnp.zeros_like(x[:, 0]), first, reverse=True)[1], 0, 1)


def _step_back(later: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    x, decay, counts = now
    here = jnp.where(counts, x + decay * later, 0)
    return jnp.where(counts, here, later), here


def _steps(where: jax.Array) -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, where.shape, 1)


def _next_step(where: jax.Array) -> jax.Array:
    """Index of the next step that counts, T after the last."""
    here = jax.lax.cummin(jnp.where(where, _steps(where), where.shape[1]), axis=1, reverse=True)
    return jnp.concatenate([here[:, 1:], jnp.full_like(here[:, :1], where.shape[1])], axis=1)


def _turn_ends(turn: jax.Array, where: jax.Array, turns: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(turns with tokens of ``where`` bool [R,T], mask of first tokens bool [R,M], mask of last tokens bool [R,M])."""
    place = jnp.where(where, turn, turns)  # past the end: dropped
    spoke = jnp.zeros((len(turn), turns), bool).at[jnp.arange(len(turn))[:, None], place].set(True, mode="drop")
    beyond = jnp.full_like(turn[:, :1], -1)
    following = jnp.take_along_axis(jnp.concatenate([turn, beyond], axis=1), _next_step(where), axis=1)
    latest = jax.lax.cummax(jnp.where(where, turn, -1), axis=1)
    before = jnp.concatenate([beyond, latest[:, :-1]], axis=1)
    return spoke, where & (before != turn), where & (following != turn)


def _step_times(where: jax.Array, discount: str) -> jax.Array | None:
    return _steps(where) if _is_first(discount) else None


def _is_first(discount: str, first: str = "steps", second: str = "acts") -> bool:
    """True for the first of the two possible names. Raises ValueError for any other."""
    if discount not in (first, second):
        raise ValueError(f"There is no discount {discount!r}: choose one of {first}, {second}.")
    return discount == first
