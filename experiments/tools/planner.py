"""Must a planner learn inside the flow, and alone? AgentFlow's Flow-GRPO and AI-SearchPlanner on a chain of look-ups.

A planner names look-ups of keys and a tool, an executor does them, a verifier stops, a generator answers (`Flow`). A
question takes two look-ups, the second of the entry of the first, and then the tool, within five steps. Tiny policies
have imitated scripts that err: the planner with a chance of 0.5, executor 0.1, verifier 0.03, generator 0.03. With a
planner that does not err the team solves 0.853 of the questions. A group is eight games of a question. KL 0.001,
no entropy bonus, clips 0.2 and 0.3.

  rollouts      the planner learns, beside scripts that err; statistics of a group have one vote per game
  rows          the same with one vote per turn of the planner, so that long games weigh more, as released
  sft           the planner imitates the successes of the untrained planner, in as many games and updates
  untrained     nothing learns
  all           one policy in all four seats learns, with one reward for all
  planner_cost, all_cost  as rollouts and as all, each step costs 0.02 points, without the group's deviation: divided by
                it, any price is the whole advantage in groups of failures

  success       share of 512 fresh games that are solved, with the weights after training; per search: over their steps
  steps, slips  steps of a game; share of games in which another seat than the planner errs

  python -m experiments planner --seeds 20

Papers: AgentFlow (Li et al.) 2025, https://arxiv.org/abs/2510.05592, abstract and release. AI-SearchPlanner (Mei et
al.) 2025, https://arxiv.org/abs/2508.20368, abstract; its reward for the plan as the generator judges it is left out.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.teams.flow import EXECUTOR, PLANNER, Flow
from jaxmarl_llm.keys import UPDATE, key_for
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study
from jaxmarl_llm.training import step
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe
from jaxmarl_llm.training.records import Advantages, Experience, Run
from jaxmarl_llm.training.scoring import Weights

SUCCESS, RATIO, STEPS, SLIPS, PRICE = "success", "success per search", "steps", "slips", 0.02


def measure(episodes: Episodes) -> step.Metrics:
    assert episodes.measured is not None
    solved, steps = episodes.reward[:, :, PLANNER, 0].sum(1), episodes.measured[:, :, PLANNER, 0].sum(1)
    slips = (episodes.measured[:, :, EXECUTOR:, 1].sum((1, 2)) > 0).astype(jnp.float32)
    means = mean_of_kept(episodes, jnp.stack([solved, steps, slips], 1), axis=0)
    return {SUCCESS: means[0], STEPS: means[1], RATIO: means[0] / jnp.maximum(means[1], 1e-6), SLIPS: means[2]}


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GRPO over the acts of seats that learn, of points less the price of steps; 1 for each success in `sft`."""
    episodes, acts = experience.episodes, experience.learning_acts
    assert episodes.measured is not None
    points = episodes.reward[..., 0] - hparams["price"] * episodes.measured[:, :, :1, 0]
    by_game, by_turn = (advantages.grpo(points, *acts, weight=weight) for weight in ("episode", "turn"))
    success = jnp.broadcast_to(episodes.reward[:, :, :1, 0].sum(1, keepdims=True), by_game.shape)
    by_mean = advantages.grpo(points, *acts, scale="none")
    return Advantages(select(hparams, "credit", rollouts=by_game, rows=by_turn, successes=success, means=by_mean))


def balanced_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """PPO with the KL to the start, or the cross-entropy of the acts of successes."""
    assert batch.reference_logp is not None
    clip, metrics = losses.ppo(scores, batch, hparams)
    kl = losses.kl_penalty(scores.logp, batch.reference_logp, batch.mask)[0]
    imitation = losses.cross_entropy(scores.logp, batch.mask & (batch.advantage > 0))[0]
    played = Mean(clip.sum + hparams["kl"] * kl.sum, clip.count)
    return select(hparams, "credit", rollouts=played, rows=played, successes=imitation, means=played), metrics


def choose_player(run: Run, hparams: Hparams) -> Weights:
    """The weights that play: those that learn, or in `sft` those from before training."""
    now, before = run.learners.weights, {name: {"policy": x} for name, x in run.initial.items()}
    return select(hparams, "credit", rollouts=now, rows=now, successes=before, means=now)


def flow_step(parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array) -> tuple[Run, step.Metrics]:
    key = key_for(key, UPDATE, number)
    return step.learn(parts, run, hparams, step.play(parts, choose_player(run, hparams), key), key, {})


ALL = Recipe(
    Flow(keys=4, marks=8, hops=2, fewest=2, steps=5, noise=(0.5, 0.1, 0.03, 0.03)),
    seats=(("learner",) * 4,),
    advantage=estimate_advantages,
    loss=balanced_loss,
    step=flow_step,
    hparams={"learning_rate": 2e-3, "price": 0.0, "kl": 1e-3, "entropy": 0.0, "clip_high": 0.3},
    choices={"credit": ("rollouts", "rows", "successes", "means")},
    reference=True,
    warm_start=(("erring",) * 4,),
    warm_start_updates=200,
    budget=1,
    updates=100,
    groups=8,
    evaluate=partial(in_fresh_games, measure=measure, games=512),
    eval_every=20,
    pretrained={"budget": 4},
)
START = dataclasses.replace(ALL, step=step.only_play, updates=1)
ROLLOUTS = dataclasses.replace(ALL, seats=(("learner", *("erring",) * 3),), warm_start=START)
OFFLINE = 'abstract: "offline training decoupled from the live dynamics"; "benefits of in-the-flow optimization"'
SINGLE = 'AI-SearchPlanner, abstract: better than agents of "a single LLM" in "both effectiveness and efficiency"'
ROOM = "A team that always or never solves, or whose other seats never err, tests no planner. Our levels."
DEAR = "A price at which a team guesses after one step, with 1/8 solved, compares no searches. Our level."
STUDY = Study(
    paper=Paper("AgentFlow (Li et al.)", "https://arxiv.org/abs/2510.05592", 2025, checked="release"),
    question="Must a planner learn inside the flow, and alone?",
    claim="A planner trained in the flow beats one trained offline; alone it also searches better than a trained team.",
    arms={"rollouts": ROLLOUTS, "rows": ROLLOUTS.with_choice(credit="rows")}
    | {"sft": ROLLOUTS.with_choice(credit="successes"), "untrained": ROLLOUTS.with_hparams(learning_rate=0.0)}
    | {"all": ALL, "planner_cost": ROLLOUTS.with_hparams(price=PRICE).with_choice(credit="means")}
    | {"all_cost": ALL.with_hparams(price=PRICE).with_choice(credit="means")},
    method="rollouts",
    metrics=(SUCCESS, RATIO, STEPS, SLIPS),
    predictions=(
        Higher(SUCCESS, "rollouts", than="sft", source="paper", where=OFFLINE),
        Higher(SUCCESS, "rollouts", than="untrained", source="paper", where=OFFLINE),
        Higher(RATIO, "planner_cost", than="all_cost", source="paper", where=SINGLE),
        AtLeast(SUCCESS, "untrained", 0.1, source="theory", where=ROOM, condition=True),
        AtMost(SUCCESS, "untrained", 0.6, source="theory", where=ROOM, condition=True),
        AtLeast(SLIPS, "untrained", 0.2, source="theory", where=ROOM, condition=True),
        *(AtLeast(STEPS, x, 2.0, source="theory", where=DEAR, condition=True) for x in ("planner_cost", "all_cost")),
    ),
)
