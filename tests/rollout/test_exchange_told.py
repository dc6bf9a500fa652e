"""Rows with another told phrase are the rows of the game in which it was told, and give the same words scores."""

from functools import cache, partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.guide import Guidance, Guided
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.models import decoder
from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.rollout.trajectory import Rows, exchange_told, gather_sampled, phrase_tokens
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.setup import tiny
from tests.support.families import random as numbers

GAME = Guided(LockChain(3, 5, in_order=True))
TOKENIZER, KEY, GROUPS, MEMBERS = SymbolTokenizer(strings(GAME)), jax.random.key(1), 2, 3
PHRASES = phrase_tokens(TOKENIZER, GAME.texts)
SILENT = len(PHRASES) - 1
exchange = jax.jit(lambda rows, into: exchange_told(rows, PHRASES, into))
FIELDS = ("tokens", "length", "loss_mask", "turn", "grammar_state", "tokens_left")


@cache
def played():
    """Games of the script `random` by the number of guided turns: the guide's words change no action."""
    rollout = Rollout(GAME, {"x": PolicySet(TOKENIZER, ("random",))}, Lineup((("random",),) * GROUPS, MEMBERS), 1)
    play = jax.jit(lambda turns: rollout({"x": {}}, KEY, Guidance(turns, jnp.ones(GROUPS, bool), jnp.full(GROUPS, 3))))
    return {turns: play(jnp.full(GROUPS, turns)) for turns in (0, 3, 5)}


def equal(found: Rows, wanted: Rows) -> None:
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), name)
    np.testing.assert_array_equal(found.prompts.tokens[found.prompt], wanted.prompts.tokens[wanted.prompt])


@pytest.mark.parametrize("turns", [3, 5])
def test_advice_in_place_of_silence_is_the_game_with_that_advice_and_back(turns):
    silent, guided = played()[0], played()[turns]
    np.testing.assert_array_equal(silent.episodes.action, guided.episodes.action)
    assert (silent.rows["x"].tokens != guided.rows["x"].tokens).any()
    equal(exchange(guided.rows["x"], jnp.full((6, 5, 1), SILENT)), silent.rows["x"])
    opened = np.cumsum(silent.episodes.measured[..., 0] > 0, 1) - (silent.episodes.measured[..., 0] > 0)
    right = np.minimum(opened, 2)  # the nth lock has the nth colour, whose key is the nth
    advised = np.arange(5)[None, :, None] < turns
    equal(exchange(silent.rows["x"], jnp.asarray(np.where(advised, right, -1))), guided.rows["x"])


def test_every_other_token_position_and_mask_stays():
    rows = played()[5].rows["x"]
    found = exchange(rows, jnp.full((6, 5, 1), 2))
    one_of = np.isin(rows.tokens, PHRASES) & ~np.asarray(rows.loss_mask)
    one_of &= np.arange(rows.tokens.shape[1]) < np.asarray(rows.length)[:, None]
    np.testing.assert_array_equal(found.tokens, np.where(one_of, PHRASES[2, 0], rows.tokens))
    equal(found.replace(tokens=rows.tokens, prompts=rows.prompts), rows)
    assert one_of.sum() > 10


def test_a_phrase_exchanged_by_itself_tells_exactly_nothing():
    """The information of a phrase: log-probability after it less that after the other."""
    trajectory = played()[3]
    rows, config = trajectory.rows["x"], tiny(TOKENIZER.vocab_size)
    policy_set = PolicySet(TOKENIZER, ("x",), config)
    rollout = Rollout(GAME, {"x": policy_set}, Lineup((("x",),) * GROUPS, MEMBERS), 1)
    sampled = gather_sampled(rows, trajectory.episodes.legal, 5)
    params = numbers(jax.eval_shape(partial(decoder.init, config), KEY), 0)
    scorer = rollout.layouts["x"].scorer()
    score = jax.jit(lambda rows: scorer(params, rows, sampled).logp)
    itself = np.where(np.arange(5) < 3, -1, SILENT)[None, :, None].repeat(GROUPS * MEMBERS, 0)
    same, other = (exchange(rows, jnp.asarray(x)) for x in (itself, np.full_like(itself, SILENT)))
    information = np.asarray(score(rows) - score(same))
    assert (information == 0).all()
    assert (np.abs(score(rows) - score(other))[np.asarray(sampled.mask)] > 0).mean() > 0.9


def test_sampled_tokens_stay_and_so_do_rows_of_a_turn_that_is_not_named():
    """Phrases of two tokens, 1 2 for 3 4, against a loop; a sampled 1 and the padding are no phrase."""
    tokens = np.array([[1, 2, 5, 1, 2, 1, 2], [1, 1, 2, 3, 4, 1, 2]])
    turn = np.array([[1, 1, 1, 2, 2, 3, 3], [1, 1, 1, 1, 1, 2, 2]])
    said = np.zeros_like(tokens, bool)
    said[1, 5] = True
    rows = SimpleNamespace(
        prompts=Prompts(jnp.array([[1, 2, 0], [3, 4, 1]]), jnp.array([2, 2])), prompt=jnp.arange(2),
        tokens=jnp.asarray(tokens), length=jnp.array([5, 7]), loss_mask=jnp.asarray(said), turn=jnp.asarray(turn),
        episode=jnp.array([1, 0]), seat=jnp.zeros(2, jnp.int32), replace=lambda **x: SimpleNamespace(**x),
    )  # fmt: skip
    into = np.full((2, 4, 1), -1)
    into[1, 0], into[1, 1], into[0, 1] = 1, 1, 0
    found = exchange_told(rows, np.array([[1, 2], [3, 4]]), jnp.asarray(into))
    np.testing.assert_array_equal(found.tokens, [[3, 4, 5, 1, 2, 1, 2], [1, 1, 2, 1, 2, 1, 2]])
    np.testing.assert_array_equal(found.prompts.tokens, [[3, 4, 0], [3, 4, 1]])


def test_texts_of_unlike_numbers_of_tokens_are_refused():
    with pytest.raises(ValueError, match="equal numbers of tokens"):
        phrase_tokens(TOKENIZER, (GAME.texts[0], GAME.texts[0] + GAME.texts[1]))
