"""The behaviour of a player in a repeated 2x2 game: its opening, retaliation, forgiveness and alternation."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.masked import Mean


def fingerprints(moves: jax.Array, other: jax.Array) -> dict[str, Mean]:
    """Shares of rounds, as sums and counts, of the moves int [B, T] of a player and its opponent; action 0 cooperates.

      cooperation    all rounds: it cooperates
      opening        first rounds: it cooperates
      provocability  rounds after the other's first defection: it defects
      retaliation    rounds after it cooperated and the other defected: it defects
      forgiveness    rounds after it defected and the other had come back to cooperation: it cooperates
      alternation    rounds but the first: both do what they did not do in the round before
      coordination   all rounds: both do the same

    A case that did not occur has the count 0. Players that take turns alternate: in chicken the two exchange their
    moves, in the battle of the sexes they go to the other place together. After Akata et al., Playing repeated games
    with Large Language Models (2023), https://arxiv.org/abs/2305.16867; the definitions are ours.
    Raises ValueError unless both are [B, T].
    """
    if moves.ndim != 2 or moves.shape != other.shape:
        raise ValueError(f"Moves of both players are [episodes, rounds], got {moves.shape} and {other.shape}.")
    kind, met = moves == 0, other == 0
    last_kind, last_met, now = kind[:, :-1], met[:, :-1], kind[:, 1:]
    before = jnp.cumsum(~last_met, 1)  # the other's defections until the round before
    came_back = last_met[:, 1:] & ~last_met[:, :-1]
    changed = (now != last_kind) & (met[:, 1:] != last_met)
    every = jnp.ones_like(kind)
    return {
        "cooperation": _share(kind, every),
        "opening": _share(kind[:, :1], every[:, :1]),
        "provocability": _share(~now, (before == 1) & ~last_met),
        "retaliation": _share(~now, last_kind & ~last_met),
        "forgiveness": _share(now[:, 1:], ~last_kind[:, 1:] & came_back),
        "alternation": _share(changed, every[:, 1:]),
        "coordination": _share(kind == met, every),
    }


def answers(stages: jax.Array, seats: jax.Array, swapped: jax.Array) -> dict[str, jax.Array]:
    """Shares of a policy's answers int32 [stages, B, T, 2] in its own `seats` bool [B, 2].

    Answers are those of `environments.foresight.stages`. `swapped` bool or 0 and 1 [B]: action 0 is called by the
    second label.

      cooperation  of its moves, action 0
      first label  of its moves, those with the first label's name: far from 1/2 it goes by the label
      foresight    of its predictions, those that come true; not without predictions
    """
    *predicted, move = stages
    cases = {"cooperation": move == 0, "first label": move == jnp.asarray(swapped)[:, None, None]}
    cases |= {"foresight": predicted[0] == move[..., ::-1]} if predicted else {}
    return {name: (x & seats[:, None]).sum() / (seats.sum() * move.shape[1]) for name, x in cases.items()}


def _share(what: jax.Array, where: jax.Array) -> Mean:
    return Mean((what & where).sum(dtype=jnp.float32), where.sum(dtype=jnp.float32))
