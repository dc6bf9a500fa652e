"""Do answers of known correctness also teach a policy to judge and to revise? SPARK's recycled rollouts.

One policy answers sums mod 4, with four attempts at each question and a point for a right one (RLVR). In the same batch
four judges and four revisers read these answers, each in a new context, and a right act earns a point. GRPO compares
the four acts of a task. The policy starts by imitation, with 40% right answers, 60% right verdicts and 30% right
revisions.

  rlvr       learns from the attempts only
  pointwise  as rlvr, and from verdicts on "is it right?"
  judge      as pointwise, and from answers to "which one is right?"
  spark      as judge, and from second attempts after a wrong one

Evaluation uses new games in which judges and revisers see the first attempt. `gain` is the success of second attempts
less the success of first ones. Predictions: spark and judge answer better than rlvr. Checks: spark judges better than
rlvr, which never trains verdicts. Second attempts gain more with spark than with rlvr and judge, which do not train
them.

  python -m experiments recycled_judge --seeds 10

Paper: SPARK (Liu et al.) 2025, https://arxiv.org/abs/2509.22624
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.judged.recycled import COMPARER, JUDGE, REVISER, SOLVER, Recycled
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.statistics import key_of
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

ATTEMPTS = 4
LEARNT = {
    "all": (SOLVER, JUDGE, COMPARER, REVISER),
    "without_reflection": (SOLVER, JUDGE, COMPARER),
    "pointwise": (SOLVER, JUDGE),
    "answers": (SOLVER,),
}


def by_task(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GRPO among a game's acts of the same task; the loss leaves out tasks from which the arm does not learn."""
    episodes = experience.episodes
    acted, role = episodes.acted, episodes.role
    game = jnp.arange(len(acted))[:, None, None], len(acted)
    key, keys = key_of(acted.shape, game=game, task=(role, len(Recycled.roles)))
    advantage = advantages.estimate(episodes.total_reward, acted, key, keys, baseline="mean", scale="std")
    trained = {name: jnp.isin(role, jnp.array(tasks)) for name, tasks in LEARNT.items()}
    return Advantages(advantage, trained=select(hparams, "tasks", **trained))


def success(episodes: Episodes) -> dict[str, jax.Array]:
    """Accuracy of the attempts."""
    return {"accuracy": mean_of_kept(episodes, episodes.reward[:, 0, :ATTEMPTS, 0])}


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """Evaluation in games in which judges and revisers see the first attempt."""
    solve, judge, revise = jnp.moveaxis(episodes.reward.sum(1), -1, 0)
    second = revise[:, 2 * ATTEMPTS :].mean()
    return {
        "tested accuracy": solve[:, :ATTEMPTS].mean(),
        "judge accuracy": judge[:, ATTEMPTS : 2 * ATTEMPTS].mean(),
        "second": second,
        "gain": second - solve[:, 0].mean(),
    }


NOVICE = Errs("novice", "correct", (0.4, 0.6, 0.6, 0.3))
SPARK = Recipe(
    Noisy(Recycled(Arithmetic(4, "+"), ATTEMPTS), (NOVICE,)),
    seats=(("learner",) * 3 * ATTEMPTS,),
    advantage=by_task,
    hparams={"learning_rate": 1e-3},
    choices={"tasks": tuple(LEARNT)},
    warm_start=(("novice",) * 3 * ATTEMPTS,),
    warm_start_updates=120,
    budget=1,
    updates=150,
    groups=12,
    group_size=1,
    measure=success,
    evaluate=partial(in_fresh_games, measure=measure, deal=True, games=128),
    eval_every=15,
    pretrained={"budget": 4, "groups": 2},
)
STUDY = Study(
    paper=Paper("SPARK (Liu et al.)", "https://arxiv.org/abs/2509.22624", 2025, checked="release"),
    question="Do answers whose correctness is known also teach to judge?",
    claim="Recycled answers make a better judge, better answers, and second attempts that gain.",
    arms={
        "rlvr": SPARK.with_choice(tasks="answers"),
        "pointwise": SPARK.with_choice(tasks="pointwise"),
        "judge": SPARK.with_choice(tasks="without_reflection"),
        "spark": SPARK,
    },
    method="spark",
    metrics=("accuracy", "judge accuracy", "gain", "second"),
    predictions=(
        Higher(
            "accuracy",
            "spark",
            than="rlvr",
            source="paper",
            where="Table 1: 58.8 against 55.2 (Policy-Only); Table 2: 56.6 against 51.8. The paper's 58.8 includes "
            "judge-and-revise at test time.",
        ),
        Higher(
            "accuracy",
            "judge",
            than="rlvr",
            source="paper",
            where="Table 1: Policy&Reward 56.5 against Policy-Only 55.2; Table 2: 53.2 against 51.8.",
        ),
    ),
    checks=(
        Higher("judge accuracy", "spark", than="rlvr"),
        *(Higher("gain", "spark", than=other) for other in ("rlvr", "judge")),
    ),
)
