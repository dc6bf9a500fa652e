"""Tiny policies with free text in letters: possible texts, heard texts, and exact log-probabilities.

All cases are long, as they compile rollouts of many letters; `test_rollout` checks free text in its batch "talk".
"""

import re
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.around.wrappers import Formatted
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, words
from jaxmarl_llm.rollout.trajectory import gather_sampled
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.setup import tiny
from jaxmarl_llm.training.trainer import Trainer

pytestmark = pytest.mark.long

TALK = MatrixGame(rounds=2, talk=True)


def played(game, budget, seats=("me", "me"), letters="abc"):
    tokenizer = words(game, letters)
    policy_set = PolicySet(tokenizer, ("me",), tiny(tokenizer.vocab_size))
    rollout = Rollout(game, {"all": policy_set}, Lineup((seats, seats), 8), budget)
    params = decoder.init(policy_set.config, jax.random.key(1))
    played = jax.jit(rollout)({"all": {"params": params}}, jax.random.key(2))
    return tokenizer, rollout, params, played


@pytest.fixture(scope="module")
def talked():
    return played(TALK, (2, 2, 4))


def said_and_heard(tokenizer, rows, row):
    """[(turn, sampled, text)] of a row's tokens."""
    n = rows.length[row]
    tokens, mask, turn = (np.asarray(x[row][:n]) for x in (rows.tokens, rows.loss_mask, rows.turn))
    return [(int(t), bool(m), tokenizer.decode([i])) for t, m, i in zip(turn, mask, tokens, strict=True)]


def test_words_are_letters_and_answers_alone_and_are_heard_as_they_were_said(talked):
    tokenizer, _, _, trajectory = talked
    rows = jax.tree.map(np.asarray, trajectory.rows["all"])
    by_place = {(int(e), int(s)): row for row, (e, s) in enumerate(zip(rows.episode, rows.seat, strict=True))}
    messages = set()
    for episode, seat in by_place:
        mine, theirs = (said_and_heard(tokenizer, rows, by_place[episode, other]) for other in (seat, 1 - seat))
        for turn in (0, 2):  # of words
            own = [text for t, sampled, text in theirs if t == turn and sampled and text != "<end>"]
            assert {*own} <= {*"abcAB"}
            heard = [text for t, sampled, text in mine if t == turn + 1 and not sampled and text in {*"abcAB"}]
            assert heard == own
            messages.add("".join(own))
    assert len({len(text) for text in messages}) > 2 and max(map(len, messages)) == 3  # the end token takes the fourth


@pytest.mark.parametrize("think", [False, pytest.param(True, marks=pytest.mark.long)])
def test_log_probabilities_as_sampled_are_those_of_scoring(talked, think):
    game = Formatted(KuhnPoker(), "brackets", think=True)
    _, rollout, params, trajectory = played(game, 9) if think else talked
    rows = trajectory.rows["all"]
    sampled = gather_sampled(rows, trajectory.episodes.legal, rollout.max_sampled_tokens("all"))
    scores = rollout.layouts["all"].scorer()(params, rows, sampled)
    mask = np.asarray(sampled.mask)
    assert mask.sum() > 50
    np.testing.assert_allclose(np.asarray(scores.logp)[mask], np.asarray(sampled.behaviour_logp)[mask], atol=2e-5)


def test_thoughts_differ_in_length_and_are_heard_by_nobody():
    tokenizer, _, _, trajectory = played(Formatted(KuhnPoker(), "brackets", think=True), 9)
    rows, lengths = jax.tree.map(np.asarray, trajectory.rows["all"]), set()
    for row in range(len(rows.tokens)):
        text = " ".join(text for _, _, text in said_and_heard(tokenizer, rows, row))
        if text.find("</think>") < (text + "<think>").find("<think>"):
            text = f"<think> {text}"  # of the first mover it is forced, and so part of the prompt
        thoughts = re.findall(r"<think>([^<]*)</think>", text)
        lengths |= {len(thought.split()) for thought in thoughts}
        rest = re.sub(r"<think>[^<]*</think>", "", text)
        assert not {*"abc"} & {*rest.split()}
    assert len(lengths) > 2


def test_a_tiny_policy_that_talks_learns():
    """One update changes the weights and is finite; without an end token the game refuses."""
    recipe = Recipe(TALK, (("me", "me"),), estimator(advantages.rloo, per_agent=True), budget=(2, 2, 4), groups=2)
    with pytest.raises(ValueError, match="no token that ends an utterance"):
        Trainer(recipe, [recipe.all_hparams], [0])
    recipe = replace(recipe, tokenizer=partial(words, letters="xy"))
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    before = trainer.init()
    weights = jax.tree.map(np.asarray, before.learners.weights)
    after, metrics = trainer.update(before, 0)
    assert np.isfinite(float(metrics["entropy/me"][0]))
    moved = jax.tree.map(lambda a, b: float(np.abs(a - np.asarray(b)).max()), weights, after.learners.weights)
    assert max(jax.tree.leaves(moved)) > 0
