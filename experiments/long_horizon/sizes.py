"""How do the size of a task, the density of its rewards and the estimator shape learning? Rooms of two sizes.

A seat finds and takes things in an order, in a row of rooms:

  small  2 rooms, 2 things, both wanted, 8 turns
  large  4 rooms, 3 things, all wanted, 16 turns

Every policy first imitates the script `explorer` in games of both sizes for a few updates, so that it knows all words,
as the paper's pretrained models do. Then it plays 32 games an update of one size or, half of the groups each, of both,
and is paid 1 point for the last thing (sparse) or 1 / quest for each (dense), to

  ppo   PPO with a value head and GAE from turn to turn (lambda 0.95)
  rloo  the episode's points less the mean of the group's other games

All arms are judged in the same 256 games of each size: `small`, `large`, the share that is won; `small/detour`,
`large/detour`, turns beyond the fewest that a player needs who knows where all lies, the mean over games that are won.
In two rooms the first look tells where all lies, so that 0 is the best; in four `explorer` stands beside it.

  python -m experiments sizes --seeds 10

Paper: Wang & Ammanabrolu 2025, A Practitioner's Guide to Multi-turn Agentic RL, https://arxiv.org/abs/2510.01132.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.rooms import Rooms
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.studies.study import Paper, Study
from jaxmarl_llm.training.recipe import Advantages, Arranged, Experience, Hparams, Recipe, component_returns
from jaxmarl_llm.training.trainer import Trainer, jit_rollout

GROUPS, GAMES = 4, 256
GAME = Rooms(3, 3, 3, budget=14, dense=True, smaller=(Rooms(2, 2, 2, budget=8, dense=True),))
SIZES = {"large": 0, "small": 1}


def of_size(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """The first groups, a share of `large`, play the large game, the others the small one."""
    large = jnp.arange(GROUPS) < hparams["large"] * GROUPS
    return Arranged(deal=jnp.where(large, SIZES["large"], SIZES["small"]))


def credited(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GAE, normalised over the batch, where the critic learns; else of the episode, leave-one-out."""
    points, won = experience.episodes.reward[..., 0], experience.episodes.reward[..., 1]
    reward, acted = jnp.where(hparams["dense"] > 0, points, won), experience.episodes.acted
    critic = returns.gae(reward, experience.turn_value, acted, lam=0.95)
    group = advantages.rloo(reward, *experience.acts)
    return Advantages(jnp.where(hparams["value"] > 0, whiten(critic.advantage, acted), group), critic.value_target)


def judged(trainer: Trainer) -> Callable[[dict], dict[str, np.ndarray]]:
    """Of fresh games of each size, the same at every call: won, and where so, turns beyond the fewest [GAMES]."""
    recipe = trainer.recipe
    play = jit_rollout(Rollout(recipe.game, trainer.policy_sets, Lineup(recipe.seats * GAMES, 1), recipe.budget))
    best = jit_rollout(Rollout(recipe.game, {}, Lineup((("correct",),) * GAMES, 1), recipe.budget))
    key, deals = jax.random.key(0), {name: jnp.full(GAMES, size) for name, size in SIZES.items()}
    fewest = {name: best({}, key, deal).episodes.acted.sum((1, 2)) for name, deal in deals.items()}

    def evaluate(weights: dict) -> dict[str, np.ndarray]:
        found = {}
        for name, deal in deals.items():
            episodes = play(weights, key, deal).episodes
            won = np.asarray(episodes.reward[..., 1].sum((1, 2)))
            turns = np.asarray(episodes.acted.sum((1, 2)) - fewest[name])
            found |= {name: won, f"{name}/detour": np.where(won > 0, turns, np.nan)}
        return found

    return evaluate


BASE = Recipe(
    GAME,
    seats=(("learner",),),
    advantage=credited,
    arrange=of_size,
    warm_start=(("explorer",),),
    warm_start_updates=15,
    critic=True,  # which learns nothing where `value` is 0
    hparams={"learning_rate": 3e-3, "large": 1.0, "dense": 1.0, "value": 0.5},
    budget=1,
    updates=150,
    groups=GROUPS,
    group_size=8,
    measure=partial(component_returns, won=1),
    evaluate=judged,
    eval_every=50,
    pretrained={"budget": 4, "groups": GROUPS},
)
TRAINED = {"small": 0.0, "large": 1.0, "both": 0.5}
PAID = {"dense": 1.0, "sparse": 0.0}
CREDIT = {"ppo": 0.5, "rloo": 0.0}
ARMS = {
    f"{size}/{paid}/{credit}": BASE.with_hparams(large=large, dense=dense, value=value)
    for size, large in TRAINED.items()
    for paid, dense in PAID.items()
    for credit, value in CREDIT.items()
    if size != "both" or credit == "ppo"
}
STUDY = Study(
    paper=Paper(
        "A Practitioner's Guide to Multi-turn Agentic RL (Wang & Ammanabrolu)",
        "https://arxiv.org/abs/2510.01132",
        2025,
        checked="abstract",
    ),
    question="How do size, density of rewards and estimator shape learning?",
    claim="x",
    arms=ARMS,
    method="large/dense/ppo",
    metrics=("small", "large", "small/detour", "large/detour", "won"),
    predictions=(),
)
