"""Does SmolLM2-135M learn sums with a verifier on two cores, and do each agent's own statistics help? Dr. MAS.

A solver and a verifier have an adapter of rank 4 each. The solver answers a sum of two numbers from 1 to 9, and the
verifier calls the answer right or wrong. Both earn a point if it is right, and the verifier one more for a true
verdict. 65 of the 81 sums are trained.

  agent_wise  one mean and deviation for each agent of a question; a sample is a call
  episode     one mean and deviation for all agents of a question; a sample is an agent in an episode
  untrained   the model as it comes

  score             share of right answers in 128 new games of the trained sums
  held-out score    the same in 128 games of the other 16 sums, each of which is trained with its numbers exchanged
  largest gradient  the largest gradient norm of an agent in an update

  python -m experiments small_sums --frozen

Paper: Feng et al. 2026, Dr. MAS, https://arxiv.org/abs/2602.08847
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from experiments.credit_assignment.dr_mas import STATISTICS
from experiments.gallery.small_model import TASKS
from experiments.gallery.sums import OTHER_SUMS, SUMS
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Parts

TEAM = (("solver", "verifier"),)
SCORE, UNSEEN, LARGEST = "score", "held-out score", "largest gradient"
ARITHMETIC = TASKS["arithmetic"]
PLAY = partial(ARITHMETIC.pretrained["evaluate"], seats={SCORE: TEAM}, games=128)


def evaluate(parts: Parts) -> Callable[[dict, jax.Array], dict[str, Any]]:
    """measure(weights, key): `score` and `held-out score`, of 128 games each."""
    others = dataclasses.replace(parts, recipe=dataclasses.replace(parts.recipe, game=OTHER_SUMS))
    seen, unseen = PLAY(parts), PLAY(others)
    return lambda weights, key: seen(weights, key) | {UNSEEN: unseen(weights, key)[SCORE]}


AGENT_WISE = dataclasses.replace(
    ARITHMETIC,
    game=SUMS,
    seats=TEAM,
    advantage=STATISTICS["agent_wise"],
    pretrained={
        "budget": (7, 2),
        "lora": Lora(4, 8.0, ("*",)),
        "evaluate": evaluate,
        "groups": 8,
        "group_size": 8,
        "distinct": 5,
        "grad_accumulation": 4,
        "updates": 12,
        "eval_every": 6,
        "hparams": {"learning_rate": 3e-4, "entropy": 0.01},
    },
)
UNTRAINED = {"updates": 1, "hparams": {"learning_rate": 0.0}}


def largest(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """The largest gradient norm [seeds] of solver and verifier over the updates, before clipping."""
    return np.nanmax([curves[f"gradient_norm/{agent}"] for agent in TEAM[0]], (0, 2))


STUDY = Study(
    paper=Paper("Dr. MAS (Feng et al.)", "https://arxiv.org/abs/2602.08847", 2026, checked="release"),
    question="Does SmolLM2-135M learn sums with a verifier on two cores, and do each agent's own statistics help?",
    claim="Solver and verifier give more right answers, also to sums that were not trained, and with their own "
    "statistics more than with those of both.",
    arms={
        "agent_wise": AGENT_WISE,
        "episode": dataclasses.replace(AGENT_WISE, advantage=STATISTICS["episode"]),
        "untrained": dataclasses.replace(AGENT_WISE, pretrained={**AGENT_WISE.pretrained, **UNTRAINED}),
    },
    method="agent_wise",
    metrics=(SCORE, UNSEEN, LARGEST),
    scope="smollm2",
    predictions=(
        Higher(
            SCORE,
            "agent_wise",
            than="episode",
            source="paper",
            where="Abstract: 'clear gains over vanilla GRPO', +5.6% avg@16 on math.",
        ),
        Lower(
            LARGEST,
            "agent_wise",
            than="episode",
            source="paper",
            where="Abstract: 'largely eliminating gradient spikes', against vanilla GRPO.",
        ),
        *(
            Higher(
                score,
                "agent_wise",
                than="untrained",
                source="pilot",
                where="Seed 100: from .49 to .88 and .91 on trained sums, from .50 to .76 and .88 on others, after 8 "
                "and 16 updates.",
            )
            for score in (SCORE, UNSEEN)
        ),
    ),
    derived={LARGEST: largest},
)
