"""An utterance critic as in ArCHer: Q and V of a seat's utterances, learned off policy from replayed games.

The critic is a separate network. It gives two V values before each utterance, and two Q values before its last token
for every token that may end it. It learns by temporal differences between consecutive utterances of a row. The target
of Q is the reward and the slow copy's V of the next utterance. The target of V is the slow copy's Q of an utterance a~
sampled from the present policy:

  Q(s, a) -> r + gamma V'(s'),  V(s) -> Q'(s, a~),  a~ ~ policy(s);  V' = 0 after the last

The policy learns from new utterances in the replayed states, with advantage min Q - min V and without a ratio.
`off_policy` is a recipe's step that trains both. All tokens of an utterance have its advantage. A reward in a turn in
which the seat is silent is not seen. Shapes: R rows of games, U utterances a row.

Paper: ArCHer (Zhou et al.) 2024, https://arxiv.org/abs/2402.19446, equations 3 and 4.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.keys import ESTIMATE, UPDATE, key_for
from jaxmarl_llm.methods import networks
from jaxmarl_llm.methods.networks import Network
from jaxmarl_llm.methods.replay import Ring, draw_update, empty, put
from jaxmarl_llm.rl.masked import Mean, mean_of
from jaxmarl_llm.rollout import utterances
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Hparams, Parts
from jaxmarl_llm.training.scoring import resample
from jaxmarl_llm.training.step import Part
from jaxmarl_llm.training.update import Learners


class Memory(struct.PyTreeNode):
    """The state of a recipe whose critic learns from a replay ring."""

    ring: Ring  # its advantages are rewards
    critic: Network


def empty_memory(parts: Parts, key: jax.Array, *, kept: int) -> Memory:
    """An empty replay ring for `kept` updates, and a fresh critic.

    The critic reads the rows of the policy set that learns; there must be exactly one such set.
    """
    (name,) = parts.learner_sets
    config = networks.config(parts, name)
    return Memory(empty(parts, key, kept=kept), networks.init(config, key, {"q": 2 * config.vocab_size, "v": 2}))


def by_utterance(parts: Parts, name: str, part: Part) -> Part:
    """The part with a row for each utterance (`utterances.split`); unchanged if utterances have one token."""
    layout = parts.rollout.layouts[name]
    if layout.max_sampled == 1:
        return part
    rows, said, batch = utterances.split(layout, part.rows, part.sampled, part.batch)
    return Part(rows, said, batch.replace(mask=batch.mask & said.mask))


def twins(parts: Parts, name: str, weights: Any, rows: Rows, said: SampledTokens) -> tuple[jax.Array, jax.Array]:
    """Both Q values of the utterances `said` and both V values before them, float32 [R, U, 2].

    Q is read before the last token of an utterance, from the outputs of that token.
    """
    read = networks.read(networks.config(parts, name), weights, rows, said)
    by_token = read["q"].reshape(*said.token.shape, 2, -1)
    q, v = jnp.take_along_axis(by_token, said.token[..., None, None], 3)[..., 0], read["v"]
    if parts.rollout.layouts[name].max_sampled == 1:
        return q, v
    last = jnp.maximum(said.mask.sum(1) - 1, 0)
    by_row = lambda x: x.reshape(len(rows.prompts.tokens), -1, 2)
    return by_row(q[jnp.arange(len(q)), last]), by_row(v[:, 0])


def _of_first(x: jax.Array, of_utterances: jax.Array) -> jax.Array:
    """The value at each utterance's first token, [R, U], for values x of tokens and any `of_utterances` [R, U, ...]."""
    return x.reshape(*of_utterances.shape[:2], -1)[..., 0]


def advantage(parts: Parts, name: str, critic: Network, rows: Rows, said: SampledTokens) -> jax.Array:
    """min Q - min V of the twins for the utterances `said`, float32 [R, U]."""
    q, v = twins(parts, name, critic.weights, rows, said)
    return q.min(-1) - v.min(-1)


def learn(
    parts: Parts,
    name: str,
    critic: Network,
    part: Part,
    anew: tuple[Rows, SampledTokens],
    gamma: jax.Array,
    rate: jax.Array,
    key: jax.Array,
) -> tuple[Network, dict[str, jax.Array]]:
    """One step of the critic on a replayed part `by_utterance`, whose advantages are rewards, and on the utterances
    `anew`."""
    q_slow, v_slow = twins(parts, name, critic.slow, *anew)
    mask, reward = (_of_first(x, q_slow) for x in (part.batch.mask, part.batch.advantage))
    after = jnp.pad((v_slow * mask[..., None])[:, 1:], ((0, 0), (0, 1), (0, 0)))
    towards = reward[..., None] + gamma * after

    def loss(weights: Any, batch: Any) -> tuple[Mean, dict]:
        part, towards, q_slow, mask = batch
        q, v = twins(parts, name, weights, part.rows, part.sampled)
        return mean_of(((q - towards) ** 2 + (v - q_slow) ** 2).sum(-1), mask), {}

    return networks.learn(critic, loss, (part, towards, q_slow, mask), rate, key)


def off_policy(
    parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array, *, steps: tuple[int, int]
) -> tuple[step.Run, step.Metrics]:
    """A recipe's step: plays, then makes steps[0] updates of the critic and steps[1] of the policy, each on a batch
    drawn from the ring.

    The recipe's estimator gives rewards by turn, and `init_state` is `empty_memory`. Hparams: `gamma`, `critic_rate`.
    """
    key, (name,) = key_for(key, UPDATE, number), parts.learner_sets
    games = step.collect_experience(parts, run, hparams, key, number)
    ring = put(run.state.ring, step.make_batches(parts, games.experience, games.advantages), number)

    def past(weights: Any, which: int, i: jax.Array) -> tuple[Part, tuple[Rows, SampledTokens], jax.Array]:
        key_kept, draw_key = jax.random.split(key_for(key, ESTIMATE, which, i))
        part = by_utterance(parts, name, draw_update(ring, name, key_kept))
        return part, resample(parts, weights, name, part.rows, part.sampled, draw_key), draw_key

    def criticise(critic: Network, i: jax.Array) -> tuple[Network, dict]:
        part, anew, key = past(run.learners.weights, 0, i)
        return learn(parts, name, critic, part, anew, hparams["gamma"], hparams["critic_rate"], key)

    def act(learners: Learners, i: jax.Array) -> tuple[Learners, dict]:
        part, (rows, said), key = past(learners.weights, 1, i)
        gain = advantage(parts, name, critic, rows, said)
        by_token = lambda x: jnp.broadcast_to(x.reshape(len(said.token), -1), said.token.shape)
        batch = part.batch.replace(
            token=said.token,
            behaviour_logp=said.behaviour_logp,
            advantage=by_token(gain),
            mask=by_token(_of_first(part.batch.mask, gain)) & said.mask,
        )
        return step.apply_update(parts, learners, hparams, {name: Part(rows, said, batch)}, key, {})

    critic, learnt = jax.lax.scan(criticise, run.state.critic, jnp.arange(steps[0]))
    learners, metrics = jax.lax.scan(act, run.learners, jnp.arange(steps[1]))
    metrics = jax.tree.map(jnp.mean, metrics | learnt) | games.metrics(parts)
    return run.replace(learners=learners, state=Memory(ring, critic)), metrics
