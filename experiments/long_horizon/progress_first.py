"""tbd"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.lock_chain import LockChain
from jaxmarl_llm.environments.noisy import Errs, Noisy
from jaxmarl_llm.keys import UPDATE, key_for
from jaxmarl_llm.rl import returns, rewards
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import at_first, updates_to
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training import progress, step
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe, always, component_returns
from jaxmarl_llm.training.setup import Parts

LOCKS, TURNS, UPDATES, SOURCES = 8, 16, "updates to 90%", ("terminal", "learnt", "true")


def paid(c: jax.Array, experience: Experience, hparams: Hparams) -> jax.Array:
    """What each turn is paid [B, T, A]: the sources weighed by their hparams, the bonus, less the divergence."""
    acted, reward, ((name, sampled),) = experience.episodes.acted, experience.episodes.reward, experience.sampled.items()
    each = rewards.at_end(reward[..., 1], acted), c, reward[..., 1]
    total = sum(hparams[name] * x for name, x in zip(SOURCES, each, strict=True)) + hparams["bonus"] * reward[..., 2]
    log_ratio = sampled.behaviour_logp - experience.reference_logp[name]
    return jnp.where(acted, total, 0) - hparams["kl"] * progress.by_turn(experience, name, log_ratio)


def outcome(experience: Experience) -> jax.Array:
    """The share of the locks that are open in the end, float32 [B, A]."""
    return experience.episodes.reward[..., 1].sum(1)


def compared(c: jax.Array, experience: Experience) -> dict[str, jax.Array]:
    """Contributions with the true ones, those of the turn before, and their sum with the outcome."""
    true, acted, total = experience.episodes.reward[..., 1], experience.episodes.acted, outcome(experience)
    before = jnp.pad(true[:, :-1], ((0, 0), (1, 0), (0, 0)))
    correlation = lambda x: (whiten(c, acted) * whiten(x, acted)).sum() / acted.sum()  # noqa: E731
    explained = 1 - ((total - c.sum(1)) ** 2).mean() / jnp.maximum(total.var(), 1e-6)
    return {"correlation": correlation(true), "with the turn before": correlation(before), "explained": explained}


def ppo(parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array, *, reply: bool) -> tuple:
    """PPO from what each turn is paid; before the first update the estimator, if there is one, learns."""
    key, network = key_for(key, UPDATE, number), run.state
    if network:
        teach = partial(progress.taught, total=outcome, rounds=120, steps=3, reply=reply)
        network = jax.lax.cond(number == 0, lambda: teach(parts, run, hparams, key), lambda: network)
    trajectory, experience = progress.games(parts, run, hparams, key, number)
    acted, c, metrics = experience.episodes.acted, jnp.float32(0), {}
    if network:
        c = progress.contributions(parts, network.weights, experience, reply)
        metrics = compared(c, experience)
    found = returns.gae(paid(c, experience, hparams), experience.turn_value, acted, lam=hparams["lam"])
    own = Advantages(whiten(found.advantage, acted), found.value_target, network, metrics)
    return step.learn_from(parts, run, hparams, trajectory, experience, own, key, {})


def measured(episodes: Episodes) -> dict[str, jax.Array]:
    found = component_returns(episodes, solved=0, open=1)
    return found | {"fits": episodes.reward[..., 2].sum() / episodes.acted.sum()}


TERMINAL = Recipe(
    Noisy(LockChain(LOCKS, TURNS, decoys=2), (Errs("novice", "correct", 0.35),)),
    seats=(("learner",),),
    advantage=None,
    step=partial(ppo, reply=False),
    arrange=partial(always, deal=LOCKS),
    critic=True,
    reference=True,
    hparams=dict.fromkeys(SOURCES, 0.0)
    | {"terminal": 1.0, "bonus": 0.0, "kl": 0.01, "lam": 0.95, "learning_rate": 3e-3, "network_rate": 3e-3, "entropy": 0.0},
    warm_start=(("novice",),),
    budget=1,
    updates=60,
    groups=4,
    group_size=8,
    measure=measured,
    pretrained={"budget": 4},
)
PLAIN = replace(TERMINAL.with_hparams(terminal=0.0, learnt=1.0), init_state=progress.init)
BONUS = 0.02
ONE = {
        "terminal": TERMINAL,
        "bonus": TERMINAL.with_hparams(bonus=BONUS),
        "true": TERMINAL.with_hparams(terminal=0.0, true=1.0),
        "spa": PLAIN.with_hparams(bonus=BONUS),
        "plain": PLAIN,
        "large": PLAIN.with_hparams(bonus=0.5),
        "reply": replace(PLAIN, step=partial(ppo, reply=True)),
}
STUDY = Study(
    paper=Paper("SPA-RL (Wang et al.)", "https://arxiv.org/abs/2505.20732", 2025, checked="release"),
    question="Do contributions that are learnt first, from a cloned policy's games, beat the outcome alone?",
    claim="tbd",
    arms=ONE | {f"short/{n}": a.with_hparams(lam=0.36) for n, a in ONE.items()},
    method="spa",
    metrics=(UPDATES, "solved", "fits", "correlation", "with the turn before", "explained"),
    predictions=(Lower(UPDATES, "spa", than="terminal"),),
    derived={
        UPDATES: partial(updates_to, of="solved"),
        **{name: partial(at_first, of=name) for name in ("correlation", "with the turn before", "explained")},
    },
)
