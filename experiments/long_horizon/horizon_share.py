"""Should the horizon or the discount of a long task grow with progress? ScalingInter-RL and ADS on ten locks.

One seat tries one of six keys per turn; two fit no lock. Each lock has a colour of its own, so only a player that gets
there can learn its key. Unlike in the study `horizon` all chains have ten locks, and the share that opens is paid. All
arms are judged in games of 15 turns (`solved in full`). The first four learn from whole games by GRPO, at a high rate,
0.02. In the others a turn has its discounted return-to-go minus that of the group's other games; the rate is 0.003.

  short, long        5 turns, 15 turns
  growing            5, then 10, then 15 turns, for a third of the updates each (ScalingInter-RL)
  by_progress        1.5 turns for each lock of progress p, at least 5
  low, high, rising  15 turns, with a discount of 0.5, of 0.99, and from 0.5 to 0.99, linearly
  automatic          15 turns, with a discount of 0.2^(1/p): a reward p turns away counts 0.2 (ADS)

Progress p is 2 at first. A game's first p observations are matched to the nearest of an expert's first p. If their
longest increasing run has a mean of 0.9 p or more in an update, p rises by 1; this is repeated up to five times.

  python -m experiments horizon_share --seeds 20

Papers: AgentGym-RL (Xi et al.) 2025, https://arxiv.org/abs/2509.08755, with pretrained models and a KL penalty; ADS
(Liu et al.) 2024, https://arxiv.org/abs/2310.07433, paid by optimal transport to an expert's observations. At a cost of
0 if equal and 1 if not, that is the share of locks that opens. In its release each episode is recognised by itself, in
the length of the demonstrations. It rounds 0.9 p down, so that the step from p = 2 is free. Here nothing is rounded.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

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
from jaxmarl_llm.studies.curves import fall_from_peak
from jaxmarl_llm.studies.study import AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, component_returns, measure_totals
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

FULL, FALL, ALPHA, ENOUGH = "solved in full", "fall", 0.2, 0.9
GAME = LockChain(LOCKS, turns=LONG, in_order=True, decoys=2, pays="progress")


def begin(parts: object, key: jax.Array) -> dict[str, jax.Array]:
    """Progress, and the names of the observations of a player that is always right, int32 [LOCKS]."""
    expert = jax.jit(Rollout(GAME, {}, Lineup((("correct",),), 1), 1))
    told = expert({}, jax.random.key(0), jnp.full(1, LOCKS)).episodes.told
    return {"progress": jnp.int32(2), "expert": told[0, :LOCKS, 0]}


def longest_run(position: jax.Array) -> jax.Array:
    """Length [B] of the longest strictly increasing subsequence of each row of `position` [B, n]."""
    length = jnp.ones_like(position)
    for i in range(1, position.shape[1]):
        before = jnp.where(position[:, :i] < position[:, i : i + 1], length[:, :i], 0)
        length = length.at[:, i].add(before.max(1))
    return length.max(1)


def recognise(progress: jax.Array, told: jax.Array, expert: jax.Array) -> jax.Array:
    """Progress after games with these names of observations [B, LOCKS]."""
    for _ in range(5):
        first = jnp.arange(LOCKS) < progress
        near = (told[:, :, None] == expert[None, None]) & first[None, None] & first[None, :, None]
        enough = longest_run(near.argmax(2)).mean() >= ENOUGH * progress  # the first position if none is near
        progress = jnp.minimum(progress + enough, LOCKS)
    return progress


def arrange(hparams: Hparams, state: dict, key: jax.Array, number: jax.Array) -> Arranged:
    grown = jnp.maximum(SHORT, LONG * state["progress"] // LOCKS)
    turns = select(hparams, "schedule", fixed=hparams["turns"].round().astype(jnp.int32), progress=grown)
    return Arranged(deal=jnp.int32(LOCKS), turns=turns)


def estimate_advantages(experience: Experience, hparams: Hparams, state: dict) -> Advantages:
    told, paid = experience.episodes.told[:, :LOCKS, 0], (experience.episodes.reward[..., 0], *experience.acts)
    gamma = select(hparams, "schedule", fixed=hparams["discount"], progress=ALPHA ** (1 / state["progress"]))
    to_go = advantages.round_leave_one_out(*paid, gamma=gamma)
    progress = recognise(state["progress"], told, state["expert"])
    credit = select(hparams, "credit", game=advantages.grpo(*paid), turn=to_go)
    return Advantages(credit, state=state | {"progress": progress}, metrics={"progress": progress.astype(jnp.float32)})


def fall(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Peak of the judged share less its end, each a mean of three judgements."""
    return fall_from_peak({FULL: curves[FULL][:, ~np.isnan(curves[FULL]).all(0)]}, metric=FULL)


BASE = replace(
    LONG_FIXED,
    game=GAME,
    advantage=estimate_advantages,
    arrange=arrange,
    init_state=begin,
    choices={"credit": ("game", "turn"), "schedule": ("fixed", "progress")},
    groups=4,
    buckets=1,
    measure=partial(component_returns, locks=0),
    evaluate=partial(in_fresh_games, measure=partial(measure_totals, **{FULL: 0}), deal=LOCKS, games=128),
    eval_every=5,
    pretrained={"budget": 4},
).with_hparams(learning_rate=2e-2)
TURN = BASE.with_choice(credit="turn").with_hparams(learning_rate=3e-3)
COLLAPSE = 'Section 4.2, Figure 7: 10 turns "rapidly collapse", ScalingInter-RL "ultimately achieves higher" results'
CEILING = "second-hand: a short horizon is stable, and its ceiling is lower."
ADS = "ADS (abstract): later rewards hinder initial behaviour, and are engaged as it is mastered."
STUDY = Study(
    paper=Paper("AgentGym-RL (Xi et al.)", "https://arxiv.org/abs/2509.08755", 2025, checked="release"),
    question="Should the horizon or the discount of a long task grow with progress?",
    claim="A horizon that grows ends above a long one and falls less; a discount raised by progress beats fixed ones.",
    arms={name: BASE.with_hparams(**CHANGES[name]) for name in ("short", "long", "growing")}
    | {name: TURN.with_hparams(**CHANGES[name]) for name in ("low", "high", "rising")}
    | {name: arm.with_choice(schedule="progress") for name, arm in (("by_progress", BASE), ("automatic", TURN))},
    method="growing",
    metrics=(FULL, FALL, "locks", "progress"),
    predictions=(
        Higher(FULL, "growing", than="long", source="paper", where=COLLAPSE),
        Higher(FULL, "growing", than="short", source="paper", where=CEILING),
        Lower(FALL, "growing", than="long", source="paper", where=COLLAPSE),
        AtMost(FULL, "long", 0.9, source="theory", where="In the paper it fails. The level is ours.", condition=True),
        *(Higher(FULL, "automatic", than=name, source="theory", where=ADS) for name in ("high", "low")),
    ),
    derived={FALL: fall},
)
