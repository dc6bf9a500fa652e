"""Do past successes, imitated beside fresh play, save a sparse task? SPEAR's self-imitation on chains of locks.

One seat opens eight locks in a row within twelve turns and tries one key per turn. Only the last lock pays, so that one
random episode in 400 is paid. The episodes of the last five updates are kept. The loss adds two terms: the clipped
surrogate of fresh episodes (Dr. GRPO), and a weight times that of kept episodes. The ratio of kept episodes is to the
policy that sampled them.

  fresh           weight 0: fresh episodes alone
  spear           kept acts whose advantage was positive when played and is positive now; now it is the episode's return
                  minus the median of recent returns; the weight rises to 1 by half a cosine in the first half of the
                  updates
  as_it_was       as spear, with the advantage of the update that played the episode
  everything      all kept episodes, good or bad, with the advantage of the update that played them
  from_the_start  as spear, with weight 1 throughout

  python -m experiments imitate_success --seeds 10

Paper: SPEAR (Qin et al.) 2025, https://arxiv.org/abs/2509.22601. The release waits for 3,072 good samples and replays
up to 2,048 of them once, with a weight that rises over 200 updates. Here kept episodes are replayed in every update.
The paper's tool-call bonus and covariance clip are left out.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.keys import UPDATE, key_for
from jaxmarl_llm.methods import replay
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.curves import updates_to
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, always, component_returns
from jaxmarl_llm.training.records import Advantages, Experience

LOCKS, TURNS, KEPT, LENGTH, UPDATES = 8, 12, 5, 80, "updates to 50%"


class Memory(struct.PyTreeNode):
    ring: replay.Ring
    returns: jax.Array  # float32 [KEPT, B], returns of the kept episodes; NaN: none yet


def empty_memory(parts: Parts, key: jax.Array) -> Memory:
    episodes = parts.rollout.lineup.episodes
    return Memory(replay.empty(parts, key, kept=KEPT), jnp.full((KEPT, episodes), jnp.nan))


def dr_grpo(experience: Experience, hparams: Hparams, state: Memory) -> Advantages:
    reward = experience.episodes.reward[..., 0]
    return Advantages(advantages.grpo(reward, *experience.acts, scale="none"), state=state)


def spear(parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array) -> tuple:
    """A recipe's step: plays, then learns from the fresh episodes and from kept ones, and keeps the fresh ones. A
    skipped update keeps nothing."""
    key, memory = key_for(key, UPDATE, number), run.state
    games = step.collect_experience(parts, run, hparams, key, number)
    batches = step.make_batches(parts, games.experience, games.advantages)
    fresh, old = games.experience.episodes.reward[..., 0].sum((1, 2)), memory.returns
    recent = jnp.nanmedian(jnp.append(old, fresh))

    def again(part: step.Part, played: jax.Array) -> tuple[jax.Array, jax.Array]:
        was = part.batch.advantage
        now = old[played % KEPT][part.batch.episode][:, None] - recent
        advantage = select(hparams, "advantage", recalibrated=now, as_it_was=was)
        success = (was > 0) & select(hparams, "advantage", recalibrated=now > 0, as_it_was=True)
        imitated = select(hparams, "imitated", successes=success, everything=True)
        return hparams["replay"] * advantage, imitated & (hparams["replay"] > 0)

    both = replay.join_batches(batches, memory.ring, again)
    learners, metrics = step.apply_update(parts, run.learners, hparams, both, key, {})
    new = Memory(replay.put(memory.ring, batches, number), old.at[number % KEPT].set(fresh))
    state = step.unless_skipped(new, memory, metrics)
    return run.replace(learners=learners, state=state), metrics | games.metrics(parts)


def by_half_cosine(update: Any) -> Any:
    """A weight that rises from 0 to 1 in the first half of the updates."""
    return np.where(np.asarray(update) < LENGTH / 2, (1 - np.cos(2 * np.pi * np.asarray(update) / LENGTH)) / 2, 1.0)


SPEAR = Recipe(
    LockChain(LOCKS, TURNS, in_order=True),
    seats=(("learner",),),
    advantage=dr_grpo,
    arrange=partial(always, deal=LOCKS),
    step=spear,
    init_state=empty_memory,
    hparams={"learning_rate": 1e-3, "replay": by_half_cosine},
    choices={"advantage": ("recalibrated", "as_it_was"), "imitated": ("successes", "everything")},
    budget=1,
    updates=LENGTH,
    groups=8,
    group_size=8,
    measure=partial(component_returns, solved=0),
    pretrained={"budget": 4},
)
STUDY = Study(
    paper=Paper("SPEAR (Qin et al.)", "https://arxiv.org/abs/2509.22601", 2025, checked="release"),
    question="Do past successes, imitated beside fresh play, save a sparse task?",
    claim="Imitating past successes opens half of the chains in fewer updates, most so if compared anew.",
    arms={
        "fresh": SPEAR.with_hparams(replay=0.0),
        "spear": SPEAR,
        "as_it_was": SPEAR.with_choice(advantage="as_it_was"),
        "everything": SPEAR.with_choice(advantage="as_it_was", imitated="everything"),
        "from_the_start": SPEAR.with_hparams(replay=1.0),
    },
    method="spear",
    metrics=(UPDATES, "solved", "entropy/learner"),
    predictions=(
        Lower(
            UPDATES,
            "spear",
            than="fresh",
            source="paper",
            where='abstract (v1): self-imitation of replayed successes, "accelerating solution iteration"',
        ),
        Higher(
            "solved",
            "spear",
            than="fresh",
            source="paper",
            where="README of the release, first table: Dr.BoT (GRPO) with SPEAR 87.7 against 79.1 on ALFWorld, 76.8 "
            "against 62.9 on WebShop",
        ),
        Lower(
            UPDATES,
            "spear",
            than="everything",
            source="pilot",
            where="seeds 100 to 102, ten kept updates: 42.3 against 54.0 updates",
        ),
        Lower(
            UPDATES,
            "spear",
            than="as_it_was",
            source="pilot",
            where="seeds 100 to 102, ten kept updates: 42.3 against 42.7 updates",
        ),
    ),
    censored={UPDATES: LENGTH},
    derived={UPDATES: partial(updates_to, metric="solved", bound=0.5)},
)
