"""An advised judge: a writer names a criterion, a verifier judges alone, and a critic decides which verdict counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, digits, draw, make_view, random_player
from jaxmarl_llm.text.grammar import Grammar

WRITER, VERIFIER, CRITIC = range(3)
TRUST, DOUBT = 0, 1
CRITERIA = ("length", "tone", "detail", "proof")


class AdvisedState(struct.PyTreeNode):
    kind: jax.Array  # int32
    ahead: jax.Array  # int32 [criteria]: the answer, 0 or 1, that is better by each criterion
    turn: jax.Array  # int32
    rubric: jax.Array  # int32, the criterion that was written


@dataclass(frozen=True)
class Advised:
    """Three seats find the better of two answers to a question.

    For each kind of question one criterion decides and another one misleads, the same ones in every game. The answer
    that is better by the deciding criterion is preferred. In a share `misleads` of the games the other answer is better
    by the misleading criterion. By each remaining criterion either answer is better with probability 1/2.

    In the first turn the writer, told the kind, names a criterion, its rubric. In the second turn two seats act at
    once:

    - The verifier, told the kind and both answers, names the better answer.
    - The critic, told the kind and the rubric, trusts it or doubts it.

    A trusted rubric gives the verdict: the answer that is better by it. Otherwise the verifier's answer is the verdict.
    The texts are silent about the deciding criterion on purpose: it is learnt from preferences.

    Components, paid in the second turn:

    - `alone`: 1 to a verifier that is right, else 0.
    - `shift`: the rubric's verdict less the verifier's, each 1 if right, else 0. The writer gets it, and a critic that
      trusts; a critic that doubts gets 0.

    Measures: `followed`, 1 to the writer if the rubric's verdict is right; `judged`, 1 to the critic if the verdict is
    right. After C2 (https://arxiv.org/abs/2604.13618): a rubric helps or misleads by its shift of the judgement.
    Raises ValueError for kinds < 1 and for a share outside [0, 1].
    """

    kinds: int = 12
    misleads: float = 0.75
    knows: float = 0.4

    agents = 3
    turns = 2
    seat_turns = 1
    actions = len(CRITERIA)
    roles = ("writer", "verifier", "critic")
    components = ("alone", "shift")
    measures = ("followed", "judged")

    def __post_init__(self):
        at_least(1, kinds=self.kinds)
        if not (0 <= self.misleads <= 1 and 0 <= self.knows <= 1):
            raise ValueError(f"Shares lie within [0, 1], got misleads={self.misleads} and knows={self.knows}.")

    @property
    def rules(self) -> Fields:
        game = "Two answers to a question are compared; one criterion decides which is better."
        point = "1 point if its verdict is right and the verifier's is wrong, -1 the other way round."
        roles = (
            f"{game} You are the writer and name the criterion. {point}",
            f"{game} You are the verifier and say which is better. 1 point if you are right.",
            f"{game} You are the critic: trust the writer's criterion or doubt it. If you trust it, {point}",
        )
        return roles, tuple(f" The question is of kind {kind}." for kind in digits(self.kinds))

    @property
    def observation(self) -> Fields:
        wins = tuple((f" By {name} the first.", f" By {name} the second.") for name in CRITERIA)
        return (
            ("Which criterion?", "First or second?", "Trust or doubt?"),
            *wins,
            tuple(f" The writer says {name}." for name in CRITERIA),
        )

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice(CRITERIA), choice(("first", "second")), choice(("trust", "doubt"))

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` knows the deciding criterion. `half` knows it for a share `knows` of the kinds, different ones for
        each role. For other kinds it writes the misleading criterion, and judges and trusts at random."""

        def play(state: AdvisedState, seat: jax.Array, key: jax.Array, known: jax.Array) -> jax.Array:
            decides, misleads = self._criteria(state.kind)
            coin = jax.random.bernoulli(key).astype(jnp.int32)
            trusts = jnp.where(state.rubric == decides, TRUST, DOUBT)
            informed = jnp.stack([decides, state.ahead[decides], trusts])
            guessed = jnp.stack([misleads, coin, coin])
            return jnp.where(known, informed, guessed)[seat].astype(jnp.int32)

        ranks = [np.random.default_rng(role).permutation(self.kinds) for role in range(3)]
        table = np.stack(ranks) < round(self.knows * self.kinds)
        return {
            "random": random_player(self.view),
            "correct": lambda state, seat, key: play(state, seat, key, jnp.bool_(True)),
            "half": lambda state, seat, key: play(state, seat, key, jnp.asarray(table)[seat, state.kind]),
        }

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[AdvisedState, View]:
        which, coins, dice = jax.random.split(key, 3)
        kind, ahead = draw(which, self.kinds), jax.random.randint(coins, (len(CRITERIA),), 0, 2, jnp.int32)
        decides, misleads = self._criteria(kind)
        opposed = jax.random.uniform(dice) < self.misleads
        ahead = ahead.at[misleads].set(jnp.where(opposed, 1 - ahead[decides], ahead[decides]))
        state = AdvisedState(kind, ahead, jnp.int32(0), jnp.int32(0))
        return state, self.view(state)

    def prompt(self, state: AdvisedState) -> jax.Array:
        return jnp.stack([jnp.arange(3), jnp.broadcast_to(state.kind, (3,))], 1)

    def step(self, state: AdvisedState, action: jax.Array, key: jax.Array) -> tuple[AdvisedState, View, jax.Array]:
        judging = state.turn == 1
        rubric = jnp.where(judging, state.rubric, action[WRITER]).astype(jnp.int32)
        preferred = state.ahead[self._criteria(state.kind)[0]]
        alone, followed = action[VERIFIER] == preferred, state.ahead[state.rubric] == preferred
        trusts = action[CRITIC] == TRUST
        shift = followed.astype(jnp.float32) - alone
        paid = jnp.zeros((3, 2)).at[VERIFIER, 0].set(alone)
        paid = paid.at[WRITER, 1].set(shift).at[CRITIC, 1].set(shift * trusts)
        facts = jnp.zeros((3, 2)).at[WRITER, 0].set(followed)
        facts = facts.at[CRITIC, 1].set(jnp.where(trusts, followed, alone))
        after = AdvisedState(state.kind, state.ahead, state.turn + 1, rubric)
        return after, self.view(after).replace(measured=jnp.where(judging, facts, 0)), jnp.where(judging, paid, 0)

    def view(self, state: AdvisedState) -> View:
        seats = jnp.arange(3)
        pair = jnp.where(seats[:, None] == VERIFIER, state.ahead[None], -1)
        rubric = jnp.where(seats == CRITIC, state.rubric, -1)
        acting = (seats == WRITER) == (state.turn == 0)
        told = jnp.concatenate([seats[:, None], pair, rubric[:, None]], 1)
        return make_view(self, told, acting, state.turn >= 2, role=seats, grammar=seats)

    def _criteria(self, kind: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(deciding criterion, misleading criterion), int32 each."""
        generator = np.random.default_rng(0)
        decides = generator.integers(0, len(CRITERIA), self.kinds)
        misleads = (decides + generator.integers(1, len(CRITERIA), self.kinds)) % len(CRITERIA)
        return jnp.asarray(decides, jnp.int32)[kind], jnp.asarray(misleads, jnp.int32)[kind]


GAMES = {"advised": Advised}
