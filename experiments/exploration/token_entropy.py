"""Does treatment by token entropy beat DAPO? HAPO on answers of up to 16 tokens.

Questions, start and DAPO are those of `tricks_long`: a letter, up to 14 idle words, a stop; two epochs a batch. Let h
be a token's log entropy less the median of its batch. A positive h is divided by the largest h, a negative one by the
largest -h, so that all lie in [-1, 1].

  dapo         reward minus the group's mean over its deviation; clip 0.2 below, 0.28 above; mean over tokens
  temperature  tokens are sampled, and scored, at temperature 1 + 0.05 h, with the statistics of the batch before
  scores       mean and deviation of a group are over its tokens; if any advantage then reaches 5, as dapo
  weight       advantages times 1 + h: for h > 0 only where the ratio is outside (0.9, 1.14), else only inside
  bounds       0.2 (1 - h) below if h < 0, 0.28 (1 + h) above if h > 0
  all          HAPO: all four
  released     all but the temperature: the release hands its statistics over under a name that its engine does not
               read, so that its temperature probably never acts
  high         dapo, on tokens with h > 0 alone (after DART-GUI)
  kept         dapo with an upper bound that keeps its gradient (AEPO)

  mean success  mean over all updates; `success` is that of the end
  range         mean of |h| over the tokens of a batch

  python -m experiments token_entropy --seeds 20

Papers: HAPO (Liu et al.) 2025, https://arxiv.org/abs/2509.16591, with 0.2 on both sides. DART-GUI 2025,
https://arxiv.org/abs/2509.23866 (abstract). AEPO (Dong et al.) 2025, https://arxiv.org/abs/2510.14545.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from experiments.credit_assignment.tricks_long import DAPO as BASE
from experiments.credit_assignment.tricks_long import GROUPS, MEAN
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.losses.records import bounded_exp
from jaxmarl_llm.rl.masked import keep, mean_of
from jaxmarl_llm.rl.statistics import first_informative
from jaxmarl_llm.rollout.policy import entropy_of
from jaxmarl_llm.studies.curves import mean_over_updates
from jaxmarl_llm.studies.study import AtLeast, Higher, Paper, Study
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Hparams, Parts
from jaxmarl_llm.training.records import Advantages, Experience, Run

RANGE, HEAT, LEAST = "range", 0.05, 1e-4
Statistics = dict[str, jax.Array]


def begin(parts: Parts, key: jax.Array) -> Statistics:
    """The median of log entropies, and the largest deviations below and above it: h is nearly 0."""
    return {"median": jnp.float32(0), "low": jnp.float32(1e6), "high": jnp.float32(1e6)}


def spread(entropy: jax.Array, where: jax.Array) -> Statistics:
    """The statistics of the tokens in `where`."""
    log = jnp.log(jnp.maximum(entropy, LEAST))
    middle = jnp.nanmedian(jnp.where(where, log, jnp.nan))
    beyond = keep(log - middle, where)
    return {"median": middle, "low": jnp.maximum(-beyond.min(), LEAST), "high": jnp.maximum(beyond.max(), LEAST)}


def relative(entropy: jax.Array, median: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """h of these entropies, in [-1, 1]."""
    beyond = jnp.log(jnp.maximum(entropy, LEAST)) - median
    return jnp.clip(jnp.where(beyond > 0, beyond / high, beyond / low), -1, 1)


def heat(logits: jax.Array, weight: jax.Array, statistics: Statistics) -> jax.Array:
    """Logits over the temperature 1 + weight h, which is a constant for the gradient."""
    entropy = entropy_of(jax.nn.log_softmax(jax.lax.stop_gradient(logits), -1))
    return logits / (1 + weight * relative(entropy, **statistics))[..., None]


def by_tokens(reward: jax.Array, where: jax.Array, group: jax.Array, groups: int) -> jax.Array:
    """(R - mean) / deviation [R, M], both over the tokens `where` [R, M] of the rows of a group; `reward` is [R]."""
    total = lambda x: jnp.zeros(groups).at[group].add(x)
    count, number = where.sum(1), jnp.maximum(total(where.sum(1)), 1)
    beyond = reward - (total(count * reward) / number)[group]
    deviation = jnp.sqrt(total(count * beyond**2) / number)[group]
    return jnp.where(where, (beyond / (deviation + 1e-6))[:, None], 0)


def estimate_advantages(experience: Experience, hparams: Hparams, state: Statistics) -> Advantages:
    ((name, rows),), (acted, group, groups) = experience.rows.items(), experience.acts
    sampled, reward = experience.sampled[name], experience.episodes.total_reward
    where = sampled.mask & first_informative(reward, acted, group, groups, kept=GROUPS)[rows.episode, 0]
    entropy = experience.score(name).entropy
    h = relative(entropy, **(now := spread(entropy, sampled.mask)))
    usual = jnp.where(where, advantages.grpo(reward, acted, group, groups)[rows.episode, 0], 0)
    of_tokens = by_tokens(reward.sum((1, 2))[rows.episode], where, group[rows.episode], groups)
    of_tokens = jnp.where(jnp.abs(of_tokens).max() >= 5, usual, of_tokens)
    return Advantages(
        {name: select(hparams, "scores", answers=usual, tokens=of_tokens)},
        state=now,
        trained={name: where & select(hparams, "tokens", all=True, high=h > 0)},
        extra={"h": {name: h}},
        metrics={RANGE: mean_of(jnp.abs(h), where).value},
    )


def arm_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """The clipped surrogate with the arm's weights and bounds."""
    h, low, high = batch.extra["h"], hparams["clip_low"], hparams["clip_high"]
    ratio = jax.lax.stop_gradient(bounded_exp(keep(scores.logp - batch.behaviour_logp, batch.mask)))
    outside = (ratio < 1 - low / 2) | (ratio > 1 + high / 2)
    weight = jnp.where(outside == (h > 0), 1 + h, 1)
    advantage = batch.advantage * select(hparams, "weight", one=1.0, entropy=weight)
    below = low * select(hparams, "bounds", one=1.0, entropy=1 - jnp.minimum(h, 0))
    above = high * select(hparams, "bounds", one=1.0, entropy=1 + jnp.maximum(h, 0))
    given = scores.logp, batch.behaviour_logp, advantage, batch.mask
    clip = partial(losses.ppo_clip, *given, clip_low=below, clip_high=above, dual_clip=10.0)
    return select(hparams, "upper", cuts=clip(), keeps=clip(keep_gradient=True))


def heated_step(parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array) -> tuple:
    """The standard step with the arm's temperature, for sampling and for scores."""
    hook = Partial(heat, weight=select(hparams, "temperature", one=0.0, entropy=HEAT), statistics=run.state)
    return step.on_policy_step(replace(parts, shaping=hook), run, hparams, key, number)


BY = ("one", "entropy")
CHOICES = {"temperature": BY, "weight": BY, "bounds": BY, "scores": ("answers", "tokens")}
CHOICES |= {"tokens": ("all", "high"), "upper": ("cuts", "keeps")}
FIELDS: dict[str, Any] = {"advantage": estimate_advantages, "loss": arm_loss, "step": heated_step, "init_state": begin}
DAPO = replace(BASE, choices=CHOICES, selection={}, **FIELDS)
PARTS = {"scores": "tokens", "weight": "entropy", "bounds": "entropy"}
RELEASED = DAPO.with_choice(**PARTS)
ONE = {name: DAPO.with_choice(**{name: option}) for name, option in {"temperature": "entropy", **PARTS}.items()}
ABSTRACT = 'abstract: "HAPO consistently outperforms DAPO across multiple model scales"'
STUDY = Study(
    paper=Paper("HAPO (Liu et al.)", "https://arxiv.org/abs/2509.16591", 2025, checked="release"),
    question="Does treatment by token entropy beat DAPO?",
    claim="Temperature, scores, weights and bounds by token entropy together earn more than DAPO.",
    arms={"dapo": DAPO, **ONE, "all": RELEASED.with_choice(temperature="entropy"), "released": RELEASED}
    | {"high": DAPO.with_choice(tokens="high"), "kept": DAPO.with_choice(upper="keeps")},
    method="all",
    metrics=(MEAN, "success", RANGE, "clipped/learner", "entropy/learner"),
    derived={MEAN: partial(mean_over_updates, metric="success")},
    predictions=(
        Higher(MEAN, "all", than="dapo", source="paper", where=ABSTRACT),
        AtLeast(RANGE, "dapo", 0.1, source="theory", where="Tokens of like entropy are treated alike.", condition=True),
    ),
)
