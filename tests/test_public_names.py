"""The names that the package offers at its top."""

import subprocess
import sys

import pytest

import jaxmarl_llm


@pytest.mark.parametrize("name", jaxmarl_llm.__all__)
def test_a_public_name_is_there(name):
    assert getattr(jaxmarl_llm, name) is not None and name in dir(jaxmarl_llm)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match="no public name 'Family': choose from Choice, "):
        jaxmarl_llm.Family  # noqa: B018


def test_the_package_alone_imports_no_jax():
    probe = "import sys, jaxmarl_llm; print('jax' in sys.modules, jaxmarl_llm.__version__)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False ")
