"""Replies in a manner of one's own: what is told and paid, against plain Python, and what only a judge reads.

The long case compiles a rollout of a model; the short ones check texts and rewards against plain Python.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.judged.replies import Asked, Replies
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.setup import tiny
from tests.support.team_plays import acted, deals_are_what_reset_draws, played, row, totals

GAME = Replies(Arithmetic(5, "+-"), ("It is", "Surely"), ("They are in a hurry.", "They are not."))


@pytest.mark.parametrize("player", ["random", "correct", "correct/1"])
def test_against_python(player):
    record = played(GAME, player)
    paid = totals(record)
    for g in range(100):
        a, sign, b = re.search(r"\((\d) ([+-]) (\d)\) mod 5", " ".join(row(GAME, record, g, 0))).groups()
        ((_, said),) = acted(GAME, record, g)
        right = int(said.split()[-1]) == (int(a) + int(b) if sign == "+" else int(a) - int(b)) % 5
        assert paid[g] == right and (right or player == "random")
        assert said.startswith(GAME.manners[1]) or player != "correct/1"


def test_deals_and_contract():
    check_game(GAME)
    deals_are_what_reset_draws(GAME)


def test_what_is_given_is_asked():
    state, _ = GAME.reset(jax.random.key(0), jnp.int32(0), Asked(jnp.int32(7), jnp.int32(1)))
    question, _ = GAME.tasks.task(jnp.int32(7))
    np.testing.assert_array_equal(GAME.prompt(state)[0], [0, *question, 1])


def test_drawn_replies_are_right_as_often_as_is_said():
    task, action = GAME.draw_replies(jax.random.key(0), (40, 50), right=0.8)
    assert task.shape == action.shape == (40, 50, 2) and (task[..., 0] == task[..., 1]).all()
    manner, answer = GAME.parts(action)
    np.testing.assert_allclose((answer == GAME.truth(task)).mean(), 0.8, atol=0.03)
    assert set(np.unique(manner)) == {0, 1} and len(np.unique(answer)) == 5


def test_two_manners_alike_are_refused():
    with pytest.raises(ValueError, match="different manners"):
        Replies(manners=("It is", "It is"))


def test_judged_texts_differ_wherever_question_reference_or_reply_do():
    task, action, reference = (x.ravel() for x in np.indices((50, 10, 10)))
    texts = np.asarray(GAME.judge_input(*map(jnp.asarray, (task, action, reference))))
    assert texts.shape == (5000, GAME.judged_length) and len(np.unique(texts, axis=0)) == 5000
    assert texts.min() == 0 and texts.max() == GAME.judged_words - 1
    answers = texts[:, -3], texts[:, -1]
    np.testing.assert_array_equal(answers[0] == answers[1], reference % 5 == action % 5)  # one word in both replies
    right = GAME.judge_input(jnp.asarray(task), jnp.asarray(action))  # the reference is the right answer, in manner 0
    wanted = GAME.judge_input(*map(jnp.asarray, (task, action, np.asarray(GAME.truth(jnp.asarray(task))))))
    np.testing.assert_array_equal(right, wanted)
    assert GAME.judge_input(*(jnp.asarray(x).reshape(50, 100) for x in (task, action, reference))).shape == (50, 100, 7)


@dataclasses.dataclass(frozen=True)
class Other(Arithmetic):
    """The same questions with other right answers."""

    def task(self, number):
        question, answer = super().task(number)
        return question, (answer + 1) % self.modulus


@pytest.mark.long
def test_a_policy_cannot_see_what_the_reward_model_reads():
    """With another right answer to each question the judge's texts and the pay are others, and no token of a row is."""
    tokenizer = SymbolTokenizer(strings(GAME))
    policies = {"all": PolicySet(tokenizer, ("me",), tiny(tokenizer.vocab_size))}
    params = {"all": {"params": decoder.init(policies["all"].config, jax.random.key(1))}}
    found = {}
    for tasks in (GAME.tasks, Other(5, "+-")):
        game = dataclasses.replace(GAME, tasks=tasks)
        found[tasks] = jax.jit(Rollout(game, policies, Lineup((("me",),) * 4, 16), 1))(params, jax.random.key(2))
        every = jnp.arange(50)
        found[tasks] = found[tasks], game.judge_input(every, every % 10)
    (one, judged), (other, judged_other) = found.values()
    assert (judged != judged_other).any(1).all()
    assert (one.episodes.reward != other.episodes.reward).any()
    jax.tree.map(np.testing.assert_array_equal, one.rows, other.rows)
    np.testing.assert_array_equal(one.episodes.action, other.episodes.action)
