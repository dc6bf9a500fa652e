"""Who is bootstrapped from whom: MARFT runs PPO's advantage estimation through the agents of a team.

Three policies pass numbers on (`Relay`, mod 3): the sender knows one of two numbers, the adder hears the sender and
knows the other, the receiver hears the adder and must say the sum. The team earns 1 or 0 when the last has spoken. They
begin as imitators of dialogues of which a third is right, as pretrained models know a task in part.

  sequential  GAE (lambda 0.95) from agent to agent: in part a sender is judged by what the adder's critic then expects
  one_step    the same with lambda 0: by nothing else
  per_seat    GAE of each seat alone; each speaks once, so the advantage is the outcome less the seat's own value
  grpo        no critic: mean and deviation of the episodes of the same deal
  rloo        no critic: mean of the other episodes of the same deal, for each agent

Stated before the run, of 150 updates: one_step stays below sequential in the end, and over all updates sequential and
per_seat succeed less often than rloo. The paper's agents read all that was said before, these only who spoke last: the
adder's critic does not know the number that the sender was told, so that it expects the same of every message, and a
credit that is nothing but its surprise holds no signal for the sender. Most of lambda 0.95 is the outcome: between
sequential and per_seat no difference is expected. The groups' baseline knows the whole deal and need not be learnt.

Found (10 seeds): one_step ends at 0.35, which is chance, sequential at 0.91 (difference -0.56 [-0.67, -0.46], p =
0.002). Critics and groups were not told apart: over all updates sequential less rloo -0.01 [-0.06, 0.05], per_seat less
rloo -0.02 [-0.06, 0.02]; in each of these four arms one to three seeds end below 0.7.

A real model plays the same relay in words (`Whispers`): the first is told an animal and says a line, the second hears
it and says a line, the third must name the animal; temperature 0.7, no entropy bonus. Stated before the run reported,
of 10 updates of 32 games, after seeing 8 updates of one that was stopped: success rises from 0.2 (chance is 1/8) above
0.8. Found (results/marft-smollm2): 0.22, 0.62, 0.66, 0.81, 0.91, 0.88, 1.00, 0.94, 0.94, 1.00. Before, the first one's
line has little to do with the animal ("I am the last.") and the last one guesses. After, the first names the animal in
a sentence of its own ('The word "snake" is said to be named after the mythical creature ...'), at 0.7 nats a token
where it had 1.2; who stands between repeats it to the letter, at 0.04 nats instead of 0.4, and the last one picks it
out. To describe without naming would do as well and is not what is learnt: the shortest way is.

  python -m experiments marft --seeds 10    # 4 minutes on two quiet cores
  python -m experiments marft --model smollm2 --seeds 1 --updates 10

Liao et al. 2025, MARFT: the order of the estimate as a note on their released buffers describes it. Sampled and scored
alike here (their release samples at temperature 0.5 and top-k 50 and scores at 1), and advantages are whitened for each
agent (there: for all agents jointly).
"""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.team_signals import Relay
from jaxmarl_llm.environments.whispers import Whispers
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.statistics import estimate, key_of
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import Study
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe, estimator


def through_agents(played: Experience, hparams: Hparams, memory: tuple) -> Advantages:
    episodes = played.episodes
    team = episodes.reward[:, :, 0, 0]
    return whitened(played, returns.gae_through_agents(team, played.turn_value, episodes.acted, lam=hparams["lam"]))


def per_seat(played: Experience, hparams: Hparams, memory: tuple) -> Advantages:
    episodes = played.episodes
    return whitened(played, returns.gae(episodes.reward[..., 0], played.turn_value, episodes.acted, lam=hparams["lam"]))


def whitened(played: Experience, found: returns.Targets) -> Advantages:
    """Advantages of mean 0 and deviation 1, for each agent over the batch."""
    acted = played.episodes.acted
    agent, agents = key_of(acted.shape, agent=(jnp.arange(acted.shape[2])[None, None], acted.shape[2]))
    advantage = estimate(found.advantage, acted, agent, agents, baseline="mean", scale="std")
    return Advantages(advantage, found.value_target)


def success(episodes: Episodes) -> dict[str, jax.Array]:
    """Share of episodes in which the last one said the sum, or the word."""
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
        "grad_accumulation": 3,  # whose lines are alike in length share a micro-batch
        "buckets": 3,
    },
)
GROUPS = replace(SEQUENTIAL, critic=False, hparams={"learning_rate": 1e-3})
ARMS = {
    "sequential": SEQUENTIAL,
    "one_step": replace(SEQUENTIAL, hparams={**SEQUENTIAL.hparams, "lam": 0.0}),
    "per_seat": replace(SEQUENTIAL, advantage=per_seat),
    "grpo": replace(GROUPS, advantage=estimator(advantages.grpo)),
    "rloo": replace(GROUPS, advantage=estimator(advantages.rloo, per_agent=True)),
}
MEAN = "mean success"

STUDY = Study(
    paper="MARFT (Liao et al. 2025)",
    claim="In 150 updates a relay of agents who hear only their neighbour learns nothing from the next agent's critic "
    "alone, and less from any critic than from the groups' baseline.",
    arms=ARMS,
    method="sequential",
    metrics=("success", MEAN),
    stated=(
        {"metric": "success", "a": "one_step", "b": "sequential", "sign": -1},
        {"metric": MEAN, "a": "sequential", "b": "rloo", "sign": -1},
        {"metric": MEAN, "a": "per_seat", "b": "rloo", "sign": -1},
    ),
    derived={MEAN: lambda curves: curves["success"].mean(1)},
)
