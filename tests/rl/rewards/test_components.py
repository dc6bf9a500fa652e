from collections import Counter
from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kendalltau

from jaxmarl_llm.environments.solo.farm import Farm
from jaxmarl_llm.rl.rewards import (
    at_end,
    challenge,
    checklist,
    condition_on,
    cosine,
    gate_steps,
    kendall,
    less_divergence,
    milestones,
    overlong,
    potential_difference,
    proxy_gap,
    rouge_1,
    team_sum,
    tiers,
    weigh,
)


def test_components_are_weighted_and_summed():
    reward = np.random.default_rng(0).normal(size=(2, 3, 4, 3)).astype(np.float32)
    expected = 2 * reward[..., 0] - reward[..., 2]
    np.testing.assert_allclose(weigh(jnp.asarray(reward), jnp.array([2.0, 0.0, -1.0])), expected, rtol=1e-5, atol=1e-6)


def test_one_weight_too_few_is_refused():
    with pytest.raises(ValueError, match="3 reward components"):
        weigh(jnp.ones((1, 1, 1, 3)), jnp.ones(2))


def test_a_team_shares_the_sum_of_its_turn():
    reward = jnp.array([[[3.0, 0.0], [1.0, 5.0]]])
    np.testing.assert_array_equal(team_sum(reward), [[[3.0, 3.0], [6.0, 6.0]]])


def test_kendall_is_scipys_and_counts_pairs():
    rng = np.random.default_rng(0)
    for n in (2, 4, 7):
        order = np.stack([rng.permutation(n) for _ in range(20)])
        score = np.stack([rng.permutation(n) for _ in range(20)])
        want = [kendalltau(a, b).statistic for a, b in zip(score, order, strict=True)]  # without ties a is b
        np.testing.assert_allclose(kendall(jnp.array(score), jnp.array(order)), want, atol=1e-6)
    tied = kendall(jnp.array([[1, 1, 2], [0, 0, 0]]), jnp.array([[1, 2, 3], [1, 2, 3]]))
    np.testing.assert_allclose(tied, [2 / 3, 0], atol=1e-6)
    for score, order in ((1, 1), (2, 3)):
        with pytest.raises(ValueError, match="an order of as many"):
            kendall(jnp.zeros((4, score)), jnp.zeros((4, order)))


def test_the_gap_between_proxy_and_truth_is_of_what_counts():
    proxy, true = jnp.array([[0.9, 0.2], [0.6, jnp.nan]]), jnp.array([[1.0, 0.0], [0.0, 1.0]])
    found = proxy_gap(proxy, true, jnp.array([[True, True], [True, False]]))
    wanted = {"proxy": 1.7 / 3, "true": 1 / 3, "gap": 0.7 / 3, "agreement": 2 / 3}
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        np.testing.assert_allclose(found[name], x, rtol=1e-6)


def test_challenge_rewards_by_solve_rate():
    solved = np.array([0.0, 0.25, 0.5, 1.0], np.float32)
    np.testing.assert_allclose(challenge(jnp.asarray(solved)), [1, 0.75, 0.5, 0])
    released = [4 * (0 + p) * (1 - p) if 0 < p < 1 else 0 for p in solved]  # the release, with its default bounds
    np.testing.assert_allclose(challenge(jnp.asarray(solved), "intermediate"), released)
    with pytest.raises(ValueError, match="'hard' or 'intermediate'"):
        challenge(jnp.asarray(solved), "soft")


def test_divergence_is_paid_for_token_by_token():
    rng = np.random.default_rng(1)
    logp, reference, reward = rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), rng.normal(size=3)
    where = np.arange(4)[None] < np.array([4, 1, 0])[:, None]
    expected = []
    for i in range(3):  # per token -beta (logp - reference_logp), the task's reward on the last one
        tokens = [-0.3 * (logp[i, t] - reference[i, t]) for t in range(4) if where[i, t]]
        expected.append(sum(tokens) + reward[i])
    found = less_divergence(*map(jnp.asarray, (reward, logp, reference, where)), 0.3)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_cosine_is_numpys_and_0_for_nothing():
    a, b = np.random.default_rng(0).normal(size=(2, 5, 8))
    want = [x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(cosine(jnp.asarray(a), jnp.asarray(b)), want, rtol=1e-5, atol=1e-6)
    assert cosine(jnp.zeros(3), jnp.ones(3)) == 0


def test_rouge_counts_words_as_often_as_both_have_them():
    rng = np.random.default_rng(1)
    texts, references = (rng.integers(0, 4, (30, n)) for n in (6, 5))
    lengths, others = rng.integers(0, 7, 30), rng.integers(1, 6, 30)
    want = []
    for text, reference, n, k in zip(texts, references, lengths, others, strict=True):
        common = sum((Counter(text[:n].tolist()) & Counter(reference[:k].tolist())).values())
        want.append(2 * common / (n + k))
    found = rouge_1(jnp.asarray(texts), jnp.asarray(lengths), jnp.asarray(references), jnp.asarray(others))
    np.testing.assert_allclose(found, want, rtol=1e-6)
    assert len(set(want)) > 5


def test_an_easy_reward_counts_where_the_hard_one_is_met():
    reward = (np.random.default_rng(2).random((40, 3, 2, 3)) < 0.3).astype(np.float32)
    expected = reward.copy()
    for b, a in np.ndindex(40, 2):
        if reward[b, :, a, 1].sum() < 1:
            expected[b, :, a, 0] = expected[b, :, a, 2] = 0
    np.testing.assert_array_equal(condition_on(jnp.asarray(reward), on=1), expected)
    assert 0 < expected[..., 0].sum() < reward[..., 0].sum()
    with pytest.raises(ValueError, match="no component 3"):
        condition_on(jnp.asarray(reward), on=3)


def test_overlong_answers_lose_up_to_one():
    def three_cases(n):  # the paper's
        return 0.0 if n <= 16 else (16 - n) / 4 if n <= 20 else -1.0

    lengths = np.arange(30)
    np.testing.assert_allclose(
        overlong(jnp.asarray(lengths), max_length=20, buffer=4), [three_cases(n) for n in lengths]
    )
    with pytest.raises(ValueError, match="within the 20 tokens"):
        overlong(jnp.asarray(lengths), max_length=20, buffer=21)


def days(turns: int = 4):
    """Every day on a farm of so many turns, in plain Python: outcome, steps, works before each turn, played [B, T]."""
    records = []
    for plan in product(Farm().phrases_to_say, repeat=turns):
        works, over, record = 0, False, []
        for said in plan:
            stop = said == "stop"
            record.append((works / 3 * stop * (not over), 0.4 * (said == "look") * (not over), works / 3, not over))
            works += not over and works < 3 and said == Farm().phrases_to_say[1 + works]
            over |= stop
        records.append(record)
    return (np.array(part) for part in np.moveaxis(np.array(records, np.float32), 2, 0))


def test_a_gate_lets_steps_count_where_the_outcome_exceeds_it():
    outcome, steps, *_ = days()
    for delta in (0.0, 0.5, -np.inf):
        returns = np.asarray(gate_steps(jnp.array(outcome), jnp.array(steps), delta)).sum(1)
        for found, long, each in zip(returns, outcome.sum(1), steps, strict=True):
            assert found == pytest.approx(long + (sum(each) if long > delta else 0), abs=1e-6)
    added, kept = (outcome + steps).sum(1), np.asarray(gate_steps(jnp.array(outcome), jnp.array(steps), 0.9)).sum(1)
    assert outcome[added.argmax()].sum() == 0 and outcome[kept.argmax()].sum() == pytest.approx(1)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_a_potential_adds_the_same_to_every_day(gamma):
    """So the best days stay the best: the discounted sum is -Phi(s_0), however early a day ends."""
    outcome, _, works, played = days()
    potential = np.cos(3 * works) + 0.1 * np.arange(4)[None]  # the state includes its turn
    shaped = np.asarray(potential_difference(jnp.array(potential), jnp.array(played > 0), gamma))
    discount = gamma ** np.arange(4)
    np.testing.assert_allclose((shaped * discount).sum(1), -potential[:, 0], atol=1e-5)
    before, after = (outcome * discount).sum(1), ((outcome + shaped) * discount).sum(1)
    assert (np.isclose(before, before.max()) == np.isclose(after, after.max(), atol=1e-5)).all()
    unended = shaped + np.where(played > 0, potential, 0)  # a shaping that forgets that the end is worth 0 does not
    assert np.ptp((unended * discount).sum(1)) > 0.1


def test_a_potential_leaves_the_action_gaps_of_a_solved_problem():
    """Backward induction on a random problem of 4 steps, 3 states and 2 actions: Q changes by -Phi(s) alone."""
    rng = np.random.default_rng(0)
    reward, go, phi = rng.normal(size=(4, 3, 2)), rng.integers(0, 3, (4, 3, 2)), rng.normal(size=(4, 3))
    gamma = 0.8

    def solved(shape: bool):
        value, q = np.zeros(3), [np.zeros((3, 2))] * 4
        for t in reversed(range(4)):
            q[t] = reward[t] + gamma * value[go[t]]
            for state, action in product(range(3), range(2)) if shape else ():
                after = phi[t + 1, go[t, state, action]] if t < 3 else 0.0
                path = jnp.array([[phi[t, state], after]]), jnp.array([[True, t < 3]])
                q[t][state, action] += potential_difference(*path, gamma)[0, 0]
            value = q[t].max(1)
        return np.stack(q)

    np.testing.assert_allclose(solved(True), solved(False) - phi[:, :, None], atol=1e-5)


def test_tiers_keep_the_order_of_progress():
    progress = np.linspace(0, 1, 23, dtype=np.float32)
    bounds, worth = (0.3, 0.6, 0.95), (0.0, 0.1, 0.4, 1.0)
    expected = [next(w for b, w in zip((*bounds, 9), worth, strict=True) if x < b) for x in progress]
    np.testing.assert_allclose(tiers(jnp.array(progress), bounds, worth), expected)
    for wrong in ((0.6, 0.3, 0.95), worth), (bounds, (0.0, 0.4, 0.1, 1.0)), (bounds, worth[:3]):
        with pytest.raises(ValueError, match="Tiers need ascending bounds"):
            tiers(jnp.array(progress), *wrong)


def test_milestones_are_paid_once():
    reached = np.random.default_rng(0).random((5, 6, 1, 3)) < 0.3
    worth = np.array([1.0, 2.0, 4.0], np.float32)
    expected = np.zeros((5, 6, 1))
    for b, k in product(range(5), range(3)):
        if reached[b, :, 0, k].any():
            expected[b, reached[b, :, 0, k].argmax(), 0] += worth[k]
    np.testing.assert_allclose(milestones(jnp.array(reached), jnp.array(worth)), expected)


def test_a_checklist_by_turn_and_at_the_end():
    rng = np.random.default_rng(1)
    met, weights = rng.random((6, 5, 2, 3)) < 0.5, np.array([1.0, 3.0, 4.0], np.float32)
    dense = np.asarray(checklist(jnp.array(met), jnp.array(weights)))
    expected = [[[sum(w for m, w in zip(x, weights, strict=True) if m) / 8 for x in y] for y in z] for z in met]
    np.testing.assert_allclose(dense, expected, rtol=1e-6)
    acted = rng.random((6, 5, 2)) < 0.4
    sparse = np.asarray(at_end(jnp.array(dense), jnp.array(acted)))
    for b, a in product(range(6), range(2)):
        acts = np.flatnonzero(acted[b, :, a])
        wanted = np.zeros(5)
        if len(acts):
            wanted[acts[-1]] = dense[b, :, a].sum()
        np.testing.assert_allclose(sparse[b, :, a], wanted, rtol=1e-6)


def test_numbers_that_do_not_fit_the_milestones_or_criteria_are_refused():
    for worth in (jnp.ones(1), jnp.ones(3)):
        with pytest.raises(ValueError, match="one number for each milestone"):
            milestones(jnp.ones((2, 3, 2), bool), worth)
        with pytest.raises(ValueError, match="one number for each criterion"):
            checklist(jnp.ones((3, 2), bool), worth)
