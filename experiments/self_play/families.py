"""Does self-play in some games help in larger games of their families, if the policy knows all words? MARS says yes.

The study `transfer` tests policies that learn words from play alone. Here the policy is pretrained on games of random
players in all six games, the held-out ones included. It learns to predict every token heard or said. It then knows the
words, the legal answers and their consequences, but no way to win. The texts of both poker games are split into words.
After that the policy plays itself, with a penalty on the KL to the pretrained policy:

  together                         Kuhn poker, Connect Four on 4 columns and a mini Hanabi in every update
  kuhn, small_four, mini_hanabi    one of these games, with as many of its games and updates as in `together`
  episode                          as `together`; a turn is credited with the whole game, not with its return-to-go
  prior                            no self-play

Advantages are centred by seat, in the order of MARS, and whitened in each game. Evaluation uses fresh deals of all six
games. Held out are Leduc poker, Connect Four on 5 columns, and Hanabi with a third colour and five cards a hand. Both
boards have 3 rows, and 3 in a row win. Both sizes of Hanabi are MARS's, except
for a single hint token here.

  GAME          points per game against random play, over both seats; in Hanabi the score in self-play, of 4 or 6 points
  GAME, SCRIPT  points per game against a stronger script (`equilibrium`, `honest` or `greedy`), over both seats

  python -m experiments families --seeds 10

Paper: MARS (Yuan et al.) 2025, https://arxiv.org/abs/2510.15414, quoted:

- "the MARS agent trained from Qwen3-4B develops strong strategic abilities that generalize to held-out games"
- "a turn-level advantage estimator that aligns learning signals with each interaction for credit assignment, and an
  agent-specific advantage normalization"

MARS's small board game is tic-tac-toe, its KL weight is 0.2 (here 0.02), and its model thinks before it answers. Two of
its claims are not tested here: transfer to mathematics, and to games told in other words. A policy of 26,000 weights
can do neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
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
    """One vocabulary for all arms, so that they share the pretrained policy and the evaluation."""
    return one_vocabulary(game, games=(*BOARDS, *HANABI), in_words=POKER)


@cache
def trials(policy_set: PolicySet) -> Callable[[dict, jax.Array], dict[str, float]]:
    return points_in_games(policy_set, EVERY, SCRIPTS, rounds=64)


def family_evaluator(parts: Parts) -> Callable[[dict, jax.Array], dict[str, float]]:
    """Points per game in all six games, the trained and the held-out ones."""
    return trials(parts.policy_sets[ME])


def by_turn(experience: Experience, hparams: Hparams, state: Any) -> Advantages:
    """Advantages of turns from the return-to-go (`turn`) or from the return of the whole game (`episode`)."""
    episodes = experience.episodes
    options: dict[str, Any] = {"role": episodes.role, "num_roles": 2, "by": ("agent",)}
    turn_level = partial(advantages.turn_level, episodes.total_reward, *experience.acts, **options)
    following, whole = turn_level(centre=("agent",)), turn_level(centre=None, returns="episode")
    return Advantages(select(hparams, "credit", turn=following, episode=whole))


def near_the_prior(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """PPO's loss plus the weighted KL to the pretrained policy."""
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
COMMON: dict[str, Any] = {
    "game": POKER[0],  # the same in all arms
    "tokenizer": vocabulary,
    "warm_start": reading(BOOKS, most=96, updates=LESSONS, hparams=FALLING),
    "hparams": {"learning_rate": 3e-3, "entropy": 0.0, "kl": 0.02},
    "evaluate": family_evaluator,
}


def arm(*names: str, updates: int = UPDATES, **changed: float) -> Recipe:
    games = {name: replace(PLAY, game=TRAINED[name], groups=GROUPS[name]) for name in names}
    options = {**COMMON, "hparams": COMMON["hparams"] | changed}
    return together(games, **options, updates=updates, eval_every=updates)


ALL = arm(*TRAINED)
ARMS = {"together": ALL, "episode": ALL.with_choice(credit="episode")}
ARMS |= {name: arm(name) for name in TRAINED} | {"prior": arm("kuhn", updates=1, learning_rate=0.0)}
HOME = dict(zip(HELD_OUT, TRAINED, strict=True))  # the trained game of the same family
HARDER = ("leduc, honest", "large_four, greedy")
PILOT = "Seeds 100 and 101, 80 updates: this sign was seen."
STUDY = Study(
    paper=Paper("MARS (Yuan et al.)", "https://arxiv.org/abs/2510.15414", 2025, checked="release"),
    question="Does self-play help in larger games of the same families, whose words a policy knows?",
    claim="A policy that knows all words gets better in larger games by self-play in small ones of their families, "
    "most of all if it plays three together and each turn is credited with what follows it.",
    arms=ARMS,
    method="together",
    metrics=(*HELD_OUT, *HARDER, *TRAINED),
    predictions=(
        *(
            Higher(
                game,
                "together",
                than="prior",
                source="paper",
                where="Abstract: the agent's abilities 'generalize to held-out games'. Here the opponent is random "
                "play.",
            )
            for game in ("leduc", "large_four")
        ),
        Higher(
            "hanabi",
            "together",
            than="prior",
            source="paper",
            where="Abstract: the agent's abilities 'generalize to held-out games'. The score in self-play is the "
            "release's measure.",
        ),
        *(Higher(game, home, than="prior", source="pilot", where=PILOT) for game, home in HOME.items()),
        *(Higher(game, "together", than=home, source="pilot", where=PILOT) for game, home in HOME.items()),
        Higher(
            "leduc, honest",
            "together",
            than="prior",
            source="paper",
            where="Abstract: held-out games; the release judges Leduc poker against an equilibrium. Seeds 100 and "
            "101 showed the reverse.",
        ),
        Higher(
            "large_four, greedy",
            "together",
            than="prior",
            source="paper",
            where="Abstract: held-out games; the release judges Connect Four against MCTS.",
        ),
        Higher("hanabi", "mini_hanabi", than="kuhn", source="pilot", where=PILOT),
        Higher(
            "hanabi",
            "together",
            than="episode",
            source="paper",
            where="Abstract: 'a turn-level advantage estimator that aligns learning signals with each interaction "
            "for credit assignment'.",
        ),
    ),
)
