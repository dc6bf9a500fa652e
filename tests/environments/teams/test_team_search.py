"""Router, searcher, answerer, and twenty questions: against plain Python; who is told what; exact values."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.teams.team_search import ANIMALS, RouterSearch, TwentyQuestions
from tests.support.team_plays import acted, close, played, row, told_apart_only_by, totals

ROUTER, SEARCHER, ANSWERER = range(3)
SHORT = TwentyQuestions(questions=3)


@pytest.mark.parametrize("game", (RouterSearch(), RouterSearch(3, 12, 9)), ids=("plain", "long"))
@pytest.mark.parametrize("players", (("random",), ("correct",), ("random", "correct")), ids=lambda players: players[-1])
def test_router_search_against_python(game, players):
    record = played(game, *players)
    for g in range(100):
        rows, said = [row(game, record, g, seat) for seat in range(3)], acted(game, record, g)
        corpus = [game.grammars[ANSWERER][0].options[v][1] for v in record["state"].corpus[0, g]]
        (asked,) = {re.search(r"What is (\w)\?$", told[0]).group(1) for told in rows}
        seen, actor, looked = [], ROUTER, None
        for t, (seat, word) in enumerate(said):
            assert seat == actor
            found = "" if looked is None else f" {looked} is {corpus[ord(looked) - ord('A')]}."
            call = (" Search or answer?", " Which key?", " Which value?")[actor]
            told = [found, "", found]
            told[actor] += call
            assert [told_to[1 + t] for told_to in rows] == told
            expected = np.zeros((3, 2), np.float32)
            looked = None
            if actor == ROUTER:
                expected[ROUTER, 1] = -0.01 if word == "search" and asked in seen else 0
                actor = SEARCHER if word == "search" else ANSWERER
            elif actor == SEARCHER:
                expected[SEARCHER, 1] = -0.01 if word in seen else 0
                seen, actor, looked = [*seen, word], ROUTER, word
            else:
                expected[:, 0] = word == corpus[ord(asked) - ord("A")]
                assert t == len(said) - 1
            assert np.array_equal(record["reward"][t, g], expected)
        assert said[-1][0] == ANSWERER or len(said) == game.turns
        assert record["after"].terminated[len(said) - 1, g] and not record["reward"][len(said) :, g].any()


def test_a_team_that_searches_wins_and_chance_is_known():
    game = RouterSearch()
    perfect = played(game, "correct")
    assert (totals(perfect) == [1, 0]).all() and [seat for seat, _ in acted(game, perfect, 0)] == [0, 1, 0, 2]
    chance = totals(played(game, "random"))
    # answered in turn 2 with 1/2, in turn 4 with 1/4; else searched twice, each time anything
    assert close(chance[:, 0, 0], 0.75 / 10)
    assert close(chance[:, SEARCHER, 1], -0.01 * 0.25 / 8) and close(chance[:, ROUTER, 1], -0.01 * 0.25 / 8)
    assert not chance[:, ANSWERER, 1].any()


def test_a_hasty_router_leaves_the_searcher_without_a_turn():
    record = played(RouterSearch(), "hasty", "random")
    assert not record["view"].acting[~record["over"]][:, SEARCHER].any()
    assert close(totals(record)[:, 0, 0], 0.1)


def test_a_corpus_is_fresh_and_told_to_nobody_before_a_search():
    game = RouterSearch()
    keys = jax.random.split(jax.random.key(0), 500)
    state, _ = jax.jit(jax.vmap(lambda key: game.reset(key, jnp.int32(0))))(keys)
    count = np.stack([np.bincount(column, minlength=10) for column in np.asarray(state.corpus).T])
    assert (abs(count - 50) < 6 * 50**0.5).all() and (abs(np.bincount(state.question) - 62) < 6 * 62**0.5).all()
    first = jax.tree.map(lambda leaf: jnp.stack([leaf[0], leaf[0]]), state)
    other = first.replace(corpus=first.corpus.at[1].set((first.corpus[1] + 3) % 10))
    assert told_apart_only_by(game, other, ())
    for seat in range(3):  # nor by whose turn it is
        assert told_apart_only_by(game, other.replace(seat=jnp.full((2,), seat)), ())
    found = other.replace(key=jnp.zeros((2,), jnp.int32))
    assert told_apart_only_by(game, found, (ROUTER, ANSWERER))


def holds(name: str, attribute: str) -> bool:
    return attribute in dict(ANIMALS)[name]


@pytest.mark.parametrize("players", (("random",), ("halving",), ("halving", "random")), ids="-".join)
@pytest.mark.parametrize("game", (TwentyQuestions(), SHORT), ids=("twenty", "three"))
def test_twenty_questions_against_python(game, players):
    record = played(game, *players)
    attributes = {attribute for _, held in ANIMALS for attribute in held}
    for g in range(50):
        (_, *guesser), (rules, *answerer) = (row(game, record, g, seat) for seat in range(2))
        secret = re.search(r" It is the (\w+)\.$", rules).group(1)
        reply, asked, left = None, None, [name for name, _ in ANIMALS]
        for t, (seat, word) in enumerate(acted(game, record, g)):
            assert seat == t % 2
            expected, told = np.zeros((2, 3), np.float32), ["", ""]
            if seat == 0:
                last = t == 2 * game.questions
                call = "Now name it." if last else "Ask or name it."
                told[0] = call if reply is None else f"They say {reply}. {call}"
                assert np.flatnonzero(record["view"].legal[t, g, 0])[0] == (len(attributes) if last else 0)
                if players[0] == "halving" and players[-1] != "random":
                    split = {a: min(sum(holds(n, a) == v for n in left) for v in (True, False)) for a in attributes}
                    if last or not max(split.values()):
                        assert word == left[0] and (last or left == [secret])
                    else:
                        assert split[word] == max(split.values())
                if word in attributes:
                    expected[0, 1], asked = -np.float32(0.01), word
                else:
                    expected[:, 0] = word == secret
                    assert record["after"].terminated[t, g]
            else:
                told[1] = f"Does this hold: {asked}?"
                expected[1, 2], reply = (word == "yes") == holds(secret, asked), word
                left = [name for name in left if holds(name, asked) == (word == "yes")]
            assert [guesser[t], answerer[t]] == told
            assert np.array_equal(record["reward"][t, g], expected)
        assert record["after"].terminated[-1, g] and not record["reward"][t + 1 :, g].any()


def test_what_guessers_earn():
    game = TwentyQuestions()
    assert (totals(played(game, "correct")) == [1, 0, 0]).all()
    halving = totals(played(game, "halving"))
    assert (halving[..., 0] == 1).all() and (halving[:, 1, 2] >= 3).all()
    assert np.allclose(halving[:, 0, 1], -0.01 * halving[:, 1, 2])
    chance = totals(played(SHORT, "random"))
    ask = len(SHORT.attributes) / SHORT.actions
    questions = ask + ask**2 + ask**3
    assert close(chance[:, 0, 0], 1 / 16) and (chance[:, 0, 0] == chance[:, 1, 0]).all()
    assert close(chance[:, 0, 1], -0.01 * questions) and close(chance[:, 1, 2], questions / 2)


def test_the_object_is_told_to_the_answerer_alone():
    game, (states, probability) = SHORT, SHORT.initial_states()
    assert len(probability) == 16 and abs(probability.sum() - 1) < 1e-12
    for other in range(1, 16):
        pair = jax.tree.map(lambda leaf, at=other: leaf[jnp.array([0, at])], states)
        assert told_apart_only_by(game, pair, (1,))
        assert told_apart_only_by(game, pair.replace(turn=jnp.full((2,), 2)), (1,))


def test_the_default_table_tells_all_animals_apart():
    game = TwentyQuestions()
    assert len(np.unique(game.table, axis=0)) == len(ANIMALS) == 16
    assert [[holds(name, attribute) for attribute in game.attributes] for name, _ in ANIMALS] == game.table.tolist()


def test_settings_that_cannot_be_are_named():
    pair = (("cat", ("small",)), ("cow", ()))
    for make, says in (
        (lambda: RouterSearch(keys=27), "keys must be 2 to 26"),
        (lambda: RouterSearch(values=1), "values must be at least 2, got 1"),
        (lambda: RouterSearch(turns=1), "turns must be at least 2, got 1"),
        (lambda: TwentyQuestions(pair, questions=0), "questions must be at least 1, got 0"),
        (lambda: TwentyQuestions(pair[:1]), "objects must be at least 2, got 1"),
        (lambda: TwentyQuestions(pair, cost=-1), "cost must not be negative"),
        (lambda: TwentyQuestions((*pair, ("dog", ("small",)))), "'cat' and 'dog' have the same attributes"),
        (lambda: TwentyQuestions((*pair, ("small", ("tame",)))), "used twice: .'small'"),
    ):
        with pytest.raises(ValueError, match=says):
            make()
