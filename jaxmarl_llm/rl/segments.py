"""GAE on two time scales: of turns within a segment, and of segments. Steps and ``where`` as in ``returns``."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.masked import keep
from jaxmarl_llm.rl.returns import Discount, Number, Targets, credit_to_acts
from jaxmarl_llm.rl.shapes import check_shapes
from jaxmarl_llm.rl.statistics import check_option


class Hierarchical(NamedTuple):
    """Advantages and value targets [B,T,...] at the levels of ``gae_hierarchical``."""

    turn: Targets  # for the act of a turn
    segment: Targets  # for the choice of a segment, at its first turn, else 0
    switch: Targets  # for the choice to continue or switch, in every turn


def gae_hierarchical(
    reward: jax.Array,
    turn_value: jax.Array,
    segment_value: jax.Array,
    switch_value: jax.Array,
    begins: jax.Array,
    where: jax.Array,
    *,
    gamma: Number = 1.0,
    lam: Number = 1.0,
    segment_lam: Number = 1.0,
    last: jax.Array | None = None,
    discount: Discount = "steps",
) -> Hierarchical:
    """GAE on two time scales, for a seat that names a subgoal, keeps it for some turns and names the next: [B,T,...].

    A segment runs from a turn with ``begins`` (bool) to the next; the first turn of ``where`` always begins a segment.
    Three critics give the values U of a turn, V of a segment at its first turn, and W before the choice to switch.
    Next, ' marks the next turn, " the next segment, r is the reward, and d is that of ``returns``. After the end V" is
    0 or ``last`` [B,...]. The return of a segment is G = r + d G', and G = r + d V" in its last turn.

        turn     A = r + d U' - U + d lam A' within a segment, A = r + d V" - U in its last turn (no trace beyond it)
        segment  A = G - V + D segment_lam A", with D the product of the segment's d
        switch   A = G - W

    Targets are A plus the value, and values are constants. With one turn an episode each A is r less its value.
    Formulas of the release, where the option-critic's difference V - U for the switch is commented out. Raises
    ValueError for an unknown discount and for shapes that differ.

    Peng et al., HiPER: Hierarchical Reinforcement Learning with Explicit Credit Assignment for Large Language Model
    Agents (2026), https://arxiv.org/abs/2602.16165
    """
    check_shapes("where reward begins [B,T,...] last [B,...]", where, reward, begins, last)
    values = turn_value, segment_value, switch_value
    check_shapes("where turn_value segment_value switch_value [B,T,...]", where, *values)
    check_option("discount", discount, ("steps", "acts"))
    turn_value, segment_value, switch_value = (jax.lax.stop_gradient(keep(x, where)) for x in values)
    reward = credit_to_acts(reward, where)
    starts = where & (begins | (jnp.cumsum(where, axis=1) == 1))
    zero = jnp.zeros_like(turn_value[:, 0])
    after_end = zero if last is None else jax.lax.stop_gradient(last).astype(zero.dtype)

    def step_back(later: dict[str, jax.Array], now: tuple[jax.Array, ...]) -> tuple[dict[str, jax.Array], Any]:
        r, u, v, starts, counts, time = now
        passed = jnp.where(later["time"] < 0, 1, later["time"] - time) if discount == "steps" else 1
        d = jnp.power(jnp.asarray(gamma, u.dtype), passed)
        new = later["starts"]  # true if the next turn begins a segment or there is none
        to_end = r + d * jnp.where(new, later["v"], later["to_end"])
        whole = d * jnp.where(new, 1.0, later["whole"])
        values = {
            "turn": r + d * jnp.where(new, later["v"], later["u"]) - u + jnp.where(new, 0, d * lam * later["turn"]),
            "segment": jnp.where(starts, to_end - v + whole * segment_lam * later["segment"], later["segment"]),
            "to_end": to_end,
            "whole": whole,
            "u": u,
            "v": v,
            "starts": starts,
            "time": jnp.broadcast_to(time, u.shape),
        }
        carry = {name: jnp.where(counts, x, later[name]) for name, x in values.items()}
        return carry, (values["turn"], values["segment"], to_end)

    start = dict.fromkeys(("turn", "segment", "to_end", "whole", "u"), zero)
    start |= {"v": after_end, "starts": jnp.ones_like(where[:, 0]), "time": jnp.full(zero.shape, -1)}
    inputs = [jnp.moveaxis(x, 1, 0) for x in (reward, turn_value, segment_value, starts, where)]
    levels = jax.lax.scan(step_back, start, (*inputs, jnp.arange(where.shape[1])), reverse=True)[1]
    turn, segment, to_end = (jnp.moveaxis(x, 0, 1) for x in levels)
    targets = lambda x, value, where: Targets(keep(x, where), keep(x + value, where))
    return Hierarchical(
        targets(turn, turn_value, where),
        targets(segment, segment_value, starts),
        targets(to_end - switch_value, switch_value, where),
    )
