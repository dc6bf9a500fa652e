"""Does a team that shares a task learn more than one agent that has it alone? MARFT on a pipeline of two seats.

Two things lie in three rooms. They are taken in a given order within 5 turns; the last one pays a point. In each turn
the guide keeps or switches a subgoal and names it, then the actor hears it and acts. Both are told the task and what is
seen, as in the paper. One policy first imitates a guide who is right with probability 3/4 and an actor who follows, and
all learners are its copies. Training is PPO with GAE from agent to agent (lambda 0.95).

  simultaneous    both policies learn from a batch at once
  simultaneous_2  the same with two epochs: as many optimiser steps as by_seat, but two a policy in place of one
  by_seat         MARFT: the guide learns first. The actor's advantages are then multiplied by M, the guide's new
                  probability of its words in that turn over the old one, clipped to 0.8 and 1.2
  solo            one policy of the same size says all words in one dialogue, as many as the team says

Without M by_seat would be simultaneous exactly, since each policy learns from its own words. In `relay/...` three seats
pass numbers on, as in `agents_in_turn`; the exact success of policies is known.

  won    share of games won
  rise   `won` at the end less its mean over the first ten updates
  right  share of turns under the right subgoal
  fall   peak of `won` less its end, each over a tenth of the updates
  falls  share of updates after which the exact success in the relay is lower

  python -m experiments pipeline --seeds 20

Paper: MARFT (Liao et al.) 2025, https://arxiv.org/abs/2504.16129. There agents are adapters of one pretrained model
that solve mathematics, and one critic reads all. The release trains one agent for an interval of steps and has no M,
which is HAPPO's (https://arxiv.org/abs/2109.11251). Here each policy has a value head, and a word is one token, so that
credit by act and by token are the same.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from experiments.teams.agents_in_turn import SIMULTANEOUS as RELAY
from jaxmarl_llm.environments.around.subgoals import DECISIONS, Subgoals, by_level
from jaxmarl_llm.environments.solo.rooms import Rooms
from jaxmarl_llm.evaluation.exact.seats import expected_reward
from jaxmarl_llm.methods.sequential import by_seat, in_order
from jaxmarl_llm.rl.losses import Batch
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import fall_from_peak, rise_since, share_of_falls
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import are_kept, mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe, component_returns
from jaxmarl_llm.training.records import Common
from jaxmarl_llm.training.step import on_policy_step

FALL, FALLS, RISE, WON, RIGHT = "fall", "falls", "rise", 0, 1


def as_they_act(hparams: Hparams, key: jax.Array, *, agents: int) -> jax.Array:
    """The seats in the order of their updates, int32 [agents]."""
    return jnp.arange(agents)


def by_step(batch: Batch) -> jax.Array:
    """The step of each token, [R, M]: three turns, in both games."""
    return batch.turn // DECISIONS


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """Share of games won, and of answers under the right subgoal."""
    kept = are_kept(episodes)[:, None]
    won, right = (jnp.where(kept, episodes.measured[:, :, 0, i], 0) for i in (WON, RIGHT))
    answers = by_level(episodes.acted)[2].any(-1) & kept
    return {"won": mean_of_kept(episodes, won.sum(1)), "right": right.sum() / jnp.maximum(answers.sum(), 1)}


def in_sequence(recipe: Recipe) -> Recipe:
    """The recipe with updates seat by seat, in the order of acting; an agent without a turn stands still."""
    order = partial(as_they_act, agents=len(recipe.seats[0]))
    apply = partial(in_order, order=order, unit=by_seat, product=True, within=by_step, idle_waits=True)
    return replace(recipe, step=partial(on_policy_step, apply=apply))


TEAM = Recipe(
    Subgoals(Rooms(3, 2, 2, budget=5, reminds=True), seats=2),
    seats=(("guide", "actor"),),
    advantage=RELAY.advantage,
    critic=True,
    warm_start=Common((("follower", "follower"),)),
    warm_start_updates=150,
    hparams={"learning_rate": 1.5e-3},
    budget=1,
    updates=120,
    groups=16,
    group_size=1,
    measure=measure,
    pretrained={"budget": 4},
)
SOLO = replace(TEAM, game=replace(TEAM.game, seats=1), seats=(("solo",),), warm_start=Common((("follower",),)))
EXACT = replace(RELAY, measure=partial(component_returns, won=0), evaluate=expected_reward, eval_every=1)
OURS = "The level is ours: without learning, or without a fall, nothing is compared."
ABSTRACT = (
    'second-hand: abstract of the conference submission, "superior stability and performance over representative '
    'methods", with one, two and three agents in its experiments'
)
JOINT = "HAPPO: with M the second agent raises a bound on the joint policy's gain; without it, on its own part alone."
STUDY = Study(
    paper=Paper("MARFT (Liao et al.)", "https://arxiv.org/abs/2504.16129", 2025, checked="release"),
    question="Does a team that shares a task learn more than one agent that has it alone?",
    claim="Updated seat by seat, the team ends above one agent, and falls less than with simultaneous updates.",
    arms={
        "simultaneous": TEAM,
        "simultaneous_2": replace(TEAM, epochs=2),
        "by_seat": in_sequence(TEAM),
        "solo": SOLO,
        "relay/simultaneous": EXACT,
        "relay/by_seat": in_sequence(EXACT),
    },
    method="by_seat",
    metrics=("won", FALL, FALLS, RISE, "right"),
    predictions=(
        Higher("won", "by_seat", than="solo", source="paper", where=ABSTRACT),
        AtLeast(RISE, "by_seat", 0.02, source="theory", where=OURS, condition=True),
        AtLeast(FALL, "simultaneous", 0.05, source="theory", where=OURS, condition=True),
        *(
            Lower(FALL, "by_seat", than=name, source="theory", where=JOINT)
            for name in ("simultaneous", "simultaneous_2")
        ),
        Lower(FALLS, "relay/by_seat", than="relay/simultaneous", source="theory", where=JOINT),
    ),
    derived={FALL: partial(fall_from_peak, metric="won"), FALLS: partial(share_of_falls, metric="value")}
    | {RISE: partial(rise_since, metric="won", first=10)},
)
