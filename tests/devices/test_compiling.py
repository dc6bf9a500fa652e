"""Levels of optimisation: who gets which."""

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


class Twice:
    def __init__(self, small, long=False):
        self.small, self.long, self.half = small, long, False

    @compiling.jit(compiling.SELDOM, static_argnums=(0, 1))
    def times(self, n, x):
        return n * x


@pytest.mark.parametrize("small", [True, False])
def test_a_method_is_compiled_at_its_level_where_the_object_is_small(monkeypatch, small):
    asked = []
    jit = jax.jit
    monkeypatch.setattr(jax, "jit", lambda f, **how: asked.append(how["compiler_options"]) or jit(f, **how))
    monkeypatch.setenv("XLA_FLAGS", "")
    one, x = Twice(small), jnp.arange(3.0)
    times = compiling.jit(compiling.SELDOM, static_argnums=(0, 1))(lambda self, n, x: n * x)
    assert (times(one, 2, x) == 2 * x).all() and (times(one, 3, x) == 3 * x).all()
    assert [x and x[LEVEL] for x in asked] == [0 if small else None]


@pytest.mark.parametrize(("level", "fused"), [(compiling.OFTEN, [False, True]), (compiling.SELDOM, [False])])
def test_what_runs_often_and_long_has_fusions(monkeypatch, level, fused):
    asked, jit, x = [], jax.jit, jnp.arange(3.0)
    monkeypatch.setattr(jax, "jit", lambda f, **how: asked.append(how["compiler_options"]) or jit(f, **how))
    monkeypatch.setenv("XLA_FLAGS", "")
    times = compiling.jit(level, static_argnums=0)(lambda self, x: 2 * x)
    for one in (Twice(True), Twice(True, long=True), Twice(True)):
        assert (times(one, x) == 2 * x).all()
    assert [how.get(FUSIONS) for how in asked] == (fused if FUSIONS in asked[0] else [None] * len(fused))


def test_it_is_lowered_like_any_other():
    one, x = Twice(True), jnp.arange(3.0)
    compiled = Twice.times.lower(one, 2, x).compile()
    assert (compiled(x) == one.times(2, x)).all() and (one.times(2, x) == 2 * x).all()


def test_within_another_program_it_has_no_level_of_its_own(monkeypatch):
    """JAX refuses compiler options of a program within a program; the tests' own XLA_FLAGS would hide that."""
    monkeypatch.setenv("XLA_FLAGS", "")
    times = compiling.jit(compiling.SELDOM, static_argnums=(0, 1))(lambda self, n, x: n * x)
    one, x = Twice(True), jnp.arange(3.0)
    assert (jax.jit(lambda x: times(one, 2, x) + 1)(x) == 2 * x + 1).all() and (times(one, 2, x) == 2 * x).all()
    assert (jax.jit(lambda y: times(one, 2, x) + y)(x) == 3 * x).all()  # which is given nothing of that program
    assert jax.eval_shape(lambda: times(one, 2, x)).shape == x.shape
