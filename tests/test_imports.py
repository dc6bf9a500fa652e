"""The layers stay apart: who may import whom, and where devices and terminals are named."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jaxmarl_llm"
FILES = {str(f.relative_to(ROOT)): ast.parse(f.read_text()) for f in sorted(PACKAGE.rglob("*.py"))}
COMMANDS = {"jaxmarl_llm/play.py", "jaxmarl_llm/plan.py"}
DEVICE_NAMES = {"Mesh", "make_mesh", "PartitionSpec", "NamedSharding"}

# file -> the only modules outside the standard library that it may import
ONLY = {
    "masked": {"jax"},
    "grammar": {"numpy"},
    **{
        name: {"jax", "numpy", "flax", "chex", "optax", "jaxmarl_llm.masked"}
        for name in ("returns", "losses", "rewards")
    },
    "credit": {"jax", "jaxmarl_llm.masked", "jaxmarl_llm.returns"},
}


def imports(tree: ast.Module) -> set[str]:
    """Dotted names a module imports: `from jaxmarl_llm import masked` and `import jaxmarl_llm.masked` look alike."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            bare = node.module == "jaxmarl_llm"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if bare else {str(node.module)}
    return found


def top(name: str) -> str:
    """`jax.numpy` -> `jax`; a module of ours keeps its own name."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "jaxmarl_llm" else parts[0]


@pytest.mark.parametrize("path", FILES)
def test_each_file_imports_only_what_its_layer_may(path):
    names = {top(name) for name in imports(FILES[path])} - sys.stdlib_module_names
    module = Path(path).stem
    if Path(path).parent == Path("jaxmarl_llm") and module in ONLY:
        assert names <= ONLY[module], f"{path} may import {sorted(ONLY[module])}"
    if path.startswith("jaxmarl_llm/environment"):
        assert not names & {"jaxmarl_llm.model", "jaxmarl_llm.policy"}, f"{path} knows no model"
    if path not in COMMANDS:
        assert not names & {"tyro", "rich"}, f"{path} does not speak to a terminal"


@pytest.mark.parametrize("path", [path for path in FILES if path != "jaxmarl_llm/sharding.py"])
def test_devices_are_named_in_sharding_only(path):
    for node in ast.walk(FILES[path]):
        if isinstance(node, ast.Attribute):
            named, owner = node.attr, getattr(node.value, "id", "")
            assert not (owner == "jax" and named in {"devices", "local_devices"}), f"{path}:{node.lineno}"
            assert named not in DEVICE_NAMES, f"{path}:{node.lineno}"
        elif isinstance(node, ast.ImportFrom):
            assert not {alias.name for alias in node.names} & DEVICE_NAMES, f"{path}:{node.lineno}"


BLOCKED = """
import importlib, sys
import flax.struct  # flax imports rich for its own tables: ours are imported after it

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("gguf", "tyro", "rich"):
            raise ModuleNotFoundError(f"{name} is blocked")

for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
    del sys.modules[name]
sys.meta_path.insert(0, Blocker())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_the_package_imports_without_its_extras():
    modules = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in set(FILES) - COMMANDS]
    run = subprocess.run([sys.executable, "-c", BLOCKED, *modules], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
