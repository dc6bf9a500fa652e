"""Should points of a checklist be paid in each turn or at the end, if a judge misreads its criteria? CM2 on a farm.

The farm of the study `gates`, without looks that pay: works in an order, then a stop, within seven turns. In every turn
a judge reads four criteria: it is no look; it is the next work, or the stop after all works; the work is not done
already; it stops only after all works. Each reading is wrong with chance 0.2, independently. A turn's points are the
share of criteria that are read as met. All arms begin with a policy that imitates a farmer who errs in 40% of the turns.

  by_turn  CM2's turn-level advantage: the points of the turn, less their mean over the group's games in that turn
  at_end   CM2's trajectory-level advantage, in every turn: the mean of a game's points over its turns, less that of the
           group's games
  to_go    the points of this and all later turns over 7, less those of the group's other games
  outcome  one criterion at the end, that all is done: 1 or 0, less the mean of the group's games
  .../read_right  without misreading
  imitated the policy before training

Metrics:

  completed     share of games that stop with all works done
  fall          peak of completed less its end, each over a tenth of the updates
  updates to P  updates until completed, over five updates, exceeds the share P

  python -m experiments checklists --seeds 20

Paper: Zhang et al. 2026, CM2, https://arxiv.org/abs/2602.12268.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from experiments.credit_assignment.gates import COMPLETE
from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.solo.farm import LOOK, Farm
from jaxmarl_llm.rl import advantages, rewards
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.statistics import estimate, group_index, key_of, turn_index
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import at_first, fall_from_peak, mean_over_updates, updates_to
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

WORKS = int(os.environ.get("K_WORKS", 4))
GAME = Farm(turns=int(os.environ.get("K_TURNS", 7)), look=0.0, works=WORKS)
FALL, UPDATES, OVER, START = "fall", "updates to 70%", "over all", "start"
CREDITS = ("at_end", "by_turn", "to_go", "outcome")


def criteria(episodes: Episodes) -> jax.Array:
    """The truth of each criterion of a turn, bool [B, T, A, 4]."""
    done, action = episodes.measured[..., 0], episodes.action
    before = jnp.round((done.cumsum(1) - done) * GAME.works).astype(jnp.int32)
    right, stops = action == before + 1, action == GAME.works + 1
    fresh = stops | (action > before) | (action == LOOK)
    return jnp.stack([action != LOOK, right, fresh, ~stops | right], -1)


def misread(truth: jax.Array, chance: jax.Array, key: jax.Array) -> jax.Array:
    """Readings of a truth, bool [...]; each is wrong with this chance, independently."""
    return truth ^ jax.random.bernoulli(key, chance, truth.shape)


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    episodes, acts = experience.episodes, experience.acts
    acted, group, groups = acts
    key = jax.random.split(experience.key)
    read = misread(criteria(episodes), hparams["misread"], key[0])
    points = jnp.where(acted, rewards.checklist(read, jnp.ones(read.shape[-1])), 0)
    complete = (episodes.reward[..., 0].sum(1, keepdims=True) > COMPLETE)
    verdict = misread(complete, hparams["misread"], key[1]) / jnp.maximum(acted.sum(1, keepdims=True), 1) * acted
    own = key_of(acted.shape, group=group_index(group, groups), turn=turn_index(acted))
    credit = select(
        hparams,
        "credit",
        at_end=advantages.grpo(points / jnp.maximum(acted.sum(1, keepdims=True), 1), *acts, scale="none"),
        by_turn=estimate(points, acted, *own, baseline="mean"),
        to_go=advantages.round_leave_one_out(points / GAME.turns, *acts),
        outcome=advantages.grpo(verdict, *acts, scale="none"),
    )
    return Advantages(credit)


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    outcome = episodes.reward[..., 0].sum((1, 2))
    return {"completed": mean_of_kept(episodes, outcome > COMPLETE), "turns": mean_of_kept(episodes, episodes.acted.sum((1, 2)))}


AT_END = Recipe(
    Noisy(GAME, (Errs("start", "correct", float(os.environ.get("K_RIGHT", 0.6))),)),
    seats=(("learner",),),
    advantage=estimate_advantages,
    hparams={"learning_rate": float(os.environ.get("K_RATE", 3e-3)), "entropy": 0.0, "misread": float(os.environ.get("K_MISREAD", 0.2))},
    choices={"credit": CREDITS},
    warm_start=(("start",),),
    warm_start_updates=int(os.environ.get("K_WARM", 100)),
    budget=1,
    updates=int(os.environ.get("K_UPDATES", 120)),
    groups=int(os.environ.get("K_GROUPS", 2)),
    group_size=int(os.environ.get("K_SIZE", 24)),
    measure=measure,
    pretrained={"budget": 4},
)
ARMS = {name: AT_END.with_choice(credit=name) for name in CREDITS}
STUDY = Study(
    paper=Paper("CM2 (Zhang et al.)", "https://arxiv.org/abs/2602.12268", 2026, checked="release"),
    question="Should a misread checklist pay in each turn or at the end?",
    claim="Paid at the end, a checklist that is misread at times trains a policy that falls less.",
    arms=ARMS
    | {f"{name}/read_right": arm.with_hparams(misread=0.0) for name, arm in ARMS.items()}
    | {"imitated": AT_END.with_hparams(learning_rate=0.0)},
    method="at_end",
    metrics=("completed", FALL, UPDATES, OVER, START, "turns"),
    predictions=(
        Lower(FALL, "at_end", than="by_turn", source="paper", where="Section 5.1, Figure 3a"),
    ),
    censored={UPDATES: AT_END.updates},
    derived={FALL: partial(fall_from_peak, metric="completed"), OVER: partial(mean_over_updates, metric="completed"), START: partial(at_first, metric="completed"), UPDATES: partial(updates_to, metric="completed", bound=0.7)},
)
