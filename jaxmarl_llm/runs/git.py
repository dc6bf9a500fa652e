"""Questions to git about the repository that holds a file."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Repository:
    """The repository around a folder. Raises ValueError where there is none, or no git."""

    def __init__(self, folder: Path):
        self.root = folder
        self.root = Path(self.ask("rev-parse", "--show-toplevel"))

    def ask(self, *words: str) -> str:
        """The text that git prints, without the last line break. Raises ValueError with git's own words if it fails."""
        try:
            done = subprocess.run(["git", *words], cwd=self.root, capture_output=True, check=True)
        except OSError as error:
            raise ValueError(f"git cannot be started ({error.strerror}): install it.") from None
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()
            raise ValueError(f"git {' '.join(words)} fails in {self.root}: {said}") from None
        return done.stdout.decode().rstrip("\n")

    @property
    def shallow(self) -> bool:
        """True if the history is cut off."""
        return self.ask("rev-parse", "--is-shallow-repository") == "true"

    @property
    def head(self) -> str:
        return self.ask("rev-parse", "HEAD")

    def place(self, file: Path) -> str:
        """The path of a file from the root."""
        return file.resolve().relative_to(self.root.resolve()).as_posix()

    def dirty(self, aside: Path | None = None) -> list[str]:
        """Tracked files that differ from the last commit, except those in the folder `aside`."""
        besides = [f":(exclude,top){self.place(aside)}"] if aside else []
        return self.ask("diff", "HEAD", "--name-only", "--", ":/", *besides).splitlines()

    def commits(self, *files: str | Path) -> dict[str, list[str]]:
        """{path from the root: the commits that changed it, the oldest first}; a str may be a pattern with `*`.

        A merge that takes a file as one of its parents has it changes nothing.
        """
        wanted = [f":(top,glob){file if isinstance(file, str) else self.place(file)}" for file in files]
        changes: dict[str, list[str]] = {}
        commit = ""
        for line in self.ask(
            "log", "--reverse", "--full-history", "--format=%x00%H", "--name-only", "-c", "--", *wanted
        ).splitlines():
            if line.startswith("\0"):
                commit = line[1:]
            elif line and commit not in changes.setdefault(line, []):
                changes[line].append(commit)
        return changes

    def files(self, commit: str) -> list[str]:
        """The files that a commit changed."""
        return self.ask("diff-tree", "--no-commit-id", "--name-only", "-r", "--root", commit).splitlines()

    def text(self, commit: str, path: str) -> str | None:
        """The content of a file at a commit, without its last line break; None if it was not there."""
        try:
            return self.ask("show", f"{commit}:{path}")
        except ValueError:
            return None

    def descends(self, commit: str, ancestor: str) -> bool:
        """True if `ancestor` is an ancestor of `commit`, or the same. False for a commit that is not there."""
        try:
            return self.ask("merge-base", ancestor, commit) == self.ask("rev-parse", ancestor)
        except ValueError:
            return False
