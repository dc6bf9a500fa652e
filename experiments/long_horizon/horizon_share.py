"""Should the horizon or the discount of a long task grow with progress? ScalingInter-RL and ADS on ten locks in order.

One seat opens ten locks and tries one of six keys per turn, two of which fit no lock. Each lock has a colour of its own,
so only a player that gets there can learn its key. Unlike in the study `horizon` all chains have ten locks, and the
share that opens is paid. All arms are judged in games of 15 turns (`solved in full`).

Arms by horizon learn from whole games: all turns have the game's return, centred and scaled in its group (GRPO).

  short     5 turns
  long      15 turns
  growing   5, then 10, then 15 turns, for a third of the updates each (ScalingInter-RL)
  progress  5 turns at first, then 1.5 for each lock of recognised progress

Arms by discount play 15 turns. A turn has its discounted return-to-go minus that of the group's other games.

  low        discount 0.5 per turn
  high       0.99
  rising     from 0.5 to 0.99, linearly
  automatic  0.2^(1/p), with recognised progress p (ADS): a reward p turns away counts 0.2

Progress p starts at 2, of 10. After an update it rises by 1, up to five times, if the games imitate p observations of an
expert: each of a game's first p observations is matched to the nearest of the expert's first p, and the longest
increasing run of these positions has a mean of 0.9 p or more.

  fall  peak of `solved in full` less its end, each a mean of three judgements, five updates apart

  python -m experiments horizon_share --seeds 20

Papers: AgentGym-RL (Xi et al.) 2025, ScalingInter-RL, https://arxiv.org/abs/2509.08755; Automatic Discount Scheduling
(Liu et al.) 2024, https://arxiv.org/abs/2310.07433. AgentGym-RL trains pretrained models by GRPO with a KL penalty, here
there is none. ADS imitates videos of robots and is paid by optimal transport to the expert's observations. If equal
observations cost 0 and others 1, that is the share of locks that opens (a test). Its release recognises progress after
each episode against two demonstrations as long as the episode, and rounds 0.9 p down. A run is 1 at least, so that its
first step from p = 2 is free. Here nothing is rounded, and a batch is judged by its mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.long_horizon.horizon import CHANGES, LOCKS, LONG, LONG_FIXED, SHORT
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import fall_from_peak
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, component_returns, measure_totals
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

FULL, FALL, BEGIN, STEPS, ALPHA, ENOUGH = "solved in full", "fall", 2, 5, 0.2, 0.9
State = dict[str, jax.Array]


def begin(parts: Parts, key: jax.Array) -> State:
    """Progress, int32, and the expert's observations by name, int32 [LOCKS]."""
    expert = Rollout(parts.recipe.game, {}, Lineup((("correct",),), 1), parts.recipe.budget)
    played = expert({}, key, jnp.full(1, LOCKS)).episodes
    return {"progress": jnp.int32(BEGIN), "expert": played.told[0, :LOCKS, 0]}


def longest_run(position: jax.Array) -> jax.Array:
    """Length [B] of the longest increasing subsequence of `position` [B, n]; it may leave out entries."""
    lengths = jnp.ones_like(position)
    for i in range(1, position.shape[1]):
        before = jnp.where(position[:, :i] < position[:, i : i + 1], lengths[:, :i], 0).max(1)
        lengths = lengths.at[:, i].set(before + 1)
    return lengths.max(1)


def recognise(progress: jax.Array, told: jax.Array, expert: jax.Array) -> jax.Array:
    """Progress after games with these observations [B, LOCKS], by name; int32, LOCKS at most."""
    for _ in range(STEPS):
        near = (told[..., None] == expert) & (jnp.arange(LOCKS) < progress)
        # the first position for an observation without a match, and in turns that do not count yet
        position = jnp.where(jnp.arange(LOCKS) < progress, near.argmax(2), 0)
        enough = longest_run(position).mean() >= ENOUGH * progress
        progress = jnp.minimum(progress + enough, LOCKS)
    return progress


def arrange(hparams: Hparams, state: State, key: jax.Array, number: jax.Array) -> Arranged:
    by_progress = jnp.maximum(SHORT, LONG * state["progress"] // LOCKS)
    turns = select(hparams, "schedule", fixed=hparams["turns"].round().astype(jnp.int32), progress=by_progress)
    return Arranged(deal=jnp.int32(LOCKS), turns=turns)


def estimate_advantages(experience: Experience, hparams: Hparams, state: State) -> Advantages:
    episodes, progress = experience.episodes, state["progress"]
    paid, acts = episodes.reward[..., 0], experience.acts
    gamma = select(hparams, "schedule", fixed=hparams["discount"], progress=ALPHA ** (1 / progress))
    credit = select(
        hparams,
        "credit",
        game=advantages.grpo(paid, *acts),
        turn=advantages.round_leave_one_out(paid, *acts, gamma=gamma),
    )
    after = recognise(progress, episodes.told[:, :LOCKS, 0], state["expert"])
    return Advantages(credit, state=state | {"progress": after}, metrics={"progress": after.astype(jnp.float32)})


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """Share of locks opened, share of games in which all are, and turns played."""
    length = mean_of_kept(episodes, episodes.acted.sum((1, 2)))
    return component_returns(episodes, locks=0) | measure_totals(episodes, solved=0) | {"length": length}


def fall(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    judged = curves[FULL][:, ~np.isnan(curves[FULL]).all(0)]
    return fall_from_peak({FULL: judged}, metric=FULL)


# share of games of full length in which all locks are opened
JUDGE = partial(in_fresh_games, measure=partial(measure_totals, **{FULL: 0}), deal=LOCKS, games=128)
BASE = replace(
    LONG_FIXED,
    game=LockChain(LOCKS, turns=LONG, in_order=True, decoys=2, pays="progress"),
    advantage=estimate_advantages,
    arrange=arrange,
    init_state=begin,
    choices={"credit": ("game", "turn"), "schedule": ("fixed", "progress")},
    hparams=LONG_FIXED.hparams | {"learning_rate": 3e-3},
    groups=4,
    buckets=1,
    measure=measure,
    evaluate=JUDGE,
    eval_every=5,
    pretrained={"budget": 4, "evaluate": JUDGE},
)
HORIZON = {name: BASE.with_hparams(**CHANGES[name]) for name in ("short", "long", "growing")}
DISCOUNT = {
    name: BASE.with_choice(credit="turn").with_hparams(**CHANGES[name]) for name in ("low", "high", "rising")
}
STUDY = Study(
    paper=Paper("AgentGym-RL (Xi et al.)", "https://arxiv.org/abs/2509.08755", 2025, checked="release"),
    question="Should the horizon or the discount of a long task grow with progress?",
    claim="A horizon that grows ends above a long one and falls less; a discount raised by progress beats fixed ones.",
    arms=HORIZON
    | {"by_progress": BASE.with_choice(schedule="progress")}
    | DISCOUNT
    | {"automatic": BASE.with_choice(credit="turn", schedule="progress")},
    method="growing",
    metrics=(FULL, FALL, "locks", "solved", "length", "progress"),
    predictions=(
        Higher(FULL, "growing", than="long", source="paper", where="x"),
        Lower(FALL, "growing", than="long", source="paper", where="x"),
        AtMost(FULL, "long", 0.9, source="theory", where="x", condition=True),
        Higher(FULL, "automatic", than="high", source="paper", where="x"),
        Higher(FULL, "automatic", than="low", source="paper", where="x"),
    ),
    checks=(AtMost(FULL, "short", 0.01),),
    derived={FALL: fall},
)
