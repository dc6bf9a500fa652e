"""Do learners that meet many unlike players adapt to whom they meet, and do they then cooperate with each other?

A donation game of 20 rounds: to cooperate costs 1 and gives the other 2. Two learners play half their games with each
other and half with tabular players: five answers, cooperate or defect, at first and after each outcome of the round
before, fair coins, fresh in every game. A learner is a table over what it remembers of the game, the other's last
answer in each of those situations (`tabular.remembering`); its rule is advantage actor-critic. All play alike:

  mixed                        it learns from all of them
  identity                     and is told before a game the five answers, or that it meets a learner
  learners_only, tabular_only  it learns from games with the other learner, or from those with tabular players
  uniform/...                  the five are chances, uniform in [0, 1]; `identity` tells the likelier answers
  patient/...                  the discount is 0.95 in place of 0.9

`cooperation` of learners with each other, also by thirds of the rounds. `points` a round against tabular players,
`rise`: in the last third less the first, `distance`: to the exact best response of who knows them. `against ...`: one
player, never learned from. With `--arms policy/mixed ...` a policy that sees the whole game plays with its copy.

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
from jaxmarl_llm.environments.social.matrix_games import COOPERATE, MatrixGame
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.computed import side_by_side
from jaxmarl_llm.studies.study import AtMost, Higher, Paper, Study
from jaxmarl_llm.tabular import remembering as tables
from jaxmarl_llm.tabular.repeated_games import best_response
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

PAYOFF = (((1.0, 1.0), (-1.0, 2.0)), ((2.0, -1.0), (0.0, 0.0)))
KNOWN = ("always_cooperate", "always_defect", "tit_for_tat", "random")
ROUNDS, UPDATES, TESTED = 20, 120, 256


def rise(points: jax.Array) -> jax.Array:
    third = points.shape[1] // 3
    return points[:, -third:].mean() - points[:, :third].mean()


def measure(action: jax.Array, points: jax.Array) -> dict[str, jax.Array]:
    """Of actions of learners with each other [n, T, 2] and points against others [m, T]."""
    kind, third = action == COOPERATE, action.shape[1] // 3
    found = {"cooperation": kind.mean(), "points": points.mean(), "rise": rise(points)}
    return found | {"first third": kind[:, :third].mean(), "last third": kind[:, -third:].mean()}


def told_of(hparams: Mapping[str, Any]) -> jax.Array:
    """True if a learner is told whom it meets."""
    return select(hparams, "identity", hidden=jnp.bool_(False), told=jnp.bool_(True))


def learn_policies(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Curves of one arm's learners, and what their last tables earn."""
    payoff, told, draw = jnp.array(PAYOFF), told_of(hparams), partial(tables.draw_chances, coins=hparams["coins"])
    last, found = tables.train(
        key, draw, payoff, measure, updates=UPDATES, rounds=ROUNDS, pairs=128, told=told,
        from_pairs=select(hparams, "games", all=True, learners=True, tabular=False),
        from_others=select(hparams, "games", all=True, learners=False, tabular=True),
        rate=hparams["rate"], entropy=hparams["entropy"], gamma=hparams["gamma"],
    )  # fmt: skip
    draws, dice = jax.random.split(jax.random.fold_in(key, UPDATES))
    known = jnp.repeat(jnp.array([MEMORY_ONE[name] for name in KNOWN]), TESTED, 0)
    chances = jnp.concatenate([known, draw(draws, TESTED)])
    points = tables.play(last, tables.meetings(0, chances, told), payoff, ROUNDS, dice).reward[..., 0]
    for name, own in zip(KNOWN, jnp.split(points, 5)[:4], strict=True):
        found |= {f"against {name}": own.mean(), f"rise against {name}": rise(own)}
    most = jax.vmap(lambda of: best_response(payoff[..., 0], of, ROUNDS).value)(chances[-TESTED:]) / ROUNDS
    return found | {"distance": (most - points[-TESTED:].mean(1)).mean()}


def arrange(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array, *, pairs: int, others: int) -> Arranged:
    """Policies: whom each group meets, and what it is told of that; first come games of the learner with its copy."""
    chances = tables.draw_chances(key, pairs + others, coins=hparams["coins"])
    learner = jnp.arange(pairs + others)[:, None] < pairs
    said = jnp.concatenate([jnp.where(learner, -1, character(chances)), jnp.where(learner, 0, -1)], 1)
    return Arranged(deal=Announcement(jnp.where(told_of(hparams), said, -1), chances))


def by_round(experience: Experience, hparams: Hparams, state: tuple, *, pairs: int) -> Advantages:
    """Returns from the round on, less those of the group's other games, in games that the arm learns from."""
    episodes, (acted, group, groups) = experience.episodes, experience.learning_acts
    own = advantages.round_leave_one_out(episodes.total_reward, acted, group, groups, gamma=hparams["gamma"])
    with_copy = group < pairs
    learns = select(hparams, "games", all=True, learners=with_copy, tabular=~with_copy)
    games, trained = pairs * len(group) // groups, acted & learns[:, None, None]
    metrics = measure(episodes.action[:games], episodes.total_reward[games:, :, 0])
    return Advantages(advantages.whiten(own, trained), trained=trained, metrics=metrics)


def policy(rounds: int, pairs: int, others: int) -> dict:
    inside = WithOpponent(MatrixGame(PAYOFF, rounds, exchange=False), memory_one())
    return {
        "game": Announced(inside, (*CHARACTER, (" They are a learner, as you are.",))),
        "seats": (("learner", "learner"),) * pairs + (("learner", "memory_one"),) * others,
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
COMPUTED: dict[str, dict] = {name: {**BASE, **own} for name, own in OPTIONS.items()}
COMPUTED |= {f"uniform/{name}": {**COMPUTED[name], "coins": 0.0} for name in ("mixed", "identity")}
COMPUTED |= {f"patient/{name}": {**COMPUTED[name], "gamma": 0.95} for name in ("mixed", "learners_only")}
LARGER = {**policy(3, 1, 2), "budget": 2}
POLICY = Recipe(**policy(ROUNDS, 4, 8), hparams={**BASE, "learning_rate": 3e-3}, budget=1, pretrained=LARGER)
POLICY = replace(POLICY, choices=CHOICES)
STUDY = Study(
    paper=Paper("Co-player inference", "https://arxiv.org/abs/2602.16301", 2026, checked="paper"),
    question="Do learners that meet many unlike players adapt to them, and cooperate with each other?",
    claim="Learners cooperate more with each other if they also learn from unlike players than if these are named, or "
    "if they learn from each other alone; only those who met such players earn more against them later in a game.",
    arms=side_by_side(learn_policies, COMPUTED, UPDATES, CHOICES),
    extra={f"policy/{name}": POLICY.with_choice(**own) for name, own in OPTIONS.items()},
    method="mixed",
    metrics=("cooperation", "first third", "last third", "points", "rise", "distance"),
    predictions=(
        *(Higher("cooperation", "mixed", than=name) for name in list(OPTIONS)[1:]),
        *(Higher("rise", name, than="learners_only") for name in ("mixed", "tabular_only")),
        Higher("points", "mixed", than="learners_only"),
        AtMost("distance", "identity", 0.1),
        *(Higher("cooperation", "uniform/mixed", than=name) for name in ("uniform/identity", "learners_only")),
        Higher("cooperation", "patient/learners_only", than="learners_only"),
    ),
)
