"""The iterated donor game of two halves of agents, played by small networks that read traces.

A donor gives 0, 1/4, 1/2, 3/4 or all of its resources, and the recipient receives twice the gift. A donor sees a trace
of up to three steps. The first step is its recipient's last gift, and the next one is the last gift that the receiver
of this gift had made before. If fines are allowed, a donor may pay a tenth of its resources to take a fifth of the
recipient's; the trace then has a gift of 0. An agent is a network with one hidden layer, from the trace to an act.

Vallinder & Hughes, Cultural Evolution of Cooperation among LLM Agents (2024), https://arxiv.org/abs/2412.10270
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

AGENTS, START, HIDDEN = 12, 10.0, 8
SHARES = jnp.array([0.0, 0.25, 0.5, 0.75, 1.0])
UNKNOWN, FINES, STEPS = 5, 5, 3  # indices beside the shares: an unknown share; a fine instead of a gift


def meetings() -> np.ndarray:
    """int [12 rounds, 6 pairs, (donor, recipient)]: A_i meets B_(i + round), roles alternate; then all are reversed."""
    half = AGENTS // 2
    pairs = np.array([[(i, half + (i + r) % half) for i in range(half)] for r in range(half)])
    pairs[1::2] = pairs[1::2, :, ::-1]
    return np.concatenate([pairs, pairs[:, :, ::-1]])


def random_networks(key: jax.Array) -> dict[str, jax.Array]:
    """Weights of twelve random networks, {"hidden": [12, inputs, HIDDEN], "out": [12, HIDDEN + 1, acts]}."""
    keys, inputs = jax.random.split(key), STEPS * (UNKNOWN + 1)
    hidden = jax.random.normal(keys[0], (AGENTS, inputs, HIDDEN))
    return {"hidden": hidden, "out": jax.random.normal(keys[1], (AGENTS, HIDDEN + 1, len(SHARES) + 1))}


def images(traces: np.ndarray) -> np.ndarray:
    """The image of an agent with each trace, int [traces, steps], newest gift first: index of a share, int [traces].

    It is the reputation of the paper's release, read from the oldest gift to the newest: 1 less the distance of the
    gift from the image of its recipient. The oldest known gift is an image itself, and a stranger's image is 1.
    """
    image, whole = np.full(len(traces), UNKNOWN), len(SHARES) - 1
    for gift in traces.T[::-1]:
        judged = np.where(image == UNKNOWN, gift, whole - np.abs(gift - image))
        image = np.where(gift == UNKNOWN, image, judged)
    return np.where(image == UNKNOWN, whole, image)


def logits_of(net: dict, trace: jax.Array, steps: Any, fine: Any) -> jax.Array:
    """Logits [shares and FINES] of a donor that sees `steps` of a trace, int [STEPS]; -inf for a fine unless `fine`."""
    seen = jnp.where(jnp.arange(STEPS) < steps, trace, UNKNOWN)
    hidden = jnp.tanh(jax.nn.one_hot(seen, UNKNOWN + 1).ravel() @ net["hidden"])
    logits = jnp.append(hidden, 1.0) @ net["out"]
    return jnp.where(jnp.arange(FINES + 1) < FINES + fine, logits, -jnp.inf)


def draw_act(net: dict, trace: jax.Array, key: jax.Array, steps: Any, fine: Any) -> jax.Array:
    """A donor's act, int: the index of a share, or FINES."""
    return jax.random.categorical(key, logits_of(net, trace, steps, fine))


def play_game(nets: dict, pairs: jax.Array, key: jax.Array, steps: Any, fine: Any) -> tuple[jax.Array, jax.Array]:
    """(resources [12], mean share given) after the rounds of `pairs`, as `meetings` gives them."""

    def round_(state: tuple, at: tuple) -> tuple[tuple, jax.Array]:
        (owned, traces), (pair, key) = state, at
        donor, recipient = pair.T
        chosen = jax.vmap(partial(draw_act, steps=steps, fine=fine))(
            jax.tree.map(lambda x: x[donor], nets), traces[recipient], jax.random.split(key, len(pair))
        )
        fined = chosen == FINES
        share = jnp.where(fined, 0, SHARES[jnp.minimum(chosen, FINES - 1)])
        gift = share * owned[donor]
        cost, taken = jnp.where(fined, 0.1 * owned[donor], gift), jnp.where(fined, -0.2 * owned[recipient], 2 * gift)
        owned = owned.at[donor].add(-cost).at[recipient].add(taken)
        last = jnp.where(fined, 0, chosen)  # a fine is no gift
        traces = traces.at[donor].set(jnp.concatenate([last[:, None], traces[recipient, :-1]], 1))
        return (owned, traces), share.mean()

    start = jnp.full(AGENTS, START), jnp.full((AGENTS, STEPS), UNKNOWN)
    (owned, _), given = jax.lax.scan(round_, start, (pairs, jax.random.split(key, len(pairs))))
    return owned, given.mean()
