"""Is credit by segments unbiased, and less noisy than flat GAE? HiPER's two statements, over all games of a small game.

A seed is a random policy of a game of subgoals: two rooms, two things, one of them to take, three turns. Mean and
variance of a game's policy gradient are computed over all its games. Nothing is trained or sampled.

  hae, flat            HiPER's advantages by segments, and GAE over words; exact values, lambda 1, not normalised
  hae_0.95, flat_0.95  lambda 0.95 for a segment and a turn in `hae`, for a turn in `flat`, as in `subgoals_long`
  .../wrong_value      values have normal errors as large as the root mean square of the exact advantages

  bias   |mean gradient - exact gradient| / |exact gradient|
  noise  standard deviation of a game's gradient / |exact gradient|

  python -m experiments subgoals_exact --seeds 20

Paper: HiPER (Peng et al.) 2026, https://arxiv.org/abs/2602.16165
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial

import jax
import jax.numpy as jnp

from experiments.long_horizon.subgoals import LAM
from jaxmarl_llm.environments.around.subgoals import DECISIONS, SWITCH, Subgoals, by_level, together
from jaxmarl_llm.environments.solo.rooms import Rooms
from jaxmarl_llm.evaluation.exact.estimators import variants
from jaxmarl_llm.evaluation.exact.exact_gradient import Tables, tables
from jaxmarl_llm.evaluation.exact.moments import moments
from jaxmarl_llm.rl import returns
from jaxmarl_llm.rl.segments import gae_hierarchical
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtMost, Higher, Lower, Paper, Study


def flat(reward: jax.Array, value: jax.Array, acted: jax.Array, *, lam: float) -> jax.Array:
    """GAE over words, with `lam` for a turn."""
    return returns.gae(reward, value, acted, lam=lam ** (1 / DECISIONS)).advantage


def by_segments(reward: jax.Array, value: jax.Array, acted: jax.Array, action: jax.Array, *, lam: float) -> jax.Array:
    """HiPER's advantages of words [B, 3T, A]."""
    asked, said = by_level(acted)[0], by_level(action)[0]
    paid, upwards = jnp.stack(by_level(reward)).sum(0), by_level(value)[::-1]
    hae = gae_hierarchical(paid, *upwards, asked & (said == SWITCH), asked, lam=lam, segment_lam=lam)
    return together(hae.switch.advantage, hae.segment.advantage, hae.turn.advantage)


@cache
def small_game() -> Tables:
    return tables(Subgoals(Rooms(2, 2, 1, budget=3, reminds=True)))


EXACT = {"hae": partial(by_segments, lam=1.0), "flat": partial(flat, lam=1.0)}
EXACT |= {"hae_0.95": partial(by_segments, lam=LAM), "flat_0.95": partial(flat, lam=LAM)}


@jax.jit
def in_all_games(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
    """{estimator: {"bias", "noise"}} at a random policy of the small game."""
    policy_key, wrong = jax.random.split(key)
    legal = small_game().tree.legal
    policy = jax.nn.softmax(jnp.where(legal, jax.random.normal(policy_key, legal.shape), -jnp.inf))
    return moments(small_game(), policy, EXACT, wrong)


REDUCES = "abstract: HAE provably reduces variance compared to flat generalized advantage estimation"
VALUES = "A segment ends with the value of the next one; flat GAE with lambda 1 has rewards alone."
WRONG = "hae/wrong_value", "flat/wrong_value"
STUDY = Study(
    paper=Paper("HiPER (Peng et al.)", "https://arxiv.org/abs/2602.16165", 2026, checked="release"),
    question="Is credit by segments unbiased, and less noisy than flat GAE?",
    claim="With exact values both are unbiased and segments have less noise; with wrong ones they alone are biased.",
    arms={name: Computed(in_all_games, part=name) for name in variants(EXACT)},
    method="hae_0.95",
    metrics=("bias", "noise"),
    predictions=(
        Lower("noise", "hae_0.95", than="flat_0.95", source="paper", where=REDUCES),
        Higher("bias", WRONG[0], than=WRONG[1], source="theory", where=VALUES),
    ),
    checks=(*(AtMost("bias", name, 1e-3) for name in EXACT), Lower("noise", "hae", than="flat")),
)
