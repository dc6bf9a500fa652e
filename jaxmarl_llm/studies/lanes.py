"""Assignment of the arms and seeds of a study to programs, which train several of them at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxmarl_llm.training.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Program:
    """Lanes that one compiled program trains side by side: every arm with every seed. The arms share one structure."""

    arms: Mapping[str, Recipe]
    seeds: tuple[int, ...]
    alone: bool
    """True for a pretrained model: the program has one arm and one seed."""

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
        return {arm: run_name(arm, self.seeds[0], self.alone) for arm in self.arms}

    @property
    def name(self) -> str:
        return "+".join(self.names.values())


def run_name(arm: str, seed: int, alone: bool) -> str:
    return f"{arm}-{seed}" if alone else arm


def programs(arms: Mapping[str, Recipe], seeds: Sequence[int], alone: bool) -> list[Program]:
    """One program for each structure of the arms, with all seeds; one for each arm and seed if `alone`."""
    if alone:
        return [Program({arm: recipe}, (seed,), True) for arm, recipe in arms.items() for seed in seeds]
    shared: list[dict[str, Recipe]] = []
    for arm, recipe in arms.items():
        same = [part for part in shared if next(iter(part.values())).structure == recipe.structure]
        if same:
            same[0][arm] = recipe
        else:
            shared.append({arm: recipe})
    return [Program(part, tuple(seeds), False) for part in shared]
