"""Does a share of the common reward by agreement of ranks teach a memory better than equal shares? CoMAM.

A builder keeps two of four facts, and a reader is asked for one of them (`FactMemory`). Two facts were heard often, 2
to 8 times, and two once; one is on a plan. The question is about that one in nine of ten deals. The builder's local
reward is the share of mentions it keeps. So it is paid for the fact asked for in half of the deals. The reader's local
reward is for the right place and its value, or "neither". The common reward is the right answer, one of four values.
Policies have imitated a builder that keeps any facts, and a reader that names any place in every second game. With
groups of eight episodes of a deal, an agent is paid r_n = local_n + w_n right, normalised by agent and group (GRPO).

  local    w = 0
  equal    w = 1/2 for both
  ranked   w is the softmax over agents of v_n, the NDCG of the group's answers in the order of local rewards. It is the
           mean over orders of equal rewards (published; its ties are not described)
  tau      as ranked, with Kendall's tau in place of the NDCG
  global   r_n = right alone

  right      share of right answers: .95 for the best builder with a reader without errors, .63 if it keeps mentions
  known      share of games in which the asked fact is kept
  coverage   mean share of mentions that are kept
  spread     standard deviation over groups of the builder's w, mean over updates
  share      mean w of the builder

  python -m experiments memory_team --seeds 20

Paper: CoMAM (Mao et al.) 2026, https://arxiv.org/abs/2603.12631. The abstract was read, and the formulas second-hand.
Its third agent, that writes a profile, is left out.
"""

from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.teams.fact_memory import FactMemory
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.rewards import kendall
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import mean_over_updates
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

RIGHT, KNOWN, COVERAGE, SPREAD, SHARE = "right", "known", "coverage", "spread", "share"


def ndcg(score: jax.Array, gain: jax.Array) -> jax.Array:
    """NDCG of gains [..., n] in falling order of scores [..., n], the mean over orders of equal scores: [...].

    Without gains it is 1, for any order is as good.
    """
    discount = 1 / jnp.log2(jnp.arange(score.shape[-1]) + 2.0)
    total = jnp.concatenate([jnp.zeros(1), jnp.cumsum(discount)])
    above = (score[..., None, :] > score[..., :, None]).sum(-1)
    equal = (score[..., None, :] == score[..., :, None]).sum(-1)
    by_score = (gain * (total[above + equal] - total[above]) / equal).sum(-1)
    best = -jnp.sort(-gain, -1) @ discount
    return jnp.where(best > 0, by_score / jnp.where(best > 0, best, 1), 1)


def shares(local: jax.Array, right: jax.Array, hparams: Hparams) -> jax.Array:
    """w [groups, members, 2] of each agent, from local rewards [groups, members, 2] and answers [groups, members]."""
    by_agent, answers = jnp.moveaxis(local, -1, 1), jnp.broadcast_to(right[:, None], (len(right), 2, right.shape[1]))
    agreement = lambda measure: jax.nn.softmax(measure(by_agent, answers), -1)[:, None]
    w = select(
        hparams, "share", local=0.0, equal=0.5, ranked=agreement(ndcg), tau=agreement(kendall), **{"global": 1.0}
    )
    return jnp.broadcast_to(w, local.shape)


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    paid = experience.episodes.reward.sum(1)  # [episodes, seats, components]
    local = jnp.stack([paid[:, 0, 0], paid[:, 1, 1]], -1).reshape(experience.groups, -1, 2)
    right = paid[:, 0, 2].reshape(experience.groups, -1)
    w = shares(local, right, hparams)
    alone = select(hparams, "share", local=1.0, equal=1.0, ranked=1.0, tau=1.0, **{"global": 0.0})
    total = (alone * local + w * right[..., None]).reshape(-1, 1, 2)
    acted = experience.episodes.acted
    first = acted & (jnp.cumsum(acted, 1) == 1)
    credit = advantages.grpo(jnp.where(first, total, 0), *experience.acts, per_agent=True)
    return Advantages(credit, metrics={SHARE: w[:, 0, 0].mean(), "deviation": w[:, 0, 0].std()})


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    """Means over games."""
    paid, measured = episodes.reward.sum(1), episodes.measured
    assert measured is not None
    values = {RIGHT: paid[:, 0, 2], COVERAGE: paid[:, 0, 0], KNOWN: measured[:, :, 0, 0].sum(1)}
    return {name: mean_of_kept(episodes, x) for name, x in values.items()}


LOCAL = Recipe(
    FactMemory(),
    seats=(("builder", "reader"),),
    advantage=estimate_advantages,
    hparams={"learning_rate": 2e-3},
    choices={"share": ("local", "equal", "ranked", "tau", "global")},
    warm_start=(("unsure", "unsure"),),
    budget=1,
    updates=120,
    groups=16,
    group_size=8,
    measure=measure,
    pretrained={"budget": 4},
)
CREDIT = (
    "abstract: \"quantify each agent's contribution via group-level ranking consistency between local and global "
    'rewards, treating them as adaptive weights to assign global credit and integrate local-global rewards"'
)
ALONE = 'abstract: "independent optimization on local agents hardly guarantees the global system performance"'
PULLS = "Coverage must pull away from the answer, or local rewards are enough: half of the facts asked for are covered."
VARIES = "Weights that do not vary are equal shares. The level is ours."
ROOM = "A builder with .95 leaves nothing to gain. The level is ours."
STUDY = Study(
    paper=Paper("CoMAM (Mao et al.)", "https://arxiv.org/abs/2603.12631", 2026, checked="abstract"),
    question="Does a share of the common reward by agreement of ranks teach a memory best?",
    claim="A share of the common reward by agreement of ranks beats local rewards alone and equal shares.",
    arms={name: LOCAL.with_choice(share=name) for name in LOCAL.choices["share"]},
    method="ranked",
    metrics=(RIGHT, KNOWN, COVERAGE, SPREAD, SHARE),
    predictions=(
        Higher(RIGHT, "ranked", than="local", source="paper", where=ALONE),
        Higher(RIGHT, "ranked", than="equal", source="paper", where=CREDIT),
        AtMost(KNOWN, "local", 0.6, source="theory", where=PULLS, condition=True),
        AtLeast(SPREAD, "ranked", 0.01, source="theory", where=VARIES, condition=True),
        AtMost(RIGHT, "equal", 0.92, source="theory", where=ROOM, condition=True),
    ),
    derived={SPREAD: partial(mean_over_updates, metric="deviation")},
)
