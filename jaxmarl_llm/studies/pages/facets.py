"""The panels of a figure of curves: arms that are compared stand in one panel, and no panel has two arms that look
alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxmarl_llm.studies.pages.results import changes, predictions_of

# colours that colour-blind readers can tell apart
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
BANDS, SHOWN, PANELS = 4, 12, 6  # arms in a panel, arms in a figure, panels of a metric; at most


class Style(NamedTuple):
    """The look of an arm, the same in all panels."""

    color: str
    dash: str


STYLES = tuple(Style(color, DASHES[i % len(DASHES)]) for i, color in enumerate(OKABE_ITO))


def is_drawn(results: Mapping[str, Any], metric: str) -> bool:
    """True if a metric changes during the training of an arm."""
    return any(changes(cells[metric]) for cells in results["curves"].values() if metric in cells)


def facets(results: Mapping[str, Any], metric: str) -> list[list[str]]:
    """The arms of each panel, at most `BANDS`: all arms in one, or those that predictions compare beside each other.

    An arm that is compared with many stands in each of their panels. Arms without a prediction follow while the figure
    has fewer than `SHOWN` arms.
    """
    arms = [arm for arm, metrics in results["curves"].items() if metric in metrics]
    if len(arms) <= BANDS:
        return [arms]
    predictions = [x for x in predictions_of(results) if {*x.arms} <= {*arms}]
    pairs = [x.arms for x in predictions if x.metric == metric] or [x.arms for x in predictions]
    panels: list[list[str]] = []
    for pair in dict.fromkeys(pairs):
        shown = {arm for panel in panels for arm in panel}
        if len(shown | {*pair}) <= SHOWN:
            _place(panels, pair)
    for arm in arms:
        shown = {arm for panel in panels for arm in panel}
        if arm not in shown and len(shown) < SHOWN:
            _place(panels, (arm,))
    return _join(panels, {arm for pair in pairs for arm in pair})


def _join(panels: Sequence[list[str]], compared: Collection[str]) -> list[list[str]]:
    """The panels, in which no arm stands alone if there are others. A panel may get one arm more than `BANDS`."""
    joined = [panel for panel in panels if len(panel) > 1]
    for panel in panels:
        room = [other for other in joined if len(other) < BANDS]
        if len(panel) == 1 and room:
            room[-1].extend(panel)
        elif len(panel) == 1:
            joined.append(panel)
    if len(joined) > 1 and len(joined[-1]) == 1:
        *others, before, last = joined
        joined = [*others, before[:-1], [before[-1], *last]] if before[-1] not in compared else [*others, before + last]
    return joined


def _place(panels: list[list[str]], pair: Sequence[str]) -> None:
    """Adds compared arms to the panel that needs the fewest new ones, or to a new panel. A full figure stays.

    A single arm joins others of its family, `FAMILY/...`.
    """
    room = [panel for panel in panels if len({*panel, *pair}) <= BANDS]
    if len(pair) == 1:
        kin = [panel for panel in room if _family(pair[0]) in map(_family, panel)]
        kin = kin or (room if len(panels) == PANELS else [])
    else:
        kin = [panel for panel in room if {*panel} & {*pair}]
    if kin:
        panel = min(kin, key=lambda panel: len({*panel, *pair}))
        panel += [arm for arm in pair if arm not in panel]
    elif len(panels) < PANELS:
        panels.append([*pair])


def _family(arm: str) -> str:
    return arm.rpartition("/")[0].partition("/")[0]


def styles_of(panels: Iterable[Sequence[str]]) -> dict[str, Style]:
    """A style for each arm. Arms of one panel differ in colour, then in dashes; all arms differ while styles last."""
    panels, styles = list(panels), dict[str, Style]()
    for arm in dict.fromkeys(arm for panel in panels for arm in panel):
        beside = [styles[x] for panel in panels if arm in panel for x in panel if x in styles]
        dashes, uses = {style.dash for style in beside}, Counter(styles.values())
        cost = lambda style: (style in beside, uses[style], style.dash in dashes)  # noqa: B023, used at once
        styles[arm] = min(STYLES, key=cost)
    return styles
