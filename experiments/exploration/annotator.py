"""Can labels that a slow annotator gives during training lead to a goal that reward alone does not find? ONI in a maze.

Maze, policy and credit are those of `novelty`. Four corridors of ten steps leave the start, one has the goal at its
end, and a game has eleven turns. A script annotates observations while the policy learns. It knows the way, and a fifth
of its answers is wrong. Answers count from the next update on. A step gets 0.04 r / n^3 besides the point for the goal.
Here r belongs to the observation that the step leads to, and n counts this observation within the episode.

  none       r = 0
  retrieval  in each update two observations that were met and never asked are labelled, once and for all: 1 if they are
             nearer to the goal than the start, else 0. r is the label, 0 without one
  ranking    in each update four pairs are compared, drawn from all observations that were met. The nearer to the goal
             is better, equals win half. Scores follow Bradley and Terry on all comparisons so far. r is the score less
             its running mean, over its running deviation, or 0 below -0.5
  released   r is the score itself. The release computes mean, deviation and threshold, and then adds the score

  reached  share of games that reach the goal
  right    share of met pairs that the scores put in the right order

  python -m experiments annotator --seeds 20

Paper: ONI (Zheng et al.) 2024, https://arxiv.org/abs/2410.23022, with a language model that reads NetHack's messages,
weights of 0.4 for r and 10 for sparse tasks, and networks as scores. Its classifier is left out.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.exploration.novelty import LENGTH, MAZE, NONE, REACHED
from jaxmarl_llm.environments.base import phrases
from jaxmarl_llm.environments.solo.maze import MazeState
from jaxmarl_llm.rl import advantages, counts
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout import names
from jaxmarl_llm.studies.study import AtMost, Higher, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Parts
from jaxmarl_llm.training.records import Advantages, Experience

LABELS, PAIRS, STEPS, WRONG, LEAST, RIGHT = 2, 4, 20, 0.2, -0.5, "right"
DISTANCE = MAZE.plans[0].distance
CELLS = len(DISTANCE)
State = dict[str, Any]


def name_cells() -> jax.Array:
    """The name int32 [CELLS] of the observation in each cell."""
    zero = jnp.zeros(CELLS, jnp.int32)
    view = jax.vmap(MAZE.view)(MazeState(jnp.arange(CELLS), zero, zero > 0, zero))
    start = names.mix(names.START, view.role)
    return names.name_phrases(names.first_equal(phrases(MAZE.observation)), view.phrases, start)[:, 0].astype(jnp.int32)


def begin(parts: Parts, key: jax.Array) -> State:
    """No observation was met, labelled or compared; all scores are 0."""
    flags, numbers = jnp.zeros(CELLS, bool), jnp.zeros(CELLS)
    state = {"names": name_cells(), "met": flags, "asked": flags, "label": numbers, "score": numbers}
    no_path = jnp.int32(0)  # the maze of corridors is the same for all seeds
    return state | {"path": no_path, "wins": jnp.zeros((CELLS, CELLS)), "moments": jnp.zeros(3)}


def label_new(state: State, met: jax.Array, key: jax.Array) -> State:
    """The state with labels for up to LABELS observations that were met and never asked, bool [CELLS]."""
    draw, err = jax.random.split(key)
    chance = jnp.where(met & ~state["asked"], jax.random.uniform(draw, (CELLS,)), -1)
    new = (chance >= jnp.sort(chance)[-LABELS]) & (chance >= 0)
    truth = (DISTANCE < LENGTH) ^ jax.random.bernoulli(err, WRONG, (CELLS,))
    return state | {"asked": state["asked"] | new, "label": jnp.where(new, truth, state["label"])}


def compare_pairs(state: State, met: jax.Array, key: jax.Array) -> State:
    """The state after PAIRS comparisons of observations that were met, and STEPS gradient steps of the scores on the
    mean log-likelihood of each observation's comparisons."""
    draw, err = jax.random.split(key)
    a, b = jax.random.categorical(draw, jnp.where(met, 0.0, -jnp.inf), shape=(2, PAIRS))
    better = jnp.sign(jnp.asarray(DISTANCE)[b] - jnp.asarray(DISTANCE)[a])
    better = better * jnp.where(jax.random.bernoulli(err, WRONG, (PAIRS,)), -1, 1)
    wins = state["wins"].at[a, b].add((1 + better) / 2).at[b, a].add((1 - better) / 2)

    def climb(_: Any, score: jax.Array) -> jax.Array:
        chance = jax.nn.sigmoid(score[:, None] - score[None])
        slope = (wins * (1 - chance) - wins.T * chance).sum(1)
        return score + slope / jnp.maximum((wins + wins.T).sum(1), 1)

    return state | {"wins": wins, "score": jax.lax.fori_loop(0, STEPS, climb, state["score"])}


def estimate_advantages(experience: Experience, hparams: Hparams, state: State) -> Advantages:
    episodes = experience.episodes
    after, where = counts.arrivals(episodes.told, episodes.acted)
    times = counts.within_episode(after, where)
    is_cell = where[..., None] & (after[..., None] == state["names"][None, None, None])
    cell = is_cell.argmax(-1)
    score, label = (jnp.where(is_cell.any(-1), state[name][cell], 0) for name in ("score", "label"))
    moments = state["moments"] + jnp.stack([where.sum(), score.sum(), (score**2).sum()])
    mean, square = moments[1:] / jnp.maximum(moments[0], 1)
    standard = (score - mean) / jnp.sqrt(jnp.maximum(square - mean**2, 1e-6))
    ranking = jnp.where(standard > LEAST, standard, 0)
    r = select(hparams, "annotator", none=0.0, retrieval=label, ranking=ranking, released=score)
    paid = episodes.reward[..., 0] + jnp.where(where, hparams["weight"] * r / jnp.maximum(times, 1) ** 3, 0)
    credit = advantages.turn_wise(paid, *experience.acts, returns="to_go", gamma=hparams["gamma"])

    met = state["met"] | is_cell.any((0, 1, 2))
    for_labels, for_pairs = jax.random.split(experience.key)
    new = compare_pairs(label_new(state | {"moments": moments, "met": met}, met, for_labels), met, for_pairs)
    nearer = (DISTANCE[:, None] < DISTANCE[None]) & met[:, None] & met[None]
    ordered = nearer & (new["score"][:, None] > new["score"][None])
    return Advantages(credit, state=new, metrics={RIGHT: ordered.sum() / jnp.maximum(nearer.sum(), 1)})


CHOICES = {"maps": NONE.choices["maps"], "annotator": ("none", "retrieval", "ranking", "released")}
ALONE = replace(NONE, advantage=estimate_advantages, init_state=begin, choices=CHOICES).with_hparams(weight=0.04)
ANNOTATED = 'README of the release: "state-of-the-art performance across a range of challenging, sparse reward tasks"'
HARD = "A policy without labels must rarely reach the goal, or nothing is shown. Our level."
STUDY = Study(
    paper=Paper("ONI (Zheng et al.)", "https://arxiv.org/abs/2410.23022", 2024, checked="release"),
    question="Can labels of a slow annotator lead to a goal that reward alone does not find?",
    claim="Rewards from a ranking or from labels that are collected during training lead the policy to the goal.",
    arms={name: ALONE.with_choice(annotator=name) for name in CHOICES["annotator"]},
    method="ranking",
    metrics=(REACHED, RIGHT),
    predictions=(
        Higher(REACHED, "ranking", than="none", source="paper", where=ANNOTATED),
        Higher(REACHED, "retrieval", than="none", source="paper", where=ANNOTATED),
        AtMost(REACHED, "none", 0.1, source="theory", where=HARD, condition=True),
    ),
)
