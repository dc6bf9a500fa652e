"""A bandit for one seat: arms with unknown chances to pay, the same ones in all pulls or fresh ones in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, make_view, random_player
from jaxmarl_llm.text.grammar import Grammar

LETTERS = "ABCDEFGH"
START, NOTHING, POINT = range(3)


class BanditState(struct.PyTreeNode):
    chances: jax.Array  # float32 [arms], of this bandit; not used if every pull has a fresh one
    pulled: jax.Array  # int32, pulls so far
    last: jax.Array  # int32, arm of the last pull
    told: jax.Array  # int32: START, NOTHING or POINT


@dataclass(frozen=True)
class Bandit:
    """One seat pulls one of `arms` arms in each of `pulls` turns, and is told what that paid.

    Component `points`: 1 with the arm's chance, else 0. Chances are independent, uniform between 0 and 1 or, if there
    are any, over `chances`, and drawn with the deal. With `fresh` they are drawn anew before each pull, so that no pull
    tells anything of a later one. The rules say the latter, and nothing of `chances`. Without `told` the seat never
    hears what a pull paid. If `known` is above 0, it is the chance of the first arm in every bandit, and the rules tell
    it.
    Raises ValueError for pulls < 1, fewer than two or more than eight arms, and chances outside [0, 1].
    """

    arms: int = 3
    pulls: int = 12
    fresh: bool = False
    chances: tuple[float, ...] = ()
    told: bool = True
    known: float = 0.0

    agents = 1
    roles = ("gambler",)
    components = ("points",)

    def __post_init__(self):
        at_least(1, pulls=self.pulls)
        at_least(2, arms=self.arms)
        if self.arms > len(LETTERS):
            raise ValueError(f"A bandit has at most {len(LETTERS)} arms, got {self.arms}.")
        if not all(0 <= chance <= 1 for chance in (self.known, *self.chances)):
            raise ValueError(f"Chances lie between 0 and 1, got {self.chances} and known={self.known}.")

    @property
    def turns(self) -> int:
        return self.pulls

    @property
    def actions(self) -> int:
        return self.arms

    @property
    def rules(self) -> Fields:
        drawn = "drawn anew before each pull" if self.fresh else "the same in all pulls"
        first = f"Arm A pays 1 point with a chance of {self.known}. Another" if self.known else "An"
        return (
            (
                f"There are {self.arms} arms, {', '.join(LETTERS[: self.arms])}, and {self.pulls} pulls. {first} arm "
                f"pays 1 point with a chance that you do not know, {drawn}.",
            ),
        )

    @property
    def observation(self) -> Fields:
        return ("", "It paid nothing. ", "It paid 1 point. "), ("Which arm?",)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(LETTERS[: self.arms]),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`persistent` pulls the arm that paid last again, and after nothing the next one."""

        def persistent(state: BanditState, seat: jax.Array, key: jax.Array) -> jax.Array:
            return (state.last + (state.told == NOTHING)) % self.arms

        return {"random": random_player(self.view), "persistent": persistent}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[BanditState, View]:
        state = BanditState(self._draw(key), jnp.int32(0), jnp.int32(0), jnp.int32(START))
        return state, self.view(state)

    def prompt(self, state: BanditState) -> jax.Array:
        return jnp.zeros((1, 1), jnp.int32)

    def step(self, state: BanditState, action: jax.Array, key: jax.Array) -> tuple[BanditState, View, jax.Array]:
        drawn, luck = jax.random.split(key)
        chances = self._draw(drawn) if self.fresh else state.chances
        arm = jnp.clip(action[0], 0, self.arms - 1)
        paid = jax.random.uniform(luck, (self.arms,))[arm] < chances[arm]
        after = BanditState(state.chances, state.pulled + 1, arm, jnp.where(paid, POINT, NOTHING).astype(jnp.int32))
        return after, self.view(after), paid.astype(jnp.float32).reshape(1, 1)

    def _draw(self, key: jax.Array) -> jax.Array:
        """A chance for each arm, float32 [arms]."""
        if self.chances:
            drawn = jax.random.choice(key, jnp.array(self.chances, jnp.float32), (self.arms,))
        else:
            drawn = jax.random.uniform(key, (self.arms,))
        return drawn.at[0].set(self.known) if self.known else drawn

    def view(self, state: BanditState) -> View:
        result = state.told if self.told else jnp.int32(START)
        return make_view(self, [result, jnp.int32(0)], True, state.pulled >= self.pulls)


GAMES = {"bandit": Bandit}
