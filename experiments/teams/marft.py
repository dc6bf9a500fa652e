"""Whose critic: MARFT runs PPO's advantage estimation through the agents of a team.

Three policies pass numbers on (`Relay`, mod 3): the sender knows one of two numbers, the adder hears the sender and
knows the other, the receiver hears the adder and must say the sum. The team earns 1 or 0 after the last message.
Training begins with imitation of dialogues of which a third is right, because pretrained models know a task in part.

  sequential  GAE (lambda 0.95) from agent to agent: the adder's critic judges the sender in part
  one_step    the same with lambda 0: nothing else judges the sender
  per_seat    GAE of each seat alone; a seat speaks once, so the advantage is the outcome less the seat's own value
  grpo        no critic: mean and deviation of the episodes of the same group
  rloo        no critic: mean of the other episodes of the same group, for each agent

Predicted, for 150 updates: one_step ends below sequential, and over all updates sequential and per_seat succeed less
often than rloo. The paper's agents read the whole dialogue; these agents hear the last message only. The adder's critic
does not know the sender's number, so it expects the same of every message, and a credit that is only its surprise holds
no signal for the sender. Most of lambda 0.95 is the outcome: no difference is expected between sequential and per_seat.
The groups' baseline knows the whole deal and need not be learnt.

A pretrained model plays the same relay in words (`Whispers`): the first seat reads an animal and says a line, the
second hears it and says a line, the third must name the animal. Temperature 0.7, no entropy bonus. Predicted for 10
updates of 32 games, after a look at 8 updates of a run that was stopped: success rises from 0.2 (chance is 1/8) above
0.8.

  python -m experiments marft --seeds 10    # 4 minutes on two quiet cores
  python -m experiments marft --model smollm2 --seeds 1 --updates 10

Paper: Liao et al. 2025, MARFT, https://arxiv.org/abs/2504.16129. The order of the estimate follows a note on the
released buffers. Here sampling and scoring agree (the release samples at temperature 0.5 and top-k 50 and scores at 1),
and advantages are whitened for each agent (the release whitens all agents jointly).
"""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.teams.team_signals import Relay
from jaxmarl_llm.environments.teams.whispers import Whispers
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.statistics import estimate, key_of
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import Lower, Paper, Study
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience


def through_agents(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    episodes, value = experience.episodes, experience.turn_value
    team = episodes.reward[:, :, 0, 0]
    return whiten_by_agent(experience, returns.gae_through_agents(team, value, episodes.acted, lam=hparams["lam"]))


def per_seat(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    episodes, value = experience.episodes, experience.turn_value
    return whiten_by_agent(experience, returns.gae(episodes.reward[..., 0], value, episodes.acted, lam=hparams["lam"]))


def whiten_by_agent(experience: Experience, found: returns.Targets) -> Advantages:
    """Advantages of mean 0 and deviation 1, for each agent over the batch."""
    acted = experience.episodes.acted
    agent, agents = key_of(acted.shape, agent=(jnp.arange(acted.shape[2])[None, None], acted.shape[2]))
    advantage = estimate(found.advantage, acted, agent, agents, baseline="mean", scale="std")
    return Advantages(advantage, found.value_target)


def success(episodes: Episodes) -> dict[str, jax.Array]:
    """Share of episodes in which the last message is the sum, or the word."""
    return {"success": episodes.reward[:, :, 0, 0].sum(1).mean()}


SEQUENTIAL = Recipe(
    Relay(3),
    seats=(("sender", "adder", "receiver"),),
    advantage=through_agents,
    hparams={"learning_rate": 1e-3, "lam": 0.95},
    critic=True,
    warm_start=(("correct",) * 3, ("random",) * 3, ("random",) * 3),
    warm_start_updates=60,
    updates=150,
    groups=8,
    epochs=2,
    measure=success,
    pretrained={
        "game": Whispers(),
        "seats": (("first", "between", "last"),),
        "budget": (8, 24),
        "sampling": Sampling(temperature=0.7, top_p=0.9),
        "hparams": {"entropy": 0.0},
        "groups": 8,
        "grad_accumulation": 3,  # rows of like length share a micro-batch
        "buckets": 3,
    },
)
GROUPS = replace(SEQUENTIAL, critic=False, hparams={"learning_rate": 1e-3})
ARMS = {
    "sequential": SEQUENTIAL,
    "one_step": SEQUENTIAL.with_hparams(lam=0.0),
    "per_seat": replace(SEQUENTIAL, advantage=per_seat),
    "grpo": replace(GROUPS, advantage=estimator(advantages.grpo)),
    "rloo": replace(GROUPS, advantage=estimator(advantages.rloo, per_agent=True)),
}
MEAN = "mean success"

STUDY = Study(
    paper=Paper("MARFT (Liao et al.)", "https://arxiv.org/abs/2504.16129", 2025, checked="release"),
    question="Can the next agent's critic replace the outcome, or the baseline of a group?",
    claim="In 150 updates a relay of agents who hear only their neighbour learns nothing from the next agent's critic "
    "alone, and less from any critic than from the groups' baseline.",
    arms=ARMS,
    method="sequential",
    metrics=("success", MEAN),
    predictions=(
        Lower("success", "one_step", than="sequential"),
        Lower(MEAN, "sequential", than="rloo"),
        Lower(MEAN, "per_seat", than="rloo"),
    ),
    derived={MEAN: lambda curves: curves["success"].mean(1)},
)
