"""The page of games: one HTML file with its games inside, which opens from disk and asks for nothing else.

Its parts are the files of `web/`. If a server shows the folder, the page also asks for the files of games beside it,
and offers the games that a run has recorded since.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GAMES, PAGE = "games.jsonl", "games.html"
STUDY = "study.json"  # the record of a study in its run directory
MOST = 1000  # games of a page
WEB = Path(__file__).parent / "web"
SCRIPTS = ("data", "list", "game", "detail", "live")  # in this order


def lines_of(games: Sequence[Mapping[str, Any]]) -> bytes:
    """JSON lines in ASCII: what a model said cannot change a terminal or an editor that shows them."""
    return "".join(json.dumps(game, separators=(",", ":")) + "\n" for game in games).encode()


def read(file: Path) -> list[dict[str, Any]]:
    """The games of a JSONL file. Raises ValueError for a damaged one, and for lines that are no records of games."""
    try:
        games = [json.loads(line) for line in file.read_bytes().splitlines()]  # U+2028 ends no line of bytes
    except (ValueError, RecursionError):
        raise ValueError(f"{file} is damaged: remove it, or let the run end, which writes its games anew.") from None
    if not all(isinstance(game, dict) and {"arm", "seed", "update", "seats"} <= game.keys() for game in games):
        raise ValueError(f"{file} holds lines that are no games: it is of another program, name another directory.")
    return games


def html(games: Sequence[Mapping[str, Any]], title: str, total: int, files: Sequence[Mapping[str, str]] = ()) -> str:
    """The page of these games, the first of `total`. `files` {path, run} are JSONL files that it follows: paths from
    the page's folder, and the name of the run where there are several."""
    data = json.dumps({"title": title, "total": total, "files": files, "games": games}, separators=(",", ":"))
    for sign in "<>&":  # no text can end the script that holds it
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    text = {name: (WEB / name).read_text(encoding="utf-8") for name in ("page.html", "style.css")}
    scripts = "".join((WEB / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    parts = {"/*STYLE*/": text["style.css"], "/*SCRIPT*/": scripts, '"DATA"': data}
    whole = text["page.html"]
    for place, part in parts.items():
        whole = whole.replace(place, part)
    return whole


def write(run: Path | Sequence[Path], out: Path, count: int = MOST) -> tuple[Path, int, int]:
    """Writes `out`/games.html with `count` games of the files games.jsonl below `run`, or below several runs: the first
    ones of every arm, seed and update.

    Returns the file, the games that it shows, and the games that there are.
    Raises ValueError if a run has none, a file is damaged, or `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"A page shows at least 1 game, got {count}.")
    runs = [run] if isinstance(run, Path) else list(run)
    names = names_of(runs) if len(runs) > 1 else [""]
    games: list[dict[str, Any]] = []
    followed = []
    for folder, name in zip(runs, names, strict=True):
        files = sorted(folder.rglob(GAMES))
        label = {"run": name} if name else {}
        several = [{**label, **game} for file in files for game in read(file)]
        if not several:
            raise ValueError(f"There is no {GAMES} with games below {folder}: name the directory of a run.")
        games += several
        followed += [{"path": Path(os.path.relpath(file, out)).as_posix(), **label} for file in files]
    met: Counter[tuple] = Counter()
    place = []  # games of the same run, arm, seed and update before each game
    for game in games:
        batch = tuple(game.get(name) for name in ("run", "arm", "seed", "update"))
        place.append(met[batch])
        met[batch] += 1
    shown = sorted(sorted(range(len(games)), key=place.__getitem__)[:count])
    file, title = out / PAGE, " and ".join(names) if len(runs) > 1 else runs[0].resolve().name
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(html([games[i] for i in shown], title, len(games), followed), encoding="utf-8")
    return file, len(shown), len(games)


def names_of(runs: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that differ."""
    parts = [path.resolve().parts for path in runs]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"A run is named twice: {', '.join(map(str, runs))}.")
