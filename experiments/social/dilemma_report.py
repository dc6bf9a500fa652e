"""What the social dilemma reports: points by opponent, cooperation by what came before, verdict, table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from rich.markup import escape
from rich.table import Table

from jaxmarl_llm.environments.matrix_games import COOPERATE
from jaxmarl_llm.evaluation.statistics import summarise
from jaxmarl_llm.rollout.trajectory import Trajectory
from jaxmarl_llm.studies.cli import span

if TYPE_CHECKING:
    from experiments.social.social_dilemma import Settings

OUTCOMES = ("CC", "CD", "DC", "DD")  # own move first


def report(
    settings: Settings, opponents: Mapping[str, Mapping[str, str]], trajectory: Trajectory
) -> dict[str, dict[str, Any]]:
    """Of the games against all `opponents`, by policy: points a round by opponent, cooperation by what came before."""
    episodes, labels = jax.device_get(trajectory.episodes), settings.labels
    move = slice(1, None, 2) if settings.talk else slice(None)  # the turns that are no message
    reward = episodes.reward[:, :, move, :, 0]  # [seeds, B, rounds, 2]
    cooperates = episodes.action[:, :, move] == COOPERATE
    games = 2 * -(-settings.evaluation_games // 2)  # of a pair
    result: dict[str, dict[str, Any]] = {}
    first = 0
    for own, (policy, others) in enumerate(opponents.items()):  # the seat that it is trained in
        place, first = slice(first, first + games * len(others)), first + games * len(others)
        points = np.split(reward[:, place].mean(2), len(others), 1)  # of each opponent [seeds, games, 2]
        result[policy] = {
            name: {"ours": summarise(pair[..., own]), "theirs": summarise(pair[..., 1 - own])}
            for name, pair in zip(others, points, strict=True)
        }
        ours, before = cooperates[:, place, :, own], np.where(cooperates[:, place, :-1], "C", "D")
        outcome = np.full(ours.shape, "start", dtype="<U5")
        outcome[:, :, 1:] = np.char.add(before[..., own], before[..., 1 - own])
        labeling = np.broadcast_to((episodes.group[:, place] % 2)[:, :, None], ours.shape)
        cases = {name: outcome == name for name in ("start", *OUTCOMES)}
        cases |= {f"as_{label}": labeling == i for i, label in enumerate(labels)}
        with np.errstate(invalid="ignore"):
            rates = {name: (ours & case).sum(2) / case.sum(2) for name, case in cases.items()}
        result[policy]["cooperation"] = {name: summarise(rate) for name, rate in rates.items()}
    return result


def verdict(settings: Settings, before: dict, after: dict) -> dict[str, Any]:
    """Whether what was stated before the run came true of each policy, beyond both intervals."""
    direction, pick = STATED[settings.method]
    sign = -1 if "falls" in direction else 1
    holds = {}
    for policy in settings.policies:
        for name in (f"as_{label}" for label in settings.labels):
            old, new = pick(before[policy], name), pick(after[policy], name)
            known = None not in (old["low"], new["low"])
            shown = known and (new["high"] < old["low"] if sign < 0 else new["low"] > old["high"])
            holds[name if len(settings.policies) == 1 else f"{policy}/{name}"] = shown
    return {"direction": direction, "beyond_the_intervals": holds}


STATED = {
    "naive": ("cooperation falls, whichever label it bears", lambda block, name: block["cooperation"][name]),
    "sum": ("cooperation rises, whichever label it bears", lambda block, name: block["cooperation"][name]),
    "alignment": (
        "what always-defect earns from the policy falls",
        lambda block, name: block["always_defect"]["theirs"],
    ),
}


def show(settings: Settings, opponents: Mapping[str, Mapping[str, str]], before: dict, after: dict, over: str) -> Table:
    models = " and ".join(settings.policies.values())
    table = Table(title=f"{settings.method}, {escape(models)}, {settings.updates} updates", title_justify="left")
    table.caption, table.caption_justify = f"mean ± half of the 95% Student-t interval over {over}", "left"
    table.add_column("points a round")
    for when in ("before", "after"):
        for who in ("ours", "theirs"):
            table.add_column(f"{who}\n{when}", justify="right", no_wrap=True)
    names = {"start": "first round", **{outcome: f"after {outcome}" for outcome in OUTCOMES}}
    names |= {f"as_{label}": f"called {label}" for label in settings.labels}
    for policy, others in opponents.items():
        blocks = before[policy], after[policy]
        if len(opponents) > 1:
            table.add_section()
            table.add_row(escape(f"{policy}: {settings.policies[policy]}"))
        for name in others:
            table.add_row(name, *(span(block[name][who]) for block in blocks for who in ("ours", "theirs")))
        table.add_section()
        for name, text in names.items():
            cells = (span(block["cooperation"][name]) for block in blocks)
            table.add_row(escape(f"P(cooperate), {text}"), next(cells), "", next(cells), "")
    return table


def last_tenth(path: Path, settings: Settings) -> dict[str, Any]:
    """Self-play in training: the mean over the last tenth of the updates, a value for each seed."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    first = settings.updates - max(1, settings.updates // 10)
    result = {}
    for name in ("points", "cooperation"):
        values = [
            [line[name] for line in lines if line["seed"] == s and line["step"] >= first] for s in range(settings.seeds)
        ]
        result[name] = summarise(np.array([[np.mean(v)] for v in values]))
    return result
