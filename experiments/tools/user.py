"""Does training need a user who answers, or do prompts that tell all suffice? MUA-RL at a help desk.

An assistant changes one value of a table of three accounts with three fields (`HelpDesk`, eleven turns). The user alone
knows account, field and new value, and is to be told the former value. The assistant is paid 1 if the final table is
the wished one and the former value was told, else 0. A dynamic user begins with one part, answers questions
and corrects the assistant once. A static one tells all three parts and then nothing. All arms begin with a policy that
has imitated a script with both kinds of user. The script asks for untold parts, and errs in a quarter of its acts.

  dynamic    trained with dynamic users (GRPO)
  static     trained with static ones
  recorded   trained with users who tell the parts in a fixed order, whatever is asked, and never correct
  mixed      half of each batch is with dynamic users, half with static ones
  untrained  as imitated, with a rate of 0

  solved, dynamic user     share of 256 games with dynamic users that are paid, after training
  solved, static user      the same with static users
  questions, dynamic user  questions of such a game; the script asks two

  python -m experiments user --seeds 20

Paper: MUA-RL (Zhao et al.) 2025, https://arxiv.org/abs/2508.18669: abstract and release, where a model plays the user,
rewards compare a hash of the database, and tokens of users and tools are masked. It has a penalty of 0.001 on the KL.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.teams.help_desk import DYNAMIC, RECORDED, STATIC, HelpDesk
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, NotLower, Paper, Study
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe, component_returns
from jaxmarl_llm.training.records import Arranged

GROUPS, SERVED, TOLD = 8, "solved, dynamic user", "solved, static user"
ASKED, SOLVED = "questions, dynamic user", "solved in training"


def choose_users(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    half = jnp.where(jnp.arange(GROUPS) % 2 == 0, DYNAMIC, STATIC)
    kinds = {"dynamic": DYNAMIC, "static": STATIC, "recorded": RECORDED}
    return Arranged(select(hparams, "user", **{name: half * 0 + kind for name, kind in kinds.items()}, mixed=half))


def measure_served(episodes: Episodes) -> dict[str, jax.Array]:
    assert episodes.measured is not None
    questions = mean_of_kept(episodes, episodes.measured[..., 0].sum((1, 2)))
    return component_returns(episodes, **{SERVED: 0}) | {ASKED: questions}


def judge(parts: Parts) -> Callable[[dict, jax.Array], dict[str, Any]]:
    """Metrics of games with dynamic users, then with static ones."""
    served = in_fresh_games(parts, measure=measure_served, deal=jnp.int32(DYNAMIC))
    told = in_fresh_games(parts, measure=partial(component_returns, **{TOLD: 0}), deal=jnp.int32(STATIC))
    return lambda weights, key: {**served(weights, key), **told(weights, key)}


TAUGHT = Recipe(
    Noisy(HelpDesk(), (Errs("trainee", "correct", (0.75, 1.0)),)),
    seats=(("assistant", "user"),),
    advantage=estimator(advantages.grpo),
    arrange=choose_users,
    choices={"user": ("dynamic", "static", "recorded", "mixed")},
    warm_start=(("trainee", "dynamic"), ("trainee", "static")),
    warm_start_updates=400,
    budget=1,
    updates=100,
    groups=GROUPS,
    group_size=8,
    measure=partial(component_returns, **{SOLVED: 0}),
    evaluate=judge,
    pretrained={"budget": 8},
)
GAP = (
    'abstract: "Existing reinforcement learning (RL) approaches for tool use lack the integration of genuinely dynamic'
)
GAIN = "Rewards of the final table train the acts in which the imitator errs."
TRANSFER = "Four acts are the same with both users, and static training makes them surer."
UNSEEN = "With a dynamic user no prompt tells all, and none is read in training."
ANY = "Recorded words pay for any question, and never correct."
SHARED = "Half of the games train questions; all train the other acts. The margin is ours."
ROOM = "Else there is nothing to learn, or nothing to learn from. Our levels."
STUDY = Study(
    paper=Paper("MUA-RL (Zhao et al.)", "https://arxiv.org/abs/2508.18669", 2025, checked="release"),
    question="Does training need a user who answers, or do prompts that tell all suffice?",
    claim="Trained with dynamic users, an assistant serves them better than one trained with static prompts.",
    arms={name: TAUGHT.with_choice(user=name) for name in TAUGHT.choices["user"]}
    | {"untrained": TAUGHT.with_hparams(learning_rate=0.0)},
    method="dynamic",
    metrics=(SERVED, TOLD, ASKED, SOLVED),
    predictions=(
        Higher(SERVED, "dynamic", than="static", source="paper", where=f'{GAP} users"'),
        Higher(SERVED, "dynamic", than="untrained", source="theory", where=GAIN),
        Higher(SERVED, "static", than="untrained", source="theory", where=TRANSFER),
        Higher(SERVED, "dynamic", than="recorded", source="theory", where=ANY),
        NotLower(SERVED, "mixed", than="dynamic", by=0.05, source="theory", where=SHARED),
        Higher(TOLD, "static", than="dynamic", source="theory", where=UNSEEN),
        AtMost(SERVED, "untrained", 0.6, source="theory", where=ROOM, condition=True),
        AtLeast(SERVED, "untrained", 0.05, source="theory", where=ROOM, condition=True),
        AtLeast(TOLD, "static", 0.8, source="theory", where="It has learnt its task. Our level.", condition=True),
    ),
)
