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
from functools import cache, partial
from typing import Any

import optax

from jaxmarl_llm.environments.classic.board_games import ConnectFour
from jaxmarl_llm.environments.classic.card_games import KuhnPoker, LeducPoker
from jaxmarl_llm.environments.classic.hanabi import SIZES, Hanabi
from jaxmarl_llm.evaluation.trials import points_in_games
from jaxmarl_llm.methods.pretraining import reading
from jaxmarl_llm.methods.several_games import one_vocabulary, together
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, Hparams, LossAndMetrics, Scores
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout.team import PolicySet
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.recipe import Parts, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

ME, UPDATES, LESSONS, HINTS = "learner", 60, 120, {"information_tokens": 1}
POKER, BOARDS = (KuhnPoker(), LeducPoker()), (ConnectFour(4, 3, 3), ConnectFour(5, 3, 3))
HANABI = (Hanabi(**{**SIZES["mini"], **HINTS}), Hanabi(**{**SIZES["simple"], **HINTS}))
TRAINED: dict[str, Any] = {"kuhn": POKER[0], "small_four": BOARDS[0], "mini_hanabi": HANABI[0]}
HELD_OUT: dict[str, Any] = {"leduc": POKER[1], "large_four": BOARDS[1], "hanabi": HANABI[1]}
EVERY = TRAINED | HELD_OUT
STRONGER = {"kuhn": "equilibrium", "leduc": "honest", "small_four": "greedy", "large_four": "greedy"}
SCRIPTS = {name: ("random", script) for name, script in STRONGER.items()}


@cache
def vocabulary(game: Any) -> SymbolTokenizer:
    """One in all arms, which so share a prior and what they are judged with."""
    return one_vocabulary(game, games=(*BOARDS, *HANABI), in_words=POKER)


@cache
def trials(policy_set: PolicySet) -> Callable[[dict], dict[str, float]]:
    return points_in_games(policy_set, EVERY, SCRIPTS, rounds=64)


def family_evaluator(parts: Parts) -> Callable[[dict], dict[str, float]]:
    """Points a game in all six games, trained in or not."""
    return trials(parts.policy_sets[ME])


def by_turn(experience: Experience, hparams: Hparams, state: Any) -> Advantages:
    """Credit of a turn: the rewards that follow it, or those of the whole game."""
    episodes = experience.episodes
    own: dict[str, Any] = {"role": episodes.role, "num_roles": 2, "by": ("agent",)}
    turn_level = partial(advantages.turn_level, episodes.total_reward, *experience.acts, **own)
    following, whole = turn_level(centre=("agent",)), turn_level(centre=None, returns="episode")
    return Advantages(select(hparams, "credit", turn=following, episode=whole))


def near_the_prior(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    total, metrics = losses.ppo(scores, batch, hparams)
    assert batch.reference_logp is not None  # the recipe has a reference
    drift, more = losses.kl_penalty(scores.logp, batch.reference_logp, batch.mask, kind="k3")
    return Mean(total.sum + hparams["kl"] * drift.sum, total.count), metrics | more


BOOK = Recipe(POKER[0], ((ME, ME),), group_size=1, warm_start=(("random", "random"),))
BOOKS = {name: replace(BOOK, game=game, groups=8) for name, game in EVERY.items()}
FALLING = {"learning_rate": optax.linear_schedule(1e-2, 0.0, LESSONS)}
PLAY = replace(BOOK, advantage=by_turn, loss=near_the_prior, reference=True, group_size=4, warm_start=())
PLAY = replace(PLAY, choices={"credit": ("turn", "episode")})
GROUPS = {"kuhn": 12, "small_four": 4, "mini_hanabi": 3}
OWN: dict[str, Any] = {
    "game": POKER[0],  # the same in all arms
    "tokenizer": vocabulary,
    "warm_start": reading(BOOKS, most=96, updates=LESSONS, hparams=FALLING),
    "hparams": {"learning_rate": 3e-3, "entropy": 0.0, "kl": 0.02},
    "evaluate": family_evaluator,
}


def arm(*names: str, updates: int = UPDATES, **changed: float) -> Recipe:
    games = {name: replace(PLAY, game=TRAINED[name], groups=GROUPS[name]) for name in names}
    own = {**OWN, "hparams": OWN["hparams"] | changed}
    return together(games, **own, updates=updates, eval_every=updates)


ALL = arm(*TRAINED)
ARMS = {"together": ALL, "episode": ALL.with_choice(credit="episode")}
ARMS |= {name: arm(name) for name in TRAINED} | {"prior": arm("kuhn", updates=1, learning_rate=0.0)}
HOME = dict(zip(HELD_OUT, TRAINED, strict=True))  # the trained game of the same family
HARDER = ("leduc, honest", "large_four, greedy")
STUDY = Study(
    paper=Paper("MARS (Yuan et al.)", "https://arxiv.org/abs/2510.15414", 2025, checked="abstract"),
    question="Does self-play help in larger games of the same families, whose words a policy knows?",
    claim="A policy that knows all words gets better in larger games by self-play in small ones of their families, "
    "most of all if it plays three together and each turn is credited with what follows it.",
    arms=ARMS,
    method="together",
    metrics=(*HELD_OUT, *HARDER, *TRAINED),
    predictions=(
        *(Higher(game, who, than="prior") for game, own in HOME.items() for who in ("together", own)),
        *(Higher(game, "together", than=own) for game, own in HOME.items()),
        *(Higher(metric, "together", than="prior") for metric in HARDER),
        Higher("hanabi", "mini_hanabi", than="kuhn"),
        Higher("hanabi", "together", than="episode"),
    ),
)
