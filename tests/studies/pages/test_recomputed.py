"""Every verdict, interval and status on every page, computed again from results.json by other code: plain loops."""

import itertools
import json
import math
import re
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata

FILES = sorted((Path(__file__).parents[3] / "experiments/results").glob("*/results.json"))
JUDGED = [file for file in FILES if json.loads(file.read_text())["predictions"]]


def unfit(file):
    return "unfit" in tomllib.loads(file.with_name("about.toml").read_text())


def sums_of_signs(values):
    found = np.zeros(1)
    for x in values:
        found = np.concatenate([found + x, found - x])
    return np.sort(found)


@cache
def two_sided(*differences):
    """The share of sign patterns whose sum is at least as far from 0: pairs of sums of the two halves."""
    half = len(differences) // 2
    left, right = sums_of_signs(differences[:half]), sums_of_signs(differences[half:])
    far = abs(math.fsum(differences)) - 1e-12 * sum(map(abs, differences))
    least = np.searchsorted(right, -far - left, "right").sum()
    least += (len(right) - np.searchsorted(right, far - left, "left")).sum()
    return 1.0 if far <= 0 else int(least) / 2 ** len(differences)


def sides(record, difference):
    by = record.get("by", 0.0)
    above, below = [x - by for x in difference], [-x - by for x in difference]
    if "bound" in record:
        bound = record["bound"]
        above, below = [x - bound for x in difference], [bound - x for x in difference]
    return {
        "Higher": [above], "Lower": [below], "AtLeast": [above], "AtMost": [below],
        "NotLower": [[x + by for x in difference]], "NotHigher": [[by - x for x in difference]],
        "Within": [[x + by for x in difference], [by - x for x in difference]],
    }[record["kind"]]  # fmt: skip


def raw(record, results):
    """The differences of a prediction, seed by seed, as they are and as they are compared."""
    arms = [record["arm"], *([record["than"]] if "than" in record else [])]
    nothing = {"per_seed": [None] * len(results["seeds"])}
    columns = [results["arms"].get(arm, {}).get(record["metric"], nothing)["per_seed"] for arm in arms]
    rows = [row for row in zip(*columns, strict=True) if None not in row]
    plain = [row[0] - (row[1] if len(row) > 1 else 0) for row in rows]
    limit = results["censored"].get(record["metric"])
    if limit is None or len(arms) == 1 or "by" in record:
        return plain, plain
    ranks = rankdata([min(row[i], limit) for i in (0, 1) for row in rows])
    return plain, [ranks[i] - ranks[i + len(rows)] for i in range(len(rows))]


def verdicts(results):
    ps, facts = [], []
    for record in results["predictions"]:
        plain, compared = raw(record, results)
        worst = min(sides(record, compared), key=lambda side: sum(side) / max(1, len(side))) if compared else []
        toward = sum(worst) / len(worst) if worst else 0.0
        equal = bool(compared) and max(compared) - min(compared) <= 1e-12 * max(1, *map(abs, compared))
        p = None
        if compared and not equal:
            p = max(two_sided(*side) for side in sides(record, compared)) if toward > 0 else two_sided(*worst)
        ps.append(p)
        facts.append((plain, toward, equal))
    tested = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    adjusted, largest = {}, 0.0
    for place, (p, i) in enumerate(tested):
        largest = max(largest, (len(tested) - place) * p)
        adjusted[i] = min(1.0, largest)
    found = []
    for i, (plain, toward, equal) in enumerate(facts):
        record = results["predictions"][i]
        invalid = results.get("shorter") or {record["arm"], record.get("than")} & set(results["skipped"])
        sure = (equal and len(results["seeds"]) >= 8) or (len(plain) >= 8 and i in adjusted and adjusted[i] <= 0.05)
        shown = sure and not invalid and toward != 0
        found.append((("holds" if toward > 0 else "contradicted") if shown else "not shown", plain, equal))
    return found


def status(results, outcomes):
    records = list(zip(results["predictions"], outcomes, strict=True))
    if any(record.get("condition") and outcome != "holds" for record, outcome in records):
        return "condition not met"
    papers = {outcome for record, outcome in records if record["source"] == "paper"}
    words = {"holds": "holds here", "contradicted": "contradicted here", "not shown": "not shown"}
    return "not tested" if not papers else words[papers.pop()] if len(papers) == 1 else "mixed"


def number(text):
    return 0.0 if text == "–" else float(text)


@pytest.mark.parametrize("file", JUDGED, ids=lambda file: file.parent.name)
def test_the_page_says_what_other_code_finds(file):
    results, page = json.loads(file.read_text()), file.with_name("README.md").read_text()
    table = page.partition("## Predictions\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    found = verdicts(results)
    assert len(table) == len(found)
    for line, (outcome, plain, equal), record in zip(table, found, results["predictions"], strict=True):
        assert f"| **{outcome}**" in line, line
        if not plain:
            assert "not measured in this run" in line
            continue
        mean = math.fsum(plain) / len(plain)
        told = re.search(r"(?:difference|mean) (\S+?)(?: \[(\S+), (\S+)\])?,", line.rpartition("** | ")[2])
        assert number(told[1]) == pytest.approx(mean, rel=5e-3, abs=2e-6), record
        if told[2] and not equal:  # each end is where the test begins to reject
            spread = max(plain) - min(plain)
            low, high = (float(end) for end in told.groups()[1:])
            for end, out in ((low, -1), (high, 1)):
                step = 6e-3 * max(abs(end), 1e-3 * spread)  # the page rounds to three digits
                if high - low < 4 * step:
                    continue
                # of above 20 seeds 2^18 sign patterns are sampled: four deviations of their share
                slack = 2 ** (2 - len(plain)) if len(plain) <= 20 else 4 * math.sqrt(0.05 * 0.95 / 2**18)
                assert two_sided(*(x - (end + out * step) for x in plain)) <= 0.05 + slack / 2, record
                assert two_sided(*(x - (end - out * step) for x in plain)) > 0.05 - slack, record
    outcomes = [outcome for outcome, _, _ in found]
    if results["paper"] is None:  # a question of our own has no status
        words = {"holds": "held", "contradicted": "contradicted", "not shown": "not shown"}
        counts = ", ".join(f"{outcomes.count(x)} {word}" for x, word in words.items() if x in outcomes)
        assert f"- Our own {len(found)} predictions: {counts}." in page and "- Status:" not in page
        return
    told = "not tested" if unfit(file) else status(results, outcomes)
    assert f"- Status: **{told}**." in page


def test_the_counts_of_the_index_are_sums_over_the_pages():
    index = (FILES[0].parents[2] / "README.md").read_text()
    titles = {"predictions drawn from papers": {"paper"}, "predictions of our own": {"theory", "pilot"}}
    for title, sources in titles.items():
        outcomes = []
        for file in JUDGED:
            if unfit(file):
                continue
            results = json.loads(file.read_text())
            pairs = list(zip(results["predictions"], verdicts(results), strict=True))
            if any(record.get("condition") and outcome != "holds" for record, (outcome, _, _) in pairs):
                continue
            of_sources = [(record, outcome) for record, (outcome, _, _) in pairs if record["source"] in sources]
            outcomes += [outcome for record, outcome in of_sources if not record.get("condition")]
        counted = re.search(
            rf"Of (\d+) {title}, (\d+) hold here, (\d+) are contradicted here, (\d+) are not shown", index
        )
        kinds = ("holds", "contradicted", "not shown")
        assert [*map(int, counted.groups())] == [len(outcomes), *(outcomes.count(kind) for kind in kinds)]


def test_the_share_of_sign_patterns_is_counted_in_halves():
    for values in ([1.0, -2, 3, 0.5], [1.0] * 6, [0.1, 0.2, -0.3, 0.7, 0.1]):
        every = [sum(x * sign for x, sign in zip(values, signs, strict=True)) for signs in
                 itertools.product((1, -1), repeat=len(values))]  # fmt: skip
        far = [total for total in every if abs(total) >= abs(sum(values)) - 1e-9]
        assert two_sided(*values) == len(far) / len(every)


PAGES = sorted((Path(__file__).parents[3] / "experiments/results").glob("*/README.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_images_exist_and_rows_of_tables_have_as_many_cells_as_their_head(page):
    text = page.read_text(encoding="utf-8")
    for image in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (page.parent / image).exists(), image
    for table in re.findall(r"(?:^\|.*\|\n)+", text + "\n", re.MULTILINE):
        cells = {len(re.split(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1, table[:300]
