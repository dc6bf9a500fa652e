"""Team graphs: exact accuracy against enumeration, chance and plain Python; the best graphs; when more is worse."""

import re
from itertools import product

import numpy as np
import pytest

from jaxmarl_llm.environments.teams.team_graph import Graph, Query, TeamGraph, all_graphs
from tests.support.team_plays import acted, close, deals_are_what_reset_draws, given, played, row, totals

GAME = TeamGraph()


def enumerated(query: Query, checks: tuple[int, ...]) -> float:
    """The chance that the team is right, over all outcomes of all modules: each solver and each check."""
    modules = len(checks) + sum(checks)
    total = 0.0
    for outcome in product((True, False), repeat=modules):
        chance, votes, at = 1.0, [], len(checks)
        for answer, count in zip(outcome, checks, strict=False):
            chance *= query.right if answer else 1 - query.right
            passed = outcome[at : at + count]
            at += count
            for each in passed:
                accept = query.passes if answer else query.fooled
                chance *= accept if each else 1 - accept
            if all(passed):
                votes.append(answer)
        yes, no = votes.count(True), votes.count(False)
        total += chance * (yes > no or (yes == no > 0) / 2)
    return total


def accuracy(query: int, checks: tuple[int, ...]) -> float:
    padded = np.array([*checks, *[0] * (GAME.solvers - len(checks))])
    return float(GAME.accuracy(np.array(query), np.array(len(checks)), padded))


@pytest.mark.parametrize("checks", [(0,), (2,), (0, 0), (1, 1), (0, 0, 0), (0, 1, 2), (1, 1, 1, 1), (0, 0, 0, 1, 2)])
def test_accuracy_is_that_of_all_outcomes(checks):
    for k, query in enumerate(GAME.queries):
        assert accuracy(k, checks) == pytest.approx(enumerated(query, checks), abs=1e-6)
    assert accuracy(0, ()) == 0


def test_accuracy_against_chance():
    """20,000 simulated teams of a random graph of full size."""
    rng, checks = np.random.default_rng(0), (0, 1, 1, 2, 3, 3)
    for k, (_, right, passes, fooled) in enumerate(GAME.queries):
        answers = rng.random((20_000, len(checks))) < right
        rejected = rng.random((*answers.shape, 3)) > np.where(answers, passes, fooled)[..., None]
        votes = ~(rejected & (np.arange(3) < np.array(checks)[:, None])).any(-1)
        yes, no = (answers & votes).sum(1), (~answers & votes).sum(1)
        luck = rng.random(len(answers)) < 0.5
        assert close((yes > no) | ((yes == no) & (yes > 0) & luck), accuracy(k, checks))


def test_the_best_graphs():
    """By enumeration; each graph of the list is built by a plan, and every graph of the turns is in the list."""
    graphs, exact = all_graphs(GAME)
    points = exact - GAME.price * np.array([graph.agents for graph in graphs])[:, None]
    best = [graphs[i] for i in points.argmax(0)]
    assert best == [Graph(0, (0,)), Graph(0, (0,) * 5), Graph(1, (1,) * 6)]
    assert points.max(0).mean() == pytest.approx(0.801, abs=1e-3)
    at_best = np.diag(exact[points.argmax(0)])
    np.testing.assert_allclose(at_best, [0.97, 0.896, 0.798], atol=1e-3)
    fixed = exact.mean(1)
    large = graphs[fixed.argmax()]
    assert large.agents == 8 and fixed.max() == pytest.approx(0.802, abs=1e-3)
    assert at_best.mean() - fixed.max() > 0.08  # room for a team that fits the query
    assert points.mean(1).max() == pytest.approx(0.687, abs=1e-3)  # one solver for all: no fixed graph pays more
    everything = max(graph.agents for graph in graphs)
    assert all(graph.agents < everything for graph in best)  # the price is not so small that all modules pay


def test_more_modules_are_not_always_better():
    easy, open_, hard = range(3)
    assert accuracy(easy, (1,)) < accuracy(easy, (0,))  # a check rejects right answers
    assert accuracy(open_, (1,) * 5) < accuracy(open_, (0, 1, 1, 1, 1)) < accuracy(open_, (0,) * 5)
    assert accuracy(hard, (0,) * 5) < accuracy(hard, (0,) * 3) < accuracy(hard, (0,))  # the majority is wrong
    assert accuracy(hard, (0, 1, 1, 1)) < accuracy(hard, (1, 1, 1))  # an unchecked solver dilutes a checked team
    assert accuracy(hard, (1, 1, 1, 1, 1)) > accuracy(hard, (1, 1, 1)) > accuracy(hard, (0,))


@pytest.mark.parametrize("player", ["random", "correct", "large"])
def test_against_python(player):
    """Graph, texts, payments and measures of games, from the words of the builder alone."""
    record = played(GAME, player, games=300)
    seen = set()
    for g in range(60):
        rules, *told = row(GAME, record, g, 0)
        words = [word for _, word in acted(GAME, record, g)]
        name = re.search(r"The question is (\w+):", rules).group(1)
        (query,) = (query for query in GAME.queries if query.name == name)
        for number in (query.right, query.passes, query.fooled, GAME.price):
            assert str(number) in rules
        chains: list[int] = []
        newest, before, want = None, 0.0, []
        for i, (text, word) in enumerate(zip(told, words, strict=True)):
            verifiers = sum(each == "verifier" for each in words[:i])
            assert text == f"Solvers: {len(chains)}. Verifiers: {verifiers}. Next?"
            idle = 0
            if word == "solver":
                chains.append(0)
            elif word == "verifier":
                idle, newest = int(newest == set()), set()
            elif word != "stop":
                chain = int(word.removeprefix("check ")) - 1
                assert chain not in newest and chain < len(chains)
                newest.add(chain)
                chains[chain] += 1
            last = i == len(words) - 1
            assert last == (word == "stop" or i + 1 == GAME.turns)
            idle = int(idle or (last and newest == set()))
            added = word in ("solver", "verifier")
            after = accuracy([x.name for x in GAME.queries].index(name), tuple(chains))
            want.append([after * last, -0.02 * added, after - before, added, idle])
            before = after
        np.testing.assert_allclose(given(record)[: len(words), g, 0], want, atol=1e-6)
        seen.add((name, len(words)))
    assert len(seen) > 3 if player == "random" else len(seen) == 3
    sums = totals(record)[:, 0]
    np.testing.assert_allclose(sums[:, 0], sums[:, 2], atol=1e-6)  # gains add up to the accuracy


def test_deals_and_settings():
    assert deals_are_what_reset_draws(GAME)
    twice = (Query("a", 0.5, 0.5, 0.5),) * 2
    for settings in (
        {"solvers": 0},
        {"solvers": 10},
        {"verifiers": 0},
        {"turns": 0},
        {"price": -1},
        {"queries": ()},
        {"queries": twice},
        {"queries": (Query("a", 1.5, 0.5, 0.5),)},
    ):
        with pytest.raises(ValueError, match=r"must be|Solvers|names|Chances"):
            TeamGraph(**settings)
