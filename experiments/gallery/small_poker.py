"""Does SmolLM2-135M come nearer to equilibrium by playing Kuhn poker against itself on two cores?

One policy plays both seats. NashConv is exact: the chips that best responses win against it, summed over both seats.
Always betting and calling has 0.667, folding or checking with every card more.

  self_play  RLOO per seat, 96 games an update
  untrained  the model as it comes

  python -m experiments small_poker --frozen

Paper of the model: SmolLM2 (Ben Allal et al.) 2025, https://arxiv.org/abs/2502.02737
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from experiments.gallery.small_model import TASKS
from experiments.self_play.exploitability import RLOO
from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.classic.card_games import KuhnPoker, KuhnState
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.studies.study import Study

CARDS = ("Weak.", "Fair.", "Strong.")


@dataclasses.dataclass(frozen=True)
class BriefPoker(KuhnPoker):
    """Kuhn poker with short texts. The card stands beside the question, and the rules are not told."""

    observation: Fields = (CARDS, tuple(f" {text}" for text in KuhnPoker.observation[0]))

    @property
    def rules(self) -> Fields:
        """One field: a phrase for both seats."""
        return (("Poker.",),)

    def prompt(self, state: KuhnState) -> jax.Array:
        return jnp.zeros((2, 1), jnp.int32)

    def view(self, state: KuhnState) -> View:
        view = super().view(state)
        card = jnp.where(view.phrases < 0, -1, state.cards[:, None])
        return view.replace(phrases=jnp.concatenate([card, view.phrases], 1))


SELF_PLAY = dataclasses.replace(
    TASKS["kuhn"],
    game=BriefPoker(),
    pretrained={
        **TASKS["kuhn"].pretrained,
        "lora": Lora(4, 8.0, ("*",)),
        "evaluate": RLOO.evaluate,
        "groups": 6,
        "group_size": 16,
        "grad_accumulation": 4,
        "distinct": 4,
        "updates": 60,
        "eval_every": 10,
        "hparams": {"learning_rate": 3e-4, "entropy": optax.linear_schedule(0.3, 0.03, 60)},
    },
)
STUDY = Study(
    question="Does SmolLM2-135M come nearer to equilibrium in poker by playing itself on two cores?",
    claim="NashConv falls.",
    arms={"self_play": SELF_PLAY},
    method="self_play",
    metrics=("nash_conv",),
    scope="smollm2",
)
