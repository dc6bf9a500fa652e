"""Votes against loops over dictionaries; ties and empty answers."""

from collections import defaultdict
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl.rewards import votes

ANSWERS, KEYS, MEMBERS, VIEWS = 4, 5, 3, 2


def samples(seed):
    """answer, where, key, member, view of 60 samples in an array [20, 3]; key 4 has none that votes."""
    generator = np.random.default_rng(seed)
    draw = lambda low, high: generator.integers(low, high, (20, 3))
    answer, key = draw(-1, ANSWERS), draw(0, KEYS)
    answer = np.where(key == 3, -1, answer)  # nobody answers the question
    return answer, (generator.random((20, 3)) < 0.8) & (key != 4), key, draw(0, MEMBERS), draw(0, VIEWS)


def best(total):
    """Exact: the largest total, the lowest answer of equal ones."""
    return min(total, key=lambda a: (-total[a], a)) if total else -1


def by_hand(answer, where, key, member, weighted):
    """Exact totals in fractions: SC_n is n's most common answer over all of n's samples, empty ones among them."""
    label = []
    for k in range(KEYS):
        total = defaultdict(Fraction)
        for n in range(MEMBERS):
            own = answer[where & (key == k) & (member == n)]
            counts = {a: int((own == a).sum()) for a in range(ANSWERS) if (own == a).any()}
            weight = Fraction(max(counts.values()), len(own)) if weighted and counts else Fraction(1)
            for a, count in counts.items():
                total[a] += weight * count
        label.append(best(total))
    return label


@pytest.mark.parametrize("seed", range(8))
def test_votes_against_loops(seed):
    answer, where, key, member, view = samples(seed)
    of = (*map(jnp.asarray, (answer, where, key)), KEYS, ANSWERS)
    assert votes.plurality(*of).tolist() == by_hand(answer, where, key, member, False)
    weighted = votes.by_consistency(*of, member=jnp.asarray(member), members=MEMBERS)
    assert weighted.tolist() == by_hand(answer, where, key, member, True)
    assert weighted[3] == weighted[4] == -1
    crossed = votes.cross_view(*of, view=jnp.asarray(view))
    for v in range(VIEWS):
        other = by_hand(answer, where & (view == 1 - v), key, member, False)
        assert crossed[:, v].tolist() == other
    for k, entropy in enumerate(votes.answer_entropy(*of)):
        said = answer[where & (key == k) & (answer >= 0)]
        share = np.bincount(said, minlength=ANSWERS) / max(len(said), 1)
        np.testing.assert_allclose(entropy, -sum(p * np.log(p) for p in share if p), atol=1e-6)


def test_samples_without_a_vote_may_hold_anything():
    answer, where, key, member, _ = samples(0)
    other = np.where(where, answer, 3)
    of = lambda x: (jnp.asarray(x), jnp.asarray(where), jnp.asarray(key), KEYS, ANSWERS)
    more = {"member": jnp.asarray(member), "members": MEMBERS}
    assert (votes.by_consistency(*of(answer), **more) == votes.by_consistency(*of(other), **more)).all()


def vote(*answers, members=None):
    given = jnp.array(answers)
    of = given, given >= -1, jnp.zeros_like(given), 1, 9
    if members is None:
        return int(votes.plurality(*of)[0])
    return int(votes.by_consistency(*of, member=jnp.array(members), members=max(members) + 1)[0])


def test_ties_go_to_the_larger_weight_then_to_the_lowest_number():
    assert vote(7, 2, 2, 7) == 2 and vote(7, 7, 2) == 7  # whoever answered first
    # two answers of two members each; the members who say 7 agree with themselves
    assert vote(7, 7, 2, 3, members=[0, 0, 1, 1]) == 7
    # equal in exact numbers, not in float32: 5 has 3 x 1/3 + 1 x 2/3, 4 has 2/3 x 2 + 1/3
    parts = [(0, (5, 1, 2)), (1, (5, 2, 3)), (2, (5, 3, 1)), (3, (5, 4, 4)), (4, (4, 6, 8))]
    flat = [(answer, n) for n, own in parts for answer in own]
    assert vote(*(a for a, _ in flat), members=[n for _, n in flat]) == 4


def test_one_sure_member_outweighs_three_who_doubt():
    """The pitfall: confidence is weighed, not truth. Five are right and four wrong."""
    members = [0] * 4 + [1] * 4 + [2] * 4
    answers = [8] * 4 + [1, 1, 2, 3] + [1, 1, 1, 4]
    assert vote(*answers) == 1 and vote(*answers, members=members) == 8


def test_with_one_member_it_is_self_voting():
    answers = [3, 1, 1, -1, 5]
    assert vote(*answers, members=[0] * 5) == vote(*answers) == 1


def test_empty_answers_count_for_nothing_and_earn_nothing():
    assert vote(-1, -1, -1, 6) == 6 and vote(-1, -1) == -1
    paid = votes.reward(jnp.array([-1, 6, 2, -1, 3]), jnp.array([6, 6, 6, -1, -1]))
    np.testing.assert_array_equal(paid, [0, 1, 0, 0, 0])  # a label of nobody rewards nobody, who is silent neither
    unsure = votes.self_consistency(jnp.array([4, 4, -1, -1]), jnp.ones(4, bool), jnp.zeros(4, int), 2, 9)
    np.testing.assert_array_equal(unsure, [0.5, 0])
