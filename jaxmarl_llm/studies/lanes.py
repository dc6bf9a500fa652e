"""Assignment of the arms and seeds of a study to programs, which train several of them at once."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.view.page import STUDY


@dataclasses.dataclass(frozen=True)
class Program:
    """Lanes that one compiled program trains side by side: every arm with every seed. The arms share one structure."""

    arms: Mapping[str, Recipe]
    seeds: tuple[int, ...]
    alone: bool
    """True for a pretrained model: the program has one arm and one seed."""
    added: bool = False
    """True if the seeds were added to a finished run of tiny policies: they have a folder of their own."""

    @property
    def recipe(self) -> Recipe:
        return next(iter(self.arms.values()))

    @property
    def lanes(self) -> list[tuple[str, int]]:
        return [(arm, seed) for arm in self.arms for seed in self.seeds]

    @property
    def lane_names(self) -> list[str]:
        """The arm and the seed of each lane, in words."""
        return [f"{arm}, seed {seed}" for arm, seed in self.lanes]

    @property
    def display_lanes(self) -> tuple[int, ...]:
        """Indices of the lanes whose games are recorded: the first seed of each arm."""
        return tuple(range(0, len(self.lanes), len(self.seeds)))

    @property
    def names(self) -> dict[str, str]:
        """{arm: name of its run}."""
        return {arm: self.folder + run_name(arm, self.seeds[0], self.alone) for arm in self.arms}

    @property
    def folder(self) -> str:
        return f"seeds_{self.seeds[0]}/" * self.added

    @property
    def name(self) -> str:
        """The names of its runs, joined by +, at a length that a file system takes."""
        return self.folder + join((run_name(arm, self.seeds[0], self.alone) for arm in self.arms), 200)


def join(names: Iterable[str], length: int) -> str:
    """The names, joined by +; beyond a length the first name and the number of the others."""
    first, *others = names
    whole = "+".join((first, *others))
    return whole if len(whole) <= length or not others else f"{first}+{len(others)} more"


def run_name(arm: str, seed: int, alone: bool) -> str:
    return f"{arm}-{seed}" if alone else arm


def programs(arms: Mapping[str, Recipe], seeds: Sequence[int], alone: bool, added: Sequence[int] = ()) -> list[Program]:
    """One program for each structure of the arms, with all seeds; one for each arm and seed if `alone`.

    `added` names the first seed of each addition to a finished run of tiny policies, whose seeds have their programs.
    """
    if alone:
        return [Program({arm: recipe}, (seed,), True) for arm, recipe in arms.items() for seed in seeds]
    shared: list[dict[str, Recipe]] = []
    for arm, recipe in arms.items():
        same = [part for part in shared if next(iter(part.values())).structure == recipe.structure]
        if same:
            same[0][arm] = recipe
        else:
            shared.append({arm: recipe})
    return [Program(part, now, False, now[0] in added) for now in split_seeds(seeds, added) for part in shared]


def split_seeds(seeds: Sequence[int], added: Sequence[int]) -> list[tuple[int, ...]]:
    """The seeds in parts, each of which begins with a seed in `added`, except the first one."""
    cuts = [0, *(i for i, seed in enumerate(seeds) if i and seed in added), len(seeds)]
    return [tuple(seeds[start:end]) for start, end in itertools.pairwise(cuts)]


def homes_of(out: Path, arm: str, seeds: Sequence[int], alone: bool) -> dict[int, Path]:
    """{seed: directory of its run} of an arm in a run directory, with those of added seeds."""
    try:
        added = json.loads((out / STUDY).read_bytes()).get("added", ())
    except (OSError, ValueError, AttributeError):
        added = ()
    parts = split_seeds(seeds, () if alone else added)
    folder = {seed: f"seeds_{part[0]}/" * (part[0] in added and not alone) for part in parts for seed in part}
    return {seed: out / (folder[seed] + run_name(arm, seed, alone)) for seed in seeds}
