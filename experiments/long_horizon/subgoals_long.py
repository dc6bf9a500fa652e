"""Does credit for subgoals on a time scale of their own pay in long games? HiPER, where games last up to 12 turns.

The study `subgoals` has games of six turns, too short for the paper's claim. Here three things lie in three rooms and
are to be taken in a given order within 12 turns; the last one pays a point. In each turn the seat keeps its subgoal,
which costs 0.03 points, or switches, names the subgoal, and acts. The critic is the table of `subgoals`, which learns
before the policies do. They imitate the same player, for twice as long.

  hae             HiPER: GAE within a segment for acts, over segments for subgoals, the return to the segment's end for
                  keep and switch; each normalised over its own words
  flat            GAE over all words that were a choice, normalised
  group           the game's return minus the mean of the group's other games, normalised
  hae/no_penalty  as hae, and keeping is free

Exact arms train nothing. A seed is a random policy of a small game: two rooms, a thing to take, three turns. Mean and
variance of a game's policy gradient are over all its games. `.../wrong_value`: values have normal errors as large as
the root mean square of the exact advantages.

  exact/hae, exact/flat            exact values, lambda 1, not normalised
  exact/hae_0.95, exact/flat_0.95  lambda 0.95 for a turn and a segment, as in the arms above

  over all  mean over all updates of `won`, the share of games won
  rise      `won` at the end minus its mean over the first 10 updates
  turns     turns of a game
  switches  share of turns after the first that switch; `one-sided` is twice its distance from 1/2
  right     share of turns under the right subgoal
  bias      |mean gradient - exact gradient| / |exact gradient|
  noise     standard deviation of a game's gradient / |exact gradient|

  python -m experiments subgoals_long --seeds 20

Paper: HiPER (Peng et al.) 2026, https://arxiv.org/abs/2602.16165. There a pretrained model says a turn in one text.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.long_horizon.subgoals import HAE, LAM, OVER_ALL, REMEMBERS, RISE, SITUATION, TAUGHT
from jaxmarl_llm.environments.around.subgoals import DECISIONS, SWITCH, Subgoals, by_level, together
from jaxmarl_llm.environments.solo.rooms import Rooms
from jaxmarl_llm.evaluation.exact.estimators import variants
from jaxmarl_llm.evaluation.exact.exact_gradient import Tables, tables
from jaxmarl_llm.evaluation.exact.moments import moments
from jaxmarl_llm.rl import advantages, returns, value_table
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.masked import keep
from jaxmarl_llm.rl.segments import gae_hierarchical
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.curves import last_mean, mean_over_updates, rise_since
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams
from jaxmarl_llm.training.records import Advantages, Experience

SIDED = "one-sided"


def flat(reward: jax.Array, value: jax.Array, acted: jax.Array, *, lam: float) -> jax.Array:
    """GAE over words, with `lam` for a turn."""
    return returns.gae(reward, value, acted, lam=lam ** (1 / DECISIONS)).advantage


def by_segments(reward: jax.Array, value: jax.Array, acted: jax.Array, action: jax.Array, *, lam: float) -> jax.Array:
    """HiPER's advantages of words [B, 3T, A]."""
    asked, said = by_level(acted)[0], by_level(action)[0]
    paid, upwards = jnp.stack(by_level(reward)).sum(0), by_level(value)[::-1]
    hae = gae_hierarchical(paid, *upwards, asked & (said == SWITCH), asked, lam=lam, segment_lam=lam)
    return together(hae.switch.advantage, hae.segment.advantage, hae.turn.advantage)


def estimate_advantages(experience: Experience, hparams: Hparams, state: value_table.ValueTable) -> Advantages:
    """Advantages by the arm's `credit`, with the table as the critic."""
    episodes = experience.episodes
    acted, paid = episodes.acted, jnp.where(episodes.acted, episodes.total_reward, 0)
    choice = acted & (episodes.legal.sum(-1) > 1)
    situation, to_go = episodes.measured[..., SITUATION].astype(jnp.int32), value_table.to_go(paid, choice)
    value = keep(state.values(situation), choice)
    hae = by_level(by_segments(paid, value, acted, episodes.action, lam=LAM))
    levels = [whiten(x, where) for x, where in zip(hae, by_level(choice), strict=True)]
    by_word = flat(paid, value, choice, lam=LAM), advantages.rloo(paid, *experience.acts)
    credit = dict(zip(("flat", "group"), (whiten(x, choice) for x in by_word), strict=True))
    after = state.add(situation, to_go, choice, REMEMBERS)
    return Advantages(select(hparams, "credit", hae=together(*levels), **credit), state=after)


def table(parts: Any, key: jax.Array) -> value_table.ValueTable:
    return value_table.empty(GAME.turns, 2 * ROOMS.situations)


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    turns = by_level(episodes.acted)[2].sum((1, 2))
    return HAE.measure(episodes) | {"turns": mean_of_kept(episodes, turns)}


@cache
def small_game() -> Tables:
    return tables(Subgoals(Rooms(2, 2, 1, budget=3, reminds=True)))


EXACT = {"hae": partial(by_segments, lam=1.0), "flat": partial(flat, lam=1.0)}
EXACT |= {"hae_0.95": partial(by_segments, lam=LAM), "flat_0.95": partial(flat, lam=LAM)}


@jax.jit
def in_all_games(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
    """{estimator: {"bias", "noise"}} at a random policy of the small game."""
    policy_key, wrong = jax.random.split(key)
    legal = small_game().tree.legal
    policy = jax.nn.softmax(jnp.where(legal, jax.random.normal(policy_key, legal.shape), -jnp.inf))
    return moments(small_game(), policy, EXACT, wrong)


def one_sidedness(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    return 2 * np.abs(last_mean(curves, metric="switches") - 0.5)


ROOMS = Rooms(3, 3, 3, budget=12, reminds=True)
GAME = Subgoals(ROOMS, penalty=0.03)
LONG = replace(
    HAE,
    game=GAME,
    advantage=estimate_advantages,
    init_state=table,
    choices={"credit": ("hae", "flat", "group")},
    critic=False,
    hparams={"learning_rate": HAE.hparams["learning_rate"]},
    warm_start_updates=150,
    updates=TAUGHT + 40,
    measure=measure,
)
OURS = "The level is ours: credit shows only in a policy that learns."
TURNS = "The paper's gain is in long games; those of the study subgoals last six turns at most."
BEST = 'abstract: "+6.6% and +8.3% over the best prior method", "with especially large gains on long-horizon tasks"'
REDUCES = "abstract: HAE provably reduces variance compared to flat generalized advantage estimation"
VALUES = "A segment ends with the value of the next one; flat GAE with lambda 1 has rewards alone."
SWITCHING = "second-hand: notes on the paper say that switching degenerates without penalties"
WRONG = "exact/hae/wrong_value", "exact/flat/wrong_value"
STUDY = Study(
    paper=Paper("HiPER (Peng et al.)", "https://arxiv.org/abs/2602.16165", 2026, checked="release"),
    question="Does credit for subgoals on a time scale of their own pay in long games?",
    claim="Credit by segments wins more of a long game meanwhile than the group's returns and than GAE over all words; "
    "its gradient has less noise, and is unbiased only with exact values.",
    arms={
        "hae": LONG,
        "flat": LONG.with_choice(credit="flat"),
        "group": LONG.with_choice(credit="group"),
        "hae/no_penalty": replace(LONG, game=replace(GAME, penalty=0.0)),
        **{f"exact/{name}": Computed(in_all_games, part=name) for name in variants(EXACT)},
    },
    method="hae",
    metrics=(OVER_ALL, "won", RISE, "turns", "switches", SIDED, "right", "bias", "noise"),
    predictions=(
        Higher(OVER_ALL, "hae", than="group", source="paper", where=BEST),
        Higher(OVER_ALL, "hae", than="flat", source="paper", where=REDUCES),
        AtLeast(RISE, "flat", 0.05, source="theory", where=OURS, condition=True),
        AtLeast("turns", "flat", 6, source="theory", where=TURNS, condition=True),
        Lower("noise", "exact/hae_0.95", than="exact/flat_0.95", source="paper", where=REDUCES),
        Higher("bias", WRONG[0], than=WRONG[1], source="theory", where=VALUES),
        Higher(SIDED, "hae/no_penalty", than="hae", source="theory", where=SWITCHING),
    ),
    checks=(
        *(AtMost("bias", f"exact/{name}", 1e-3) for name in EXACT),
        Lower("noise", "exact/hae", than="exact/flat"),
    ),
    x="update of 16 games",
    derived={
        OVER_ALL: partial(mean_over_updates, metric="won"),
        RISE: partial(rise_since, metric="won", first=TAUGHT),
        SIDED: one_sidedness,
    },
)
