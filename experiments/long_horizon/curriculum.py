"""Which tasks should an update be played with? Regret (eva) and difficulty (SCALER) on chains of locks.

One seat opens up to ten locks in a row within 12 turns and tries one key per turn. Only the last lock pays, and the
right key of each lock must be learned separately. The arms choose the length of each group's chain. All arms are
evaluated on the longest chains.

  uniform     all lengths alike
  longest     only the longest chains
  regret      lengths in proportion to their regret: the best return of a group minus its mean, averaged over updates
              (eva); a fifth of the groups are uniform
  difficulty  lengths around a difficulty that rises if most chains are opened and falls if few are (SCALER)

  python -m experiments curriculum --seeds 10

Papers: eva (Ye et al.) 2024, https://arxiv.org/abs/2411.00062. The release draws a quarter of the prompts by best minus
worst score, and a language model rewrites them. Here tasks are drawn by best minus mean and are not rewritten. SCALER
(Xu et al.) 2026, https://arxiv.org/abs/2601.04809. Only its abstract was read; the rule of the difficulty is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.masked import segment_count, segment_mean
from jaxmarl_llm.studies.study import AtMost, Higher, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

LOCKS, GROUPS = 10, 16


class Known(struct.PyTreeNode):
    """Statistics of the lengths, over the updates so far."""

    regret: jax.Array  # float32 [LOCKS], best return minus mean of a group, averaged over updates
    difficulty: jax.Array  # float32, a length


def nothing(parts: Any, key: jax.Array) -> Known:
    return Known(jnp.ones(LOCKS), jnp.float32(1))


def uniform(known: Known, key: jax.Array) -> jax.Array:
    return jax.random.randint(key, (GROUPS,), 1, LOCKS + 1)


def longest(known: Known, key: jax.Array) -> jax.Array:
    return jnp.full(GROUPS, LOCKS)


def regret(known: Known, key: jax.Array) -> jax.Array:
    """Lengths [GROUPS] in proportion to their regret, a fifth of them uniform."""
    chance = 0.2 / LOCKS + 0.8 * known.regret / jnp.maximum(known.regret.sum(), 1e-6)
    return 1 + jax.random.categorical(key, jnp.log(chance), shape=(GROUPS,))


def difficulty(known: Known, key: jax.Array) -> jax.Array:
    """Lengths [GROUPS] within 1.5 of the present difficulty."""
    around = known.difficulty + jax.random.uniform(key, (GROUPS,), minval=-1.5, maxval=1.5)
    return jnp.clip(around.round(), 1, LOCKS)


def arrange(hparams: Hparams, known: Known, key: jax.Array, number: jax.Array, *, choose: Callable) -> Arranged:
    return Arranged(deal=choose(known, key).astype(jnp.int32))


def estimate_advantages(experience: Experience, hparams: Hparams, known: Known) -> Advantages:
    """Return-to-go minus the mean of the group's other games in the same turn; also updates the lengths' statistics."""
    episodes, lengths = experience.episodes, experience.arranged.deal
    reward = episodes.reward[..., 0]
    opened = reward.sum((1, 2)).reshape(GROUPS, -1)  # 0 or 1
    gap, played = opened.max(1) - opened.mean(1), jnp.ones(GROUPS, bool)
    seen = segment_count(lengths - 1, LOCKS, played) > 0
    new = segment_mean(gap, lengths - 1, LOCKS, played)
    average = jnp.where(seen, 0.7 * known.regret + 0.3 * new, known.regret)
    step = jnp.where(opened.mean() > 0.6, 0.25, jnp.where(opened.mean() < 0.4, -0.25, 0.0))
    known = Known(average, jnp.clip(known.difficulty + step, 1, LOCKS))
    return Advantages(
        advantages.round_leave_one_out(reward, *experience.acts),
        state=known,
        metrics={"length of chains": lengths.mean().astype(jnp.float32)},
    )


def recipe(choose: Callable) -> Recipe:
    judge = partial(in_fresh_games, measure=partial(component_returns, **{"longest solved": 0}), deal=LOCKS)
    return Recipe(
        LockChain(LOCKS, turns=12, in_order=True),
        seats=(("learner",),),
        advantage=estimate_advantages,
        arrange=partial(arrange, choose=choose),
        init_state=nothing,
        budget=1,
        updates=120,
        groups=GROUPS,
        group_size=8,
        measure=partial(component_returns, solved=0),
        evaluate=judge,
        eval_every=10,
        pretrained={"budget": 4, "groups": GROUPS, "evaluate": judge},
    )


STUDY = Study(
    paper=Paper("eva (Ye et al.)", "https://arxiv.org/abs/2411.00062", 2024, checked="release"),
    question="Which tasks should an update be played with?",
    claim="Tasks by regret, or at a difficulty that follows success, end above uniform tasks and the hardest alone.",
    arms={choose.__name__: recipe(choose) for choose in (uniform, longest, regret, difficulty)},
    method="regret",
    metrics=("longest solved", "solved", "length of chains"),
    predictions=(
        Higher(
            "longest solved",
            "regret",
            than="uniform",
            source="pilot",
            where="seeds 100 to 102 in 15 turns: 0.97 against 0.92; "
            "eva's release has a uniform variant without a result",
        ),
        Higher(
            "longest solved",
            "difficulty",
            than="uniform",
            source="pilot",
            where="seeds 100 to 102 in 15 turns: 0.97 against 0.92; the rule of the difficulty is ours",
        ),
    ),
    checks=(AtMost("longest solved", "longest", 0.05),),
)
