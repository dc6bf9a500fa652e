"""Guided decoding: chains' probabilities against the release's formula, letter by letter; the best of N by drawing.

The long case compiles a seed with few steps of learning.
"""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.exploration import guided_decoding as study
from experiments.exploration.guided_decoding import CHAINS, CONFIG, LENGTH, LETTERS, TOP, guide, read
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rollout.policy import init_value

RNG = np.random.default_rng(0)


def by_beginning(last: int, *width: int) -> np.ndarray:
    """Numbers of all chains that depend on the first t letters alone, for t from 0 to `last`."""
    of = [RNG.normal(size=(LETTERS**t, *width)).astype(np.float32) for t in range(last + 1)]
    return np.stack([np.repeat(x, LETTERS ** (LENGTH - t), 0) for t, x in enumerate(of)], 1)


def softmax(x):
    odds = np.exp(x - x.max())
    return odds / odds.sum()


def released(logits, value, beta):
    """The release: the values of the most probable tokens less their mean, 0 for the others, times beta."""
    values, top = np.zeros(LETTERS), np.argsort(-logits)[:TOP]
    values[top] = value[top] - value[top].mean()
    return logits + beta * values, top


@pytest.mark.parametrize("kept", [True, False])
def test_chains_against_the_release_letter_by_letter(kept):
    logits, value = 2 * by_beginning(LENGTH, LETTERS), by_beginning(LENGTH)
    found = np.exp(jax.jit(guide, static_argnums=2)(logits, 3 * value, kept))
    assert found.sum() == pytest.approx(1, abs=1e-4)
    number = {tuple(chain): i for i, chain in enumerate(CHAINS.tolist())}
    for i in RNG.choice(len(CHAINS), 300, replace=False):
        chance, chain = 1.0, CHAINS[i]
        for t, letter in enumerate(chain):
            rest = [0] * (LENGTH - t - 1)
            after = np.array([value[number[*chain[:t], a, *rest], t + 1] for a in range(LETTERS)])
            shaped, top = released(logits[i, t], after, 3)
            if not kept:
                shaped[[a for a in range(LETTERS) if a not in top]] = -np.inf
            chance *= softmax(shaped)[letter]
        assert found[i] == pytest.approx(chance, rel=1e-3, abs=1e-9)


def test_a_value_that_is_equal_after_all_letters_changes_nothing():
    logits, level = by_beginning(LENGTH, LETTERS), np.broadcast_to(np.arange(LENGTH + 1.0), (len(CHAINS), LENGTH + 1))
    guided, plain = (jax.jit(guide, static_argnums=2)(logits, x, True) for x in (level, 0 * level))
    np.testing.assert_allclose(guided, plain, atol=1e-5)
    assert CHAINS.tolist() == [list(chain) for chain in product(range(LETTERS), repeat=LENGTH)]


@pytest.mark.long
def test_a_seed_against_draws(monkeypatch):
    """The prior earns 0 with deviation 1, and the best of N as drawn. Values after the last letter are learnt."""
    monkeypatch.setattr(study, "STEPS", 150)
    key = jax.random.key(3)
    found = jax.device_get(jax.jit(lambda key: study.compare(key, {}))(key))
    assert abs(found["prior"]["worth"]) < 1e-3 and abs(found["prior"]["variety"]) < 1e-3
    begin, worth, *_ = jax.random.split(key, 5)
    texts = np.insert(CHAINS, 0, LETTERS, 1)
    policy = {"policy": decoder.init(CONFIG, begin), "value": init_value(CONFIG)}
    logits, value = jax.jit(read)(policy, texts)
    assert not np.any(value)
    chance = np.exp(np.float64(jax.jit(guide, static_argnums=2)(logits, value, True)))
    paid = np.asarray(jax.random.normal(worth, (LETTERS,)))[CHAINS].mean(1)
    paid = (paid - paid @ chance) / np.sqrt((paid - paid @ chance) ** 2 @ chance)
    for n in (4, 16, 128):
        drawn = paid[RNG.choice(len(CHAINS), (4000, n), p=chance / chance.sum())].max(1)
        assert found[f"best_of_{n}"]["worth"] == pytest.approx(drawn.mean(), abs=5 * drawn.std() / 4000**0.5)
    texts, reward = jnp.asarray(texts[:: len(texts) // 32]), jnp.asarray(RNG.normal(size=32), jnp.float32)
    monkeypatch.setattr(study, "STEPS", 400)
    network = jax.jit(study.learn)(policy, texts, reward, key)
    last = np.asarray(jax.jit(read)(network, texts)[1][:, -1])
    assert np.corrcoef(last, reward)[0, 1] > 0.9
