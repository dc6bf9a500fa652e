"""Is play with a user who answers needed, or do prompts that tell all do? MUA-RL at a help desk."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.teams.help_desk import DYNAMIC, RECORDED, STATIC, USER, HelpDesk
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtLeast, Higher, Paper, Study, Within
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, component_returns
from jaxmarl_llm.training.records import Arranged

GROUPS, SOLVED, SERVED, TOLD, ASKED = 8, "solved", "solved, dynamic user", "solved, static user", "questions"


def choose_users(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    kinds = jnp.full(GROUPS, DYNAMIC), jnp.full(GROUPS, STATIC), jnp.full(GROUPS, RECORDED)
    half = jnp.where(jnp.arange(GROUPS) % 2 == 0, DYNAMIC, STATIC)
    return Arranged(select(hparams, "user", dynamic=kinds[0], static=kinds[1], recorded=kinds[2], mixed=half))


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    return component_returns(episodes, **{SOLVED: 0})


def serve(episodes: Episodes) -> dict[str, jax.Array]:
    assert episodes.measured is not None
    questions = mean_of_kept(episodes, episodes.measured[:, :, 0, 0].sum(1))
    return component_returns(episodes, **{SERVED: 0}) | {ASKED: questions}


def judge(parts: Parts) -> Callable[[dict, jax.Array], dict[str, Any]]:
    """Metrics of games with each kind of user."""
    served = in_fresh_games(parts, measure=serve, deal=jnp.int32(DYNAMIC))
    told = in_fresh_games(parts, measure=partial(component_returns, **{TOLD: 0}), deal=jnp.int32(STATIC))
    return lambda weights, key: {**served(weights, key), **told(weights, key)}


GAME = Noisy(HelpDesk(), (Errs("trainee", "correct", (0.75, 1.0)),))
DYNAMIC_ARM = Recipe(
    GAME,
    seats=(("assistant", "user"),),
    advantage=estimator(advantages.grpo),
    arrange=choose_users,
    choices={"user": ("dynamic", "static", "recorded", "mixed")},
    warm_start=(("trainee", "dynamic"), ("trainee", "static")),
    warm_start_updates=400,
    budget=1,
    updates=200,
    groups=GROUPS,
    group_size=8,
    measure=measure,
    evaluate=judge,
    eval_every=20,
    pretrained={"budget": 8},
)
STUDY = Study(
    paper=Paper("MUA-RL (Zhao et al.)", "https://arxiv.org/abs/2508.18669", 2025, checked="release"),
    question="Is play with a user who answers needed, or do prompts that tell all do?",
    claim="Trained with dynamic users, an assistant serves them better than one trained with static prompts.",
    arms={name: DYNAMIC_ARM.with_choice(user=name) for name in DYNAMIC_ARM.choices["user"]}
    | {"untrained": DYNAMIC_ARM.with_hparams(learning_rate=0.0)},
    method="dynamic",
    metrics=(SERVED, TOLD, ASKED, SOLVED),
    predictions=(
        Higher(SERVED, "dynamic", than="static", source="paper", where="x"),
    ),
)
