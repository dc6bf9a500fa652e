"""Words for metrics that count until something is reached, such as `updates to 90%`, where a run never reaches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxmarl_llm.studies.pages.format import number
from jaxmarl_llm.studies.pages.results import has


def counts_of(results: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, str]:
    """{metric: the metric whose rise it counts}, as the run recorded it, else as about.toml says."""
    return {**about.get("counts", {}), **results.get("counts", {})}


def count_unreached(results: Mapping[str, Any], arm: str, metric: str, counts: Mapping[str, str]) -> tuple[int, int]:
    """The seeds of an arm that never reached what a metric of `counts` counts, and those that measured it."""
    limit, cells = results.get("censored", {}).get(metric), results["arms"][arm]
    if limit is None or metric not in counts or metric not in cells:
        return 0, 0
    values = [value for value in cells[metric]["per_seed"] if value is not None]
    return sum(value >= limit for value in values), len(values)


def tell_seeds(results: Mapping[str, Any], arm: str, metric: str, counts: Mapping[str, str]) -> str:
    """The values of a metric by seed, with `not reached` for a seed that never reached what it counts."""
    values, never = results["arms"][arm][metric]["per_seed"], count_unreached(results, arm, metric, counts)[0]
    if not never:
        return " ".join(map(number, values))
    limit = results["censored"][metric]
    return ", ".join("not reached" if value is not None and value >= limit else number(value) for value in values)


def tell_unreached(results: Mapping[str, Any], arm: str, metric: str, counts: Mapping[str, str]) -> str:
    """`not reached (0.61 at the end)` if no seed of an arm reached it, with the counted metric's mean; else empty."""
    never, seeds = count_unreached(results, arm, metric, counts)
    if not never or never < seeds:
        return ""
    cells, counted = results["arms"][arm], counts[metric]
    return "not reached" + (f" ({number(cells[counted]['mean'])} at the end)" if has(cells, counted) else "")
