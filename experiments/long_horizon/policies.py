"""How should a fixed number of episodes be split between imitation and RL? Demonstrations, then PPO, RLOO or GRPO.

A seat finds and takes two things in an order, in three rooms, within 10 turns; each thing pays 1/2. A policy begins
with random weights and has 120 updates of 32 episodes each. A share of the updates comes first, imitates demonstrations
by the script `explorer`, every one another game, and lowers their cross-entropy. The others play, and learn from it by

  ppo   PPO with a value head and GAE from turn to turn (lambda 0.95), whitened over the batch
  rloo  the episode's points less the mean of the group's other games
  grpo  the same less the mean of the group, by the group's standard deviation

`ppo/25` imitates in the first quarter, `ppo/0` never, `imitated` always. A demonstration counts as one episode; in
`dear/...`, with PPO, as four: an update of imitation has 8 demonstrations instead of 32, and `dear/100` has no RL.

`won` is the share of fresh games that is won, `turns` how many a game takes, a lost one 10. `explorer` is optimal among
players who must look for the things: it wins all games.

  python -m experiments policies --seeds 10

Paper: Wang & Ammanabrolu 2025, A Practitioner's Guide to Multi-turn Agentic RL, https://arxiv.org/abs/2510.01132. The
study `sizes` has its other two axes, size and density.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.rooms import Rooms
from jaxmarl_llm.keys import UPDATE, key_for
from jaxmarl_llm.rl import advantages, losses, returns
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import Episodes, Trajectory
from jaxmarl_llm.studies.study import Paper, Study
from jaxmarl_llm.training import step
from jaxmarl_llm.training.fresh_games import in_fresh_games
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe, component_returns
from jaxmarl_llm.training.setup import Parts

UPDATES = 120


def credited(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """1 for all that is imitated, else of PPO where the critic learns, or GRPO where `scaled`, or RLOO."""
    points, acted, imitates = experience.episodes.reward[..., 0], experience.episodes.acted, hparams["imitates"]
    critic = returns.gae(points, experience.turn_value, acted, lam=0.95)
    grpo, rloo = advantages.grpo(points, *experience.acts), advantages.rloo(points, *experience.acts)
    group = jnp.where(hparams["scaled"] > 0, grpo, rloo)
    earned = jnp.where(hparams["value"] > 0, whiten(critic.advantage, acted), group)
    paid_for = jnp.arange(len(acted)) * hparams["cost"] < len(acted)
    return Advantages(
        jnp.where(imitates, acted, earned),
        critic.value_target,
        hparams={name: jnp.where(imitates, 0.0, hparams[name]) for name in ("value", "entropy")},
        trained=acted & (paid_for | ~imitates)[:, None, None],
    )


def surrogate(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """PPO's loss in the one step on a batch, all ratios 1, whoever said it: with advantage 1 its gradient is that of
    the cross-entropy."""
    return losses.ppo(scores, batch.replace(behaviour_logp=jax.lax.stop_gradient(scores.logp)), hparams)


def demonstrated(parts: Parts, key: jax.Array) -> Trajectory:
    """As many games of `explorer` as an update plays, no two of them a group, in the place of the learner's."""
    ((name, learner),) = parts.policy_sets.items()
    seats = Lineup((("explorer",),) * parts.rollout.lineup.episodes, 1)
    script = {name: PolicySet(learner.tokenizer, ("explorer",))}
    return Rollout(parts.recipe.game, script, seats, parts.recipe.budget)({name: {}}, key)


def with_own_prompts(trajectory: Trajectory) -> Trajectory:
    """The same with a prompt for each row, though those of a group are alike."""
    rows = {
        name: own.replace(
            prompts=jax.tree.map(lambda x, own=own: x[own.prompt], own.prompts), prompt=jnp.arange(len(own.prompt))
        )
        for name, own in trajectory.rows.items()
    }
    return trajectory.replace(rows=rows)


def imitate_or_play(parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array) -> tuple:
    """The first updates, a share of all, learn from demonstrations, the others from what they play."""
    key, imitates = key_for(key, UPDATE, number), number < hparams["share"] * parts.recipe.updates
    played, shown = with_own_prompts(step.play(parts, run.learners.weights, key)), demonstrated(parts, key)
    shown = shown.replace(episodes=shown.episodes.replace(group=played.episodes.group))  # those are not compared
    source = jax.tree.map(lambda a, b: jnp.where(imitates, a, b), shown, played)
    return step.learn(parts, run, {**hparams, "imitates": imitates}, source, key, {})


def judged(episodes: Episodes) -> dict[str, jax.Array]:
    """Of each game: whether it was won, and turns, all of them where it was not."""
    return {"won": episodes.reward[..., 1].sum((1, 2)), "turns": episodes.acted.sum((1, 2)).astype(jnp.float32)}


JUDGE = partial(in_fresh_games, measure=judged)
PPO = Recipe(
    Rooms(3, 2, 2, budget=10, dense=True),
    seats=(("learner",),),
    advantage=credited,
    loss=surrogate,
    step=imitate_or_play,
    critic=True,  # which learns nothing where `value` is 0
    hparams={"learning_rate": 3e-3, "share": 0.0, "cost": 1.0, "scaled": 0.0, "value": 0.5},
    budget=1,
    updates=UPDATES,
    groups=4,
    group_size=8,
    measure=partial(component_returns, points=0),
    evaluate=JUDGE,
    eval_every=UPDATES // 8,
    pretrained={"budget": 4, "hparams": {"share": 0.5}},
)
RLOO = PPO.with_hparams(value=0.0)
GRPO = RLOO.with_hparams(scaled=1.0)
STUDY = Study(
    paper=Paper(
        "A Practitioner's Guide to Multi-turn Agentic RL (Wang & Ammanabrolu)",
        "https://arxiv.org/abs/2510.01132",
        2025,
        checked="abstract",
    ),
    question="How should a fixed number of episodes be split between imitation and RL?",
    claim="Some imitation before RL wins more than either alone.",
    arms={f"ppo/{share}": PPO.with_hparams(share=share / 100) for share in (0, 25, 50, 75)}
    | {f"rloo/{share}": RLOO.with_hparams(share=share / 100) for share in (0, 50)}
    | {f"grpo/{share}": GRPO.with_hparams(share=share / 100) for share in (0, 50)}
    | {"imitated": PPO.with_hparams(share=1.0)}
    | {f"dear/{share}": PPO.with_hparams(share=share / 100, cost=4.0) for share in (50, 100)},
    method="ppo/50",
    metrics=("won", "turns"),
)
