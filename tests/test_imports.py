"""The rooms of the package: which may import which, and where devices and terminals are named."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jaxmarl_llm"
FILES = {str(f.relative_to(ROOT)): ast.parse(f.read_text()) for f in sorted(PACKAGE.rglob("*.py"))}
DEVICE_NAMES = {"Mesh", "make_mesh", "PartitionSpec", "NamedSharding"}
MOST_LINES = 400

# room -> the rooms that it may import, itself aside: every arrow points to one that stands before it
ROOMS: dict[str, set[str]] = {
    "keys": set(),
    "devices": set(),
    "text": set(),
    "rl": set(),
    "tabular": {"rl"},
    "environments": {"keys", "text", "rl", "tabular"},
    "models": {"devices", "text"},
    "rollout": {"keys", "devices", "text", "rl", "environments", "models"},
    "serving": {"keys", "text", "environments", "models", "rollout"},
    "training": {"keys", "devices", "text", "rl", "environments", "models", "rollout", "serving"},
    "runs": {"devices", "text", "rollout", "training"},
    "methods": {"keys", "devices", "text", "rl", "environments", "models", "rollout", "training"},
    "evaluation": {"keys", "devices", "text", "rl", "environments", "models", "rollout"},
    "view": {"text", "environments", "rollout", "training", "evaluation"},
    "studies": {"keys", "devices", "text", "rl", "models", "rollout", "training", "runs", "evaluation", "view"},
    "planning": {"devices", "text", "models", "rollout", "training", "runs", "studies"},
    "play": {"keys", "devices", "text", "environments", "models", "rollout"},
    "serve": {"devices", "text", "models", "rollout", "serving"},
    "match": {"keys", "devices", "text", "environments", "models", "rollout", "training", "evaluation", "runs", "view"},
}
COMMANDS = tuple(f"jaxmarl_llm/{name}.py" for name in ("planning/plan", "play", "serve", "match"))
TERMINAL = ("jaxmarl_llm/studies/", "jaxmarl_llm/text/arguments.py", *COMMANDS)


def imports(tree: ast.Module) -> set[str]:
    """Dotted names a module imports: `from jaxmarl_llm import keys` and `import jaxmarl_llm.keys` look alike."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            bare = node.module == "jaxmarl_llm"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if bare else {str(node.module)}
    return found


def room(path: str) -> str:
    return Path(path).relative_to("jaxmarl_llm").parts[0].removesuffix(".py")


def third_party(path: str) -> set[str]:
    return {name.split(".")[0] for name in imports(FILES[path])} - sys.stdlib_module_names - {"jaxmarl_llm"}


def test_every_arrow_points_to_a_room_further_down():
    names = list(ROOMS)
    assert len(names) <= 19
    for at, name in enumerate(names):
        assert ROOMS[name] <= set(names[:at])


def test_each_file_imports_only_what_its_room_may():
    for path in FILES:
        if room(path) == "__init__":
            continue
        own = {name for name in imports(FILES[path]) if name.startswith("jaxmarl_llm.")}
        assert {name.split(".")[1] for name in own} <= ROOMS[room(path)] | {room(path)}, path
        assert "experiments" not in third_party(path), f"{path}: the package knows no experiment"
        if room(path) == "rl":
            assert third_party(path) <= {"jax", "numpy", "flax", "chex", "optax"}, f"{path}: arrays in, arrays out"
        if path == "jaxmarl_llm/text/grammar.py":
            assert third_party(path) == {"numpy"}
        if not path.startswith(TERMINAL):
            assert not third_party(path) & {"tyro", "rich"}, f"{path} does not speak to a terminal"


def test_no_string_names_the_experiments():
    """Docstrings may give a command."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for path, tree in FILES.items():
        docstrings = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and node.body
                      and isinstance(node.body[0], ast.Expr)}  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                assert "experiments" not in node.value, f"{path}:{node.lineno}"


def test_no_file_is_long():
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]:
        assert len(path.read_text().splitlines()) <= MOST_LINES, f"{path} is more than one room: split it by topic"


MOST_FILES = 20
# parts of rooms that only one study, notebook or how-to uses: none is added
FEW_USERS = {
    "evaluation.fingerprints",
    "evaluation.search",
    "rl.rewards.rubrics",
    "rollout.joint_actions",
}


def test_a_long_function_says_why():
    """More than 60 lines after its docstring."""
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "experiments").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                first, lines = node.body[0], node.end_lineno - node.lineno + 1
                if text := ast.get_docstring(node) or "":
                    lines -= first.end_lineno - first.lineno + 1
                assert lines <= 60 or "Long because" in " ".join(text.split()), f"{path}: {node.name}"


def test_no_folder_is_full():
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= MOST_FILES, f"{folder} is more than one room"


def test_a_part_enters_a_room_with_its_second_user():
    """Exact solvers and parts that a package gives by its own name are exempt."""
    users: dict[str, set[Path]] = {}
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]:
        for name in imports(ast.parse(path.read_text())) if path.name != "__init__.py" else ():
            users.setdefault(name.removeprefix("jaxmarl_llm."), set()).add(path)
        for module, names in IMPORT.findall(path.read_text()) if path.name != "__init__.py" else ():
            for name in re.findall(r"\w+", names):
                users.setdefault(f"{module}.{name}".removeprefix("jaxmarl_llm."), set()).add(path)
    given = ("rl.advantages.", "rl.losses.", "rl.rewards.components", "evaluation.exact.")
    few = set()
    for path in FILES:
        module = path.removeprefix("jaxmarl_llm/").removesuffix(".py").replace("/", ".")
        if module.split(".")[0] not in ("training", "rl", "rollout", "evaluation") or "__init__" in module:
            continue
        others = {user for user in users.get(module, set()) if user != ROOT / path}
        studies = {user for user in others if user.is_relative_to(ROOT / "experiments")}
        core = {user for user in others - studies if user.relative_to(PACKAGE).parts[0] != "methods"}
        if not core and len(others) < 2 and not module.startswith(given):
            few.add(module)
    assert few == FEW_USERS


def test_circles_of_ideas_are_circles():
    """An import that only types need is an import."""
    for path in FILES:
        assert path.endswith("__init__.py") or "TYPE_CHECKING" not in (ROOT / path).read_text(), path


def test_tests_have_the_folders_of_what_they_test():
    of_tests = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    of_code = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
    of_code |= {path.parent.relative_to(ROOT) for path in (ROOT / "experiments").rglob("*.py")}
    assert of_tests <= of_code, sorted(map(str, of_tests - of_code))
    for path in (ROOT / "tests").rglob("test_*.py"):  # a file that is named like a module stands where it does
        folder, name = path.parent.relative_to(ROOT / "tests"), path.stem.removeprefix("test_")
        homes = [file.parent.relative_to(PACKAGE) for file in PACKAGE.rglob(f"{name}.py")]
        homes += [file.parent.relative_to(ROOT) for file in (ROOT / "experiments").rglob(f"{name}.py")]
        assert not homes or folder in homes, f"{path.relative_to(ROOT)} tests {name}, which stands in {homes}"
    assert "`toys.py`" in (ROOT / "tests/support/README.md").read_text()


def test_a_recipe_imports_nothing_but_the_base_of_another():
    """A base and its constants are written in capitals."""
    methods = [path for path in (ROOT / "experiments").glob("*/*.py") if path.parent.name != "benchmarks"]
    for path in methods:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("experiments."):
                assert all(alias.name.isupper() for alias in node.names), f"{path.name} takes more than a base"


def test_devices_are_named_in_sharding_only():
    for path in FILES:
        for node in ast.walk(FILES[path]) if path != "jaxmarl_llm/devices/sharding.py" else ():
            if isinstance(node, ast.Attribute):
                named, owner = node.attr, getattr(node.value, "id", "")
                assert not (owner == "jax" and named in {"devices", "local_devices"}), f"{path}:{node.lineno}"
                assert named not in DEVICE_NAMES, f"{path}:{node.lineno}"
            elif isinstance(node, ast.ImportFrom):
                assert not {alias.name for alias in node.names} & DEVICE_NAMES, f"{path}:{node.lineno}"


IMPORT = re.compile(r"\bfrom ((?:jaxmarl_llm|experiments|tests)[\w.]*) import ([\w, ]+)")


@pytest.mark.parametrize("kind", ["py", "ipynb", "md"])
def test_imports_within_text_name_what_is_there(kind):
    """Tests run scripts that stand in strings, and notebooks and prose hold code."""
    whole = (ROOT / folder for folder in ("jaxmarl_llm", "experiments", "tests", "notebooks", "docs", "tools"))
    paths = [path for folder in whole for path in folder.rglob(f"*.{kind}")] + list(ROOT.glob(f"*.{kind}"))
    assert paths
    for path in paths:
        for module, names in IMPORT.findall(path.read_text()):
            at = ROOT.joinpath(*module.split("."))
            assert at.is_dir() or at.with_suffix(".py").exists(), f"{path.name} imports from {module}, not there"
            own = (at / "__init__.py").read_text() if (at / "__init__.py").exists() else ""
            for name in re.findall(r"(\w+)(?: as \w+)?", names) if at.is_dir() else ():
                assert name in own or list(at.glob(f"{name}*")), f"{path.name} imports {name} from {module}, not there"


BLOCKED = """
import importlib, sys
import flax.struct  # flax imports rich for its own tables: ours are imported after it

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"{name} is blocked")

for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
    del sys.modules[name]
sys.meta_path.insert(0, Blocker())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
# what an extra brings, or a command needs: whoever asks for it imports it where it is used
EXTRAS = {
    *("gguf", "tyro", "rich", "openai", "starlette", "uvicorn", "verifiers", "mcp", "openenv", "textarena"),
    *("reasoning_gym", "pettingzoo", "openskill", "matplotlib", "trackio", "wandb", "nbformat", "torch"),
}
SERVED = "jaxmarl_llm/serving/app.py", "jaxmarl_llm/serving/clients.py"  # imported where a server or a client is made


@pytest.mark.parametrize("of", ["the package", "commands and experiments"])
def test_code_imports_without_extras(of):
    quiet = [path for path in FILES if not path.startswith((*TERMINAL, *SERVED))]
    loud = [path for path in FILES if path.startswith(TERMINAL)] + ["experiments/prompts.py"]
    loud += [str(path.relative_to(ROOT)) for path in ROOT.glob("experiments/*/*.py") if "benchmarks" not in path.parts]
    extras, paths = (EXTRAS, quiet) if of == "the package" else (EXTRAS - {"tyro", "rich"}, loud)
    modules = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in paths]
    program = [sys.executable, "-c", f"EXTRAS = {extras!r}\n{BLOCKED}", *modules]
    run = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
