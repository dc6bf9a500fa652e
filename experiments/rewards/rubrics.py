"""Does a rubric that evolves with the answers resist tricks that a fixed one rewards? MPO with a choice of criteria.

One policy answers sums mod 7 (`Graded`) and starts 40% right. It may also say "any of them", and speak surely or
politely. A judge grades by a rubric: a choice among four criteria. They are: the right answer is mentioned (also by
"any of them"), a single answer is given, the tone is sure, the tone is polite. The policy learns by GRPO from the
grades. Arms:

  fixed     the rubric "mentions, sure" throughout
  evolving  the same rubric at first; every five updates a meta judge learns the truth of eight answers and takes the
            rubric, among all 15, that orders its evidence best; older evidence counts less (MPO)
  random    the same rubric at first; every five updates a random one of the 15
  audit     no rubric: the truth of the meta judge's eight answers is the reward (REINFORCE++), and only updates with
            them train
  hand      the rubric "mentions, single" throughout, by an author that knows the trick

`grade` is the grade by the current rubric, and `gap` is grade less `accuracy`.

Predictions: accuracy with evolving ends higher than with fixed and random. It is at least 0.8, and not lower than with
hand by more than 0.02. More answers end as evasions with fixed than with hand (the condition). Check: accuracy ends
higher with evolving than with audit.

  python -m experiments rubrics --seeds 10

Paper: MPO (Kim et al.) 2025, https://arxiv.org/abs/2504.20157. There a language model rewrites a rubric in words from
graded answers, and knows the solutions in mathematics only. Here the meta judge knows the truth of eight answers, and
chooses a rubric instead of writing one.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.judged.graded import Graded
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.rewards import rubrics
from jaxmarl_llm.studies.study import AtLeast, Higher, NotLower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

RUBRICS = rubrics.every_rubric(4)  # mentions, single, sure, polite
MENTIONS_SINGLE, MENTIONS_SURE = 2, 4
PERIOD, READ = 5, 8


class Judge(struct.PyTreeNode):
    rubric: jax.Array  # int32, index of RUBRICS
    evidence: jax.Array  # float32 [15], for each rubric: pairs in the right order less pairs in the wrong order
    number: jax.Array  # int32, index of the update


def begin(parts: Any, key: jax.Array, *, rubric: int) -> Judge:
    """A judge with this rubric and no evidence."""
    return Judge(jnp.int32(rubric), jnp.zeros(len(RUBRICS)), jnp.int32(0))


def estimate_advantages(experience: Experience, hparams: Hparams, judge: Judge, *, meta: str) -> Advantages:
    """GRPO on grades; the judge named `meta` chooses the rubric of the next update."""
    correct, criteria, acts = experience.episodes.total_reward, experience.episodes.measured, experience.acts
    grade = rubrics.grade(criteria, jnp.asarray(RUBRICS)[judge.rubric])
    pick, draw = jax.random.split(experience.key)
    read = jax.random.permutation(pick, len(correct))[:READ]
    met, truth = criteria[read, 0, 0], correct[read, 0, 0]
    due = judge.number % PERIOD == 0
    grades = jnp.stack([rubrics.grade(met, jnp.asarray(rubric)) for rubric in RUBRICS])
    evidence = jnp.where(due, 0.8 * judge.evidence + rubrics.concordance(grades, truth), judge.evidence)
    new = {
        "none": judge.rubric,
        "evidence": jnp.argmax(evidence).astype(jnp.int32),
        "random": jax.random.randint(draw, (), 0, len(RUBRICS), jnp.int32),
    }
    if meta == "audit":
        seen = jnp.zeros(len(correct), bool).at[read].set(due)[:, None, None] & acts[0]
        advantage = advantages.reinforce_plus_plus(correct, seen, *acts[1:])
    else:
        advantage = advantages.grpo(grade, *acts)
    known = (evidence != 0).any() | (meta == "random")
    rubric = jnp.where(due & known, new.get(meta, judge.rubric), judge.rubric)
    metrics = {
        "accuracy": correct.mean(),
        "grade": grade.mean(),
        "gap": grade.mean() - correct.mean(),
        "evasions": 1 - criteria[..., 1].mean(),
        "asks for one answer": jnp.asarray(RUBRICS)[judge.rubric, 1],
    }
    return Advantages(advantage, state=Judge(rubric, evidence, judge.number + 1), metrics=metrics)


FIXED = Recipe(
    Noisy(Graded(Arithmetic(7, "+")), (Errs("novice", "correct", 0.4),)),
    seats=(("learner",),),
    advantage=partial(estimate_advantages, meta="none"),
    init_state=partial(begin, rubric=MENTIONS_SURE),
    hparams={"learning_rate": 1e-3},
    warm_start=(("novice",),),
    warm_start_updates=300,
    budget=1,
    updates=250,
    pretrained={"budget": 16},
)
change = partial(dataclasses.replace, FIXED)
STUDY = Study(
    paper=Paper("MPO (Kim et al.)", "https://arxiv.org/abs/2504.20157", 2025, checked="release"),
    question="Does a rubric that changes with what it sees resist tricks?",
    claim="Under a fixed rubric a policy learns to evade; one that evolves keeps grade and truth together.",
    arms={
        "fixed": FIXED,
        "evolving": change(advantage=partial(estimate_advantages, meta="evidence")),
        "random": change(advantage=partial(estimate_advantages, meta="random")),
        "audit": change(advantage=partial(estimate_advantages, meta="audit")),
        "hand": change(init_state=partial(begin, rubric=MENTIONS_SINGLE)),
    },
    method="evolving",
    metrics=("accuracy", "grade", "gap", "evasions", "asks for one answer"),
    predictions=(
        Higher(
            "evasions",
            "fixed",
            than="hand",
            source="theory",
            where="The fixed rubric pays 'any of them' as much as the right answer; the rubric of `hand` does not.",
            condition=True,
        ),
        Higher(
            "accuracy",
            "evolving",
            than="fixed",
            source="paper",
            where="Table 3: 68.60 against 63.79 (Scruples), 50.38 against 48.77 (MATH); abstract. Here labels choose "
            "the rubric.",
        ),
        NotLower(
            "accuracy",
            "evolving",
            than="hand",
            by=0.02,
            source="paper",
            where="Abstract: 'on par with or better than' hand-crafted prompts; Table 4: Elo 1039 against 894, 1064 "
            "against 1003. The margin is ours.",
        ),
        Higher(
            "accuracy",
            "evolving",
            than="random",
            source="theory",
            where="A random rubric is one of the other 14 most of the time, and these pay for more than right answers.",
        ),
        AtLeast(
            "accuracy",
            "evolving",
            0.8,
            source="pilot",
            where="Seeds 100 to 102: 0.74 to 0.93 after 150 updates, mean 0.815; then 250 updates.",
        ),
    ),
    checks=(Higher("accuracy", "evolving", than="audit"),),
)
