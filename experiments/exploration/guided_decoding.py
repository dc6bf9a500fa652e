"""Does decoding by a learnt value come near best of N, without training the policy? Value-augmented sampling on chains.

The frozen policy is a random network of a tiny policy's size, whose logits are multiplied by 18. It writes chains of
five letters out of six. A chain ends with a reward for the mean worth of its letters, or for its number of distinct
letters. Rewards are in deviations of the policy's own chains, and a letter's worth is drawn with the seed. A value
network for each reward begins as the policy with a head of zeros. It learns from 256 chains of the policy alone, by
TD(0.95) with discount 1, the value after each letter. All 7,776 chains are enumerated: rewards are exact.

Guided decoding reads the value after each of the three most probable letters. It adds beta times the value, less the
mean of the three, to their logits and removes the other letters. It reads four tokens a letter, with two heads seven.

  prior                    the frozen policy
  best_of_N                the best of N chains in worth, for N = 4, 16, 128; reads N tokens a letter
  beta_1, beta_3, beta_10  guided by worth; the release decodes with 3
  released                 as beta_3, and other letters keep their logits, as if their value were the mean
  variety                  guided by the number of distinct letters, with beta 3
  composed                 guided by both, with beta 3 each

  python -m experiments guided_decoding --seeds 20

Paper: Value Augmented Sampling (Han et al.) 2024, https://arxiv.org/abs/2405.06639. In the release the value after the
last token has no target, and a candidate that ends the text is judged by it. Here that value is trained as well.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.devices.compiling import OFTEN
from jaxmarl_llm.methods import networks
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rl import returns
from jaxmarl_llm.rl.masked import Mean, mean_of
from jaxmarl_llm.rollout.policy import NEVER, init_value, value
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, Higher, NotLower, Paper, Study
from jaxmarl_llm.training.setup import tiny

LETTERS, LENGTH, TOP, SHARP = 6, 5, 3, 18
SEEN, STEPS, BATCH, RATE, LAMBDA = 256, 400, 64, 2e-3, 0.95
WORTH, VARIETY, EXPLAINED = "worth", "variety", "explained"
CONFIG = replace(tiny(LETTERS + 1), tie_word_embeddings=False)
CHAINS = np.indices((LETTERS,) * LENGTH, np.int32).reshape(LENGTH, -1).T  # chains of one beginning stand in a row
BETA = {"beta_1": (1, 0), "beta_3": (3, 0), "beta_10": (10, 0), "variety": (0, 3), "composed": (3, 3)}
ARMS = "prior", "best_of_4", "best_of_16", "best_of_128", *BETA, "released"


def read(network: Any, texts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(logits [B, 1 + L, letters] of the next letter, values [B, 1 + L]) after each token of texts int32 [B, 1 + L]."""
    states, _ = decoder.forward(CONFIG, network["policy"], texts)
    logits = SHARP * decoder.logits(CONFIG, network["policy"], states)
    return logits[..., :LETTERS], value(network["value"], states)


def guide(logits: jax.Array, added: jax.Array, kept: bool = False) -> jax.Array:
    """Log-probabilities [chains] under logits plus `added`, the scaled value after each letter, less its mean over the
    TOP most probable letters. Other letters keep their logits if `kept`, else they are removed."""
    logp = jnp.zeros(1)
    for t in range(LENGTH):
        here = logits[:: LETTERS ** (LENGTH - t), t]  # [beginnings of t letters, letters]
        after = added[:: LETTERS ** (LENGTH - t - 1), t + 1].reshape(here.shape)
        top = here >= jax.lax.top_k(here, TOP)[0][:, -1:]
        guided = here + after - after.mean(1, keepdims=True, where=top)
        logp = (logp[:, None] + jax.nn.log_softmax(jnp.where(top, guided, here if kept else NEVER))).ravel()
    return logp


def learn(network: Any, texts: jax.Array, reward: jax.Array, key: jax.Array) -> Any:
    """The network after STEPS steps of TD(LAMBDA) on BATCH of the texts [N, 1 + L] with rewards [N] at their ends."""

    def error(network: Any, drawn: jax.Array) -> tuple[Mean, dict]:
        values, every = read(network, texts[drawn])[1], jnp.ones((BATCH, LENGTH + 1), bool)
        paid = jnp.zeros_like(values).at[:, -1].set(reward[drawn])
        target = jax.lax.stop_gradient(returns.gae(paid, values, every, lam=LAMBDA).value_target)
        return mean_of((values - target) ** 2, every), {}

    draw = lambda key: jax.random.randint(key, (BATCH,), 0, len(texts))
    step = lambda network, key: (networks.learn(network, error, draw(key), jnp.float32(RATE), key)[0], None)
    return jax.lax.scan(step, networks.new_network(network), jax.random.split(key, STEPS))[0].weights


def compare(key: jax.Array, hparams: Mapping[str, Any]) -> dict[str, dict[str, jax.Array]]:
    """{arm: metrics} of one seed."""
    begin, worth, draw, *learning = jax.random.split(key, 5)
    texts = jnp.pad(jnp.asarray(CHAINS), ((0, 0), (1, 0)), constant_values=LETTERS)  # a token before the first letter
    policy = {"policy": decoder.init(CONFIG, begin), "value": init_value(CONFIG)}
    logits, zeros = read(policy, texts)
    prior = guide(logits, zeros, kept=True)
    chance = jnp.exp(prior)
    distinct = jnp.array([len({*chain}) for chain in CHAINS.tolist()], jnp.float32)
    paid = jnp.stack([jax.random.normal(worth, (LETTERS,))[CHAINS].mean(1), distinct])
    paid = paid - (paid @ chance)[:, None]
    paid = paid / jnp.sqrt(paid**2 @ chance)[:, None]
    drawn = jax.random.categorical(draw, prior, shape=(SEEN,))
    values = [read(learn(policy, texts[drawn], paid[i, drawn], learning[i]), texts)[1] for i in range(2)]
    logp = {name: guide(logits, a * values[0] + b * values[1]) for name, (a, b) in BETA.items()}
    logp |= {"prior": prior, "released": guide(logits, 3 * values[0], kept=True)}
    means = {name: paid @ jnp.exp(x) for name, x in logp.items()}
    below = chance[order := jnp.argsort(paid[0])].cumsum()
    means |= {f"best_of_{n}": paid[:, order] @ (below**n - (below - chance[order]) ** n) for n in (4, 16, 128)}
    explained = [1 - chance @ ((values[i] - paid[i][:, None]) ** 2)[:, 1:].mean(1) for i in range(2)]
    return {name: {WORTH: x[0], VARIETY: x[1], EXPLAINED: explained[name == "variety"]} for name, x in means.items()}


BEST = 'abstract: "achieving comparable results to Best-of-128 with lower inference cost"; the margin is ours'
TILT = "With exact values of normal rewards beta 3 moves the mean by three deviations, and best of 16 by 1.77."
EXTENT = 'abstract: "composing several rewards and controlling the extent of each one during deployment time"'
TAIL = "Letters beyond the most probable ones are taken as average, and are not better than that."
LEARNT = "Values that explain nothing of the rewards cannot guide. The level is ours."
STUDY = Study(
    paper=Paper("Value Augmented Sampling (Han et al.)", "https://arxiv.org/abs/2405.06639", 2024, checked="release"),
    question="Does decoding by a learnt value come near best of N, without training the policy?",
    claim="Guided decoding earns about as much as the best of 128 chains, and heads for two rewards add up.",
    arms={name: Computed(compare, part=name, level=OFTEN) for name in ARMS},
    method="beta_3",
    metrics=(WORTH, VARIETY, EXPLAINED),
    predictions=(
        NotLower(WORTH, "beta_3", than="best_of_128", by=0.25, source="paper", where=BEST),
        Higher(WORTH, "beta_3", than="beta_1", source="paper", where=EXTENT),
        NotLower(WORTH, "composed", than="beta_3", by=0.5, source="paper", where=f"{EXTENT}; the margin is ours"),
        NotLower(VARIETY, "composed", than="variety", by=0.5, source="paper", where=f"{EXTENT}; the margin is ours"),
        Higher(WORTH, "beta_3", than="best_of_16", source="theory", where=TILT),
        Higher(WORTH, "beta_3", than="released", source="theory", where=TAIL),
        AtLeast(EXPLAINED, "beta_3", 0.2, source="theory", where=LEARNT, condition=True),
    ),
)
