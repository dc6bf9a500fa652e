"""Tables of language models: what a rollout recorded, how often it acted, what it earned.

The long cases play and tabulate a second game, a slow one earns its value; the short ones compare the table with what
was sampled.
"""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from scipy import stats

from jaxmarl_llm.environments.around.subgoals import Subgoals
from jaxmarl_llm.environments.classic.board_games import ConnectFour
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.solo.rooms import Rooms
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.policy_table import _spellings, tabulate
from jaxmarl_llm.keys import DEAL, batch_keys
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.text.grammar import Choice, Free, lift
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from tests.support.clock import Clock
from tests.support.families import random
from tests.support.toys import ByteTokenizer

GAMES = 4096


def tiny(vocab_size: int, context: int) -> Config:
    return Config(vocab_size, 16, 24, 2, 2, 1, 8, context)


@cache
def played(name: str) -> SimpleNamespace:
    """A batch of games, the table that says how its players play, and the histories that were reached [B, T]."""
    if name == "kuhn":  # one token an action, full weights
        environment, names, budget = KuhnPoker(), ("model", "model"), 1
        tokenizer = SymbolTokenizer(strings(environment))
        policy_set = PolicySet(tokenizer, ("model",), tiny(tokenizer.vocab_size, 32))
    else:  # words with several spellings, chat markers, an adapter and a way of sampling for each policy
        environment, names, budget = Clock(), ("a", "b", "a"), 5
        tokenizer = ByteTokenizer((b"st", b"ta", b"ay", b"stay", b" Now"))
        sampling = (Sampling(temperature=2.0), Sampling(temperature=1.5, top_k=3))
        loras = (Lora(2, 4.0), Lora(3, 6.0, ("q_*", "v_*")))
        policy_set = PolicySet(tokenizer, ("a", "b"), tiny(tokenizer.vocab_size, 128), loras, sampling)
    params = random(jax.eval_shape(lambda: decoder.init(policy_set.config, jax.random.key(0))), 1)
    extra = tuple(
        random(jax.eval_shape(lambda settings=settings: lora.init(jax.random.key(0), params, settings)), 2 + i)
        for i, settings in enumerate(policy_set.loras)
    )
    weights, tree, key = {"params": params, "adapters": extra}, solve.tree(environment), jax.random.key(7)
    each = [tabulate(tree, policy_set, policy, budget, batch=16)(weights) for policy in range(len(policy_set.policies))]
    table = np.choose([policy_set.policies.index(names[seat]) for seat in tree.owner], [t.T for t in each]).T
    rollout = Rollout(environment, {"model": policy_set}, Lineup((names,) * GAMES, 1), budget)
    trajectory = jax.device_get(jax.jit(rollout.__call__)({"model": weights}, key))

    group = np.arange(GAMES, dtype=np.int32)
    state = jax.jit(jax.vmap(environment.reset))(batch_keys(key, DEAL, group), group)[0]
    first = [np.asarray(leaf).reshape(GAMES, -1) for leaf in jax.tree.leaves(state)]
    deals = [np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(tree.start[0])]
    same = np.all([(a[:, None] == b[None]).all(-1) for a, b in zip(first, deals, strict=True)], 0)
    after = {(p, a): node for node, (p, a) in enumerate(zip(tree.parent.tolist(), tree.action.tolist(), strict=True))}
    nodes = np.full((GAMES, environment.turns), -1)
    for game, node in enumerate(same.argmax(1)):
        for t in range(environment.turns):
            if tree.seat[node] < 0:
                break
            nodes[game, t] = node
            assert trajectory.episodes.acted[game, t, tree.seat[node]]
            node = after[node, int(trajectory.episodes.action[game, t, tree.seat[node]])]
    return SimpleNamespace(**locals())


@pytest.mark.parametrize("name", ["kuhn", pytest.param("clock", marks=pytest.mark.slow)])
@pytest.mark.long
def test_a_rollout_acts_as_often_as_the_table_says(name):
    case = played(name)
    tree, table, nodes = case.tree, case.table, case.nodes
    game, turn = np.nonzero(nodes >= 0)
    at = nodes[game, turn]
    action = case.trajectory.episodes.action[game, turn, tree.seat[at]]
    count = np.zeros(table.shape)
    np.add.at(count, (tree.information[at], action), 1)
    expected = table * count.sum(1, keepdims=True)
    assert (count[table == 0] == 0).all() and count.sum() == (nodes >= 0).sum()
    used = (expected > 5).all(1)
    assert used.sum() >= 5
    square = ((count - expected)[used] ** 2 / expected[used]).sum()
    assert 1e-4 < stats.chi2.sf(square, used.sum()) < 1 - 1e-6
    wrong = (((count - expected[:, ::-1])[used]) ** 2 / expected[used][:, ::-1]).sum()
    assert stats.chi2.sf(wrong, used.sum()) < 1e-9  # another table would have been noticed


@pytest.mark.long
@pytest.mark.parametrize("name", ["kuhn", pytest.param("clock", marks=pytest.mark.slow)])
def test_a_rollout_earns_what_the_table_is_worth(name):
    case = played(name)
    earned = np.asarray(case.trajectory.episodes.reward, np.float64).sum((1, 3))
    exact = solve.expected_value(case.tree, case.table)
    error = earned.std(0) / np.sqrt(GAMES)
    assert (np.abs(earned.mean(0) - exact) < 4 * error).all()
    assert (np.abs(solve.expected_value(case.tree, solve.uniform(case.tree)) - exact) > 4 * error).any()


def test_what_was_recorded_as_sampled_stands_in_the_table():
    case = played("kuhn")
    rows, tree = case.trajectory.rows["model"], case.tree
    row, place = np.nonzero(rows.loss_mask)
    node = case.nodes[rows.episode[row], rows.turn[row, place]]
    action = case.trajectory.episodes.action[rows.episode[row], rows.turn[row, place], rows.seat[row]]
    assert len(row) == (case.nodes >= 0).sum()
    found = np.log(case.table[tree.information[node], action])
    np.testing.assert_allclose(found, rows.logp[row, place], atol=2e-5)


@pytest.mark.parametrize("name", ["kuhn", pytest.param("clock", marks=pytest.mark.slow)])
def test_tables_are_policies_and_differ_between_information_sets(name):
    case = played(name)
    np.testing.assert_allclose(case.table.sum(1), 1, atol=1e-12)
    assert (case.table[~case.tree.legal] == 0).all()
    assert len(np.unique(case.table[:, 0].round(4))) == len(case.table)  # every set is asked with a row of its own
    assert solve.nash_conv(case.tree, case.table) > 0


def test_a_greedy_model_is_pure_in_batches_of_any_size():
    case = played("kuhn")
    policy_set = replace(case.policy_set, sampling=Sampling(temperature=0.0))
    found = tabulate(case.tree, policy_set, budget=1, batch=5)(case.weights)
    np.testing.assert_array_equal(found, np.eye(2)[case.table.argmax(1)])


def spellings(tokenizer: ByteTokenizer, text: bytes) -> list[tuple[int, ...]]:
    """Every way to write a text, the end token included."""
    if not text:
        return [(tokenizer.end,)]
    first = [i for i, token in enumerate(tokenizer.token_bytes) if token and text.startswith(token)]
    return [(i, *rest) for i in first for rest in spellings(tokenizer, text[len(tokenizer.token_bytes[i]) :])]


@pytest.mark.parametrize("budget", [3, 5])
def test_all_spellings_within_the_budget_are_asked_for(budget):
    tokenizer = ByteTokenizer((b"st", b"ta", b"ay", b"stay"))
    tables = lift(Clock().grammars, tokenizer.token_bytes, tokenizer.end)
    found, (tokens, length, state, left, *ways) = [], _spellings(tables, 0, budget, 2)
    for place, following in enumerate(np.stack(ways, 2)):
        assert left[place] == budget - length[place]
        for token, leads, action in following.tolist():
            said = (*tokens[place, : length[place]].tolist(), token)
            if action < 2:
                after = tables.next[state[place], tables.token_class[token]]
                found.append((*said, *tables.forced[after, : tables.forced_length[after]].tolist()))
                assert tokenizer.decode(found[-1][:-1]) == ("stay", "go")[action] and leads == len(tokens)
            elif leads < len(tokens):
                assert tuple(tokens[leads, : len(said)].tolist()) == said
    written = spellings(tokenizer, b"stay") + spellings(tokenizer, b"go")
    assert sorted(found) == sorted(way for way in written if len(way) <= budget)
    assert len(written) == 7


def test_free_text_cannot_be_tabulated():
    tokenizer = ByteTokenizer()
    tables = lift(((Choice(((0, "a"), (1, "b"))), Free(b"\n")),), tokenizer.token_bytes, tokenizer.end)
    with pytest.raises(ValueError, match="more than 1000 ways"):
        _spellings(tables, 0, 8, 2)


@pytest.mark.parametrize("change", [{"config": None, "policies": ("random",)}, {"masked": False}])
def test_who_has_no_policy_over_legal_actions_is_said(change):
    case = played("kuhn")
    with pytest.raises(ValueError, match="nothing to tabulate"):
        tabulate(case.tree, replace(case.policy_set, **change))


@pytest.mark.long
def test_forced_answers_are_certain_and_the_others_as_they_were_sampled():
    game = Subgoals(Rooms(rooms=2, objects=1, quest=1, budget=3))
    tokenizer, key, group = SymbolTokenizer(strings(game)), jax.random.key(4), np.arange(32, dtype=np.int32)
    policy_set, tree = PolicySet(tokenizer, ("model",), tiny(tokenizer.vocab_size, 128)), solve.tree(game)
    weights = {"params": random(jax.eval_shape(lambda: decoder.init(policy_set.config, jax.random.key(0))), 1)}
    table = tabulate(tree, policy_set, 0, 1, batch=64)(weights)
    rollout = Rollout(game, {"model": policy_set}, Lineup((("model",),) * len(group), 1), 1)
    played = jax.device_get(jax.jit(rollout)({"model": weights}, key))
    dealt = jax.jit(jax.vmap(game.reset))(batch_keys(key, DEAL, group), group)[0]
    after = {(p, a): node for node, (p, a) in enumerate(zip(tree.parent.tolist(), tree.action.tolist(), strict=True))}
    rows, forced = played.rows["model"], 0
    for episode in group.tolist():
        leaves = zip(jax.tree.leaves(tree.start[0]), jax.tree.leaves(dealt), strict=True)
        same = [(deals == one[episode][None]).reshape(len(deals), -1).all(1) for deals, one in leaves]
        node = int(np.argmax(np.all(same, 0)))
        for turn, action in enumerate(played.episodes.action[episode, :, 0].tolist()):
            if tree.seat[node] < 0:
                break
            said = rows.logp[episode][(rows.turn[episode] == turn) & rows.loss_mask[episode]]
            assert np.log(table[tree.information[node], action]) == pytest.approx(said.sum(), abs=1e-4)
            forced, node = forced + (not said.size), after[node, action]
    assert forced > 0


def test_a_game_in_which_nothing_is_chosen_has_a_table():
    game = ConnectFour(columns=1, rows=4, line=4)
    tokenizer = SymbolTokenizer(strings(game))
    tree, policy_set = solve.tree(game), PolicySet(tokenizer, ("model",), tiny(tokenizer.vocab_size, 64))
    np.testing.assert_array_equal(tabulate(tree, policy_set, 0, 1)({}), tree.legal)
