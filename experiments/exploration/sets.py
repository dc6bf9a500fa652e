"""Does credit for sets of episodes keep a policy from one way among several? Polychromic PPO in a maze of four goals.

Four rooms of 16 cells meet in a passage of three cells, and each has a goal in its outer corner. A game lasts twelve
turns, and each goal pays 1. Players are told the walls beside them, not their place. Training begins in the passage,
seven or eight steps from the nearest goals. Policies first imitate a player that takes any shortest way, and another
step with probability 0.2. A group has 16 episodes.

  ppo      GAE (discount 1, lambda 0.95) from a value head
  entropy  as ppo, with an entropy bonus of 0.03
  sets     vines: eight episodes start at the first turn, the others continue one of them from turn 4 on. In five turns
           from there, an episode's advantage is that of four random sets of four, each scored by mean return x
           distinct goals / 4 (`score_sets`); later it is GAE

Policies are judged in training, and in eight attempts from each of 64 starts in the 62 cells of the rooms.

  python -m experiments sets --seeds 20

Paper: Polychromic objectives (Hamid et al.) 2025, https://arxiv.org/abs/2509.25424. Its algorithm is second-hand, from
notes and a third party's code.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.solo.maze import FOUR_ROOMS, Maze
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import returns
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.branching import at_turns
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, NotLower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

VINES, SET, SETS, BRANCH, WINDOW = 8, 4, 4, 3, 5
SOLVED, COVERAGE, PASS, ROOMS = "solved", "coverage", "pass@8", " from rooms"
MAZE = Maze(FOUR_ROOMS, turns=12, cost=0.0, sees="walls")
PASSAGE = MAZE.cells.index((4, 3)), 3  # the first cell and the number of cells
OTHERS = sum(PASSAGE), MAZE.starts - PASSAGE[1]


def arrange(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """Starts in the passage. With sets, the second eight become copies of the first episode before turn BRANCH."""
    turn = select(hparams, "credit", ppo=0, sets=BRANCH) * (jnp.arange(2 * VINES) >= VINES)
    vines = Partial(at_turns, at=turn, source=jnp.zeros(2 * VINES, jnp.int32))
    return Arranged(deal=tuple(map(jnp.int32, PASSAGE)), branch=vines)


def score_sets(key: jax.Array, total: jax.Array, goal: jax.Array) -> jax.Array:
    """Advantages of members of random sets: returns in [0, 1] and numbers of goals, 0 for none, [S, N] -> [S, N].

    A set's score is its mean return times its number of distinct goals over its size. A set's advantage is its score
    less the mean of the SETS sets, and a member's is the mean over its sets, 0 without one.
    """
    drawn = jax.random.uniform(key, (len(total), SETS, total.shape[1]))
    chosen = jnp.argsort(jnp.argsort(drawn, 2), 2) < SET
    reached = chosen[..., None] * jax.nn.one_hot(goal.astype(jnp.int32) - 1, MAZE.goals)[:, None]
    score = jnp.where(chosen, total[:, None], 0).sum(2) * reached.any(2).sum(2) / SET**2
    advantage = jnp.where(chosen, (score - score.mean(1, keepdims=True))[..., None], 0).sum(1)
    return advantage / jnp.maximum(chosen.sum(1), 1)


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GAE; with sets, their advantages in the window after the branch. Copied turns are left out of the loss."""
    episodes = experience.episodes
    assert episodes.branches is not None
    reward, acted = episodes.reward[..., 0], episodes.acted
    targets = returns.gae(reward, experience.turn_value, acted, gamma=1.0, lam=0.95)
    played = episodes.branches.origin == jnp.arange(len(reward))[:, None]  # by the episode itself, not copied
    start = jnp.where(jnp.arange(len(reward))[:, None] % (2 * VINES) < VINES, 0, BRANCH)
    later = jnp.arange(acted.shape[1])[None] - start
    by_set = lambda x: x.sum((1, 2)).reshape(-1, VINES)
    member = score_sets(experience.key, by_set(reward), by_set(episodes.measured[..., 0])).reshape(-1, 1, 1)
    sets = jnp.where(((later >= 0) & (later < WINDOW))[..., None] & acted, member, targets.advantage)
    credit = select(hparams, "credit", ppo=targets.advantage, sets=sets)
    return Advantages(credit, targets.value_target, trained=acted & played[..., None])


def outcomes(episodes: Episodes, *, every: int = 1, where: str = ROOMS) -> dict[str, jax.Array]:
    """Success, distinct goals, and any success of eight episodes from one start: all, or every other of training."""
    goal = episodes.measured[..., 0].sum((1, 2)).reshape(-1, VINES)[::every]
    distinct = jax.nn.one_hot(goal.astype(jnp.int32) - 1, MAZE.goals).any(1).sum(1)
    metrics = {SOLVED: goal > 0, COVERAGE: distinct, PASS: distinct > 0}
    return {f"{name}{where}": x.mean() for name, x in metrics.items()}


PPO = Recipe(
    Noisy(MAZE, (Errs("roams", "shortest", 0.8),)),
    seats=(("learner",),),
    advantage=estimate_advantages,
    critic=True,
    arrange=arrange,
    warm_start=(("roams",),),
    warm_start_deal=lambda key: tuple(map(jnp.int32, PASSAGE)),
    warm_start_updates=150,
    hparams={"entropy": 0.0},
    choices={"credit": ("ppo", "sets")},
    budget=1,
    groups=4,
    group_size=2 * VINES,
    measure=partial(outcomes, every=2, where=""),
    evaluate=partial(in_fresh_games, measure=outcomes, deal=OTHERS, games=64, attempts=VINES),
    eval_every=200,
    pretrained={"budget": 4},
)
FROM_ROOMS = "second-hand: Four Rooms from perturbed starts, 88.7 against 15.3 of PPO"
PASSES = 'abstract: "when given multiple attempts in pass@k experiments, [it] achieves substantially higher coverage"'
BETTER = 'abstract: "improves success rates by reliably solving a larger set of environment configurations"; our margin'
STEPS = "The bonus varies steps, many of which lead to the same goal; the score of a set varies goals."
NARROW = "If PPO fails or keeps all goals, nothing is to be repaired. A uniform choice reaches 3.6. Our levels."
STUDY = Study(
    paper=Paper("Polychromic objectives (Hamid et al.)", "https://arxiv.org/abs/2509.25424", 2025, checked="abstract"),
    question="Does credit for sets of episodes keep a policy from one way among several?",
    claim="With credit for sets more new starts are solved in eight attempts and in one, and more goals are reached.",
    arms={"ppo": PPO, "entropy": PPO.with_hparams(entropy=0.03), "sets": PPO.with_choice(credit="sets")},
    method="sets",
    metrics=(PASS + ROOMS, SOLVED + ROOMS, COVERAGE, SOLVED),
    predictions=(
        Higher(PASS + ROOMS, "sets", than="ppo", source="paper", where=PASSES),
        Higher(SOLVED + ROOMS, "sets", than="ppo", source="paper", where=FROM_ROOMS),
        NotLower(SOLVED, "sets", than="ppo", by=0.05, source="paper", where=BETTER),
        Higher(COVERAGE, "sets", than="entropy", source="theory", where=STEPS),
        AtMost(COVERAGE, "ppo", 2.5, source="theory", where=NARROW, condition=True),
        AtLeast(SOLVED, "ppo", 0.8, source="theory", where=NARROW, condition=True),
    ),
)
