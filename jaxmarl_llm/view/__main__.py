"""Renders the page of a run's games anew, also while the run lasts, or one page of several runs.

python -m jaxmarl_llm.view runs/demo
python -m jaxmarl_llm.view runs/demo runs/other --out runs/both
"""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxmarl_llm.text.console import lasting
from jaxmarl_llm.view.page import MOST, write


def main() -> None:
    parser = argparse.ArgumentParser("python -m jaxmarl_llm.view", description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="run", help="a run directory, or one that holds several")
    parser.add_argument("--out", type=Path, help="the folder of games.html (that of the run)")
    parser.add_argument("--games", type=int, default=MOST, help="most games of the page (%(default)s)")
    given = parser.parse_args()
    if len(given.runs) > 1 and not given.out:
        parser.error("several runs share one page: name its folder with --out")
    out = given.out or given.runs[0]
    try:
        file, shown, total = write(given.runs, out, given.games)
    except ValueError as error:
        parser.exit(2, f"error: {error}\n")
    except OSError as error:
        other = ": name another --out" if Path(error.filename or "").is_relative_to(out) else ""
        parser.exit(2, f"error: {error.filename} cannot be used ({error.strerror}){other}\n")
    print(f"{file}: {shown} of {total} games; open it in a browser.")


if __name__ == "__main__":
    with lasting():
        main()
