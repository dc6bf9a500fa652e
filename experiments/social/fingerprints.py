"""How do selfish learners of repeated 2x2 games behave against others? Fingerprints against six fixed players.

One tiny policy plays both seats of a game of eight rounds and learns from its own seat's points. Training is REINFORCE;
the baseline is the mean of the other games of the same kind. An arm is a game of `matrix_games.SETTINGS`. In every
update the policy also plays the six players of `opponents.MEMORY_ONE` from both seats.

  GAME               it learns from self-play only; games against the six players are measured
  known/GAME         it learns from self-play and from games against the six players
  only_known/GAME    it learns from games against the six players only
  exact/GAME         no learning: the best player that does not know its opponent among the six
  text/GAME          with `--arms`: a pretrained model, not trained further, reads rules; half the games exchange labels
  text/predict/GAME  it also predicts the other's move before each of its own (`evaluation.fingerprints.answers`)

Metrics, after `evaluation.fingerprints`:

  points                                   points a round in self-play
  coordination, alternation                in self-play
  retaliation, provocability, forgiveness  against the six players; win-stay-lose-shift is that of the dilemma
  shortfall                                points a round of the exact best response to a player less the policy's, mean
                                           over the six players and both seats
  shortfall of fixed                       over players that repeat one action or act at random
  shortfall of answering                   over tit-for-tat, grim and win-stay-lose-shift
  cooperation, first label, foresight      of text arms: shares of moves with action 0, of moves with the first label,
                                           and of right predictions

  python -m experiments fingerprints --seeds 10
  python -m experiments fingerprints --model smollm2 --seeds 1 --arms text/chicken text/predict/chicken

Paper: Playing repeated games with Large Language Models (Akata et al.) 2023, https://arxiv.org/abs/2305.16867.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.around.foresight import Foreseen, stages
from jaxmarl_llm.environments.around.opponents import MEMORY_ONE, WithOpponent, memory_one
from jaxmarl_llm.environments.social.matrix_games import SETTINGS, MatrixGame
from jaxmarl_llm.evaluation.fingerprints import answers, fingerprints
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.curves import last_mean, last_share
from jaxmarl_llm.studies.study import AtLeast, AtMost, Lower, Paper, Study
from jaxmarl_llm.tabular.repeated_games import shortfall, shortfall_unknown
from jaxmarl_llm.training.left_out import are_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe, always
from jaxmarl_llm.training.records import Advantages, Experience
from jaxmarl_llm.training.step import only_play

ROUNDS, GROUPS, MET = 8, 3 * len(MEMORY_ONE), "memory_one"
ZOO = np.array(list(MEMORY_ONE.values()), np.float32)  # [players, 5]
ANSWERS = np.array([name in ("tit_for_tat", "grim", "win_stay_lose_shift") for name in MEMORY_ONE])
KINDS = {"shortfall": ANSWERS | True, "shortfall of fixed": ~ANSWERS, "shortfall of answering": ANSWERS}
SEATS = (("learner", "learner"), ("learner", MET), (MET, "learner"))  # group g: seats g % 3, player g // 3
OWN = np.array([[name != MET for name in seats] for seats in SEATS])  # [line-ups, 2]
OF_SELF, OF_TEXT = ("coordination", "alternation"), ("cooperation", "first label", "foresight")
OF_ZOO = ("retaliation", "provocability", "forgiveness")


def payoffs(name: str) -> dict[str, float]:
    """The payoffs of a game as hparams, so all games share a program."""
    return {f"payoff/{a}{b}{seat}": float(x) for (a, b, seat), x in np.ndenumerate(np.array(SETTINGS[name]["payoff"]))}


def kinds(short: jax.Array) -> dict[str, jax.Array]:
    """Means of shortfalls, for the players of each kind: all, fixed, answering."""
    return {name: short[np.flatnonzero(where)].mean() for name, where in KINDS.items()}


def exact(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Shortfalls of the best player that does not know its opponent, in the game whose payoffs [2, 2, 2] are `hparams`
    in order."""
    return kinds(shortfall_unknown(jnp.stack([*hparams.values()]).reshape(2, 2, 2), jnp.asarray(ZOO), ROUNDS))


def behaviour(move: jax.Array, payoff: jax.Array) -> dict[str, jax.Array]:
    """Metrics of moves int32 [B, rounds, 2], with payoff [move of seat 0, move of seat 1, seat]."""
    apart = jnp.moveaxis(move.reshape(len(ZOO), len(SEATS), -1, ROUNDS, 2), 1, 0)  # [line-ups, players, games, ...]
    alone, met = apart[0].reshape(-1, ROUNDS, 2), jnp.stack([apart[1], apart[2][..., ::-1]]).reshape(-1, ROUNDS, 2)
    seen = [(fingerprints(x[..., 0], x[..., 1]), names) for x, names in ((alone, OF_SELF), (met, OF_ZOO))]
    metrics = {
        f"{name}/{part}": x for prints, names in seen for name in names for part, x in prints[name]._asdict().items()
    }
    metrics["points"] = payoff[alone[..., 0], alone[..., 1]].mean()
    return metrics | kinds(shortfall(payoff, jnp.asarray(ZOO), apart[1:]))


def selfish(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Returns-to-go under the arm's payoff; the baseline is that of other games against the same opponent."""
    episodes, move = experience.episodes, stages(experience.episodes.action, ROUNDS)[-1]
    payoff, alone = jnp.stack([hparams[x] for x in payoffs("chicken")]), episodes.group % len(SEATS) == 0
    payoff, like = payoff.reshape(2, 2, 2), jnp.where(alone, 0, episodes.group)
    learns = select(hparams, "games", self_play=alone, both=True, players=~alone)
    trained = experience.learning_acts[0] & learns[:, None, None]
    advantage = advantages.round_leave_one_out(
        payoff[move[..., 0], move[..., 1]], stages(trained, ROUNDS)[-1], like, GROUPS
    )
    return Advantages(
        jnp.repeat(advantage, trained.shape[1] // ROUNDS, 1), trained=trained, metrics=behaviour(move, payoff)
    )


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """Cooperation, share of the first label, and foresight of a pretrained model, in its own seats."""
    seats = jnp.asarray(OWN)[episodes.group % len(SEATS)] & are_kept(episodes)[:, None]
    return answers(stages(episodes.action, ROUNDS), seats, episodes.group % 2)


BASE = Recipe(
    WithOpponent(MatrixGame(rounds=ROUNDS, exchange=False), memory_one(name=MET)),
    seats=SEATS, advantage=selfish, budget=1, updates=80, groups=GROUPS, group_size=4,
    arrange=partial(always, deal=np.repeat(ZOO, len(SEATS), 0)[:, None].repeat(2, 1)),  # in self-play no seat reads it
    hparams={"learning_rate": 3e-3, "entropy": 0.01}, choices={"games": ("self_play", "both", "players")},
    pretrained={"groups": GROUPS, "group_size": 2, "seats": SEATS, "updates": 1, "step": only_play, "budget": 2},
)  # fmt: skip
ARMS, FOUR = {name: BASE.with_hparams(**payoffs(name)) for name in SETTINGS}, list(SETTINGS)[:4]
KNOWN = {f"known/{name}": ARMS[name].with_choice(games="both") for name in FOUR}
ONLY = {f"only_known/{name}": ARMS[name].with_choice(games="players") for name in FOUR}
EXACT = {f"exact/{name}": Computed(exact, payoffs(name)) for name in FOUR}
GAMES = {
    name: WithOpponent(MatrixGame(rounds=ROUNDS, **rules), memory_one(name=MET)) for name, rules in SETTINGS.items()
}
TEXTS = {f"text/{name}": replace(arm, game=GAMES[name], measure=measure) for name, arm in ARMS.items()}
PREDICT = {f"text/predict/{name}": replace(TEXTS[f"text/{name}"], game=Foreseen(GAMES[name])) for name in ARMS}
GUESS = "a guess, not derived: selfish learners end near the best response to players that do not answer"
PILOT = "seeds 100 and 101: 40 to 240 updates, several entropies; ten seeds of the base arms were known as well"
STUDY = Study(
    paper=Paper("Playing repeated games (Akata et al.)", "https://arxiv.org/abs/2305.16867", 2023, checked="abstract"),
    question="How do selfish learners of repeated 2x2 games behave when they meet others?",
    claim="In dilemmas they are near the best response to players that do not answer, retaliate and do not forgive; in "
    "the battle of the sexes they go to one place, and take no turns. Learning also from the players brings learners "
    "nearer to the best response; in the dilemma they still defect.",
    arms={**ARMS, **KNOWN, **ONLY, **EXACT},
    extra=TEXTS | PREDICT,
    method="prisoners_dilemma",
    metrics=("points", *OF_SELF, *OF_ZOO, *KINDS, *OF_TEXT),
    predictions=(
        *(AtMost("shortfall of fixed", name, 0.2, source="theory", where=GUESS) for name in ("stag_hunt", "chicken")),
        AtMost("shortfall of fixed", "only_known/stag_hunt", 0.2, source="pilot", where=PILOT),
        AtLeast(
            "coordination",
            "battle_of_the_sexes",
            0.8,
            source="theory",
            where="one policy in both seats of a coordination game settles on one outcome in self-play",
        ),
        AtMost(
            "alternation",
            "battle_of_the_sexes",
            0.1,
            source="theory",
            where="turns pay no more in sum than one outcome and need memory, so REINFORCE finds the outcome first",
        ),
        *(Lower("shortfall", f"known/{name}", than=name, source="pilot", where=PILOT) for name in FOUR[1:]),
        *(
            AtMost("shortfall", f"{kind}/chicken", 0.35, source="pilot", where=PILOT)
            for kind in ("known", "only_known")
        ),
        AtLeast("shortfall of answering", "known/prisoners_dilemma", 1.0, source="pilot", where=PILOT),
    ),
    checks=(
        AtMost("shortfall of fixed", "prisoners_dilemma", 0.2),
        AtLeast("shortfall of answering", "prisoners_dilemma", 0.5),
        AtLeast("retaliation", "prisoners_dilemma", 0.8),
        AtMost("forgiveness", "prisoners_dilemma", 0.1),
    ),
    derived={
        name: partial(last_mean if name in OF_TEXT else last_share, metric=name) for name in OF_SELF + OF_ZOO + OF_TEXT
    },
)
