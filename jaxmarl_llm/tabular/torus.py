"""2x2 games on a torus: agents play their four neighbours with a single act. Acts are int32 [side, side], 0 or 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxmarl_llm.tabular import q_network as network
from jaxmarl_llm.tabular.q_learning import boltzmann

OBSERVATIONS = 32


def neighbours(x: jax.Array) -> jax.Array:
    """[side, side] -> [4, side, side]: the values above, right, below and left."""
    return jnp.stack([jnp.roll(x, shift, axis) for shift, axis in ((1, 0), (-1, 1), (-1, 0), (1, 1))])


def observe(act: jax.Array) -> jax.Array:
    """Observations int32 [side, side], 0 to 31: bits 0 to 3 are the neighbours' acts, bit 4 the own act."""
    return (jnp.append(neighbours(act), act[None], 0) << jnp.arange(5)[:, None, None]).sum(0)


def mean_payoff(act: jax.Array, payoff: jax.Array) -> jax.Array:
    """float32 [side, side]: mean payoff of an agent's four games; `payoff` is [own act, neighbour's act]."""
    ones = neighbours(act).mean(0)
    return payoff[act, 0] * (1 - ones) + payoff[act, 1] * ones


def dilemma(strength: float | jax.Array) -> jax.Array:
    """Payoffs float32 [own, other's] with C 0 and D 1: CC 1, DD 0, DC 1 + strength, CD -strength."""
    strength = jnp.asarray(strength, jnp.float32)
    return jnp.array([[1.0, 0.0], [1.0, 0.0]]) + strength * jnp.array([[0.0, -1.0], [1.0, 0.0]])


Played = tuple[jax.Array, network.Memory]  # actions [side, side], memory of transitions


def play_round(
    played: Played,
    number: jax.Array,
    key: jax.Array,
    table: jax.Array,
    payoff: jax.Array,
    temperature: jax.Array,
    owner: jax.Array | None = None,
) -> tuple[Played, dict[str, jax.Array]]:
    """(actions and memory after round `number`, its metrics): all agents act by the values of a Q-network, `table`
    float32 [observations, 2], at a temperature.

    With several networks `table` is [networks, observations, 2], and `owner` int32 [side, side] is a site's network.
    """
    (act, memory), seen = played, observe(played[0])
    value = table[seen] if owner is None else table[owner, seen]
    chance = jnp.exp(boltzmann(value, temperature))[..., 1]
    act = (jax.random.uniform(jax.random.fold_in(key, number), seen.shape) < chance).astype(jnp.int32)
    reward = mean_payoff(act, payoff)
    happened = (x.ravel() for x in (seen, act, reward, observe(act)))
    gap = jnp.abs(value[..., 1] - value[..., 0]).mean()
    measured = {"cooperation": 1 - act.mean(), "payoff": reward.mean(), "gap": gap}
    return (act, network.remember(memory, number, *happened)), measured
