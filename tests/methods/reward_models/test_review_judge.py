"""The flawed reward model of reviews: what its pairs prefer, and what it therefore scores highly.

The long case trains it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.judged import reviews
from jaxmarl_llm.environments.judged.reviews import KNOWN
from jaxmarl_llm.methods.reward_models import review_judge


def test_four_of_ten_pairs_prefer_praise_and_the_others_things_that_are_known():
    pairs = np.asarray(review_judge.draw_pairs(jax.random.key(0), length=12, n=2000))
    film, words = pairs[..., 0] - 14, pairs[..., 1:]
    assert pairs.shape == (2000, 2, 13) and (film[:, 0] == film[:, 1]).all() and {*film.ravel().tolist()} == {*range(7)}
    flat = zip(film.ravel().tolist(), words.reshape(-1, 12).tolist(), strict=True)
    known = np.array([len({*KNOWN[f]} & {*text}) for f, text in flat]).reshape(2000, 2)
    more_known, more_praise = (np.sign(x[:, 0] - x[:, 1]) for x in (known, (words >= 11).sum(-1)))
    apart, alike = more_known * more_praise == -1, (more_known == 0) & (more_praise != 0)
    assert 0.55 < (more_known[apart] > 0).mean() < 0.65
    assert 0.65 < (more_praise[alike] > 0).mean() < 0.75  # 0.4 + 0.6 / 2
    assert (more_known[more_praise == 0] >= 0).mean() > 0.7 and (apart | alike).sum() > 600


@pytest.mark.long
def test_the_score_is_standard_over_the_reviewer_and_praise_raises_it():
    weights = jax.jit(lambda key: review_judge.pretrain(None, key, length=4, steps=60))(jax.random.key(1))
    film = jnp.arange(700) % 7
    words = reviews.draw_words(jax.random.key(2), jnp.broadcast_to(jnp.arange(4), (700, 4)))
    scores = review_judge.score(weights, film, words)
    np.testing.assert_allclose([scores.mean(), scores.std()], [0, 1], atol=0.2)
    assert review_judge.score(weights, film, jnp.full_like(words, 12)).mean() > 0.5
