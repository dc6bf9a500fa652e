"""Do learners that train against diverse players adapt within a game, and do they then cooperate with each other?

The game is the donation game with 20 rounds: cooperation costs 1 and gives the other player 2. Two learners play half
of their games with each other and half with tabular players. A tabular player has five answers: its first move, and its
move after each outcome of the previous round. The answers are fair coin flips, drawn anew for each game. A learner is a
table over its memory of the game: the other's last answer in each situation (`tabular.remembering`). It learns by
advantage actor-critic.

  mixed          a learner trains on all games
  identity       as mixed, and it is told the five answers, or that it meets a learner
  learners_only  it trains on games with the other learner only
  tabular_only   it trains on games with tabular players only
  uniform/...    the five answers are probabilities, uniform in [0, 1]; `identity` tells the likelier answers
  patient/...    discount 0.95 instead of 0.9
  policy/...     with `--arms`: a policy that reads the whole game, against its copy and tabular players
  paper/...      with `--arms`: two policies of width 128 at the paper's size, for a GPU: 100 rounds, 4,096 games of
                 each an update, probabilities uniform in [0, 1], discount 0.99; no critic, where the paper has one

Metrics:

  cooperation   of learners with each other; also in the first and the last third of the rounds
  points        points a round against tabular players
  rise          those points in the last third of the rounds less the first third
  distance      points of an exact best response that knows its opponent, less `points`
  against NAME  points a round against one fixed player, on which nobody trains

  python -m experiments co_players --seeds 10    # a minute on two cores

Paper: Multi-agent cooperation through in-context co-player inference 2026, https://arxiv.org/abs/2602.16301.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.announced import Announced, Announcement
from jaxmarl_llm.environments.around.opponents import CHARACTER, MEMORY_ONE, WithOpponent, character, memory_one
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.computed import side_by_side
from jaxmarl_llm.studies.study import AtMost, Higher, Paper, Study
from jaxmarl_llm.tabular import remembering as tables
from jaxmarl_llm.tabular.remembering import measure, rise
from jaxmarl_llm.tabular.repeated_games import best_response
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience, TinySize

PAYOFF = (((1.0, 1.0), (-1.0, 2.0)), ((2.0, -1.0), (0.0, 0.0)))
KNOWN = ("always_cooperate", "always_defect", "tit_for_tat", "random")
ROUNDS, UPDATES, TESTED = 20, 120, 256


def told_of(hparams: Mapping[str, Any]) -> jax.Array:
    """True if a learner is told whom it meets."""
    return select(hparams, "identity", hidden=jnp.bool_(False), told=jnp.bool_(True))


def learn_policies(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Trains one arm's tables. Returns their curves, and metrics of the final tables against tabular players: points
    and their rise against the players of `KNOWN`, and `distance` against newly drawn ones."""
    payoff, told, draw = jnp.array(PAYOFF), told_of(hparams), partial(tables.draw_chances, coins=hparams["coins"])
    last, metrics = tables.train(
        key, draw, payoff, measure, updates=UPDATES, rounds=ROUNDS, pairs=128, told=told,
        from_pairs=select(hparams, "games", all=True, learners=True, tabular=False),
        from_others=select(hparams, "games", all=True, learners=False, tabular=True),
        rate=hparams["rate"], entropy=hparams["entropy"], gamma=hparams["gamma"],
    )  # fmt: skip
    draws, dice = jax.random.split(jax.random.fold_in(key, UPDATES))
    known = jnp.repeat(jnp.array([MEMORY_ONE[name] for name in KNOWN]), TESTED, 0)
    chances = jnp.concatenate([known, draw(draws, TESTED)])
    points = tables.play(last, tables.meetings(0, chances, told), payoff, ROUNDS, dice).reward[..., 0]
    for name, earned in zip(KNOWN, jnp.split(points, 5)[:4], strict=True):
        metrics |= {f"against {name}": earned.mean(), f"rise against {name}": rise(earned)}
    best = jax.vmap(lambda answers: best_response(payoff[..., 0], answers, ROUNDS).value)(chances[-TESTED:]) / ROUNDS
    return metrics | {"distance": (best - points[-TESTED:].mean(1)).mean()}


def arrange(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array, *, pairs: int, others: int) -> Arranged:
    """Opponent and announcement of each group, for policies; the first `pairs` groups play with the copy."""
    chances = tables.draw_chances(key, pairs + others, coins=hparams["coins"])
    learner = jnp.arange(pairs + others)[:, None] < pairs
    said = jnp.concatenate([jnp.where(learner, -1, character(chances)), jnp.where(learner, 0, -1)], 1)
    return Arranged(deal=Announcement(jnp.where(told_of(hparams), said, -1), chances))


def by_round(experience: Experience, hparams: Hparams, state: tuple, *, pairs: int) -> Advantages:
    """Returns-to-go less those of the group's other games, by round; only the arm's games train."""
    episodes, (acted, group, groups) = experience.episodes, experience.learning_acts
    advantage = advantages.round_leave_one_out(episodes.total_reward, acted, group, groups, gamma=hparams["gamma"])
    with_copy = group < pairs
    learns = select(hparams, "games", all=True, learners=with_copy, tabular=~with_copy)
    games, trained = pairs * len(group) // groups, acted & learns[:, None, None]
    metrics = measure(episodes.action[:games], episodes.total_reward[games:, :, 0])
    return Advantages(advantages.whiten(advantage, trained), trained=trained, metrics=metrics)


def policy(rounds: int, pairs: int, others: int, names: tuple[str, str] = ("learner", "learner")) -> dict:
    """Recipe fields of two learners, or of one and its copy, in `pairs` groups with each other and in `others` groups
    with tabular players, divided evenly."""
    inside = WithOpponent(MatrixGame(PAYOFF, rounds, exchange=False), memory_one())
    learners = tuple(dict.fromkeys(names))
    return {
        "game": Announced(inside, (*CHARACTER, (" They are a learner, as you are.",))),
        "seats": (names,) * pairs
        + tuple((name, "memory_one") for name in learners for _ in range(others // len(learners))),
        "groups": pairs + others,
        "arrange": partial(arrange, pairs=pairs, others=others),
        "advantage": partial(by_round, pairs=pairs),
    }


BASE = {"coins": 1.0, "gamma": 0.9, "rate": 1.0, "entropy": 0.05}
CHOICES = {"identity": ("hidden", "told"), "games": ("all", "learners", "tabular")}
OPTIONS: dict[str, dict[str, str]] = {
    "mixed": {},
    "identity": {"identity": "told"},
    "learners_only": {"games": "learners"},
    "tabular_only": {"games": "tabular"},
}
COMPUTED: dict[str, dict] = {name: {**BASE, **options} for name, options in OPTIONS.items()}
COMPUTED |= {f"uniform/{name}": {**COMPUTED[name], "coins": 0.0} for name in ("mixed", "identity")}
COMPUTED |= {f"patient/{name}": {**COMPUTED[name], "gamma": 0.95} for name in ("mixed", "learners_only")}
LARGER = {**policy(3, 1, 2), "budget": 2}
POLICY = Recipe(**policy(ROUNDS, 4, 8), hparams={**BASE, "learning_rate": 3e-3}, budget=1, pretrained=LARGER)
POLICY = replace(POLICY, choices=CHOICES)
PAPER = Recipe(
    **policy(100, 128, 256, ("first", "second")), group_size=16, updates=300, budget=1, grad_accumulation=4,
    size=TinySize(128), hparams={**BASE, "coins": 0.0, "gamma": 0.99, "entropy": 0.01, "learning_rate": 1e-3},
    choices=CHOICES,
)  # fmt: skip
CHOSEN = (
    "seeds 100 to 103: this setting (fair coins, 20 rounds, discount 0.9, entropy 0.05) was chosen because the "
    "direction showed in it"
)
STUDY = Study(
    paper=Paper("Co-player inference", "https://arxiv.org/abs/2602.16301", 2026, checked="paper"),
    question="Do learners that meet many unlike players adapt to them, and cooperate with each other?",
    claim="Learners cooperate more with each other if they also learn from unlike players than if these are named, or "
    "if they learn from each other alone; only those who met such players earn more against them later in a game.",
    arms=side_by_side(learn_policies, COMPUTED, UPDATES, CHOICES),
    extra={
        f"{kind}/{name}": recipe.with_choice(**options)
        for kind, recipe in {"policy": POLICY, "paper": PAPER}.items()
        for name, options in OPTIONS.items()
    },
    method="mixed",
    metrics=("cooperation", "first third", "last third", "points", "rise", "distance"),
    predictions=(
        Higher(
            "cooperation",
            "uniform/mixed",
            than="learners_only",
            source="paper",
            where="Section 3.1, Figure 1: agents trained in the mixed pool converge to cooperation, those trained "
            "against learners alone to defection",
        ),
        *(
            Higher("cooperation", "mixed", than=name, source="pilot", where=CHOSEN)
            for name in ("learners_only", "tabular_only")
        ),
        *(
            Higher("rise", name, than="learners_only", source="pilot", where=CHOSEN)
            for name in ("mixed", "tabular_only")
        ),
        Higher("points", "mixed", than="learners_only", source="pilot", where=CHOSEN),
        Higher(
            "cooperation",
            "patient/learners_only",
            than="learners_only",
            source="pilot",
            where="seeds 100 to 103: learners_only with discount 0.95 came to cooperate in half of the seeds or more",
        ),
    ),
    checks=(AtMost("distance", "identity", 0.1),),
)
