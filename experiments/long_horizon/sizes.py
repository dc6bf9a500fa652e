"""How do the size of a task, the density of its rewards and the estimator shape learning? Rooms of two sizes.

A seat finds and takes things in an order, in a row of rooms:

  small  2 rooms, 2 things, both wanted, 8 turns
  large  3 rooms, 3 things, all wanted, 14 turns

Every policy first imitates the script `explorer` in games of both sizes, for 15 updates. It then knows all words, as
the paper's pretrained models do. `taught` stops there. The other arms play 32 games an update. An arm is
SIZE/REWARD/ESTIMATOR:

  small, large, both  the size of the games; with `both`, half of the groups play each size
  sparse, dense       1 point for the last thing, or 1 / quest for each thing
  ppo                 PPO with a value head and GAE from turn to turn (lambda 0.95), whitened over the batch
  rloo                the episode's points minus the mean of the group's other games

All arms are evaluated in the same games of each size:

  small, large              share of games won
  small/extra, large/extra  turns beyond those of `explorer` in the same deal; a lost game counts its whole budget

No player who must look for the things is faster than `explorer` on average in two or three rooms: 0 is the optimum.

  python -m experiments sizes --seeds 10

Paper: Wang & Ammanabrolu 2025, A Practitioner's Guide to Multi-turn Agentic RL, https://arxiv.org/abs/2510.01132. Its
models are pretrained, and its TextWorld games have 2 to 8 rooms, 3 to 12 objects and quests of 4 or 8 steps. Its
mixture joins games with more rooms and games with more objects; here one game is larger in both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.solo.rooms import Rooms
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, measure_totals
from jaxmarl_llm.training.records import Advantages, Arranged, Experience
from jaxmarl_llm.training.setup import jit_rollout

GROUPS, GAMES, UPDATES = 4, 128, 120
GAME = Rooms(3, 3, 3, budget=14, dense=True, smaller=(Rooms(2, 2, 2, budget=8, dense=True),))
SIZES = {"large": 0, "small": 1}


def of_size(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """The first groups, a share `large` of all, play the large game; the others play the small one."""
    large = jnp.arange(GROUPS) < hparams["large"] * GROUPS
    return Arranged(deal=jnp.where(large, SIZES["large"], SIZES["small"]))


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GAE, whitened over the batch, for `ppo`; leave-one-out returns of the episode for `rloo`."""
    points, won = experience.episodes.total_reward, experience.episodes.measured[..., 0]
    reward, acted = select(hparams, "reward", dense=points, sparse=won), experience.episodes.acted
    critic = returns.gae(reward, experience.turn_value, acted, lam=0.95)
    rloo = advantages.rloo(reward, *experience.acts)
    advantage = select(hparams, "credit", ppo=whiten(critic.advantage, acted), rloo=rloo)
    return Advantages(advantage, critic.value_target)


def size_evaluator(parts: Parts) -> Callable[[dict, jax.Array], dict[str, np.ndarray]]:
    """Won, and turns beyond those of `explorer`, [GAMES] for each size; a key deals the same games at every call."""
    recipe = parts.recipe
    play = jit_rollout(Rollout(recipe.game, parts.policy_sets, Lineup(recipe.seats * GAMES, 1), recipe.budget))
    script = jit_rollout(Rollout(recipe.game, {}, Lineup((("explorer",),) * GAMES, 1), recipe.budget))
    deals = {name: jnp.full(GAMES, size) for name, size in SIZES.items()}

    def evaluate(weights: dict, key: jax.Array) -> dict[str, np.ndarray]:
        results = {}
        for name, deal in deals.items():
            episodes = play(weights, key, deal).episodes
            results[name] = np.asarray(episodes.measured[..., 0].sum((1, 2)))
            best = script({}, key, deal).episodes.acted.sum((1, 2))
            results[f"{name}/extra"] = np.asarray(episodes.acted.sum((1, 2)) - best)
        return results

    return evaluate


BASE = Recipe(
    GAME,
    seats=(("learner",),),
    advantage=estimate_advantages,
    arrange=of_size,
    warm_start=(("explorer",),),
    warm_start_updates=15,
    critic=True,  # the value head learns nothing if `value` is 0
    hparams={"learning_rate": 3e-3, "large": 1.0, "value": 0.5},
    choices={"reward": ("dense", "sparse"), "credit": ("ppo", "rloo")},
    budget=1,
    updates=UPDATES,
    groups=GROUPS,
    group_size=8,
    buckets=3,
    measure=partial(measure_totals, won=0),
    evaluate=size_evaluator,
    eval_every=UPDATES // 2,
    pretrained={"budget": 4, "groups": GROUPS},
)
RLOO = BASE.with_choice(credit="rloo").with_hparams(value=0.0)
ARMS = {
    f"{size}/{reward}/{credit}": learner.with_choice(reward=reward).with_hparams(large=large)
    for size, large in {"small": 0.0, "large": 1.0}.items()
    for reward in ("dense", "sparse")
    for credit, learner in {"ppo": BASE, "rloo": RLOO}.items()
}
SEEN = "seeds 100 to 102 and 110 to 112, in tuning"
STUDY = Study(
    paper=Paper(
        "A Practitioner's Guide to Multi-turn Agentic RL (Wang & Ammanabrolu)",
        "https://arxiv.org/abs/2510.01132",
        2025,
        checked="release",
    ),
    question="How do size, density of rewards and estimator shape learning?",
    claim="Dense rewards and a critic win more of the large game; the small one is won anyhow. Lessons of each "
    "game carry over to the other; half of each is good in both.",
    arms={"taught": BASE.with_hparams(learning_rate=0.0), **ARMS, "both/dense/ppo": BASE.with_hparams(large=0.5)},
    method="large/dense/ppo",
    metrics=("small", "large", "small/extra", "large/extra", "won"),
    predictions=(
        Higher(
            "large",
            "large/dense/ppo",
            than="large/sparse/ppo",
            source="paper",
            where="Section 7.1, Table 11: PPO 0.41 with sparse rewards, 0.58 with the densest, 0.29 in between",
        ),
        Higher(
            "large",
            "large/dense/rloo",
            than="large/sparse/rloo",
            source="paper",
            where="Section 7.1, Table 11: RLOO 0.35 with sparse rewards, 0.55 with both kinds of dense ones",
        ),
        Higher(
            "large",
            "large/dense/ppo",
            than="large/dense/rloo",
            source="paper",
            where="Section 7.1, Table 11, densest rewards: PPO 0.58, RLOO 0.55",
        ),
        Higher(
            "large",
            "large/sparse/ppo",
            than="large/sparse/rloo",
            source="paper",
            where="Section 6.2, Table 10, w4-o6-q8, rewards at the end: PPO 0.59, RLOO 0.0 (1.5B); 0.72 and 0.47 (7B)",
        ),
        Higher(
            "large",
            "small/dense/ppo",
            than="taught",
            source="paper",
            where="Section 5.2, Table 5: training on w2-o3-q4 adds 0.11 to 0.44 in four larger environments",
        ),
        Lower("large/extra", "large/dense/ppo", than="large/sparse/ppo", source="pilot", where=SEEN),
        Higher("small", "large/dense/ppo", than="taught", source="pilot", where=SEEN),
        Higher("large", "both/dense/ppo", than="small/dense/ppo", source="pilot", where=SEEN),
        Higher("small", "both/dense/ppo", than="large/dense/ppo", source="pilot", where=SEEN),
        *(
            Lower(
                size,
                "both/dense/ppo",
                than=f"{size}/dense/ppo",
                source="paper",
                where="Section 5.2, Table 5, equal data: 0.54 and 0.68 by training there alone, 0.41 and 0.52 by both",
            )
            for size in SIZES
        ),
    ),
    checks=tuple(Higher("small", f"small/dense/{credit}", than="taught") for credit in ("ppo", "rloo")),
)
