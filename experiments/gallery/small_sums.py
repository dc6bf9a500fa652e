"""Does SmolLM2-135M learn sums with a verifier on two cores, and do each agent's own statistics help? Dr. MAS.

A solver and a verifier have an adapter each. The solver answers a sum of two numbers from 1 to 4; the verifier approves
or rejects; a rejected solver answers once more. Both earn a point if the last answer is right, and the verifier one
more for each true verdict.

  agent_wise  one mean and deviation for each agent of a question; a sample is a call
  episode     one mean and deviation for all agents of a question; a sample is an agent in an episode
  untrained   the model as it comes

  score  share of right last answers in 128 fresh games

  python -m experiments small_sums --frozen

Paper: Feng et al. 2026, Dr. MAS, https://arxiv.org/abs/2602.08847
"""

from __future__ import annotations

import dataclasses

from experiments.credit_assignment.dr_mas import STATISTICS
from experiments.gallery.small_model import task
from jaxmarl_llm.environments.tasks import Questions
from jaxmarl_llm.environments.teams.team_tasks import SolverVerifier
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.studies.study import Paper, Study

SUMS = Questions(tuple((f"What is {a} + {b}?", str(a + b)) for a in range(1, 5) for b in range(1, 5)))
TEAM = (("solver", "verifier"),)
AGENT_WISE = task(
    SolverVerifier(SUMS, loops=2),
    TEAM,
    4,
    games=128,
    advantage=STATISTICS["agent_wise"],
    lora=Lora(4, 8.0, ("*",)),
    groups=8,
    group_size=16,
    grad_accumulation=4,
    updates=20,
    eval_every=10,
    hparams={"learning_rate": 3e-4, "entropy": 0.02},
)
STUDY = Study(
    paper=Paper("Dr. MAS (Feng et al.)", "https://arxiv.org/abs/2602.08847", 2026, checked="release"),
    question="Does SmolLM2-135M learn sums with a verifier on two cores, and do each agent's own statistics help?",
    claim="Right answers become more.",
    arms={
        "agent_wise": AGENT_WISE,
        "episode": dataclasses.replace(
            AGENT_WISE, pretrained={**AGENT_WISE.pretrained}, advantage=STATISTICS["episode"]
        ),
    },
    method="agent_wise",
    metrics=("score",),
    scope="smollm2",
)
