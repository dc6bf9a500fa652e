"""Does learning to tell policies apart prepare a reward model for few preferences? POLAR on sums.

A policy says a sum mod 5 in one of three manners and starts about 50% right. It learns by GRPO. Its reward is that of a
model f(question, reference, reply), with the right answer as reference. Before, f trains on one or both data sets:

  policies   15 scripts, right with probability 0.2 to 1, each with a preferred manner; two replies of one script to a
             question are reference and better reply, another script's reply is the worse one (POLAR's pre-training)
  labels     16 preferences: for a right reference, another right reply over a wrong one, in any manners

Arms:

  polar      policies, then labels
  labels     labels only
  policies   policies only
  neither    a random reward model
  rule       the rule that checks answers pays

`preference accuracy` is f's accuracy on 512 other preferences; `true` is the share of right replies. Predictions: both
are higher with polar than with labels. Accuracy is higher with polar than with policies. Checks: both are higher with
polar than with neither.

  python -m experiments discriminator --seeds 10

Paper: POLAR 2025, https://arxiv.org/abs/2507.05197, Pre-Trained Policy Discriminators are General Reward Models. There
f starts from a language model, 184 other models are the policies, and 150,000 rankings are the labels. Policies learn
by PPO. The release has the fine-tuning and the use of f, but not its pre-training.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.judged.replies import Asked, Replies
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.methods import networks
from jaxmarl_llm.methods.reward_models import reward_model
from jaxmarl_llm.methods.reward_models.reward_model import Judge
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

NUMBERS, MANNERS, GROUPS, LABELS, ACCURACY = 5, 3, 16, 16, "preference accuracy"
REPLIES = Replies(Arithmetic(NUMBERS, "+"), ("It is", "So it is", "I think it is"))
POLICIES = tuple(Errs(f"{q}/{m}", f"correct/{m}", q) for q in (0.2, 0.4, 0.6, 0.8, 1.0) for m in range(MANNERS))
GAME = Noisy(REPLIES, (*POLICIES, Errs("novice", "correct", 0.5)))
CONFIG = reward_model.config(REPLIES.judged_words, REPLIES.judged_length)


def script_reply(policy: jax.Array, task: jax.Array, key: jax.Array) -> jax.Array:
    """The reply of a script of POLICIES to a task: an action."""
    state, _ = GAME.reset(key, jnp.int32(0), Asked(task))
    plays = [partial(GAME.scripts[script.name], state, jnp.int32(0)) for script in POLICIES]
    return jax.lax.switch(policy, plays, key)


def of_policies(key: jax.Array, n: int = 32) -> jax.Array:
    """Pairs int32 [n, 2, L]: a reply of the script that gave the reference, and a reply of another script."""
    keys = jax.random.split(key, 6)
    task, policy = (jax.random.randint(keys[i], (n,), 0, k) for i, k in ((0, REPLIES.tasks.size), (1, len(POLICIES))))
    other = (policy + jax.random.randint(keys[2], (n,), 1, len(POLICIES))) % len(POLICIES)
    by = zip((policy, policy, other), keys[3:], strict=True)
    draws = [jax.vmap(script_reply)(script, task, jax.random.split(reply_key, n)) for script, reply_key in by]
    return jnp.stack([REPLIES.judge_input(task, reply, draws[0]) for reply in draws[1:]], 1)


def preferences(key: jax.Array, n: int) -> jax.Array:
    """Pairs int32 [n, 2, L]: a right and a wrong reply beside a right reference, each in any manner."""
    keys = jax.random.split(key, 5)
    draw = lambda i, least, bound: jax.random.randint(keys[i], (n,), least, bound)
    task, shift = draw(0, 0, REPLIES.tasks.size), draw(1, 1, NUMBERS)
    right = REPLIES.truth(task)
    reference, better = (REPLIES.reply(draw(i, 0, MANNERS), right) for i in (2, 3))
    worse = REPLIES.reply(draw(4, 0, MANNERS), (right + shift) % NUMBERS)
    return jnp.stack([REPLIES.judge_input(task, reply, reference) for reply in (better, worse)], 1)


def train_judge(parts: Any, key: jax.Array, *, policies: bool, labels: bool) -> Judge:
    """A reward model after one or both kinds of training, with its accuracy on other preferences."""
    network, keys = networks.init(CONFIG, key, {"score": 1}), jax.random.split(key, 4)
    if policies:
        network = reward_model.pretrain(CONFIG, network, keys[0], of_policies, steps=500, rate=3e-3)
    if labels:
        few = preferences(keys[1], LABELS)
        network = reward_model.pretrain(CONFIG, network, keys[2], lambda _: few, steps=50, rate=1e-3)
    f = reward_model.score(CONFIG, network.weights, preferences(keys[3], 512))
    return Judge(network.weights, (f[:, 0] > f[:, 1]).mean(dtype=jnp.float32))


def estimate_advantages(experience: Experience, hparams: Hparams, judge: Judge) -> Advantages:
    """GRPO on the rule's or the model's rewards."""
    episodes = experience.episodes
    task = jnp.repeat(experience.arranged.deal.task, episodes.group.size // GROUPS)
    f = reward_model.score(CONFIG, judge.weights, REPLIES.judge_input(task, episodes.action.ravel()))
    paid = select(hparams, "reward", rule=episodes.total_reward, model=f.reshape(episodes.acted.shape))
    metrics = {ACCURACY: judge.accuracy, "true": episodes.total_reward.mean()}
    return Advantages(advantages.grpo(paid, *experience.acts), state=judge, metrics=metrics)


RULE = Recipe(
    GAME,
    seats=(("learner",),),
    advantage=estimate_advantages,
    arrange=partial(reward_model.ask, game=REPLIES, groups=GROUPS),
    init_state=partial(train_judge, policies=True, labels=True),
    choices={"reward": ("rule", "model")},
    warm_start=(("novice",),),
    warm_start_updates=200,
    budget=1,
    updates=100,
    groups=GROUPS,
    pretrained={"groups": GROUPS, "budget": 16},
)
POLAR = RULE.with_choice(reward="model")
with_data = lambda **how: dataclasses.replace(POLAR, init_state=partial(train_judge, **how))
STUDY = Study(
    paper=Paper("POLAR (Policy Discriminators)", "https://arxiv.org/abs/2507.05197", 2025, checked="release"),
    question="Does learning to tell policies apart prepare a reward model for few preferences?",
    claim="After learning to tell policies apart few preferences make a reward model accurate, and its policy better.",
    arms={
        "polar": POLAR,
        "labels": with_data(policies=False, labels=True),
        "policies": with_data(policies=True, labels=False),
        "neither": with_data(policies=False, labels=False),
        "rule": RULE,
    },
    method="polar",
    metrics=("true", ACCURACY),
    predictions=(
        Higher(
            ACCURACY,
            "polar",
            than="labels",
            source="pilot",
            where="Seeds 100 to 103, twice the pairs a step: 0.73 to 0.99 against 0.60 to 0.74. Section 4.5 "
            "calls labels alone competitive.",
        ),
        Higher(
            ACCURACY,
            "polar",
            than="policies",
            source="paper",
            where="Appendix F.4, Table 7: pre-training alone 'fails to achieve meaningful performance in preference "
            "prediction'.",
        ),
        Higher(
            "true",
            "polar",
            than="labels",
            source="paper",
            where="Section 4.5, Table 2: without pre-training 59.45 against 62.60 (1.8B), 60.76 against 63.18 (7B).",
        ),
    ),
    checks=tuple(Higher(metric, "polar", than="neither") for metric in (ACCURACY, "true")),
)
