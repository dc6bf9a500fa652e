"""Does a reward of mutual welfare serve user and model better than either's own? GTAlign's reward on sums.

A policy says a sum mod 5 with 0 to 4 extra words; a note says whether the user is in a hurry. Both parties value the
same reply. With x = extra words / 4, and right = 1 or 0:

  user   right (1 - c x), with c = 0.5 without hurry, 0.9 in a hurry
  model  0.4 right + 0.7 x

So the model gains from words and the user loses. The policy starts 40% right, with random words, and learns by GRPO:

  model    the model's welfare alone
  user     the user's welfare alone
  sum      both: the linear combination
  minimum  the lesser of both
  nash     GTAlign's reward, the geometric mean of both

For right replies the sum is highest with 4 words without hurry and none in a hurry, the geometric mean with 3 and 1.

Metrics:

  welfare   mean geometric mean of both
  right     share of right replies
  words     mean number of extra words
  least     mean of the lesser

  python -m experiments mutual_welfare --seeds 20

Paper: GTAlign (Zhu et al.) 2025, https://arxiv.org/abs/2510.08872. There a language model writes a payoff table before
it answers, user and model also value length bands and format, and training is PPO. Policies here write no table: only
the reward is tested. The release pays a table for entries that differ, right or wrong.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.judged.replies import Asked, Replies
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.rewards.welfare import welfare
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

NUMBERS, GROUPS, MOST, WORDS, RIGHT, COST = 5, 16, 4, 0.7, 0.4, (0.5, 0.9)
MANNERS = ("It is", "The sum is", "The sum here is", "All in all it is", "As you will see it is")
REPLIES = Replies(Arithmetic(NUMBERS, "+"), MANNERS, (" There is no hurry.", " Hurry!"))


def ask(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    """A question and a note for each group."""
    keys = jax.random.split(key)
    task, note = (
        jax.random.randint(x, (GROUPS,), 0, n) for x, n in zip(keys, (REPLIES.tasks.size, len(COST)), strict=True)
    )
    return Arranged(deal=Asked(task, note))


def parties(right: jax.Array, words: jax.Array, note: jax.Array) -> jax.Array:
    """The welfare float32 [..., 2] of user and model for replies; all arrays have the same shape [...]."""
    share = words / MOST
    return jnp.stack([right * (1 - jnp.array(COST)[note] * share), RIGHT * right + WORDS * share], -1)


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GRPO on the welfare that the arm wants."""
    episodes, deal = experience.episodes, experience.arranged.deal
    words, _ = REPLIES.parts(episodes.action.ravel())
    right = episodes.reward.ravel()
    utility = parties(right, words, jnp.repeat(deal.note, len(words) // GROUPS))
    total = {kind: welfare(utility, kind) for kind in ("sum", "minimum", "nash")}
    paid = select(hparams, "wants", user=utility[:, 0], model=utility[:, 1], **total)
    metrics = {"welfare": total["nash"].mean() / 2, "least": total["minimum"].mean() / 2}
    metrics |= {"right": right.mean(), "words": words.mean()}
    return Advantages(advantages.grpo(paid.reshape(episodes.acted.shape), *experience.acts), metrics=metrics)


NASH = Recipe(
    Noisy(REPLIES, (Errs("novice", "correct", 0.4),)),
    seats=(("learner",),),
    advantage=estimate_advantages,
    arrange=ask,
    hparams={"learning_rate": 2e-3},
    choices={"wants": ("nash", "model", "user", "sum", "minimum")},
    warm_start=(("novice",),),
    warm_start_updates=200,
    budget=1,
    updates=100,
    groups=GROUPS,
    group_size=8,
    pretrained={"groups": GROUPS, "budget": 16},
)
ABSTRACT = 'abstract: "substantially improves reasoning efficiency, answer quality, and mutual welfare" over baselines'
CONFLICT = "The model gains from words and the user loses: without this no welfare has to be shared."
STUDY = Study(
    paper=Paper("GTAlign (Zhu et al.)", "https://arxiv.org/abs/2510.08872", 2025, checked="release"),
    question="Does a reward of mutual welfare serve user and model better than either's own?",
    claim="The geometric mean brings more mutual welfare and more right replies than one party's welfare or the sum.",
    arms={name: NASH.with_choice(wants=name) for name in NASH.choices["wants"]},
    method="nash",
    metrics=("welfare", "right", "words", "least"),
    predictions=(
        *(
            Higher(metric, "nash", than=name, source="paper", where=ABSTRACT)
            for metric in ("welfare", "right")
            for name in ("model", "user", "sum")
        ),
        Lower("words", "nash", than="model", source="paper", where=ABSTRACT),
        Higher("words", "model", than="user", source="theory", where=CONFLICT, condition=True),
        Higher(
            "least",
            "nash",
            than="sum",
            source="theory",
            where="The sum is highest where one party has 0.4 or 0.5, the geometric mean between.",
        ),
    ),
)
