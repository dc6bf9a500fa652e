"""Where should the episodes of a group part, at the start or where the policy is unsure? ARPO and AEPO on locks.

One seat opens six locks in a row within nine turns and tries one key per turn; only the last lock pays. A group has
eight episodes.

  alone    all eight start at the first turn (GRPO)
  arpo     four start at the first turn, four are copies. From turn 2 on, an episode in play is copied in each turn with
           probability 0.3 + 0.5 (entropy of the next key - entropy of the first key)
  chance   as arpo, with probability 0.3
  aepo     as arpo, with a penalty of 0.4 for each turn in a row in which the episode has branched
  six      as alone, with six episodes, which cost about as many turns as arpo

The paper's hard estimation gives a shared turn the mean advantage of its episodes. With one epoch it changes no
gradient, so it is no arm.

  solved      share of solved chains among the four episodes that start at the first turn, in every arm
  turns paid  turns that were played and kept, a shared turn once; own turns of a replaced episode do not count. ARPO
              claims to need half of this budget of tool calls

  python -m experiments branching --seeds 10

Papers: ARPO (Dong et al.) 2025, https://arxiv.org/abs/2507.19849. The release branches after a tool's reply, with
probability 0.5 + 0.2 times the change of entropy. Its entropy is that of 20 tokens, normalised; here it is that of one.
AEPO (Dong et al.) 2025, https://arxiv.org/abs/2510.14545. Its clipping and its split of the budget are not tested here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.branching import by_entropy
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import updates_to
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import are_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

LOCKS, MEMBERS, FIRST = 6, 8, 4
UPDATES, PAID, TURNS = "updates to 90%", "turns paid to 90%", "turns paid"


def unsure(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """Six locks. An episode is copied more often if its next token's entropy has risen since turn 1 (`by_entropy`)."""
    names = ("first", "base", "weight", "penalty")
    branch = Partial(by_entropy, **{name: hparams[name] for name in names})
    return Arranged(deal=jnp.asarray(LOCKS), branch=branch)


def grpo(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    return Advantages(advantages.grpo(experience.episodes.reward[..., 0], *experience.acts))


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """Share of solved chains among members below FIRST, and the number of turns played, a shared one once."""
    assert episodes.branches is not None
    origin = episodes.branches.origin
    is_original = origin == jnp.arange(len(origin))[:, None]
    member = jnp.arange(len(origin)) - jnp.searchsorted(episodes.group, episodes.group)
    solved = episodes.reward[..., 0].sum((1, 2))
    return {
        "solved": solved.mean(where=(member < FIRST) & are_kept(episodes)),
        TURNS: (episodes.acted[..., 0] & is_original).sum(),
    }


def turns_until_solved(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Turns paid [seeds] until 90% of the chains are solved."""
    until = updates_to(curves, metric="solved").astype(int)
    return np.take_along_axis(np.cumsum(curves[TURNS], 1), until[:, None] - 1, 1)[:, 0]


ARPO = Recipe(
    LockChain(LOCKS, turns=9, in_order=True),
    seats=(("learner",),),
    advantage=grpo,
    arrange=unsure,
    hparams={"learning_rate": 3e-3, "first": FIRST, "base": 0.3, "weight": 0.5, "penalty": 0.0},
    budget=1,
    updates=120,
    groups=4,
    group_size=MEMBERS,
    measure=measure,
    pretrained={"budget": 4, "group_size": MEMBERS},
)
ALONE = ARPO.with_hparams(first=MEMBERS)
ARMS = {
    "alone": ALONE,
    "arpo": ARPO,
    "chance": ARPO.with_hparams(weight=0.0),
    "aepo": ARPO.with_hparams(penalty=0.4),
    "six": dataclasses.replace(ALONE, group_size=6, pretrained={"budget": 4, "group_size": 6}),
}
HALF = (
    'abstract: "improved performance using only half of the tool-use budget required by existing methods"; README: '
    "about half the tool calls of GRPO"
)
STUDY = Study(
    paper=Paper("ARPO (Dong et al.)", "https://arxiv.org/abs/2507.19849", 2025, checked="release"),
    question="Where should the episodes of a group part, at the start or where the policy is unsure?",
    claim="Branching where the policy is unsure takes fewer turns to learn than playing each episode from the start.",
    arms=ARMS,
    method="arpo",
    metrics=(PAID, UPDATES, "solved", TURNS),
    predictions=(
        Lower(PAID, "arpo", than="alone", source="paper", where=HALF),
        Higher("solved", "arpo", than="alone", source="paper", where=HALF),
        Lower(
            PAID,
            "arpo",
            than="chance",
            source="theory",
            where="If a rise of entropy marks turns that decide the outcome, copies from there differ more in reward "
            "than copies from random turns.",
        ),
        Lower(
            PAID,
            "aepo",
            than="arpo",
            source="theory",
            where="A penalty on consecutive branching spreads the copies over more trees. It is one of AEPO's three "
            "parts, whose paper claims accuracy only.",
        ),
        Lower(
            PAID,
            "arpo",
            than="six",
            source="theory",
            where="Both pay about as many turns an update. If copies teach more than fresh episodes, arpo needs fewer.",
        ),
    ),
    censored={UPDATES: ARPO.updates},
    derived={UPDATES: partial(updates_to, metric="solved"), PAID: turns_until_solved},
)
