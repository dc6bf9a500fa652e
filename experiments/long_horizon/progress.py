"""Does a return that is learnt to be spread over turns speed up a long task? SPA-RL on chains of locks.

One seat opens four locks within ten turns, a key a turn, the colour of each lock drawn from four; only the last lock
pays, R = 1. Of six keys two fit no lock. PPO with a value head and GAE from turn to turn (lambda 0.95), paid in turn t

  terminal  R, in the last turn
  spa       c_t + 0.02 g_t: c_t by a network that learns (sum_t c_t - R)^2, g_t = 1 for a key that fits some lock
  plain     c_t
  oracle    1/4 for each lock that opens, what it truly contributes
  uniform   R / turns
  released  (n - t) (R - mean R of the group's other games + 0.02 g_t), for n turns, t from 1: what SPA-RL's released
            code pays, where the outcome overwrites c_t and every turn is multiplied by how many follow it
  large     c_t + 0.5 g_t, the release's weight of the bonus

`correlation`: of c_t and the true contribution in a batch, the mean over the updates in which half or fewer of the
chains are solved. `fits`: the share of keys that fit some lock.

  python -m experiments progress --seeds 10

Paper: SPA-RL (Wang et al.) 2025, https://arxiv.org/abs/2505.20732
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.lock_chain import LockChain
from jaxmarl_llm.keys import ESTIMATE, UPDATE, key_for
from jaxmarl_llm.rl import returns
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import updates_to
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, Paper, Study
from jaxmarl_llm.training import progress, step
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe, always, component_returns
from jaxmarl_llm.training.setup import Parts

LOCKS, GROUP, BONUS, UPDATES = 6, 8, 0.02, "updates to 90%"
SOURCES = ("terminal", "spa", "oracle", "uniform", "released")


def paid(c: jax.Array, experience: Experience, hparams: Hparams) -> jax.Array:
    """What each turn is paid [B, T, A]: the sources weighed by their hparams, and the bonus."""
    acted = experience.episodes.acted
    solved, true, fits = (experience.episodes.reward[..., i] for i in range(3))
    n = acted.sum(1, keepdims=True)
    g = hparams["graded"]
    at_end = (1 - g) * solved.sum(1, keepdims=True) + g * true.sum(1, keepdims=True)
    total = at_end
    solved = jnp.where(jnp.arange(acted.shape[1])[None,:,None]==n-1, at_end, 0)
    others = (total.reshape(-1, GROUP, 1).sum(1, keepdims=True) - total.reshape(-1, GROUP, 1)).reshape(total.shape)
    follow = n - 1 - jnp.arange(acted.shape[1])[None, :, None]
    bonus = hparams["bonus"] * fits
    each = (solved, c + bonus, true, total / n, follow * (total - others / (GROUP - 1) + bonus))
    return jnp.where(acted, sum(hparams[name] * x for name, x in zip(SOURCES, each, strict=True)), 0.0)


def credited(parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array, *, steps: int) -> tuple:
    """Plays, pays what the estimator said before it saw these games, and lets policy and estimator learn."""
    key = key_for(key, UPDATE, number)
    arranged = step.arrange(parts, run, hparams, key, number)
    trajectory = step.play(parts, run.learners.weights, key, arranged)
    experience = step.make_experience(parts, run, trajectory, key, arranged=arranged)
    reward, acted = experience.episodes.reward, experience.episodes.acted
    c = progress.contributions(parts, run.state.weights, experience)
    found = returns.gae(paid(c, experience, hparams), experience.turn_value, acted, lam=0.95)
    network, learnt = progress.learn(
        parts, run.state, experience, (1-hparams["graded"])*reward[..., 0].sum(1)+hparams["graded"]*reward[...,1].sum(1), hparams["network_rate"], key_for(key, ESTIMATE), steps
    )
    both = [whiten(x, acted) for x in (c, reward[..., 1])]
    metrics = {"correlation": (both[0] * both[1]).sum() / acted.sum()}
    advantages = Advantages(whiten(found.advantage, acted), found.value_target, network, metrics)
    run, metrics = step.learn_from(parts, run, hparams, trajectory, experience, advantages, key, {})
    return run, metrics | learnt


def measured(episodes: Episodes) -> dict[str, jax.Array]:
    return component_returns(episodes, solved=0) | {"fits": episodes.reward[..., 2].sum() / episodes.acted.sum()}


def while_unsolved(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """The mean correlation over the updates in which half or fewer of the chains are solved."""
    return np.nanmean(np.where(curves["solved"] <= 0.5, curves["correlation"], np.nan), 1)


def arm(**weights: Any) -> Recipe:
    return TERMINAL.with_hparams(**{"terminal": 0.0, **weights})


TERMINAL = Recipe(
    LockChain(LOCKS, turns=12, decoys=2),
    seats=(("learner",),),
    advantage=None,
    step=partial(credited, steps=8),
    init_state=progress.init,
    arrange=partial(always, deal=LOCKS),
    critic=True,
    hparams={"learning_rate": 3e-3, "network_rate": 3e-3, "bonus": BONUS, "graded": 1.0, **dict.fromkeys(SOURCES, 0.0), "terminal": 1},
    budget=1,
    updates=100,
    groups=4,
    group_size=GROUP,
    measure=measured,
    pretrained={"budget": 4},
)
WARM = lambda update: np.where(np.asarray(update) < 10, 0.0, 3e-3)
FROZ = lambda update: np.where(np.asarray(update) < 10, 3e-3, 0.0)
STUDY = Study(
    paper=Paper("SPA-RL (Wang et al.)", "https://arxiv.org/abs/2505.20732", 2025, checked="release"),
    question="Does a return that is learnt to be spread over turns speed up a long task?",
    claim="Learnt contributions solve the chain sooner than the outcome alone, and true ones no later than learnt ones.",
    arms={
        **{f"terminal{g}": TERMINAL.with_hparams(graded=float(g)) for g in (0, 1)},
        **{f"cont{g}": arm(spa=1.0, bonus=0.0, graded=float(g), learning_rate=WARM) for g in (0, 1)},
        **{f"froz{g}": arm(spa=1.0, bonus=0.0, graded=float(g), learning_rate=WARM, network_rate=FROZ) for g in (0, 1)},
        "bonus": arm(spa=1.0, learning_rate=WARM),
        "oracle": arm(oracle=1.0),
        "uniform": arm(uniform=1.0),
    },
    method="cont1",
    metrics=(UPDATES, "solved", "correlation", "fits"),
    predictions=(),
    derived={UPDATES: partial(updates_to, of="solved"), "correlation": lambda curves: curves["correlation"][:, 8:10].mean(1)},
)
