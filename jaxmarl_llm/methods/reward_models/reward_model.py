"""A reward model trained on pairs: a separate network with a score, and a ring of the pairs that it was shown.

It reads its own texts, int32 [..., L], made of a game's arrays (e.g. `Replies.judged`: question, reference, reply). So
its input is in no row of a policy, and no policy sees it. A recipe keeps it in its state:

  init_state = lambda parts, key: reward_model.init(CONFIG, key, kept=5, pairs=groups)
  f = reward_model.score(CONFIG, model.network.weights, texts); reward = jax.nn.sigmoid(f)
  model = reward_model.remember(model, pairs, valid)
  model, metrics = reward_model.learn(CONFIG, model, rate, key, last=1)

Only differences of scores are trained (`losses.pairwise_logistic`). The level of f, and with it sigmoid(f), can drift
while the ranking is perfect. Shapes: P pairs of an update, L tokens of a text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.judged.replies import Asked, Replies
from jaxmarl_llm.methods import networks
from jaxmarl_llm.methods.networks import Network
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.training.recipe import Hparams
from jaxmarl_llm.training.records import Arranged
from jaxmarl_llm.training.setup import tiny


class RewardModel(struct.PyTreeNode):
    network: Network
    pairs: jax.Array  # int32 [kept, P, 2, L]: the better text, then the worse
    valid: jax.Array  # bool [kept, P]
    number: jax.Array  # int32, number of updates that have shown pairs


class Judge(struct.PyTreeNode):
    """A reward model after its training."""

    weights: Any
    accuracy: jax.Array  # float32, the share of held-out pairs that it orders rightly


def config(vocabulary: int, length: int) -> Config:
    """The configuration of a reward model of a tiny policy's size, for texts of `length` tokens."""
    return dataclasses.replace(tiny(vocabulary), max_position_embeddings=length)


def init(config: Config, key: jax.Array, *, pairs: int, kept: int = 1) -> RewardModel:
    """A random reward model, with a ring for `pairs` pairs of each of the last `kept` updates. Raises ValueError unless
    there is room for one."""
    if min(pairs, kept) < 1:
        raise ValueError(f"A reward model keeps at least one pair of one update, not {pairs} of {kept}.")
    ring = jnp.zeros((kept, pairs, 2, config.max_position_embeddings), jnp.int32)
    return RewardModel(networks.init(config, key, {"score": 1}), ring, jnp.zeros((kept, pairs), bool), jnp.int32(0))


def score(config: Config, weights: Any, texts: jax.Array) -> jax.Array:
    """f of texts int32 [..., L], float32 [...]: the head's output after the last token."""
    return networks.read_last(config, weights, texts)["score"][..., 0]


def ask(hparams: Hparams, state: Any, key: jax.Array, number: jax.Array, *, game: Replies, groups: int) -> Arranged:
    """A recipe's `arrange`: draws a question for each group uniformly, and the estimator knows it as well."""
    task = jax.random.randint(key, (groups,), 0, game.tasks.size)
    return Arranged(deal=Asked(task, jnp.zeros(groups, jnp.int32)))


def first(values: jax.Array, where: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(the first value of each row of `values` [P, G] at a true entry of `where`, [P]; true if there is one, bool [P]).
    It chooses pairs from groups."""
    return jnp.take_along_axis(values, where.argmax(1)[:, None], 1)[:, 0], where.any(1)


def corrupt(
    game: Replies, task: jax.Array, reply: jax.Array, key: jax.Array, tries: int = 3
) -> tuple[jax.Array, jax.Array]:
    """(the replies int32 [P] with another number, drawn up to `tries` times; true if one is wrong, bool [P])."""
    other = jax.random.randint(key, (len(reply), tries), 0, len(game.tasks.answers))
    replies = game.reply(jnp.repeat(game.parts(reply)[0][:, None], tries, 1), other)
    return first(replies, other != game.truth(task)[:, None])


def draw_preference(key: jax.Array, worth: jax.Array, sure: float) -> jax.Array:
    """The preference of a Bradley-Terry person between two things worth float32 [..., 2], as int32 [..., 2]: index
    of the preferred thing, then of the other. The first is preferred with probability sigmoid(sure * difference in
    worth)."""
    chance = jax.nn.sigmoid(sure * (worth[..., 0] - worth[..., 1]))
    second = (jax.random.uniform(key, chance.shape) >= chance).astype(jnp.int32)
    return jnp.stack([second, 1 - second], -1)


def remember(model: RewardModel, pairs: jax.Array, valid: jax.Array) -> RewardModel:
    """The model with an update's pairs int32 [P, 2, L] in place of the oldest. Pairs that are not `valid`, bool [P],
    lack a text and are never learned."""
    slot = model.number % len(model.valid)
    return model.replace(
        pairs=model.pairs.at[slot].set(pairs), valid=model.valid.at[slot].set(valid), number=model.number + 1
    )


def learn(
    config: Config, model: RewardModel, rate: Any, key: jax.Array, *, last: Any = 1
) -> tuple[RewardModel, dict[str, jax.Array]]:
    """(model, metrics) after one step of Adam on the pairs of the `last` updates, or on all pairs that are kept."""
    kept = len(model.valid)
    age = (model.number - 1 - jnp.arange(kept)) % kept
    valid = model.valid & (age < last)[:, None]
    flat = model.pairs.reshape(-1, *model.pairs.shape[2:]), valid.ravel()
    network, metrics = _learn(config, model.network, *flat, rate, key)
    return model.replace(network=network), metrics


def pretrain(
    config: Config, network: Network, key: jax.Array, draw: Callable[[jax.Array], jax.Array], *, steps: int, rate: float
) -> Network:
    """The network after `steps` of Adam, each on the pairs draw(key) int32 [n, 2, L]. The rate falls linearly to 0, and
    the optimiser is then reset."""

    def train_step(network: Network, number: jax.Array) -> tuple[Network, None]:
        subkey = jax.random.fold_in(key, number)
        pairs = draw(subkey)
        falling = rate * (1 - number / steps)
        return _learn(config, network, pairs, jnp.ones(len(pairs), bool), falling, subkey)[0], None

    taught = jax.lax.scan(train_step, network, jnp.arange(steps))[0].weights
    return networks.new_network(taught)


def _learn(
    config: Config, network: Network, pairs: jax.Array, valid: jax.Array, rate: Any, key: jax.Array
) -> tuple[Network, dict[str, jax.Array]]:
    def loss(weights: Any, batch: Any) -> tuple[Mean, dict[str, Mean]]:
        pairs, valid = batch
        f = score(config, weights, pairs)
        return losses.pairwise_logistic(f[:, 0], f[:, 1], valid)

    return networks.learn(network, loss, (pairs, valid), rate, key)
