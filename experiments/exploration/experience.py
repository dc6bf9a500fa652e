"""Does a library of past successes help more if it is read at every step? SLEA-RL on chains of locks.

One seat opens six locks in a row within nine turns and tries one of six keys per turn; two fit no lock. Only the last
lock pays: a random player opens all in one game of 880. A library counts, for each observation, the keys that were
tried there in games that opened all. Its entry is the key with the largest count, from the sixth update on. Before each
turn a guide tells an entry, or that it is silent. All arms begin with a policy that has imitated a follower of random
advice; without advice it tries any key. The advantage is GRPO of the episode plus that of the return-to-go among equal
observations of a group (GiGPO), in all arms.

  none      the guide is silent
  start     it tells the entry of the first observation before the first turn, and is silent later
  each      it tells the entry of each observation
  released  it tells the key with the largest count in the whole library before each turn. Unless embeddings are
            switched on, the release ranks entries by score alone, whatever is observed, and never empties its cache

  solved  share of games that open all locks, with the guide as in training
  known   share of turns whose observation has an entry

  python -m experiments experience --seeds 20

Paper: SLEA-RL (Wang and Jiang) 2026, https://arxiv.org/abs/2603.18079, whose entries are texts that a model extracts
from the best and worst episodes. Warnings and the penalty on the KL to the start are left out.
"""

from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.guide import Guidance, Guided
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

LOCKS, TURNS, GROUPS, QUIET, SOLVED, KNOWN = 6, 9, 8, 5, "solved", "known"
GAME = Guided(LockChain(LOCKS, TURNS, in_order=True, decoys=2), recalls=True)


def random_advice(key: jax.Array) -> Guidance:
    return Guidance(TURNS, False, LOCKS)


def empty_library(parts: Parts, key: jax.Array) -> jax.Array:
    """Counts float32 [situations, keys] of keys in games that opened all locks."""
    return jnp.zeros((GAME.situations, GAME.actions))


def read(library: jax.Array) -> jax.Array:
    """The key int32 [...] with the largest count of each row [..., keys], or the number of keys for silence."""
    return jnp.where(library.any(-1), library.argmax(-1), GAME.actions).astype(jnp.int32)


def guide(hparams: Hparams, library: jax.Array, key: jax.Array, number: jax.Array) -> Arranged:
    rows = read(library)
    answers = select(hparams, "guide", none=rows, start=rows, each=rows, released=read(library.sum(0)))
    turns = select(hparams, "guide", none=0, start=1, each=TURNS, released=TURNS) * (number >= QUIET)
    answers = jnp.broadcast_to(answers, (GROUPS, len(library)))
    return Arranged(Guidance(turns, jnp.bool_(True), jnp.int32(LOCKS), answers))


def estimate_advantages(experience: Experience, hparams: Hparams, library: jax.Array) -> Advantages:
    episodes, acted = experience.episodes, experience.episodes.acted
    assert episodes.measured is not None
    situation, reward = episodes.measured[..., -1].astype(jnp.int32), episodes.reward[..., 0]
    credit = advantages.step_groups(reward, *experience.acts, observation=situation, gamma=hparams["gamma"])
    success = acted & (reward.sum((1, 2)) > 0)[:, None, None]
    known = (acted & library.any(1)[situation]).sum() / acted.sum()
    grown = library.at[situation, episodes.action].add(success.astype(jnp.float32))
    return Advantages(credit, state=grown, metrics={KNOWN: known})


NONE = Recipe(
    GAME,
    seats=(("learner",),),
    advantage=estimate_advantages,
    arrange=guide,
    init_state=empty_library,
    hparams={"gamma": 0.95},
    choices={"guide": ("none", "start", "each", "released")},
    warm_start=(("follower",),),
    warm_start_deal=random_advice,
    warm_start_updates=100,
    budget=1,
    updates=60,
    groups=GROUPS,
    group_size=8,
    measure=partial(component_returns, solved=0),
    pretrained={"budget": 4},
)
STEPS = (
    'abstract: "static retrieval becomes increasingly mismatched as episodes progress"; second-hand: WebShop 76.3, 72.0'
)
STATIC = "second-hand: one retrieval at the start beats none"
ROOM = "Advice matters where reward alone does not do, and where the library has something to tell. Our levels."
STUDY = Study(
    paper=Paper("SLEA-RL (Wang & Jiang)", "https://arxiv.org/abs/2603.18079", 2026, checked="release"),
    question="Does a library of past successes help more if it is read at every step?",
    claim="Entries that are read at each step help more than one at the start, and that helps more than none.",
    arms={name: NONE.with_choice(guide=name) for name in NONE.choices["guide"]},
    method="each",
    metrics=(SOLVED, KNOWN),
    predictions=(
        Higher(SOLVED, "each", than="start", source="paper", where=STEPS),
        Higher(SOLVED, "start", than="none", source="paper", where=STATIC),
        AtMost(SOLVED, "none", 0.9, source="theory", where=ROOM, condition=True),
        AtLeast(KNOWN, "each", 0.5, source="theory", where=ROOM, condition=True),
    ),
)
