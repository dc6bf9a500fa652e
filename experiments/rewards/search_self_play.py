"""Does a solver get further on questions that its own policy learns to pose? Search self-play (SSP).

One policy proposes and solves (`Corpus`): a proposer walks back from an answer by up to three searches and poses a
question of so many hops; four solvers answer it by searching, each alone. It begins by imitating players that mostly
pose one hop and err often as solvers. Solvers are compared within their question (GRPO). 16 questions an update.

  co_trained    the proposer earns 1 less the solvers' success, compared with the batch's mean; a proposal that its own
                documents do not support earns 0 and never reaches a solver: an earlier valid one stands in
  frozen        only solvers learn; the proposer stays as it began
  uniform       a script poses true questions of one to three hops, each number as likely
  no_gate       every proposal is asked, true or not
  no_baseline   its reward is compared with nothing, as the released script's group of one has it

All are judged by the same true questions of one, two and three hops (`rung 1` to `rung 3`).
Predicted: co_trained ends above frozen on rungs 2 and 3, and proposes more hops; without the gate the solvers' success
in training falls to 0.2 at most (chance is 0.125), and 0.8 or more of what they are asked has another answer.

  python -m experiments search_self_play --seeds 10

Paper: Search Self-play (Lu et al.) 2025, https://arxiv.org/abs/2510.18821; there with an update a role and a penalty.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.judged.corpus import Corpus
from jaxmarl_llm.methods import pool
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl.advantages.hierarchical import hierarchical
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Common, Experience

GROUPS, KEPT, CLEARED, CORPUS = 16, 64, 10, Corpus()
CORRECT, PROPOSAL = range(2)  # components
VALID, HOPS, FALSE, REPLACED = range(4)  # measures
RUNGS = tuple(f"rung {i + 1}" for i in range(CORPUS.hops))


def game(**changed: Any) -> Noisy:
    return Noisy(replace(CORPUS, **changed), (Errs("novice", "short", (1.0, 0.75)),))


def no_questions(parts: Any, key: jax.Array) -> pool.Pool:
    return pool.empty(CORPUS.nothing().question, KEPT)


def arrange(hparams: Hparams, questions: pool.Pool, key: jax.Array, number: jax.Array) -> Arranged:
    """Each deal has documents, and a question of the pool that may stand in."""
    own, other = jax.random.split(key)
    documents = jax.vmap(CORPUS.chains.documents)(jax.random.split(own, GROUPS))
    return Arranged(deal=jax.vmap(CORPUS.stand_in)(documents, *pool.draw_items(questions, other, GROUPS)))


def of_roles(experience: Experience, hparams: Hparams, questions: pool.Pool) -> Advantages:
    """Solvers within their episode, proposers within the batch; what was valid goes into the pool."""
    episodes, reward, acts = experience.episodes, experience.episodes.reward, experience.learning_acts
    paid = jnp.where(jnp.arange(CORPUS.agents) > 0, reward[..., CORRECT], reward[..., PROPOSAL])
    compared, raw = (hierarchical(paid, *acts, compared=to, scale="std") for to in ("batch", "nothing"))
    credit = select(hparams, "baseline", roles=compared, none=raw)
    documents = experience.arranged.deal.documents[episodes.group]
    posed = jax.vmap(CORPUS.pose_question)(documents, episodes.action[..., 0])
    valid, solved = episodes.measured[..., 0, VALID].sum(1) > 0, reward[..., CORRECT].sum(1)[:, 1:].mean(1)
    return Advantages(credit, state=pool.put(questions, posed, solved, valid, CLEARED))


def interaction(episodes: Episodes) -> dict[str, jax.Array]:
    """Of the proposals, and of the questions that solvers were asked."""
    found, asked = episodes.measured[:, :, 0].sum(1), episodes.acted[..., 1:].any((1, 2))
    share = lambda x: jnp.where(asked, x, 0).sum() / jnp.maximum(asked.sum(), 1)
    return {
        "valid": found[:, VALID].mean(),
        "hops": found[:, HOPS].mean(),
        "unanswerable": share(found[:, FALSE]),
        "success": share(episodes.reward[..., CORRECT].sum(1)[:, 1:].mean(1)),
        "replaced": found[:, REPLACED].mean(),
    }


def rungs(episodes: Episodes) -> dict[str, jax.Array]:
    hops, right = episodes.measured[:, :, 0, HOPS].sum(1), episodes.reward[..., CORRECT].sum(1)[:, 1:].mean(1)
    return {name: jnp.where(hops == i + 1, right, 0).sum() / (hops == i + 1).sum() for i, name in enumerate(RUNGS)}


CO_TRAINED = Recipe(
    game(),
    seats=(("agent",) * CORPUS.agents,),
    advantage=of_roles,
    arrange=arrange,
    init_state=no_questions,
    hparams={"learning_rate": 1e-3},
    choices={"baseline": ("roles", "none")},
    warm_start=Common((("novice",) * CORPUS.agents,), group_size=2),
    warm_start_updates=400,
    budget=1,
    updates=250,
    groups=GROUPS,
    group_size=1,
    measure=interaction,
    evaluate=partial(in_fresh_games, measure=rungs, deal=CORPUS.ladder(), games=192),
    eval_every=50,
    pretrained={"budget": 8, "groups": 4, "group_size": 1},
)
STUDY = Study(
    paper=Paper("Search Self-play (Lu et al.)", "https://arxiv.org/abs/2510.18821", 2025, checked="release"),
    question="Does a solver get further on questions that its own policy learns to pose?",
    claim="A policy that learns to pose and to solve gets further than with a fixed proposer, if a gate holds it.",
    arms={
        "co_trained": CO_TRAINED,
        "frozen": replace(CO_TRAINED, seats=(("initial/agent", *("agent",) * CORPUS.solvers),)),
        "uniform": replace(CO_TRAINED, seats=(("correct", *("agent",) * CORPUS.solvers),)),
        "no_gate": replace(CO_TRAINED, game=game(gate=False)),
        "no_baseline": CO_TRAINED.with_choice(baseline="none"),
    },
    method="co_trained",
    metrics=(*RUNGS, "hops", "valid", "unanswerable", "success", "replaced"),
    predictions=(
        *(Higher(rung, "co_trained", than="frozen") for rung in RUNGS[1:]),
        Higher("hops", "co_trained", than="frozen"),
        AtMost("success", "no_gate", 0.2),
        AtLeast("unanswerable", "no_gate", 0.8),
    ),
)
