"""Exact evaluation: best responses, NashConv, CFR and minimax on the whole tree of a game, in float64.

For games in which seats move one at a time and all randomness is in `reset`. Such a game has the optional attributes
`initial_states` and `view` of `environments.extras`. Shapes: D initial states, n histories (nodes), Z of them ended,
I information sets, N actions, A seats. A policy is a table of probabilities float64 [I, N]. An information set belongs
to one seat, so one table plays for all of them: `np.where(tree.owner[:, None] == 0, one, other)` joins two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.base import MessageFrom, View
from jaxmarl_llm.environments.check import check_object
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.text.grammar import options_of

CHUNK = 4096  # histories that one call continues


class Form(NamedTuple):
    """The sequence form (von Stengel 1996, https://doi.org/10.1006/game.1996.0050), which is all that values need.

    Sequence i * N + a holds the seat's own moves to information set i, then a. I * N + s is seat s's empty sequence."""

    legal: np.ndarray  # bool [I, N]
    owner: np.ndarray  # int32 [I], the seat that decides
    above: np.ndarray  # int32 [I], the owner's sequence before: one, as seats forget nothing
    chance: np.ndarray  # float64 [Z]
    payoff: np.ndarray  # float64 [Z, A]
    sequence: np.ndarray  # int32 [Z, A], the last of every seat


@dataclass(frozen=True, eq=False)
class Tree:
    """All histories of a game, ordered by length, and their information sets.

    An information set is everything that a seat was told and its own actions, in order. A seat is told the phrases of
    its prompt and of every view so far, and the call to act. Turns in which it was told nothing do not count.
    Information sets are numbered by the count of their owner's earlier decisions.
    """

    environment: Any
    start: tuple[Any, View]  # states and first views of the deals, [D, ...]
    parent: np.ndarray  # int32 [n], -1 for a deal
    action: np.ndarray  # int32 [n], that led here, -1 for a deal
    seat: np.ndarray  # int32 [n], seat that acts, -1 if the game is over
    information: np.ndarray  # int32 [n], information set, -1 if the game is over
    deal: np.ndarray  # int32 [n]
    grammar: np.ndarray  # int32 [n], of the seat that acts
    payoff: np.ndarray  # float64 [n, A], sum of the rewards until here
    levels: tuple[tuple[int, int], ...]  # histories of t moves: first, and one past the last
    stages: tuple[tuple[int, int], ...]  # information sets of owners with k decisions: first, and one past the last
    example: np.ndarray  # int64 [I], a shortest history of every information set
    form: Form

    @property
    def owner(self) -> np.ndarray:
        return self.form.owner

    @property
    def legal(self) -> np.ndarray:
        return self.form.legal

    def histories(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(deals [m], moves so far [m, most], padded with -1, numbers of moves [m]) of histories int [m]."""
        length = np.searchsorted([end for _, end in self.levels], nodes, side="right")
        moves = np.full((len(nodes), len(self.levels) - 1), -1, np.int32)
        at = np.asarray(nodes)
        for back in range(1, moves.shape[1] + 1):
            rows = np.flatnonzero(length >= back)
            moves[rows, length[rows] - back] = self.action[at[rows]]
            at = np.where(length >= back, self.parent[at], at)
        return self.deal[nodes], moves, length


def tree(environment: Any, weights: Sequence[float] | None = None, limit: int = 4_000_000) -> Tree:
    """Enumerates a game, level by level. Payoffs sum the reward components, each times its weight (1 by default).

    Raises ValueError for a game without `initial_states()` or `view`, with free messages, or with simultaneous moves.
    The same holds for more than `limit` histories, and for different legal actions in one information set.
    """
    check_object(environment)
    if any(isinstance(field, MessageFrom) for field in environment.observation):
        raise ValueError("A game with free messages has no finite tree.")
    scale = np.ones(len(environment.components)) if weights is None else np.asarray(weights, np.float64)
    if scale.shape != (len(environment.components),):
        raise ValueError(f"weights must hold one number for each of {environment.components}, got {weights}.")
    if missing := [f"{name}()" for name in ("initial_states", "view") if getattr(Extras(environment), name) is None]:
        name = type(environment).__name__
        raise ValueError(f"{name} has no {' and no '.join(missing)}: its histories cannot be enumerated.")
    state, chance = jax.device_get(environment.initial_states())
    view = jax.device_get(jax.jit(jax.vmap(environment.view))(state))
    start, agents, deals = (state, view), environment.agents, len(chance)

    @jax.jit
    def play(state, action):
        after, view, reward = jax.vmap(environment.step, (0, 0, None))(state, action, jax.random.key(0))
        return after, view, reward

    root = np.full(deals, -1)
    nodes = [_record_histories(view, root, root, np.arange(deals), np.zeros((deals, agents)))]
    levels = [(0, deals)]
    while (nodes[-1]["seat"] >= 0).any():
        last = nodes[-1]
        where, action = np.nonzero(last["legal"] & (last["seat"] >= 0)[:, None])
        if levels[-1][1] + len(where) > limit:
            raise ValueError(f"The game has more than {limit} histories: its tree is too large.")
        moves = np.zeros((len(where), agents), np.int32)
        moves[np.arange(len(where)), last["seat"][where]] = action
        here = jax.tree.map(lambda leaf, at=where: leaf[at], state)
        state, view, reward = by_chunks(play, (here, moves))
        paid = last["payoff"][where] + reward.astype(np.float64) @ scale
        nodes.append(_record_histories(view, where + levels[-1][0], action, last["deal"][where], paid))
        levels.append((levels[-1][1], levels[-1][1] + len(where)))
    node = {name: np.concatenate([level[name] for level in nodes]) for name in nodes[0]}
    return _with_information(environment, start, chance, node, tuple(levels))


def _record_histories(
    view: View, parent: np.ndarray, action: np.ndarray, deal: np.ndarray, payoff: np.ndarray
) -> dict[str, Any]:
    """The record of histories [n] of one length."""
    acting = np.asarray(view.acting) & ~np.asarray(view.terminated | view.truncated)[:, None]
    if (acting.sum(1) > 1).any():
        raise ValueError("Seats move at the same time in this game: its tree has no single mover.")
    seat = np.where(acting.any(1), acting.argmax(1), -1)
    mover, rows = np.maximum(seat, 0), np.arange(len(seat))
    return {
        "parent": parent.astype(np.int32),
        "action": action.astype(np.int32),
        "deal": deal.astype(np.int32),
        "payoff": payoff,
        "seat": seat.astype(np.int32),
        "grammar": np.asarray(view.grammar)[rows, mover],
        "legal": np.asarray(view.legal)[rows, mover],
        "text": np.asarray(view.phrases),
    }


def by_chunks(function: Callable, arguments: tuple, width: int = CHUNK) -> Any:
    """function(*arguments) over their leading axis [m, ...], in NumPy, `width` at a time: compiled for one shape."""
    size, parts = len(jax.tree.leaves(arguments)[0]), []
    for low in range(0, size, width):
        at = np.minimum(np.arange(low, low + width), size - 1)
        part = jax.device_get(function(*jax.tree.map(lambda leaf, at=at: leaf[at], arguments)))
        parts.append(jax.tree.map(lambda leaf, low=low: leaf[: size - low], part))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _number(columns: np.ndarray) -> np.ndarray:
    """int [n]: equal for equal rows of integers [n, m] from -1 on, and for no others."""
    code, size = np.zeros(len(columns), np.int64), 1
    for column in columns.T:
        span = int(column.max(initial=-1)) + 2
        if size * span > 2**62:
            code = np.unique(code, return_inverse=True)[1]
            size = int(code.max()) + 1
        code, size = code * span + column + 1, size * span
    return np.unique(code, return_inverse=True)[1]


def _with_information(environment: Any, start: Any, chance: np.ndarray, node: dict, levels: tuple) -> Tree:
    """Numbers the knowledge of every seat: the events so far, in order. An event tells the seat something."""
    agents, (total, options) = environment.agents, node["legal"].shape
    prompt = np.asarray(jax.jit(jax.vmap(environment.prompt))(start[0]))
    parent, seat = node["parent"], node["seat"]
    knows = np.full(total, -1, np.int64)  # knowledge of the acting seat
    decisions = np.zeros((total, agents), np.int32)
    for low, high in levels[1:]:
        up = parent[low:high]
        decisions[low:high] = decisions[up]
        decisions[np.arange(low, high), seat[up]] += 1
    first = 0
    for player in range(agents):
        text = node["text"][:, player]
        said = np.where((parent >= 0) & (seat[parent] == player), node["action"], -1)
        event = (text >= 0).any(1) | (said >= 0) | (seat == player) | (parent < 0)
        count, anchor = np.where(event, 1, 0), np.arange(total)  # events so far, and where the last one was
        for low, high in levels[1:]:
            up = parent[low:high]
            count[low:high] += count[up]
            anchor[low:high] = np.where(event[low:high], anchor[low:high], anchor[up])
        known = np.full(total, -1, np.int64)
        for k in range(1, int(count.max()) + 1):
            at = np.flatnonzero(event & (count == k))
            before = prompt[at, player] if k == 1 else known[anchor[parent[at]]][:, None]
            columns = [before, said[at, None], seat[at, None] == player, text[at]]
            known[at] = first + _number(np.concatenate(columns, 1))
            first = known[at].max() + 1
        knows = np.where(seat == player, known, knows)
    live = np.flatnonzero(seat >= 0)
    earlier = decisions[live, seat[live]].astype(np.int64)
    ids, index, inverse = np.unique(earlier * first + knows[live], return_index=True, return_inverse=True)
    information = np.full(total, -1, np.int32)
    information[live] = inverse
    example = live[index]
    for name in ("legal", "grammar"):
        if (node[name][live] != node[name][example][inverse]).any():
            raise ValueError(f"A seat has another {name} in situations that it was told alike: this would be a hint.")
    sequence = np.zeros((total, agents), np.int32) + len(ids) * options + np.arange(agents, dtype=np.int32)[None]
    for low, high in levels[1:]:
        up = parent[low:high]
        sequence[low:high] = sequence[up]
        sequence[np.arange(low, high), seat[up]] = information[up] * options + node["action"][low:high]
    stage = ids // first
    bounds = np.searchsorted(stage, np.arange(stage.max(initial=-1) + 2)).tolist()
    over = seat < 0
    form = Form(
        legal=node["legal"][example],
        owner=seat[example],
        above=sequence[example, seat[example]],
        chance=chance[node["deal"][over]],
        payoff=node["payoff"][over],
        sequence=sequence[over],
    )
    kept = ("parent", "action", "seat", "deal", "grammar", "payoff")
    stages = tuple(pairwise(bounds))
    fields = {name: node[name] for name in kept} | {"information": information, "example": example, "form": form}
    return Tree(environment=environment, start=start, levels=levels, stages=stages, **fields)


def text_of(tree: Tree, information: int) -> str:
    """The text that the owner of an information set has read, a line for each turn, and its own answers after "> ".
    All histories of an information set give the same text."""
    game, seat = tree.environment, tree.owner[information]
    (deal,), (moves,), (turns,) = tree.histories(tree.example[[information]])
    state, view = jax.tree.map(lambda leaf: leaf[deal], tree.start)
    text = lambda fields, row: "".join(field[i] for field, i in zip(fields, row.tolist(), strict=True) if i >= 0)
    lines = [
        text(game.rules, np.asarray(game.prompt(state))[seat]),
        text(game.observation, np.asarray(view.phrases)[seat]),
    ]
    for move in moves[:turns]:
        mover = int(np.argmax(view.acting))
        if mover == seat:
            lines.append("> " + options_of(game.grammars[int(view.grammar[seat])])[int(move)])
        actions = jnp.zeros(game.agents, jnp.int32).at[mover].set(move)
        state, view, _ = game.step(state, actions, jax.random.key(0))
        lines.append(text(game.observation, np.asarray(view.phrases)[seat]))
    return "\n".join(line for line in lines if line)


def uniform(tree: Tree) -> np.ndarray:
    """The policy that plays every legal action equally often, [I, N]."""
    return tree.legal / tree.legal.sum(1, keepdims=True)


def expected_value(tree: Tree, policy: np.ndarray) -> np.ndarray:
    """Mean payoff of every seat if all play `policy`, float64 [A]."""
    return _run(tree, policy, best=False)[0]


def best_response_value(tree: Tree, policy: np.ndarray) -> np.ndarray:
    """Payoff of every seat's best response to the others' `policy`, float64 [A]."""
    return _run(tree, policy, best=True)[0]


def best_response(tree: Tree, policy: np.ndarray) -> np.ndarray:
    """A pure best response of every seat to the others' `policy`, [I, N]."""
    q = np.where(tree.legal, _run(tree, policy, best=True)[1], -np.inf)
    return np.eye(q.shape[1])[q.argmax(1)]


def nash_conv(tree: Tree, policy: np.ndarray) -> float:
    """Sum of the seats' gains from deviating alone: 0 in a Nash equilibrium (Lanctot et al. 2017,
    https://arxiv.org/abs/1711.00832)."""
    return float((best_response_value(tree, policy) - expected_value(tree, policy)).sum())


def exploitability(tree: Tree, policy: np.ndarray) -> float:
    """NashConv per seat: in a two-seat zero-sum game the mean payoff of a best responder over both seats."""
    return nash_conv(tree, policy) / tree.form.payoff.shape[1]


def action_values(tree: Tree, policy: np.ndarray) -> np.ndarray:
    """Expected payoff of the seat that decides, for each of its actions, if all play `policy` after it, float64 [I, N].

    Q(i, a) = E[u | i, a]: histories of the information set count by the probability that chance and the others lead
    there. NaN for illegal actions, and where the others never lead.
    """
    ones = dataclasses.replace(tree, form=tree.form._replace(payoff=np.ones_like(tree.form.payoff)))
    worth, reach = (_run(game, policy, best=False)[1] for game in (tree, ones))
    known = tree.legal & (reach > 0)
    return np.where(known, worth / np.where(known, reach, 1), np.nan)


def checked_policy(tree: Tree, policy: Any, tolerance: float = 1e-6) -> np.ndarray:
    """The policy in float64, [I, N]. Raises ValueError for another shape, and unless it holds probabilities of legal
    actions that sum to 1, give or take the tolerance."""
    policy = np.asarray(policy, np.float64)
    if policy.shape != tree.legal.shape:
        raise ValueError(f"A policy of this game has the shape {tree.legal.shape}, got {policy.shape}.")
    sums = policy.sum(1)
    if not (np.abs(sums - 1) < tolerance).all() or (policy < 0).any() or (policy[~tree.legal] > 0).any():
        raise ValueError("A policy holds probabilities of legal actions, which sum to 1 in every information set.")
    return policy


def _run(tree: Tree, policy: np.ndarray, best: bool) -> tuple[np.ndarray, np.ndarray]:
    policy = checked_policy(tree, policy)
    with jax.enable_x64(True):
        return jax.device_get(_values(tree.form, policy, tree.stages, best))


def _reach(form: Form, policy: jax.Array, stages: tuple) -> jax.Array:
    """Probability [I * N + A] that a seat alone would play along each of its sequences."""
    sets, options = form.legal.shape
    reach = jnp.ones(sets * options + form.payoff.shape[1])
    for low, high in stages:
        along = reach[form.above[low:high]][:, None] * policy[low:high]
        reach = reach.at[low * options : high * options].set(along.ravel())
    return reach


@partial(jax.jit, static_argnames=("stages", "best"))
def _values(form: Form, policy: jax.Array, stages: tuple, best: bool) -> tuple[jax.Array, jax.Array]:
    """Value of the game to every seat [A], and counterfactual values of actions [I, N].

    q(i, a) = sum_z p(z) u(z) + values of the owner's next information sets. The ends z follow i and a before any other
    decision of the owner. p is the probability that chance and the others contribute. A set's value is
    sum_a policy(i, a) q(i, a) or, for a best response, max_a q(i, a).
    """
    (sets, options), agents = form.legal.shape, form.payoff.shape[1]
    reach = _reach(form, policy, stages)[form.sequence]  # [Z, A]
    others = [jnp.prod(jnp.delete(reach, seat, 1, assume_unique_indices=True), 1) for seat in range(agents)]
    worth = jnp.stack(others, 1) * form.chance[:, None] * form.payoff
    gain = jnp.zeros(sets * options + agents).at[form.sequence].add(worth)
    for low, high in reversed(stages):
        q = gain[low * options : high * options].reshape(-1, options)
        value = jnp.where(form.legal[low:high], q, -jnp.inf).max(1) if best else (policy[low:high] * q).sum(1)
        gain = gain.at[form.above[low:high]].add(value)
    return gain[sets * options :], gain[: sets * options].reshape(sets, options)


def cfr(tree: Tree, iterations: int, plus: bool = False) -> np.ndarray:
    """Average policy [I, N] of counterfactual regret minimisation (Zinkevich et al. 2007), seats updated in turn.

    With `plus`, CFR+ (Tammelin 2014, https://arxiv.org/abs/1407.5042): regrets stay at 0 or above, and iteration t
    counts t times in the average.
    """
    with jax.enable_x64(True):
        total = np.asarray(_cfr(tree.form, iterations, tree.stages, plus))
    reached = total.sum(1, keepdims=True)
    return np.where(reached > 0, total / np.where(reached > 0, reached, 1), uniform(tree))


@partial(jax.jit, static_argnames=("stages", "plus"))
def _cfr(form: Form, iterations: jax.Array, stages: tuple, plus: bool) -> jax.Array:
    form = jax.tree.map(jnp.asarray, form)

    def match_regret(regret):
        gain = jnp.where(form.legal, jnp.maximum(regret, 0), 0)
        rest = form.legal / form.legal.sum(1, keepdims=True)
        gains = gain.sum(1, keepdims=True)
        return jnp.where(gains > 0, gain / jnp.where(gains > 0, gains, 1), rest)

    def iterate(t, carry):
        regret, total = carry
        for seat in range(form.payoff.shape[1]):
            policy, mine = match_regret(regret), (form.owner == seat)[:, None]
            _, q = _values(form, policy, stages, best=False)
            regret = regret + jnp.where(mine, q - (policy * q).sum(1, keepdims=True), 0)
            regret = jnp.maximum(regret, 0) if plus else regret
            before = _reach(form, policy, stages)[form.above][:, None]
            total = total + jnp.where(mine, before * policy * (t + 1 if plus else 1), 0)
        return regret, total

    zeros = jnp.zeros(form.legal.shape)
    return jax.lax.fori_loop(0, iterations, iterate, (zeros, zeros))[1]


def minimax(tree: Tree) -> np.ndarray:
    """Perfect play by backward induction, uniform over the best actions of the seat that moves, [I, N].

    Raises ValueError for a game of hidden information: its best actions depend on facts that the seat cannot see.
    """
    if (tree.seat >= 0).sum() != len(tree.owner):
        raise ValueError("Seats cannot tell all histories of this game apart: minimax needs perfect information.")
    value, policy = tree.payoff.copy(), np.zeros(tree.legal.shape)
    for low, high in reversed(tree.levels[1:]):
        up = tree.parent[low:high]
        head = np.flatnonzero(np.diff(up, prepend=-1))  # siblings stand side by side
        mover_value = value[np.arange(low, high), tree.seat[up]]
        top = np.maximum.reduceat(mover_value, head)[np.cumsum(np.diff(up, prepend=-1) > 0) - 1]
        best = mover_value >= top - 1e-9
        policy[tree.information[up], tree.action[low:high]] = best
        share = np.add.reduceat(best.astype(float), head)[:, None]
        value[up[head]] = np.add.reduceat(value[low:high] * best[:, None], head) / share
    return policy / policy.sum(1, keepdims=True)
