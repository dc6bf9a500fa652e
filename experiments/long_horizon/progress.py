"""Does a learned spread of the return over turns speed up a long task? SPA-RL on chains of locks.

One seat opens four locks within eight turns and tries one key per turn. Each lock's colour is drawn from four, and two
of the six keys fit no lock. At the end the seat is paid R, the share of open locks. A network predicts a contribution
c_t for each turn. It minimises (sum_t c_t - R)^2 on each update's games, after it has predicted their c_t. The reward
of turn t:

  terminal  R, in the last turn
  spa       c_t + 0.02 g_t, with g_t = 1 for a key that fits some lock
  plain     c_t
  oracle    1/4 for each lock that opens, the true contribution
  uniform   R / turns
  released  (n - t) (R - mean R of the group's other games + 0.02 g_t), for n turns, t from 1. In SPA-RL's release the
            outcome overwrites c_t, and a turn is multiplied by the number of turns after it
  large     c_t + 0.5 g_t, the release's weight of the bonus

Advantages are returns-to-go minus those of the group's other games. In `critic/...` they are PPO's, with a value head
and GAE from turn to turn (lambda 0.95).

  correlation  correlation of c_t and the true contribution in a batch, mean over the updates with at most half of the
               chains solved
  fits         share of keys that fit some lock

  python -m experiments progress --seeds 10

Paper: SPA-RL (Wang et al.) 2025, https://arxiv.org/abs/2505.20732
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.keys import ESTIMATE, UPDATE, key_for
from jaxmarl_llm.methods import spa_rl
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import mean_while, updates_to
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training import step
from jaxmarl_llm.training.left_out import are_kept
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, always, measure_totals
from jaxmarl_llm.training.records import Advantages, Experience

LOCKS, GROUP, UPDATES, SOURCES = 4, 8, "updates to 90%", ("terminal", "spa", "oracle", "uniform", "released")
SOLVED, FITS = range(2)  # measures


def compute_reward(c: jax.Array, experience: Experience, hparams: Hparams) -> jax.Array:
    """The reward of each turn [B, T, A] from the arm's source in SOURCES."""
    acted = experience.episodes.acted
    true, bonus = experience.episodes.total_reward, hparams["bonus"] * experience.episodes.measured[..., FITS]
    total, n = true.sum(1, keepdims=True), acted.sum(1, keepdims=True)
    follow = n - 1 - jnp.arange(acted.shape[1])[None, :, None]
    mean = total.reshape(-1, GROUP, 1, 1).mean(1, keepdims=True)
    outcome = (total.reshape(-1, GROUP, 1, 1) - mean).reshape(total.shape) * GROUP / (GROUP - 1)
    rewards = (total * (follow == 0), c + bonus, true, total / n, follow * (outcome + bonus))
    return jnp.where(acted, select(hparams, "reward", **dict(zip(SOURCES, rewards, strict=True))), 0.0)


def credit_step(
    parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array, *, steps: int
) -> tuple:
    """A recipe's step: plays games, pays contributions of the estimator so far, then trains policy and estimator."""
    key = key_for(key, UPDATE, number)
    trajectory, experience = spa_rl.games(parts, run, hparams, key, number)
    true, acted = experience.episodes.total_reward, experience.episodes.acted
    c = spa_rl.contributions(parts, run.state.weights, experience)
    reward = compute_reward(c, experience, hparams)
    with_critic = returns.gae(reward, experience.turn_value, acted, lam=0.95)
    without = advantages.round_leave_one_out(reward, *experience.acts)
    advantage = whiten(select(hparams, "baseline", group=without, critic=with_critic.advantage), acted)
    metrics = spa_rl.compare_contributions(c, true, acted)
    lesson = experience, true.sum(1), hparams["network_rate"], key_for(key, ESTIMATE), steps
    network, learnt = spa_rl.learn(parts, run.state, *lesson)
    targets = Advantages(advantage, with_critic.value_target, network, metrics)
    run, metrics = step.learn_from(parts, run, hparams, trajectory, experience, targets, key, {})
    return run, metrics | learnt


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    fits = jnp.where(are_kept(episodes)[:, None, None], episodes.measured[..., FITS], 0).sum() / episodes.acted.sum()
    return measure_totals(episodes, solved=SOLVED) | {"fits": fits}


TERMINAL = Recipe(
    LockChain(LOCKS, turns=8, decoys=2, pays="progress"),
    seats=(("learner",),),
    advantage=None,
    step=partial(credit_step, steps=8),
    init_state=spa_rl.init,
    arrange=partial(always, deal=LOCKS),
    critic=True,  # the value head learns nothing and is not used if `value` is 0
    hparams={"bonus": 0.02, "value": 0.0, "learning_rate": 3e-3, "network_rate": 3e-3},
    choices={"reward": SOURCES, "baseline": ("group", "critic")},
    budget=1,
    updates=60,
    groups=4,
    group_size=GROUP,
    measure=measure,
    pretrained={"budget": 4},
)
SPA = TERMINAL.with_choice(reward="spa")
CRITIC = TERMINAL.with_choice(baseline="critic").with_hparams(value=0.5)
SUCCESS = "abstract: success up by 2.5% on average over the state of the art"
SEEN = "seeds 100 to 102"
STUDY = Study(
    paper=Paper("SPA-RL (Wang et al.)", "https://arxiv.org/abs/2505.20732", 2025, checked="release"),
    question="Does a return that is learnt to be spread over turns speed up a long task?",
    claim="Contributions that are learnt meanwhile beat an even spread and the outcome alone; true ones are faster.",
    arms={
        "terminal": TERMINAL,
        "spa": SPA,
        "plain": SPA.with_hparams(bonus=0.0),
        **{name: TERMINAL.with_choice(reward=name) for name in ("oracle", "uniform", "released")},
        "large": SPA.with_hparams(bonus=0.5),
        "critic/terminal": CRITIC,
        "critic/spa": CRITIC.with_choice(reward="spa"),
    },
    method="spa",
    metrics=(UPDATES, "solved", "correlation", "fits"),
    predictions=(
        Lower(UPDATES, "spa", than="terminal", source="paper", where=SUCCESS),
        Lower(UPDATES, "critic/spa", than="critic/terminal", source="paper", where=f"{SUCCESS}; PPO, as there"),
        Higher(
            "fits", "spa", than="terminal", source="paper", where="abstract: grounding accuracy up by 1.9% on average"
        ),
        Lower(UPDATES, "spa", than="uniform", source="pilot", where=SEEN),
        Lower(
            UPDATES, "spa", than="plain", source="pilot", where=f"{SEEN}; the abstract states no ablation of the bonus"
        ),
        Lower(
            UPDATES,
            "oracle",
            than="spa",
            source="theory",
            where="True contributions are the estimator's target without its error: equal returns-to-go, less noise.",
        ),
        Higher("fits", "spa", than="plain", source="theory", where="A key that fits some lock earns 0.02 more."),
        Higher(
            "fits", "large", than="spa", source="theory", where="A key that fits some lock earns 0.5 in place of 0.02."
        ),
        Lower(
            "solved",
            "large",
            than="spa",
            source="pilot",
            where=f"{SEEN}: a wrong key that fits earns 0.5 in each turn, a solved chain ends the game",
        ),
    ),
    censored={UPDATES: TERMINAL.updates},
    x="update of 32 games",
    derived={
        UPDATES: partial(updates_to, metric="solved"),
        "correlation": partial(mean_while, metric="correlation", low="solved"),
    },
)
