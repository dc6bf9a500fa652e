"""Does the information gain of replies teach questions before outcomes do? InfoPO on eight things.

A guesser asks at most three free questions on a hidden thing and may name it at any turn of its own; after three it
must. An honest script answers. Attributes split the eight things as a tree: 4 and 4, then 2 and 2, then 1 and 1. So
three questions tell the thing, each chosen by the replies before; three fixed ones tell half of the things, and a guess
one of eight. Policies have imitated a listener: it asks for anything, or names anything that the replies leave. A
quarter of its replies were withheld, so that they have read "They say nothing". A group has four games.

  outcome    GRPO: 1 for the right name
  outcome_g  InfoPO: GRPO + 0.5 gate c A; A is the reply's gain by mean and deviation of the group's questions, c bounds
             its size, gate = sigmoid(-deviation of the group's outcomes / 0.5), 0.5 if all are equal, else above 0.26
  weak       as outcome_g with the defaults of the released function: weight 0.1; the gate divides by 0.05
  g_alone    c A alone
  to_go      as outcome_g with the released option R2G: outcomes in shares 0.8^k, k turns before the end; a failure has
             credits of 0, so that the outcome never pushes it down
  exact      as outcome_g, with the bits that the reply brought

  solved   share of games with the right name
  correlation with the exact gain   of the policy's gain and the bits, over the questions of an update
  silent groups, silent at first    share of groups with equal outcomes; in the first update
  questions, bits   asked in a game, and brought by them

  python -m experiments information --seeds 20

Paper: InfoPO (Kong et al.) 2026, https://arxiv.org/abs/2603.00656: abstract and release. The training scripts have
weight 0.5 (0.3 in one), temperature 0.5, equal credits of turns, groups of five or four and an entropy bonus of 0.001.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.withheld import Silence, WithheldAnswers
from jaxmarl_llm.methods import infopo
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.masked import correlation, keep
from jaxmarl_llm.studies.curves import at_first, updates_to
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Experience

QUESTIONS, LEVEL, REACHED = 3, 0.4, "updates to 40%"
SOLVED, GAINED, SILENT, AT_FIRST = "solved", "correlation with the exact gain", "silent groups", "silent at first"
TREE = "dog alive animal barks; cat alive animal; rose alive thorny; fern alive; plane vehicle flies; car vehicle"
THINGS = tuple((name, tuple(holds)) for name, *holds in map(str.split, f"{TREE}; clock ticks; stone".split(";")))
GAME = WithheldAnswers(THINGS, questions=QUESTIONS, cost=0.0)
ANSWERED = {2 * i: 2 * i + 2 for i in range(QUESTIONS)}  # {turn of a question: turn that hears the reply}


def some_silence(key: jax.Array) -> Silence:
    return Silence(0.25)


def kinds_of(parts: Parts, key: jax.Array) -> jax.Array:
    return infopo.phrases_of_kinds(parts.policy_sets["learner"].tokenizer, GAME.kinds)


def estimate_advantages(experience: Experience, hparams: Hparams, state: jax.Array) -> Advantages:
    episodes, acts = experience.episodes, experience.learning_acts
    right = keep(episodes.reward[..., 0], jnp.broadcast_to(experience.learns[:, None], episodes.acted.shape))
    outcome, exact = advantages.grpo(right, *acts), GAME.bits(episodes.action, episodes.acted)
    gain, asked = infopo.information_gain(experience, "learner", state, ANSWERED)
    score, scale = right.sum((1, 2)), partial(infopo.scale_gain, asked=asked, acts=acts)
    weight = hparams["weight"] * infopo.gate(score, *acts[1:], hparams["temperature"])
    released = infopo.to_the_end(outcome, acts[0], score > 0, hparams["gamma"])
    credit = select(
        hparams,
        "credit",
        outcome=outcome,
        outcome_g=outcome + weight * scale(gain, outcome=outcome),
        g_alone=scale(gain, outcome=outcome),
        to_go=released + weight * scale(gain, outcome=released),
        exact=outcome + weight * scale(exact, outcome=outcome),
    )
    by_group, total = score.reshape(experience.groups, -1), lambda x: mean_of_kept(episodes, x.sum((1, 2)))
    metrics = {SILENT: (by_group.min(1) == by_group.max(1)).mean(), GAINED: correlation(gain, exact, asked)}
    return Advantages(credit, state=state, metrics=metrics | {"questions": total(asked), "bits": total(exact)})


OUTCOME = Recipe(
    GAME,
    seats=(("learner", "listener"),),
    advantage=estimate_advantages,
    init_state=kinds_of,
    hparams={"learning_rate": 3e-3, "entropy": 0.001, "weight": 0.5, "temperature": 0.5, "gamma": 0.8},
    choices={"credit": ("outcome", "outcome_g", "g_alone", "to_go", "exact")},
    warm_start=(("listener", "listener"),),
    warm_start_deal=some_silence,
    warm_start_updates=1000,
    measure=partial(component_returns, solved=0),
    budget=1,
    updates=150,
    groups=32,
    group_size=4,
    pretrained={"budget": 4},
)
INFOPO = OUTCOME.with_choice(credit="outcome_g")
ZERO = 'README: where "both receive zero outcome reward", "dense credit assignment for more effective learning"'
BEST = 'abstract: "consistently outperforms prompting and multi-turn RL baselines"'
SAME = "A reply that rules out things makes naming one of the others likelier, for a policy that listens. Our level."
NEVER = "A failure's credits are 0: neither its questions nor its wrong name are pushed down by the outcome."
TRUE = "The bits do not depend on how well the policy listens yet."
ROOM = "The gate opens in silent groups, and a task that outcomes never teach compares noise. Our levels."
STUDY = Study(
    paper=Paper("InfoPO (Kong et al.)", "https://arxiv.org/abs/2603.00656", 2026, checked="release"),
    question="Does the information gain of replies teach questions before outcomes do?",
    claim="With the information gain of replies a policy learns what to ask in fewer updates than from outcomes alone.",
    arms={name: OUTCOME.with_choice(credit=name) for name in OUTCOME.choices["credit"]}
    | {"weak": INFOPO.with_hparams(weight=0.1, temperature=0.05)},
    method="outcome_g",
    metrics=(SOLVED, REACHED, GAINED, SILENT, AT_FIRST, "questions", "bits"),
    predictions=(
        Lower(REACHED, "outcome_g", than="outcome", source="paper", where=ZERO),
        Higher(SOLVED, "outcome_g", than="outcome", source="paper", where=BEST),
        AtLeast(GAINED, "outcome_g", 0.5, source="theory", where=SAME),
        Higher(SOLVED, "outcome_g", than="to_go", source="theory", where=NEVER),
        Lower(REACHED, "exact", than="outcome_g", source="theory", where=TRUE),
        AtLeast(AT_FIRST, "outcome", 0.3, source="theory", where=ROOM, condition=True),
        AtLeast(SOLVED, "outcome", LEVEL, source="theory", where=ROOM, condition=True),
    ),
    derived={REACHED: partial(updates_to, metric=SOLVED, bound=LEVEL), AT_FIRST: partial(at_first, metric=SILENT)},
    censored={REACHED: OUTCOME.updates},
)
