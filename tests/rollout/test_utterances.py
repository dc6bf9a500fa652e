"""Utterances as rows of their own: scored as in their rows, drawn anew as the policy would say them.

A long case draws each utterance 2,000 times; the others are of the same game, for which two programs more compile.
"""

import itertools
from functools import cache
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods import archer
from jaxmarl_llm.rollout import utterances
from jaxmarl_llm.rollout.team import answer_letters, words
from jaxmarl_llm.training import begin, setup, step
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Advantages
from jaxmarl_llm.training.scoring import resample, score_policies
from jaxmarl_llm.training.trainer import Trainer
from tests.support.families import recurrent, sharing

DRAWS = 2000


def rewards(experience, hparams, state):
    return Advantages(experience.episodes.total_reward)


TALK = Recipe(MatrixGame(rounds=2, talk=True), (("me", "me"),), rewards, tokenizer=words, budget=4, groups=2)
NINE = Recipe(LockChain(2, turns=3, alphabet="ABC", spelled=2), (("me",),), rewards, tokenizer=answer_letters, groups=2)


RECIPES = {"talk": TALK, "nine": NINE, "state": NINE, "sharing": NINE}
SIZES = {"state": recurrent, "sharing": sharing}  # models with linear_attention, and with shared keys and values
NAMES = ["talk", *(pytest.param(name, marks=pytest.mark.long) for name in ("nine", "state", "sharing"))]


@cache
def played(name):
    """(parts, weights far from uniform, a batch of games for an update, its utterances)."""
    recipe = RECIPES[name]
    size = setup.tiny if name not in SIZES else lambda vocabulary, _: SIZES[name](vocabulary)
    with mock.patch.object(setup, "tiny", size):
        parts = Trainer(recipe, [recipe.all_hparams], [0]).parts
    run = begin.init_run(parts, jax.random.key(5))
    weights = jax.tree.map(lambda x: 3 * x, run.learners.weights)
    run = run.replace(learners=run.learners.replace(weights=weights))

    @jax.jit
    def play(run):
        games = step.collect_experience(parts, run, recipe.all_hparams, jax.random.key(6), jnp.int32(0))
        part = step.make_batches(parts, games.experience, games.advantages)["me"]
        return part, utterances.split(parts.rollout.layouts["me"], part.rows, part.sampled, part.batch.advantage)

    return parts, weights, *play(run)


def logp(parts, weights, rows, sampled):
    """The log-probabilities [R, M] of sampled tokens, 0 without a token."""
    score = jax.jit(lambda *given: score_policies(parts, weights, "me", *given)[0].logp)
    return np.asarray(score(rows, sampled))


@pytest.mark.parametrize("name", NAMES)
def test_an_utterance_scores_as_in_its_row(name):
    parts, weights, part, (new, said, reward) = played(name)
    layout, rows, sampled = parts.rollout.layouts["me"], part.rows, part.sampled
    most = sampled.mask.shape[1] // layout.max_sampled
    assert len(new.tokens) == len(rows.tokens) * most and said.mask.shape[1] == layout.max_sampled > 1
    found, expected = logp(parts, weights, new, said), logp(parts, weights, rows, sampled)
    for row, mask in enumerate(np.asarray(sampled.mask)):
        here = slice(row * most, (row + 1) * most)
        of_utterances = np.asarray(said.mask[here])
        assert of_utterances.sum() == mask.sum() and of_utterances.any(1).sum() == len(
            np.unique(np.asarray(sampled.turn)[row][mask])
        )
        np.testing.assert_allclose(found[here][of_utterances], expected[row][mask], atol=1e-4)
        for field in ("token", "turn", "tokens_left", "grammar_state"):
            np.testing.assert_array_equal(getattr(said, field)[here][of_utterances], getattr(sampled, field)[row][mask])
        np.testing.assert_array_equal(np.asarray(reward)[here][of_utterances], part.batch.advantage[row][mask])
        at = np.take_along_axis(np.asarray(new.tokens)[here], np.asarray(said.at)[here], 1)
        np.testing.assert_array_equal(at[of_utterances], np.asarray(sampled.token)[row][mask])


@pytest.mark.parametrize("name", NAMES)
def test_an_utterance_drawn_anew_has_its_log_probability(name):
    parts, weights, _, (rows, said, _) = played(name)
    draw = jax.jit(lambda key: resample(parts, weights, "me", rows, said, key))
    new, anew = draw(jax.random.key(7))
    assert (anew.mask.any(1) == said.mask.any(1)).all() and (anew.token != said.token).any()
    np.testing.assert_allclose(anew.behaviour_logp, logp(parts, weights, new, anew), atol=1e-4)
    assert (np.asarray(new.length)[np.asarray(anew.mask.any(1))] > 0).all()
    other = draw(jax.random.key(8))[1]
    assert (anew.token != other.token).any()


@pytest.mark.long
def test_nine_utterances_are_drawn_as_often_as_they_are_probable():
    """Two tokens of three letters: frequencies, and the mean of a critic's Q over draws, are the sums over all nine."""
    parts, weights, _, (rows, said, _) = played("nine")
    critic = archer.empty_memory(parts, jax.random.key(9), kept=1).critic.weights
    of_q = jax.jit(lambda rows, said: archer.twins(parts, "me", critic, rows, said)[0].reshape(-1, 2))
    score = jax.jit(lambda *given: score_policies(parts, weights, "me", *given)[0].logp)
    letters = np.unique(np.asarray(said.token)[np.asarray(said.mask)])
    assert len(letters) == 3
    chance, q = [], []
    for pair in itertools.product(letters, repeat=2):
        tokens = jnp.broadcast_to(jnp.array(pair, jnp.int32), said.token.shape)
        state = jnp.asarray(parts.rollout.layouts["me"].tables.next)
        kind = jnp.asarray(parts.rollout.layouts["me"].tables.token_class)
        second = state[said.grammar_state[:, 0], kind[pair[0]]]
        this = said.replace(token=tokens, grammar_state=said.grammar_state.at[:, 1].set(second))
        written = rows.replace(tokens=rows.tokens.at[:, :2].set(tokens))
        chance.append(np.exp(np.asarray(score(written, this)).sum(1)))
        q.append(np.asarray(of_q(written, this)))
    chance, q = np.stack(chance), np.stack(q)  # [9, utterances], [9, utterances, 2]
    real = np.asarray(said.mask.any(1))
    np.testing.assert_allclose(chance.sum(0)[real], 1, atol=1e-4)
    assert chance[:, real].max() > 0.3 and np.std(q[:, real], 0).min() > 1e-3

    @jax.jit
    @jax.vmap
    def draw(key):
        new, anew = resample(parts, weights, "me", rows, said, key)
        return anew.token, of_q(new, anew)

    token, of_draws = map(np.asarray, draw(jax.random.split(jax.random.key(10), DRAWS)))
    place = np.searchsorted(letters, token)  # [draws, utterances, 2]
    for number in range(9):
        often = (3 * place[..., 0] + place[..., 1] == number).mean(0)
        p = chance[number]
        assert (np.abs(often - p) < 5 * np.sqrt(p * (1 - p) / DRAWS) + 0.002)[real].all()
    mean = (chance[..., None] * q).sum(0)
    error = np.sqrt((chance[..., None] * (q - mean) ** 2).sum(0) / DRAWS)
    assert (np.abs(of_draws.mean(0) - mean) < 5 * error + 1e-4)[real].all()
