"""A published comparison: a claim, the arms that test it, and what was predicted before any run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxmarl_llm.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Study:
    """A published comparison: what is claimed, and the arms that show it. `experiments` runs it."""

    paper: str
    claim: str
    """A sentence, written before any run."""
    arms: Mapping[str, Recipe]
    method: str
    """The arm that is the published method, or ours: what a real model trains with unless other arms are named."""
    metrics: tuple[str, ...]
    """What the table shows: metrics of the updates, over the last tenth of them, or `derived` ones."""
    stated: tuple[Mapping[str, Any], ...]
    """The directions claimed, as `experiments.results` reads them."""
    derived: Mapping[str, Callable[[Mapping[str, np.ndarray]], np.ndarray]] = dataclasses.field(default_factory=dict)
    """Of an arm's curves {metric: [seeds, updates]}: a number for each seed, [seeds]."""
