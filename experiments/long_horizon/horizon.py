"""Should a long task begin with a short horizon? ScalingInter-RL's schedule, and a rising discount, on chains of locks.

One seat opens up to ten locks in a row and tries one key per turn. Only the last lock pays, and the right key of each
lock must be learned separately. Training ends games after `turns` turns, a number that may follow a schedule. All arms
are evaluated on the longest chains in games of full length, 15 turns (`solved in full`).

  short     5 turns
  long      15 turns
  growing   5, then 10, then 15 turns, for a third of the updates each (ScalingInter-RL)
  low       long, with a discount of 0.5 per turn; the arms above have no discount
  high      long, with a discount of 0.99 per turn
  rising    long, with a discount that rises linearly from 0.5 to 0.99 (ADS raises it by progress)

All arms share one program: turns and discount are numbers of the update.

  python -m experiments horizon --seeds 10

Papers: AgentGym-RL (Xi et al.) 2025, ScalingInter-RL, https://arxiv.org/abs/2509.08755; Automatic Discount Scheduling
(Liu et al.) 2024, https://arxiv.org/abs/2310.07433. AgentGym-RL trains pretrained models by GRPO with a KL penalty; its
turns grow every 80 to 100 steps, from 8 to 15 in WebArena. Here no KL penalty is used, and short chains pay from the
first update.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtMost, Higher, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe, component_returns, measure_totals
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

LOCKS, SHORT, LONG, UPDATES = 10, 5, 15, 150


def horizon(hparams: Hparams, state: Any, key: jax.Array, number: jax.Array) -> Arranged:
    """The number of turns of the update, from the hparam `turns`, for all groups."""
    return Arranged(turns=hparams["turns"].round().astype(jnp.int32))


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """The discounted return-to-go minus the mean of the same turn in the group's other games."""
    solved = experience.episodes.reward[..., 0]
    return Advantages(advantages.round_leave_one_out(solved, *experience.acts, gamma=hparams["discount"]))


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """Share of chains opened in time, locks opened, and turns played."""
    opened, length = measure_totals(episodes, locks=0), mean_of_kept(episodes, episodes.acted.sum((1, 2)))
    return component_returns(episodes, solved=0) | opened | {"length": length}


# share of the longest chains that are opened in games of full length
JUDGE = partial(in_fresh_games, measure=partial(component_returns, **{"solved in full": 0}), deal=LOCKS)
LONG_FIXED = Recipe(
    LockChain(LOCKS, turns=LONG, in_order=True),
    seats=(("learner",),),
    advantage=estimate_advantages,
    arrange=horizon,
    hparams={"turns": LONG, "discount": 1.0, "learning_rate": 1e-3},
    budget=1,
    updates=UPDATES,
    groups=16,
    group_size=8,
    buckets=3,
    measure=measure,
    evaluate=JUDGE,
    eval_every=10,
    pretrained={"budget": 4, "evaluate": JUDGE, "eval_every": UPDATES},
)
GROWS = optax.piecewise_constant_schedule(SHORT, {UPDATES // 3: 2.0, 2 * UPDATES // 3: 1.5})
CHANGES: dict[str, dict[str, Any]] = {
    "short": {"turns": SHORT},
    "long": {},
    "growing": {"turns": GROWS},
    "low": {"discount": 0.5},
    "high": {"discount": 0.99},
    "rising": {"discount": optax.linear_schedule(0.5, 0.99, UPDATES)},
}
STUDY = Study(
    paper=Paper("AgentGym-RL (Xi et al.)", "https://arxiv.org/abs/2509.08755", 2025, checked="release"),
    question="Should a long task begin with a short horizon?",
    claim="A horizon that grows ends above a short and a long one; a discount that rises above a low and a high one.",
    arms={name: LONG_FIXED.with_hparams(**changes) for name, changes in CHANGES.items()},
    method="growing",
    metrics=("solved in full", "solved", "locks", "length"),
    predictions=(
        Higher(
            "solved in full",
            "growing",
            than="long",
            source="paper",
            where='Section 4.2, Figure 7: 10 turns "rapidly collapse", ScalingInter-RL "ultimately achieves higher" '
            "performance; Tables 1 to 5: above fixed turns in all five environments",
        ),
        Higher(
            "solved in full",
            "rising",
            than="low",
            source="theory",
            where="With discount 0.5 a reward nine turns away counts 0.002, so early turns get almost no gradient. A "
            "rising discount removes that limit.",
        ),
        Higher(
            "solved in full",
            "rising",
            than="high",
            source="theory",
            where="A low discount first credits only a chain's last keys, with less variance; a high one then reaches "
            "back to the first.",
        ),
    ),
    checks=(AtMost("solved in full", "short", 0.01),),
)
