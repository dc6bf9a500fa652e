"""Actions in gymnasium's spaces: reading them from texts, masks, and a default action for invalid answers.

https://gymnasium.farama.org/api/spaces
"""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np

try:
    from gymnasium import spaces
except ImportError:
    spaces = None  # type: ignore[assignment]

WHOLE = re.compile(r"[+-]?[0-9]+")  # int() also reads 1_0 and the digits of all scripts, and float() nan
DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def check_space(space: Any, agent: Any, readable: bool) -> None:
    """Raises ValueError for an object that is no space, and unless `readable` for a space that `read_action` cannot
    read."""
    if not isinstance(space, spaces.Space):
        raise ValueError(f"The action space of {agent!r} is no space of gymnasium's: {space!r}.")
    if not (readable or isinstance(space, spaces.Text) or bounds(space)):
        raise ValueError(
            f"{agent!r} acts in {space}, and only Discrete, MultiDiscrete, MultiBinary, Box and Text are read from an "
            "answer: give read=, a function of the agent and its answer that returns an action or raises ValueError."
        )


def bounds(space: Any) -> tuple[Any, Any] | None:
    """(low, high) of a space of numbers, both inclusive: scalars or arrays of its shape; None for other spaces."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + (space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + (space.nvec - 1)
    return (0, 1) if isinstance(space, spaces.MultiBinary) else None


def read_action(space: Any, text: str) -> Any:
    """An answer as an action: for Text the text, else the action's numbers in C order, separated by spaces or commas.

    A number is ASCII digits with an optional sign; in a Box of floats it may have a point and an exponent. Raises
    ValueError for any other text. Numbers out of bounds are accepted.
    """
    if isinstance(space, spaces.Text):
        return text
    decimal = np.issubdtype(space.dtype, np.floating)
    parts = re.split(r"\s*,\s*|\s+", text.strip(), flags=re.ASCII)
    if not all((DECIMAL if decimal else WHOLE).fullmatch(part) for part in parts):
        raise ValueError(f"{text!r} is not made of numbers.")
    if isinstance(space, spaces.Discrete):
        (number,) = map(int, parts)
        return number
    exact = [float(part) if decimal else int(part) for part in parts]
    try:
        with np.errstate(over="ignore"):
            numbers = np.array(exact, space.dtype)
    except OverflowError as error:
        raise ValueError(f"{text!r} has a number that {space} cannot hold.") from error
    if not (np.isfinite(numbers).all() if decimal else numbers.tolist() == exact):
        raise ValueError(f"{text!r} has a number that {space} cannot hold.")
    return numbers.reshape(space.shape)


def member(space: Any) -> Any:
    """A fixed action of the space: the numbers nearest 0, or in a space without numbers a draw from seed 0."""
    if ends := bounds(space):
        nearest = np.array(np.clip(np.zeros(space.shape), *ends), space.dtype)
        return int(nearest) if isinstance(space, spaces.Discrete) else nearest
    drawn = copy.deepcopy(space)
    drawn.seed(0)
    return drawn.sample()


def read_mask(space: Any, agent: Any, given: Any) -> np.ndarray | None:
    """A mask as bool [n], None without a mask. Raises ValueError unless it is n zeros and ones for Discrete(n)."""
    if given is None:
        return None
    mask = np.asarray(given) if isinstance(space, spaces.Discrete) else None
    if mask is None or mask.shape != (space.n,) or not np.isin(mask, (0, 1)).all():
        raise ValueError(
            f"The action mask of {agent!r} is {given!r}, and its action space is {space}: only a mask of n zeros and "
            "ones for Discrete(n) is read, so leave out any other."
        )
    return mask.astype(bool)


def legal_actions(space: Any, mask: np.ndarray) -> list[int]:
    """The actions of a Discrete space that a mask bool [n] allows."""
    return (np.flatnonzero(mask) + int(space.start)).tolist()
