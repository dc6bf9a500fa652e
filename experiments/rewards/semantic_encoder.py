"""Can the cosine of a small model's hidden states replace a judge of explanations? SmolLM2 encodes its own texts.

One policy explains in a line why ice floats, and 19 similar facts (`Explanations`). Its line and an expert's line are
encoded by the mean of SmolLM2's final hidden states, without adapters. Training is GRPO on a score:

  cosine   cosine of the two encodings
  centred  the same after the mean of the 20 experts' lines, which all texts share, is subtracted
  words    ROUGE-1, the overlap of words

Metrics:

  similarity, centred, rouge  the scores in 40 new games, before and after training
  topic                       share of the expert's paraphrases that are nearer to their own question's expert line than
                              to every other one
  meaning                     share of paraphrases that are nearer to it than a wrong line in almost the same words

This study has no predictions. Topic and meaning do not depend on seeds, and the encoder was looked at before any run.
Topic is far above chance (0.05), and meaning is below 0.5: the reward can teach subject and words, but not truth.

  python -m experiments semantic_encoder --model smollm2 --seeds 1 --arms cosine centred words

Paper: Shaping Explanations (Pappone et al.) 2025, https://arxiv.org/abs/2509.13081, with a sentence encoder and
supervised training on explanations first. A tiny policy has no base model and encodes with its own weights; such a run
shows nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.judged.explanations import Explanations
from jaxmarl_llm.keys import UPDATE, key_for
from jaxmarl_llm.methods.reward_models import encoder
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.rewards import cosine, rouge_1
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, words
from jaxmarl_llm.rollout.trajectory import Episodes, Trajectory, gather_sampled
from jaxmarl_llm.studies.study import Paper, Study
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, component_returns
from jaxmarl_llm.training.records import Run
from jaxmarl_llm.training.step import Metrics, learn, play, rollout_weights

GAME = Explanations()
SCORES = ("similarity", "centred", "rouge")
LETTERS = sorted({letter for texts in GAME.explained for text in texts for letter in text})


def score_lines(parts: Parts, weights: dict[str, dict], trajectory: Trajectory) -> dict[str, jax.Array]:
    """Scores of each episode's line against its expert's, float32 [B]; topic and meaning, bool [20]."""
    ((name, policy_set),) = parts.policy_sets.items()
    rows, episodes = trajectory.rows[name], trajectory.episodes
    assert policy_set.config is not None  # the student is no script
    sampled = gather_sampled(rows, episodes.legal, parts.rollout.max_sampled_tokens(name))
    encode = partial(encoder.encode, policy_set.config, parts.base.get(name, weights[name]["params"]))
    read = [encoder.texts(policy_set.tokenizer, x) for x in zip(*GAME.explained, strict=True)][1:]
    line, lines = encoder.utterance_texts(sampled, policy_set.tokenizer.end), [jnp.asarray(x) for x in read[0]]
    expert, others, wrong, mine = (encode(x) for x in (*read, line))
    centre = expert.mean(0, keepdims=True)
    apart, paraphrase, look_alike, mine_apart = (x - centre for x in (expert, others, wrong, mine))
    question = episodes.measured[rows.episode, 0, 0, 0].astype(jnp.int32)
    scores = (
        cosine(mine, expert[question]),
        cosine(mine_apart, apart[question]),
        rouge_1(*line, *(x[question] for x in lines)),
    )
    by_episode = {
        score: jnp.zeros(len(question)).at[rows.episode].set(x) for score, x in zip(SCORES, scores, strict=True)
    }
    nearest = cosine(paraphrase[:, None], apart[None]).argmax(1)
    means = cosine(paraphrase, apart) > cosine(look_alike, apart)
    return by_episode | {"topic": nearest == jnp.arange(len(apart)), "meaning": means}


def step(parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array) -> tuple[Run, Metrics]:
    """The standard step with the arm's score as the reward."""
    key = key_for(key, UPDATE, number)
    trajectory = play(parts, run.learners.weights, key)
    scores = score_lines(parts, rollout_weights(parts, run.learners.weights), trajectory)
    paid = select(hparams, "reward", **{name: scores[name] for name in SCORES})
    reward = trajectory.episodes.reward.at[:, 0, 0, 0].set(paid)
    trajectory = trajectory.replace(episodes=trajectory.episodes.replace(reward=reward))
    return learn(parts, run, hparams, trajectory, key, {})


def evaluate(parts: Parts, *, games: int = 40) -> Callable[[dict, jax.Array], dict[str, Any]]:
    """Scores of new games, and topic and meaning of the encoder."""
    recipe = parts.recipe
    rollout = Rollout(recipe.game, parts.policy_sets, Lineup(recipe.seats * games, 1), recipe.budget)

    @jax.jit
    def measure(base: dict, weights: dict, key: jax.Array) -> dict[str, jax.Array]:
        traced = dataclasses.replace(parts, base=base, rollout=rollout)
        return score_lines(traced, weights, rollout(weights, key))

    def evaluate(weights: dict, key: jax.Array) -> dict[str, np.ndarray]:
        return {name: np.asarray(x, np.float64) for name, x in measure(parts.base, weights, key).items()}

    return evaluate


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    return component_returns(episodes, paid=0)


COSINE = Recipe(
    GAME,
    seats=(("student",),),
    advantage=estimator(advantages.grpo),
    step=step,
    hparams={"entropy": 0.0},
    choices={"reward": SCORES},
    tokenizer=partial(words, letters=LETTERS),
    measure=measure,
    evaluate=evaluate,
    budget=24,
    updates=12,
    groups=4,
    group_size=8,
    pretrained={"groups": 4, "group_size": 8, "updates": 12, "evaluate": evaluate},
)
STUDY = Study(
    paper=Paper("Shaping Explanations (Pappone et al.)", "https://arxiv.org/abs/2509.13081", 2025, checked="abstract"),
    question="Can the cosine of a small model's hidden states stand in for a judge of explanations?",
    claim="The cosine tells subjects apart and not truth; each score rises where it is paid.",
    arms={
        "cosine": COSINE,
        "centred": COSINE.with_choice(reward="centred"),
        "words": COSINE.with_choice(reward="rouge"),
    },
    method="centred",
    metrics=(*SCORES, "topic", "meaning"),
)
