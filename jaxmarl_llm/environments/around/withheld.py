"""Twenty questions whose answers may be withheld, in phrases that can be exchanged for those of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, uniform
from jaxmarl_llm.environments.teams.team_search import YES, QuestionState, TwentyQuestions

NOTHING = 2  # beside NO and YES


class Silence(NamedTuple):
    """The deal of `WithheldAnswers`, arranged by training (`Recipe.arrange`)."""

    chance: Any = 0.0  # float32: a reply is withheld with this probability


class WithheldState(QuestionState):
    silence: jax.Array  # float32


@dataclass(frozen=True)
class WithheldAnswers(TwentyQuestions):
    """`TwentyQuestions`, where the answerer's reply may be withheld: the guesser hears that they say nothing.

    The deal is the probability of it (`Silence`), 0 without a deal. `kinds` holds the phrases of replies that can stand
    for each other in a row (`trajectory.exchange_told`), the withheld one last. The script `listener` asks for any
    attribute or names any object, alike, but no object that the replies rule out.
    """

    @property
    def kinds(self) -> tuple[tuple[str, ...], ...]:
        """The phrases told before the guesser's later turns, then before its last."""
        calls = ("Ask or name it.", "Now name it.")
        return tuple(tuple(f"They say {reply}. {call}" for reply in ("no", "yes", "nothing")) for call in calls)

    @property
    def observation(self) -> Fields:
        return ((*super().observation[0], *(texts[-1] for texts in self.kinds)),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        def listen(state: QuestionState, seat: jax.Array, key: jax.Array) -> jax.Array:
            holds = jnp.asarray(self.table)
            left = ((state.replies[None] < 0) | (holds == (state.replies == YES)[None])).all(1)
            may = self.view(state).legal[0] & jnp.concatenate([jnp.ones(len(self.attributes), bool), left])
            return jnp.where(seat == 0, uniform(key, may), holds[state.secret, state.asked]).astype(jnp.int32)

        return {**super().scripts, "listener": listen}

    def bits(self, action: jax.Array, acted: jax.Array) -> jax.Array:
        """The bits float32 [B, T, A] that each question brought, log2 of the share of objects that its reply leaves.

        `action` int32 [B, T, A] and `acted` bool [B, T, A] are those of true answers, none of them withheld."""
        holds, bits = jnp.asarray(self.table).T, jnp.zeros(acted.shape)
        left = jnp.ones((len(acted), len(self.objects)), bool)
        for turn in range(0, self.turns - 1, 2):
            asked, reply = acted[:, turn + 1, 1], action[:, turn + 1, 1]
            true = holds[jnp.where(asked, action[:, turn, 0], 0)] == (reply == YES)[:, None]
            after = left & (true | ~asked[:, None])
            bits = bits.at[:, turn, 0].set(jnp.log2(left.sum(1) / after.sum(1)))
            left = after
        return bits

    def reset(self, key: jax.Array, group: jax.Array, given: Silence | None = None) -> tuple[QuestionState, View]:
        state, view = super().reset(key, group)
        return state if given is None else state.replace(silence=jnp.float32(given.chance)), view

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[QuestionState, View, jax.Array]:
        told, _, reward = super().step(state, action, key)
        silent = (state.turn % 2 == 1) & jax.random.bernoulli(jax.random.fold_in(key, 1), state.silence)
        replies = jnp.where(silent, state.replies, told.replies)
        after = told.replace(replies=replies, reply=jnp.where(silent, NOTHING, told.reply))
        after = WithheldState(**vars(after), silence=state.silence)
        return after, self.view(after), reward

    def _start(self, secret: jax.Array) -> WithheldState:
        return WithheldState(**vars(super()._start(secret)), silence=jnp.float32(0))

    def view(self, state: QuestionState) -> View:
        view, first = super().view(state.replace(reply=jnp.minimum(state.reply, YES))), 5 + len(self.attributes)
        phrase = jnp.where(state.turn >= 2 * self.questions, first + 1, first)
        withheld = (state.reply == NOTHING) & (jnp.arange(2) == 0) & (view.phrases[:, 0] > 0)
        return view.replace(phrases=jnp.where(withheld[:, None], phrase, view.phrases))
