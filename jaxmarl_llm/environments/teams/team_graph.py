"""A team as a graph: one seat adds solvers, verifiers and checks for a query, paid the graph's exact accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import (
    Script,
    all_deals,
    at_least,
    choice,
    draw,
    make_view,
    not_negative,
    random_player,
)
from jaxmarl_llm.text.grammar import Grammar

SOLVER, VERIFIER, CHECK = range(3)  # CHECK + k: check chain k; the last action stops


class Query(NamedTuple):
    """A kind of query and the errors that modules make on it."""

    name: str
    right: float  # chance of a solver's right answer
    passes: float  # chance that a check passes a right answer
    fooled: float  # chance that a check passes a wrong answer


QUERIES = (Query("easy", 0.97, 0.5, 0.5), Query("open", 0.75, 0.3, 0.6), Query("hard", 0.4, 0.9, 0.2))


class Graph(NamedTuple):
    """A team: solver i has `checks[i]` verifiers, the verifiers 0 to checks[i] - 1."""

    verifiers: int
    checks: tuple[int, ...]

    @property
    def agents(self) -> int:
        return len(self.checks) + self.verifiers

    @property
    def turns(self) -> int:
        """Turns that build it, without the stop."""
        return self.agents + sum(self.checks)


def accuracy_of_majority(right: Any, wrong: Any) -> Any:
    """The chance [...] that most votes are right, a tie being a coin and no vote at all wrong. Chain i of the last
    axis votes right with chance right[..., i], wrong with chance wrong[..., i], and else not, on its own. Arrays of
    NumPy or JAX."""
    chains = right.shape[-1]
    lead = [0.0 * right[..., 0]] * (2 * chains + 1)  # chance of each number of right votes less wrong ones, + chains
    lead[chains] = lead[chains] + 1.0
    silent = lead[chains]
    for i in range(chains):
        up, down = right[..., i], wrong[..., i]
        stay = 1.0 - up - down
        below, above = [0.0, *lead[:-1]], [*lead[1:], 0.0]
        lead = [stay * x + up * b + down * a for x, b, a in zip(lead, below, above, strict=True)]
        silent = silent * stay
    return sum(lead[chains + 1 :]) + 0.5 * (lead[chains] - silent)


class TeamState(struct.PyTreeNode):
    query: jax.Array  # int32
    solvers: jax.Array  # int32
    verifiers: jax.Array  # int32
    checks: jax.Array  # int32 [solvers], verifiers of each chain
    fresh: jax.Array  # bool [solvers], chains that the newest verifier checks
    accuracy: jax.Array  # float32, of the graph so far
    turn: jax.Array  # int32
    stopped: jax.Array  # bool


@dataclass(frozen=True)
class TeamGraph:
    """One seat builds a team for a yes-or-no query: it adds a solver, a verifier or an edge in each turn, or stops.

    An edge lets the newest verifier check the answer of a solver, a chain. Every solver is right with a chance of the
    query's kind, and every check passes a right and a wrong answer with two others; all errors are independent. The
    answers that pass all their checks vote. The team's answer is the majority; a tie is a coin, and a team without a
    vote is wrong. The kind of query is drawn with the deal and told with its three chances.

    More is not always better: a check also rejects right answers, so on open queries, where it is fooled more often
    than it passes, each one costs accuracy. On hard queries, where solvers are mostly wrong, unchecked solvers do.

    Components:

    - `accuracy`: paid after the last turn, the exact probability that the team is right; nothing is sampled.
    - `cost`: -price in the turn that adds a solver or a verifier. Edges are free but take turns.

    Measures:

    - `gain`: the change of the exact accuracy by the turn, from 0 for an empty team.
    - `agents`: 1 if the turn adds a solver or a verifier.
    - `idle`: 1 if the turn leaves the newest verifier without any check for good.

    A team needs a solver before it may stop. The game also ends after `turns` turns.
    Raises ValueError for numbers below 1, more than nine solvers, a negative price, no query, two queries of one name,
    and chances outside [0, 1].
    """

    solvers: int = 6
    verifiers: int = 3
    turns: int = 14
    price: float = 0.02
    queries: tuple[Query, ...] = QUERIES

    agents = 1
    roles = ("builder",)
    components = ("accuracy", "cost")
    measures = ("gain", "agents", "idle")

    def __post_init__(self):
        at_least(1, solvers=self.solvers, verifiers=self.verifiers, turns=self.turns, queries=len(self.queries))
        not_negative(price=self.price)
        if self.solvers > 9:
            raise ValueError(f"Solvers have the numbers 1 to 9, got solvers={self.solvers}.")
        if len({query.name for query in self.queries}) < len(self.queries):
            raise ValueError(f"Queries need different names, got {[query.name for query in self.queries]}.")
        if not all(0 <= chance <= 1 for query in self.queries for chance in query[1:]):
            raise ValueError(f"Chances lie between 0 and 1, got {self.queries}.")

    @property
    def actions(self) -> int:
        return CHECK + self.solvers + 1

    @property
    def rules(self) -> Fields:
        team = (
            "You build a team that answers a yes-or-no question. In a turn you add a solver, add a verifier, let the "
            f"newest verifier check the answer of a solver, or stop. There are {self.turns} turns at most, "
            f"{self.solvers} solvers and {self.verifiers} verifiers. Answers that pass all their checks vote. The "
            "majority is the team's answer, a tie is a coin, and a team without a vote is wrong. You get the chance "
            f"that the team is right as points, and each solver or verifier costs you {self.price} points."
        )
        errors = (
            f" The question is {x.name}: a solver is right with chance {x.right}, and a check passes a right answer "
            f"with chance {x.passes} and a wrong one with chance {x.fooled}."
            for x in self.queries
        )
        return (team,), tuple(errors)

    @property
    def observation(self) -> Fields:
        solvers = tuple(f"Solvers: {count}." for count in range(self.solvers + 1))
        return solvers, tuple(f" Verifiers: {count}. Next?" for count in range(self.verifiers + 1))

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        checks = (f"check {number + 1}" for number in range(self.solvers))
        return (choice(("solver", "verifier", *checks, "stop")),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` builds the graph with the most points for the query. `large` builds one graph for all queries, the
        most accurate of all in the mean over their kinds."""
        graphs, accuracy = all_graphs(self)
        points = accuracy - self.price * np.array([graph.agents for graph in graphs])[:, None]
        largest = [graphs[accuracy.mean(1).argmax()]] * len(self.queries)

        def player(teams: Sequence[Graph]) -> Script:
            solvers, verifiers = (jnp.array([f(x) for x in teams]) for f in (lambda x: len(x.checks), lambda x: x[0]))
            checks = jnp.array([self._counts(team) for team in teams])

            def play(state: TeamState, seat: jax.Array, key: jax.Array) -> jax.Array:
                """Adds all solvers, then verifiers one after the other with their checks, then stops."""
                hired, query = state.verifiers, state.query
                due = (checks[query] >= hired) & (hired > 0) & (checks[query] > 0) & ~state.fresh
                rest = jnp.where(hired < verifiers[query], VERIFIER, self.actions - 1)
                rest = jnp.where(due.any(), CHECK + due.argmax(), rest)
                return jnp.where(state.solvers < solvers[query], SOLVER, rest).astype(jnp.int32)

            return play

        best = [graphs[i] for i in points.argmax(0)]
        return {"random": random_player(self.view), "correct": player(best), "large": player(largest)}

    def _counts(self, graph: Graph) -> list[int]:
        """Checks of each chain [solvers]."""
        return [*graph.checks, *[0] * (self.solvers - len(graph.checks))]

    def accuracy(self, query: Any, solvers: Any, checks: Any) -> Any:
        """The exact probability [...] that the team is right: query and solvers int [...], checks int [..., solvers].
        Arrays of NumPy or JAX."""
        chances = np.array([kind[1:] for kind in self.queries], np.float32)
        table = chances if isinstance(checks, np.ndarray) else jnp.asarray(chances)
        right, passes, fooled = (table[query][..., k, None] for k in range(3))
        there = np.arange(self.solvers) < solvers[..., None]
        return accuracy_of_majority(there * right * passes**checks, there * (1 - right) * fooled**checks)

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[TeamState, View]:
        state = self._start(draw(key, len(self.queries)))
        return state, self.view(state)

    def initial_states(self) -> tuple[TeamState, np.ndarray]:
        return all_deals(self._start, len(self.queries))

    def prompt(self, state: TeamState) -> jax.Array:
        return jnp.stack([jnp.int32(0), state.query])[None]

    def step(self, state: TeamState, action: jax.Array, key: jax.Array) -> tuple[TeamState, View, jax.Array]:
        said = action[0]
        stopped, hires = said == self.actions - 1, said == VERIFIER
        checked = jnp.arange(self.solvers) == said - CHECK
        solvers, checks = state.solvers + (said == SOLVER), state.checks + checked
        after = state.replace(
            solvers=solvers,
            verifiers=state.verifiers + hires,
            checks=checks,
            fresh=jnp.where(hires, False, state.fresh | checked),
            accuracy=self.accuracy(state.query, solvers, checks).astype(jnp.float32),
            turn=state.turn + 1,
            stopped=stopped,
        )
        ended = self._is_over(after)
        added = (said == SOLVER) | hires
        left_idle = (hires & (state.verifiers > 0) & ~state.fresh.any()) | (
            ended & (after.verifiers > 0) & ~after.fresh.any()
        )
        measured = jnp.stack([after.accuracy - state.accuracy, added, left_idle]).astype(jnp.float32)
        paid = jnp.stack([jnp.where(ended, after.accuracy, 0.0), jnp.where(added, -self.price, 0.0)])
        return after, self.view(after).replace(measured=measured[None]), paid.astype(jnp.float32)[None]

    def view(self, state: TeamState) -> View:
        checkable = (state.verifiers > 0) & (jnp.arange(self.solvers) < state.solvers) & ~state.fresh
        roles = jnp.stack([state.solvers < self.solvers, state.verifiers < self.verifiers])
        legal = jnp.concatenate([roles, checkable, (state.solvers > 0)[None]])
        told = [state.solvers, state.verifiers]
        return make_view(self, told, True, self._is_over(state), legal=legal)

    def _start(self, query: jax.Array) -> TeamState:
        zero, none = jnp.int32(0), jnp.zeros((self.solvers,), jnp.int32)
        return TeamState(query, zero, zero, none, none > 0, jnp.float32(0), zero, jnp.bool_(False))

    def _is_over(self, state: TeamState) -> jax.Array:
        return state.stopped | (state.turn >= self.turns)


@cache
def all_graphs(game: TeamGraph) -> tuple[tuple[Graph, ...], np.ndarray]:
    """(the graphs that the turns can build, up to the order of modules; their exact accuracy [graphs, queries]).

    A chain has no identity but its number of checks, so a graph is a number of verifiers and a sorted list of counts.
    """
    numbers = [(n, v) for n in range(1, game.solvers + 1) for v in range(game.verifiers + 1)]
    graphs = [Graph(v, checks) for n, v in numbers for checks in combinations_with_replacement(range(v + 1), n)]
    graphs = [graph for graph in graphs if graph.turns <= game.turns]
    checks = np.array([game._counts(graph) for graph in graphs])
    solvers = np.array([len(graph.checks) for graph in graphs])[:, None]
    return tuple(graphs), game.accuracy(np.arange(len(game.queries))[None], solvers, checks[:, None])


GAMES = {"team_graph": TeamGraph}
