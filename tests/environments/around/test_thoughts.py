"""Letters before an answer: the game inside stays, thoughts are private, exact values know nothing of them.

The long case tabulates a model; the short ones check the game, its tokens and its exact tree.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.thoughts import Thoughts
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.policy_table import tabulate
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.text.grammar import options_of
from jaxmarl_llm.training.setup import tiny

KUHN, MOST = KuhnPoker(), 3
GAME = Thoughts(KUHN, MOST)
KEY = jax.random.key(0)


def test_an_answer_after_letters_is_the_answer_of_the_game_inside():
    for number in range(6):
        state = jax.tree.map(lambda leaf, n=number: leaf[n], KUHN.initial_states()[0])
        thinking, moves = state, (0, 1, 1)  # check, bet, call
        for move, letters in zip(moves, (2, 0, 3), strict=True):
            said = jnp.full(2, letters * KUHN.actions + move)
            assert np.asarray(GAME.length(said)).tolist() == [letters] * 2
            state, view, reward = KUHN.step(state, jnp.full(2, move), KEY)
            thinking, shown, paid = GAME.step(thinking, said, KEY)
            assert jax.tree.all(jax.tree.map(jnp.array_equal, state, thinking)) and (paid == reward).all()
            assert (shown.phrases == view.phrases).all()  # nobody is told of the letters
            np.testing.assert_array_equal(shown.legal.reshape(2, MOST + 1, -1), view.legal[:, None].repeat(MOST + 1, 1))
        assert shown.terminated


def test_texts_and_tokens():
    texts, tokenizer = options_of(GAME.grammars[0]), GAME.letter_tokenizer()
    assert [texts[k] for k in (0, 1, 2, 7)] == ["> check", "> bet", ". > check", ". . . > bet"]
    assert [len(tokenizer.encode(texts[k])) for k in range(GAME.actions)] == [2, 2, 3, 3, 4, 4, 5, 5]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Thoughts(KUHN, 0), "most must be at least 1"),
        (lambda: Thoughts(KUHN, letter="b", mark=""), "'bet' follows"),
        (lambda: Thoughts(KUHN, letter=""), "begins with the letter"),
        (lambda: Thoughts(MatrixGame(talk=True)), "one Choice"),
    ],
)
def test_what_means_nothing_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_the_random_player_draws_lengths_alike_and_others_write_none():
    start = jax.tree.map(lambda leaf: leaf[0], KUHN.initial_states()[0])
    draw = jax.vmap(lambda key: GAME.scripts["random"](start, 0, key))
    counts = np.bincount(draw(jax.random.split(KEY, 4000)), minlength=GAME.actions)
    assert abs(counts / 4000 - 1 / GAME.actions).max() < 0.02
    assert GAME.length(GAME.scripts["always_bet"](start, 0, KEY)) == 0


def test_thoughts_are_worth_nothing_in_the_exact_tree():
    """The same equilibrium value, and the same NashConv of a policy whose moves do not depend on its letters."""
    small, large = solve.tree(KUHN), solve.tree(Thoughts(KUHN, 2))
    assert len(large.owner) == 3 + 6 + 3 * 3  # the opener's second decision knows its own letters, no other knows any
    for x in (0.1, 0.6):
        moves = np.full((len(small.owner), 2), x)
        moves[:, 1] = 1 - x
        with_letters = np.tile(moves[:1], (len(large.owner), 3)) * np.repeat([0.5, 0.2, 0.3], 2)
        assert solve.nash_conv(large, with_letters) == pytest.approx(solve.nash_conv(small, moves), abs=1e-9)


@pytest.mark.long
def test_a_table_of_a_models_thoughts_is_what_it_does():
    """Frequencies of the opener's actions in play against the table, card by card."""
    tokenizer = GAME.letter_tokenizer()
    policy_set = PolicySet(tokenizer, ("me",), tiny(tokenizer.vocab_size))
    tree = solve.tree(GAME)
    weights = {"params": decoder.init(policy_set.config, jax.random.key(1))}
    table = tabulate(tree, policy_set, budget=MOST + 2)(weights)
    np.testing.assert_allclose(table.sum(1), 1, rtol=1e-5)
    rollout = Rollout(GAME, {"all": policy_set}, Lineup((("me", "me"),), 4096), MOST + 2)
    episodes = jax.device_get(jax.jit(rollout)({"all": weights}, jax.random.key(2)).episodes)
    seen = np.bincount(episodes.action[:, 0, 0], minlength=GAME.actions) / 4096
    openers = [i for i in range(len(tree.owner)) if tree.histories(tree.example[i : i + 1])[2][0] == 0]
    assert min(abs(seen - table[i]).max() for i in openers) < 0.03  # one deal was played: a card of three
    assert GAME.length(jnp.asarray(episodes.action)).max() == MOST
