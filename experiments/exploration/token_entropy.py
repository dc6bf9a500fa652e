"""Does treatment by token entropy beat DAPO? HAPO on answers of up to 16 tokens.

Questions, start and DAPO are those of `tricks_long`: a letter, up to 14 idle words, a stop. A batch of eight groups is
used for two epochs of two minibatches. Let h be a token's log entropy less the quantile 0.8 of its batch. A positive h
is divided by the largest h, a negative one by the largest -h: all lie in [-1, 1], and a fifth of them above 0.

  dapo         reward minus the group's mean over its deviation; clip 0.2 below, 0.28 above; mean over tokens
  temperature  tokens are sampled, and scored, at temperature 1 + 0.05 h, with the statistics of the batch before
  scores       mean and deviation of a group are over its tokens; a group with an advantage of 5 or more is as in dapo
  weight       advantages times 1 + h: for h > 0 only where the ratio is beyond half of a bound, else only within both
  bounds       0.2 (1 - h) below if h < 0, 0.28 (1 + h) above if h > 0
  all          HAPO: all four
  released     all, as the release computes it: without the temperature, whose statistics go to the sampler under a name
               that it does not read; and with |h|, since a negative h is divided by the least h, a negative number
  high         dapo on tokens with h > 0 alone (forking tokens)

  python -m experiments token_entropy --seeds 20

Paper: HAPO (Liu et al.) 2025, https://arxiv.org/abs/2509.16591. Its release takes h from each minibatch anew, here from
the policy before the update. It clips at 0.2 on both sides, the paper as here.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from experiments.credit_assignment.tricks_long import MEAN, TOKEN
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.masked import keep
from jaxmarl_llm.rl.statistics import estimate
from jaxmarl_llm.rollout.policy import entropy_of
from jaxmarl_llm.studies.curves import mean_over_updates
from jaxmarl_llm.studies.study import AtLeast, Higher, Paper, Study
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Hparams, Parts
from jaxmarl_llm.training.records import Advantages, Experience, Run

CLIPPED, HEAT, LEAST = "mean clipped", 0.05, 1e-6
NO_BATCH = (0.0, 1e6, 1e6)  # the statistics before the first batch: every h is nearly 0


def spread(entropy: jax.Array, where: jax.Array) -> jax.Array:
    """[3]: the quantile 0.8 of log entropies in `where`, and the largest deviations from it, below and above."""
    log = jnp.log(jnp.maximum(entropy, LEAST))
    pivot = jnp.nanquantile(jnp.where(where, log, jnp.nan), 0.8, method="nearest")
    beyond = keep(log - pivot, where)
    return jnp.stack([pivot, jnp.maximum(-beyond.min(), LEAST), jnp.maximum(beyond.max(), LEAST)])


def relative(entropy: jax.Array, statistics: jax.Array) -> jax.Array:
    """h of these entropies, in [-1, 1]."""
    pivot, low, high = statistics
    beyond = jnp.log(jnp.maximum(entropy, LEAST)) - pivot
    return jnp.clip(jnp.where(beyond > 0, beyond / high, beyond / low), -1, 1)


def heat(logits: jax.Array, weight: jax.Array, statistics: jax.Array) -> jax.Array:
    """Logits over the temperature 1 + weight h, which is a constant for the gradient."""
    entropy = entropy_of(jax.nn.log_softmax(jax.lax.stop_gradient(logits), -1))
    return logits / (1 + weight * relative(entropy, statistics))[..., None]


def by_tokens(reward: jax.Array, usual: jax.Array, where: jax.Array, group: jax.Array, groups: int) -> jax.Array:
    """(R - mean) / deviation over the tokens of a group, or `usual` in a group where one is 5 or more; all [R, M]."""
    score = estimate(reward, where, group, groups, baseline="mean", scale="std")
    largest = jax.ops.segment_max(jnp.abs(score).ravel(), group.ravel(), groups)
    return jnp.where(largest[group] < 5, score, usual)


def estimate_advantages(experience: Experience, hparams: Hparams, state: jax.Array) -> Advantages:
    ((name, rows),), (acted, group, groups) = experience.rows.items(), experience.acts
    sampled, reward = experience.sampled[name], experience.episodes.total_reward
    of_row = lambda x: jnp.broadcast_to(x[rows.episode].reshape(-1, 1), sampled.mask.shape)
    usual = of_row(advantages.grpo(reward, acted, group, groups))
    where = sampled.mask & (usual != 0)  # rewards are 0 or 1: no advantage is 0 in a group that is not uniform
    entropy = experience.score(name).entropy
    h = relative(entropy, now := spread(entropy, sampled.mask))
    of_tokens = by_tokens(of_row(reward), usual, where, of_row(group), groups)
    return Advantages(
        {name: select(hparams, "scores", plain=usual, tokens=of_tokens)},
        state=now,
        trained={name: where & select(hparams, "tokens", all=True, high=h > 0)},
        extra={"h": {name: select(hparams, "sign", kept=h, lost=jnp.abs(h))}},
    )


def arm_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """The clipped surrogate with the arm's weights and bounds."""
    h, ratio = batch.extra["h"], jnp.exp(scores.logp - batch.behaviour_logp)
    low = hparams["clip_low"] * select(hparams, "bounds", plain=1.0, entropy=1 - jnp.minimum(h, 0))
    high = hparams["clip_high"] * select(hparams, "bounds", plain=1.0, entropy=1 + jnp.maximum(h, 0))
    beyond = (ratio <= 1 - low / 2) | (ratio >= 1 + high / 2)
    weight = select(hparams, "weight", plain=1.0, entropy=jnp.where(beyond == (h > 0), 1 + h, 1))
    given = scores.logp, batch.behaviour_logp, batch.advantage * weight, batch.mask
    return losses.ppo_clip(*given, clip_low=low, clip_high=high, dual_clip=10.0)


def heated_step(parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array) -> tuple:
    """The standard step with the arm's temperature, for sampling and for scores."""
    hook = Partial(heat, weight=select(hparams, "temperature", plain=0.0, entropy=HEAT), statistics=run.state)
    return step.on_policy_step(replace(parts, shaping=hook), run, hparams, key, number)


PARTS = {"temperature": "entropy", "scores": "tokens", "weight": "entropy", "bounds": "entropy"}
CHOICES = {"tokens": ("all", "high"), "sign": ("kept", "lost"), **{name: ("plain", x) for name, x in PARTS.items()}}
FIELDS: dict[str, Any] = {"advantage": estimate_advantages, "loss": arm_loss, "step": heated_step}
FIELDS |= {"init_state": lambda parts, key: jnp.array(NO_BATCH), "choices": CHOICES, "selection": {}}
DAPO = replace(TOKEN.with_hparams(clip_high=0.28), groups=8, minibatches=2, **FIELDS)
HAPO = DAPO.with_choice(**PARTS)
STUDY = Study(
    paper=Paper("HAPO (Liu et al.)", "https://arxiv.org/abs/2509.16591", 2025, checked="release"),
    question="Does treatment by token entropy beat DAPO?",
    claim="Temperature, scores, weights and bounds by token entropy together earn more than DAPO.",
    arms={"dapo": DAPO, **{name: DAPO.with_choice(**{name: option}) for name, option in PARTS.items()}, "all": HAPO}
    | {"released": HAPO.with_choice(temperature="plain", sign="lost"), "high": DAPO.with_choice(tokens="high")},
    method="all",
    metrics=(MEAN, "success", CLIPPED, "length/learner"),
    derived={x: partial(mean_over_updates, metric=y) for x, y in ((MEAN, "success"), (CLIPPED, "clipped/learner"))},
    predictions=(
        Higher(MEAN, "all", than="dapo", source="paper", where="abstract: HAPO 'consistently outperforms DAPO'"),
        Higher(MEAN, "all", than="high", source="paper", where="Table 1, second-hand: 50.04 against 47.43, 7B"),
        AtLeast(CLIPPED, "dapo", 0.01, source="theory", where="Bounds act. The level is ours.", condition=True),
    ),
)
