"""Returns with a critic against loops over lists of acts, against rlax's numbers, and by their laws."""

import functools
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import returns
from jaxmarl_llm.rl.advantages import reinforce

B, T, A, M = 7, 6, 3, 9
GAMMA, LAM = 0.9, 0.8


def batch(seed: int) -> dict[str, np.ndarray]:
    """Ragged episodes with seats that act now and then or never, and ragged rows of tokens in turns."""
    generator = np.random.default_rng(seed)
    alive = np.arange(T)[None, :, None] < generator.integers(1, T + 1, B)[:, None, None]
    acted = (generator.random((B, T, A)) < 0.6) & alive
    acted[0, :, 1] = False
    normal = lambda *shape: generator.normal(size=shape).astype(np.float32)
    turn = np.sort(generator.integers(0, T, (B, M)), axis=1)
    where = (np.arange(M)[None] < generator.integers(0, M + 1, B)[:, None]) & (generator.random((B, M)) < 0.8)
    return {
        "reward": np.where(alive, normal(B, T, A), 0),
        "team": np.where(alive[..., 0], normal(B, T), 0),
        "value": normal(B, T, A),
        "acted": acted,
        "log_ratio": normal(B, T, A),
        "last": normal(B, A),
        "tokens": normal(B, M),
        "turn": turn.astype(np.int32),
        "where": where,
    }


def discounts(times, gamma, acts):
    """From each act to the next, and from the last one to what comes after the end."""
    passed = [1 if acts else later - time for time, later in pairwise(times)]
    return [gamma**n for n in passed] + [gamma] * (len(times) > 0)


def gae_by_hand(r, v, d, last, lam):
    """The defining sum over all later acts, not the recursion."""
    n = len(r)
    after = [*v[1:], last]
    delta = [r[i] + d[i] * after[i] - v[i] for i in range(n)]
    return [sum(np.prod([d[k] * lam for k in range(i, j)]) * delta[j] for j in range(i, n)) for i in range(n)]


def n_step_by_hand(r, v, d, last, n):
    out = []
    for i in range(len(r)):
        end = min(i + n, len(r))
        gathered = sum(np.prod(d[i:j]) * r[j] for j in range(i, end))
        out.append(gathered + np.prod(d[i:end]) * (v[end] if end < len(r) else last) - v[i])
    return out


def v_trace_by_hand(r, v, d, last, log_ratio, lam, rho, c):
    n = len(r)
    weight = [min(np.exp(x), rho) for x in log_ratio]
    trace = [lam * min(np.exp(x), c) for x in log_ratio]
    after = [*v[1:], last]
    delta = [weight[i] * (r[i] + d[i] * after[i] - v[i]) for i in range(n)]
    vs = [v[i] + sum(np.prod([d[k] * trace[k] for k in range(i, j)]) * delta[j] for j in range(i, n)) for i in range(n)]
    later = [lam * x + (1 - lam) * y for x, y in zip([*vs[1:], last], after, strict=True)]
    return [weight[i] * (r[i] + d[i] * later[i] - v[i]) for i in range(n)], vs


def moved(reward, acts):
    """Rewards of a sequence, given to the latest act before them, or the first one."""
    out = dict.fromkeys(acts, 0.0)
    for t, r in enumerate(reward):
        if acts:
            out[max([s for s in acts if s <= t], default=acts[0])] += float(r)
    return [out[s] for s in acts]


def by_seat(x, solve, gamma, acts, last):
    """``solve(r, v, d, last, log_ratio)`` -> advantage (and target) of every seat's list of acts."""
    advantage, target = np.zeros((B, T, A)), np.zeros((B, T, A))
    for b in range(B):
        for a in range(A):
            times = [t for t in range(T) if x["acted"][b, t, a]]
            r, v = moved(x["reward"][b, :, a], times), [float(x["value"][b, t, a]) for t in times]
            ratio = [float(x["log_ratio"][b, t, a]) for t in times]
            solved = solve(r, v, discounts(times, gamma, acts), float(x["last"][b, a]) if last else 0.0, ratio)
            found, aim = solved if isinstance(solved, tuple) else (solved, np.add(solved, v))
            advantage[b, times, a], target[b, times, a] = found, aim
    return advantage, target


@functools.cache
def program(function, **static):
    """Compiled once for all tests that call it with these shapes."""
    return jax.jit(partial(function, **static))


def jitted(function, x, names, *, discount=None, **options):
    """The function of these arrays, compiled; all options but the discount are traced."""
    static = {} if discount is None else {"discount": discount}
    return program(function, **static)(*(jnp.asarray(x[name]) for name in names), **options)


def close(got: returns.Targets, expected, where) -> None:
    for found, aim in zip(got, expected, strict=True):
        np.testing.assert_allclose(found, aim, rtol=1e-4, atol=1e-5)
        assert not np.asarray(found)[~where].any()


SEATS = {
    "gae": (
        partial(returns.gae, lam=LAM),
        ("reward", "value", "acted"),
        lambda r, v, d, last, _: gae_by_hand(r, v, d, last, LAM),
    ),
    "n_step": (
        partial(returns.n_step, n=2),
        ("reward", "value", "acted"),
        lambda r, v, d, last, _: n_step_by_hand(r, v, d, last, 2),
    ),
    "v_trace": (
        partial(returns.v_trace, lam=LAM, rho=1.3, c=0.9),
        ("reward", "value", "log_ratio", "acted"),
        lambda r, v, d, last, ratio: v_trace_by_hand(r, v, d, last, ratio, LAM, 1.3, 0.9),
    ),
}


@pytest.mark.parametrize("discount", ["steps", "acts"])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", SEATS)
def test_returns_of_seats_equal_a_loop(name, cut, discount):
    function, names, solve = SEATS[name]
    for seed in range(2):
        x = batch(seed)
        dirty = x | {"value": np.where(x["acted"], x["value"], np.nan)}
        dirty["log_ratio"] = np.where(x["acted"], x["log_ratio"], np.inf)
        dirty["reward"] = np.where(x["acted"].any(1, keepdims=True), x["reward"], np.nan)
        options = {"gamma": GAMMA, "discount": discount} | ({"last": jnp.asarray(x["last"])} if cut else {})
        got = jitted(function, dirty, names, **options)
        close(got, by_seat(x, solve, GAMMA, discount == "acts", cut), x["acted"])


@pytest.mark.parametrize("name", SEATS)
def test_without_jit_and_without_a_seat_axis_it_is_the_same(name):
    function, names, _ = SEATS[name]
    x = batch(3)
    got = jitted(function, x, names, gamma=GAMMA)
    plain = function(*(jnp.asarray(x[n]) for n in names), gamma=GAMMA)
    one = function(*(jnp.asarray(x[n][:, :, 0]) for n in names), gamma=GAMMA)
    order = np.random.default_rng(0).permutation(B)
    permuted = jitted(function, {n: x[n][order] for n in names}, names, gamma=GAMMA)
    for i in range(2):
        np.testing.assert_allclose(got[i], plain[i], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got[i][:, :, 0], one[i], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got[i][order], permuted[i], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SEATS)
def test_turns_that_do_not_count_change_nothing_but_time(name):
    """Turns put between the acts, and after them, are seen by a discount of steps only."""
    function, names, _ = SEATS[name]
    x = batch(4)
    spread = {}
    for n in names:
        wide = np.zeros((B, 2 * T + 3, A), x[n].dtype)
        wide[:, : 2 * T : 2] = x[n]
        spread[n] = wide
    spread["value"][:, 1::2] = np.nan
    for options in ({"gamma": GAMMA, "discount": "acts"}, {"gamma": 1.0}):
        got, want = jitted(function, spread, names, **options), jitted(function, x, names, **options)
        for i in range(2):
            np.testing.assert_allclose(got[i][:, : 2 * T : 2], want[i], rtol=1e-5, atol=1e-6)
    squared = jitted(function, spread, names, gamma=np.float32(GAMMA**0.5))  # two steps where there was one
    np.testing.assert_allclose(
        squared[1][:, : 2 * T : 2][:, :-1], jitted(function, x, names, gamma=GAMMA)[1][:, :-1], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("discount", ["steps", "acts"])
@pytest.mark.parametrize("rounds", [False, True])
def test_gae_through_agents_equals_a_loop(rounds, discount):
    """One chain of all acts, by turn and seat; with rounds, two turns make one environment step."""
    x = batch(5)
    step = np.broadcast_to(np.arange(T) // 2, (B, T))
    advantage, target = np.zeros((B, T, A)), np.zeros((B, T, A))
    for b in range(B):
        acts = [(t, a) for t in range(T) for a in range(A) if x["acted"][b, t, a]]
        r = dict.fromkeys(acts, 0.0)
        for t in range(T):
            r[max([act for act in acts if act[0] <= t], default=acts[0])] += float(x["team"][b, t])
        v = [float(x["value"][b, t, a]) for t, a in acts]
        times = [int(step[b, t]) if rounds else t for t, _ in acts]
        found = gae_by_hand(
            list(r.values()), v, discounts(times, GAMMA, discount == "acts"), float(x["last"][b, 0]), LAM
        )
        for (t, a), value, one in zip(acts, v, found, strict=True):
            advantage[b, t, a], target[b, t, a] = one, one + value
    dirty = x | {"value": np.where(x["acted"], x["value"], np.nan)}
    options = {"step": jnp.asarray(step)} if rounds else {}
    got = jitted(
        returns.gae_through_agents,
        dirty,
        ("team", "value", "acted"),
        gamma=GAMMA,
        lam=LAM,
        last=jnp.asarray(x["last"][:, 0]),
        discount=discount,
        **options,
    )
    close(got, (advantage, target), x["acted"])


def test_through_one_agent_is_by_turn():
    x = batch(6)
    alone = {"gamma": GAMMA, "lam": LAM}
    one = [jnp.asarray(x[n][:, :, :1]) for n in ("value", "acted")]
    reward = jnp.asarray(x["reward"][:, :, 0])
    both = lambda r, *x: (returns.gae_through_agents(r, *x, **alone), returns.gae(r[:, :, None], *x, **alone))
    got, want = jax.jit(both)(reward, *one)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def token_lists(x, b):
    """(m, turn) of the tokens that count, and the reward of each turn that has some."""
    places = [m for m in range(M) if x["where"][b, m]]
    turns = sorted({int(x["turn"][b, m]) for m in places})
    return places, turns, dict(zip(turns, moved(x["reward"][b, :, 0], turns), strict=True))


@pytest.mark.parametrize("discount", ["tokens", "turns"])
def test_gae_by_token_equals_a_loop(discount):
    for seed in range(7, 9):
        x = batch(seed)
        advantage, target = np.zeros((B, M)), np.zeros((B, M))
        for b in range(B):
            places, _, paid = token_lists(x, b)
            turn = [int(x["turn"][b, m]) for m in places]
            r = [paid[t] if i + 1 == len(places) or turn[i + 1] != t else 0.0 for i, t in enumerate(turn)]
            v = [float(x["tokens"][b, m]) for m in places]
            found = gae_by_hand(r, v, discounts(turn, GAMMA, discount == "tokens"), float(x["last"][b, 0]), LAM)
            advantage[b, places], target[b, places] = found, np.add(found, v)
        options = {"gamma": GAMMA, "lam": LAM, "discount": discount, "last": jnp.asarray(x["last"][:, 0])}
        seat = x | {"reward": x["reward"][:, :, 0], "tokens": np.where(x["where"], x["tokens"], np.nan)}
        got = jitted(returns.gae_by_token, seat, ("reward", "tokens", "turn", "where"), **options)
        close(got, (advantage, target), x["where"])


def test_bi_level_gae_equals_a_loop():
    for seed in range(9, 11):
        x = batch(seed)
        advantage, target = np.zeros((B, M)), np.zeros((B, M))
        for b in range(B):
            places, turns, paid = token_lists(x, b)
            of = {t: [m for m in places if x["turn"][b, m] == t] for t in turns}
            first = [float(x["tokens"][b, of[t][0]]) for t in turns]
            upper = gae_by_hand(list(paid.values()), first, discounts(turns, GAMMA, False), float(x["last"][b, 0]), LAM)
            for t, value, over in zip(turns, first, upper, strict=True):
                v = [float(x["tokens"][b, m]) for m in of[t]]
                r = [0.0] * (len(v) - 1) + [value + over]
                found = gae_by_hand(r, v, [0.95] * len(v), 0.0, 0.7)
                advantage[b, of[t]], target[b, of[t]] = found, np.add(found, v)
        options = {"gamma": GAMMA, "lam": LAM, "token_gamma": 0.95, "token_lam": 0.7}
        seat = x | {"reward": x["reward"][:, :, 0], "tokens": np.where(x["where"], x["tokens"], np.nan)}
        names = ("reward", "tokens", "turn", "where")
        got = jitted(returns.gae_bi_level, seat, names, last=jnp.asarray(x["last"][:, 0]), **options)
        close(got, (advantage, target), x["where"])


def test_levels_agree_where_there_is_only_one():
    x = {n: jnp.asarray(field) for n, field in batch(11).items()}
    reward, value, acted = x["reward"][:, :, 0], x["value"][:, :, 0], x["acted"][:, :, 0]
    turn = jnp.broadcast_to(jnp.arange(T)[None], acted.shape)  # one token a turn
    want = returns.gae(reward, value, acted, gamma=GAMMA, lam=LAM)
    by_token = returns.gae_by_token(reward, value, turn, acted, gamma=GAMMA, lam=LAM, discount="turns")
    bi_level = returns.gae_bi_level(reward, value, turn, acted, gamma=GAMMA, lam=LAM, token_gamma=0.3, token_lam=0.3)
    np.testing.assert_allclose(by_token, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(bi_level, want, rtol=1e-5, atol=1e-5)
    single = jnp.zeros_like(turn)  # one turn a row
    of_tokens = returns.gae_by_token(reward, value, single, acted, lam=LAM)
    nested = returns.gae_bi_level(reward, value, single, acted, gamma=GAMMA, lam=1.0, token_lam=LAM)
    np.testing.assert_allclose(nested, of_tokens, rtol=1e-5, atol=1e-5)


def test_episode_sums_survive_the_move_where_a_seat_acts():
    reward, acted = batch(13)["reward"], batch(13)["acted"]
    moved = returns.credit_to_acts(jnp.asarray(reward), jnp.asarray(acted))
    np.testing.assert_allclose(moved.sum(axis=1), np.where(acted.any(1), reward.sum(1), 0), rtol=1e-5, atol=1e-6)
    assert not np.asarray(moved)[~acted].any()


def test_lambda_one_is_the_monte_carlo_return_less_the_value():
    x = {n: jnp.asarray(field) for n, field in batch(12).items()}
    got = returns.gae(x["reward"], x["value"], x["acted"], gamma=GAMMA, lam=1.0)
    to_go = reinforce(x["reward"], x["acted"], jnp.zeros(B, int), 1, returns="to_go", gamma=GAMMA)
    np.testing.assert_allclose(got.value_target, to_go, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.advantage, jnp.where(x["acted"], to_go - x["value"], 0), rtol=1e-4, atol=1e-5)


def test_special_cases_of_n_step_and_v_trace():
    x = {n: jnp.asarray(field) for n, field in batch(13).items()}
    given = x["reward"], x["value"], x["acted"]
    options = {"gamma": GAMMA, "last": x["last"]}
    whole = returns.gae(*given, lam=1.0, **options)
    np.testing.assert_allclose(returns.n_step(*given, n=T, **options), whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(returns.n_step(*given, n=50, **options), whole, rtol=1e-4, atol=1e-5)
    one = returns.gae(*given, lam=0.0, **options)
    np.testing.assert_allclose(returns.n_step(*given, n=1, **options), one, rtol=1e-4, atol=1e-5)
    on_policy = returns.v_trace(*given[:2], jnp.zeros_like(x["value"]), x["acted"], **options)
    np.testing.assert_allclose(on_policy, whole, rtol=1e-4, atol=1e-5)
    partly = returns.v_trace(*given[:2], jnp.zeros_like(x["value"]), x["acted"], lam=LAM, **options)
    np.testing.assert_allclose(
        partly.value_target, returns.gae(*given, lam=LAM, **options).value_target, rtol=1e-4, atol=1e-5
    )
    never = returns.v_trace(*given[:2], jnp.full_like(x["value"], -jnp.inf), x["acted"], **options)
    np.testing.assert_allclose(never.value_target, jnp.where(x["acted"], x["value"], 0))  # nothing is learned from it
    assert not never.advantage.any()


def test_joint_value_is_the_sum_of_the_latest_known_values():
    x = batch(15)
    want = np.zeros((B, T))
    for b in range(B):
        for t in range(T):
            for a in range(A):
                turns = [s for s in range(t + 1) if x["acted"][b, s, a]]
                want[b, t] += x["value"][b, turns[-1], a] if turns else 0
    dirty = x | {"value": np.where(x["acted"], x["value"], np.nan)}
    np.testing.assert_allclose(jitted(returns.joint_value, dirty, ("value", "acted")), want, rtol=1e-5, atol=1e-6)


def test_a_loss_on_the_joint_value_trains_every_seat():
    """Additive: the gradient of each V_t is 1 at each seat's latest known value, so that a sum over t counts turns."""
    known = jnp.array([[[True, False], [False, True], [False, False], [True, False]]])
    gradient = jax.grad(lambda v: returns.joint_value(v, known).sum())(jnp.zeros((1, 4, 2)))
    np.testing.assert_array_equal(gradient[0], [[3, 0], [0, 3], [0, 0], [1, 0]])


CASES = {
    **{name: (function, names) for name, (function, names, _) in SEATS.items()},
    "through_agents": (partial(returns.gae_through_agents, lam=LAM), ("team", "value", "acted")),
    "by_token": (partial(returns.gae_by_token, lam=LAM), ("team", "tokens", "turn", "where")),
    "bi_level": (partial(returns.gae_bi_level, lam=LAM, token_lam=0.7), ("team", "tokens", "turn", "where")),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_flow_through_rewards_and_not_through_values(name):
    function, names = CASES[name]
    x = batch(16)
    given = [jnp.asarray(x[n]) for n in names]
    generator = np.random.default_rng(17)
    shape = given[1].shape
    mix = jnp.asarray(generator.normal(size=(2, *shape)), jnp.float32)

    @jax.jit
    def total(reward, value):
        advantage, target = function(reward, value, *given[2:], gamma=GAMMA)
        return (mix[0] * advantage + mix[1] * target).sum()

    by_reward, by_value = jax.jit(jax.grad(total, argnums=(0, 1)))(*given[:2])
    np.testing.assert_array_equal(by_value, jnp.zeros_like(by_value))
    direction = jnp.asarray(generator.normal(size=given[0].shape), jnp.float32)
    change = total(given[0] + direction, given[1]) - total(given[0] - direction, given[1])  # linear in the reward
    np.testing.assert_allclose((by_reward * direction).sum(), change / 2, rtol=1e-3, atol=1e-4)
    assert np.abs(by_reward).max() > 0.1


def test_impossible_requests_are_refused():
    x = {n: jnp.asarray(field) for n, field in batch(18).items()}
    given = x["reward"], x["value"], x["acted"]
    with pytest.raises(ValueError, match="steps, acts"):
        returns.gae(*given, discount="turns")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tokens"):
        returns.gae_by_token(x["team"], x["tokens"], x["turn"], x["where"], discount="acts")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="last has shape"):
        returns.gae(*given, last=jnp.zeros(B))
    with pytest.raises(ValueError, match="where has shape"):
        returns.gae(x["team"], x["value"], x["acted"])
    with pytest.raises(ValueError, match="team's reward"):
        returns.gae_through_agents(*given)
    with pytest.raises(ValueError, match="n = 0"):
        returns.n_step(*given, n=0)


def test_a_fitted_critic_sweeps_over_two_means():
    """Loops over acts, once for every turn, with a discount, ragged episodes and actions that were never taken."""
    x, rng = batch(3), np.random.default_rng(4)
    observation, action = rng.integers(0, 4, (B, T, A)), rng.integers(0, 3, (B, T, A))
    policy = rng.dirichlet(np.ones(3), 4).astype(np.float32)
    paid, acts = np.asarray(returns.credit_to_acts(x["reward"], x["acted"])), []
    for b, a in np.ndindex(B, A):
        turns = np.flatnonzero(x["acted"][b, :, a])
        acts += [((b, t, a), (b, then, a)) for t, then in zip(turns, [*turns[1:], None], strict=False)]
    v, q = np.zeros(4), {}
    for _ in range(T):
        towards: dict = {}
        for here, then in acts:
            after = 0 if then[1] is None else v[observation[then]]
            towards.setdefault((observation[here], action[here]), []).append(paid[here] + GAMMA * after)
        q = {key: np.mean(value) for key, value in towards.items()}
        for s in range(4):
            known = {a: policy[s, a] for a in range(3) if (s, a) in q}
            v[s] = sum(p * q[s, a] for a, p in known.items()) / sum(known.values()) if known else 0
    probability = np.where(x["acted"][..., None], policy[observation], 0)
    found = returns.fitted_critic(x["reward"], observation, action, probability, x["acted"], 4, gamma=GAMMA)
    expected = np.zeros((B, T, A))
    for here, _ in acts:
        expected[here] = q[observation[here], action[here]] - v[observation[here]]
    np.testing.assert_allclose(found, expected, atol=1e-5)
