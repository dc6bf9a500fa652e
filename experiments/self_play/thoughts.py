"""Thinking collapse: do private thoughts grow short in self-play, unless returns are compared with the role's mean?

SPIRAL says of its baseline: "Without it, models progressively abandon reasoning traces after 200 steps", and "Without
RAE, gradients exhibit high variance with erratic spikes before collapsing to near-zero". The reason given is variance,
which is tested by itself here: a tiny policy plays itself in Kuhn poker and writes, before every move, 0 to 8 letters
that nobody hears, a mark, and the move. Its thoughts say nothing but their length, so that only noise and what learning
does by the way can move it. All arms begin with policies that have imitated lengths of 0 to 8, all alike, and random
moves: a mean of 4.

  role      the return less the running mean of its role (decay 0.95): SPIRAL's baseline
  none      the return itself
  ahead     the same, with 4 chips added to every return of the first seat and taken from the second's, which no agent
            is told: the roles' values differ by about 8 chips, and the mean square return is 18 instead of 2. SPIRAL's
            baseline would take this away again
  chance    `role`, but every return is another deal's: the same noise, and nothing to learn
  joined    `role` without the mark: the move ends a thought, so that a move that is learnt is also a stop

Predicted with the paper, for 200 updates: thoughts end shorter in `none` than in `role`, and in `ahead` too. Predicted
against it: this is no collapse. With a mark and without a baseline thoughts keep more than one letter, and the gradient
norm keeps half of its first size. Noise alone moves thoughts, to where chance takes them: a seed of `chance` ends more
than a letter away from its beginning, on average. What shortens thoughts is their competition with moves that are
learnt: `joined` ends shorter than `role`. (On ten seeds for tuning the means were about 4.1, 3.4 and 2.9 letters in
`role`, `none` and `ahead`, after 75 or 150 updates.)

  python -m experiments thoughts --seeds 10

Paper: Liu et al. 2025, SPIRAL, https://arxiv.org/abs/2506.24119. Kept: one policy in both seats, returns of whole games
on every token, about 128 answers an update, Adam, no bonus for entropy, no division by an answer's length. Not kept:
its thoughts are text that a pretrained model reasons with, its games pay +-1, and a thought that is too long loses.
"""

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from experiments.self_play.spiral import KUHN
from jaxmarl_llm.environments.around.thoughts import Thoughts
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import rise_since
from jaxmarl_llm.studies.study import AtLeast, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams
from jaxmarl_llm.training.records import Advantages, Experience

MOST = 8
GAME = Thoughts(KuhnPoker(), MOST)
NORM, MOVED, LEFT = "gradient_norm/learner", "moved", "gradient left"


def estimate_advantages(experience: Experience, hparams: Hparams, state: advantages.RoleBaselineState) -> Advantages:
    """The return of this deal or of another one, and `ahead` chips for seat 0; less its role's mean, or nothing."""
    episodes = experience.episodes
    own = episodes.total_reward.sum(1)  # [B, 2]
    other = jnp.roll(own, len(own) // 2, 0)
    paid = select(hparams, "returns", own=own, of_another_deal=other) + hparams["ahead"] * jnp.array([[1.0, -1.0]])
    reward = jnp.zeros_like(episodes.total_reward).at[:, 0].set(paid)
    less_mean, state = advantages.role_baseline(
        reward, *experience.acts, role=episodes.role, num_roles=2, state=state, decay=hparams["decay"]
    )
    alone = jnp.where(episodes.acted, paid[:, None], 0)
    return Advantages(select(hparams, "baseline", role=less_mean, none=alone), state=state)


def thoughts(episodes: Episodes) -> dict[str, jax.Array]:
    """The mean length of the thoughts before legal answers, and the share of those without one."""
    letters = GAME.length(episodes.action)
    answered = episodes.acted & (letters >= 0)
    return {"thought": letters.mean(where=answered), "no thought": (letters == 0).mean(where=answered)}


ROLE = replace(
    KUHN,
    game=GAME,
    advantage=estimate_advantages,
    tokenizer=Thoughts.letter_tokenizer,
    hparams={**KUHN.hparams, "ahead": 0.0, "entropy": 0.0},
    choices={"returns": ("own", "of_another_deal"), "baseline": ("role", "none")},
    warm_start=(("random", "random"),),
    budget=MOST + 2,
    groups=8,
    measure=thoughts,
    eval_every=50,
    pretrained={"budget": 4 * MOST},
)


def length_change(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """How far thoughts end from their first length, in letters, up or down."""
    return np.abs(rise_since(curves, metric="thought", first=5))


def gradient_share(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """The gradient norm over the last tenth of the updates, as a share of that over the first."""
    norm, tenth = curves[NORM], max(1, curves[NORM].shape[1] // 10)
    return norm[:, -tenth:].mean(1) / norm[:, :tenth].mean(1)


NONE = ROLE.with_choice(baseline="none")
ARMS = {
    "role": ROLE,
    "none": NONE,
    "ahead": NONE.with_hparams(ahead=4.0),
    "chance": ROLE.with_choice(returns="of_another_deal"),
    "joined": replace(ROLE, game=replace(GAME, mark="")),
}
STUDY = Study(
    paper=Paper("SPIRAL (Liu et al.)", "https://arxiv.org/abs/2506.24119", 2025, checked="paper"),
    question="Do private thoughts grow short in self-play without a role's baseline?",
    claim="Thoughts end shorter without the role's baseline, but they do not collapse, nor does the gradient norm; "
    "noise alone moves them either way, and they end shorter where a learnt move also ends the thought.",
    arms=ARMS,
    method="role",
    metrics=("thought", "no thought", MOVED, NORM, LEFT, "nash_conv"),
    predictions=(
        *(Lower("thought", arm, than="role") for arm in ("none", "ahead", "joined")),
        *(AtLeast("thought", arm, 1.0) for arm in ("none", "ahead")),
        *(AtLeast(LEFT, arm, 0.5) for arm in ("none", "ahead")),
        AtLeast(MOVED, "chance", 1.0),
    ),
    derived={MOVED: length_change, LEFT: gradient_share},
)
