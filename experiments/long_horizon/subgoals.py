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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.rooms import Rooms
from jaxmarl_llm.environments.subgoals import DECISIONS, SWITCH, Subgoals
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.masked import keep
from jaxmarl_llm.rl.segments import gae_hierarchical
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import last_share, mean_over_updates
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe
from jaxmarl_llm.training.setup import Parts

LAM, TAUGHT, FORGETS, OVER_ALL, ERROR = 0.95, 10, 0.9, "over all", "error"
_, WON, KEPT, RIGHT, SITUATION = range(5)  # components of the reward


def rate(update: Any) -> np.ndarray:
    """The policy's learning rate."""
    return np.where(np.asarray(update) < TAUGHT, 0.0, 7e-4)


def by_level(x: jax.Array) -> tuple[jax.Array, ...]:
    """[B, 3T, A] -> three of [B, T, A]: of keeping or switching, of the subgoal, of the answer."""
    return tuple(jnp.moveaxis(x.reshape(x.shape[0], -1, DECISIONS, *x.shape[2:]), 2, 0))


def together(*levels: jax.Array) -> jax.Array:
    """The inverse of `by_level`."""
    return jnp.stack(levels, 2).reshape(levels[0].shape[0], -1, *levels[0].shape[2:])


class Table(NamedTuple):
    """A critic that is told the situation: returns of past games by word of the game and situation, [T, N] each."""

    total: jax.Array
    count: jax.Array

    def values(self, at: jax.Array) -> jax.Array:
        """The mean return from a word on in a situation int [B, T, A], drawn by one game to the mean of the word."""
        word = self.total.sum(1, keepdims=True) / jnp.maximum(self.count.sum(1, keepdims=True), 1)
        return ((self.total + word) / (self.count + 1))[jnp.arange(at.shape[1])[None, :, None], at]

    def learnt(self, at: jax.Array, to_go: jax.Array, where: jax.Array) -> Table:
        """With these games, and the older ones weighed by `FORGETS`."""
        place = jnp.broadcast_to(jnp.arange(at.shape[1])[None, :, None], at.shape), at
        add = lambda old, x: (FORGETS * old).at[place].add(jnp.where(where, x, 0))  # noqa: E731
        return Table(add(self.total, to_go), add(self.count, jnp.ones_like(to_go)))


def empty(parts: Parts, key: jax.Array) -> Table:
    zeros = jnp.zeros((GAME.turns, 2 * GAME.game.situations))
    return Table(zeros, zeros)


def credited(experience: Experience, hparams: Hparams, state: Table) -> Advantages:
    """Of three levels where `levels`, else of all words; by the table, by the head where `head`, or of the group."""
    episodes = experience.episodes
    paid = jnp.where(episodes.acted, episodes.reward[..., WON] + episodes.reward[..., KEPT], 0)
    choice, acted = episodes.acted & (episodes.legal.sum(-1) > 1), by_level(episodes.acted)[0]
    switches = acted & (by_level(episodes.action)[0] == SWITCH)
    situation = episodes.reward[..., SITUATION].astype(jnp.int32)
    value = jnp.where(hparams["head"] > 0, experience.turn_value, keep(state.values(situation), choice))
    of_switch, of_subgoal, of_answer = by_level(value)
    reward, values = jnp.stack(by_level(paid)).sum(0), (of_answer, of_subgoal, of_switch)
    hae = gae_hierarchical(reward, *values, switches, acted, lam=LAM, segment_lam=LAM)
    parts = hae.switch, hae.segment, hae.turn
    levels = [whiten(x.advantage, where) for x, where in zip(parts, by_level(choice), strict=True)]
    flat = returns.gae(paid, value, choice, lam=LAM ** (1 / DECISIONS))
    group = advantages.rloo(paid, *experience.acts)
    pick = lambda a, b: jnp.where(hparams["levels"] > 0, a, b)  # noqa: E731
    advantage = pick(together(*levels), whiten(jnp.where(hparams["group"] > 0, group, flat.advantage), choice))
    target = pick(together(*(x.value_target for x in parts)), flat.value_target)
    to_go = returns.gae(paid, jnp.zeros_like(value), choice).advantage
    off, spread = ((to_go - x) ** 2 for x in (value, to_go.sum() / choice.sum()))
    found = {f"error/{name}": jnp.where(choice, x, 0).sum() for name, x in (("sum", off), ("count", spread))}
    return Advantages(advantage, target, state.learnt(situation, to_go, choice), found)


def measured(episodes: Episodes) -> dict[str, jax.Array]:
    """Of a batch; the first turn, which can only switch, is no switch."""
    asked, _, acted = by_level(episodes.acted)
    asked = asked.at[:, 0].set(False)
    switches = asked & (by_level(episodes.action)[0] == SWITCH)
    return {
        "won": episodes.reward[..., WON].sum((1, 2)).mean(),
        "switches": switches.sum() / jnp.maximum(asked.sum(), 1),
        "right": episodes.reward[..., RIGHT].sum() / acted.sum(),
        "turns": acted.sum() / len(acted),
    }


GAME = Subgoals(Rooms(3, 2, 2, budget=6, reminds=True), penalty=0.03)
HAE = Recipe(
    GAME,
    seats=(("learner",),),
    advantage=credited,
    init_state=empty,
    warm_start=(("follower",),),
    warm_start_updates=75,
    critic=True,  # the head, which learns nothing where `value` is 0
    hparams={"learning_rate": rate, "levels": 1.0, "head": 0.0, "group": 0.0, "value": 0.0},
    budget=1,
    updates=TAUGHT + 40,
    groups=4,
    group_size=4,
    measure=measured,
    pretrained={"budget": 4},
)
FLAT = HAE.with_hparams(levels=0.0)
HEAD = {"head": 1.0, "value": 0.5}
STUDY = Study(
    paper=Paper("HiPER (Peng et al.)", "https://arxiv.org/abs/2602.16165", 2026, checked="release"),
    question="Does credit for subgoals on a time scale of their own speed up a long task?",
    claim="In a small task it does not: GAE over all words and the group's returns win more games meanwhile. Without "
    "a penalty for keeping there are fewer switches, but keeping does not take over.",
    arms={
        "hae": HAE,
        "flat": FLAT,
        "group": FLAT.with_hparams(group=1.0),
        "hae/head": HAE.with_hparams(**HEAD),
        "flat/head": FLAT.with_hparams(**HEAD),
    },
    method="hae",
    metrics=(OVER_ALL, "won", "switches", "right", "turns", ERROR),
    predictions=(Higher(OVER_ALL, "hae", than="flat"),),
    derived={OVER_ALL: partial(mean_over_updates, of="won"), ERROR: partial(last_share, of="error")},
)
