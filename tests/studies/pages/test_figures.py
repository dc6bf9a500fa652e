"""Figures of pages: no text is cut or covered, by matplotlib's own boxes; ranges, seeds and directions are shown."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.text import Text

import experiments
from jaxmarl_llm.studies.pages import figures
from jaxmarl_llm.studies.pages.about import Axis, axis_of, read_lines
from jaxmarl_llm.studies.pages.facets import BANDS, SHOWN, facets, styles_of
from jaxmarl_llm.studies.pages.forest import forest_figure
from jaxmarl_llm.studies.pages.panels import curves_figure
from jaxmarl_llm.studies.pages.results import FEW, collect, decisive, load
from jaxmarl_llm.studies.predictions import Higher, record_of

FOLDERS = sorted(file.parent for file in Path(experiments.__path__[0]).glob("results/*/results.json"))
# long names, many arms, many predictions, many panels, few seeds, one seed
WORST = ("punishment", "commons", "known_credit", "policies", "thoughts-smollm2", "comas-smollm2")
TALLEST = 12  # inches
HIGHER = {"source": "theory", "where": "a test"}


def drawn(folder):
    results = load(folder / "results.json")
    lines = read_lines(folder, results["study"])
    return [x for x in (forest_figure(results, lines), curves_figure(results, [decisive(results) or ""], lines)) if x]


def shown_texts(figure):
    """All texts that are drawn: a tick outside its axis has a label that is not."""
    hidden = set()
    for axis in (axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)):
        low, high = sorted(axis.get_view_interval())
        margin = 1e-9 * (high - low)
        for tick in axis.get_major_ticks():
            if not axis.axes.axison or not low - margin <= tick.get_loc() <= high + margin:
                hidden |= {tick.label1, tick.label2}
    every = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [text for text in every if text not in hidden and (text.axes is None or text.axes.axison)]


def faults(figure):
    """A sentence for each text that is cut or meets another one, and each legend that covers an axis."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer, page = canvas.get_renderer(), figure.bbox
    boxes = {text: text.get_window_extent(renderer).padded(-0.5) for text in shown_texts(figure)}
    cut = [text for text, x in boxes.items() if x.x0 < 0 or x.y0 < 0 or x.x1 > page.x1 or x.y1 > page.y1]
    met = [pair for pair in itertools.combinations(boxes, 2) if boxes[pair[0]].overlaps(boxes[pair[1]])]
    legends = [*figure.legends, *(panel.get_legend() for panel in figure.axes if panel.get_legend())]
    covers = [
        legend
        for legend, panel in itertools.product(legends, figure.axes)
        if panel.axison and legend.get_window_extent(renderer).padded(-0.5).overlaps(panel.bbox)
    ]
    assert boxes and (legends or figure.axes)
    return (
        [f"{text.get_text()!r} is cut" for text in cut]
        + [f"{a.get_text()!r} covers {b.get_text()!r}" for a, b in met]
        + [f"a legend covers an axis: {[x.get_text() for x in legend.get_texts()]}" for legend in covers]
        + [f"{figure.get_figheight():.1f} inches high"] * bool(figure.get_figheight() > TALLEST)
    )


@pytest.mark.parametrize(
    "folder",
    [pytest.param(x, id=x.name, marks=() if x.name in WORST else pytest.mark.long) for x in FOLDERS],
)
def test_no_text_of_a_published_figure_is_cut_or_covered(folder):
    assert [fault for figure in drawn(folder) for fault in faults(figure)] == []


def test_a_text_that_is_cut_or_covered_is_noticed():
    (figure,) = drawn(next(x for x in FOLDERS if x.name == "comas-smollm2"))
    figure.text(0.99, 0.5, "beyond the end")
    figure.axes[0].legend(loc="center")
    assert len(faults(figure)) == 2
    figure.axes[0].set_ylabel("letters " * 30)
    assert len(faults(figure)) > 2


def results_of(curves, predictions=(), seeds=8):
    """A results.json of {arm: {metric: [seeds, updates]}}, as far as figures read it."""
    return {
        **collect(curves),
        "study": "toy",
        "model": "tiny",
        "seeds": list(range(seeds)),
        "before": {},
        "predictions": [record_of(x) for x in predictions],
        "metrics": ["won"],
    }


def walks(seeds, arms=("a", "b"), updates=6):
    generator = np.random.default_rng(3)
    return {arm: {"won": np.clip(generator.normal(0.5, 0.4, (seeds, updates)), 0, 1)} for arm in arms}


@pytest.mark.parametrize("seeds", range(2, FEW + 1))
def test_each_of_few_seeds_is_drawn_in_place_of_a_band(seeds):
    curves = walks(seeds)
    figure = curves_figure(results_of(curves, seeds=seeds), ["won"], {})
    (panel,) = figure.axes
    lines = np.array([line.get_ydata() for line in panel.lines])
    assert len(lines) == 2 * (seeds + 1) and not panel.findobj(PolyCollection)
    for arm in curves.values():
        for seed in (*arm["won"], arm["won"].mean(0)):
            assert np.isclose(lines, seed, atol=1e-3).all(1).any()
    assert "single seeds" in figure.get_suptitle()


def test_two_seeds_follow_from_a_band_whose_run_did_not_keep_them():
    curves = walks(2)
    old = results_of(curves, seeds=2)
    for cells in old["curves"].values():
        del cells["won"]["seeds"]
    upper, lower, _ = (line.get_ydata() for line in curves_figure(old, ["won"], {}).axes[0].lines[:3])
    assert upper == pytest.approx(curves["a"]["won"].max(0), abs=1e-3)
    assert lower == pytest.approx(curves["a"]["won"].min(0), abs=1e-3)


def test_one_seed_is_its_curve_and_more_than_five_have_a_band():
    one, many = (curves_figure(results_of(walks(n), seeds=n), ["won"], {}).axes[0] for n in (1, FEW + 1))
    assert len(one.lines) == len(many.lines) == 2
    assert len(many.findobj(PolyCollection)) == 2
    assert "seeds" not in results_of(walks(FEW + 1))["curves"]["a"]["won"]


def test_a_band_stays_within_the_range_that_a_line_states():
    won = np.where(np.eye(8, 6), np.linspace(0, 0.5, 6), 1.0)  # one of eight seeds loses each update
    results = results_of({"a": {"won": won}})
    free, clipped = (
        np.concatenate([x.vertices[:, 1] for band in figure.axes[0].findobj(PolyCollection) for x in band.get_paths()])
        for figure in (curves_figure(results, ["won"], lines) for lines in ({}, {"won": "share of games won"}))
    )
    assert free.max() > 1
    assert clipped.max() <= 1 and clipped.min() >= 0 and len(clipped) == len(free)


def test_the_direction_and_chance_of_a_metric_are_shown():
    figure = curves_figure(results_of(walks(8)), ["won"], {"won": "share of games won, higher is better, chance 0.25"})
    (panel,) = figure.axes
    assert panel.get_ylabel() == "won (higher is better)"
    assert [x.get_text() for x in panel.get_legend().get_texts()] == ["a", "b", "chance"]
    assert np.ptp(panel.lines[-1].get_ydata()) == 0 and panel.lines[-1].get_ydata()[0] == 0.25


@pytest.mark.parametrize(
    ("line", "measured", "axis"),
    [
        ("chips that best responses win, lower is better", [0.3], Axis("lower is better")),
        ("points, 0 to 3, higher better", [0, 2.9], Axis("higher is better", 0, 3)),
        ("points, 0 to 3", [3.5], Axis()),  # the range cannot be true
        ("share of right answers (chance 0.125)", [0.5], Axis("", 0, 1, 0.125)),
        ("share of variance explained", [-4.0, 0.5], Axis()),
        ("accuracy of the last updates less that of the first", [0.1], Axis()),
        ("wealth, at least 0", [5.0], Axis("", 0)),
        ("the reader's value, at most 1", [0.5], Axis("", high=1)),
        ("updates until 90% are solved", [7], Axis()),
    ],
)
def test_a_line_states_an_axis(line, measured, axis):
    assert axis_of(line, measured) == axis


def test_a_metric_that_stays_the_same_in_every_arm_has_no_panel():
    curves = {arm: cells | {"flat": np.full((8, 6), len(arm))} for arm, cells in walks(8, ("a", "bc")).items()}
    results = results_of(curves)
    assert [panel.get_ylabel() for panel in curves_figure(results, ["won", "flat"], {}).axes] == ["won"]
    assert curves_figure(results, ["flat"], {}) is None
    assert figures.draw(results, {}, ["flat"]) == {figures.FOREST: None, figures.CURVES: None}
    assert (
        decisive(results | {"metrics": ["flat", "won"]}) == "won" and decisive(results | {"metrics": ["flat"]}) is None
    )


def test_compared_arms_share_a_panel_and_differ_in_style():
    arms = ["hub", *(f"spoke{i}" for i in range(9)), "left", "over"]
    stated = [Higher("won", "hub", than=f"spoke{i}", **HIGHER) for i in range(9)]
    panels = facets(results_of(walks(8, arms), predictions=stated), "won")
    for prediction in stated:
        assert any({*prediction.arms} <= {*panel} for panel in panels)
    assert {arm for panel in panels for arm in panel} == {*arms}
    styles = styles_of(panels)
    for panel in panels:
        assert 1 < len(panel) <= BANDS + 1 and len({styles[arm] for arm in panel}) == len(panel)


def test_arms_of_a_family_share_a_panel_and_a_figure_has_few_of_many_arms():
    results = results_of(walks(8, [f"{game}/{arm}" for game in ("maze", "rooms", "words") for arm in "abc"]))
    assert [{arm.split("/")[0] for arm in panel} for panel in facets(results, "won")] == [
        {"maze"},
        {"rooms"},
        {"words"},
    ]
    many = facets(results_of(walks(8, [f"arm{i}" for i in range(48)])), "won")
    assert sum(map(len, many)) == SHOWN


def test_without_matplotlib_there_are_no_figures(monkeypatch):
    """A run ends with its table all the same."""
    results = load(next(Path(experiments.__file__).parent.glob("results/*/results.json")))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert figures.draw(results, {}) == {}
