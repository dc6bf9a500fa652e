"""Names of observations: equal if and only if the tokens read so far are equal.

The long case compiles a rollout with messages; the short ones name the histories of other games and of texts by hand.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.teams.team_search import RouterSearch
from jaxmarl_llm.environments.teams.whispers import Whispers
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rollout import names
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.setup import tiny
from tests.support.toys import ByteTokenizer


def played(game, budget=8, groups=6, group_size=16, tokenizer=None, positions=256):
    tokenizer = tokenizer or SymbolTokenizer(strings(game))
    policy_set = PolicySet(tokenizer, ("a",), replace(tiny(tokenizer.vocab_size), max_position_embeddings=positions))
    lineup = Lineup((("a",) * game.agents,) * groups, group_size)
    params = decoder.init(policy_set.config, jax.random.key(0))
    return jax.jit(Rollout(game, {"a": policy_set}, lineup, budget))({"a": {"params": params}}, jax.random.key(1))


def read_before(trajectory):
    """{(episode, turn, seat) of an act: all tokens that its row holds before the first one that is said then}."""
    rows, found = jax.tree.map(np.asarray, trajectory.rows["a"]), {}
    acted = np.asarray(trajectory.episodes.acted)
    for row in range(len(rows.tokens)):
        prompt = rows.prompts.tokens[rows.prompt[row]][: rows.prompts.length[rows.prompt[row]]].tolist()
        episode, seat = int(rows.episode[row]), int(rows.seat[row])
        for turn in np.flatnonzero(acted[episode, :, seat]):
            said = np.flatnonzero(rows.loss_mask[row] & (rows.turn[row] == turn))
            if len(said):
                found[episode, int(turn), seat] = tuple(prompt + rows.tokens[row][: said[0]].tolist())
    return found


@pytest.mark.parametrize(
    "game", [KuhnPoker(), MatrixGame(rounds=3), RouterSearch(keys=3, values=3)], ids=lambda x: type(x).__name__
)
def test_histories_have_one_name_where_the_rows_are_the_same(game):
    trajectory = played(game)
    name = np.asarray(names.histories(trajectory.episodes))
    by_text, by_name = {}, {}
    for at, tokens in read_before(trajectory).items():
        by_text.setdefault(tokens, set()).add(int(name[at]))
        by_name.setdefault(int(name[at]), set()).add(tokens)
    assert len(by_text) > 5
    assert all(len(found) == 1 for found in (*by_text.values(), *by_name.values()))


@pytest.mark.long
def test_names_include_the_messages_of_others():
    """Seats that hear the same line have the same name; another line has another name."""
    trajectory = played(
        Whispers(words=("dog", "sun")), budget=(4, 6), groups=2, tokenizer=ByteTokenizer(), positions=512
    )
    rows, told = jax.tree.map(np.asarray, trajectory.rows["a"]), np.asarray(trajectory.episodes.told)
    lines = {}
    for row in range(len(rows.tokens)):
        if rows.seat[row]:
            heard = rows.tokens[row][(rows.turn[row] == rows.seat[row]) & ~rows.loss_mask[row]]
            lines.setdefault((int(rows.seat[row]), told[rows.episode[row], rows.seat[row], rows.seat[row]]), set())
            lines[int(rows.seat[row]), told[rows.episode[row], rows.seat[row], rows.seat[row]]].add(
                tuple(heard.tolist())
            )
    assert len(lines) > 10 and sum(len(found) > 1 for found in lines.values()) == 0


def test_names_do_not_collide_where_it_matters():
    """Half a million short tuples of small integers, all different: no more collisions than chance (29 expected)."""
    grid = jnp.stack(jnp.meshgrid(*[jnp.arange(27)] * 4, indexing="ij"), -1).reshape(-1, 4)
    alike = names.first_equal([[str(i) for i in range(27)]] * 3)
    name = np.asarray(names.name_phrases(alike, grid[:, 1:], names.mix(names.START, grid[:, 0])))
    expected = len(name) ** 2 / 2**33
    assert len(name) - len(np.unique(name)) < expected + 6 * np.sqrt(expected)
    swapped = names.name_phrases(alike, grid[:, :0:-1], names.mix(names.START, grid[:, 0]))
    assert np.mean(np.asarray(swapped) == name) < 0.05  # order counts


def test_histories_by_hand():
    class Two:
        told = jnp.array([[[5, 7], [5, 7], [1, 1]], [[5, 7], [5, 8], [1, 1]]])
        action = jnp.array([[[0, 2], [0, 2], [0, 0]], [[0, 2], [0, 2], [0, 0]]])

    name = np.asarray(names.histories(Two))
    assert (name[0, :, 0] == name[1, :, 0]).all() and name[0, 0, 1] == name[1, 0, 1]
    assert name[0, 1, 1] != name[1, 1, 1] and name[0, 2, 1] != name[1, 2, 1]
    assert len({*name[0, :, 0].tolist()}) == 3  # the same words later are another history


def test_phrases_of_one_text_are_one():
    assert [same.tolist() for same in names.first_equal([("a", "b", "a"), ("",)])] == [[0, 1, 0, -1], [0, -1]]


def test_a_text_of_a_python_game_has_a_name():
    assert names.name_text("yes") == names.name_text("yes") != names.name_text("no")
    assert -(2**31) <= names.name_text("ä" * 99) < 2**31
