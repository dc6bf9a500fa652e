"""Does a policy that is paid for points alone learn to explore? Bandits that recur, with memory and without.

A game is a bandit of three arms and twelve pulls. Arm A is known to pay with a chance of 0.6. The two others pay with a
chance of 0.1 or 0.9, drawn with the game, so that a pull at one costs 0.1 points and tells which it is. Only points are
paid, without an entropy bonus, and policies begin at random. An act's advantage is its discounted return-to-go,
normalised over the same pull of the group's four games, which have the same bandit.

  all        one bandit a game, all earlier pulls in sight, discount 1
  fresh      the two chances are drawn anew before each pull: nothing recurs
  untold     results are never told: nothing can be remembered of them
  greedy     as all, with discount 0: an act is paid for its own point alone

  explores   share of games whose first pull is at an unknown arm: 1 for the exact Bayes player, 0 for a player who
             takes the best arm of the moment, and 2/3 at random
  regret     the Bayes player's expected points, of no fresh chances, less the policy's own

  python -m experiments meta_bandit --seeds 20

Paper: Exploitation Is All You Need... for Exploration (Rentschler and Roberts) 2025, https://arxiv.org/abs/2508.01287.
Only its abstract was read. Its gridworlds are not tested here.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import jax
import numpy as np

from jaxmarl_llm.environments.solo.bandit import Bandit
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import last_mean
from jaxmarl_llm.studies.study import AtMost, Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

ARMS, PULLS, KNOWN, EXPLORES, POINTS, REGRET = 3, 12, 0.6, "explores", "points", "regret"
GAME = Bandit(ARMS, PULLS, chances=(0.1, 0.9), known=KNOWN)


def by_pull(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """The return-to-go of a pull, normalised over that pull in the group."""
    reward = experience.episodes.reward[..., 0]
    return Advantages(advantages.turn_wise(reward, *experience.acts, returns="to_go", gamma=hparams["gamma"]))


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """Points, and the share of games whose first pull is at an unknown arm."""
    arm, paid = episodes.action[..., 0], episodes.reward[..., 0, 0]
    return {POINTS: mean_of_kept(episodes, paid.sum(1)), EXPLORES: mean_of_kept(episodes, arm[:, 0] > 0)}


@cache
def best_points(arms: tuple[tuple[int, int], ...], left: int) -> float:
    """Expected points of the Bayes player in `left` further pulls of unknown arms with so many (points, failures), and
    of the known one."""
    if not left:
        return 0.0
    values = [KNOWN + best_points(arms, left - 1)]
    for i, (points, failures) in enumerate(arms):
        after = lambda won, i=i, x=points, y=failures: tuple(
            sorted((*arms[:i], (x + won, y + 1 - won), *arms[i + 1 :]))
        )
        likely = [x**points * (1 - x) ** failures for x in GAME.chances]
        chance = sum(x * y for x, y in zip(GAME.chances, likely, strict=True)) / sum(likely)
        values.append(chance * (1 + best_points(after(1), left - 1)) + (1 - chance) * best_points(after(0), left - 1))
    return max(values)


def regret(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    return best_points(((0, 0),) * (ARMS - 1), PULLS) - last_mean(curves, metric=POINTS)


ALL = Recipe(
    GAME,
    seats=(("learner",),),
    advantage=by_pull,
    hparams={"learning_rate": 2e-3, "entropy": 0.0, "gamma": 1.0},
    budget=1,
    updates=100,
    groups=64,
    group_size=4,
    measure=measure,
    pretrained={"budget": 4},
)
VANISHES = 'abstract: "emergent exploration vanishes if either environmental structure or agent memory is absent"'
COSTS = "A first pull at an unknown arm costs 0.1 of its own point, which is all that is paid."
LEARNT = "If nothing recurs the known arm is best. A policy that has not learnt it pulls at random. The level is ours."
STUDY = Study(
    paper=Paper("Exploitation for exploration (Rentschler)", "https://arxiv.org/abs/2508.01287", 2025, "abstract"),
    question="Does a policy that is paid for points alone learn to explore?",
    claim="With recurring bandits and memory a policy tries unknown arms at a cost; without either it does not.",
    arms={
        "all": ALL,
        "fresh": replace(ALL, game=replace(GAME, fresh=True)),
        "untold": replace(ALL, game=replace(GAME, told=False)),
        "greedy": ALL.with_hparams(gamma=0.0),
    },
    method="all",
    metrics=(EXPLORES, POINTS, REGRET),
    predictions=(
        Higher(EXPLORES, "all", than="fresh", source="paper", where=VANISHES),
        Higher(EXPLORES, "all", than="untold", source="paper", where=VANISHES),
        Lower(EXPLORES, "greedy", than="all", source="theory", where=COSTS),
        AtMost(EXPLORES, "fresh", 0.3, source="theory", where=LEARNT, condition=True),
    ),
    derived={REGRET: regret},
)
