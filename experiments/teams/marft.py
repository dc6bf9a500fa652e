"""Can the next agent's critic replace the outcome, or the baseline of a group? MARFT's advantages from agent to agent.

Three policies pass numbers on (`Relay`, mod 3). The sender knows one of two numbers. The adder hears the sender and
knows the other number. The receiver hears the adder and must say the sum. The team earns 1 or 0 after the last message.
Training begins with imitation of dialogues of which a third is right, because pretrained models know a task in part.

  sequential  GAE (lambda 0.95) from agent to agent: the adder's critic judges the sender in part
  one_step    the same with lambda 0: only the adder's critic judges the sender
  per_seat    GAE for each seat alone; a seat speaks once, so its advantage is the outcome less its own value
  grpo        no critic: mean and standard deviation of the episodes of the group
  rloo        no critic: mean of the other episodes of the group, for each agent

Predictions, ours, for 150 updates: over all updates, sequential and per_seat succeed less often than rloo. No
difference is expected between sequential and per_seat. Check: one_step ends below sequential. Reasons:

- The paper's agents read the whole dialogue; these agents hear the last message only. The adder's critic does not know
  the sender's number, so it expects the same return after every message. Its surprise alone tells the sender nothing.
- With lambda 0.95 the advantage is mostly the outcome.
- The group's baseline knows the whole deal and need not be learnt.

A pretrained model plays the relay in words (`Whispers`). The first seat reads an animal and says a line, the second
hears it and says a line, and the third must name the animal. Temperature is 0.7, without an entropy bonus. The
prediction for 10 updates of 32 games: success rises from 0.2 (chance is 1/8) above 0.8. It was written after a look at
8 updates of a run that was stopped.

  python -m experiments marft --seeds 10    # 4 minutes on two quiet cores
  python -m experiments marft --model smollm2 --seeds 1 --updates 10

Paper: Liao et al. 2025, MARFT, https://arxiv.org/abs/2504.16129. The order of the estimate follows a note on the
released buffers. Here sampling and scoring agree; the release samples at temperature 0.5 and top-k 50 and scores at 1.
Here advantages are whitened for each agent; the release whitens all agents jointly.
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
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience


def through_agents(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GAE from agent to agent, whitened for each agent."""
    episodes, value = experience.episodes, experience.turn_value
    team = episodes.reward[:, :, 0, 0]
    return whiten_by_agent(experience, returns.gae_through_agents(team, value, episodes.acted, lam=hparams["lam"]))


def per_seat(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GAE for each seat alone, whitened for each agent."""
    episodes, value = experience.episodes, experience.turn_value
    return whiten_by_agent(experience, returns.gae(episodes.reward[..., 0], value, episodes.acted, lam=hparams["lam"]))


def whiten_by_agent(experience: Experience, targets: returns.Targets) -> Advantages:
    """Advantages with mean 0 and standard deviation 1 over the batch, for each agent."""
    acted = experience.episodes.acted
    agent, agents = key_of(acted.shape, agent=(jnp.arange(acted.shape[2])[None, None], acted.shape[2]))
    advantage = estimate(targets.advantage, acted, agent, agents, baseline="mean", scale="std")
    return Advantages(advantage, targets.value_target)


def success(episodes: Episodes) -> dict[str, jax.Array]:
    """Share of episodes whose last message is the right sum or word."""
    return {"success": mean_of_kept(episodes, episodes.reward[:, :, 0, 0].sum(1))}


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
    paper=Paper("MARFT (Liao et al.)", "https://arxiv.org/abs/2504.16129", 2025, checked="abstract"),
    question="Can the next agent's critic replace the outcome, or the baseline of a group?",
    claim="In 150 updates a relay of agents who hear only their neighbour learns nothing from the next agent's critic "
    "alone, and less from any critic than from the groups' baseline.",
    arms=ARMS,
    method="sequential",
    metrics=("success", MEAN),
    predictions=(
        *(
            Lower(
                MEAN,
                critic,
                than="rloo",
                source="theory",
                where="The group's baseline knows the whole deal and need not be learnt; a critic starts wrong.",
            )
            for critic in ("sequential", "per_seat")
        ),
    ),
    checks=(Lower("success", "one_step", than="sequential"),),
    derived={MEAN: lambda curves: curves["success"].mean(1)},
)
