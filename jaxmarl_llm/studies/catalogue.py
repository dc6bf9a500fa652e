"""The studies of a package as its files tell of them: nothing is imported, so that a list of studies takes no time.

A study is a module with a constant `STUDY`, named by its file. Its question and its paper are read from the text.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import NamedTuple


class Outline(NamedTuple):
    """A study in words, as its file has them; empty where they are computed."""

    question: str
    title: str
    url: str
    year: str
    about: str  # the docstring

    @property
    def source(self) -> str:
        """The paper as a line: title, year and address; empty for an idea of one's own."""
        return f"{', '.join(filter(None, (self.title, self.year)))}: {self.url}" if self.title else ""


def home(package: str) -> Path:
    """The folder of a package. Raises ValueError for an unknown package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"There is no package {package!r}: start the command where it lies.")
    return Path(next(iter(spec.submodule_search_locations)))


def files(package: str) -> dict[str, Path]:
    """{name: file} of all studies, sorted by name. Files that begin with `_` are templates and are left out.

    Raises ValueError if two studies have one name.
    """
    result: dict[str, Path] = {}
    for file in sorted(home(package).rglob("*.py"), key=lambda file: (file.stem, file)):
        if file.stem.startswith("_") or "\nSTUDY = " not in file.read_text(encoding="utf-8"):
            continue
        if file.stem in result:
            first, second = (module_of(package, path) for path in (result[file.stem], file))
            raise ValueError(f"{first} and {second} are both called {file.stem}: rename one of them.")
        result[file.stem] = file
    return result


def module_of(package: str, file: Path) -> str:
    """The dotted name of a file of a package."""
    return ".".join((package, *file.relative_to(home(package)).with_suffix("").parts))


def find(package: str) -> dict[str, str]:
    """{name: dotted module} of all studies, sorted by name. Raises ValueError if two studies have one name."""
    return {name: module_of(package, file) for name, file in files(package).items()}


def outline(file: Path) -> Outline:
    """The question and the paper of the study in a file. Names of the file's own constants are resolved."""
    module = ast.parse(file.read_text(encoding="utf-8"))
    assigned = {
        node.targets[0].id: node.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    resolve = lambda node: assigned.get(node.id) if isinstance(node, ast.Name) else node
    fields = _arguments(resolve(assigned["STUDY"]), ())
    paper = _arguments(resolve(fields.get("paper")), ("title", "url", "year"))
    constant = lambda node: str(node.value) if isinstance(node, ast.Constant) else ""
    words = lambda given, *names: (constant(resolve(given.get(name))) for name in names)
    (question,), (title, url, year) = words(fields, "question"), words(paper, "title", "url", "year")
    return Outline(question, title, url, year, ast.get_docstring(module) or "")


def listing(package: str, words: str = "") -> list[str]:
    """A text for every study: its name, its question, and its paper on a second line.

    With `words` those studies alone whose name, question, paper or docstring has each word; capitals do not count.
    """
    told = {name: outline(file) for name, file in files(package).items()}
    text = {name: " ".join((name, *about)).casefold() for name, about in told.items()}
    told = {name: about for name, about in told.items() if all(word in text[name] for word in words.casefold().split())}
    width = max(map(len, told), default=0)
    return [
        f"{name:{width}}  {about.question}" + f"\n{'':{width}}  {about.source}" * bool(about.source)
        for name, about in told.items()
    ]


def _arguments(call: ast.expr | None, names: tuple[str, ...]) -> dict[str, ast.expr]:
    """The arguments of a call by name; `names` are those of the ones without a name."""
    if not isinstance(call, ast.Call):
        return {}
    return dict(zip(names, call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}
