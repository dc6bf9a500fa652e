"""Draft."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.rooms import Rooms
from jaxmarl_llm.environments.subgoals import DECISIONS, SWITCH, Subgoals
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.segments import gae_hierarchical
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import updates_to
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe

LAM, REACHED = 0.95, "updates to 80%"
LEVELS = 0, 1, 2  # of a turn's decisions: keep or switch, the subgoal, the answer
POINTS, WON, KEPT, RIGHT = range(4)


def by_level(x: jax.Array) -> tuple[jax.Array, ...]:
    """[B, 3T, A] -> three of [B, T, A]: of keeping or switching, of the subgoal, of the answer."""
    apart = x.reshape(x.shape[0], -1, DECISIONS, *x.shape[2:])
    return tuple(apart[:, :, level] for level in LEVELS)


def together(*levels: jax.Array) -> jax.Array:
    """The inverse of `by_level`."""
    x = jnp.stack(levels, 2)
    return x.reshape(x.shape[0], -1, *x.shape[3:])


def chosen(episodes: Episodes) -> jax.Array:
    """Where there was a choice, bool [B, 3T, A]."""
    return episodes.acted & (episodes.legal.sum(-1) > 1)


def credited(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    episodes, value = experience.episodes, experience.turn_value
    earned = jnp.where(hparams["dense"] > 0, episodes.reward[..., POINTS], episodes.reward[..., WON])
    paid = jnp.where(episodes.acted, earned - hparams["penalty"] * episodes.reward[..., KEPT], 0)
    choice, (acted, *_) = chosen(episodes), by_level(episodes.acted)
    switches = acted & (by_level(episodes.action)[0] == SWITCH)
    of_switch, of_subgoal, of_answer = by_level(value)
    reward = sum(by_level(paid))
    hae = gae_hierarchical(
        reward, of_answer, of_subgoal, of_switch, switches, acted, lam=LAM, segment_lam=LAM
    )
    parts = hae.switch, hae.segment, hae.turn
    levels = [whiten(x.advantage, where) for x, where in zip(parts, by_level(choice), strict=True)]
    flat = returns.gae(paid, value, choice, lam=LAM ** (1 / DECISIONS))
    group = advantages.rloo(paid, *experience.acts)
    pick = lambda a, b: jnp.where(hparams["levels"] > 0, a, b)  # noqa: E731
    advantage = pick(together(*levels), whiten(jnp.where(hparams["value"] > 0, flat.advantage, group), choice))
    target = pick(together(*(x.value_target for x in parts)), flat.value_target)
    trained = together(acted & (hparams["switch"] > 0), acted, acted)
    return Advantages(advantage, target, trained=trained)


def measured(episodes: Episodes) -> dict[str, jax.Array]:
    asked, _, acted = by_level(episodes.acted)
    asked = asked.at[:, 0].set(False)
    kept, right = episodes.reward[..., KEPT], episodes.reward[..., RIGHT]
    return {
        "won": episodes.reward[..., WON].sum((1, 2)).mean(),
        "switches": 1 - kept.sum() / jnp.maximum(asked.sum(), 1),
        "right": right.sum() / acted.sum(),
        "turns": acted.sum() / len(acted),
    }


HAE = Recipe(
    Subgoals(Rooms(3, 3, 2, budget=7, dense=True, reminds=True)),
    seats=(("learner",),),
    advantage=credited,
    warm_start=(("follower",),),
    warm_start_updates=50,
    critic=True,  # which learns nothing where `value` is 0
    hparams={"learning_rate": 3e-3, "penalty": 0.03, "dense": 1.0, "levels": 1.0, "switch": 1.0, "value": 0.5},
    budget=1,
    updates=80,
    groups=4,
    group_size=8,
    measure=measured,
    pretrained={"budget": 4},
)
FLAT = HAE.with_hparams(levels=0.0)
STUDY = Study(
    paper=Paper("HiPER (Peng et al.)", "https://arxiv.org/abs/2602.16165", 2026, checked="release"),
    question="Does credit for subgoals on their own time scale speed up a long task?",
    claim="Hierarchical credit needs fewer updates than GAE over all decisions; without a penalty for keeping, the "
    "switch degenerates.",
    arms={
        "hae": HAE,
        "flat": FLAT,
        "group": FLAT.with_hparams(value=0.0),
        "no_switch": HAE.with_hparams(switch=0.0),
        "no_penalty": HAE.with_hparams(penalty=0.0),
        "flat_no_penalty": FLAT.with_hparams(penalty=0.0),
    },
    method="hae",
    metrics=(REACHED, "won", "switches", "right", "turns"),
    predictions=(),
    derived={REACHED: partial(updates_to, of="won", bound=0.8)},
)
