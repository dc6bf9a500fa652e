"""Files and processes are read and written as text in an encoding that the call names, not in that of the locale."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(file for folder in ("jaxmarl_llm", "experiments", "tools") for file in (ROOT / folder).rglob("*.py"))
OPENING = {"open": 1, "fdopen": 1, "TemporaryFile": 0, "NamedTemporaryFile": 0, "SpooledTemporaryFile": 1}  # the mode
BINARY = {
    ("os", "open"),
    ("KvStore", "open"),
    ("dialogues", "open"),
}  # of a number, a store or a dialogue, not of a stream


def in_the_locale(tree: ast.Module) -> Iterator[str]:
    """Calls that read or write text in the encoding of the locale."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = getattr(node.func.value, "id", "") if isinstance(node.func, ast.Attribute) else ""
        options = {keyword.arg: keyword.value for keyword in node.keywords}
        if "encoding" in options or (owner, name) in BINARY:
            continue
        if name in OPENING:
            place = OPENING[name] - (name == "open" and isinstance(node.func, ast.Attribute))  # of a path: its first
            mode = options.get("mode", node.args[place] if len(node.args) > place else None)
            text = "b" not in (mode.value if isinstance(mode, ast.Constant) else "w+b" if "File" in name else "r")
        else:
            text = name in ("read_text", "write_text") or bool({"text", "universal_newlines"} & {*options})
        if text:
            yield f"line {node.lineno}: {ast.unparse(node)[:80]}"


@pytest.mark.parametrize("folder", ["jaxmarl_llm", "experiments", "tools"])
def test_every_text_has_an_encoding(folder):
    files = [file for file in FILES if file.is_relative_to(ROOT / folder)]
    assert len(files) > 3
    named = {str(file): [*in_the_locale(ast.parse(file.read_text(encoding="utf-8")))] for file in files}
    assert not {file: calls for file, calls in named.items() if calls}


@pytest.mark.parametrize(
    ("call", "refused"),
    [
        ("file.read_text()", True),
        ("file.read_text(encoding='utf-8')", False),
        ("file.write_text(text)", True),
        ("open(file)", True),
        ("open(file, 'a')", True),
        ("open(file, 'rb')", False),
        ("file.open()", True),
        ("file.open('w')", True),
        ("file.open('wb')", False),
        ("file.open(mode='w')", True),
        ("(folder / name).open('wb')", False),
        ("os.open(file, os.O_RDONLY)", False),
        ("os.fdopen(number, 'w')", True),
        ("tempfile.TemporaryFile()", False),
        ("tempfile.NamedTemporaryFile('w')", True),
        ("subprocess.run(words, text=True)", True),
        ("subprocess.run(words)", False),
    ],
)
def test_calls_without_an_encoding_are_seen(call, refused):
    assert bool([*in_the_locale(ast.parse(call))]) == refused
