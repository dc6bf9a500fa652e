"""How should a fixed number of episodes be split between imitation and RL? Demonstrations, then PPO, RLOO or GRPO.

A seat finds two of three things, in an order, in three rooms, within 10 turns; each of the two pays 1/2. A policy
begins with random weights and has 120 updates of 32 episodes. A first share of these updates imitates demonstrations by
the script `explorer`, each in its own game. The other updates play and learn by

  ppo   PPO with a value head and GAE from turn to turn (lambda 0.95), whitened over the batch
  rloo  the episode's points minus the mean of the group's other games
  grpo  the episode's points minus the group's mean, over the group's standard deviation

Arms are named by the estimator and the percentage of updates that imitate:

  ppo/0      RL alone; also rloo/0, grpo/0
  ppo/50     half of the updates imitate; also ppo/25, ppo/75, rloo/50, grpo/50
  imitated   all updates imitate
  dear/50    as ppo/50; a demonstration costs 32 episodes instead of one, so an update has a single demonstration; also
             dear/25, dear/75, dear/100

Metrics:

  won    share of fresh games won
  turns  turns per game; a lost game counts 10

`explorer` wins all games, in 40/9 = 4.44 turns on average. No player who must look for the things is faster.

  python -m experiments policies --seeds 10

Paper: Wang & Ammanabrolu 2025, A Practitioner's Guide to Multi-turn Agentic RL, https://arxiv.org/abs/2510.01132.
There a demonstration costs ten episodes, models are pretrained, and only the end pays; the costs of 1 and 32 are ours.
The released RLOO recipe draws one episode for each task, so its baseline is zero. The study `sizes` has the paper's
other two questions, size and density.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.solo.rooms import Rooms
from jaxmarl_llm.keys import UPDATE, key_for
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import advantages, losses, returns
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import Episodes, Rows, Trajectory
from jaxmarl_llm.studies.study import AtLeast, Higher, Paper, Study
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Experience

UPDATES = 120
IMITATED = {"learning_rate": 3e-3, "entropy": 0.0, "value": 0.0}  # hparams while a policy imitates


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Advantage 1 for imitated turns, else the arm's advantage. Only demonstrations within the budget train."""
    points, acted, imitates = experience.episodes.reward[..., 0], experience.episodes.acted, hparams["imitates"]
    critic = returns.gae(points, experience.turn_value, acted, lam=0.95)
    grpo, rloo = (estimate(points, *experience.acts) for estimate in (advantages.grpo, advantages.rloo))
    earned = select(hparams, "credit", ppo=whiten(critic.advantage, acted), rloo=rloo, grpo=grpo)
    changed = {name: jnp.where(imitates, other, hparams[name]) for name, other in IMITATED.items()}
    paid_for = ~imitates | (jnp.arange(len(acted)) * hparams["cost"] < len(acted))
    advantage, trained = jnp.where(imitates, acted, earned), acted & paid_for[:, None, None]
    return Advantages(advantage, critic.value_target, hparams=changed, trained=trained)


def surrogate(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """PPO's loss at ratio 1, for a single step on a batch. With advantage 1 its gradient is the cross-entropy's."""
    return losses.ppo(scores, batch.replace(behaviour_logp=jax.lax.stop_gradient(scores.logp)), hparams)


def demonstrate(parts: Parts, key: jax.Array) -> Trajectory:
    """Games of `explorer` in place of the learner's: as many as an update plays, each a group of its own."""
    ((name, learner),) = parts.policy_sets.items()
    lineup = Lineup((("explorer",),) * parts.rollout.lineup.episodes, 1)
    script = {name: PolicySet(learner.tokenizer, ("explorer",))}
    return Rollout(parts.recipe.game, script, lineup, parts.recipe.budget)({name: {}}, key)


def own_prompts(rows: Rows) -> Rows:
    """The same rows with one prompt for each row; the prompts of a group are equal."""
    prompts = jax.tree.map(lambda x: x[rows.prompt], rows.prompts)
    return rows.replace(prompts=prompts, prompt=jnp.arange(len(rows.prompt)))


def imitate_or_play(parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array) -> tuple:
    """A recipe's step: the first `share` of updates imitates demonstrations, the others play, with a new Adam state."""
    key, lessons = key_for(key, UPDATE, number), jnp.round(hparams["share"] * parts.recipe.updates)
    imitates, old = number < lessons, run.learners
    new = parts.optimiser.init(old.weights).replace(skipped=old.skipped)
    run = run.replace(learners=jax.tree.map(lambda a, b: jnp.where(number == lessons, a, b), new, old))
    played, shown = step.play(parts, run.learners.weights, key), demonstrate(parts, key)
    played = played.replace(rows={name: own_prompts(rows) for name, rows in played.rows.items()})
    # the groups of play: demonstrations are not compared in groups
    shown = shown.replace(episodes=shown.episodes.replace(group=played.episodes.group))
    source = jax.tree.map(lambda a, b: jnp.where(imitates, a, b), shown, played)
    return step.learn(parts, run, {**hparams, "imitates": imitates}, source, key, {})


def measure_games(episodes: Episodes) -> dict[str, jax.Array]:
    """For each game [B]: won (0 or 1), and the number of turns; a lost game uses all of them."""
    return {"won": episodes.measured[..., 0].sum((1, 2)), "turns": episodes.acted.sum((1, 2)).astype(jnp.float32)}


NAME = "A Practitioner's Guide to Multi-turn Agentic RL (Wang & Ammanabrolu)"
PPO = Recipe(
    Rooms(3, 3, 2, budget=10, dense=True),
    seats=(("learner",),),
    advantage=estimate_advantages,
    loss=surrogate,
    step=imitate_or_play,
    critic=True,  # the value head learns nothing if `value` is 0
    hparams={"learning_rate": 1e-3, "share": 0.0, "cost": 1.0, "value": 0.5},
    choices={"credit": ("ppo", "rloo", "grpo")},
    budget=1,
    updates=UPDATES,
    groups=4,
    group_size=8,
    buckets=3,
    measure=partial(component_returns, points=0),
    evaluate=partial(in_fresh_games, measure=measure_games),
    eval_every=UPDATES // 4,
    pretrained={"budget": 4, "hparams": {"share": 0.5}},
)
GROUPED = PPO.with_hparams(value=0.0)
CREDIT = {"ppo": PPO, **{name: GROUPED.with_choice(credit=name) for name in ("rloo", "grpo")}}
BUDGET = (
    "Section 6.1, Table 9: 0.54 with RL alone, 0.62, 0.72, 0.85 and 0.95 with 20 to 80% of the budget for imitation, "
    "0.95 with all"
)
STUDY = Study(
    paper=Paper(NAME, "https://arxiv.org/abs/2510.01132", 2025, checked="release"),
    question="How should a fixed number of episodes be split between imitation and RL?",
    claim="Imitation alone wins most in the games that it was taught, also where a demonstration costs 32 episodes. "
    "Imitation before RL wins more than RL alone. By RL alone PPO wins more than RLOO and GRPO.",
    arms={f"{name}/{n}": arm.with_hparams(share=n / 100) for name, arm in CREDIT.items() for n in (0, 50)}
    | {f"ppo/{n}": PPO.with_hparams(share=n / 100) for n in (25, 75)}
    | {"imitated": PPO.with_hparams(share=1.0)}
    | {f"dear/{n}": PPO.with_hparams(share=n / 100, cost=32.0) for n in (25, 50, 75, 100)},
    method="dear/50",
    metrics=("won", "turns"),
    predictions=(
        Higher("won", "ppo/25", than="ppo/0", source="paper", where=BUDGET),
        *(Higher("won", "imitated", than=f"ppo/{n}", source="paper", where=BUDGET) for n in (25, 50)),
        Higher("won", "imitated", than="ppo/75", source="pilot", where="seeds 100 and 101, in tuning"),
        *(Higher("won", f"dear/{n}", than="ppo/0", source="paper", where=BUDGET) for n in (25, 50)),
        Higher("won", "dear/50", than="dear/25", source="paper", where=BUDGET),
        *(Higher("won", f"dear/{n}", than="dear/50", source="paper", where=BUDGET) for n in (75, 100)),
        Higher(
            "won",
            "ppo/0",
            than="rloo/0",
            source="paper",
            where="Section 6.2, Table 10: PPO 0.88, RLOO 0.51 (1.5B, w2-o3-q4); 0.72 and 0.47 (7B, w4-o6-q8)",
        ),
        Higher(
            "won",
            "ppo/0",
            than="grpo/0",
            source="paper",
            where="Section 6.2, Table 10: PPO 0.88, GRPO 0.18 (1.5B, w2-o3-q4); 0.72 and 0.36 (7B, w4-o6-q8)",
        ),
        Higher(
            "won",
            "rloo/0",
            than="grpo/0",
            source="paper",
            where="Section 6.2, Table 10: RLOO 0.51, GRPO 0.18 (1.5B, w2-o3-q4); 0.47 and 0.36 (7B, w4-o6-q8)",
        ),
    ),
    checks=(AtLeast("won", "imitated", 0.95),),
)
