"""Does a policy that is paid for points alone learn to explore? Bandits that recur, with memory and without.

A game is a bandit of three arms and twelve pulls. An arm pays with a chance of 0.1 or 0.9, drawn with the game. Only
points are paid, without an entropy bonus, and policies begin at random. An act's advantage is its discounted
return-to-go, normalised over the same pull of the group's four games, which have the same bandit.

  all        one bandit a game, all earlier pulls in sight, discount 1
  fresh      chances are drawn anew before each pull: nothing recurs
  untold     results are never told: nothing can be remembered of them
  greedy     as all, with discount 0: an act is paid for its own point alone

A policy explores if it pulls an untried arm after failures alone. Uniform players do so in half of these pulls, and the
exact Bayes player in all. Its regret is that player's expected points, of no fresh chances, less its own.

  python -m experiments meta_bandit --seeds 20

Paper: Exploitation Is All You Need... for Exploration (Rentschler and Roberts) 2025, https://arxiv.org/abs/2508.01287.
Only its abstract was read. Its gridworlds are not tested here.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.solo.bandit import Bandit
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import last_mean
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import are_kept, mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

ARMS, PULLS, EARLY, EXPLORES, COVERAGE, POINTS, REGRET = 3, 12, 4, "explores", "early coverage", "points", "regret"
GAME = Bandit(ARMS, PULLS, chances=(0.1, 0.9))


def by_pull(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """The return-to-go of a pull, normalised over that pull in the group."""
    reward = experience.episodes.reward[..., 0]
    return Advantages(advantages.turn_wise(reward, *experience.acts, returns="to_go", gamma=hparams["gamma"]))


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """Points, distinct arms of the first pulls, and the share of untried arms after failures alone."""
    arm, paid = episodes.action[..., 0], episodes.reward[..., 0, 0]
    pulled = jax.nn.one_hot(arm, ARMS)
    before = pulled.cumsum(1) - pulled
    new = (before * pulled).sum(2) == 0
    could = (paid.cumsum(1) == paid) & (before == 0).any(2) & (jnp.arange(arm.shape[1]) > 0)[None]
    could &= are_kept(episodes)[:, None]
    return {
        POINTS: mean_of_kept(episodes, paid.sum(1)),
        COVERAGE: mean_of_kept(episodes, (before[:, EARLY] > 0).sum(1)),
        EXPLORES: (new & could).sum() / jnp.maximum(could.sum(), 1),
    }


@cache
def best_points(arms: tuple[tuple[int, int], ...], left: int) -> float:
    """Expected points of the Bayes player in `left` further pulls of arms with so many (points, failures)."""
    values = [0.0]
    for i, (points, failures) in enumerate(arms if left else ()):
        after = lambda won, i=i, x=points, y=failures: tuple(
            sorted((*arms[:i], (x + won, y + 1 - won), *arms[i + 1 :]))
        )
        likely = [x**points * (1 - x) ** failures for x in GAME.chances]
        chance = sum(x * y for x, y in zip(GAME.chances, likely, strict=True)) / sum(likely)
        values.append(chance * (1 + best_points(after(1), left - 1)) + (1 - chance) * best_points(after(0), left - 1))
    return max(values)


def regret(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    return best_points(((0, 0),) * ARMS, PULLS) - last_mean(curves, metric=POINTS)


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
SURVIVES = 'abstract: "removing long-horizon credit assignment [...] does not always prevent emergent exploration"'
LEARNT = "Without memory no policy learns which arm pays; a policy with it that does no better has not learnt either."
STUDY = Study(
    paper=Paper("Exploitation for exploration (Rentschler)", "https://arxiv.org/abs/2508.01287", 2025, "abstract"),
    question="Does a policy that is paid for points alone learn to explore?",
    claim="With recurring bandits and memory a policy tries untried arms after failures; without either it does not.",
    arms={
        "all": ALL,
        "fresh": replace(ALL, game=replace(GAME, fresh=True)),
        "untold": replace(ALL, game=replace(GAME, told=False)),
        "greedy": ALL.with_hparams(gamma=0.0),
    },
    method="all",
    metrics=(EXPLORES, COVERAGE, POINTS, REGRET),
    predictions=(
        Higher(EXPLORES, "all", than="fresh", source="paper", where=VANISHES),
        Higher(EXPLORES, "all", than="untold", source="paper", where=VANISHES),
        Higher(EXPLORES, "greedy", than="fresh", source="paper", where=SURVIVES),
        Lower(REGRET, "all", than="untold", by=0.3, source="theory", where=LEARNT, condition=True),
    ),
    derived={REGRET: regret},
)
