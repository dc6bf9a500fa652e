"""Reviews: what the reviewer says and keeps, what the second seat reads, points and pairs against plain Python."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.judged import reviews
from jaxmarl_llm.environments.judged.reviews import KNOWN, THINGS, WORDS, Commission, Reviews
from tests.support.team_plays import acted, played, row, totals

GAME = Reviews(4)
PRAISE = {"great", "superb", "lovely"}


def test_two_films_share_one_thing():
    for a in range(7):
        assert len({*KNOWN[a].tolist()}) == 3
        assert all(len({*KNOWN[a].tolist()} & {*KNOWN[b].tolist()}) == 1 for b in range(7) if b != a)


def test_points_and_what_the_second_writer_reads():
    record = played(GAME, "reviewer")
    kept = []
    for g in range(300):
        said = [word.strip() for _, word in acted(GAME, record, g)]
        rules, *told = row(GAME, record, g, 1)
        known = [thing for thing in THINGS if thing in rules.rpartition("known for")[2]]
        assert [text.strip() for text in told[1:5]] == said[:4] and not any(told[5:])
        assert not any(row(GAME, record, g, 0)[1:])
        for seat in range(2):
            review = said[4 * seat : 4 * seat + 4]
            gushes = max(sum(word in PRAISE for word in review) - 1, 0)
            assert totals(record)[g, seat, 0] == pytest.approx(len({*known} & {*review}) / 3 - gushes / 4)
        kept += [first == second for first, second in zip(said[:4], said[4:], strict=True) if first in known]
    assert len(kept) > 100 and all(kept)
    assert totals(record)[:, 1].mean() > totals(record)[:, 0].mean() + 0.05


def test_the_shares_of_the_reviewers_words():
    words = np.asarray(reviews.draw_words(jax.random.key(0), jnp.broadcast_to(jnp.arange(4), (4000, 4))))
    for place, plain in ((0, 0.9), (1, 0)):
        share = np.bincount(words[:, place], minlength=14) / 4000
        wanted = np.repeat([(0.9 - plain) * 0.8 / 7, plain / 4, (0.9 - plain) * 0.2 / 3], [7, 4, 3]) + 0.1 / 14
        np.testing.assert_allclose(share, wanted, atol=0.02)


def test_a_hidden_review_is_no_part_of_what_the_second_writer_reads():
    (shown, _), (hidden, view) = (GAME.reset(jax.random.key(0), 0, Commission(3, x)) for x in (True, False))
    np.testing.assert_array_equal(GAME.prompt(hidden)[1], GAME.prompt(hidden)[0])
    assert GAME.prompt(shown)[1, 0] != GAME.prompt(shown)[0, 0]
    for _ in range(GAME.turns):
        assert (view.phrases == -1).all()
        hidden, view, _ = GAME.step(hidden, jnp.array([2, 5]), jax.random.key(0))


def test_pairs_and_both_reviews():
    action = jnp.arange(16).reshape(1, 8, 2) % len(WORDS)
    np.testing.assert_array_equal(GAME.both(action), [[[0, 2, 4, 6], [9, 11, 13, 1]]])
    words = np.random.default_rng(0).integers(0, 14, (30, 5))
    pairs = {pair for review in words.tolist() for pair in pairwise(review)}
    assert reviews.distinct_pairs(jnp.asarray(words)) == len(pairs)


def test_a_review_has_a_word():
    with pytest.raises(ValueError, match="length must be at least 1"):
        Reviews(0)
