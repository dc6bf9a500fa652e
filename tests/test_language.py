"""The language of code: openings and lengths of sentences, and names.

`python -m tests.test_language PATH` prints the violations of files and folders.

- No statement and no comment begins with a word of OPENINGS, except questions, quoted titles, and "where" after a
  formula.
- A sentence of a docstring has at most 30 words, better 25; code in backticks counts as a word.
- No variable, parameter, attribute or function bears a name of NO_NAMES.
- No function is named by a participle, except one whose annotation or docstring says that it returns bool.
- Short functions may be lambdas bound to a name: ruff's E731 is off, and nothing mentions it.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = "jaxmarl_llm", "experiments", "tools"
OPENINGS = {"what", "who", "whom", "whose", "whether", "of", "how", "where", "which", "that"}
NO_NAMES = {"own", "found", "of", "one", "each", "most"}
WORDS, MAX_WORDS = 25, 30  # aimed at, and refused above

# Fields and parameters whose names stand in the settings of published results.
IN_RESULTS = {
    "jaxmarl_llm/environments/around/thoughts.py": {"most"},
    "jaxmarl_llm/environments/social/commons.py": {"most"},
    "jaxmarl_llm/environments/social/contributions.py": {"most"},
    "jaxmarl_llm/methods/pretraining.py": {"most"},
    "jaxmarl_llm/training/estimator.py": {"of"},
}

IRREGULAR = re.compile(
    r"begun|bent|bought|bound|broken|brought|built|caught|chosen|dealt|done|drawn|driven|fed|felt|fought|"
    r"gone|given|got|ground|grown|heard|held|hidden|kept|known|laid|lain|led|left|lent|lost|made|meant|met|"
    r"paid|said|seen|sent|shown|sold|sought|spent|spoken|stood|stolen|struck|stuck|taken|taught|thought|"
    r"thrown|told|torn|understood|undone|won|worn|written"
)
NOT_PARTICIPLES = re.compile(r"embed|feed|need|proceed|seed|speed|exceed|succeed|hundred|shed")


def is_participle(word: str) -> bool:
    regular = len(word) > 3 and word.endswith("ed") and not NOT_PARTICIPLES.fullmatch(word)
    return regular or bool(IRREGULAR.fullmatch(word))


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """(line, sentence) of the prose of a docstring, lines from 0; literal blocks are left out."""
    paragraph: list[tuple[int, str, bool]] = []  # (line, text, bullet)
    lines = [*text.split("\n"), ""]
    indents = [len(x) - len(x.lstrip()) for x in lines[1:] if x.strip()]
    base = min(indents, default=0)
    lines = [lines[0].strip(), *(x[base:] for x in lines[1:])]
    for number, content in enumerate(lines):
        bullet = re.match(r"\s*(?:[-*]|\d+\.) (?=\S)", content)
        command = re.match(r"(?:python|make) ", content)
        literal = bool(command or re.match(r"\s", content) or re.search(r"\S {2,}\S", content)) and not bullet
        hanging = literal and paragraph and paragraph[0][2] and not re.search(r"\S {2,}\S", content.strip())
        if (not content.strip() or bullet or (literal and not hanging)) and paragraph:
            yield from _split(paragraph)
            paragraph = []
        if content.strip() and (not literal or hanging):
            start = bullet.end() if bullet else 0
            paragraph.append((number, content[start:].strip(), bool(bullet)))


def _split(paragraph: list[tuple[int, str, bool]]) -> Iterator[tuple[int, str]]:
    words = [(number, word) for number, content, _ in paragraph for word in content.split()]
    start, inside = 0, 0
    for i, (_, word) in enumerate(words):
        inside += word.count("`")
        following = words[i + 1][1] if i + 1 < len(words) else ""
        ends = re.search(r"[.!?][)\"'`]*$", word) and not re.search(
            r"(?:^|\W)(?:e\.g|i\.e|cf|vs|al|etc|eq|Eq|Fig)\.$", word
        )
        if not following or (ends and inside % 2 == 0 and re.match(r"[(\"'`*]*[^a-z\s(\"'`*]|`", following)):
            yield words[start][0], " ".join(word for _, word in words[start : i + 1])
            start = i + 1


def count_words(sentence: str) -> int:
    """Words with a letter or a digit; code in backticks and links are one word."""
    plain = re.sub(r"``.+?``|`[^`]+`", "x", sentence)
    return sum(bool(re.search(r"\w", word)) for word in plain.split())


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(first line, text) of docstrings, those beside fields included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", ())
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.lineno, value.value


def opens_badly(sentence: str) -> bool:
    first = re.match(r"[(*]*([A-Za-z]+)", sentence)
    continues = bool(first) and first[0] == "where"  # a formula
    question = sentence.rstrip(")\"'").endswith("?")
    return bool(first) and first[1].lower() in OPENINGS and not continues and not question


def bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of each variable, parameter, attribute, function and class where it is bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def participles(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of each function whose name is or ends with a participle and whose result is not bool."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        words = node.name.strip("_").split("_")
        verb_first = len(words) > 1 and not is_participle(words[0])
        if verb_first or not is_participle(words[-1]):
            continue
        boolean = "bool" in ast.unparse(node.returns) if node.returns else False
        if not boolean and not (ast.get_docstring(node) or "").startswith("bool"):
            yield node.lineno, node.name


def violations(text: str, limit: int = MAX_WORDS) -> list[str]:
    """`line N: problem` of each violation in a file's text, in the order of lines."""
    tree, problems = ast.parse(text), []
    for at, docstring in docstrings(tree):
        for line, sentence in sentences(docstring):
            if opens_badly(sentence):
                problems.append((at + line, f"a statement opens with {sentence.split()[0]!r}: {sentence[:80]}"))
            if (count := count_words(sentence)) > limit:
                problems.append((at + line, f"a sentence of {count} words: {sentence[:80]}"))
    for at, name in sorted({*bound_names(tree)}):
        if name.strip("_") in NO_NAMES:
            problems.append((at, f"`{name}` is no name"))
    problems += [(at, f"the function `{name}` is named by a participle") for at, name in participles(tree)]
    comments = {
        t.start[0]: t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT
    }
    for at, token in comments.items():
        comment = token.string.lstrip("#: ")
        if "E731" in comment:
            problems.append((at, "E731 is off: no comment about it"))
        continued = at - 1 in comments and token.line.lstrip().startswith("#") and comment[:1].islower()
        if not continued and opens_badly(comment):
            problems.append((at, f"a comment opens with {comment.split()[0]!r}: {comment[:80]}"))
    return [f"line {at}: {problem}" for at, problem in sorted(problems)]


def files_of(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


FILES = [str(file.relative_to(ROOT)) for folder in FOLDERS for file in files_of(ROOT / folder)]


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def violations_of(path: str) -> list[str]:
    """The violations of a file, except names in the settings of results."""
    kept = [f"`{name}` is no name" for name in IN_RESULTS.get(path, ())]
    return [problem for problem in violations(read(path)) if not any(text in problem for text in kept)]


def test_every_sentence_and_name_keeps_the_rules():
    assert len(FILES) > 300
    wrong = {path: problems for path in FILES if (problems := violations_of(path))}
    assert not wrong, "\n".join(f"{path}: {problem}" for path, problems in wrong.items() for problem in problems)


def test_a_kept_name_stands_in_results():
    settings = [path.read_text() for path in (ROOT / "experiments/results").glob("*/results.json")]
    for path, names in IN_RESULTS.items():
        for name in names:
            assert any(f"`{name}` is no name" in problem for problem in violations(read(path))), f"{path}: {name}"
            assert any(f'"{name}":' in text for text in settings), f"{path}: {name}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('"""What a game pays."""', "opens with 'What'"),
        ('"""Rewards of a game. Of two the first counts."""', "opens with 'Of'"),
        ('def f():\n    """Pays.\n\n    - which is due\n    """', "opens with 'which'"),
        ('class A:\n    x: int\n    """Whether it is due."""', "opens with 'Whether'"),
        ("x = 1  # what a game pays", "comment opens with 'what'"),
        ("x = 1  # of a game", "comment opens with 'of'"),
        ("# Who is paid", "comment opens with 'Who'"),
        ('"""' + "word " * 30 + 'end."""', "a sentence of 31 words"),
        ('"""A first line.\n\n' + "word\n" * 30 + 'end."""', "a sentence of 31 words"),
        ("own = 1", "`own`"),
        ("def f(of): ...", "`of`"),
        ("class A:\n    most: int", "`most`"),
        ("self._found = 1", "`_found`"),
        ("[one for one in x]", "`one`"),
        ("f = lambda each: each", "`each`"),
        ("def taught(x) -> Array: ...", "`taught`"),
        ("class A:\n    def _weighed(self): ...", "`_weighed`"),
        ("f = lambda x: x  # noqa: E731", "E731 is off"),
    ],
)
def test_a_violation_is_seen(text, problem):
    assert any(problem in line for line in violations(text)), violations(text)


@pytest.mark.parametrize(
    "text",
    [
        '"""Rewards of a game, i.e. what it pays. Who wins? "What agents want" is a title."""',
        '"""`of` is a parameter, e.g. Of.\n\n    what is indented   stays\n"""',
        '"""' + "`a b c d` " * 8 + "word " * 22 + '."""',
        '"""Plays.\n\npython -m package ' + "word " * 40 + '"""',
        '"""' + "word " * 20 + ". " + "Word " * 20 + '."""',
        "self.game.of(own_reward)",
        "x = partial(f, of=1)",
        "def seen(x) -> bool: ...",
        "# Rewards are paid\n# of course\nx = 1  # a sum\n",
        "def embed(x): ...",
        "def read_rows(x): ...",
        "f = lambda x: x",
    ],
)
def test_a_plain_text_has_no_violation(text):
    assert violations(text) == []


def test_e731_is_off_in_ruff():
    lint = tomllib.loads(read("pyproject.toml"))["tool"]["ruff"]["lint"]
    assert "E731" in lint["ignore"]
    assert "external" not in lint, "no comment about E731 is tolerated"


if __name__ == "__main__":
    count = 0
    for argument in sys.argv[1:] or FOLDERS:
        for file in files_of(Path(argument)):
            for problem in violations(file.read_text(encoding="utf-8"), limit=WORDS):
                print(f"{file}: {problem}")
                count += 1
    print(f"{count} violations, or sentences of {WORDS + 1} to {MAX_WORDS} words, which are to be few")
    raise SystemExit(count > 0)
