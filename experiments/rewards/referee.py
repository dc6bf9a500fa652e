"""Can one model be player and referee? URPO: rules, rankings and its own scores in one GRPO loop.

One policy answers sums mod 3 in three kinds of games:

  labelled  three answers; a right one earns a point
  ranked    the referee scores three given answers and earns Kendall's tau with their order by distance to the right one
  open      three answers, each rewarded by the referee's score; no seat is told the right answer, and no labelled game
            has the sum of an open one

The policy starts by imitation, with 45% right answers and 60% right scores. An answer is compared with the other
answers of its game, and a ranking with the rankings of its group. Arms:

  unified        all three kinds, one policy
  no_open        without open games
  no_preference  without ranked games
  frozen         the referee is the initial policy
  truth          the referee knows the right answer

Predictions: the hidden accuracy in open games ends higher with unified than with frozen. Without ranked games the
policy's scores of itself rise above unified's, but its hidden accuracy ends lower, and these scores order answers
worse. Check: the hidden accuracy ends higher with truth than with unified.

  python -m experiments referee --seeds 10
  python -m experiments referee --model smollm2 --seeds 1    # capitals, and a thought in free words before an answer

Paper: URPO (Lu et al.) 2025, https://arxiv.org/abs/2507.17515. There the policy is Qwen2.5-7B, and the baseline's
frozen referee is a reward model that was trained separately. Here it is the initial policy.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.around.wrappers import Formatted
from jaxmarl_llm.environments.judged.refereed import LABELLED, OPEN, PLAYER, RANKED, Refereed
from jaxmarl_llm.environments.tasks import CAPITALS, Arithmetic
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.statistics import key_of
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import are_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

ME, PLAYERS = "learner", 3


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GRPO: an answer is compared with the answers of its game, a ranking with the rankings of its group."""
    episodes = experience.episodes
    points = jnp.broadcast_to(episodes.reward.sum((1, 3))[:, None], episodes.acted.shape)
    acted, _, groups = experience.learning_acts
    game = jnp.arange(len(points))[:, None, None]
    with_whom = jnp.where(episodes.role == PLAYER, game, len(points) + episodes.group[:, None, None])
    key, keys = key_of(points.shape, compared=(with_whom, len(points) + groups))
    return Advantages(advantages.estimate(points, acted, key, keys, baseline="mean", scale="std"))


def labelled_accuracy(episodes: Episodes, *, kinds: int) -> dict[str, jax.Array]:
    """Accuracy in labelled games, the first of the `kinds` kinds."""
    right = episodes.measured[:, 0, :PLAYERS, 0].mean(1)
    labelled, kept = episodes.group % kinds == 0, are_kept(episodes)
    share = labelled.sum() / (labelled & kept).sum()  # 1, where none is left out
    return {"accuracy": jnp.where(labelled & kept, right, 0).mean() * kinds * share}


def measure_open_games(episodes: Episodes) -> dict[str, jax.Array]:
    """Metrics of each open game: share of right answers, mean score, and tau of the scores with the truth."""
    paid, facts = episodes.reward.sum(1), episodes.measured.sum(1)  # [B, A, C], [B, A, M]
    players = {"hidden": facts[:, :PLAYERS, 0], "self-score": paid[:, :PLAYERS, 1]}
    return {name: x.mean(1) for name, x in players.items()} | {"tau": facts[:, PLAYERS, 1]}


def refereed_by(who: str) -> tuple[tuple[str, ...]]:
    """Seats of three players and this referee."""
    return ((*(ME,) * PLAYERS, who),)


def recipe(*kinds: int) -> Recipe:
    """An arm with games of these kinds."""
    skill = (Errs("novice", "correct", (0.45, 0.6)),)
    judge = partial(in_fresh_games, measure=measure_open_games, deal=OPEN)
    game, real = (Noisy(Refereed(tasks, PLAYERS, kinds), skill) for tasks in (Arithmetic(3, "+"), CAPITALS))
    return Recipe(
        game,
        seats=refereed_by(ME),
        advantage=estimate_advantages,
        hparams={"learning_rate": 1e-3, "entropy": 0.01},
        warm_start=(("novice",) * (PLAYERS + 1),),
        warm_start_updates=120,
        budget=1,
        updates=120,
        groups=2 * len(kinds),
        group_size=4,
        measure=partial(labelled_accuracy, kinds=len(kinds)),
        evaluate=partial(judge, games=128),
        eval_every=15,
        pretrained={
            **{
                "game": Formatted(real, ("It is ", ""), think=True),
                "sampling": Sampling(0.7),
                "evaluate": partial(judge, games=24),
            },
            **{"budget": 24, "groups": len(kinds), "updates": 10, "grad_accumulation": 4, "buckets": 4},
        },
    )


URPO = recipe(LABELLED, RANKED, OPEN)
STUDY = Study(
    paper=Paper("URPO (Lu et al.)", "https://arxiv.org/abs/2507.17515", 2025, checked="abstract"),
    question="Can one model be player and referee?",
    claim="A policy that also learns to rank teaches itself open questions better than a frozen referee does.",
    arms={
        "unified": URPO,
        "no_open": recipe(LABELLED, RANKED),
        "no_preference": recipe(LABELLED, OPEN),
        "frozen": replace(URPO, seats=refereed_by(f"initial/{ME}")),
        "truth": replace(URPO, seats=refereed_by("correct")),
    },
    method="unified",
    metrics=("hidden", "accuracy", "self-score", "tau"),
    predictions=(
        Higher(
            "hidden",
            "unified",
            than="frozen",
            source="paper",
            where="Abstract: 'significantly outperforms a strong baseline using a separate generative reward model'. "
            "Here the frozen referee is untrained, hence weaker.",
        ),
        Higher(
            "self-score",
            "no_preference",
            than="unified",
            source="theory",
            where="Answers are paid by the policy's scores, and without rankings nothing anchors these scores.",
        ),
        Lower(
            "hidden",
            "no_preference",
            than="unified",
            source="theory",
            where="The shared weights forget to score while they learn to answer, if no rankings are learnt.",
        ),
        Lower(
            "tau",
            "no_preference",
            than="unified",
            source="theory",
            where="Rankings are paid by tau and train the scores; without them nothing does.",
        ),
    ),
    checks=(Higher("hidden", "truth", than="unified"),),
)
