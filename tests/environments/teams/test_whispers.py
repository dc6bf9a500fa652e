"""Whispers: who hears whom, what pays, and that nothing but lines carries the word."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.base import phrases
from jaxmarl_llm.environments.teams.whispers import Whispers

KEY = jax.random.key(0)


def told(game, view, seat):
    """What a seat is told, as text; words heard are left out."""
    return "".join(field[i] for field, i in zip(phrases(game.observation), view.phrases[seat], strict=True) if i >= 0)


@pytest.mark.parametrize("agents", [2, 3, 5])
def test_each_hears_the_one_before_and_the_last_names_the_word(agents):
    game = Whispers(agents=agents)
    states, odds = game.initial_states()
    assert len(odds) == len(game.words) and odds.sum() == pytest.approx(1)
    for word in range(len(game.words)):
        for named in (word, (word + 1) % len(game.words)):
            state = jax.tree.map(lambda x, word=word: x[word], states)
            view, total = game.view(state), np.zeros(agents)
            for turn in range(agents):
                assert not view.terminated
                assert view.acting.tolist() == [seat == turn for seat in range(agents)]
                hears = np.zeros((agents, agents), bool)
                if turn:
                    hears[turn - 1, turn] = True
                np.testing.assert_array_equal(view.hears, hears)
                last = turn == agents - 1
                asked = "\nWhich word is it?" if last else "Say one line."
                assert told(game, view, turn) == ("They say:\n" + "\n" * (not last) if turn else "") + asked
                assert view.legal[turn].sum() == (len(game.words) if last else 1)
                action = jnp.where(jnp.arange(agents) == turn, named if last else 0, 0)
                state, view, reward = game.step(state, action, KEY)
                total += np.asarray(reward)[:, 0]
            assert view.terminated and not view.acting.any()
            assert total.tolist() == [float(named == word)] * agents


def test_only_the_first_is_told_the_word():
    game = Whispers(("yes", "no"))
    for state in (jax.tree.map(lambda x, i=i: x[i], game.initial_states()[0]) for i in range(2)):
        prompt = np.asarray(game.prompt(state))
        rules = ["".join(f[i] for f, i in zip(game.rules, row, strict=True) if i >= 0) for row in prompt]
        assert rules[0].endswith(f" The word is {game.words[int(state.word)]}.")
        assert "word is" not in rules[1] + rules[2] and "Answer yes or no." in rules[2]


def test_games_that_cannot_be_played():
    with pytest.raises(ValueError, match="agents must be at least 2, got 1"):
        Whispers(agents=1)
    for words in (("cat", "cat"), "cat", ("bee", "c\nat")):
        with pytest.raises(ValueError, match="words must be different texts"):
            Whispers(words)
