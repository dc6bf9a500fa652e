"""Players answer a question and a referee scores their answers: one model in both roles judges itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, draw, make_view, random_player
from jaxmarl_llm.environments.tasks import Arithmetic, Tasks
from jaxmarl_llm.rl.rewards import kendall
from jaxmarl_llm.text.grammar import Grammar

SUMS = Arithmetic(5, "+")
LABELLED, RANKED, OPEN = range(3)
PLAYER, REFEREE = 0, 1
UNSCORED = -1  # the action of a score that does not parse


class RefereedState(struct.PyTreeNode):
    kind: jax.Array  # int32
    task: jax.Array  # int32
    answers: jax.Array  # int32 [K], -1 for an answer that does not parse
    scores: jax.Array  # int32 [K], 0 to 2, UNSCORED
    turn: jax.Array  # int32, 0 while players answer


@dataclass(frozen=True)
class Refereed:
    """K players answer a question at once, each alone. Then the referee, the last seat, scores the answers one after
    another from 1 (bad) to 3 (good), all in one context.

    Groups cycle through the `kinds` of data, unless training arranges the kind:

    - LABELLED: no referee; a right answer pays its player 1.
    - RANKED: no players; the deal gives the answers. The referee earns Kendall's tau between its scores and the order
      of the answers by distance to the right one. If a score does not parse, it earns -1. For sums the distance is on
      the circle of the modulus; for other questions every wrong answer has distance 1.
    - OPEN: a player earns (s - 1) / 2 for a score s, 0 for a score that does not parse. The referee earns nothing.

    In an order that is drawn by `split`, every second question belongs to labelled games, from the first on, and the
    others to ranked and open games. So only the referee teaches the right answers of open questions.

    The components `rule`, `judged` and `rank` are the rewards of the three kinds, each paid as soon as it is known.
    Measures: `correct`, 1 to a player for a right answer in any kind of game, and `tau`, the referee's tau, also in
    open games. After URPO (https://arxiv.org/abs/2507.17515). Raises ValueError for fewer than two players or unknown
    kinds.
    """

    tasks: Tasks = SUMS
    players: int = 4
    kinds: tuple[int, ...] = (LABELLED, RANKED, OPEN)
    split: int = 0

    roles = ("player", "referee")
    components = ("rule", "judged", "rank")
    measures = ("correct", "tau")
    accepts_illegal = True

    def __post_init__(self):
        at_least(2, players=self.players)
        if not self.kinds or {*self.kinds} - {LABELLED, RANKED, OPEN}:
            raise ValueError(f"kinds are of {LABELLED} (labelled), {RANKED} (ranked), {OPEN} (open), got {self.kinds}.")

    @property
    def agents(self) -> int:
        return self.players + 1

    @property
    def turns(self) -> int:
        return 1 + self.players

    @property
    def group_period(self) -> int:
        return len(self.kinds)

    @property
    def actions(self) -> int:
        return max(len(self.tasks.answers), 3)

    @property
    def rules(self) -> Fields:
        scores = "from 1 (bad) to 3 (good)"
        return (
            (
                f"Answer the question. A right answer earns 1 point. {self.tasks.ask}",
                f"Answer the question. A referee scores your answer {scores}: 1 earns nothing, 2 half a point, 3 a "
                f"point. {self.tasks.ask}",
                f"You are the referee. Score each answer to the question {scores}. You earn as many points as your "
                "scores agree with the order of the answers by their distance to the right one: 1 if all pairs agree, "
                "-1 if none does or a score is missing. A pair with equal scores or equal distances "
                "counts 0.",
                f"You are the referee. Score each answer to the question {scores}. You earn nothing.",
            ),
        )

    @property
    def observation(self) -> Fields:
        names = [f"{i + 1}" for i in range(self.players)]
        given = tuple(tuple(f" Answer {name} is {answer}." for answer in self.tasks.answers) for name in names)
        return *self.tasks.fields, *given, (" Your answer?", *(f" Score of answer {name}?" for name in names))

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice(self.tasks.answers), choice(("1", "2", "3"))

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` gives the right answer; as referee it scores the right answer 3, and other answers less with their
        distance."""

        def correct(state: RefereedState, seat: jax.Array, key: jax.Array) -> jax.Array:
            score = jnp.clip(2 - self._distance(state)[state.turn - 1], 0, 2)
            return jnp.where(seat == self.players, score, self._truth(state)).astype(jnp.int32)

        return {"random": random_player(self._view), "correct": correct}

    def reset(self, key: jax.Array, group: jax.Array, kind: Any = None) -> tuple[RefereedState, View]:
        if kind is None:
            kind = jnp.array(self.kinds, jnp.int32)[group % len(self.kinds)]
        a, b = jax.random.split(key)
        half = (self.tasks.size + 1) // 2
        place = jnp.where(kind == LABELLED, 2 * draw(a, half), 2 * draw(a, self.tasks.size - half) + 1)
        order = np.random.default_rng(self.split).permutation(self.tasks.size)
        number = jnp.asarray(order, jnp.int32)[place]
        given = jax.random.randint(b, (self.players,), 0, len(self.tasks.answers), jnp.int32)
        nothing = jnp.zeros((self.players,), jnp.int32)
        answers, turn = jnp.where(kind == RANKED, given, nothing), jnp.where(kind == RANKED, 1, 0).astype(jnp.int32)
        state = RefereedState(kind, number, answers, nothing, turn)
        return state, self._view(state)

    def prompt(self, state: RefereedState) -> jax.Array:
        player = jnp.where(state.kind == LABELLED, 0, 1)
        referee = jnp.where(state.kind == RANKED, 2, 3)
        rule = jnp.where(jnp.arange(self.agents) == self.players, referee, player)
        return rule.astype(jnp.int32)[:, None]

    def step(self, state: RefereedState, action: jax.Array, key: jax.Array) -> tuple[RefereedState, View, jax.Array]:
        solving, which = state.turn == 0, jnp.arange(self.players)
        answers = jnp.where(solving, action[:-1], state.answers)
        scored = ~solving & (which == state.turn - 1)
        scores = jnp.where(scored, jnp.clip(action[-1], UNSCORED, 2), state.scores)
        after = state.replace(answers=answers, scores=scores, turn=state.turn + 1)
        right = solving & (action[:-1] == self._truth(state))
        judged = scored & (state.kind == OPEN)
        tau = jnp.where((scores == UNSCORED).any(), -1.0, kendall(scores, -self._distance(after)))
        tau = jnp.where(after.turn > self.players, tau, 0.0)
        paid = jnp.zeros((self.agents, 3)).at[:-1, 0].set(right & (state.kind == LABELLED))
        paid = paid.at[:-1, 1].set(jnp.where(judged, jnp.maximum(scores, 0) / 2, 0))
        paid = paid.at[-1, 2].set(jnp.where(state.kind == RANKED, tau, 0))
        measured = jnp.zeros((self.agents, 2)).at[:-1, 0].set(right).at[-1, 1].set(tau)
        return after, self._view(after).replace(measured=measured), paid

    def _truth(self, state: RefereedState) -> jax.Array:
        return self.tasks.task(state.task)[1]

    def _distance(self, state: RefereedState) -> jax.Array:
        """int32 [K]: the distance of each answer to the right one; an answer that does not parse is the farthest."""
        apart, n = abs(state.answers - self._truth(state)), len(self.tasks.answers)
        near = jnp.minimum(apart, n - apart) if isinstance(self.tasks, Arithmetic) else (apart > 0).astype(jnp.int32)
        return jnp.where(state.answers < 0, n, near)

    def _view(self, state: RefereedState) -> View:
        referee, first = jnp.arange(self.agents) == self.players, state.turn == 1
        # a small language model forgets a question that stands among the rules
        question = jnp.where(state.turn <= 1, self.tasks.task(state.task)[0], -1)
        given = [jnp.where(first, answer, -1) for answer in state.answers]
        ended = (state.turn > self.players) | ((state.kind == LABELLED) & (state.turn > 0))
        acting = referee == (state.turn > 0)
        return make_view(self, [*question, *given, state.turn], acting, ended, role=referee, grammar=referee)


GAMES = {"refereed": Refereed}
