"""Should the points of a misread checklist be credited by turn or at the end? CM2 on a farm.

The farm of the study `gates`: four works in an order and a stop, within seven turns; a look changes nothing and pays
nothing. A checklist has five items, one for each work and one for a stop after all works. After every turn a judge
reads every item, whether it is met by now. Each reading is wrong with chance 0.2, anew. An item gives its point, 1/5,
in the turn in which it is first read as met, once the judge has read all items before it as met.

  at_end    CM2's trajectory-level advantage: a game's points less the mean of its group, in every turn
  by_turn   CM2's step-level advantage: for the item that is open in a turn, 1 if it is ever read as met, less the share
            of the group's games in which it is
  to_go     the points of this and all later turns, less the mean of the group's other games
  outcome   one criterion, that the farm is complete, read once at the end, as at_end
  .../read  at_end and by_turn without a wrong reading
  imitated  the policy before training: it imitates a farmer who errs in 40% of the turns

Metrics:

  completed   share of games that stop with all works done; `over all` is its mean over all updates
  fall        peak of completed less its end, each over a tenth of the updates
  early       mean of completed over the first twenty updates
  turns       turns of a game

  python -m experiments checklists --seeds 20

Paper: Zhang et al. 2026, CM2, https://arxiv.org/abs/2602.12268; formulas from the paper in its release. There a model
of 8B parameters calls tools in dialogues with several user turns, and a language model judges. Here a game is one user
turn, and our turn is a step of the paper. As there: no division by a deviation, no entropy bonus. The release departs
from the step-level baseline: it is the share of the games in which the item was open.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.credit_assignment.gates import COMPLETE
from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.solo.farm import Farm
from jaxmarl_llm.rl import advantages, rewards
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.statistics import estimate, group_index, key_of
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import fall_from_peak, mean_over_updates
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, Paper, Study  # noqa: F401
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

GAME = Farm(turns=7, look=0.0, works=4)
ITEMS, FALL, EARLY, OVER_ALL = GAME.works + 1, "fall", "early", "over all"


def items(episodes: Episodes) -> jax.Array:
    """bool [B, T, items]: each item is met after the turn."""
    done = jnp.round(episodes.measured[:, :, 0, 0].cumsum(1) * GAME.works)
    complete = episodes.reward[:, :, 0, :1] > COMPLETE
    return jnp.concatenate([done[..., None] > jnp.arange(GAME.works)[None, None], complete], -1)


def misread(truth: jax.Array, chance: jax.Array, key: jax.Array) -> jax.Array:
    """Readings of a truth, bool [...]: each is wrong with this chance, independently."""
    return truth ^ jax.random.bernoulli(key, chance, truth.shape)


def follow(read: jax.Array, acted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(open, met) bool [B, T, items], for the readings [B, T, items] after the acts [B, T].

    Before a turn an item is open if the judge has read all items before it as met, and not yet this one. It is met in
    the turn that reads it as met while it is open.
    """

    def turn(met: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        read, acted = now
        first = jnp.pad(met[:, :-1], ((0, 0), (1, 0)), constant_values=True)
        is_open = first & ~met & acted[:, None]
        return met | (is_open & read), (is_open, is_open & read)

    by_turn = jnp.moveaxis(read, 1, 0), acted.T
    is_open, met = jax.lax.scan(turn, jnp.zeros_like(read[:, 0]), by_turn)[1]
    return jnp.moveaxis(is_open, 0, 1), jnp.moveaxis(met, 0, 1)


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    episodes, acts = experience.episodes, experience.acts
    acted, group, groups = acts
    each, once = jax.random.split(experience.key)
    is_open, met = follow(misread(items(episodes), hparams["misread"], each), acted[..., 0])
    points = rewards.checklist(met, jnp.ones(ITEMS))[..., None]
    ever = met.any(1, keepdims=True).astype(jnp.float32)  # [B, 1, items]
    key = key_of(ever.shape, group=group_index(group, groups), item=(jnp.arange(ITEMS)[None, None], ITEMS))
    above = estimate(ever, jnp.ones_like(ever, bool), *key, baseline="mean")
    verdict = misread(episodes.reward[:, :, :, 0].sum(1, keepdims=True) > COMPLETE, hparams["misread"], once)
    credit = select(
        hparams,
        "credit",
        at_end=advantages.grpo(points, *acts, scale="none"),
        by_turn=jnp.where(is_open, above, 0).sum(-1, keepdims=True),
        to_go=advantages.round_leave_one_out(points, *acts),
        outcome=advantages.grpo(verdict * jnp.eye(GAME.turns)[None, :, :1], *acts, scale="none"),
    )
    return Advantages(credit)


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    complete = episodes.reward[..., 0].sum((1, 2)) > COMPLETE
    return {
        name: mean_of_kept(episodes, x) for name, x in (("completed", complete), ("turns", episodes.acted.sum((1, 2))))
    }


def early(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    return curves["completed"][:, :20].mean(1)


AT_END = Recipe(
    Noisy(GAME, (Errs("start", "correct", 0.6),)),
    seats=(("learner",),),
    advantage=estimate_advantages,
    hparams={"learning_rate": float(os.environ.get("K_RATE", 3e-2)), "entropy": 0.0, "misread": 0.2},
    choices={"credit": ("at_end", "by_turn", "to_go", "outcome")},
    warm_start=(("start",),),
    budget=1,
    updates=200,
    groups=2,
    group_size=8,
    measure=measure,
    pretrained={"budget": 4},
)
BY_TURN = AT_END.with_choice(credit="by_turn")
PILOT = {f"r{r}/{m}": BY_TURN.with_hparams(learning_rate=r, misread=m) for r in (1e-2, 2e-2, 3e-2) for m in (0.0, 0.2)}
STUDY = Study(
    paper=Paper("CM2 (Zhang et al.)", "https://arxiv.org/abs/2602.12268", 2026, checked="release"),
    question="Should the points of a misread checklist be credited by turn or at the end?",
    claim="Credited at the end, a checklist that is misread at times trains a policy that falls less.",
    arms={
        "at_end": AT_END,
        "by_turn": BY_TURN,
        "to_go": AT_END.with_choice(credit="to_go"),
        "outcome": AT_END.with_choice(credit="outcome"),
        "at_end/read": AT_END.with_hparams(misread=0.0),
        "by_turn/read": BY_TURN.with_hparams(misread=0.0),
        "imitated": AT_END.with_hparams(learning_rate=0.0),
        **PILOT,
    },
    method="at_end",
    metrics=("completed", FALL, EARLY, OVER_ALL, "turns"),
    predictions=(Lower(FALL, "at_end", than="by_turn", source="paper", where="Section 5.1, Figure 3a"),),
    derived={
        FALL: partial(fall_from_peak, metric="completed"),
        EARLY: early,
        OVER_ALL: partial(mean_over_updates, metric="completed"),
    },
)
