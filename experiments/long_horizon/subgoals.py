"""Does credit for subgoals on a time scale of their own speed up a long task? HiPER's hierarchical advantages.

Three things lie in two rooms, and one seat takes them in an order that it is told, within 8 turns; only the last one
pays, 1 point. In each turn it says three words: whether it keeps its subgoal or switches, the subgoal, which is the
thing that it goes for, and what it does. Every policy first imitates a player that goes for the thing that it names,
which is the right one with probability 2/3. Then it plays 60 updates of 32 games and learns by

  hae           HiPER: for what is done, GAE over turns while a subgoal is kept, a segment; for subgoals, GAE over
                segments; for keep and switch, the return to the segment's end; each normalised over its own words
  flat          GAE over all words that were a choice, normalised
  group         the game's return less the mean of the group's other games, normalised
  fixed_switch  hae, except that keep and switch do not learn

Keeping costs 0.03 points (HiPER: 0.3 of 10), and in `.../no_penalty` nothing. Lambda is 0.95 a turn and a segment. One
value head reads the token before each word, and by it knows which of the three it values; `group` leaves it unused.
`won`: games won; `over all`: the mean of that over all updates; `switches`: the share of turns after the first that
switch; `right`: the share of turns under the right subgoal; `turns`: all 8 if a game is lost. The best player knows
where a thing is that it does not see, and wins all games in 4.5 turns on average: 3 takes, 1.5 ways.

  python -m experiments subgoals --seeds 10

Paper: HiPER (Peng et al.) 2026, https://arxiv.org/abs/2602.16165. There a pretrained model says a turn in one text.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.rooms import Rooms
from jaxmarl_llm.environments.subgoals import DECISIONS, SWITCH, Subgoals
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.segments import gae_hierarchical
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import mean_over_updates, updates_to
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe

LAM, REACHED, OVER_ALL = 0.95, "updates to 60%", "over all"
_, WON, KEPT, RIGHT = range(4)  # components of the reward


def by_level(x: jax.Array) -> tuple[jax.Array, ...]:
    """[B, 3T, A] -> three of [B, T, A]: of keeping or switching, of the subgoal, of the answer."""
    return tuple(jnp.moveaxis(x.reshape(x.shape[0], -1, DECISIONS, *x.shape[2:]), 2, 0))


def together(*levels: jax.Array) -> jax.Array:
    """The inverse of `by_level`."""
    return jnp.stack(levels, 2).reshape(levels[0].shape[0], -1, *levels[0].shape[2:])


def credited(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Of three levels where `levels`, else of all words: with a critic where `value`, else of the group."""
    episodes, value = experience.episodes, experience.turn_value
    paid = jnp.where(episodes.acted, episodes.reward[..., WON] - hparams["penalty"] * episodes.reward[..., KEPT], 0)
    choice, acted = episodes.acted & (episodes.legal.sum(-1) > 1), by_level(episodes.acted)[0]
    switches = acted & (by_level(episodes.action)[0] == SWITCH)
    of_switch, of_subgoal, of_answer = by_level(value)
    reward, values = jnp.stack(by_level(paid)).sum(0), (of_answer, of_subgoal, of_switch)
    hae = gae_hierarchical(reward, *values, switches, acted, lam=LAM, segment_lam=LAM)
    parts = hae.switch, hae.segment, hae.turn
    levels = [whiten(x.advantage, where) for x, where in zip(parts, by_level(choice), strict=True)]
    flat = returns.gae(paid, value, choice, lam=LAM ** (1 / DECISIONS))
    group = advantages.rloo(paid, *experience.acts)
    pick = lambda a, b: jnp.where(hparams["levels"] > 0, a, b)  # noqa: E731
    advantage = pick(together(*levels), whiten(jnp.where(hparams["value"] > 0, flat.advantage, group), choice))
    target = pick(together(*(x.value_target for x in parts)), flat.value_target)
    trained = together(acted & (hparams["switch"] > 0), acted, acted)
    return Advantages(advantage, target, trained=trained)


def measured(episodes: Episodes) -> dict[str, jax.Array]:
    """Of a batch; the first turn, which can only switch, is no switch."""
    asked, _, acted = by_level(episodes.acted)
    asked = asked.at[:, 0].set(False)
    kept, right = episodes.reward[..., KEPT], episodes.reward[..., RIGHT]
    return {
        "won": episodes.reward[..., WON].sum((1, 2)).mean(),
        "switches": 1 - kept.sum() / jnp.maximum(asked.sum(), 1),
        "right": right.sum() / acted.sum(),
        "turns": acted.sum() / len(acted),
    }


HAE = Recipe(
    Subgoals(Rooms(2, 3, 3, budget=8, reminds=True)),
    seats=(("learner",),),
    advantage=credited,
    warm_start=(("follower",),),
    warm_start_updates=75,
    critic=True,  # which learns nothing where `value` is 0
    hparams={"learning_rate": 1e-3, "penalty": 0.03, "levels": 1.0, "switch": 1.0, "value": 0.5},
    budget=1,
    updates=60,
    groups=4,
    group_size=8,
    measure=measured,
    pretrained={"budget": 4},
)
FLAT = HAE.with_hparams(levels=0.0)
STUDY = Study(
    paper=Paper("HiPER (Peng et al.)", "https://arxiv.org/abs/2602.16165", 2026, checked="release"),
    question="Does credit for subgoals on a time scale of their own speed up a long task?",
    claim="In a small task it does not: GAE over all words and the group's returns win more games meanwhile. Without "
    "a penalty for keeping there are fewer switches, but keeping does not take over.",
    arms={
        "hae": HAE,
        "flat": FLAT,
        "group": FLAT.with_hparams(value=0.0),
        "fixed_switch": HAE.with_hparams(switch=0.0),
        "hae/no_penalty": HAE.with_hparams(penalty=0.0),
        "flat/no_penalty": FLAT.with_hparams(penalty=0.0),
    },
    method="hae",
    metrics=(OVER_ALL, "won", REACHED, "switches", "right", "turns"),
    predictions=(
        Lower(OVER_ALL, "hae", than="flat"),
        Lower(OVER_ALL, "hae", than="group"),
        Lower(OVER_ALL, "hae", than="fixed_switch"),
        Lower(OVER_ALL, "hae/no_penalty", than="flat/no_penalty"),
        Higher("switches", "hae", than="hae/no_penalty"),
        AtLeast("switches", "hae/no_penalty", 0.5),
        AtLeast("right", "hae", 0.6),
    ),
    derived={REACHED: partial(updates_to, of="won", bound=0.6), OVER_ALL: partial(mean_over_updates, of="won")},
)
