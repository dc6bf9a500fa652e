"""Sequential social learning with a planner that buys each follower a private hint of some precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, make_view, not_negative, random_player
from jaxmarl_llm.text.grammar import Grammar

DOORS = ("red", "blue")


class Aim(NamedTuple):
    """The planner's rewards for a follower: numbers, which may be traced."""

    right: Any = 1.0  # for a follower that opens the prize's door
    wanted: Any = 0.0  # for a follower that opens red


ALTRUISTIC, BIASED = Aim(), Aim(0.0, 1.0)


class State(struct.PyTreeNode):
    turn: jax.Array  # int32: even ones are the planner's
    prize: jax.Array  # int32, the door
    luck: jax.Array  # int32 [n]: the lowest level at which a follower's hint is true; the number of levels if none
    level: jax.Array  # int32 [n], the levels bought, 0 before that
    opened: jax.Array  # int32 [n], the doors opened, 0 before that
    aim: Aim  # float32
    arranged: jax.Array  # bool: training has arranged the aim, and no seat is told it


def chance(evidence: Any) -> Any:
    """The probability of red at odds of 2^evidence, or the probability that a hint of this evidence is true."""
    return 2.0**evidence / (1 + 2.0**evidence)


def decide(belief: jax.Array, evidence: jax.Array, hint: jax.Array) -> jax.Array:
    """The door that a Bayesian opens, int32. `belief` is log2 of the odds of red; `hint` is a door, the prize's at odds
    of 2^`evidence` to 1. At even posterior odds the Bayesian opens the hinted door."""
    posterior = belief + jnp.where(hint == 0, evidence, -evidence)
    return jnp.where(posterior > 0, 0, jnp.where(posterior < 0, 1, hint)).astype(jnp.int32)


def next_belief(belief: jax.Array, evidence: jax.Array, opened: jax.Array) -> jax.Array:
    """The public belief after a Bayesian opened a door: its hint is known if |belief| <= evidence, else it is not.

    In a cascade, |belief| > evidence, a Bayesian opens the same door with either hint. The belief then stays, also if
    the other door is opened, which a Bayesian would not do.
    """
    return belief + jnp.where(jnp.abs(belief) <= evidence, jnp.where(opened == 0, evidence, -evidence), 0)


@dataclass(frozen=True)
class Herd:
    """One of two doors, red with odds of 2^prior, holds a prize; `followers` open a door each, one after another.

    Seat 0 is the planner, seat k follower k. Before follower k acts, the planner buys it a hint of some level. The hint
    names the prize's door with odds of 2^evidence to 1, independently of other hints. The follower knows all earlier
    levels and doors, and its own level and hint. The planner knows neither prize nor hints. All evidence is in powers
    of two, so a Bayesian's belief is a whole number (`next_belief`).

    Components:

    - `right`: 1 to a follower that opens the prize's door, and `aim.right` to the planner for it.
    - `wanted`: `aim.wanted` to the planner for each follower that opens red.
    - `cost`: minus the level's cost to the planner.

    Training can arrange an `Aim` as a deal, in place of the game's own. It may be traced, and no seat is told it. After
    Arghal et al., Steering the Herd (2025), https://arxiv.org/abs/2504.02648, whose precision is continuous.
    Raises ValueError for no followers, fewer than two levels, or evidence that is negative or does not rise in whole
    numbers. Raises it also for levels without a cost or a name, and for costs or aims that are negative or not finite.
    """

    followers: int = 6
    evidence: tuple[int, ...] = (0, 1, 2)
    cost: tuple[float, ...] = (0.0, 0.05, 0.15)
    levels: tuple[str, ...] = ("useless", "weak", "strong")
    prior: int = 0
    aim: Aim = ALTRUISTIC

    roles = ("planner", "follower")
    components = ("right", "wanted", "cost")
    alternating = True

    def __post_init__(self):
        at_least(1, followers=self.followers)
        at_least(0, **{"the first evidence": min(self.evidence, default=0)})
        if len(self.evidence) < 2 or any(more <= less for less, more in pairwise(self.evidence)):
            raise ValueError(f"evidence must rise over two levels or more, got {self.evidence}.")
        if not len(self.cost) == len({*self.levels}) == len(self.evidence):
            raise ValueError(f"Each of {len(self.evidence)} levels needs a cost and a name of its own, got {self.cost} "
                             f"and {self.levels}.")  # fmt: skip
        not_negative(**{f"the cost of {name}": x for name, x in zip(self.levels, self.cost, strict=True)})
        not_negative(**self.aim._asdict())

    @property
    def agents(self) -> int:
        return 1 + self.followers

    @property
    def turns(self) -> int:
        return 2 * self.followers

    @property
    def seat_turns(self) -> int:
        return self.followers + 1  # the planner buys, and is told the end

    @property
    def actions(self) -> int:
        return max(len(self.evidence), len(DOORS))

    @property
    def rules(self) -> Fields:
        """One field: a phrase for the planner, another for a planner whose aim is arranged, and a phrase for each
        follower."""
        n = self.followers
        hints = "; ".join(
            f"a {name} hint names the right door with probability {chance(e):.3g} and costs the planner {cost:g} points"
            for name, e, cost in zip(self.levels, self.evidence, self.cost, strict=True)
        )
        text = (
            f" One of two doors holds a prize: red with probability {chance(self.prior):.3g}, else blue. "
            f"{n} follower{'s' * (n > 1)} open a door each, one after another. Before each, the planner chooses how "
            "good a hint it gets, which names a door. The follower alone is told the hint; all are told which kind of "
            f"hint it was and which door it opened. Hints are independent: {hints}."
        )
        points = "Your points are {} for each follower that opens the prize's door and {} for each that opens red"
        aims = [(f"{self.aim.right:g}", f"{self.aim.wanted:g}"), ("a number", "a number")]
        end = f", less what the hints cost. Answer with {', '.join(self.levels[:-1])} or {self.levels[-1]}."
        planner = [f"You are the planner.{text} {points.format(*aim)}{end}" for aim in aims]
        reward = " You get 1 point if you open the prize's door. Answer with red or blue."
        return ((*planner, *(f"You are follower {k} of {n}.{text}{reward}" for k in range(1, n + 1))),)

    @property
    def observation(self) -> Fields:
        """Each follower's level and door; the seat's own hint; the question, or after the end the prize's door."""
        cases = [*product(self.levels, DOORS)]
        numbers = range(1, self.followers + 1)
        return (
            *(tuple(f"Follower {k} got a {kind} hint and opened {door}. " for kind, door in cases) for k in numbers),
            tuple(f"Your {kind} hint names {door}. " for kind, door in cases),
            (
                *(f"Which hint does follower {k} get?" for k in numbers),
                "Which door do you open?",
                *(f"The prize was behind {door}." for door in DOORS),
            ),
        )

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice(self.levels), choice(DOORS)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`bayesian` followers open the likelier door, given that their predecessors are Bayesian too; `own_hint` opens
        the door of its hint. As planners they buy the best and the worst hints. `always_LEVEL` is a planner that buys
        this level, and Bayesian as a follower."""

        def player(level: int, follow: Any) -> Script:
            return lambda state, seat, key: jnp.where(seat == 0, level, follow(state)).astype(jnp.int32)

        best = len(self.levels) - 1
        constant = {f"always_{name}": player(level, self._bayesian) for level, name in enumerate(self.levels)}
        named = {"bayesian": player(best, self._bayesian), "own_hint": player(0, self._hint)}
        return {"random": random_player(self.view), **named, **constant}

    def initial_states(self) -> tuple[State, np.ndarray]:
        """All prizes and luck, with the game's own aim, and their probabilities float64."""
        deals = [*product(range(len(DOORS)), *[range(len(self.levels) + 1)] * self.followers)]
        prior, luck = (np.asarray(x) for x in self._chances())
        probability = [prior[prize] * np.prod(luck[list(lucks)]) for prize, *lucks in deals]
        deal = jnp.array(deals, jnp.int32)
        start = jax.vmap(partial(self._deal, aim=None))(deal[:, 0], deal[:, 1:])
        return start, np.array(probability, np.float64) / np.sum(probability)

    def reset(self, key: jax.Array, group: jax.Array, aim: Aim | None = None) -> tuple[State, View]:
        prize, hints = jax.random.split(key)
        prior, luck = (jnp.log(jnp.asarray(x)) for x in self._chances())
        drawn = jax.random.categorical(hints, luck, shape=(self.followers,))
        state = self._deal(jax.random.categorical(prize, prior), drawn, aim)
        return state, self.view(state)

    def prompt(self, state: State) -> jax.Array:
        planner = jnp.where(state.arranged, 1, 0)[None]
        return jnp.concatenate([planner, 2 + jnp.arange(self.followers)])[:, None].astype(jnp.int32)

    def step(self, state: State, action: jax.Array, key: jax.Array) -> tuple[State, View, jax.Array]:
        k, buys = state.turn // 2, state.turn % 2 == 0
        level = state.level.at[k].set(jnp.where(buys, jnp.clip(action[0], 0, len(self.levels) - 1), state.level[k]))
        door = jnp.where(buys, 0, jnp.clip(action[1 + k], 0, 1))
        right, seats = (door == state.prize) & ~buys, jnp.arange(self.agents)
        success = jnp.where(seats == 0, state.aim.right, seats == 1 + k) * right
        wanted = jnp.where((seats == 0) & (door == 0) & ~buys, state.aim.wanted, 0)
        cost = jnp.where((seats == 0) & buys, -jnp.asarray(self.cost, jnp.float32)[level[k]], 0)
        state = state.replace(turn=state.turn + 1, level=level, opened=state.opened.at[k].set(door))
        return state, self.view(state), jnp.stack([success, wanted, cost], 1).astype(jnp.float32)

    def beliefs(self, level: jax.Array, opened: jax.Array) -> jax.Array:
        """The public belief before each follower and after the last, int32 [..., n + 1]: red with odds of 2^belief, if
        all followers are Bayesian. `level` and `opened`, int32 [..., n] each, are the levels bought and the doors
        opened."""
        belief, evidence = jnp.full(level.shape[:-1], self.prior, jnp.int32), jnp.asarray(self.evidence)[level]
        beliefs = [belief]
        for k in range(self.followers):
            beliefs.append(next_belief(beliefs[-1], evidence[..., k], opened[..., k]))
        return jnp.stack(beliefs, -1)

    def view(self, state: State) -> View:
        n, k, ended = self.followers, state.turn // 2, state.turn >= self.turns
        seats, buys = jnp.arange(self.agents)[:, None], state.turn % 2 == 0
        who = jnp.where(buys, 0, 1 + k)
        number = jnp.arange(n)[None]
        last = (seats == 0) & (number == k - 1)  # the planner is told the last follower's door, a follower all doors
        known = jnp.where(buys, last, (seats == who) & (number < k))
        done = jnp.where(known, (2 * state.level + state.opened)[None], -1)
        now = jnp.minimum(k, n - 1)
        hint = jnp.where(buys, -1, 2 * state.level[now] + self._hint(state))
        ask = jnp.where(ended, n + 1 + state.prize, jnp.where(buys, now, n))
        told = jnp.concatenate([done, *(jnp.broadcast_to(x, (self.agents, 1)) for x in (hint, ask))], 1)
        acting, role = seats[:, 0] == who, (seats[:, 0] > 0).astype(jnp.int32)
        return make_view(self, told, acting, ended, role=role, grammar=role, to=acting | ended)

    def _deal(self, prize: jax.Array, luck: jax.Array, aim: Aim | None) -> State:
        numbers = Aim(*(jnp.asarray(x, jnp.float32) for x in (self.aim if aim is None else aim)))
        nothing, arranged = jnp.zeros(self.followers, jnp.int32), jnp.bool_(aim is not None)
        whole = prize.astype(jnp.int32), luck.astype(jnp.int32)
        return State(jnp.int32(0), *whole, nothing, nothing, numbers, arranged)

    def _chances(self) -> tuple[np.ndarray, np.ndarray]:
        """(probabilities of the doors, probabilities of the values of luck)."""
        true = [0.0, *(chance(e) for e in self.evidence), 1.0]
        return np.array([chance(self.prior), 1 - chance(self.prior)]), np.diff(true)

    def _hint(self, state: State) -> jax.Array:
        """The door that the present follower's hint names, int32."""
        k = jnp.minimum(state.turn // 2, self.followers - 1)
        return jnp.where(state.luck[k] <= state.level[k], state.prize, 1 - state.prize)

    def _bayesian(self, state: State) -> jax.Array:
        k = jnp.minimum(state.turn // 2, self.followers - 1)
        belief = self.beliefs(state.level, state.opened)[k]
        return decide(belief, jnp.asarray(self.evidence)[state.level[k]], self._hint(state))


GAMES = {"herd": Herd, "herd_biased": partial(Herd, aim=BIASED)}
