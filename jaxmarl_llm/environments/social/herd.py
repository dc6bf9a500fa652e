"""Sequential social learning with a planner, who buys each follower a private hint of some precision."""

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
    """What the planner is paid for a follower: numbers, which may be traced."""

    right: Any = 1.0  # who opens the prize's door
    wanted: Any = 0.0  # who opens red


ALTRUISTIC, BIASED = Aim(), Aim(0.0, 1.0)


class State(struct.PyTreeNode):
    turn: jax.Array  # int32: even ones are the planner's
    prize: jax.Array  # int32, the door
    luck: jax.Array  # int32 [n]: the least level at which a follower's hint is true, `levels` if none
    level: jax.Array  # int32 [n], bought, 0 where not yet
    opened: jax.Array  # int32 [n], 0 where not yet
    aim: Aim  # float32
    arranged: jax.Array  # bool: training has arranged the aim, and no seat is told it


def chance(evidence: Any) -> Any:
    """The probability of red at odds of 2^evidence, or that a hint of this evidence is true."""
    return 2.0**evidence / (1 + 2.0**evidence)


def decide(belief: jax.Array, evidence: jax.Array, hint: jax.Array) -> jax.Array:
    """The door that a Bayesian opens, int32, of a belief and a hint (a door) in powers of two; torn, its hint's."""
    posterior = belief + jnp.where(hint == 0, evidence, -evidence)
    return jnp.where(posterior > 0, 0, jnp.where(posterior < 0, 1, hint)).astype(jnp.int32)


def next_belief(belief: jax.Array, evidence: jax.Array, opened: jax.Array) -> jax.Array:
    """What all believe after a Bayesian opened a door: its hint is known if |belief| <= evidence, else nothing is.

    In a cascade, |belief| > evidence, it opens the same door with either hint; a belief is kept then, also if the other
    door is opened, which a Bayesian would not do.
    """
    return belief + jnp.where(jnp.abs(belief) <= evidence, jnp.where(opened == 0, evidence, -evidence), 0)


@dataclass(frozen=True)
class Herd:
    """One of two doors, red with odds of 2^prior, holds a prize; `followers` open a door each, one after another.

    Before follower k the planner, seat 0, buys it a hint of one of the levels: it names the prize's door with odds of
    2^evidence to 1, independently of other hints, and costs the planner its level's cost. The follower, seat k, knows
    all levels bought and doors opened so far, and its own hint; it gets 1 point for the prize's door. The planner, who
    knows neither prize nor hints, gets `aim.right` for each follower that opens the prize's door and `aim.wanted` for
    each that opens red. All evidence being in powers of two, a Bayesian's belief is a whole number (`next_belief`).

    The deal that training arranges is an `Aim`, in place of the game's own: numbers that may be traced, told to nobody.
    After Arghal et al., Steering the Herd (2025), https://arxiv.org/abs/2504.02648, whose precision is continuous.
    Raises ValueError for no followers, fewer than two levels, evidence that does not rise from 0 or more in whole
    numbers, levels without a cost or a name, or costs and aims that are negative or not finite.
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
        """One field: a phrase for the planner, one for a planner whose aim is arranged, one for each follower."""
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
        own = " You get 1 point if you open the prize's door. Answer with red or blue."
        return ((*planner, *(f"You are follower {k} of {n}.{text}{own}" for k in range(1, n + 1))),)

    @property
    def observation(self) -> Fields:
        """What each follower was given and did; one's own hint; the question, or at the end where the prize was."""
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
        """`bayesian` followers open the likelier door, by all that is known if predecessors are Bayesian too;
        `own_hint` opens the door of its hint. As planners they buy the best and the least of hints. `always_LEVEL` is a
        planner that buys this level, and as a follower Bayesian."""

        def player(level: int, follow: Any) -> Script:
            return lambda state, seat, key: jnp.where(seat == 0, level, follow(state)).astype(jnp.int32)

        best = len(self.levels) - 1
        constant = {f"always_{name}": player(level, self._bayesian) for level, name in enumerate(self.levels)}
        own = {"bayesian": player(best, self._bayesian), "own_hint": player(0, self._hint)}
        return {"random": random_player(self.view), **own, **constant}

    def initial_states(self) -> tuple[State, np.ndarray]:
        """All prizes and luck, of the game's own aim, and their probabilities float64."""
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
        own = jnp.where(seats == 0, state.aim.right, seats == 1 + k) * right
        wanted = jnp.where((seats == 0) & (door == 0) & ~buys, state.aim.wanted, 0)
        cost = jnp.where((seats == 0) & buys, -jnp.asarray(self.cost, jnp.float32)[level[k]], 0)
        state = state.replace(turn=state.turn + 1, level=level, opened=state.opened.at[k].set(door))
        return state, self.view(state), jnp.stack([own, wanted, cost], 1).astype(jnp.float32)

    def beliefs(self, level: jax.Array, opened: jax.Array) -> jax.Array:
        """What all believe before each follower and after the last, int32 [..., n + 1], of what was bought and opened,
        int32 [..., n] each: red with odds of 2^belief, if all followers are Bayesian."""
        belief, evidence = jnp.full(level.shape[:-1], self.prior, jnp.int32), jnp.asarray(self.evidence)[level]
        found = [belief]
        for k in range(self.followers):
            found.append(next_belief(found[-1], evidence[..., k], opened[..., k]))
        return jnp.stack(found, -1)

    def view(self, state: State) -> View:
        n, k, ended = self.followers, state.turn // 2, state.turn >= self.turns
        seats, buys = jnp.arange(self.agents)[:, None], state.turn % 2 == 0
        who = jnp.where(buys, 0, 1 + k)
        number = jnp.arange(n)[None]
        last = (seats == 0) & (number == k - 1)  # the planner is told of the last follower, a follower of all before
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
        """The probability of each door, and of each luck."""
        true = [0.0, *(chance(e) for e in self.evidence), 1.0]
        return np.array([chance(self.prior), 1 - chance(self.prior)]), np.diff(true)

    def _hint(self, state: State) -> jax.Array:
        """The door that the hint of the follower whose turn it is names, int32."""
        k = jnp.minimum(state.turn // 2, self.followers - 1)
        return jnp.where(state.luck[k] <= state.level[k], state.prize, 1 - state.prize)

    def _bayesian(self, state: State) -> jax.Array:
        k = jnp.minimum(state.turn // 2, self.followers - 1)
        belief = self.beliefs(state.level, state.opened)[k]
        return decide(belief, jnp.asarray(self.evidence)[state.level[k]], self._hint(state))


GAMES = {"herd": Herd, "herd_biased": partial(Herd, aim=BIASED)}
