"""draft"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.lock_chain import LockChain
from jaxmarl_llm.environments.noisy import Errs, Noisy
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import mean_over_updates, updates_to
from jaxmarl_llm.studies.study import AtMost, Higher, Paper, Study
from jaxmarl_llm.training.recipe import Advantages, Common, Experience, Arranged, Hparams, Recipe, always

import os
import dataclasses
TURNS = 100
HASTY = Errs("hasty", "correct", float(os.environ.get("HASTY", .6)))
OPENED, SOLVED, OVER_ALL = "opened", "solved", "over all"


def arranged(hparams, state, key, number):
    return Arranged(deal=hparams["locks"].round().astype(jnp.int32))


def true_value(p, locks, gamma, dense):
    """[turns left + 1, locks left + 1]: the value of a player who is right in each turn with probability p."""
    paid = jnp.where(dense > 0, 1 / locks, jnp.arange(1, TURNS + 1) == 1)

    def longer(value: jax.Array, _: Any) -> tuple[jax.Array, jax.Array]:
        moved = p * (paid + gamma * value[:-1]) + (1 - p) * gamma * value[1:]
        after = jnp.concatenate([jnp.zeros(1), moved])
        return after, after

    none = jnp.zeros(TURNS + 1)
    return jnp.concatenate([none[None], jax.lax.scan(longer, none, None, TURNS)[1]])


def error(experience, hparams):
    episodes, acted = experience.episodes, experience.episodes.acted
    opened = jnp.round(episodes.reward[..., 1] * hparams["locks"])
    before = (jnp.cumsum(opened, 1) - opened)
    left = TURNS - jnp.arange(acted.shape[1])[None, :, None]
    true = true_value(opened.sum() / acted.sum(), hparams["locks"], hparams["gamma"], hparams["dense"])[left, (hparams["locks"] - before).round().astype(int)]
    v=whiten(experience.turn_value,acted); t=whiten(true,acted)
    off = jnp.where(acted, experience.turn_value - true, 0)
    return jnp.sqrt((off**2).sum()/acted.sum()), (v*t).sum()/acted.sum(), jnp.where(acted,true,0).sum()/acted.sum()


def credited(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    solved, opened, acted = *jnp.moveaxis(experience.episodes.reward, -1, 0), experience.episodes.acted
    paid = jnp.where(hparams["dense"] > 0, opened, solved)
    critic = returns.gae(paid, experience.turn_value, acted, gamma=hparams["gamma"], lam=hparams["lam"])
    grpo = advantages.grpo(paid, *experience.acts)
    batch = advantages.reinforce_plus_plus(paid, *experience.acts, gamma=hparams["gamma"])
    advantage = jnp.where(hparams["value"] > 0, whiten(critic.advantage, acted), jnp.where(hparams["grouped"] > 0, grpo, batch))
    e,c,m=error(experience,hparams)
    found = {"error": e, "corr": c, "true":m}
    return Advantages(advantage, critic.value_target, metrics=found)


def measured(episodes: Episodes) -> dict[str, jax.Array]:
    right = episodes.reward[..., 1]>0
    return {SOLVED: episodes.reward[..., 0].sum(1).mean(), OPENED: episodes.reward[..., 1].sum(1).mean(), "right": right.sum() / episodes.acted.sum()}


COLD = Recipe(
    Noisy(LockChain(TURNS, turns=TURNS, decoys=0), (HASTY,)),
    seats=(("learner",),),
    advantage=credited,
    arrange=arranged,
    critic=True,
    hparams={"dense": 0.0, "grouped": 0.0, "value": 0.0, "entropy": 0.0, "learning_rate": 3e-3,"gamma":.99,"lam":.95,"locks":65},
    budget=1,
    updates=int(os.environ.get("UPD", 20)),
    groups=int(os.environ.get("GROUPS_",2)),
    group_size=int(os.environ.get("GSIZE",8)),
    measure=measured,
    pretrained={"budget": 4},
)
WARM = dataclasses.replace(COLD, warm_start=Common(((HASTY.name,),), group_size=2), warm_start_updates=int(os.environ.get("WARM", 60)))
CREDIT: dict[str, dict[str, Any]] = {"critic": {"value": .5}, "grpo": {"grouped": 1.0}, "reinforce++": {}}
ARMS = {
    f"{start}{reward}/{name}": recipe.with_hparams(dense=dense, locks=100 if dense else 65, **own)
    for start, recipe in (("", WARM), ("cold/", COLD))
    for reward, dense in (("dense", 1.0), ("sparse", 0.0))
    for name, own in CREDIT.items()
}
STUDY = Study(
    paper=Paper("Odysseus (Shi et al.)", "https://arxiv.org/abs/2605.00347", 2026, checked="abstract"),
    question="What learns a task of a hundred turns: a critic of turns, the mean of a group, or imitation first?",
    claim="",
    arms=ARMS,
    method="dense/critic",
    metrics=(SOLVED, OPENED, OVER_ALL, "right", "error"),
    predictions=(),
    derived={OVER_ALL: partial(mean_over_updates, of=OPENED)},
)
