"""Does one model that has learnt from a team's dialogues play as well as the team?

A solver answers a sum, a verifier approves or rejects the answer, and after a rejection the solver answers again, three
times at most. Two policies, the team, have imitated scripts that are right with chances of 0.5 and 0.75. One model
imitates both roles in their dialogues, each a single row (`AsOne`); texts told to a role carry no loss.

  team       the taught team as it is
  team_grpo  the team trained further by GRPO
  sft        one model that has imitated the team's dialogues, from random weights
  sft_grpo   sft trained further by GRPO, with as many games as team_grpo
  grpo       one model trained by GRPO alone, from random weights, with as many games

GRPO pays 1 for a right last answer and leaves out groups of equal rewards; no KL, no entropy bonus, dual clip 10.

  success       share of games with a right last answer, chance 1/6
  answers       answers of the solver in a game, at most 3
  tokens read   tokens that policies are told in a game, rules included
  tokens said   tokens that policies say in a game

  python -m experiments one_model --seeds 20

Paper: Chain-of-Agents (Li et al.) 2025, https://arxiv.org/abs/2508.13167: abstract.
"""

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.devices.compiling import OFTEN
from jaxmarl_llm.environments.around.as_one import AsOne
from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.teams.team_tasks import SolverVerifier
from jaxmarl_llm.methods.chain_of_agents import imitate_team, train_side_by_side
from jaxmarl_llm.models import loading
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.statistics import first_informative
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, NotLower, Paper, Study, Within
from jaxmarl_llm.training.begin import init_run
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience
from jaxmarl_llm.training.setup import TINY, setup
from jaxmarl_llm.training.step import only_play

SUCCESS, UPDATES, LESSONS, DIALOGUES, RATE = "success", 50, 400, 64, 5e-4
METRICS = (SUCCESS, "answers", "tokens read", "tokens said")
ARMS = ("team", "team_grpo", "sft", "sft_grpo", "grpo")
SUMS = Noisy(SolverVerifier(Arithmetic(6, "+"), loops=3), (Errs("novice", "correct", (0.5, 0.75)),))


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GRPO on the right last answer; groups whose episodes are all right or all wrong are left out."""
    episodes, given = experience.episodes, experience.acts
    right = episodes.reward[..., 0]
    kept = first_informative(right, *given, kept=experience.groups)
    rows, solves = experience.rows.values(), episodes.acted & (episodes.role == 0)
    of_prompts = sum(len(x.tokens) / len(x.prompts.length) * x.prompts.length.sum() for x in rows)
    said, games = sum(x.loss_mask.sum() for x in rows), len(episodes.group)
    metrics = {
        SUCCESS: mean_of_kept(episodes, right[..., 0].sum(1)),
        "answers": mean_of_kept(episodes, solves.sum((1, 2)).astype(jnp.float32)),
        "tokens read": (of_prompts + sum(x.length.sum() for x in rows) - said) / games,
        "tokens said": said / games,
    }
    return Advantages(advantages.grpo(right, *given), trained=kept, metrics=metrics)


def clipped_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    bounds = {name: hparams[name] for name in ("clip_low", "clip_high")}
    return losses.ppo_clip(scores.logp, batch.behaviour_logp, batch.advantage, batch.mask, dual_clip=10.0, **bounds)


TEAM = Recipe(
    SUMS,
    seats=(("solver", "verifier"),),
    advantage=estimate_advantages,
    loss=clipped_loss,
    hparams={"learning_rate": RATE, "entropy": 0.0},
    warm_start=(("novice", "novice"),),
    warm_start_updates=LESSONS,
    budget=1,
    groups=16,
    group_size=8,
    minibatches=2,
    updates=UPDATES,
)
SINGLE = replace(TEAM, game=AsOne(SUMS, listening=False), seats=(("model",),), warm_start=())
APART = replace(TEAM, groups=DIALOGUES, group_size=1, minibatches=1, advantage=None, step=only_play)


def compare(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
    """{arm: {metric: [updates]}} of one seed. Arms that do not learn play the same games, at a rate of 0."""
    team, single, apart = (setup(x, TINY, sharding.mesh(), loading.load) for x in (TEAM, SINGLE, APART))
    taught, fresh = init_run(team, key), init_run(single, key)
    student = imitate_team(single, apart, taught.learners.weights, fresh, key, LESSONS)
    of_team = train_side_by_side(team, (taught, taught), (0.0, RATE), key)
    of_single = train_side_by_side(single, (student, student, fresh), (0.0, RATE, RATE), key)
    curves = {name: jnp.concatenate([of_team[name], of_single[name]]) for name in METRICS}
    return {arm: {name: x[i] for name, x in curves.items()} for i, arm in enumerate(ARMS)}


ADDS = 'abstract: "We then use agentic reinforcement learning on verifiable agentic tasks to further improve"'
LEVEL = "The level is ours: a team that never or always succeeds teaches nothing."
EQUAL = "No role knows more than the one row, which has the same games of RL. The margin is ours."
LEARNT = "Imitation must have copied the team's play, its errors included. The margin is ours."
ALONE = "If random weights reach the team's level by RL alone, nothing is left for dialogues to teach."
STUDY = Study(
    paper=Paper("Chain-of-Agents (Li et al.)", "https://arxiv.org/abs/2508.13167", 2025, checked="abstract"),
    question="Does one model that has learnt from a team's dialogues play as well as the team?",
    claim="One model that imitates a team's dialogues, then learns by RL, plays as well as the team, and RL adds.",
    arms={arm: Computed(compare, updates=UPDATES, part=arm, level=OFTEN) for arm in ARMS},
    method="sft_grpo",
    metrics=METRICS,
    predictions=(
        Higher(SUCCESS, "sft_grpo", than="sft", source="paper", where=ADDS),
        NotLower(SUCCESS, "sft_grpo", than="team_grpo", by=0.03, source="theory", where=EQUAL),
        AtLeast(SUCCESS, "team", 0.5, source="theory", where=LEVEL, condition=True),
        AtMost(SUCCESS, "team", 0.9, source="theory", where=LEVEL, condition=True),
        Within(SUCCESS, "sft", than="team", by=0.1, source="theory", where=LEARNT, condition=True),
        Lower(SUCCESS, "grpo", than="team", source="theory", where=ALONE, condition=True),
    ),
)
