"""Renders the page of a run's games anew, also while the run lasts: RUN/games.html.

python -m jaxmarl_llm.view runs/demo
"""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxmarl_llm.text.console import lasting
from jaxmarl_llm.view.page import MOST, write


def main() -> None:
    parser = argparse.ArgumentParser("python -m jaxmarl_llm.view", description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="a run directory, or one that holds several")
    parser.add_argument("--games", type=int, default=MOST, help="most games of the page (%(default)s)")
    given = parser.parse_args()
    try:
        file, shown, total = write(given.run, given.run, given.games)
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    print(f"{file}: {shown} of {total} games; open it in a browser.")


if __name__ == "__main__":
    with lasting():
        main()
