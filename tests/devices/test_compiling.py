"""Levels of optimisation: who gets which."""

import time

import jax
import jax.numpy as jnp
import pytest

from jaxmarl_llm.devices import compiling

LEVEL, FUSIONS = "xla_backend_optimization_level", "xla_cpu_use_fusion_emitters"
EXCESS = "xla_allow_excess_precision"


def test_levels_are_for_cpus_and_for_those_who_named_none(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--{LEVEL}=2")
    assert compiling.options(1) is None
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    assert compiling.options(0)[LEVEL] == 0 and compiling.options(1)[LEVEL] == 1
    assert compiling.options(None) is None and compiling.options(None, long=True) is None
    assert compiling.options(1, long=True).get(FUSIONS) == (True if FUSIONS in compiling.options(1) else None)
    assert compiling.options(None, half=True) == {EXCESS: False}
    assert compiling.options(1, half=True) == {EXCESS: False, **compiling.options(1)}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiling.options(1) is None and compiling.options(1, half=True) is None


SMALL = compiling.Kind(small=True, long=False, half=False)


def times(n, x):
    return n * x


@pytest.mark.parametrize("small", [True, False])
def test_a_function_is_compiled_at_its_level_where_policies_are_small(monkeypatch, small):
    asked = []
    jit = jax.jit
    monkeypatch.setattr(jax, "jit", lambda f, **how: asked.append(how["compiler_options"]) or jit(f, **how))
    monkeypatch.setenv("XLA_FLAGS", "")
    x = jnp.arange(3.0)
    program = compiling.jit(times, compiling.SELDOM, SMALL._replace(small=small), static_argnums=0)
    assert (program(2, x) == 2 * x).all() and (program(3, x) == 3 * x).all()
    assert [x and x[LEVEL] for x in asked] == [0 if small else None]


@pytest.mark.parametrize(("level", "fused"), [(compiling.OFTEN, [False, True]), (compiling.SELDOM, [False, False])])
def test_what_runs_often_and_long_has_fusions(monkeypatch, level, fused):
    asked, jit, x = [], jax.jit, jnp.arange(3.0)
    monkeypatch.setattr(jax, "jit", lambda f, **how: asked.append(how["compiler_options"]) or jit(f, **how))
    monkeypatch.setenv("XLA_FLAGS", "")
    for long in (False, True):
        assert (compiling.jit(lambda x: 2 * x, level, SMALL._replace(long=long))(x) == 2 * x).all()
    assert [how.get(FUSIONS) for how in asked] == (fused if FUSIONS in asked[0] else [None] * len(fused))


def test_it_is_lowered_like_any_other():
    program, x = compiling.jit(times, compiling.SELDOM, SMALL, static_argnums=0), jnp.arange(3.0)
    compiled = program.lower(2, x).compile()
    assert (compiled(x) == program(2, x)).all() and (program(2, x) == 2 * x).all()
    assert program.eval_shape(2, x).shape == x.shape


@pytest.mark.parametrize("half", [False, True])
def test_within_another_program_it_has_no_options_of_its_own(monkeypatch, half):
    """JAX refuses compiler options of a program within a program; the tests' own XLA_FLAGS would hide that."""
    monkeypatch.setenv("XLA_FLAGS", "")
    program = compiling.jit(times, compiling.SELDOM, SMALL._replace(half=half), static_argnums=0)
    x = jnp.arange(3.0)
    assert (jax.jit(lambda x: program(2, x) + 1)(x) == 2 * x + 1).all() and (program(2, x) == 2 * x).all()
    assert (jax.jit(lambda y: program(2, x) + y)(x) == 3 * x).all()  # which is given nothing of that program
    assert jax.eval_shape(lambda: program(2, x)).shape == x.shape


def test_a_wait_is_explained_when_it_is_long(monkeypatch, capsys):
    monkeypatch.setattr(compiling, "PATIENCE", 0.05)
    with compiling.announce("compiling the quick one"):
        pass
    with pytest.raises(ZeroDivisionError), compiling.announce("compiling the wrong one"):
        raise ZeroDivisionError
    assert capsys.readouterr() == ("", "")
    with compiling.announce("compiling the long one"):
        time.sleep(0.2)
    assert capsys.readouterr() == ("", "compiling the long one ...\ncompiling the long one took 0 s\n")
