"""Credit on two time scales, against loops over the turns of each episode."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.long_horizon.subgoals import GAME, LAM, REMEMBERS, ROOMS, STUDY, estimate_advantages, measure, table
from jaxmarl_llm.environments.around.subgoals import SWITCH, by_level, together
from jaxmarl_llm.rl.value_table import ValueTable

B, T, N = 6, 4, 5  # episodes, turns, situations


def batch():
    rng = np.random.default_rng(0)
    length = np.array([4, 3, 4, 2, 1, 4])
    acted = np.repeat(np.arange(T)[None] < length[:, None], 3, 1)
    action = rng.integers(0, 2, (B, 3 * T))
    action[:, 0] = SWITCH
    kept = np.zeros((B, 3 * T))
    kept[:, ::3] = (action[:, ::3] != SWITCH) & acted[:, ::3]
    situation = rng.integers(0, N, (B, 3 * T)) * acted
    options = np.full((B, 3 * T), 3)
    options[:, 0] = 1
    options[:, 1::3] = np.where(kept[:, ::3] > 0, 1, 3)
    points, won, right = (np.where(np.arange(3 * T) % 3 == 2, rng.random((B, 3 * T)), 0) * acted for _ in range(3))
    reward = np.stack([points, won, -0.25 * kept, right, situation], -1)
    value = np.where(acted, rng.normal(size=(B, 3 * T)), 0)
    return acted, action, options, reward, value


def experience_of(acted, action, options, reward, value):
    episodes = SimpleNamespace(
        acted=jnp.asarray(acted)[..., None],
        action=jnp.asarray(action)[..., None],
        legal=(np.arange(5)[None, None] < options[..., None])[:, :, None],
        total_reward=jnp.asarray(paid_of(reward), jnp.float32)[..., None],
        measured=jnp.asarray(reward[..., [1, 3, 4]], jnp.float32)[:, :, None],
    )
    acts = episodes.acted, jnp.zeros(B, jnp.int32), 1
    return SimpleNamespace(episodes=episodes, turn_value=jnp.asarray(value, jnp.float32)[..., None], acts=acts)


@jax.jit
def compiled(arrays, numbers, state):
    return estimate_advantages(experience_of(*arrays), numbers, state)


def credited_of(arrays, recipe, state):
    """In one program for all arms."""
    return compiled(arrays, recipe.traced_hparams, state)


def hierarchical_by_hand(r, value, action):
    """Of one episode of n turns, reward by turn: lists of advantages of switch, subgoal (None if kept) and answer."""
    n = len(r)
    starts = [t for t in range(n) if t == 0 or action[3 * t] == SWITCH]
    switch, subgoal, answer = [0.0] * n, [None] * n, [0.0] * n
    later = 0.0
    for low, high in reversed(list(zip(starts, [*starts[1:], n], strict=True))):
        after = value[3 * high + 1] if high < n else 0.0  # of the next segment
        carried = 0.0
        for t in reversed(range(low, high)):
            following = value[3 * (t + 1) + 2] if t + 1 < high else after
            carried = r[t] + following - value[3 * t + 2] + LAM * carried
            answer[t] = carried
            switch[t] = sum(r[t:high]) + after - value[3 * t]
        later = sum(r[low:high]) + after - value[3 * low + 1] + LAM * later
        subgoal[low] = later
    return switch, subgoal, answer


def flat_by_hand(r, value, choices):
    """Of one episode, reward by decision: {decision: advantage} where there was a choice. A reward belongs to the last
    choice up to it."""
    found, carried, following, due = {}, 0.0, 0.0, 0.0
    for t in reversed(range(len(r))):
        due += r[t]
        if choices[t]:
            carried = due + following - value[t] + LAM ** (1 / 3) * carried
            found[t], following, due = carried, value[t], 0.0
    return found


def normalised(found):
    """{place: advantage} with mean 0 and standard deviation 1."""
    x = np.array(list(found.values()))
    return dict(zip(found, (x - x.mean()) / x.std(), strict=True))


def paid_of(reward):
    """By decision: what is won, less the penalty for keeping."""
    return reward[..., 0] + reward[..., 2]


def to_go_by_hand(paid, choices):
    """{decision: what is paid from it on} where there was a choice; what comes before the next choice is its own."""
    return {t: paid[t:].sum() for t in range(len(paid)) if choices[t]}


def a_table():
    rng = np.random.default_rng(1)
    count = rng.integers(0, 3, (3 * T, N)).astype(float)
    return count * rng.random((3 * T, N)), count


def table_value(total, count, t, situation):
    """The mean return there, one game at the mean of the word added."""
    word = total[t].sum() / max(count[t].sum(), 1)
    return (total[t, situation] + word) / (count[t, situation] + 1)


@pytest.mark.parametrize("arm", list(STUDY.arms))
def test_credit(arm):
    arrays = batch()
    acted, action, options, reward, value = arrays
    hparams, (total, count) = STUDY.arms[arm].all_hparams, a_table()
    state = ValueTable(*(jnp.asarray(x, jnp.float32) for x in (total, count)))
    advantages = credited_of(arrays, STUDY.arms[arm], state)
    if hparams["critic"] == "table":
        read = [[table_value(total, count, t, int(x)) for t, x in enumerate(row)] for row in reward[..., 4]]
        value = np.where(acted & (options > 1), read, 0)
    found, target = (np.asarray(x)[..., 0] for x in (advantages.advantage, advantages.value_target))
    levels, targets = [{}, {}, {}], {}
    earned = [(paid_of(reward[b]) * acted[b]).sum() for b in range(B)]
    for b in range(B):
        n = acted[b].sum() // 3
        paid = paid_of(reward[b])
        if hparams["credit"] == "hae":
            turns = [paid[3 * t : 3 * t + 3].sum() for t in range(n)]
            for level, own in enumerate(hierarchical_by_hand(turns, value[b], action[b])):
                for t, x in enumerate(own):
                    if x is not None and options[b, 3 * t + level] > 1:
                        levels[level][b, 3 * t + level] = x
        else:
            flat = {(b, t): x for t, x in flat_by_hand(paid[: 3 * n], value[b], options[b] > 1).items()}
            targets |= {place: x + value[place] for place, x in flat.items()}
            alone = earned[b] - np.mean(np.delete(earned, b))
            levels[0] |= dict.fromkeys(flat, alone) if hparams["credit"] == "group" else flat
    for own in levels if not targets else []:
        targets |= {place: x + value[place] for place, x in own.items()}
    want = {place: x for own in levels if own for place, x in normalised(own).items()}
    np.testing.assert_allclose([found[place] for place in want], list(want.values()), atol=1e-4)
    np.testing.assert_allclose([target[place] for place in targets], list(targets.values()), atol=1e-4)
    assert len(want) == (acted & (options > 1)).sum() and np.abs(found).sum() == pytest.approx(
        np.abs(list(want.values())).sum(), rel=1e-4
    )


def test_table_and_its_error():
    arrays = batch()
    acted, _, options, reward, _ = arrays
    total, count = a_table()
    state = ValueTable(*(jnp.asarray(x, jnp.float32) for x in (total, count)))
    found = credited_of(arrays, STUDY.arms["hae"], state)
    off, returns, total, count = 0.0, [], REMEMBERS * total, REMEMBERS * count
    for b in range(B):
        n = acted[b].sum()
        for t, x in to_go_by_hand(paid_of(reward[b])[:n], options[b] > 1).items():
            situation = int(reward[b, t, 4])
            off += (x - table_value(*a_table(), t, situation)) ** 2
            returns.append(x)
            total[t, situation] += x
            count[t, situation] += 1
    np.testing.assert_allclose(found.state.total, total, atol=1e-5)
    np.testing.assert_allclose(found.state.count, count, atol=1e-5)
    assert float(found.metrics["error/sum"]) == pytest.approx(off, rel=1e-4)
    assert float(found.metrics["error/count"]) == pytest.approx(len(returns) * np.var(returns), rel=1e-4)
    np.testing.assert_array_equal(table(None, None).count, np.zeros((GAME.turns, 2 * ROOMS.situations)))


def test_levels_and_what_is_measured():
    acted, action, options, reward, value = batch()
    x = jnp.arange(2 * 6).reshape(2, 6, 1)
    np.testing.assert_array_equal(by_level(x)[1][..., 0], [[1, 4], [7, 10]])
    np.testing.assert_array_equal(together(*by_level(x)), x)
    found = measure(experience_of(acted, action, options, reward, value).episodes)
    asked = acted[:, 3::3]
    assert float(found["switches"]) == pytest.approx((action[:, 3::3] == SWITCH)[asked].mean())
    assert float(found["right"]) == pytest.approx(reward[..., 3].sum() / acted[:, 2::3].sum(), rel=1e-5)
    assert float(found["won"]) == pytest.approx(reward[..., 1].sum(1).mean(), rel=1e-5)
