"""With which samples are proposers and solvers compared? prime-rl's hierarchical GRPO on questions of the policy.

One policy proposes and solves (`Corpus`, without a gate). A proposer poses a question of one to three hops, and four
solvers answer it. A right solver earns 1. The proposer earns 4 p (1 - p), with p the share of right solvers. Four
proposals from the same answer and documents are a group; an update has eight groups. The policy starts as in
`search_self_play`: it poses short questions and errs as a solver.

  hierarchical  solvers are compared within their proposal, proposers with the other proposals of their group
  pooled        proposers and solvers of all proposals of a group are compared with one mean (GRPO)
  uncompared    solvers are compared within their proposal, proposers with nothing

No advantage is divided by a standard deviation. Metrics:

  rung 1, rung 2, rung 3  accuracy on true questions of one, two and three hops
  learnability            a proposer's reward in training

Predictions: learnability and rung 2 are higher with hierarchical than with pooled. Learnability is higher with
hierarchical than with uncompared.

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
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, no_state
from jaxmarl_llm.training.records import Advantages, Experience


def credit(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Advantages of each role's reward, with the arm's comparison."""
    reward, acts = experience.episodes.reward, experience.learning_acts
    proposes = jnp.arange(reward.shape[2]) == 0
    paid = jnp.where(proposes, reward[..., PROPOSAL], reward[..., CORRECT])
    grouped, raw = (hierarchical(paid, *acts, compared=to) for to in ("group", "nothing"))
    pooled = advantages.grpo(paid, *acts, scale="none")
    return Advantages(select(hparams, "credit", hierarchical=grouped, pooled=pooled, uncompared=raw))


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    learnability = mean_of_kept(episodes, episodes.reward[..., PROPOSAL].sum((1, 2)))
    return CO_TRAINED.measure(episodes) | {"learnability": learnability}


HIERARCHICAL = replace(
    CO_TRAINED,
    choices={"credit": ("hierarchical", "pooled", "uncompared")},
    game=replace(CO_TRAINED.game, game=replace(CO_TRAINED.game.game, gate=False, pays="intermediate")),
    advantage=credit,
    arrange=None,
    init_state=no_state,
    groups=8,
    group_size=4,
    measure=measure,
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
        Higher(
            "learnability",
            "hierarchical",
            than="pooled",
            source="theory",
            where="A mean over both roles carries the solvers' difficulty into the proposer's advantage.",
        ),
        Higher(
            "learnability",
            "hierarchical",
            than="uncompared",
            source="theory",
            where="Every proposal is pushed up without a comparison, which adds variance.",
        ),
        Higher(
            "rung 2",
            "hierarchical",
            than="pooled",
            source="theory",
            where="One mean praises solvers of easy questions for the proposer's choice. The pull request gives this "
            "reason without a result.",
        ),
    ),
)
