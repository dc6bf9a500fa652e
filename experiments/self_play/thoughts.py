"""Do private thoughts grow short in self-play without a role's baseline? SPIRAL's thinking collapse, tested alone.

SPIRAL says of its baseline: "Without it, models progressively abandon reasoning traces after 200 steps". It also says:
"Without RAE, gradients exhibit high variance with erratic spikes before collapsing to near-zero". Its explanation is
variance, and this study tests variance alone. A tiny policy plays itself in Kuhn poker. Before every move it writes a
thought of 0 to 8 letters that nobody hears, then a mark, then the move. A thought carries nothing but its length, so
only noise and side effects of learning can change it. All arms begin with policies that imitate random moves and
uniform lengths from 0 to 8: a mean of 4.

  role      the return minus the running mean of its role (decay 0.95): SPIRAL's baseline
  none      the return itself
  ahead     as `none`, with 4 chips added to the first seat's returns and taken from the second's; agents are not told.
            The roles' values differ by about 8 chips; the mean square return is 18 instead of 2. SPIRAL's baseline
            would remove this difference
  chance    as `role`, with the return of another deal: the same noise, and nothing to learn
  joined    as `role`, without the mark: the move ends the thought, so that a learned move is also a stop

Predicted with the paper, for 200 updates: thoughts end shorter in `none` than in `role`, and the gradient norm keeps a
smaller share of its first size. Further predictions follow pilots:

- In `ahead`, thoughts end shorter than in `role`. They keep more than one letter, and the gradient norm keeps half of
  its first size: there is no collapse.
- Noise alone moves thoughts in a random direction. A seed of `chance` ends on average more than a letter away from its
  start.
- Thoughts shorten because they compete with moves that are learned: `joined` ends shorter than `role`.

On ten tuning seeds the means were about 4.1, 3.4 and 2.9 letters in `role`, `none` and `ahead`, after 75 or 150
updates.

  python -m experiments thoughts --seeds 10

Paper: Liu et al. 2025, SPIRAL, https://arxiv.org/abs/2506.24119. Kept from it:

- one policy in both seats, returns of whole games on every token, about 128 answers an update
- Adam, no entropy bonus, no division by an answer's length

Not kept: its thoughts are text of a pretrained model, its games pay +-1, and too long a thought loses.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.self_play.spiral import KUHN
from jaxmarl_llm.environments.around.thoughts import Thoughts
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import rise_since, share_left
from jaxmarl_llm.studies.study import AtLeast, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams
from jaxmarl_llm.training.records import Advantages, Experience

MAX_LETTERS = 8
GAME = Thoughts(KuhnPoker(), MAX_LETTERS)
NORM, MOVED, LEFT = "gradient_norm/learner", "moved", "gradient left"


def estimate_advantages(experience: Experience, hparams: Hparams, state: advantages.RoleBaselineState) -> Advantages:
    """The return of this deal or of another one, plus `ahead` chips for seat 0; with or without the role's baseline."""
    episodes = experience.episodes
    this = episodes.total_reward.sum(1)  # [B, 2]
    other = jnp.roll(this, len(this) // 2, 0)
    paid = select(hparams, "returns", own=this, of_another_deal=other) + hparams["ahead"] * jnp.array([[1.0, -1.0]])
    reward = jnp.zeros_like(episodes.total_reward).at[:, 0].set(paid)
    less_mean, state = advantages.role_baseline(
        reward, *experience.acts, role=episodes.role, num_roles=2, state=state, decay=hparams["decay"]
    )
    alone = jnp.where(episodes.acted, paid[:, None], 0)
    return Advantages(select(hparams, "baseline", role=less_mean, none=alone), state=state)


def thoughts(episodes: Episodes) -> dict[str, jax.Array]:
    """Mean length in letters of the thoughts before legal answers, and the share of legal answers without a thought."""
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
    budget=MAX_LETTERS + 2,
    groups=8,
    measure=thoughts,
    eval_every=50,
    pretrained={"budget": 4 * MAX_LETTERS},
)


def length_change(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Absolute difference [seeds] in letters between the last and the first length of thoughts."""
    return np.abs(rise_since(curves, metric="thought", first=5))


NONE = ROLE.with_choice(baseline="none")
ARMS = {
    "role": ROLE,
    "none": NONE,
    "ahead": NONE.with_hparams(ahead=4.0),
    "chance": ROLE.with_choice(returns="of_another_deal"),
    "joined": replace(ROLE, game=replace(GAME, mark="")),
}
PILOT = "Seeds 100 to 109, at most 200 updates:"
STUDY = Study(
    paper=Paper("SPIRAL (Liu et al.)", "https://arxiv.org/abs/2506.24119", 2025, checked="paper"),
    question="Do private thoughts grow short in self-play without a role's baseline?",
    claim="Thoughts end shorter without the role's baseline, and less is left of the gradient norm; neither "
    "collapses with 4 chips more for the first seat; noise alone moves them either way, and they end shorter where a "
    "learnt move also ends the thought.",
    arms=ARMS,
    method="role",
    metrics=("thought", "no thought", MOVED, NORM, LEFT, "nash_conv"),
    predictions=(
        Lower(
            "thought",
            "none",
            than="role",
            source="paper",
            where="Section 4.1, Figure 6: reasoning traces fall to near zero characters without RAE and keep their "
            "length with it.",
        ),
        Lower(
            LEFT,
            "none",
            than="role",
            source="paper",
            where="Section E.2, Figure 9, right: the gradient norm collapses to near zero without RAE and stays near "
            "0.1 with it.",
        ),
        Lower("thought", "ahead", than="role", source="pilot", where=f"{PILOT} 2.9 letters against 4.1."),
        Lower(
            "thought",
            "joined",
            than="role",
            source="pilot",
            where=f"{PILOT} arms without a mark ended at means of about 2 letters.",
        ),
        AtLeast("thought", "ahead", 1.0, source="pilot", where=f"{PILOT} 2.9 letters."),
        AtLeast(
            LEFT, "ahead", 0.5, source="pilot", where=f"{PILOT} the bound follows them, without a recorded figure."
        ),
        AtLeast(
            MOVED, "chance", 1.0, source="pilot", where=f"{PILOT} the bound follows them, without a recorded figure."
        ),
    ),
    derived={MOVED: length_change, LEFT: partial(share_left, metric=NORM)},
)
