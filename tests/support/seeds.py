"""The seeds that the files of a run name: in JSON by key, in other texts and in paths by the word before a number."""

import json
import re
from pathlib import Path
from typing import Any

TEXTS = (".json", ".jsonl", ".md", ".html", ".svg")
WORD = re.compile(rb"\bseed[ _](\d+)")  # "seed 3", "seed_3"; "--seeds 2" is their number


def seeds_of(directory: Path) -> dict[str, set[int]]:
    """{file: the seeds that it or its path names} of the files that name any; binary files by their paths alone."""
    found = {}
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        name = file.relative_to(directory).as_posix()
        content = file.read_bytes() if file.suffix in TEXTS else b""
        seeds = {int(number) for number in WORD.findall(name.encode() + b"\n" + content)}
        for part in (content.splitlines() if file.suffix == ".jsonl" else [content]) if "json" in file.suffix else ():
            seeds |= _in_json(json.loads(part))
        if file.suffix == ".html":
            seeds |= {int(number) for number in re.findall(rb'"seed":(\d+)', content)}
        if seeds:
            found[name] = seeds
    return found


def _in_json(value: Any) -> set[int]:
    if isinstance(value, list):
        return set().union(*map(_in_json, value))
    if not isinstance(value, dict):
        return set()
    named = {value["seed"]} if isinstance(value.get("seed"), int) else set()
    listed = value.get("seeds")  # the number of a test; the curves of a metric
    named |= {seed for seed in listed if isinstance(seed, int)} if isinstance(listed, list) else set()
    return named.union(*map(_in_json, value.values()))
