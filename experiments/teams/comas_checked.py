"""Do interaction rewards improve agents whose scorers know by reading? CoMAS with answers that are easy to check.

One of five boxes is full. A question says of each other box that it is empty, and asks for the full one. A player
checks an answer by looking for it among the empty boxes; to find it, all must be excluded. Discussions, rewards and
training are those of the study `comas`: three agents solve, evaluate an answer and score an answer, in one round.

All agents start as copies of one imitator, which learnt to check: 80% of the verdicts and 95% of the scores that it
imitated were right. Its solutions are random, and no label ever pays or teaches a solver. The imitator read half of the
orders of the statements (even permutations); the discussions are about the other half.

  comas         a solution with score s earns tau = (s - 1) / 2, the verdict on it 1 - tau, the score nothing
  shuffled      solver and evaluator earn the score of another discussion of the batch
  no_evaluator  the scorer sees the solution only
  self_score    each agent scores its own solution
  untrained     the imitator, with a learning rate of 0

Metrics:

  accuracy     share of right solutions; chance is 1/5
  auc          probability that a right solution has a higher score than a wrong one, a tie counting half; `auc at
               start` is that of the first four updates
  information  mutual information of score and truth, nats
  score        mean tau, 0 without a score

  python -m experiments comas_checked --seeds 20

Paper: CoMAS (Xue et al.) 2025, https://arxiv.org/abs/2510.08529. There discussions in words have several rounds, and
agents can solve and check before they learn. Here solvers start at chance, so that no arm can end far below
`untrained`, as the paper's arm without evaluation does. Shuffled scores and self-scores are ours.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.rewards.comas import AGENTS
from experiments.rewards.comas import COMAS as SUMS
from jaxmarl_llm.environments.around.forgetful import Forgetful
from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.tasks import Boxes
from jaxmarl_llm.environments.teams.discussion import Discussion
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.statistics import auc
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtLeast, Higher, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe, always
from jaxmarl_llm.training.records import Advantages, Common, Experience

BOXES = Boxes(5)
TAUGHT, DISCUSSED = (0, BOXES.size // 2), (BOXES.size // 2, BOXES.size)  # numbers of questions
RIGHT = (1 / BOXES.boxes, 0.8, 0.95)  # share of right solutions (chance), verdicts and scores in the imitation
WHITENED: Any = SUMS.advantage  # takes the game, as the next
MEASURED: Any = SUMS.measure


def even_orders(key: jax.Array) -> tuple[int, int]:
    """The questions of the warm start."""
    return TAUGHT


def credit(experience: Experience, hparams: Hparams, state: tuple, *, game: Forgetful) -> Advantages:
    """Advantages as in `comas`. With shuffled scores another discussion's pay solver and evaluator."""
    episodes = experience.episodes
    *paid, unscored = jnp.moveaxis(episodes.reward, -1, 0)
    other = jax.random.permutation(experience.key, len(unscored))
    shuffled = jnp.stack([*(x[other] for x in paid), unscored], -1)
    episodes = episodes.replace(reward=select(hparams, "scores", own=episodes.reward, shuffled=shuffled))
    return WHITENED(experience._replace(episodes=episodes), hparams, state, game=game)


def measure(episodes: Episodes, *, game: Forgetful) -> dict[str, jax.Array]:
    """The metrics of `comas`, and the AUC of the scores."""
    tau, right = game.whole(episodes.reward)[:, -1, :, 0], game.whole(episodes.measured)[:, 0, :, 0]
    joint = [[mean_of_kept(episodes, (2 * tau == s) & (right == r)) for r in range(2)] for s in range(3)]
    return MEASURED(episodes, game=game) | {"auc": auc(jnp.array(joint))}


def recipe(**options: bool) -> Recipe:
    """CoMAS in a discussion with these options."""
    game = Forgetful(Noisy(Discussion(BOXES, len(AGENTS), 1, **options), (Errs("checker", "correct", RIGHT),)))
    return replace(
        SUMS,
        game=game,
        seats=(game.line_up(*AGENTS),),
        advantage=partial(credit, game=game),
        measure=partial(measure, game=game),
        arrange=partial(always, deal=DISCUSSED),
        choices={**SUMS.choices, "scores": ("own", "shuffled")},
        warm_start=Common((game.line_up(*("checker",) * len(AGENTS)),), 2),
        warm_start_updates=400,
        warm_start_deal=even_orders,
        updates=200,
        groups=16,
        pretrained={"budget": 4},
    ).with_hparams(learning_rate=2e-4)


COMAS, AT_START = recipe(), "auc at start"
OUTPERFORMS = "Abstract: CoMAS 'consistently outperforms untrained agents'; Table 1, 28 of 28 scores."
NOTHING = "Scorers with an AUC of 1/2 have nothing to teach. The level is ours."
INDEPENDENT = "The expected gradient of a reward that is independent of the text is 0."
FAVOUR = "An agent that scores its own solution can favour it."
STUDY = Study(
    paper=Paper("CoMAS (Xue et al.)", "https://arxiv.org/abs/2510.08529", 2025, checked="paper"),
    question="Do interaction rewards improve agents whose scorers know by reading?",
    claim="Interaction rewards alone raise accuracy, more than without an evaluator or with scores of other texts.",
    arms={
        "comas": COMAS,
        "shuffled": COMAS.with_choice(scores="shuffled"),
        "no_evaluator": recipe(evaluator=False),
        "self_score": recipe(self_score=True),
        "untrained": COMAS.with_hparams(learning_rate=0.0),
    },
    method="comas",
    metrics=("accuracy", AT_START, "auc", "information", "score"),
    predictions=(
        AtLeast(AT_START, "comas", 0.75, source="theory", where=NOTHING, condition=True),
        Higher("accuracy", "comas", than="untrained", source="paper", where=OUTPERFORMS),
        Higher("accuracy", "comas", than="no_evaluator", source="paper", where="4.3.1; Table 7, 14 of 14 scores."),
        Higher("accuracy", "comas", than="shuffled", source="theory", where=INDEPENDENT),
        Higher("accuracy", "comas", than="self_score", source="theory", where=FAVOUR),
    ),
    derived={AT_START: lambda curves: curves["auc"][:, :4].mean(1)},
)
