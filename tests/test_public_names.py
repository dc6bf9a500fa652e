"""The names that the package offers at its top."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import jaxmarl_llm


@pytest.mark.parametrize("name", jaxmarl_llm.__all__)
def test_a_public_name_is_there(name):
    assert getattr(jaxmarl_llm, name) is not None and name in dir(jaxmarl_llm)


def test_an_editor_finds_every_name_where_it_is_imported_from():
    """Names that are imported under TYPE_CHECKING are those of the table, of the same modules."""
    tree = ast.parse(Path(jaxmarl_llm.__file__).read_text())
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    assert isinstance(guarded.test, ast.Name) and guarded.test.id == "TYPE_CHECKING"
    known = {one.name: line.module for line in guarded.body for one in line.names}
    assert all(one.asname == one.name for line in guarded.body for one in line.names)  # exported again
    assert known == {name: f"jaxmarl_llm.{home}" for name, home in jaxmarl_llm._MODULE_OF.items()}


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match="no public name 'Family': choose from Choice, "):
        jaxmarl_llm.Family  # noqa: B018


def test_the_package_alone_imports_no_jax():
    probe = "import sys, jaxmarl_llm; print('jax' in sys.modules, jaxmarl_llm.__version__)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False ")
