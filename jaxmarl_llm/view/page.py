"""The page of games: one HTML file with its games inside, which opens from disk and asks for nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GAMES, PAGE = "games.jsonl", "games.html"
MOST = 1000  # games of a page


def lines_of(games: Sequence[Mapping[str, Any]]) -> bytes:
    """JSON lines in ASCII: what a model said cannot change a terminal or an editor that shows them."""
    return "".join(json.dumps(game, separators=(",", ":")) + "\n" for game in games).encode()


def read(file: Path) -> list[dict[str, Any]]:
    """The games of a JSONL file. Raises ValueError for a damaged one."""
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except ValueError:
        raise ValueError(f"{file} is damaged: remove it, or let the run end, which writes its games anew.") from None


def html(games: Sequence[Mapping[str, Any]], title: str, total: int) -> str:
    """The page of these games, the first of `total`."""
    data = json.dumps({"title": title, "total": total, "games": games}, separators=(",", ":"))
    for sign in "<>&":  # no text can end the script that holds it
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    return Path(__file__).with_suffix(".html").read_text(encoding="utf-8").replace('"DATA"', data)


def write(run: Path, out: Path, count: int = MOST) -> tuple[Path, int, int]:
    """Writes `out`/games.html with `count` games of the files games.jsonl below `run`: the first ones of every arm,
    seed and update.

    Returns the file, the games that it shows, and the games that there are.
    Raises ValueError if there is none, a file is damaged, or `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"A page shows at least 1 game, got {count}.")
    games = [game for file in sorted(run.rglob(GAMES)) for game in read(file)]
    if not games:
        raise ValueError(f"There is no {GAMES} with games below {run}: name the directory of a run.")
    met: Counter[tuple] = Counter()
    place = []  # games of the same arm, seed and update before each game
    for game in games:
        batch = tuple(game[name] for name in ("arm", "seed", "update"))
        place.append(met[batch])
        met[batch] += 1
    shown = sorted(sorted(range(len(games)), key=place.__getitem__)[:count])
    file = out / PAGE
    file.write_text(html([games[i] for i in shown], run.resolve().name, len(games)), encoding="utf-8")
    return file, len(shown), len(games)
