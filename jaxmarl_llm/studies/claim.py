"""The record of a run directory: its study, settings and seeds, which a later start must share.

More seeds may be added to a finished run. They train in programs of their own, in a folder of their own, so that the
numbers of the first seeds stay as they are. A frozen table never grows.
"""

from __future__ import annotations

import contextlib
import glob
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxmarl_llm.runs.checkpoint import ConfigMismatch, compare
from jaxmarl_llm.runs.log import provenance
from jaxmarl_llm.studies.cli import lock_directory
from jaxmarl_llm.studies.pages.figures import CURVES, FOREST
from jaxmarl_llm.studies.pages.format import count
from jaxmarl_llm.studies.pages.results import write_atomically
from jaxmarl_llm.view.page import GAMES, PAGE, STUDY

Claim = tuple[dict[str, Any], list[int]]
WRITTEN = ("results.json", PAGE, CURVES, FOREST, "checkpoints")  # beside the folders of arms
LISTED = 8  # arms of a sentence


@contextlib.contextmanager
def claim_directory(out: Path, info: dict[str, Any], head: str | None = None) -> Iterator[Claim]:
    """Locks a run directory, and records its study; yields (the provenance of the run's first start, the first seed of
    each addition).

    `head` is the commit of a tree that was found clean.

    Raises ValueError if the directory holds a run of other settings, other code or other seeds, if seeds cannot be
    added, or if another process uses it. Somebody else's files under names that a run writes are refused too. If a
    ValueError ends the run before an update, the record stays as it was; without one, what the run began under its
    names is removed, and nothing else.
    """
    kept = out / STUDY
    with lock_directory(out):
        former = kept.read_bytes() if kept.exists() else None
        begun = provenance() | ({"commit": head} if head else {})
        added: list[int] = []
        if former is None:
            _check_free(out, info.get("settings", ()))
        else:
            begun, added = _claim_again(out, former, info)
        record = {**info, **({"added": added} if added else {}), "provenance": begun}
        text = (json.dumps(record, indent=1) + "\n").encode()
        logs = lambda: sum(file.stat().st_size > 0 for file in out.rglob("metrics.jsonl"))
        before, present = logs(), {*_places(out, info.get("settings", ()))}
        write_atomically(kept, text)
        try:
            yield begun, added
        except ValueError:
            if logs() > before:
                raise
            if former is None:
                for place in {kept, *_places(out, info.get("settings", ()))} - present:  # the settings cannot work
                    shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
            else:
                write_atomically(kept, former)
            raise


def _places(out: Path, arms: Iterable[str]) -> list[Path]:
    """The files and folders that exist under the names that a run of these arms writes, its record apart."""
    homes = [home for arm in arms for home in (out / arm, *out.glob(f"{glob.escape(arm)}-*"))]
    return [place for place in (*(out / name for name in WRITTEN), *homes) if place.exists()]


def _check_free(out: Path, arms: Iterable[str]) -> None:
    """Raises ValueError if a directory without a record holds files that a run of these arms would write over, or
    games that its page would show."""
    files = [file for place in _places(out, arms) for file in (place, *sorted(place.rglob("*"))) if file.is_file()]
    if files := [*files, *sorted(out.rglob(GAMES))]:
        raise ValueError(
            f"{out} holds {files[0].relative_to(out)}, but no {STUDY}, so that no run can continue there: name another "
            "--out."
        )


def _claim_again(out: Path, former: bytes, info: Mapping[str, Any]) -> Claim:
    """The result of `claim_directory` for a directory with a record."""
    try:
        old = json.loads(former)
        begun, added, seeds = old.pop("provenance"), old.pop("added", []), list(old["seeds"])
        code = old.pop("code")
        arms = [*old.get("settings", ())]
        code = {"": code} if isinstance(code, str) else dict(code)  # a run of an earlier version has one digest
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{out / STUDY} is damaged: name another --out.") from None
    info = dict(info)
    if old.get("study") != info["study"]:
        raise ValueError(f"{out} holds a run of the study {old.get('study')}: name another --out for {info['study']}.")
    if ("sweep" in old) != ("sweep" in info):
        kinds = ("a sweep", "a run without --sweep")[:: 1 if "sweep" in old else -1]
        raise ValueError(f"{out} holds {kinds[0]}, and this is {kinds[1]}: name another --out.")
    wanted_arms = [*info.get("settings", ())]
    if {*arms} != {*wanted_arms}:
        kinds = _list_arms(arms, wanted_arms), _list_arms(wanted_arms, arms)
        raise ValueError(f"{out} holds a run of {kinds[0]}, and this asks for {kinds[1]}: name another --out.")
    if changed := [name for name, digest in info.pop("code").items() if code.get(name) != digest]:
        raise ValueError(
            f"{out} holds a run of other code in {changed[0]}, begun at {begun['commit']}: name another --out."
        )
    wanted = list(info["seeds"])
    if "frozen" in old and _is_longer(wanted, seeds):
        raise ValueError(f"{out} holds a frozen table, which never grows: more seeds are a new freeze.")
    try:
        compare(out, old, info, ("seeds",) if _is_longer(wanted, seeds) or _is_longer(seeds, wanted) else ())
    except ConfigMismatch as error:
        raise ConfigMismatch(f"{error}: name another --out.") from None
    if _is_longer(seeds, wanted):
        raise ValueError(f"{out} holds {count(len(seeds), 'seed')}, which stay: name another --out for {len(wanted)}.")
    if wanted == seeds:
        return begun, added
    if not _is_finished(out, seeds):
        raise ValueError(f"{out} is not finished: end the run with --seeds {len(seeds)}, then add seeds to it.")
    return begun | {"command": sys.argv}, [*added, wanted[len(seeds)]]


def _list_arms(arms: list[str], others: list[str]) -> str:
    """`the arms a, b`; of more than LISTED those that are none of the others come first, and the rest is counted."""
    word, more = f"the arm{'s' * (len(arms) != 1)}", ""
    if len(arms) > LISTED:
        arms, more = sorted(arms, key=lambda arm: arm in others)[:LISTED], f" and {len(arms) - LISTED} more"
    return f"{word} {', '.join(arms)}{more}"


def _is_longer(seeds: list[int], others: list[int]) -> bool:
    """True if the seeds are the others and more after them."""
    return len(seeds) > len(others) and seeds[: len(others)] == others


def _is_finished(out: Path, seeds: list[int]) -> bool:
    """True if the results of exactly these seeds are written."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return bool(json.loads((out / "results.json").read_bytes())["seeds"] == seeds)
    return False
