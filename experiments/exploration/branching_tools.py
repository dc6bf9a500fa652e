"""Does branching where a tool's reply raises the entropy save tool calls? ARPO and AEPO on instruments.

One seat calls six instruments in turn, and answers each reading with one of three letters (`Instruments`). A point is
paid if all answers are right. Policies have imitated a player that calls right, and answers three instruments right and
three at random. So every second reply opens a free choice, and one game in 27 is solved. A group has 16 episodes.

  alone    all start at the first turn (GRPO)
  chance   eight start there; after each reply an episode in play is copied with probability 0.5, until there are 16
  arpo     as chance, with probability 0.2 + 0.5 (entropy of the answer to come - entropy of the first call)
  late     as arpo with the entropy of the answer before, as released: copies are made before the reply is read
  aepo     as arpo; the probability loses 0.4 of itself for each reply in a row at which the episode has branched; a
           probe of one episode a group sets the number that start at the first turn; PPO's upper bound keeps the
           gradient; advantages are multiplied by 1 + 0.2 (standardised entropy of the token)
  twelve   as alone, with twelve episodes

  solved         share of games solved, of the first six members of groups, which start at the first turn in all arms
  calls          calls of an update, a shared one once, with those of the probe
  largest tree   share of a group's episodes that have the most common first turn, mean over all updates
  rise           entropy before answers less that before calls, while at most half of the games are solved

  python -m experiments branching_tools --seeds 20

Papers: ARPO (Dong et al.) 2025, https://arxiv.org/abs/2507.19849. The release sums entropies of 20 tokens, over log V,
and compares all batches with the first one's. AEPO (Dong et al.) 2025, https://arxiv.org/abs/2510.14545: abstract and
copies of its code, where the penalty counts by question.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from jaxmarl_llm.environments.solo.instruments import Instruments
from jaxmarl_llm.methods.probing import half_of_members, probe_first
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.branching import by_entropy
from jaxmarl_llm.studies.curves import mean_over_updates, mean_while, sum_until
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

ROUNDS, MEMBERS, SHOWN, CALLS, PAID = 6, 16, 6, "calls", "calls to 90%"
SOLVED, MEAN, TREE, RISE = "solved", "solved so far", "largest tree", "rise after replies"
REPLIES = np.arange(2 * ROUNDS) % 2 == 1


def branch(hparams: Hparams, state: jax.Array, key: jax.Array, number: jax.Array) -> Arranged:
    first = select(hparams, "first", alone=MEMBERS, half=MEMBERS // 2, probe=state)
    settings = {name: hparams[name] for name in ("base", "weight", "penalty", "lag")}
    return Arranged(branch=Partial(by_entropy, first=first, due=REPLIES, **settings))


def estimate_advantages(experience: Experience, hparams: Hparams, state: jax.Array) -> Advantages:
    """GRPO, and metrics of entropies, calls and trees."""
    episodes, groups, branches = experience.episodes, experience.groups, experience.episodes.branches
    assert branches is not None
    reward, by_group = episodes.reward[..., 0], lambda x: x.reshape(groups, -1)
    first_turn, entropy = by_group(branches.origin[:, 0]), branches.entropy[..., 0]
    made = episodes.acted[..., 0] & (branches.origin == jnp.arange(len(reward))[:, None])
    metrics = {
        SOLVED: by_group(reward.sum((1, 2)))[:, :SHOWN].mean(),
        CALLS: made[:, ~REPLIES].sum() + select(hparams, "first", alone=0, half=0, probe=groups * ROUNDS),
        "tree": (first_turn[:, :, None] == first_turn[:, None]).mean(2).max(1).mean(),
        "rise": entropy[:, REPLIES].mean() - entropy[:, ~REPLIES].mean(),
    }
    return Advantages(advantages.grpo(reward, *experience.acts), state=state, metrics=metrics)


def balanced_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """PPO with a dual clip of 3. Advantages are weighed by entropy; the upper bound may keep the gradient."""
    scale = 1 + hparams["by_entropy"] * jax.lax.stop_gradient(whiten(scores.entropy, batch.mask))
    given = scores.logp, batch.behaviour_logp, batch.advantage * scale, batch.mask
    clip = partial(losses.ppo_clip, *given, clip_low=hparams["clip_low"], clip_high=hparams["clip_high"], dual_clip=3.0)
    return select(hparams, "clip", plain=clip(), kept=clip(keep_gradient=True))


ARPO = Recipe(
    Instruments(ROUNDS, 3),
    seats=(("learner",),),
    advantage=estimate_advantages,
    loss=balanced_loss,
    step=partial(probe_first, replies=REPLIES),
    arrange=branch,
    init_state=half_of_members,
    hparams={"learning_rate": 5e-4, "base": 0.2, "weight": 0.5, "penalty": 0.0, "lag": 0, "by_entropy": 0.0},
    choices={"first": ("half", "alone", "probe"), "clip": ("plain", "kept")},
    warm_start=(("half_right",),),
    warm_start_updates=400,
    budget=1,
    updates=120,
    groups=4,
    group_size=MEMBERS,
    minibatches=4,
    pretrained={"budget": 4},
)
ALONE = ARPO.with_choice(first="alone")
HALF = 'abstract: "improved performance using only half of the tool-use budget required by existing methods"'
SPREAD = 'AEPO, abstract: "a branch penalty on consecutive high-entropy tool-call steps to prevent over-branching"'
STUDY = Study(
    paper=Paper("ARPO (Dong et al.)", "https://arxiv.org/abs/2507.19849", 2025, checked="release"),
    question="Does branching where a tool's reply raises the entropy save tool calls?",
    claim="With branches after replies that raise the entropy a policy learns from fewer calls; AEPO's learns sooner.",
    arms={
        "alone": ALONE,
        "chance": ARPO.with_hparams(base=0.5, weight=0.0),
        "arpo": ARPO,
        "late": ARPO.with_hparams(lag=2),
        "aepo": ARPO.with_hparams(penalty=0.4, by_entropy=0.2).with_choice(first="probe", clip="kept"),
        "twelve": dataclasses.replace(ALONE, group_size=12),
    },
    method="arpo",
    metrics=(PAID, MEAN, SOLVED, CALLS, TREE, RISE),
    predictions=(
        Lower(PAID, "arpo", than="alone", source="paper", where=HALF),
        Lower(TREE, "aepo", than="arpo", source="paper", where=SPREAD),
        Higher(MEAN, "aepo", than="arpo", source="paper", where='AEPO, abstract: "consistently outperforms"'),
        Lower(PAID, "arpo", than="chance", source="theory", where="Copies of unsure episodes differ more in reward."),
        Lower(PAID, "arpo", than="late", source="theory", where="It reads the reply that it answers."),
        Lower(PAID, "arpo", than="twelve", source="theory", where="Copies compare answers to one reading."),
        AtLeast(RISE, "alone", 0.1, source="theory", where="Else nothing marks a turn.", condition=True),
    ),
    derived={PAID: partial(sum_until, metric=SOLVED, spent=CALLS), MEAN: partial(mean_over_updates, metric=SOLVED)}
    | {RISE: partial(mean_while, metric="rise", low=SOLVED), TREE: partial(mean_over_updates, metric="tree")},
)
