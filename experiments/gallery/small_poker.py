"""Does SmolLM2-135M come nearer to equilibrium by playing Kuhn poker against itself on two cores?

One policy plays both seats, with an adapter of rank 4. Texts are short, and no rule is told. NashConv is exact: the
chips that best responses win against the policy, summed over both seats. Always to bet and to call has 0.667.

  self_play  RLOO per seat, 96 games an update; the card stands beside the question: "Weak. They bet. Fold or call?"
  far        the same, and the card stands in the system message: "Poker. Weak."
  untrained  the model as it comes

  nash_conv        NashConv of the policy
  P(bet) K less J  the probability of opening with a bet, with the highest card less that with the lowest

  python -m experiments small_poker --frozen

Paper of the model: SmolLM2 (Ben Allal et al.) 2025, https://arxiv.org/abs/2502.02737
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.gallery.small_model import TASKS
from experiments.self_play.exploitability import RLOO
from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.classic.card_games import KuhnPoker, KuhnState
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.studies.study import Lower, Study

CARDS = ("Weak.", "Fair.", "Strong.")  # J, Q, K
APART, OPENINGS = "P(bet) K less J", (0, 2)  # the information sets of seat 0's opening with J and with K


@dataclasses.dataclass(frozen=True)
class FarPoker(KuhnPoker):
    """Kuhn poker with short texts. The card stands in the system message."""

    @property
    def rules(self) -> Fields:
        return (("Poker.",) * 2, tuple(f" {card}" for card in CARDS))


@dataclasses.dataclass(frozen=True)
class NearPoker(KuhnPoker):
    """Kuhn poker with short texts. The card stands beside the question."""

    observation: Fields = (CARDS, tuple(f" {question}" for question in KuhnPoker.observation[0]))

    @property
    def rules(self) -> Fields:
        return (("Poker.",),)

    def prompt(self, state: KuhnState) -> jax.Array:
        return jnp.zeros((2, 1), jnp.int32)

    def view(self, state: KuhnState) -> View:
        view = super().view(state)
        card = jnp.where(view.phrases < 0, -1, state.cards[:, None])
        return view.replace(phrases=jnp.concatenate([card, view.phrases], 1))


NEAR, FAR = NearPoker(), FarPoker()


def apart(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """The probability [seeds] of opening with a bet, at the end, with the highest card less that with the lowest."""
    low, high = (curves[f"first_action/{place}"][:, -1] for place in OPENINGS)
    return low - high


SELF_PLAY = dataclasses.replace(
    TASKS["kuhn"],
    game=NEAR,
    pretrained={
        **TASKS["kuhn"].pretrained,
        "lora": Lora(4, 8.0, ("*",)),
        "evaluate": RLOO.evaluate,
        "groups": 6,
        "group_size": 16,
        "grad_accumulation": 4,
        "distinct": 4,
        "updates": 30,
        "eval_every": 10,
        "hparams": {"learning_rate": 3e-4, "entropy": optax.linear_schedule(0.3, 0.03, 30)},
    },
)
UNTRAINED = {"updates": 1, "hparams": {"learning_rate": 0.0}}
STUDY = Study(
    question="Does SmolLM2-135M come nearer to equilibrium in poker by playing itself on two cores?",
    claim="NashConv falls, and more where the card stands beside the question.",
    arms={
        "self_play": SELF_PLAY,
        "far": dataclasses.replace(SELF_PLAY, game=FAR),
        "untrained": dataclasses.replace(SELF_PLAY, pretrained={**SELF_PLAY.pretrained, **UNTRAINED}),
    },
    method="self_play",
    metrics=("nash_conv", APART),
    scope="smollm2",
    predictions=(
        Lower(
            "nash_conv",
            "self_play",
            than="untrained",
            source="pilot",
            where="Seed 100: .73 as the model comes, .22 after 30 updates and .32 after 60 of a slower schedule.",
        ),
        Lower(
            "nash_conv",
            "self_play",
            than="far",
            source="theory",
            where="Policy gradients first move what contexts share. Of the gradients of the log-odds of two answers to "
            "one situation with two cards, the cosine in the untrained model is .46 to .91 with the card beside the "
            "question, .96 to .99 with it in the system message.",
        ),
    ),
    derived={APART: apart},
)
