"""In which order should the turns of an episode be updated? SeeUPO on stairs, evaluated exactly.

One seat answers in four turns. An answer pays only if no wrong answer follows, so late turns must be learned first. All
arms but `once` take four optimiser steps on a batch. They clip the ratio of an answer, which is one token (GSPO):

  once               one epoch on all turns
  simultaneous       four epochs on all turns
  forward            one step for each turn, first to last, each with fresh log-probabilities and SeeUPO's multiplier,
                     which carries the ratios of updated turns
  random             as forward, in random order
  reverse            as forward, last turn first: SeeUPO
  reverse_alone      as reverse, without the multiplier
  reverse_group_std  as reverse; advantages are divided by the group's standard deviation

Advantages are SeeUPO's: the return minus the group's mean in that turn, then normalised over the batch and clipped to 3
in absolute value.

  value  exact expected points of the policy, after every update
  falls  share of updates after which `value` is lower

  python -m experiments turn_order --seeds 10

Paper: SeeUPO (Hu et al.) 2026, https://arxiv.org/abs/2602.06554
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.solo.stairs import Stairs
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.policy_table import tabulate
from jaxmarl_llm.methods.sequential import in_order
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.statistics import accumulate, estimate, group_index, key_of, turn_index
from jaxmarl_llm.studies.curves import share_of_falls, updates_to
from jaxmarl_llm.studies.study import Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe
from jaxmarl_llm.training.records import Advantages, Experience
from jaxmarl_llm.training.step import on_policy_step

TURNS, UPDATES, FALLS = 4, "updates to 90%", "falls"


def order(hparams: Hparams, key: jax.Array) -> jax.Array:
    """The order of the turns' updates, int32 [TURNS]."""
    forward = jnp.arange(TURNS)
    return select(hparams, "order", reverse=forward[::-1], forward=forward, random=jax.random.permutation(key, TURNS))


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """SeeUPO's advantages: centred by group and turn, normalised by turn over the batch, clipped."""
    acted, group, groups = experience.acts
    total = accumulate(experience.episodes.reward[..., 0], acted, "episode")
    turn = turn_index(acted)
    key = key_of(acted.shape, group=group_index(group, groups), turn=turn)
    centred, scaled = (estimate(total, acted, *key, baseline="mean", scale=scale) for scale in ("none", "std"))
    advantage = select(hparams, "scale", none=centred, group_std=scaled)
    advantage = estimate(advantage, acted, *key_of(acted.shape, turn=turn), baseline="mean", scale="std")
    return Advantages(jnp.clip(advantage, -3, 3))


def exact_value(parts: Parts) -> Callable[[dict, jax.Array], dict[str, float]]:
    """A recipe's `evaluate`: the exact expected points of the policy."""
    tree = solve.tree(parts.recipe.game)
    ((name, policy_set),) = parts.policy_sets.items()
    table = tabulate(tree, policy_set, budget=parts.recipe.budget)
    return lambda weights, key: {"value": float(solve.expected_value(tree, table(weights[name]))[0])}


REVERSED = Recipe(
    Stairs(TURNS),
    seats=(("learner",),),
    advantage=estimate_advantages,
    step=partial(on_policy_step, apply=partial(in_order, order=order, carry="carry")),
    hparams={"learning_rate": 1e-3, "entropy": 0.0, "carry": 1.0},
    choices={"order": ("reverse", "forward", "random"), "scale": ("none", "group_std")},
    budget=1,
    updates=100,
    groups=4,
    group_size=8,
    evaluate=exact_value,
    eval_every=1,
    pretrained={"budget": 4},
)
ARMS = {name: replace(REVERSED, step=None, epochs=n) for name, n in {"once": 1, "simultaneous": TURNS}.items()}
ARMS |= {name: REVERSED.with_choice(order=name) for name in ("forward", "random", "reverse")}
ARMS |= {
    "reverse_alone": REVERSED.with_hparams(carry=0.0),
    "reverse_group_std": REVERSED.with_choice(scale="group_std"),
}
LATER_FIRST = (
    "Backward induction: in another order an early turn's advantage is estimated before later answers are right."
)
MONOTONIC = (
    'abstract: sequential updates "in reverse execution order" ensure "monotonic improvement", with superior stability'
)
GAINS = "abstract: relative gains of 43.3% to 54.6% over backbone algorithms on Qwen3-14B"
EARLY = "Backward induction: an early answer's value depends on later ones, so later turns come first."
CARRIED = "The multiplier corrects the advantages for the turns that are already updated (HAML)."
DRIFT = "Division by the group's deviation breaks the condition of the drift functional."
STUDY = Study(
    paper=Paper("SeeUPO (Hu et al.)", "https://arxiv.org/abs/2602.06554", 2026, checked="release"),
    question="In which order should the turns of an episode be updated?",
    claim="From the last turn to the first: fewest updates to 90% of the points, and the value falls least often.",
    arms=ARMS,
    method="reverse",
    metrics=(UPDATES, "value", FALLS),
    predictions=(
        Lower(UPDATES, "reverse", than="once", source="paper", where=GAINS),
        Lower(UPDATES, "reverse", than="simultaneous", source="theory", where=EARLY),
        *(Lower(UPDATES, "reverse", than=name, source="theory", where=LATER_FIRST) for name in ("forward", "random")),
        Lower(UPDATES, "reverse", than="reverse_alone", source="theory", where=CARRIED),
        *(
            Lower(FALLS, "reverse", than=name, source="paper", where=MONOTONIC)
            for name in ("once", "simultaneous", "forward", "random")
        ),
        Lower(FALLS, "reverse", than="reverse_group_std", source="theory", where=DRIFT),
    ),
    censored={UPDATES: REVERSED.updates},
    derived={UPDATES: partial(updates_to, metric="value", over=1), FALLS: partial(share_of_falls, metric="value")},
)
