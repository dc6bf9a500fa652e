"""Signs that a run goes wrong, read from its metrics as they are logged: host side, no arrays of jax.

A `Rule` is a threshold on a metric. It warns once, when the metric has passed it in several updates in a row. It warns
again only after the metric was on the right side for ten updates in a row. Warnings are a function of metrics.jsonl
alone. The monitor of a resumed run reads the earlier lines first, so that it warns like an unbroken run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

FIRST = 3  # values whose mean is the beginning of a metric
CALM = 10  # updates in a row on the right side of a threshold, after which passing it is news


@dataclass(frozen=True)
class Rule:
    """Warns if `metric`, or metric/POLICY, is above max(limit, times * begun) in `updates` updates in a row.

    With `below` it warns under min(limit, times * begun). `begun` is the mean of the first three values.

    Values that are not finite (None) are ignored; with `below` so is 0, the mean over no utterances. Without `times`
    the limit alone counts, from the start. `says` is the cause and `do` the advice. A rule of `drift` is about policies
    that began from a model or a warm start: a random one has nothing to lose. With `least` the least of the values
    metric/NAME counts, under the metric's name: it is passed if all pass it. A rule of `young` updates is about the
    beginning of a run, and sees these alone.
    """

    metric: str
    limit: float
    says: str
    times: float | None = None
    below: bool = False
    updates: int = 3
    do: str = ""
    drift: bool = False
    least: bool = False
    young: int | None = None

    def threshold(self, begun: float) -> float:
        if self.times is None:
            return self.limit
        return (min if self.below else max)(self.limit, self.times * begun)


SMALLER_STEPS = "Lower the learning rate, or make fewer epochs of each batch."
RULES = (
    Rule(
        "skipped",
        0.0,
        "an update was skipped: a loss, a gradient or new weights were not finite, or the rewards of every game",
        updates=1,
        do="If a warning names a reward that failed or is not finite, mend the reward. Otherwise lower the learning "
        "rate; docs/howto/debug.md repeats an update that was saved.",
    ),
    Rule(
        "left_out",
        0.0,
        "episodes paid what is not finite and were left out",
        updates=1,
        do="Mend the reward: a sentence of its own names the game, the seat and the turn.",
    ),
    Rule(
        "zero_groups",
        0.999,
        "no group had different rewards, so that rewards teach nothing",
        do="Unless all is solved: take easier questions, a reward with partial credit, or larger groups.",
        least=True,
        young=20,
    ),
    Rule(
        "cut_off",
        0.9,
        "nearly all games are cut off before they end, more than at first",
        times=1.2,
        do="A policy may learn to be cut off where that costs less than to lose: let a game that is cut off pay as a "
        "lost one, or give it more turns and room.",
    ),
    Rule(
        "invalid",
        0.5,
        "most answers are no legal move",
        do="Read some in games.html: tell the policy the form of an answer, or constrain it by a grammar.",
    ),
    Rule(
        "entropy",
        math.inf,
        "utterances hardly vary any more",
        times=0.1,
        below=True,
        do="Nothing is wrong if one answer is best and the reward is high: it is learned. Otherwise lower the learning "
        "rate, or add an entropy bonus.",
        drift=True,
    ),
    Rule(
        "length",
        8.0,
        "utterances have become much longer, in tokens",
        times=2.0,
        do="Read some in games.html; a penalty of length or a smaller budget holds them.",
        drift=True,
    ),
    Rule(
        "full",
        0.5,
        "utterances fill their budget, and may be cut off",
        times=1.5,
        do="Raise the budget, or read in games.html why they do not end.",
        drift=True,
    ),
    Rule(
        "repeated",
        0.3,
        "utterances repeat themselves, pair of tokens by pair",
        times=2.0,
        do="Lower the learning rate, or hold the policy near its start with a KL penalty.",
        drift=True,
    ),
    Rule(
        "kl",
        0.5,
        "the policy is far from where it began, in nats a token",
        do="Lower the learning rate, or raise the KL penalty.",
        drift=True,
    ),
    Rule("approximate_kl", 0.1, "the policy is far from the one that played, in nats a token", do=SMALLER_STEPS),
    Rule(
        "ratio",
        1.5,
        "the mean importance ratio is no longer 1: what is trained on was not sampled so",
        do=SMALLER_STEPS,
    ),
    Rule("clipped", 0.4, "the ratio of many tokens is clipped, and they teach nothing", do=SMALLER_STEPS),
    Rule("truncated", 0.4, "the importance weight of many tokens is cut", do=SMALLER_STEPS),
)
"""Rules for metrics of `losses`, `update` and `measured.speech`. Limits are rules of thumb: a warning stops
nothing."""


class Warned(NamedTuple):
    """One rule that began to hold, as a line of health.jsonl says it."""

    step: int
    seed: int
    metric: str
    value: float
    threshold: float
    begun: float
    says: str
    do: str


@dataclass
class _Watched:
    """One rule on one metric of one seed."""

    first: list[float] = field(default_factory=list)
    seen: int = 0  # updates
    beyond: int = 0  # updates in a row
    within: int = 0  # likewise
    warned: bool = False


class Monitor:
    """Reads rows of metrics in the order of steps, each seed for itself. Without `drift` it leaves out such rules."""

    def __init__(self, rules: Iterable[Rule] = RULES, drift: bool = True):
        self._rules: dict[str, list[Rule]] = {}
        for rule in (rule for rule in rules if drift or not rule.drift):
            self._rules.setdefault(rule.metric, []).append(rule)
        self._least = {metric for metric, of_metric in self._rules.items() if any(rule.least for rule in of_metric)}
        self._watched: dict[tuple[Rule, str, int], _Watched] = {}

    def see(self, step: int, seed: int, row: Mapping[str, float | None]) -> list[Warned]:
        """The rules that begin to hold with this row {metric: value}."""
        warnings = []
        for name, value in self._reduce(row).items():
            if value is None:
                continue
            for rule in self._rules.get(name.split("/")[0], ()):
                if rule.below and value == 0:
                    continue
                watched = self._watched.setdefault((rule, name, seed), _Watched())
                watched.seen += 1
                if rule.young is not None and watched.seen > rule.young:
                    continue
                if len(watched.first) < FIRST:
                    watched.first.append(float(value))
                begun = sum(watched.first) / len(watched.first)
                if rule.times is not None and len(watched.first) < FIRST:
                    continue
                threshold = rule.threshold(begun)
                beyond = value < threshold if rule.below else value > threshold
                watched.beyond = watched.beyond + 1 if beyond else 0
                watched.within = 0 if beyond else watched.within + 1
                watched.warned &= watched.within < CALM
                if watched.beyond >= rule.updates and not watched.warned:
                    watched.warned = True
                    warnings.append(Warned(step, seed, name, float(value), threshold, begun, rule.says, rule.do))
        return warnings

    def _reduce(self, row: Mapping[str, float | None]) -> dict[str, float | None]:
        """The row with the least value of each metric that has a rule of `least`, in place of its values by name."""
        kept: dict[str, float | None] = {}
        for name, value in row.items():
            metric = name.split("/")[0]
            if metric not in self._least:
                kept[name] = value
            elif value is not None:
                kept[metric] = min(value, before) if (before := kept.get(metric)) is not None else value
        return kept


def sentences(warnings: Iterable[Warned], seeds: int) -> list[str]:
    """One sentence for each metric that is warned of, whatever the number of seeds."""
    by: dict[tuple[str, str, str], list[Warned]] = {}
    for warned in warnings:
        by.setdefault((warned.metric, warned.says, warned.do), []).append(warned)
    result = []
    for (metric, says, do), same in by.items():
        who = f" of seed {', '.join(str(w.seed) for w in same)}" if seeds > 1 else ""
        values = ", ".join(f"{w.value:.3g}" for w in same)
        result.append(f"Warning, update {same[0].step + 1}: {metric}{who} is {values} ({says}). {do}".rstrip())
    return result
