"""Should steps that several episodes share keep the outcome of each? SALT and GiGPO on chains of locks.

One seat opens up to four locks in a row within six turns; only the last lock pays. A step is an observation and the key
that is tried. The episodes of a group open the same chain, so they share most of their steps.

  episode      the episode's reward minus the group's mean, in every turn (Dr. GRPO)
  salt         mean advantage of `episode` over the episodes that took the step
  salt_before  as salt; the previous observation must be the same, too
  gigpo        `episode` plus the return minus the mean return of acts with the same observation
  to_go        the return-to-go minus the mean of the group's other episodes in the same turn

`error ratio` is the mean squared error of an arm's advantages against the exact ones, over that of `episode` in the
same games.

  python -m experiments shared_steps --seeds 10

Papers: SALT (Li et al.) 2025, https://arxiv.org/abs/2510.20022; GiGPO (Feng et al.) 2025,
https://arxiv.org/abs/2505.10978. Only the abstracts were read. They train language models on WebShop and ALFWorld, SALT
also on AppWorld; the identity of a step is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.exact_advantages import exact_advantages
from jaxmarl_llm.evaluation.exact.policy_table import tabulate
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import updates_to
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Parts, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages
from jaxmarl_llm.training.setup import jit_rollout

GAME = LockChain(locks=4, turns=6, in_order=True)
ERROR, RATIO, UPDATES = "squared error", "error ratio", "updates to 90%"
PLAIN = partial(advantages.grpo, scale="none")
Estimate = Callable[[Episodes, int], jax.Array]


def episode(episodes: Episodes, groups: int) -> jax.Array:
    return PLAIN(episodes.reward[..., 0], episodes.acted, episodes.group, groups)


def salt(episodes: Episodes, groups: int, before: int = 0) -> jax.Array:
    """Advantages averaged over shared steps; `before` counts earlier observations that must be the same, too."""
    reward, acted = episodes.reward[..., 0], episodes.acted
    told, action = episodes.told, episodes.action
    return advantages.shared_steps(
        reward, acted, episodes.group, groups, observation=told, action=action, before=before, scale="none"
    )


def gigpo(episodes: Episodes, groups: int) -> jax.Array:
    reward, acted = episodes.reward[..., 0], episodes.acted
    return advantages.step_groups(reward, acted, episodes.group, groups, observation=episodes.told, scale="none")


def to_go(episodes: Episodes, groups: int) -> jax.Array:
    return advantages.round_leave_one_out(episodes.reward[..., 0], episodes.acted, episodes.group, groups)


def against_exact(
    parts: Parts, *, estimate: Estimate, groups: int = 64
) -> Callable[[dict, jax.Array], dict[str, float]]:
    """Mean squared errors of `estimate` and of `episode` against exact advantages, over all acts of fresh games."""
    ((name, policy_set),) = parts.policy_sets.items()
    tree = solve.tree(GAME)
    table = tabulate(tree, policy_set, budget=parts.recipe.budget)
    play = jit_rollout(Rollout(GAME, {name: policy_set}, Lineup((("learner",),) * groups, 8), parts.recipe.budget))
    length = jnp.arange(groups) % GAME.locks + 1
    estimates = jax.jit(lambda episodes: (estimate(episodes, groups), episode(episodes, groups)))

    def evaluate(weights: dict, key: jax.Array) -> dict[str, float]:
        episodes = play(weights, key, length).episodes
        acted, deal = np.asarray(episodes.acted), np.repeat(np.asarray(length) - 1, 8)
        truth = exact_advantages(tree, table(weights[name]), acted, episodes.action, deal)
        error, plain = (float(((x - truth)[acted] ** 2).mean()) for x in map(np.asarray, estimates(episodes)))
        return {ERROR: error, "of episode": plain}

    return evaluate


def recipe(estimate: Estimate) -> Recipe:
    return Recipe(
        GAME,
        seats=(("learner",),),
        advantage=lambda experience, hparams, state: Advantages(estimate(experience.episodes, experience.groups)),
        budget=1,
        hparams={"learning_rate": 3e-3},
        updates=120,
        groups=2,
        measure=partial(component_returns, solved=0),
        evaluate=partial(against_exact, estimate=estimate),
        eval_every=10,
        pretrained={"budget": 4},
    )


ARMS: dict[str, Estimate] = {"episode": episode, "salt": salt, "gigpo": gigpo, "to_go": to_go}
ARMS["salt_before"] = partial(salt, before=1)
CONSISTENT = "SALT, abstract: it consistently improves group-based RL on WebShop, ALFWorld and AppWorld"
STUDY = Study(
    paper=Paper("SALT (Li et al.)", "https://arxiv.org/abs/2510.20022", 2025, checked="abstract"),
    question="Should steps that several episodes share keep the outcome of each?",
    claim="Advantages averaged over shared steps are nearer to the exact ones and learn in fewer updates.",
    arms={name: recipe(estimate) for name, estimate in ARMS.items()},
    method="salt",
    metrics=(UPDATES, "solved", RATIO),
    predictions=(
        Lower(
            RATIO,
            "salt",
            than="episode",
            source="theory",
            where="The mean over episodes that share a step keeps the expectation and lowers the variance.",
        ),
        Lower(
            RATIO,
            "salt",
            than="salt_before",
            source="theory",
            where="A stricter identity of steps averages over fewer episodes, so it removes less variance.",
        ),
        Lower(UPDATES, "salt", than="episode", source="paper", where=CONSISTENT),
        Higher("solved", "salt", than="episode", source="paper", where=CONSISTENT),
        Lower(
            UPDATES,
            "gigpo",
            than="episode",
            source="paper",
            where="GiGPO, abstract: gains over GRPO above 12% on ALFWorld and above 9% on WebShop",
        ),
    ),
    censored={UPDATES: 120},
    derived={
        UPDATES: partial(updates_to, metric="solved"),
        RATIO: lambda x: np.nansum(x[ERROR], 1) / np.nansum(x["of episode"], 1),
    },
)
