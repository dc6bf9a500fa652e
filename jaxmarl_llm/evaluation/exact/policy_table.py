"""A language model's policy as a table over all information sets of a game, for exact evaluation by `solve`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import View
from jaxmarl_llm.evaluation.exact.solve import Tree, by_chunks
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.rollout.policy import allowed, distribution
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.text.grammar import UNREACHABLE, TokenTables


class Place(struct.PyTreeNode):
    game: Any
    line: jax.Array  # int32
    turn: jax.Array  # int32


class Lines:
    """A game that follows given histories. Group g starts from deal g of `start` and ends after turn last[g].

    The scripted player `line` takes all seats and plays moves[g, t] in turn t."""

    def __init__(self, environment: Any, start: tuple[Any, View], moves: jax.Array, last: jax.Array):
        self.environment, self.start, self.moves, self.last = environment, start, moves, last
        self.scripts = {"line": lambda state, seat, key: self.moves[state.line, state.turn]}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[Place, View]:
        state, view = jax.tree.map(lambda leaf: leaf[group], self.start)
        return Place(state, group.astype(jnp.int32), jnp.int32(0)), view

    def prompt(self, state: Place) -> jax.Array:
        return self.environment.prompt(state.game)

    def step(self, state: Place, action: jax.Array, key: jax.Array) -> tuple[Place, View, jax.Array]:
        game, view, reward = self.environment.step(state.game, action, key)
        ended = view.terminated | (state.turn >= self.last[state.line])
        return Place(game, state.line, state.turn + 1), view.replace(terminated=ended), reward


class Spellings(NamedTuple):
    """The branching points of an utterance of one grammar: M places after its forced beginning, shortest first, and the
    W tokens that may follow each. `leads` is M where the utterance ends, and for padding."""

    tokens: np.ndarray  # int32 [M, L], tokens since the forced beginning
    length: np.ndarray  # int32 [M]
    state: np.ndarray  # int32 [M], of the grammar
    left: np.ndarray  # int32 [M], tokens left in the budget
    token: np.ndarray  # int32 [M, W]
    leads: np.ndarray  # int32 [M, W], the place after this token
    action: np.ndarray  # int32 [M, W], action of the utterance, N where it has not ended


def tabulate(
    tree: Tree, policy_set: PolicySet, policy: int = 0, budget: int | Sequence[int] = 8, batch: int = 512
) -> Callable[[dict], np.ndarray]:
    """table(weights) -> the policy of a language model in every information set, [I, N], `batch` sets at a time.

    `weights` are the policy set's, as a `Rollout` takes them. The probability of an action is a sum over its spellings
    of products over tokens. A rollout writes the rows in front once, with the seat's earlier answers in their usual
    spelling. If a tokenizer allows several spellings, the table is the policy after the usual one.
    Raises ValueError for scripted players, unmasked policies and free text, and where the rollout raises it.
    """
    if policy_set.config is None or not policy_set.masked:
        raise ValueError(
            f"Policies {policy_set.policies} must be models with masked grammars: there is nothing to tabulate."
        )
    name = policy_set.policies[policy]
    rollout = Rollout(tree.environment, {"model": policy_set}, Lineup(((name,) * tree.environment.agents,), 1), budget)
    choosing, tables, questions = np.flatnonzero(tree.legal.sum(1) > 1), rollout.layouts["model"].tables, []
    if not choosing.size:
        return lambda weights: tree.legal.astype(np.float64)
    grammar, given = (
        tree.grammar[tree.example[choosing]],
        (*_rows(tree, rollout, choosing, batch), tree.legal[choosing]),
    )
    for number in np.unique(grammar).tolist():
        spellings = _spellings(tables, number, int(rollout.budget[number]), tree.legal.shape[1])
        here = np.flatnonzero(grammar == number)
        ask = jax.jit(partial(_ask, policy_set, policy, tables, spellings))
        questions.append((choosing[here], ask, tuple(leaf[here] for leaf in given)))

    def table(weights: dict) -> np.ndarray:
        result = tree.legal.astype(np.float64)
        for sets, ask, given in questions:
            result[sets] = by_chunks(partial(ask, weights), given, batch)
        return result / result.sum(1, keepdims=True)

    return table


def _rows(tree: Tree, rollout: Rollout, sets: np.ndarray, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens of the rows before a seat's answer, int32 [m, W]; lengths of the rows, forced beginning included)."""
    environment, policy_set = tree.environment, rollout.layouts["model"].policy_set
    writer, lineup = PolicySet(policy_set.tokenizer, ("line",)), Lineup((("line",) * environment.agents,) * batch, 1)
    deal, moves, last = tree.histories(tree.example[sets])
    moves[np.arange(len(sets)), last] = tree.legal[sets].argmax(1)  # any legal move, so that the seat is asked
    start = jax.tree.map(lambda leaf: leaf[deal], tree.start)

    @jax.jit
    def write(start, moves, last, seat, grammar):
        written = Rollout(Lines(environment, start, moves, last), {"row": writer}, lineup, rollout.budget.tolist())
        layout, rows = written.layouts["row"], written({"row": {}}, jax.random.key(0)).rows["row"]
        rows_of_seats = jnp.arange(batch) * environment.agents + seat
        answer = jnp.asarray(layout.script[1])[grammar, moves[jnp.arange(batch), last]]
        forced = layout.tables.forced_length[layout.tables.start]
        kept = rows.length[rows_of_seats] - (answer - jnp.asarray(forced, jnp.int32)[grammar])
        prompt, begin = rows.prompts.tokens[rows_of_seats], rows.prompts.length[rows_of_seats]
        at = jnp.arange(prompt.shape[1] + rows.tokens.shape[1])[None]
        after = jnp.take_along_axis(rows.tokens[rows_of_seats], jnp.maximum(at - begin[:, None], 0), 1)
        prompt = jnp.pad(prompt, ((0, 0), (0, rows.tokens.shape[1])))
        return jnp.where(at < begin[:, None], prompt, after), begin + kept

    given = start, moves, last, tree.owner[sets], tree.grammar[tree.example[sets]]
    tokens, length = by_chunks(write, given, batch)
    return tokens[:, : length.max()], length


def _ask(
    policy_set: PolicySet,
    policy: int,
    tables: TokenTables,
    spellings: Spellings,
    weights: dict,
    rows: jax.Array,
    length: jax.Array,
    legal: jax.Array,
) -> jax.Array:
    """Probabilities [R, N] of a model's actions after rows int32 [R, W] of these lengths [R]; legal bool [R, N]."""
    assert policy_set.config is not None  # checked by tabulate
    config, params, (batch, actions) = policy_set.config, weights["params"], legal.shape
    sampling = policy_set.sampling[policy] if isinstance(policy_set.sampling, tuple) else policy_set.sampling
    joined = None
    if policy_set.lora is not None:
        joined = lora.concatenate((weights["adapters"][policy],), (policy_set.loras[policy],))
    rows = jnp.pad(rows, ((0, 0), (0, spellings.tokens.shape[1])))
    offset = jnp.arange(rows.shape[1])[None] - length[:, None]

    def branch(number, carry):
        reach, probability = carry
        place: Spellings = jax.tree.map(lambda leaf: jnp.asarray(leaf)[number], spellings)
        said = place.tokens[jnp.clip(offset, 0, len(place.tokens) - 1)]
        row = jnp.where((offset >= 0) & (offset < place.length), said, rows)
        hidden, _ = decoder.forward(config, params, row, adapters=joined)
        last = jnp.take_along_axis(hidden, (length + place.length - 1)[:, None, None], 1)[:, 0]
        mask = allowed(tables, jnp.full((batch,), place.state), legal, jnp.full((batch,), place.left))
        logp = distribution(decoder.logits(config, params, last), mask, sampling)
        share = reach[number][None] * jnp.exp(logp[:, place.token]).T  # [W, R]
        probability = probability.at[place.action].add(share, mode="drop")
        return reach.at[place.leads].add(share, mode="drop"), probability

    reach = jnp.zeros((len(spellings.state), batch)).at[0].set(1)
    return jax.lax.fori_loop(0, len(reach), branch, (reach, jnp.zeros((actions, batch))))[1].T


def _spellings(tables: TokenTables, grammar: int, budget: int, actions: int) -> Spellings:
    alive = tables.distance.min(1) < UNREACHABLE
    begin = tables.start[grammar]
    assignments: list = [((), int(tables.forced_state[begin]), budget - int(tables.forced_length[begin]))]
    ways: list[list[tuple[int, int, int]]] = []
    for tokens, state, left in assignments:  # grows while it is read
        if tables.free[state] or len(assignments) > 1000:
            raise ValueError("These answers can be written in more than 1000 ways: they cannot be enumerated.")
        ways.append([])
        for token in np.flatnonzero(alive[tables.next[state]][tables.token_class]).tolist():
            after = tables.next[state, tables.token_class[token]]
            extra, end = int(tables.forced_length[after]), int(tables.forced_state[after])
            if tables.ended[end] and left >= 1 + extra:
                ways[-1].append((token, -1, int(tables.action[end])))
            elif tables.distance[end].min() <= left - 1 - extra:
                ways[-1].append((token, len(assignments), actions))
                assignments.append(((*tokens, token, *tables.forced[after][:extra].tolist()), end, left - 1 - extra))
    longest, widest = max(len(tokens) for tokens, _, _ in assignments), max(map(len, ways))
    said = np.zeros((len(assignments), max(longest, 1)), np.int32)
    following = (
        np.zeros((3, len(assignments), widest), np.int32) + np.array([0, len(assignments), actions])[:, None, None]
    )
    for number, ((tokens, _, _), way) in enumerate(zip(assignments, ways, strict=True)):
        said[number, : len(tokens)] = tokens
        for i, (token, leads, action) in enumerate(way):
            following[:, number, i] = token, leads if leads >= 0 else len(assignments), action
    length, state, left = (
        np.array(x, np.int32) for x in zip(*((len(t), s, n) for t, s, n in assignments), strict=True)
    )
    return Spellings(said, length, state, left, *following.astype(np.int32))
