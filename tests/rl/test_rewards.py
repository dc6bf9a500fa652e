from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kendalltau

from jaxmarl_llm.rl.rewards import challenge, cosine, kendall, less_divergence, proxy_gap, rouge_1, team_sum, weigh


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


def test_what_a_question_is_worth():
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
