"""Fines: after a round each seat may pay to take points from one other seat (Fehr and Gaechter 2000).

Costly punishment, https://doi.org/10.1257/aer.90.4.980. Shapes: A seats, N actions. Action 0 fines nobody, action k
fines seat k - 1.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.base import Fields
from jaxmarl_llm.environments.helpers import choice
from jaxmarl_llm.text.grammar import Grammar


def fines(chosen: jax.Array, cost: float, fine: float) -> tuple[jax.Array, jax.Array]:
    """(fines, losses): fines int32 [A] as chosen (0: nobody, k: seat k - 1); losses float32 [A, 2], by fining and by
    being fined.

    A seat that fines itself or an unknown seat fines nobody.
    """
    seats = jnp.arange(len(chosen))
    chosen = jnp.where((chosen < 1) | (chosen > len(chosen)) | (chosen == seats + 1), 0, chosen)
    count = (chosen[None, :] == seats[:, None] + 1).sum(1)
    return chosen, -jnp.stack([cost * (chosen > 0), fine * count], 1).astype(jnp.float32)


def fine_rules(agents: int, cost: float, fine: float) -> str:
    return (
        f" Then each of you may fine one other player: it costs you {cost:g} and takes {fine:g} from them, in points, "
        f"and all are told who fined whom. Answer with nobody, player 1, ... or player {agents}, not yourself."
    )


def fine_grammar(agents: int) -> Grammar:
    return choice(("nobody", *(f"player {k}" for k in range(1, agents + 1))))


def fine_phrases(agents: int) -> Fields:
    """A field for each seat, with a phrase for each possible target of its fine."""
    names = ("nobody", *(f"player {k}" for k in range(1, agents + 1)))
    return tuple(tuple(f" Player {k} fined {name}." for name in names) for k in range(1, agents + 1))


def fine_legal(agents: int, actions: int) -> jax.Array:
    """bool [A, N]: any other seat, or nobody."""
    action, itself = jnp.arange(actions)[None, :], jnp.arange(agents)[:, None] + 1
    return (action <= agents) & (action != itself)
