"""Does a raw progress reward teach to undo work and do it again, and does a potential not? Robo-Dopamine on a farm.

The farm of the study `gates`, without pay for looks: four works in an order, and a stop that pays a quarter for each
work done. An undo takes the last work back. There are 12 turns and a discount of 0.95. Policies first imitate a farmer
who does anything else, undoing included, in 70% of the turns. Phi is the share of works done. The arms differ in the
reward; advantages are returns-to-go minus those of the group's other games.

  outcome       the stop's pay alone
  raw_progress  + the hop of the release's incremental mode: (Phi' - Phi) / (1 - Phi) for progress, (Phi' - Phi) / Phi
                for regress. The last work undone and done again pays -1/4 + 1
  gains         + Phi' - Phi for progress, nothing for regress
  potential     + 0.95 Phi' - Phi, with Phi = 0 after the end

  undone     share of turns that undo a work
  completed  share of games that stop with all works done
  score      the stop's pay, discounted, by which all arms are judged

  python -m experiments raw_progress --seeds 20

Paper: Robo-Dopamine (Tan et al.) 2025, https://arxiv.org/abs/2512.23703. There a vision-language model estimates
progress, with errors; here Phi is exact. The release computes the hop, "Instant Hop/Reward" in its plots, and has no
code of RL. The abstract alone was read; it names no undoing, and that its trap is undoing is our reading.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from experiments.credit_assignment.gates import COMPLETE, FARM
from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.solo.farm import Farm
from jaxmarl_llm.rl import advantages, rewards
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import at_first, updates_to
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams
from jaxmarl_llm.training.records import Advantages, Experience

GAMMA, START, UPDATES = 0.95, Errs("start", "correct", 0.3), "updates to 60%"
ADDED = ("none", "raw_progress", "gains", "potential")


def compute_reward(episodes: Episodes, hparams: Hparams) -> jax.Array:
    """The arm's reward [B, T, A]: the stop's pay and that of progress."""
    change = episodes.measured[..., 0]
    before = change.cumsum(1) - change  # Phi
    room = jnp.where(change > 0, 1 - before, jnp.where(change < 0, before, 1))  # the largest change in this direction
    potential = rewards.potential_difference(before, episodes.acted, GAMMA)
    kinds = {"raw_progress": change / room, "gains": jnp.maximum(change, 0), "potential": potential}
    return episodes.reward[..., 0] + select(hparams, "added", none=0.0, **kinds)


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    reward = compute_reward(experience.episodes, hparams)
    return Advantages(advantages.round_leave_one_out(reward, *experience.acts, gamma=GAMMA))


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    outcome, change, acted = episodes.reward[:, :, 0, 0], episodes.measured[:, :, 0, 0], episodes.acted[..., 0]
    undone, score = (change < 0).sum(1) / jnp.maximum(acted.sum(1), 1), outcome @ GAMMA ** jnp.arange(acted.shape[1])
    values = {"undone": undone, "completed": outcome.sum(1) > COMPLETE, "score": score}
    return {name: mean_of_kept(episodes, x) for name, x in values.items()}


OUTCOME = replace(
    FARM, game=Noisy(Farm(turns=12, look=0.0, works=4, undo=True), (START,)), warm_start=((START.name,),),
    advantage=estimate_advantages, choices={"added": ADDED}, measure=measure,
    hparams={"learning_rate": 3e-3, "entropy": 0.0},
)  # fmt: skip
TRAP = "Abstract: unsound shaping 'misguides policy optimization', policy-invariant shaping avoids it."
FASTER = "Abstract: 'significantly improves policy learning efficiency'. Its comparison was not read."
CYCLE = "A work undone and done again pays 1/4 here, and less than nothing as a potential."
SOONER = "Seeds 100 to 111: 12.5 against 27.0 updates. Progress pays every work from the first update on."
OURS = "The level is ours: nothing is compared if undoing is unknown, or the task known at first, or never learnt."
STUDY = Study(
    paper=Paper("Robo-Dopamine (Tan et al.)", "https://arxiv.org/abs/2512.23703", 2025, checked="release"),
    question="Does a raw progress reward teach to undo work and do it again?",
    claim="With raw progress as reward work is undone and done again; with a potential it is not.",
    arms={"outcome": OUTCOME} | {name: OUTCOME.with_choice(added=name) for name in ADDED[1:]},
    method="potential",
    metrics=("undone", "completed", "score", UPDATES, "undone at first", "completed at first"),
    predictions=(
        Higher("undone", "raw_progress", than="potential", source="paper", where=TRAP),
        Higher("score", "potential", than="raw_progress", source="paper", where=TRAP),
        Lower(UPDATES, "potential", than="outcome", source="paper", where=FASTER),
        Higher("undone", "gains", than="potential", source="theory", where=CYCLE),
        Lower(UPDATES, "raw_progress", than="outcome", source="pilot", where=SOONER),
        AtLeast("undone at first", "outcome", 0.02, source="theory", where=OURS, condition=True),
        AtMost("completed at first", "outcome", 0.3, source="theory", where=OURS, condition=True),
        AtLeast("completed", "outcome", 0.6, source="theory", where=OURS, condition=True),
    ),
    censored={UPDATES: FARM.updates},
    derived={f"{name} at first": partial(at_first, metric=name) for name in ("undone", "completed")}
    | {UPDATES: partial(updates_to, metric="completed", bound=0.6)},
)
