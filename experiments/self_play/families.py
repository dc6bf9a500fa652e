"""Does self-play in some games help in larger games of their families, if a policy knows all words? MARS says so.

`transfer` asked it of policies that learn words from play alone. Here the policy is pretrained: it first reads games of
random players in all six games, held out or not, and learns to predict every token that they hear or say, so that it
knows the words, which answers are legal and what comes of them, but no way to win. The texts of both kinds of poker are
split into words. Then it plays itself, with the KL to what it was before as a penalty:

  together                         Kuhn poker, Connect Four on 4 columns and a mini Hanabi in every update
  kuhn, small_four, mini_hanabi    one of them, with as many of its games and updates as in `together`
  episode                          as `together`; a turn is credited with the whole game, not with what follows it
  prior                            does not play

Advantages are centred by seat, in the order of MARS, and whitened in each game. Judged, in games with fresh deals, in
all six: Leduc poker, Connect Four on 5 columns (both boards have 3 rows, and 3 in a row win) and Hanabi with a third
colour and five cards a hand are held out. Points a game against random play, both seats, and against a stronger fixed
player (`honest`, `greedy`); in Hanabi the score of four or six with itself. Both sizes of Hanabi are MARS's, but for a
single hint token.

  python -m experiments families --seeds 10

Paper: MARS (Yuan et al.) 2025, https://arxiv.org/abs/2510.15414: "the MARS agent trained from Qwen3-4B develops strong
strategic abilities that generalize to held-out games", with "a turn-level advantage estimator that aligns learning
signals with each interaction for credit assignment, and an agent-specific advantage normalization". Its small board
game is tic-tac-toe, its KL weighs 0.2 (here 0.02), and its model thinks before it answers. That reasoning carries over
to mathematics, and to games told in other words, is not tested here: no policy of 26,000 weights has either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from jaxmarl_llm.environments.board_games import ConnectFour
from jaxmarl_llm.environments.card_games import KuhnPoker, LeducPoker
from jaxmarl_llm.environments.hanabi import SIZES, Hanabi
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.losses import Batch, Hparams, LossAndMetrics, Scores
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.training.reading import reading
from jaxmarl_llm.training.recipe import Advantages, Experience, Recipe
from jaxmarl_llm.training.several_games import one_vocabulary, together
from jaxmarl_llm.training.trainer import Trainer, jit_rollout

ME, UPDATES, LESSONS, HINTS = "learner", 80, 150, {"information_tokens": 1}
POKER, BOARDS = (KuhnPoker(), LeducPoker()), (ConnectFour(4, 3, 3), ConnectFour(5, 3, 3))
HANABI = (Hanabi(**{**SIZES["mini"], **HINTS}), Hanabi(**{**SIZES["simple"], **HINTS}))
TRAINED: dict[str, Any] = {"kuhn": POKER[0], "small_four": BOARDS[0], "mini_hanabi": HANABI[0]}
HELD_OUT: dict[str, Any] = {"leduc": POKER[1], "large_four": BOARDS[1], "hanabi": HANABI[1]}
EVERY = TRAINED | HELD_OUT
FIXED = {"kuhn": "equilibrium", "leduc": "honest", "small_four": "greedy", "large_four": "greedy"}


def judged(trainer: Trainer) -> Callable[[dict], dict[str, float]]:
    """Points a game in all six games, trained in or not."""
    plays: dict[str, Callable[..., Any]] = {}
    for name, game in EVERY.items():
        others = ("random", FIXED[name]) if name in FIXED else ()
        pairs = tuple(pair for other in others for pair in ((ME, other), (other, ME))) or ((ME, ME),)
        lineup = Lineup(pairs * 128, 1)
        plays[name] = jit_rollout(Rollout(game, trainer.policy_sets, lineup, trainer.recipe.budget))

    def evaluate(weights: dict) -> dict[str, float]:
        found = {}
        for name, play in plays.items():
            won = np.asarray(play(weights, jax.random.key(0)).episodes.reward[..., 0].sum(1))  # [games, seats]
            others = ("", f", {FIXED[name]}") if name in FIXED else ("",)
            for i, other in enumerate(others):
                mine = won.reshape(128, len(others), -1, 2)[:, i]
                found[name + other] = float(np.trace(mine.mean(0)) / 2 if other or name in FIXED else mine.mean())
        return found

    return evaluate


def by_turn(experience: Experience, hparams: Hparams, state: Any, **options: Any) -> Advantages:
    episodes, own = experience.episodes, {"num_roles": 2, "by": ("agent",), **options}
    return Advantages(advantages.turn_level(episodes.total_reward, *experience.acts, role=episodes.role, **own))


def near_the_prior(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    total, metrics = losses.ppo(scores, batch, hparams)
    drift, more = losses.kl_penalty(scores.logp, batch.reference_logp, batch.mask, kind="k3")
    return Mean(total.sum + hparams["kl"] * drift.sum, total.count), metrics | more


MARS, EPISODE = partial(by_turn, centre=("agent",)), partial(by_turn, centre=None, returns="episode")
BOOK = Recipe(POKER[0], ((ME, ME),), None, step=len, groups=8, group_size=1, warm_start=(("random", "random"),))
FALLING = {"learning_rate": optax.linear_schedule(1e-2, 0.0, LESSONS)}
PLAY = replace(BOOK, advantage=MARS, step=None, loss=near_the_prior, reference=True, group_size=8, warm_start=())
GROUPS = {"kuhn": 8, "small_four": 4, "mini_hanabi": 2}
OWN: dict[str, Any] = {
    "game": POKER[0],  # one game and one vocabulary in all arms, which so share a prior
    "tokenizer": partial(one_vocabulary, games=(*BOARDS, *HANABI), in_words=POKER),
    "warm_start": reading(
        {name: replace(BOOK, game=game) for name, game in EVERY.items()}, 96, updates=LESSONS, hparams=FALLING
    ),
    "hparams": {"learning_rate": 3e-3, "entropy": 0.0, "kl": 0.02},
    "evaluate": judged,
}


def arm(*names: str, advantage: Any = MARS, updates: int = UPDATES, **changed: Any) -> Recipe:
    own = partial(replace, PLAY, advantage=advantage)
    games = {name: own(game=TRAINED[name], groups=GROUPS[name]) for name in names}
    return together(games, **{**OWN, **changed}, updates=updates, eval_every=updates)


ARMS = {"together": arm(*TRAINED), "episode": arm(*TRAINED, advantage=EPISODE)} | {name: arm(name) for name in TRAINED}
ARMS["prior"] = arm("kuhn", updates=1, hparams={**OWN["hparams"], "learning_rate": 0.0})
STUDY = Study(
    paper=Paper("MARS (Yuan et al.)", "https://arxiv.org/abs/2510.15414", 2025, checked="abstract"),
    question="Does self-play help in larger games of the same families, whose words a policy knows?",
    claim="draft",
    arms=ARMS,
    method="together",
    metrics=(*HELD_OUT, "leduc, honest", "large_four, greedy", *TRAINED),
    predictions=(Higher("leduc", "together", than="kuhn"),),
)
