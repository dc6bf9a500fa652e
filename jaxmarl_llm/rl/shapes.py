"""Shapes of arguments, checked by the letters of their legend while a program is traced: nothing more is computed."""

import re
from typing import Any

import chex
import jax.numpy as jnp

LEGEND = re.compile(r"([\w ]+)\[([^\]]*)\]")


def check_shapes(legend: str, *arguments: Any) -> None:
    """Raises ValueError, with the argument's name, unless all shapes fit: check_shapes("reward acted [B,T,A]", ...).

    The legend gives names and axes in the order of the arguments. A letter is one size in all of them, and ``...`` the
    same axes, or none. An argument that is None is left out. Inside a ``vmap`` shapes are those of one lane.
    """
    named = [(name, axes.split(",")) for names, axes in LEGEND.findall(legend) for name in names.split()]
    sizes: dict[str, Any] = {}
    before: list[str] = []
    for (name, axes), x in zip(named, arguments, strict=True):
        if x is None:
            continue
        known = [size for axis in axes for size in (sizes.get(axis, (...,)) if axis == "..." else [sizes.get(axis)])]
        shape = jnp.shape(x)
        try:
            chex.assert_shape(x, known)
        except AssertionError:
            beside = f", as {', '.join(before)}" if before else ""
            raise ValueError(f"{name} has shape {shape}, but it must be [{','.join(axes)}]{beside}.") from None
        front = axes.index("...") if "..." in axes else len(axes)
        back = len(shape) - len(axes[front + 1 :])
        sizes |= dict(zip(axes[:front], shape, strict=False)) | dict(zip(axes[front + 1 :], shape[back:], strict=True))
        if front < len(axes):
            sizes["..."] = shape[front:back]
        before.append(f"{name} has shape {shape}")
