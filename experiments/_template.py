"""Template of a study: copy it to experiments/<question>/NAME.py and edit every line.

Two policies play sums modulo 3 (`PioneerObserver`). The baseline of a reward is its mean over other episodes:

  per_agent  of the group, for the same agent
  joint      of the group, for both agents

Prediction: after 60 updates, per_agent has a higher success rate than joint.

  python -m experiments NAME --first-seed 100 --seeds 4    # tuning; then freeze NAME, commit, and NAME --frozen

Paper: Ahmadian et al. 2024, Back to Basics (RLOO), https://arxiv.org/abs/2402.14740.
"""

import jax

from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.teams.team_tasks import PioneerObserver
from jaxmarl_llm.rl.advantages import rloo
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Experience


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    played = experience.episodes.reward[..., 0], *experience.acts
    return Advantages(select(hparams, "baseline", per_agent=rloo(*played, per_agent=True), joint=rloo(*played)))


def success(episodes: Episodes) -> dict[str, jax.Array]:
    return component_returns(episodes, success=0)


BASE = Recipe(
    PioneerObserver(Arithmetic(3, "+"), exchange="never"),
    seats=(("first", "second"),),
    advantage=estimate_advantages,
    choices={"baseline": ("per_agent", "joint")},
    updates=60,
    measure=success,
)
STUDY = Study(
    paper=Paper("RLOO (Ahmadian et al.)", "https://arxiv.org/abs/2402.14740", 2024, checked="abstract"),
    question="Does each agent need a baseline of its own?",
    claim="With a baseline for each agent two policies succeed more often after 60 updates.",
    arms={"per_agent": BASE, "joint": BASE.with_choice(baseline="joint")},
    method="per_agent",
    metrics=("success",),
    predictions=(Higher("success", "per_agent", than="joint", source="theory", where="Own rewards vary less."),),
)
