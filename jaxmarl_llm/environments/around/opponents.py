"""Scripted players with a hidden character: drawn with the deal, arranged by training, or learning during the game.

`WithOpponent(game, opponent)` is the game with one more scripted player, `opponent.name`, for the line-ups. The
opponent's parameters, its *memory*, stand in the game's state. `begin` draws the memory, the same one for all games of
a group; `act` chooses a move; `learn` updates the memory after every turn. No text describes the opponent: the learner
must infer it from its moves.

`memory_one`, `one_of` and `q_learner` play the repeated 2x2 games of `matrix_games`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.social.matrix_games import COOPERATE, DEFECT, State
from jaxmarl_llm.keys import OPPONENT, key_for
from jaxmarl_llm.tabular.q_learning import q_learning

Memory = Any  # a tree of arrays


def keep_memory(memory: Memory, *turn: Any) -> Memory:
    """An opponent that does not learn."""
    return memory


class Opponent(NamedTuple):
    """A scripted player: `begin` draws its memory, `act` chooses its move, `learn` updates the memory after a turn.

    Each function is for one seat and runs under vmap; `state` is the inner game's.
    """

    name: str
    begin: Callable[[jax.Array], Memory]  # (key) -> memory
    act: Callable[..., jax.Array]  # (memory, state, seat, key) -> action int32
    learn: Callable[..., Memory] = keep_memory  # (memory, state, seat, action [A], reward [A, C], next state) -> memory


class Met(struct.PyTreeNode):
    game: Any
    memory: Memory  # leaves [A, ...]: the memory of the opponent in each seat


@dataclass(frozen=True)
class WithOpponent(Around):
    """The game with one more scripted player.

    The deal that training arranges (`Recipe.arrange`) is the memory of every seat's opponent, in place of a drawn one.
    Raises ValueError if a script of the game has the opponent's name.
    """

    opponent: Opponent

    def __post_init__(self):
        super().__post_init__()
        if self.opponent.name in self.game.scripts:
            raise ValueError(f"The game has a script {self.opponent.name!r} already: give the opponent another name.")

    @property
    def scripts(self) -> Mapping[str, Callable]:
        def act(state: Met, seat: jax.Array, key: jax.Array) -> jax.Array:
            return self.opponent.act(jax.tree.map(lambda x: x[seat], state.memory), state.game, seat, key)

        return {**super().scripts, self.opponent.name: act}

    def inside(self, state: Met) -> Any:
        return state.game

    def reset(self, key: jax.Array, group: jax.Array, memory: Memory = None) -> tuple[Met, View]:
        game, view = self.game.reset(key, group)
        seats = jnp.arange(self.agents)
        drawn = jax.vmap(lambda seat: self.opponent.begin(key_for(key, OPPONENT, seat)))(seats)
        if memory is not None:
            drawn = jax.tree.map(lambda x, given: jnp.broadcast_to(given, x.shape).astype(x.dtype), drawn, memory)
        return Met(game, drawn), view

    def step(self, state: Met, action: jax.Array, key: jax.Array) -> tuple[Met, View, jax.Array]:
        game, view, reward = self.game.step(state.game, action, key)

        def learn(memory: Memory, seat: jax.Array) -> Memory:
            return self.opponent.learn(memory, state.game, seat, action, reward, game)

        return Met(game, jax.vmap(learn)(state.memory, jnp.arange(self.agents))), view, reward


# opponents of the repeated 2x2 games

# probabilities of cooperation in each `situation`: at first, then after CC, CD, DC and DD, its own move first
MEMORY_ONE: dict[str, tuple[float, ...]] = {
    "always_cooperate": (1, 1, 1, 1, 1),
    "always_defect": (0, 0, 0, 0, 0),
    "tit_for_tat": (1, 1, 0, 1, 0),
    "grim": (1, 1, 0, 0, 0),
    "win_stay_lose_shift": (1, 1, 0, 0, 1),
    "random": (0.5, 0.5, 0.5, 0.5, 0.5),
}


def situation(state: State, seat: jax.Array) -> jax.Array:
    """The situation of a player with a memory of one round, int32: 0 before any round, then 1 to 4. These stand for CC,
    CD, DC and DD, its own move first."""
    last = state.moves[jnp.maximum(state.round - 1, 0)]
    return jnp.where(state.round == 0, 0, 1 + 2 * last[seat] + last[1 - seat])


CASES = (
    "At first",
    "After both cooperated",
    "After you alone defected",
    "After they alone defected",
    "After both defected",
)
LEVELS = 10
CHARACTER: Fields = tuple(
    tuple(f" {case} they cooperate {level} times in {LEVELS}." for level in range(LEVELS + 1)) for case in CASES
)
"""The announcement of a player with five probabilities (`announced.Announced`): a field for each situation of the
player."""


def character(chances: jax.Array) -> jax.Array:
    """The phrases of `CHARACTER` for probabilities [..., 5], each rounded to a tenth: int32 [..., 5]."""
    return jnp.round(LEVELS * chances).astype(jnp.int32)


def memory_one(low: float = 0.0, high: float = 1.0, name: str = "memory_one") -> Opponent:
    """A player that cooperates with five probabilities, one for each `situation`, drawn uniformly from [low, high].

    Raises ValueError unless 0 <= low <= high <= 1. Press & Dyson (2012), https://arxiv.org/abs/1206.4050, solve the
    repeated game of two such players.
    """
    if not 0 <= low <= high <= 1:
        raise ValueError(f"Probabilities are drawn from within [0, 1], got [{low}, {high}].")
    return Opponent(name, lambda key: jax.random.uniform(key, (5,), minval=low, maxval=high), by_chances)


def one_of(
    players: Mapping[str, tuple[float, ...]] = MEMORY_ONE, weights: Mapping[str, float] = {}, name: str = "one_of"
) -> Opponent:
    """A player drawn from `players`, each with a memory of one round, in proportion to its weight, 1 by default.

    Raises ValueError for a player without five probabilities, a weight without a player, or weights that are negative,
    not finite or all 0.
    """
    chances = np.array(list(players.values()), np.float32)
    if chances.ndim != 2 or chances.shape[1] != 5 or not ((chances >= 0) & (chances <= 1)).all():
        raise ValueError(f"A player with a memory of one round has five probabilities, got {dict(players)}.")
    share = np.array([weights.get(player, 1.0) for player in players])
    if set(weights) - set(players) or not (np.isfinite(share) & (share >= 0)).all() or not share.sum():
        raise ValueError(f"Weights are of {', '.join(players)}, at least 0 and not all 0: got {dict(weights)}.")

    def begin(key: jax.Array) -> jax.Array:
        return jnp.asarray(chances)[jax.random.choice(key, len(chances), p=jnp.asarray(share / share.sum()))]

    return Opponent(name, begin, by_chances)


def by_chances(chances: jax.Array, state: State, seat: jax.Array, key: jax.Array) -> jax.Array:
    """The move of a player that cooperates with `chances` float32 [5], one for each `situation`."""
    cooperates = jax.random.uniform(key) < chances[situation(state, seat)]
    return jnp.where(state.talking | cooperates, COOPERATE, DEFECT)


def q_learner(
    rate: float = 0.3, discount: float = 0.9, explores: float = 0.1, name: str = "q_learner", scale: float = 0.0
) -> Opponent:
    """A player that learns within the game, by tabular Q-learning on its `situation` and move: q[s, a] += rate (r +
    discount max q[s', .] - q[s, a]). It plays the move with the larger value, the first of equal ones, and a random
    move with probability `explores`. Its table begins with standard normal numbers times `scale`.

    Raises ValueError for a rate, discount or `explores` outside [0, 1]. Watkins & Dayan (1992),
    https://doi.org/10.1007/BF00992698.
    """
    if min(rate, discount, explores) < 0 or max(rate, discount, explores) > 1:
        raise ValueError(f"rate, discount and explores lie within [0, 1], got {rate}, {discount} and {explores}.")

    def act(table: jax.Array, state: State, seat: jax.Array, key: jax.Array) -> jax.Array:
        dice, choose = jax.random.split(key)
        best = table[situation(state, seat)].argmax().astype(jnp.int32)
        move = jnp.where(jax.random.uniform(dice) < explores, jax.random.randint(choose, (), 0, 2), best)
        return jnp.where(state.talking, 0, move)

    def learn(table: jax.Array, state: State, seat: Any, action: Any, reward: jax.Array, after: State) -> jax.Array:
        turn = situation(state, seat), action[seat], reward[seat].sum(), situation(after, seat)
        learnt = q_learning(table, *(x[None] for x in turn), rate=rate, discount=discount)
        return jnp.where(state.talking, table, learnt)

    return Opponent(name, lambda key: scale * jax.random.normal(key, (5, 2)), act, learn)
