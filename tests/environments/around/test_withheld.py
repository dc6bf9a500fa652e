"""Withheld answers: nothing else of twenty questions changes, and a listener believes what it heard, no more."""

import re
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.around.withheld import NOTHING, Silence, WithheldAnswers
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.teams.team_search import ANIMALS, TwentyQuestions
from jaxmarl_llm.rollout.trajectory import phrase_tokens
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from tests.support.team_plays import acted, played, row

THINGS = ANIMALS[:8]


@dataclass(frozen=True)
class HalfSilent(WithheldAnswers):
    def reset(self, key, group, given=None):
        return super().reset(key, group, Silence(0.5))


def test_without_silence_it_is_twenty_questions():
    game, plain = WithheldAnswers(THINGS, questions=3), TwentyQuestions(THINGS, questions=3)
    check_game(game)
    for players in (("halving",), ("random", "correct")):
        record, same = played(game, *players, games=200), played(plain, *players, games=200)
        for name in ("action", "reward", "over"):
            np.testing.assert_array_equal(record[name], same[name], name)
        assert [row(game, record, g, 0) for g in range(200)] == [row(plain, same, g, 0) for g in range(200)]


def test_a_listener_names_no_object_that_was_ruled_out_and_withheld_replies_rule_out_none():
    game = HalfSilent(THINGS, questions=3)
    record, heard, named = played(game, "listener", games=300), [], []
    for g in range(300):
        said, asked, left = acted(game, record, g), None, dict(THINGS)
        for t, ((seat, word), told) in enumerate(zip(said, row(game, record, g, 0)[1:], strict=True)):
            if seat == 1:
                assert told == "" and record["reward"][t, g, 1, 2] == 1  # it said the truth, heard or not
                continue
            if asked:
                reply = re.match(r"They say (\w+)\. (Ask or name it|Now name it)\.$", told).group(1)
                heard += [reply] * (t == 2)
                truth = said[t - 1][1]
                assert reply in (truth, "nothing")
                left = {n: h for n, h in left.items() if reply == "nothing" or (asked in h) == (reply == "yes")}
            asked = word if word not in dict(THINGS) else None
            if not asked:
                assert word in left
                named.append((word, len(left)))
    assert abs(np.mean([reply == "nothing" for reply in heard]) - 0.5) < 0.12
    assert len({word for word, _ in named}) == 8 and min(count for _, count in named) < 3


def test_phrases_of_a_kind_stand_for_each_other():
    game = WithheldAnswers(THINGS, questions=2)
    tokens = SymbolTokenizer([text for fields in (game.rules, game.observation) for field in fields for text in field])
    start = jax.tree.map(lambda x: x[0], game.initial_states()[0])
    for turn, texts in zip((2, 4), game.kinds, strict=True):
        assert phrase_tokens(tokens, texts).shape == (3, 1)
        for reply, text in enumerate(texts):
            view = game.view(start.replace(turn=jnp.int32(turn), reply=jnp.int32(reply)))
            assert game.observation[0][int(view.phrases[0, 0])] == text and int(view.phrases[1, 0]) == -1
    assert game.view(start.replace(reply=jnp.int32(NOTHING))).phrases[0, 0] == 0
