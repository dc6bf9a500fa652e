"""Can agents teach each other by scores alone? CoMAS: solutions, verdicts on them and scores, without labels.

Three policies discuss sums mod 3 for one round; every text is written in its own context (`Forgetful`). For a solution
with score s in {1, 2, 3}, let tau = (s - 1) / 2. The solution earns tau, and the verdict on it earns 1 - tau. A score
earns 0, or -1 if it does not parse.

All policies start as copies of one imitator. It is right in 60% of solutions, 80% of verdicts and a share q of scores.
Training is REINFORCE++: an agent's returns are whitened over all its acts in the batch, in any role.

  comas         q = 0.9
  by_role       returns are whitened for each agent and role
  no_evaluator  the scorer sees the solution only
  self_score    each agent scores its own solution
  truth         the scorer also earns 1 - |tau - truth|
  weak          q = 0.4; a scorer chooses among four replies, so chance is 0.25
  neutral       a missing score costs nothing

Predictions: accuracy rises. It ends higher with comas than with weak, no_evaluator and self_score. Checks: it ends
higher with truth than with comas. Whitening over all roles gives the scorer's acts lower advantages. Without a cost,
missing scores become more frequent.

  python -m experiments comas --seeds 10
  python -m experiments comas --model smollm2 --seeds 1    # capitals, and a critique in free words

Paper: CoMAS (Xue et al.) 2025, https://arxiv.org/abs/2510.08529
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.forgetful import Forgetful
from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.around.wrappers import Formatted
from jaxmarl_llm.environments.tasks import CAPITALS, Arithmetic, Tasks
from jaxmarl_llm.environments.teams.discussion import Discussion
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.statistics import agent_index, key_of, mutual_information
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Common, Experience

AGENTS, SCORER = ("one", "two", "three"), 2
CAREFUL = {"sampling": Sampling(0.7), "grad_accumulation": 3, "buckets": 2}  # for a pretrained model


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple, *, game: Forgetful) -> Advantages:
    """The reward of each act, standardised over its agent's acts, or over those in the same role."""
    episodes = experience.episodes
    solve, evaluate, none = jnp.moveaxis(inside(game).credit_acts(game.whole(episodes.reward)), -1, 0)
    reward = solve + evaluate + hparams["format"] * none + hparams["truth"] * game.whole(episodes.measured)[..., 1]
    acted, role = game.whole(episodes.acted), game.whole(episodes.role)
    kind = select(hparams, "whitened", over_agent=jnp.zeros_like(role), over_role=role)
    key, keys = key_of(acted.shape, agent=agent_index(acted), role=(kind, 3))
    advantage = advantages.estimate(reward, acted, key, keys, baseline="mean", scale="std")
    mean = jnp.where(acted & (role == SCORER), advantage, 0).sum() / (acted & (role == SCORER)).sum()
    return Advantages(game.parts(advantage), metrics={"scorer's advantage": mean})


def inside(game: Any) -> Discussion:
    """The discussion inside its wrappers."""
    return game if isinstance(game, Discussion) else inside(game.game)


def measure(episodes: Episodes, *, game: Forgetful) -> dict[str, jax.Array]:
    """Accuracy, mean tau, share of missing scores, and mutual information of tau and truth in nats.

    A solution without a score has tau 0.
    """
    tau, _, none = jnp.moveaxis(inside(game).credit_acts(game.whole(episodes.reward)), -1, 0)
    tau, right = tau[:, 0], game.whole(episodes.measured)[:, 0, :, 0]
    mean = partial(mean_of_kept, episodes)
    joint = jnp.array([[mean((2 * tau == s) & (right == r)) for r in range(2)] for s in range(3)])
    known, none = mutual_information(joint), -mean(none[:, -1])
    return {"accuracy": mean(right), "score": mean(tau), "unscored": none, "information": known}


def accuracy(episodes: Episodes, *, game: Forgetful) -> dict[str, jax.Array]:
    """Mean accuracy of the solvers of each game."""
    return {"fresh accuracy": game.whole(episodes.measured)[:, 0, :, 0].mean(1)}


def fields(tasks: Tasks, right: float, wrap: Any = lambda game: game, **options: bool) -> dict[str, Any]:
    """Recipe fields of a game about `tasks`, whose imitated scorer is right in a share `right`."""
    skill = Errs("novice", "correct", (0.6, 0.8, right))
    game = Forgetful(wrap(Noisy(Discussion(tasks, len(AGENTS), 1, **options), (skill,))))
    parts = {"advantage": partial(estimate_advantages, game=game), "measure": partial(measure, game=game)}
    return {"game": game, "seats": (game.line_up(*AGENTS),), **parts}


def recipe(right: float = 0.9, **options: bool) -> Recipe:
    """An arm whose imitated scorer is right in a share `right` of its scores."""
    words = partial(Formatted, style=("It is ", ""))  # otherwise SmolLM2 begins with "The"
    sums, real = fields(Arithmetic(3, "+"), right, **options), fields(CAPITALS, right, words, critique=True)
    judge = partial(in_fresh_games, measure=partial(accuracy, game=real["game"]), games=16)
    return Recipe(
        **sums,
        hparams={"learning_rate": 1e-3, "entropy": 0.0, "format": 1.0, "truth": 0.0},
        choices={"whitened": ("over_agent", "over_role")},
        warm_start=Common((sums["game"].line_up(*("novice",) * len(AGENTS)),), 2),
        warm_start_updates=250,
        budget=1,
        updates=60,
        groups=8,
        group_size=4,
        pretrained=real | {"evaluate": judge, "budget": (8, 20, 8), "groups": 1, "updates": 10, **CAREFUL},
    )


COMAS = recipe()
STUDY = Study(
    paper=Paper("CoMAS (Xue et al.)", "https://arxiv.org/abs/2510.08529", 2025, checked="release"),
    question="Can agents teach each other by scores alone?",
    claim="Accuracy rises by interaction rewards while scorers are right, and more than by self-scores.",
    arms={
        "comas": COMAS,
        "by_role": COMAS.with_choice(whitened="over_role"),
        "no_evaluator": recipe(evaluator=False),
        "self_score": recipe(self_score=True),
        "truth": COMAS.with_hparams(truth=1.0),
        "weak": recipe(right=0.4),
        "neutral": COMAS.with_hparams(format=0.0),
    },
    method="comas",
    metrics=("accuracy", "gain", "score", "information", "unscored", "scorer's advantage"),
    predictions=(
        AtLeast(
            "gain",
            "comas",
            0.0,
            source="paper",
            where="Abstract: CoMAS 'consistently outperforms untrained agents'. The first four updates stand for "
            "untrained agents.",
        ),
        Higher(
            "accuracy",
            "comas",
            than="weak",
            source="theory",
            where="A solution earns its score, and weak scores tell almost nothing about the truth (0.01 nats).",
        ),
        Higher(
            "accuracy",
            "comas",
            than="no_evaluator",
            source="paper",
            where="Abstract: 'ablation studies confirm the necessity of interaction-based reward signals'. The variant "
            "without evaluation ends below untrained agents (second-hand).",
        ),
        Higher(
            "accuracy",
            "comas",
            than="self_score",
            source="theory",
            where="An agent that scores its own solution can favour it.",
        ),
    ),
    checks=(
        Higher("accuracy", "truth", than="comas"),
        Lower("scorer's advantage", "comas", than="by_role"),
        Higher("unscored", "neutral", than="comas"),
    ),
    derived={"gain": lambda curves: curves["accuracy"][:, -8:].mean(1) - curves["accuracy"][:, :4].mean(1)},
)
