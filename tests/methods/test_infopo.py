"""InfoPO's formulas against loops: the gain of one reply at a time, its scale, the gate, credits to the end."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.methods import infopo
from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.rollout.trajectory import Rows, gather_sampled
from jaxmarl_llm.text.tokenizers import SymbolTokenizer

ASK, NO, YES, NONE, LAST_NO, LAST_YES, LAST_NONE, WORD = range(8)
NAMES = ("ask", "no", "yes", "none", "last no", "last yes", "last none", "word", "other")
KINDS = (("no", "yes", "none"), ("last no", "last yes", "last none"))
TURNS, WORDS = 5, 2  # the seat acts in turns 0, 2 and 4, in two words each


def row(replies, ends):
    """(tokens, turns, sampled) of a row: words, and a reply before each later turn; turn `ends` is the last."""
    tokens, turns, said = [], [], []
    for turn in range(0, ends + 1, 2):
        if turn:
            tokens.append(replies[turn // 2 - 1])
            turns.append(turn)
            said.append(False)
        tokens += [WORD, WORD + turn % 2]
        turns += [turn] * WORDS
        said += [True] * WORDS
    fill = 8 - len(tokens)
    return tokens + [0] * fill, turns + [0] * fill, said + [False] * fill


def experience():
    cases = [row((YES, LAST_NO), 4), row((NO, LAST_YES), 4), row((NO, LAST_NO), 2), row((NO, LAST_NO), 0)]
    tokens, turn, said = (jnp.array(x) for x in zip(*cases, strict=True))
    number = jnp.arange(4)
    zeros = jnp.zeros(tokens.shape)
    rows = Rows(
        prompts=Prompts(jnp.full((4, 1), ASK), jnp.ones(4, jnp.int32)), prompt=number, tokens=tokens,
        length=jnp.array([8, 8, 5, 2]), loss_mask=said, turn=turn, logp=zeros,
        grammar_state=zeros.astype(jnp.int16), tokens_left=zeros.astype(jnp.int16), episode=number,
        seat=0 * number, policy=0 * number,
    )  # fmt: skip
    sampled = gather_sampled(rows, jnp.ones((4, TURNS, 1, 2), bool), 6)

    def score(name, rows=rows):
        """A log-probability that depends on all tokens before, and on the place."""
        before = jnp.cumsum((rows.tokens + 1.0) ** 2 * jnp.where(rows.turn >= 0, 1.0, 0), 1)
        logp = -(jnp.sin(before) ** 2)
        return SimpleNamespace(logp=jnp.take_along_axis(logp, sampled.at, 1))

    acted = jnp.array([[t % 2 == 0 and t <= ends for t in range(TURNS)] for ends in (4, 4, 2, 0)])[..., None]
    episodes = SimpleNamespace(acted=acted)
    return SimpleNamespace(rows={"one": rows}, sampled={"one": sampled}, episodes=episodes, score=score)


def test_the_gain_of_one_reply_goes_to_the_turn_that_asked():
    played = experience()
    phrases = infopo.phrases_of_kinds(SymbolTokenizer(NAMES), KINDS)
    found, asked = jax.jit(lambda: infopo.information_gain(played, "one", phrases, {0: 2, 2: 4}))()
    tokens, length = np.asarray(played.rows["one"].tokens), (8, 8, 5, 2)
    value = lambda row: -(np.sin(np.cumsum((np.asarray(row) + 1.0) ** 2)) ** 2)
    wanted = np.zeros((4, TURNS))
    for i in range(4):
        for hears, at, silent in ((2, 2, NONE), (4, 5, LAST_NONE)):
            if at < length[i]:
                other = tokens[i].copy()
                other[at] = silent
                words = slice(at + 1, at + 3)
                wanted[i, hears - 2] = (value(tokens[i]) - value(other))[words].mean()
    np.testing.assert_allclose(found[..., 0], wanted, atol=1e-5)
    np.testing.assert_array_equal(asked[..., 0], [[1, 0, 1, 0, 0]] * 2 + [[1, 0, 0, 0, 0], [0] * 5])
    assert np.abs(wanted[:3, 0]).min() > 1e-3


def test_scale_gate_and_credits():
    rng = np.random.default_rng(0)
    acted = np.arange(4)[None, :, None] < rng.integers(1, 5, (6, 1, 1))
    asked = acted & (np.arange(4)[None, :, None] < acted.sum(1, keepdims=True) - 1)
    gain = np.where(asked, rng.normal(size=acted.shape) * 3 + 1, 0)
    outcome = np.where(acted, rng.normal(size=(6, 1, 1)), 0)
    group, numbers = np.repeat([0, 1], 3), (jnp.repeat(jnp.arange(2), 3), 2)
    for spread in (0.1, 3.0):
        credit = outcome * spread
        wanted = np.zeros_like(gain)
        for g in range(2):
            mine = asked & (group == g)[:, None, None]
            wanted[mine] = (gain[mine] - gain[mine].mean()) / gain[mine].std()
        wanted *= min(1, max(credit[acted].std(), 1) / wanted[acted].std())
        acts = (jnp.asarray(acted), *numbers)
        found = infopo.scale_gain(jnp.asarray(gain), asked=jnp.asarray(asked), outcome=jnp.asarray(credit), acts=acts)
        np.testing.assert_allclose(found, wanted, atol=1e-4)

    score = np.array([1, 0, 1, 0, 0, 0.0])
    open_ = infopo.gate(jnp.asarray(score), *numbers, 0.5)[:, 0, 0]
    half = 1 / (1 + np.exp(score[:3].std() / 0.5))
    np.testing.assert_allclose(open_, [half] * 3 + [0.5] * 3, rtol=1e-5)
    assert float(infopo.gate(jnp.asarray(score), *numbers, 0.05)[0, 0, 0]) < 1e-4

    success = score > 0
    found = infopo.to_the_end(jnp.asarray(outcome), jnp.asarray(acted), jnp.asarray(success), 0.8)
    for b in range(6):
        last = acted[b].sum()
        share = np.array([0.8 ** (last - 1 - k) if k < last else 0 for k in range(4)])
        wanted = outcome[b, :, 0] * share * last / share.sum() if success[b] else np.zeros(4)
        np.testing.assert_allclose(found[b, :, 0], wanted, atol=1e-5)


def test_kinds_have_equal_lengths():
    with pytest.raises(ValueError, match="equal numbers of tokens"):
        infopo.phrases_of_kinds(SymbolTokenizer(NAMES), (("no", "yesno", "none"),))
