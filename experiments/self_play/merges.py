"""One policy trained in several games at once, or specialists of one game each, merged: which ends better?

The paper: "Mixed multi-task RLVR achieves comparable performance with separate RLVR followed by model merging", with
"minimal interference" between domains, whose updates have a "positive cosine similarity".

Kuhn poker and tic-tac-toe against random play, in both seats, and a chain of four locks at most, whose pay is the share
that opens. A tiny policy, with one vocabulary for all games, first imitates random legal play in all of them: the base.
From there, with as many games of each kind and the same seeds:

  together          one policy in all games, 80 updates
  kuhn, tic_tac_toe, lock_chain   a specialist, 80 updates in that game alone, judged in all games
  specialists       each game by its own specialist: three models
  average           the mean of the specialists' weights
  sum/half, sum     base + 0.5 or 1 times the sum of what each has learnt (task arithmetic; 1 is the release's)
  ties              TIES: a fifth of each specialist's changes is kept, signs are elected (the release's settings)
  distilled         the base learns from the specialists in 40 updates: in a game of its own playing, a token's
                    advantage is the log-probability that the game's specialist gives it less its own

`kuhn`, `tic_tac_toe`, `lock_chain`: points a game in 512 games, the same deals for all arms; the arm `base` is what they
were before. `gain`: (points - the base's) over (the specialist's - the base's), the mean over the games. Of the
specialists' changes, means over pairs: `cosine`; `changed`, the share of weights that differ in bfloat16; `overlap`, of
the weights that either has changed the share that both have; `against`, of those the share with opposite signs.
The curves show all arms, merges too, after each quarter of the updates. These arms are computed.

  python -m experiments merges --seeds 10

Paper: M2RL (Wang et al.) 2026, https://arxiv.org/abs/2602.12566, whose base is a 4B model after supervised training in
all domains; its best merge is TIES, its worst the average. Here the base knows the rules of format alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.devices.compiling import OFTEN
from jaxmarl_llm.environments.board_games import TicTacToe
from jaxmarl_llm.environments.card_games import KuhnPoker
from jaxmarl_llm.environments.lock_chain import LockChain
from jaxmarl_llm.models import loading, merging
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study
from jaxmarl_llm.training.begin import trained, where_ended
from jaxmarl_llm.training.recipe import Common, Recipe, estimator
from jaxmarl_llm.training.setup import TINY, Parts, setup
from jaxmarl_llm.training.several_games import from_teacher, imitated, together

ME, UPDATES, QUARTERS, JUDGED = "learner", 80, 4, 512
KUHN = Recipe(
    KuhnPoker(), seats=((ME, "random"), ("random", ME)), advantage=estimator(advantages.rloo, per_agent=True),
    hparams={"learning_rate": 3e-3}, warm_start=Common((("random", "random"),)), budget=1, groups=8, group_size=8,
)  # fmt: skip
OPENS = estimator(advantages.rloo, per_agent=True, components=(0.0, 1.0))
GAMES = {
    "kuhn": KUHN,
    "tic_tac_toe": replace(KUHN, game=TicTacToe(), groups=4),
    "lock_chain": replace(
        KUHN, game=LockChain(4, turns=6), seats=((ME,),), advantage=OPENS, warm_start=Common((("random",),)), groups=4
    ),
}
EVERY = tuple(one.game for one in GAMES.values())  # one vocabulary in all arms
BASE = imitated(GAMES, updates=UPDATES)


def train_in(games: Mapping[str, Recipe], updates: int = UPDATES) -> Recipe:
    return together(games, EVERY, updates=updates, warm_start=BASE)


PUPIL = train_in({name: replace(one, advantage=from_teacher) for name, one in GAMES.items()}, UPDATES // 2)


def points(parts: Parts, key: jax.Array, weights: dict) -> dict[str, jax.Array]:
    """What the policy wins a game, by game."""
    found = {}
    for name, one in GAMES.items():
        play = Rollout(one.game, parts.policy_sets, Lineup(one.seats * (JUDGED // len(one.seats)), 1), one.budget)
        won = play({ME: {"params": weights}}, key).episodes.reward[..., -1].sum(1)  # [games, seats]
        found[name] = jnp.einsum("gii->gi", won.reshape(-1, len(one.seats), one.game.agents)).mean()
    return found


def gain(arm: Mapping[str, Any], base: Mapping[str, Any], best: Mapping[str, Any]) -> Any:
    """The mean over games of what an arm has gained over the base by what the best gain."""
    return sum((arm[game] - base[game]) / (best[game] - base[game]) for game in best) / len(best)


def studied(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
    """{arm: {metric: [UPDATES], measured after each quarter}}."""
    parts = setup(train_in(GAMES), TINY, sharding.mesh(), loading.load)
    base = where_ended(parts, key)[ME]
    train = lambda recipe, state=None: trained(parts, recipe, {ME: base}, key, QUARTERS, state)[ME]  # noqa: E731
    own = {name: train(train_in({name: one})) for name, one in GAMES.items()}
    merged = lambda how: jax.vmap(lambda *models: how(models))(*own.values())  # noqa: E731
    arms = {
        "base": jax.tree.map(lambda x: jnp.repeat(x[None], QUARTERS, 0), base),
        "together": train(train_in(GAMES)),
        **own,
        "average": merged(merging.average),
        "sum/half": merged(partial(merging.task_arithmetic, base, scale=0.5)),
        "sum": merged(partial(merging.task_arithmetic, base)),
        "ties": merged(partial(merging.ties, base)),
        "distilled": train(PUPIL, {name: {ME: jax.tree.map(lambda x: x[-1], one)} for name, one in own.items()}),
    }
    every = jax.tree.map(lambda *x: jnp.concatenate(x), *arms.values())
    won = jax.lax.map(partial(points, parts, jax.random.fold_in(key, 1)), every)  # of [arms * QUARTERS]
    found = {arm: {name: x.reshape(-1, QUARTERS)[i] for name, x in won.items()} for i, arm in enumerate(arms)}
    found["specialists"] = {game: found[game][game] for game in GAMES}
    best = {game: x[-1] for game, x in found["specialists"].items()}
    gains = {arm: {"gain": gain(own, found["base"], best)} for arm, own in found.items()}
    gains["specialists"] |= merged(partial(merging.geometry, base))
    at = jnp.arange(1, QUARTERS + 1) * (UPDATES // QUARTERS) - 1
    curve = lambda x: jnp.full(UPDATES, jnp.nan).at[at].set(x)  # noqa: E731
    return {arm: jax.tree.map(curve, own | gains[arm]) for arm, own in found.items()}


MERGED = ("average", "sum/half", "sum", "ties")
NAMES = ("base", "together", *GAMES, "specialists", *MERGED, "distilled")
STUDY = Study(
    paper=Paper("M2RL (Wang et al.)", "https://arxiv.org/abs/2602.12566", 2026, checked="release"),
    question="Train one policy in several games at once, or merge specialists of one game each?",
    claim="TODO",
    arms={arm: Computed(studied, updates=UPDATES, part=arm, level=OFTEN) for arm in NAMES},
    method="ties",
    metrics=("gain", *GAMES, "cosine", "changed", "overlap", "against"),
    predictions=(),
)
