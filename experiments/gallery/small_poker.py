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

import optax

from experiments.gallery.small_model import TASKS
from experiments.self_play.exploitability import RLOO
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.studies.study import Study

SELF_PLAY = dataclasses.replace(
    TASKS["kuhn"],
    pretrained={
        **TASKS["kuhn"].pretrained,
        "lora": Lora(4, 8.0, ("*",)),
        "evaluate": RLOO.evaluate,
        "groups": 6,
        "group_size": 16,
        "grad_accumulation": 4,
        "updates": 30,
        "eval_every": 10,
        "hparams": {"learning_rate": 2e-4, "entropy": optax.linear_schedule(1.0, 0.1, 30)},
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
