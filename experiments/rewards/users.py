"""Can one reward serve users who want opposite things? Variational preference learning (VPL) on sums.

A policy says a sum mod 5 tersely, plainly or at length. A wrong reply has value 0 for every user. A right reply has
value 1, 0.3 or 0 for half of the users, and 0, 0.3 or 1 for the other half. A reward model learns from the preferences
of many users, with four known preferences each, and rewards the policy. The policy learns by GRPO and reads one of four
notes about its user.

  latent   a latent number is inferred from the four preferences (VPL); the reward model reads it, and the note gives
           its quarter of the standard normal distribution
  single   one Bradley-Terry reward for all users; the note is constant
  told     ceiling: the note gives the user's half, and the user's true value is the reward

Metrics:

  preference accuracy  accuracy on preferences of other users without errors
  terse, wordy         mean value for each half of the users
  lesser               the smaller of these two

Predictions: latent is above single in preference accuracy and in lesser.

  python -m experiments users --seeds 10

Paper: VPL (Poddar et al.) 2024, https://arxiv.org/abs/2408.10075. In its release latents of 512 numbers personalise
rewards of texts; policies are trained for control tasks only and read the latent itself. Here the latent is a number,
and the policy reads its quarter.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.judged.replies import Replies
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.methods.reward_models import reward_model, vpl
from jaxmarl_llm.methods.reward_models.reward_model import Judge
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.masked import mean_of
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

NUMBERS, GROUPS, KNOWN, NOTES, ACCURACY = 5, 16, 4, 4, "preference accuracy"
MANNERS, READERS = (
    ("It is", "The sum is", "All in all it is"),
    tuple(f" Your reader is of kind {n}." for n in range(NOTES)),
)
REPLIES = Replies(Arithmetic(NUMBERS, "+"), MANNERS, READERS)
GAME = Noisy(REPLIES, (Errs("novice", "correct", 0.6),))
CONFIG = reward_model.config(REPLIES.judged_words, 3)


class Reader(NamedTuple):
    task: jax.Array  # int32 [groups]; the game reads task and note, the estimator reads all fields
    note: jax.Array  # int32 [groups]
    wordy: jax.Array  # int32 [groups], the user's half
    latent: jax.Array  # float32 [groups, 1]


def text(task: jax.Array, action: jax.Array) -> jax.Array:
    """The reward model's text int32 [..., 3]: the right answer, then the reply."""
    return REPLIES.judge_input(task, action)[..., -3:]


def value(wordy: jax.Array, task: jax.Array, action: jax.Array) -> jax.Array:
    """The value of replies for users, float32; all arrays have the same shape."""
    manner, answer = REPLIES.parts(action)
    taste = jnp.array([[1.0, 0.3, 0.0], [0.0, 0.3, 1.0]])[wordy, manner]
    return jnp.where(answer == REPLIES.truth(task), taste, 0.0)


def readers(key: jax.Array, users: int, n: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(wordy [U], preferences int32 [U, n, 2, L], value of the preferred text less the other's [U, n]) of U users."""
    keys = jax.random.split(key, 3)
    wordy = jax.random.bernoulli(keys[0], 0.5, (users,)).astype(jnp.int32)
    task, action = REPLIES.draw_replies(keys[1], (users, n), right=0.8)
    worth = value(jnp.broadcast_to(wordy[:, None, None], task.shape), task, action)
    order = reward_model.draw_preference(keys[2], worth, sure=5.0)
    action, worth = (jnp.take_along_axis(x, order, -1) for x in (action, worth))
    return wordy, text(task, action), worth[..., 0] - worth[..., 1]


def train_judge(parts: Any, key: jax.Array, *, personal: bool) -> Judge:
    """A reward model after training on preferences, with its accuracy; `personal` gives it a latent."""
    keys = jax.random.split(key, 3)
    options: dict = {"known": KNOWN, "personal": personal}
    draw = lambda key: readers(key, 16, 2 * KNOWN)[1]
    network = vpl.train_network(CONFIG, vpl.init(CONFIG, keys[0], latent=1), keys[1], draw, **options)
    accuracy = vpl.accuracy(CONFIG, network.weights, *readers(keys[2], 64, KNOWN + 8)[1:], **options)
    return Judge(network.weights, accuracy)


def arrange(hparams: Hparams, judge: Judge, key: jax.Array, number: jax.Array, *, personal: bool) -> Arranged:
    """A question, a user and a note about the user for each group."""
    keys = jax.random.split(key)
    wordy, known, _ = readers(keys[0], GROUPS, KNOWN)
    z = vpl.encode(CONFIG, judge.weights, known)[0] * personal
    note = select(hparams, "user", inferred=vpl.kind(z[:, 0], NOTES), told=wordy)
    return Arranged(deal=Reader(jax.random.randint(keys[1], (GROUPS,), 0, REPLIES.tasks.size), note, wordy, z))


def estimate_advantages(experience: Experience, hparams: Hparams, judge: Judge) -> Advantages:
    """GRPO on the model's rewards or on the users' true values."""
    episodes, action = experience.episodes, experience.episodes.action.ravel()
    reader = jax.tree.map(lambda x: jnp.repeat(x, len(action) // GROUPS, 0), experience.arranged.deal)
    worth = value(reader.wordy, reader.task, action)
    f = vpl.score(CONFIG, judge.weights, text(reader.task, action), reader.latent)
    paid = select(hparams, "user", inferred=f, told=worth).reshape(episodes.acted.shape)
    halves = {name: mean_of(worth, reader.wordy == n).value for n, name in enumerate(("terse", "wordy"))}
    metrics = {**halves, "lesser": jnp.minimum(*halves.values()), ACCURACY: judge.accuracy}
    return Advantages(advantages.grpo(paid, *experience.acts), state=judge, metrics=metrics)


LATENT = Recipe(
    GAME,
    seats=(("learner",),),
    advantage=estimate_advantages,
    arrange=partial(arrange, personal=True),
    init_state=partial(train_judge, personal=True),
    hparams={"learning_rate": 2e-3},
    choices={"user": ("inferred", "told")},
    warm_start=(("novice",),),
    warm_start_updates=200,
    budget=1,
    updates=200,
    groups=GROUPS,
    pretrained={"groups": GROUPS, "budget": 24},
)
SINGLE = replace(LATENT, arrange=partial(arrange, personal=False), init_state=partial(train_judge, personal=False))
STUDY = Study(
    paper=Paper("VPL (Poddar et al.)", "https://arxiv.org/abs/2408.10075", 2024, checked="release"),
    question="Can one reward serve users who want opposite things?",
    claim="A reward and a policy that infer the user from a few preferences serve both kinds of users better than one.",
    arms={"latent": LATENT, "single": SINGLE, "told": LATENT.with_choice(user="told")},
    method="latent",
    metrics=(ACCURACY, "terse", "wordy", "lesser"),
    predictions=(
        Higher(
            ACCURACY,
            "latent",
            than="single",
            source="paper",
            where="Abstract: 'improved reward function accuracy' by a user-specific latent. The encoder was tuned on "
            "seeds 100 to 102 until this held.",
        ),
        Higher(
            "lesser",
            "latent",
            than="single",
            source="paper",
            where="Abstract: averaging over diverging preferences gives 'poor performance for individual subgroups'.",
        ),
    ),
)
