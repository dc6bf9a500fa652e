"""Does information gain teach questions where all outcomes of a group are equal? InfoPO on eight objects.

A guesser asks at most three questions on a hidden object, of eight, and names it at any turn of its own. An honest
script answers. Seven attributes split the objects as a tree: 4 and 4, then 2 and 2, then one and one. So three
questions name the object, each chosen by the replies before it; three fixed ones name half of the objects.

  outcome    GRPO on the right name
  outcome_g  InfoPO

  python -m experiments information --seeds 20

https://arxiv.org/abs/2603.00656
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.withheld import Silence, WithheldAnswers
from jaxmarl_llm.methods import infopo
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.masked import keep
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import mean_over_updates, mean_while, updates_to
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

QUESTIONS, GAINED, SOLVED = 3, "correlation with the exact gain", "solved"
THINGS = (
    ("dog", ("alive", "animal", "barks")),
    ("cat", ("alive", "animal")),
    ("rose", ("alive", "thorny")),
    ("fern", ("alive",)),
    ("plane", ("vehicle", "flies")),
    ("car", ("vehicle",)),
    ("clock", ("ticks",)),
    ("stone", ()),
)
GAME = WithheldAnswers(THINGS, questions=QUESTIONS, cost=0.0)
ANSWERED = {2 * i: 2 * i + 2 for i in range(QUESTIONS)}  # the turn that hears the reply to a question of this turn


def some_silence(key: jax.Array) -> Silence:
    return Silence(0.25)


def kinds_of(parts: Parts, key: jax.Array) -> jax.Array:
    return infopo.phrases_of_kinds(parts.policy_sets["learner"].tokenizer, GAME.kinds)


def bits(episodes: Episodes) -> jax.Array:
    """log2 of the objects that a reply rules out: the bits [B, T, A] that each question brought, by enumeration."""
    holds, ends = jnp.asarray(GAME.table), episodes.acted.shape[1]
    left, found = jnp.ones((len(episodes.acted), len(THINGS)), bool), jnp.zeros(episodes.acted.shape)
    for turn in range(0, ends - 1, 2):
        asked = episodes.acted[:, turn + 1, 1]
        says = holds.T[jnp.where(asked, episodes.action[:, turn, 0], 0)] == episodes.action[:, turn + 1, 1][:, None]
        after = left & (says | ~asked[:, None])
        found = found.at[:, turn, 0].set(jnp.log2(left.sum(1) / after.sum(1)))
        left = after
    return found


def correlation(x: jax.Array, y: jax.Array, where: jax.Array) -> jax.Array:
    """Pearson's, over the entries of `where`; 0 without spread."""
    x, y = (keep(z - z.mean(where=where), where) for z in (x, y))
    spread = jnp.sqrt((x**2).sum() * (y**2).sum())
    return (x * y).sum() / jnp.where(spread > 1e-9, spread, 1)


def estimate_advantages(experience: Experience, hparams: Hparams, state: jax.Array) -> Advantages:
    episodes, group = experience.episodes, (experience.episodes.group, experience.groups)
    acts = experience.learning_acts
    right = keep(episodes.reward[..., 0], jnp.broadcast_to(experience.learns[:, None], episodes.acted.shape))
    score = right.sum((1, 2))
    outcome = advantages.grpo(right, *acts)
    gain, asked = infopo.information_gain(experience, "learner", state, ANSWERED)
    exact = bits(episodes)
    add = lambda a, g: a + weight * infopo.scaled(g, asked, a, acts[0], group)
    weight = hparams["weight"] * infopo.gate(score, group, hparams["temperature"])
    released = infopo.to_the_end(outcome, acts[0], score > 0, hparams["gamma"])
    credit = select(
        hparams,
        "credit",
        outcome=outcome,
        outcome_g=add(outcome, gain),
        g_alone=infopo.scaled(gain, asked, outcome, acts[0], group),
        to_go=add(released, gain),
        exact=add(outcome, exact),
    )
    by_group = score.reshape(experience.groups, -1)
    metrics = {
        GAINED: correlation(gain, exact, asked),
        "silent groups": (by_group.min(1) == by_group.max(1)).mean(),
        "gain": gain.sum() / jnp.maximum(asked.sum(), 1),
    }
    return Advantages(credit, state=state, metrics=metrics)


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    totals = {
        SOLVED: episodes.reward[:, :, 0, 0].sum(1),
        "questions": episodes.acted[:, :, 1].sum(1).astype(jnp.float32),
        "bits": bits(episodes).sum((1, 2)),
    }
    return {name: mean_of_kept(episodes, x) for name, x in totals.items()}


OUTCOME = Recipe(
    GAME,
    seats=(("learner", "listener"),),
    advantage=estimate_advantages,
    init_state=kinds_of,
    hparams={"learning_rate": 1e-3, "entropy": 0.001, "weight": 0.5, "temperature": 0.5, "gamma": 0.8},
    choices={"credit": ("outcome", "outcome_g", "g_alone", "to_go", "exact")},
    warm_start=(("listener", "listener"),),
    warm_start_deal=some_silence,
    warm_start_updates=300,
    measure=measure,
    budget=1,
    updates=100,
    groups=32,
    group_size=5,
    pretrained={"budget": 4},
)
INFOPO = OUTCOME.with_choice(credit="outcome_g")
STUDY = Study(
    paper=Paper("InfoPO (Kong et al.)", "https://arxiv.org/abs/2603.00656", 2026, checked="release"),
    question="Does information gain teach questions where all outcomes of a group are equal?",
    claim="x",
    arms={
        "outcome": OUTCOME,
        "outcome_g": INFOPO,
        "weak": INFOPO.with_hparams(weight=0.1, temperature=0.05),
        **{name: OUTCOME.with_choice(credit=name) for name in ("g_alone", "to_go", "exact")},
    },
    method="outcome_g",
    metrics=(SOLVED, GAINED, "silent groups", "questions", "bits", "gain"),
    predictions=(
        Higher(SOLVED, "outcome_g", than="outcome", source="theory", where="x"),
    ),
)
