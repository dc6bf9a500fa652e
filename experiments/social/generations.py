"""Do generations that copy their best members learn to give? Cultural evolution in the donor game.

Twelve agents meet in pairs. The donor gives 0, 1/4, 1/2, 3/4 or all of its resources, and the recipient receives twice
the gift. The donor sees a trace of up to three steps. The first step is its recipient's last gift, and the next one is
the last gift that the receiver of this gift had made before. In twelve rounds each agent meets each member of the other
half twice, once in each role. A generation plays two games; the second exchanges all roles. An agent's score is its
final resources of both games. Half of the agents survive, and noisy copies of them replace the other half.

An agent is a network with one hidden layer, from the trace to a share. The first generation is random. No gradient
is used, and the arms need no language model. A seed is a history.

  trace_3, trace_1, trace_0   the better half survives; donors see three steps, one or none
  random                      three steps; a random half survives
  fine                        as trace_3; a donor may pay a tenth of its resources to take a fifth of the recipient's

`wealth` is the mean of the resources after a game, 10 at its start. `given` is the mean share. Both are means over the
last tenth of the generations.

  python -m experiments generations --seeds 10

Paper: Cultural Evolution of Cooperation among LLM Agents (Vallinder & Hughes) 2024, https://arxiv.org/abs/2412.10270.
There the agents are language models that write strategies. Its release selects by twice the score of the second game;
here both games count.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.methods.generations import next_generation
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import Higher, Paper, Study

AGENTS, START, GENERATIONS, HIDDEN = 12, 10.0, 200, 8
SHARES = jnp.array([0.0, 0.25, 0.5, 0.75, 1.0])
UNKNOWN, FINES, STEPS = 5, 5, 3  # indices beside the shares: an unknown share; a fine instead of a gift


def meetings() -> np.ndarray:
    """int [12 rounds, 6 pairs, (donor, recipient)]: A_i meets B_(i + round), roles alternate; then all are reversed."""
    half = AGENTS // 2
    pairs = np.array([[(i, half + (i + r) % half) for i in range(half)] for r in range(half)])
    pairs[1::2] = pairs[1::2, :, ::-1]
    return np.concatenate([pairs, pairs[:, :, ::-1]])


def first_generation(key: jax.Array) -> dict[str, jax.Array]:
    """Weights of twelve random networks."""
    keys, inputs = jax.random.split(key), STEPS * (UNKNOWN + 1)
    hidden = jax.random.normal(keys[0], (AGENTS, inputs, HIDDEN))
    return {"hidden": hidden, "out": jax.random.normal(keys[1], (AGENTS, HIDDEN + 1, len(SHARES) + 1))}


def logits_of(net: dict, trace: jax.Array, steps: int, fine: jax.Array) -> jax.Array:
    """Logits [shares and FINES] of a donor that sees `steps` of a trace, -inf for a fine that is not allowed."""
    seen = jnp.where(jnp.arange(STEPS) < steps, trace, UNKNOWN)
    hidden = jnp.tanh(jax.nn.one_hot(seen, UNKNOWN + 1).ravel() @ net["hidden"])
    logits = jnp.append(hidden, 1.0) @ net["out"]
    return jnp.where(jnp.arange(FINES + 1) < FINES + fine, logits, -jnp.inf)


def acts(net: dict, trace: jax.Array, key: jax.Array, steps: int, fine: jax.Array) -> jax.Array:
    """A donor's action, int: the index of a share, or FINES."""
    return jax.random.categorical(key, logits_of(net, trace, steps, fine))


def game(nets: dict, pairs: jax.Array, key: jax.Array, steps: int, fine: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(resources [12], mean share given) after twelve rounds."""

    def round_(state: tuple, at: tuple) -> tuple[tuple, jax.Array]:
        (owned, traces), (pair, key) = state, at
        donor, recipient = pair.T
        chosen = jax.vmap(partial(acts, steps=steps, fine=fine))(
            jax.tree.map(lambda x: x[donor], nets), traces[recipient], jax.random.split(key, len(pair))
        )
        fined = chosen == FINES
        gift = jnp.where(fined, 0, SHARES[jnp.minimum(chosen, FINES - 1)]) * owned[donor]
        cost, taken = jnp.where(fined, 0.1 * owned[donor], gift), jnp.where(fined, -0.2 * owned[recipient], 2 * gift)
        owned = owned.at[donor].add(-cost).at[recipient].add(taken)
        last = jnp.where(fined, 0, chosen)  # a fine is no gift
        traces = traces.at[donor].set(jnp.concatenate([last[:, None], traces[recipient, :-1]], 1))
        return (owned, traces), jnp.where(fined, 0, SHARES[jnp.minimum(chosen, FINES - 1)]).mean()

    start = jnp.full(AGENTS, START), jnp.full((AGENTS, STEPS), UNKNOWN)
    (owned, _), given = jax.lax.scan(round_, start, (pairs, jax.random.split(key, len(pairs))))
    return owned, given.mean()


def history(key: jax.Array, hparams: Mapping[str, Any], *, steps: int = 3, selection: Any = "top") -> dict:
    """Curves over the generations, {metric: [generations]}."""
    start_key, key = jax.random.split(key)
    first = jnp.asarray(meetings())

    def generation(nets: dict, key: jax.Array) -> tuple[dict, dict]:
        first_key, second_key, select = jax.random.split(key, 3)
        owned, given = jax.vmap(game, (None, 0, 0, None, None))(
            nets, jnp.stack([first, first[:, :, ::-1]]), jnp.stack([first_key, second_key]), steps, hparams["fine"]
        )
        how: dict = {"survivors": AGENTS // 2, "noise": hparams["noise"], "selection": selection}
        new, _ = next_generation(nets, owned.sum(0), select, **how)
        return new, {"wealth": owned.mean(), "given": given.mean()}

    _, curves = jax.lax.scan(generation, first_generation(start_key), jax.random.split(key, GENERATIONS))
    return curves


NUMBERS = {"noise": 0.1, "fine": 0.0}
SEEN = {f"trace_{steps}": Computed(partial(history, steps=steps), NUMBERS, GENERATIONS) for steps in (3, 1, 0)}
STUDY = Study(
    paper=Paper(
        "Cultural Evolution of Cooperation (Vallinder & Hughes)",
        "https://arxiv.org/abs/2412.10270",
        2024,
        checked="release",
    ),
    question="Do generations that copy their best learn to give?",
    claim="With traces and selection by success agents end richer than without either; a fine makes them richer still.",
    arms=SEEN
    | {
        "random": Computed(partial(history, selection="random"), NUMBERS, GENERATIONS),
        "fine": Computed(history, {**NUMBERS, "fine": 1.0}, GENERATIONS),
    },
    method="trace_3",
    metrics=("wealth", "given"),
    predictions=(
        Higher(
            "wealth",
            "trace_3",
            than="trace_0",
            source="theory",
            where="Without a trace a gift earns no reputation, so selection by wealth removes giving at once.",
        ),
        Higher(
            "wealth",
            "trace_3",
            than="random",
            source="theory",
            where="Inference: giving to those that gave pays only if wealth selects. The notes derive the reverse: a "
            "gift costs its donor.",
        ),
        Higher(
            "wealth",
            "trace_3",
            than="trace_1",
            source="theory",
            where="One step of the trace does not tell a justified refusal from greed.",
        ),
        Higher(
            "wealth",
            "fine",
            than="trace_3",
            source="theory",
            where="Inference: fines of agents that keep all make keeping costly. The abstract reports a gain for one "
            "of three language models.",
        ),
    ),
    x="generation",
)
