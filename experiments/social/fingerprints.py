"""How do selfish learners of repeated 2x2 games behave when they meet others? Fingerprints against six known players.

One tiny policy has both seats of a game of eight rounds and learns from its own seat's points in self-play: REINFORCE
with the mean of the other games as a baseline. An arm is a game of `matrix_games.SETTINGS`: the prisoner's dilemma,
stag hunt, chicken, the battle of the sexes, matching pennies, coordination. In every update it also plays the six
players of `opponents.MEMORY_ONE`, from either seat, and does not learn from it.

`points`: a round, in self-play. `coordination`, `alternation`: there, of `evaluation.fingerprints`. `retaliation`,
`provocability`, `forgiveness`: the same against the six (win-stay-lose-shift as in the dilemma). `shortfall`: what the
exact best response to a player earns more, a round (`evaluation.repeated_games`), mean over the six and both seats;
`... of fixed`: over those that always do the same or act at random; `... of answering`: over tit-for-tat, grim and
win-stay-lose-shift.

  python -m experiments fingerprints --seeds 10
  python -m experiments fingerprints --model smollm2 --seeds 3 --updates 1 --arms text/prisoners_dilemma text/chicken

`text/GAME` runs when named: a pretrained model as it comes (a learning rate of 0) reads the game's own rules; the
labels of the actions are exchanged in half of the games.

Paper: Playing repeated games with Large Language Models (Akata et al.) 2023, https://arxiv.org/abs/2305.16867, whose
players are language models. What its players gain by predicting the partner first is not built.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.matrix_games import SETTINGS, MatrixGame
from jaxmarl_llm.environments.opponents import MEMORY_ONE, WithOpponent, memory_one
from jaxmarl_llm.evaluation.fingerprints import fingerprints
from jaxmarl_llm.evaluation.repeated_games import best_response
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.studies.curves import last_share
from jaxmarl_llm.studies.study import AtLeast, AtMost, Paper, Study
from jaxmarl_llm.training.recipe import Advantages, Arranged, Experience, Hparams, Recipe

ROUNDS, MET = 8, "memory_one"
ZOO = np.array(list(MEMORY_ONE.values()), np.float32)  # [players, 5]
ANSWERS = np.array([name in ("tit_for_tat", "grim", "win_stay_lose_shift") for name in MEMORY_ONE])
KINDS = {"shortfall": ANSWERS | True, "shortfall of fixed": ~ANSWERS, "shortfall of answering": ANSWERS}
SEATS = (("learner", "learner"), ("learner", MET), (MET, "learner"))  # of group g the seats g % 3, the player g // 3
GROUPS = len(SEATS) * len(ZOO)
OF_SELF, OF_ZOO = ("coordination", "alternation"), ("retaliation", "provocability", "forgiveness")


def payoffs(name: str) -> dict[str, float]:
    """A game's payoff as hparams, so that all games share a program."""
    return {f"payoff/{a}{b}{seat}": float(x) for (a, b, seat), x in np.ndenumerate(np.array(SETTINGS[name]["payoff"]))}


def meeting(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """The player of each group; in self-play it has no seat."""
    return Arranged(deal=jnp.asarray(np.repeat(ZOO, len(SEATS), 0)[:, None].repeat(2, 1)))


def apart(x: jax.Array) -> tuple[jax.Array, ...]:
    """[B, ...] of all games -> [players, games, ...] of each line-up, in the order of SEATS."""
    return tuple(jnp.moveaxis(x.reshape(len(ZOO), len(SEATS), -1, *x.shape[1:]), 1, 0))


def behaviour(move: jax.Array, payoff: jax.Array) -> dict[str, jax.Array]:
    """What is measured, of moves int32 [B, rounds, 2] and payoff [2, 2, 2]."""
    (alone, first, second), flat = apart(move), lambda x: x.reshape(-1, x.shape[-1])
    mine, theirs = (jnp.concatenate([flat(first[..., k]), flat(second[..., 1 - k])]) for k in (0, 1))
    own, met = fingerprints(flat(alone[..., 0]), flat(alone[..., 1])), fingerprints(mine, theirs)
    seen = {name: own[name] for name in OF_SELF} | {name: met[name] for name in OF_ZOO}
    found = {f"{name}/{part}": x for name, mean in seen.items() for part, x in mean._asdict().items()}
    lost = []
    for seat, games in enumerate((first, second)):
        mine, theirs = games[..., seat], games[..., 1 - seat]
        table = payoff[..., 0] if seat == 0 else payoff[..., 1].T  # [own action, the other's]
        best = jax.vmap(lambda who, table=table: best_response(table, who, ROUNDS).value)(jnp.asarray(ZOO))
        lost.append(best / ROUNDS - table[mine, theirs].mean((1, 2)))
    short = jnp.stack(lost).mean(0)  # [players]
    found["points"] = payoff[alone[..., 0], alone[..., 1]].mean()
    return found | {name: short[np.flatnonzero(where)].mean() for name, where in KINDS.items()}


def selfish(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Returns-to-go by the arm's payoff against those of the other games of self-play, which alone are learned from."""
    move, payoff = experience.episodes.action, jnp.zeros((2, 2, 2))
    for at in np.ndindex(2, 2, 2):
        payoff = payoff.at[at].set(hparams[f"payoff/{at[0]}{at[1]}{at[2]}"])
    alone = (experience.episodes.group % len(SEATS) == 0)[:, None, None] & experience.episodes.acted
    same = jnp.zeros_like(experience.episodes.group)
    own = advantages.round_leave_one_out(payoff[move[..., 0], move[..., 1]], alone, same, 1)
    return Advantages(own, trained=alone, metrics=behaviour(move, payoff))


BASE = Recipe(
    WithOpponent(MatrixGame(rounds=ROUNDS, exchange=False), memory_one(name=MET)),
    seats=SEATS,
    advantage=selfish,
    arrange=meeting,
    hparams={"learning_rate": 3e-3, "entropy": 0.01},
    budget=1,
    updates=80,
    groups=GROUPS,
    group_size=4,
    pretrained={"groups": GROUPS, "group_size": 2, "hparams": {"learning_rate": 0.0}, "budget": 2},
)
ARMS = {name: BASE.with_hparams(**payoffs(name)) for name in SETTINGS}
TEXTS = {
    f"text/{name}": replace(arm, game=WithOpponent(MatrixGame(rounds=ROUNDS, **SETTINGS[name]), memory_one(name=MET)))
    for name, arm in ARMS.items()
}
STUDY = Study(
    paper=Paper("Playing repeated games (Akata et al.)", "https://arxiv.org/abs/2305.16867", 2023, checked="abstract"),
    question="How do selfish learners of repeated 2x2 games behave when they meet others?",
    claim="In dilemmas they are near the best response to players that do not answer, retaliate and do not forgive; in "
    "the battle of the sexes they go to one place, and do not take turns.",
    arms=ARMS,
    extra=TEXTS,
    method="prisoners_dilemma",
    metrics=("points", *OF_SELF, *OF_ZOO, *KINDS),
    predictions=(
        *(AtMost("shortfall of fixed", name, 0.2) for name in ("prisoners_dilemma", "stag_hunt", "chicken")),
        AtLeast("shortfall of answering", "prisoners_dilemma", 0.5),
        AtLeast("retaliation", "prisoners_dilemma", 0.8),
        AtMost("forgiveness", "prisoners_dilemma", 0.1),
        AtLeast("coordination", "battle_of_the_sexes", 0.8),
        AtMost("alternation", "battle_of_the_sexes", 0.1),
    ),
    derived={name: partial(last_share, of=name) for name in (*OF_SELF, *OF_ZOO)},
)
