"""Does one model that has learnt from a team's dialogues play as well as the team?

A solver answers a sum, a verifier approves or rejects the answer, and after a rejection the solver answers again, three
times at most. Two policies, the team, have learnt from scripts that are right with a chance. One model then reads the
team's dialogues as single rows (`AsOne`): it plays both roles in turn, and imitates the answers in both. Texts that
a role was told carry no loss. Rewards of RL are 1 for a right last answer, to all that played.

  team       the taught team as it is
  team_grpo  the team trained further by GRPO
  sft        one model that has imitated the team's dialogues, from random weights
  sft_grpo   sft trained further by GRPO, with as many games as team_grpo
  grpo       one model trained by GRPO alone, from random weights, with as many games

GRPO leaves out groups whose rewards are all equal; there is no KL penalty and no entropy bonus, and a dual clip at 10.

  success       share of games with a right last answer, chance 1/6
  answers       answers of the solver in a game, at most 3
  tokens read   tokens that policies are told in a game, rules included
  tokens said   tokens that policies say in a game

  python -m experiments one_model --seeds 20

Paper: Chain-of-Agents (Li et al.) 2025, https://arxiv.org/abs/2508.13167. The abstract and the README of the release
were read. Its dialogues are those of models with tools, and a judge pays.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.devices.compiling import OFTEN
from jaxmarl_llm.environments.around.as_one import AsOne, Replayed
from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.teams.team_tasks import SolverVerifier
from jaxmarl_llm.keys import START, UPDATE, key_for
from jaxmarl_llm.models import loading
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.statistics import first_informative
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens, Trajectory, gather_sampled
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, NotLower, Paper, Study, Within
from jaxmarl_llm.training import step
from jaxmarl_llm.training.begin import init_run
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe
from jaxmarl_llm.training.records import Advantages, Experience
from jaxmarl_llm.training.setup import TINY, setup
from jaxmarl_llm.training.update import update
from jaxmarl_llm.training.warm_start import TINY_RATE

SUCCESS, UPDATES, LESSONS, DIALOGUES, RATE = "success", 100, 400, 64, 5e-4
METRICS = (SUCCESS, "answers", "tokens read", "tokens said")
ARMS = ("team", "team_grpo", "sft", "sft_grpo", "grpo")
SUMS = Noisy(SolverVerifier(Arithmetic(6, "+"), loops=3), (Errs("novice", "correct", (0.5, 0.75)),))


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GRPO on the right last answer; groups whose episodes are all right or all wrong are left out."""
    episodes, given = experience.episodes, experience.acts
    right = episodes.reward[..., 0]
    kept = first_informative(right, *given, kept=experience.groups)
    metrics = {SUCCESS: mean_of_kept(episodes, right[..., 0].sum(1))}
    metrics["answers"] = mean_of_kept(episodes, (episodes.acted & (episodes.role == 0)).sum((1, 2)).astype(jnp.float32))
    rows = experience.rows.values()
    of_prompts = sum(len(x.tokens) / len(x.prompts.length) * x.prompts.length.sum() for x in rows)
    said, games = sum(x.loss_mask.sum() for x in rows), len(episodes.group)
    metrics |= {"tokens said": said / games}
    metrics |= {"tokens read": (of_prompts + sum(x.length.sum() for x in rows) - said) / games}
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
ONE = replace(TEAM, game=AsOne(SUMS, listening=False), seats=(("model",),), warm_start=())
APART = replace(TEAM, groups=DIALOGUES, group_size=1, minibatches=1, advantage=estimate_advantages)


def parts_for(recipe: Recipe) -> Parts:
    return setup(recipe, TINY, sharding.mesh(), loading.load)


def as_one_rows(one: Parts, played: Trajectory, key: jax.Array) -> tuple[Rows, SampledTokens]:
    """(rows, sampled tokens): dialogues of a team, played with `key` in groups of one, as rows of one model."""
    tokenizer = one.policy_sets["model"].tokenizer
    line_up = Lineup((("recorded",),) * len(played.episodes.group), 1)
    told = Rollout(Replayed(one.recipe.game), {"team": PolicySet(tokenizer, ("recorded",))}, line_up, one.recipe.budget)
    answers = jnp.where(played.episodes.acted, played.episodes.action, 0).sum(2)
    again = told({"team": {}}, key, answers)
    rows = again.rows["team"]
    return rows, gather_sampled(rows, again.episodes.legal, told.max_sampled_tokens("team"))


def imitate(one: Parts, apart: Parts, team: dict, run: Any, key: jax.Array) -> Any:
    """The run of one model after it has imitated the dialogues of a team, fresh ones in each lesson."""
    scorer = one.rollout.layouts["model"].scorer()

    def read(learners: Any, number: jax.Array) -> tuple[Any, None]:
        event = key_for(key, START, number)
        rows, sampled = as_one_rows(one, step.play(apart, team, event), event)

        def loss(weights: dict, batch: tuple) -> Any:
            return losses.cross_entropy(scorer(weights["model"]["policy"], *batch).logp, batch[1].mask)

        rate = TINY_RATE * (1 - number / LESSONS)
        return update(apart.optimiser, loss, learners, (rows, sampled), DIALOGUES, rate, event)[0], None

    learners, _ = jax.lax.scan(read, run.learners, jnp.arange(LESSONS))
    return run.replace(learners=one.optimiser.init(learners.weights))


def train(parts: Parts, runs: tuple, rates: tuple[float, ...], key: jax.Array) -> list[dict[str, jax.Array]]:
    """The metrics [UPDATES] of each run, trained at its own rate; all play equally many games, of the same deals."""
    numbers = {name: jnp.float32(x) for name, x in parts.recipe.all_hparams.items()}

    def apply(run: Any, rate: jax.Array) -> dict[str, jax.Array]:
        learn = lambda run, number: step.on_policy_step(parts, run, numbers | {"learning_rate": rate}, key, number)
        return jax.lax.scan(learn, run, jnp.arange(UPDATES))[1]

    metrics = jax.vmap(apply)(jax.tree.map(lambda *x: jnp.stack(x), *runs), jnp.array(rates))
    return [{name: metrics[name][i] for name in METRICS} for i in range(len(runs))]


def compare(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
    """{arm: {metric: [updates]}} of one seed. Arms without training play the same games, at a rate of 0."""
    team, one, apart = (parts_for(recipe) for recipe in (TEAM, ONE, APART))
    taught, fresh = init_run(team, key), init_run(one, key)
    student = imitate(one, apart, taught.learners.weights, fresh, key)
    of_team = train(team, (taught, taught), (0.0, RATE), key)
    of_one = train(one, (student, student, fresh), (0.0, RATE, RATE), key)
    return dict(zip(ARMS, of_team + of_one, strict=True))


BOTH = 'abstract: "agentic reinforcement learning on verifiable agentic tasks to further improve the models\' capabilities"'
STUDY = Study(
    paper=Paper("Chain-of-Agents (Li et al.)", "https://arxiv.org/abs/2508.13167", 2025, checked="abstract"),
    question="Does one model that has learnt from a team's dialogues play as well as the team?",
    claim="One model that imitates a team's dialogues, then learns by RL, plays at least as well as the team.",
    arms={arm: Computed(compare, updates=UPDATES, part=arm, level=OFTEN) for arm in ARMS},
    method="sft_grpo",
    metrics=METRICS,
    predictions=(
        Higher(SUCCESS, "sft_grpo", than="sft", source="paper", where=BOTH),
    ),
)
