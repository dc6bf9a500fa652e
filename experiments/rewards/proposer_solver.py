"""With whom are proposers and solvers compared? prime-rl's hierarchical GRPO on questions that a policy poses itself.

One policy proposes and solves (`Corpus`, without a gate): a proposer poses a question of one to three hops and earns
4 p (1 - p), p the share of four solvers who are right; a solver earns 1 if it is. Four proposals from the same answer
and documents are a group, eight groups an update. It begins as in `search_self_play`: short questions, solvers who err.

  hierarchical  solvers are compared within their proposal, proposers with the other proposals of their group
  pooled        all of a group, proposers and solvers of all its proposals, with one mean (GRPO)
  uncompared    solvers within their proposal, proposers with nothing

No standard deviation divides. All are judged by true questions of one, two and three hops (`rung 1` to `rung 3`).
Predicted: `learnability`, what proposers earn in training, and the second rung are higher with hierarchical than
pooled, and learnability than with uncompared.

  python -m experiments proposer_solver --seeds 10

Source: hierarchical_grpo of prime-rl, 2026, https://github.com/PrimeIntellect-ai/prime-rl/pull/3138, and verifiers'
proposer-solver environment, which pays 4 p (1 - p). There proposers write problems with code and solvers are larger.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from experiments.rewards.search_self_play import CO_TRAINED, CORRECT, PROPOSAL, RUNGS
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.advantages.hierarchical import hierarchical
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, no_state
from jaxmarl_llm.training.records import Advantages, Experience


def credit(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """The reward of each role, compared as the arm says."""
    reward, acts = experience.episodes.reward, experience.learning_acts
    proposes = jnp.arange(reward.shape[2]) == 0
    paid = jnp.where(proposes, reward[..., PROPOSAL], reward[..., CORRECT])
    grouped, raw = (hierarchical(paid, *acts, compared=to) for to in ("group", "nothing"))
    pooled = advantages.grpo(paid, *acts, scale="none")
    return Advantages(select(hparams, "credit", hierarchical=grouped, pooled=pooled, uncompared=raw))


def learnt(episodes: Episodes) -> dict[str, jax.Array]:
    return CO_TRAINED.measure(episodes) | {"learnability": episodes.reward[..., PROPOSAL].sum((1, 2)).mean()}


HIERARCHICAL = replace(
    CO_TRAINED,
    choices={"credit": ("hierarchical", "pooled", "uncompared")},
    game=replace(CO_TRAINED.game, game=replace(CO_TRAINED.game.game, gate=False, pays="intermediate")),
    advantage=credit,
    arrange=None,
    init_state=no_state,
    groups=8,
    group_size=4,
    measure=learnt,
)
STUDY = Study(
    paper=Paper(
        "hierarchical GRPO (prime-rl)",
        "https://github.com/PrimeIntellect-ai/prime-rl/pull/3138",
        2026,
        checked="abstract",
    ),
    question="With whom are proposers and solvers compared?",
    claim="Comparing solvers within a proposal and proposers within their group beats one mean for all, and none.",
    arms={
        "hierarchical": HIERARCHICAL,
        "pooled": HIERARCHICAL.with_choice(credit="pooled"),
        "uncompared": HIERARCHICAL.with_choice(credit="uncompared"),
    },
    method="hierarchical",
    metrics=(*RUNGS, "learnability", "hops", "unanswerable", "success"),
    predictions=(
        Higher("learnability", "hierarchical", than="pooled"),
        Higher("learnability", "hierarchical", than="uncompared"),
        Higher("rung 2", "hierarchical", than="pooled"),
    ),
)
