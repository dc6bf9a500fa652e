"""Does thinking collapse in self-play without a role's baseline, where thoughts decide games? SPIRAL with a scratchpad.

The study `thoughts` has thoughts that are worth nothing. Here a policy plays itself in a duel of sums (`SumDuel`). Each
seat has six digits of its own and must say their sum modulo 4. Before that it may write digits that the other does not
read, one in a turn. Without thoughts these policies stay at chance, so a thought must carry the sum so far. A seat
without an answer after seven turns is wrong, so long thoughts lose as well. The guest wins if it alone is right;
otherwise the host wins. At the start it wins three games of four, so a role's mean outcome is far from 0. All arms
begin with policies that imitate careful sums, in which one symbol of ten is another one.

  role         the outcome, +1 or -1, minus the running mean of its role (decay 0.95): SPIRAL's baseline
  none         the outcome itself. One mean of both roles is the same, because outcomes add up to 0
  no_thoughts  as role, with one turn: the first symbol must be the answer
  dots/role    as role, with dots for digits: thoughts have a length and carry nothing
  dots/none    as none, with dots

Metrics:

  thought          symbols before an answer, mean over both seats; `too long`, the share of seats without an answer
  fall of thought  its mean over the first five updates, less that over the last tenth
  points           share of right answers less 1/2: the mean outcome in both seats against a player that is right half
                   of the time
  gradient left    gradient norm of the last tenth of the updates, over that of the first tenth

  python -m experiments scratchpad --seeds 40

Paper: Liu et al. 2025, SPIRAL, https://arxiv.org/abs/2506.24119. As there: one policy in both seats, outcomes of +-1 on
every token, Adam, no entropy bonus, no division by an answer's length. There a pretrained model writes text, and an
update has 128 answers. Here it has 32, and the mean starts at the first batch's, where the paper starts at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.self_play.spiral import KUHN
from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.judged.sum_duel import SumDuel
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import rise_since, share_left
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams
from jaxmarl_llm.training.records import Advantages, Experience

ROLES, MODULUS = 2, 4
NORM, FALL, LEFT = "gradient_norm/learner", "fall of thought", "gradient left"


def estimate_advantages(experience: Experience, hparams: Hparams, state: advantages.RoleBaselineState) -> Advantages:
    """The outcome of the game, with or without the running mean of its role subtracted."""
    episodes = experience.episodes
    reward, role = episodes.total_reward, episodes.role
    less_mean, state = advantages.role_baseline(
        reward, *experience.acts, role=role, num_roles=ROLES, state=state, decay=hparams["decay"]
    )
    alone = jnp.where(episodes.acted, reward.sum(1)[:, None], 0)
    return Advantages(select(hparams, "baseline", role=less_mean, none=alone), state=state)


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    answers = episodes.acted & (episodes.action < MODULUS)
    values = {
        "thought": (episodes.acted & ~answers).sum(1).mean(1),
        "too long": 1 - answers.any(1).mean(1),
        "points": episodes.measured[..., 0].sum(1).mean(1) - 0.5,
        "host": episodes.total_reward[..., 0].sum(1),
    }
    return {name: mean_of_kept(episodes, x) for name, x in values.items()}


def fall_of_thought(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    return -rise_since(curves, metric="thought", first=5)


def duel(limit: int = 7, marks: int = MODULUS) -> Noisy:
    return Noisy(SumDuel(6, MODULUS, limit, marks), (Errs("start", "careful", 0.9),))


ROLE = replace(
    KUHN,
    game=duel(),
    advantage=estimate_advantages,
    hparams={**KUHN.hparams, "learning_rate": 1.25e-3, "entropy": 0.0},
    choices={"baseline": ("role", "none")},
    warm_start=(("start", "start"),),
    warm_start_updates=600,
    updates=300,
    groups=16,
    group_size=1,
    measure=measure,
    evaluate=None,
    pretrained={},
)
DOTS = replace(ROLE, game=duel(marks=1))
LENGTH = "Section 4.1, Figure 6: from about 2,000 to near-zero characters without, stable with it."
WINS = "Section E.2, Figure 9, left: win rates in the game rise faster with it."
GRADIENT = "Section E.2, Figure 9, right: near zero after step 200 without, around 0.1 with it."
WORTH = "Seeds 100 to 105: role ends near 0.45 in three, near -0.25 in three; no_thoughts near -0.25 in four of four."
GUESS = "A digit less makes the answer a guess, and a dot less costs nothing."
STUDY = Study(
    paper=Paper("SPIRAL (Liu et al.)", "https://arxiv.org/abs/2506.24119", 2025, checked="paper"),
    question="Does thinking collapse without a role's baseline, where thoughts decide games?",
    claim="Thoughts fall less, and more answers are right, with the running mean of a role than without.",
    arms={
        "role": ROLE,
        "none": ROLE.with_choice(baseline="none"),
        "no_thoughts": replace(ROLE, game=duel(limit=1)),
        "dots/role": DOTS,
        "dots/none": DOTS.with_choice(baseline="none"),
    },
    method="role",
    metrics=("thought", FALL, "points", "too long", "host", NORM, LEFT),
    predictions=(
        Lower(FALL, "role", than="none", source="paper", where=LENGTH),
        Higher("points", "role", than="none", source="paper", where=WINS),
        Lower(LEFT, "none", than="role", source="paper", where=GRADIENT),
        Higher("points", "role", than="no_thoughts", source="pilot", where=WORTH, condition=True),
        Lower(FALL, "role", than="dots/role", source="theory", where=GUESS),
    ),
    checks=(AtLeast("host", "role", 0.4),),
    derived={FALL: fall_of_thought, LEFT: partial(share_left, metric=NORM)},
)
