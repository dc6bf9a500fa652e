"""Does a corridor around past entropies free a long task from an early habit? EPO on chains of sixteen locks.

One seat opens sixteen locks of four colours within 32 turns and tries one key per turn; only the last lock pays. The
policies of `corridor` begin at random. Here policies begin converged: they imitate a player that is right, but for
yellow locks, where it always tries a key that fits no lock. One chain in a hundred has no yellow lock, so hardly a
game is paid before the habit ends. The losses are those of `corridor`.

  none        no entropy term
  bonus       entropy bonus of 0.03
  bonus/low   the same with 0.01
  bonus/high  the same with 0.1
  hinge       bonus and corridor, both with a weight of 0.03: 0.8 to 1.2 times the running mean entropy of the turn
  schedule    as hinge, with EPO's weights of the corridor by phase

  unrest  mean absolute change of the entropy from update to update, in nats
  habit   share of wrong keys that fit no lock

  python -m experiments corridor_30 --seeds 20

Paper: EPO (Xu et al.) 2025, https://arxiv.org/abs/2509.22576. In its release the penalty is a constant outside the
corridor, without a gradient, so that it learns what the plain bonus learns. The corridor with a gradient is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.long_horizon.corridor import BONUS, CHANGES, LENGTH, UNREST
from experiments.long_horizon.corridor import STUDY as CORRIDOR
from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import View
from jaxmarl_llm.environments.solo.lock_chain import COLOURS, LockChain, LockState
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import always, component_returns

LOCKS, TURNS, UPDATES = 16, 32, 200
YELLOW = COLOURS.index("yellow")


@dataclass(frozen=True)
class Habit(Around):
    """The game with a script `habit`: right, but for yellow locks, where it always tries the first decoy."""

    game: LockChain

    @property
    def scripts(self) -> Mapping[str, Callable]:
        def habit(state: LockState, seat: jax.Array, key: jax.Array) -> jax.Array:
            colour = state.colours[jnp.minimum(state.opened, self.game.locks - 1)]
            right = self.game.scripts["correct"](state, seat, key)
            return jnp.where(colour == YELLOW, self.game.fitting, right)

        return {**self.game.scripts, "habit": habit}

    def inside(self, state: LockState) -> LockState:
        return state

    def reset(self, key: jax.Array, group: jax.Array, *given: Any) -> tuple[LockState, View]:
        return self.game.reset(key, group, *given)

    def step(self, state: LockState, action: jax.Array, key: jax.Array) -> tuple[LockState, View, jax.Array]:
        return self.game.step(state, action, key)


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """Share of chains solved, and of wrong keys that fit no lock."""
    opens, fits = jnp.moveaxis(episodes.measured[:, :, 0] > 0, 2, 0)
    wrong = episodes.acted[..., 0] & ~opens
    habit = (wrong & ~fits).sum() / jnp.maximum(wrong.sum(), 1)
    return component_returns(episodes, solved=0) | {"habit": habit}


def phases(update: Any) -> Any:
    return CHANGES["schedule"]["corridor"](update * LENGTH / UPDATES)


def unknown(parts: Any, key: jax.Array) -> jax.Array:
    return jnp.zeros(TURNS)


MIDDLE = replace(
    BONUS,
    game=Habit(LockChain(LOCKS, TURNS, decoys=2)),
    arrange=partial(always, deal=LOCKS),
    init_state=unknown,
    warm_start=(("habit",),),
    warm_start_deal=lambda key: jnp.int32(LOCKS),
    warm_start_updates=150,
    updates=UPDATES,
    measure=measure,
)
FIRST = "EPO repairs early convergence: if most chains are solved without it nothing is tested. The level is ours."
GAINS = "abstract: up to 152% on ScienceWorld and 19.8% on ALFWorld above RL without EPO"
WORSE = 'abstract of version 1: conventional entropy regularization "becomes counterproductive"; EPO bounds entropy'
STEADY = 'abstract of version 1: it "bounds policy entropy within historical averages to prevent abrupt fluctuations"'
TRIES = "Only a policy that tries the right key at yellow locks can learn it."
STUDY = Study(
    paper=Paper("EPO (Xu et al.)", "https://arxiv.org/abs/2509.22576", 2025, checked="release"),
    question="Does a corridor around past entropies free a long task from an early habit?",
    claim="With EPO more chains are solved than without an entropy term, and with its corridor more than with a bonus.",
    arms={
        "none": MIDDLE.with_hparams(entropy=0.0),
        "bonus": MIDDLE,
        "bonus/low": MIDDLE.with_hparams(entropy=0.01),
        "bonus/high": MIDDLE.with_hparams(entropy=0.1),
        "hinge": MIDDLE.with_hparams(corridor=1.0),
        "schedule": MIDDLE.with_hparams(corridor=phases),
    },
    method="schedule",
    metrics=("solved", UNREST, "habit", "entropy/learner", "outside/learner"),
    predictions=(
        Higher("solved", "schedule", than="none", source="paper", where=GAINS),
        AtMost("solved", "none", 0.5, source="theory", where=FIRST, condition=True),
        Higher("solved", "hinge", than="none", source="theory", where=TRIES),
        *(Higher("solved", "hinge", than=f"bonus{w}", source="paper", where=WORSE) for w in ("", "/low", "/high")),
        Lower(UNREST, "hinge", than="bonus", source="paper", where=STEADY),
    ),
    derived={UNREST: CORRIDOR.derived[UNREST]},
)
