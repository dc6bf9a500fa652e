"""Does credit for sets of episodes keep a policy from one way among several? Polychromic PPO in a maze of four goals.

Four rooms of 16 cells meet in a passage of three cells, and each has a goal in its outer corner. A game lasts twelve
turns, and each goal pays 1. Players are told the walls beside them, not their place. Training begins in the passage,
seven or eight steps from the nearest goals. Policies first imitate a player that takes any shortest way, and another
step with probability 0.2. A group has 16 episodes.

  ppo      GAE (discount 1, lambda 0.95) from a value head
  entropy  as ppo, with an entropy bonus of 0.03
  sets     vines: eight episodes start at the first turn, the others continue one of them from turn 4 on. Of each eight,
           four random sets of four get the score f = mean return x distinct goals / 4. In the five turns from the
           branch, an episode's advantage is f less the mean f of the four sets, averaged over its sets; later it is
           GAE. A copied turn trains once

Policies are judged in 64 games of eight attempts, from the starts of training and from the 62 cells of the rooms:

  solved, coverage   share of attempts that reach a goal; distinct goals reached in eight attempts
  elsewhere, pass@8  from the rooms: share of attempts that reach a goal; share of games solved in eight attempts

  python -m experiments sets --seeds 20

Paper: Polychromic objectives (Hamid et al.) 2025, https://arxiv.org/abs/2509.25424. Its algorithm is second-hand, from
notes and a third party's code. There vines start from two states of each of eight episodes, and failures may count as
distinct. A penalty on the KL to the last policy is left out: a batch is used for one step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.solo.maze import Maze
from jaxmarl_llm.evaluation.statistics import coverage, pass_at_k
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import returns
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.branching import at_turns
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, NotLower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

VINES, SET, SETS, BRANCH, WINDOW, ATTEMPTS = 8, 4, 4, 3, 5, 8
SOLVED, COVERAGE, ELSEWHERE, PASS = "solved", "coverage", "elsewhere", "pass@8"
OUTER, ROW, INNER = "G...#...G", "....#....", "........."
ROOMS = OUTER, ROW, ROW, INNER, "###...###", INNER, ROW, ROW, OUTER
MAZE = Maze(ROOMS, turns=12, cost=0.0, sees="walls")
PASSAGE = MAZE.cells.index((4, 3)), 3  # the first cell and the number of cells
OTHERS = sum(PASSAGE), MAZE.starts - PASSAGE[1]


def vines(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """Starts in the passage. The second eight become copies of the first episode before turn `vines`, from 0 on, with 0
    never."""
    second = jnp.arange(2 * VINES) >= VINES
    branch = Partial(at_turns, at=second * hparams["vines"].astype(jnp.int32), source=jnp.zeros(2 * VINES, jnp.int32))
    return Arranged(deal=tuple(map(jnp.int32, PASSAGE)), branch=branch)


def score_sets(key: jax.Array, total: jax.Array, goal: jax.Array) -> jax.Array:
    """Advantages of members of random sets: returns in [0, 1] and numbers of goals, 0 for none, [S, N] -> [S, N].

    A set's score is its mean return times its number of distinct goals over its size. If failures counted as distinct,
    three successes and a failure would score more than four successes. A set's advantage is its score less the mean of
    the SETS sets, and a member's is the mean over its sets, 0 without one.
    """
    members = total.shape[1]
    drawn = jax.random.uniform(key, (len(total), SETS, members))
    chosen = jnp.argsort(jnp.argsort(drawn, 2), 2) < SET
    earlier = jnp.tril(jnp.ones((members, members), bool), -1)[None] & (goal[:, :, None] == goal[:, None])
    seen = (earlier[:, None] & chosen[:, :, None]).any(3)
    distinct = (chosen & ~seen & (goal > 0)[:, None]).sum(2)
    score = jnp.where(chosen, total[:, None], 0).sum(2) * distinct / SET**2
    advantage = jnp.where(chosen, (score - score.mean(1, keepdims=True))[..., None], 0).sum(1)
    return advantage / jnp.maximum(chosen.sum(1), 1)


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GAE; with sets, their advantages in the window after the branch. Copied turns are left out of the loss."""
    episodes = experience.episodes
    assert episodes.branches is not None
    reward, acted, turn = episodes.reward[..., 0], episodes.acted, jnp.arange(episodes.acted.shape[1])[None]
    played = episodes.branches.origin == jnp.arange(len(reward))[:, None]  # by the episode itself, not copied
    targets = returns.gae(reward, experience.turn_value, acted, gamma=1.0, lam=0.95)
    second = jnp.arange(len(reward))[:, None] % (2 * VINES) >= VINES
    start = jnp.where(second, BRANCH, 0)
    window = (turn >= start) & (turn < start + WINDOW) & (~second | ~played[:, BRANCH - 1 : BRANCH])
    by_set = lambda x: x.sum((1, 2)).reshape(-1, VINES)
    member = score_sets(experience.key, by_set(reward), by_set(episodes.measured[..., 0])).reshape(-1, 1)
    sets = jnp.where(window[..., None] & acted, member[..., None], targets.advantage)
    credit = select(hparams, "credit", ppo=targets.advantage, sets=sets)
    return Advantages(credit, targets.value_target, trained=acted & played[..., None])


def several(episodes: Episodes, *, solved: str, distinct: str, within: str) -> dict[str, Any]:
    """Success, distinct goals and success within all attempts, of groups of ATTEMPTS games."""
    goal = np.asarray(episodes.measured)[..., 0].sum((1, 2)).astype(int).reshape(-1, ATTEMPTS)
    successes = (goal > 0).sum(1)
    single, any_of = (pass_at_k(successes, ATTEMPTS, k).mean() for k in (1, ATTEMPTS))
    return {solved: single, distinct: coverage(np.where(goal > 0, goal, -1)).mean(), within: any_of}


def judge(parts: Parts) -> Callable[[dict, jax.Array], dict[str, Any]]:
    """Games of ATTEMPTS attempts each, from the starts of training and from all others."""
    play = partial(in_fresh_games, parts, games=64, attempts=ATTEMPTS)
    inside = play(measure=partial(several, solved=SOLVED, distinct=COVERAGE, within="pass@8 inside"), deal=PASSAGE)
    outside = play(measure=partial(several, solved=ELSEWHERE, distinct="goals elsewhere", within=PASS), deal=OTHERS)
    return lambda weights, key: inside(weights, key) | outside(weights, key)


PPO = Recipe(
    Noisy(MAZE, (Errs("roams", "shortest", 0.8),)),
    seats=(("learner",),),
    advantage=estimate_advantages,
    critic=True,
    arrange=vines,
    warm_start=(("roams",),),
    warm_start_deal=lambda key: tuple(map(jnp.int32, PASSAGE)),
    warm_start_updates=150,
    hparams={"learning_rate": 1e-3, "entropy": 0.0, "vines": 0.0},
    choices={"credit": ("ppo", "sets")},
    budget=1,
    updates=200,
    groups=4,
    group_size=2 * VINES,
    measure=partial(component_returns, won=0),
    evaluate=judge,
    eval_every=200,
    pretrained={"budget": 4},
)
PERTURBED = "second-hand: Four Rooms from perturbed starts, 88.7 against 15.3 of PPO"
PASSES = (
    'abstract: "when given multiple attempts in pass@k experiments, the policy achieves substantially higher coverage"'
)
BETTER = 'abstract: "improves success rates by reliably solving a larger set of environment configurations"; our margin'
STEPS = "The bonus varies steps, many of which lead to the same goal; the score of a set varies goals."
NARROW = (
    "If PPO learns the task and keeps all goals, nothing is to be repaired. A uniform choice reaches 3.6. Our levels."
)
STUDY = Study(
    paper=Paper("Polychromic objectives (Hamid et al.)", "https://arxiv.org/abs/2509.25424", 2025, checked="abstract"),
    question="Does credit for sets of episodes keep a policy from one way among several?",
    claim="With credit for sets more new starts are solved in eight attempts and in one, and more goals are reached.",
    arms={
        "ppo": PPO,
        "entropy": PPO.with_hparams(entropy=0.03),
        "sets": PPO.with_hparams(vines=BRANCH).with_choice(credit="sets"),
    },
    method="sets",
    metrics=(PASS, ELSEWHERE, COVERAGE, SOLVED),
    predictions=(
        Higher(PASS, "sets", than="ppo", source="paper", where=PASSES),
        Higher(ELSEWHERE, "sets", than="ppo", source="paper", where=PERTURBED),
        NotLower(SOLVED, "sets", than="ppo", by=0.05, source="paper", where=BETTER),
        Higher(COVERAGE, "sets", than="entropy", source="theory", where=STEPS),
        AtMost(COVERAGE, "ppo", 2.5, source="theory", where=NARROW, condition=True),
        AtLeast(SOLVED, "ppo", 0.8, source="theory", where=NARROW, condition=True),
    ),
)
