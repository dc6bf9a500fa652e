"""A choice by name against `jnp.where` by hand, mapped and compiled; what is refused in a sentence."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl.choices import Option, check_choices, select

OPTIONS = ("ppo", "grpo", "rloo")
X = jnp.arange(6.0).reshape(2, 3)


def selected(option, x=X):
    return select(
        {"credit": option}, "credit", rloo={"a": x + 2, "b": 3}, ppo={"a": x, "b": 1}, grpo={"a": 2.5, "b": 2}
    )


def by_hand(index):
    a = jnp.where(index == 0, X, jnp.where(index == 1, jnp.full_like(X, 2.5), X + 2))
    return a, index + 1


@pytest.mark.parametrize("index", range(3))
def test_a_traced_option_and_its_name_take_what_where_takes(index):
    a, b = by_hand(index)
    for found in (jax.jit(selected)(Option.from_names(OPTIONS[index], OPTIONS)), selected(OPTIONS[index])):
        np.testing.assert_array_equal(found["a"], a)
        assert found["a"].shape == X.shape and int(found["b"]) == b


def test_arms_side_by_side_are_one_program_and_each_its_own_option():
    traced = chex.assert_max_traces(selected, n=1)
    many = jax.jit(jax.vmap(traced))
    for names in (["rloo", "ppo", "grpo", "ppo"], ["grpo", "grpo", "rloo", "ppo"]):
        found = many(Option.from_names(names, OPTIONS), jnp.tile(X, (4, 1, 1)))
        for row, name in enumerate(names):
            a, b = by_hand(OPTIONS.index(name))
            np.testing.assert_array_equal(found["a"][row], a)
            assert int(found["b"][row]) == b


def test_gradients_flow_through_the_option_alone():
    def total(x, option):
        return select({"credit": option}, "credit", square=x**2, cube=x**3).sum()

    both = ("square", "cube")
    for name, wanted in (("square", 2 * X), ("cube", 3 * X**2)):
        np.testing.assert_allclose(jax.jit(jax.grad(total))(X, Option.from_names(name, both)), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "values", "says"),
    [
        (
            Option.from_names("ppo", OPTIONS),
            {"ppo": 1, "grpo": 2},
            "has the options ppo, grpo, rloo, and .* ppo, grpo: give",
        ),
        (
            Option.from_names("ppo", OPTIONS),
            dict.fromkeys((*OPTIONS, "reinforce"), 1),
            "is given values of .*reinforce",
        ),
        (Option.from_names("ppo", OPTIONS), {"ppo": (1,), "grpo": 2, "rloo": 3}, "trees of different structure"),
        ("gpro", {"ppo": 1, "grpo": 2}, "no option of 'credit' named 'gpro': did you mean 'grpo'"),
        (jnp.float32(1), {"ppo": 1, "grpo": 2}, r"no choice 'credit': declare Recipe\(choices={'credit': \('ppo', 'g"),
        (None, {"ppo": 1, "grpo": 2}, "no choice 'credit'"),
    ],
)
def test_what_does_not_fit_is_refused_while_tracing(given, values, says):
    with pytest.raises(ValueError, match=says):
        jax.eval_shape(lambda: select({} if given is None else {"credit": given}, "credit", **values))


@pytest.mark.parametrize(
    ("choices", "selection", "says"),
    [
        ({"credit": "ppo"}, {}, "'credit' is between two or more different options, a tuple of names, got 'ppo'"),
        ({"credit": ("ppo",)}, {}, "two or more"),
        ({"credit": ("ppo", "ppo")}, {}, "different options"),
        ({"credit": (1, 2)}, {}, "a tuple of names"),
        ({"credit": (["ppo"], ["grpo"])}, {}, "a tuple of names"),
        ({"credit": OPTIONS}, {"credits": "ppo"}, "no choice named 'credits': did you mean 'credit'. Possible are cr"),
        ({"credit": OPTIONS}, {"credit": "x"}, "no option of 'credit' named 'x': possible are ppo, grpo, rloo"),
        ({}, {"credit": "x"}, "no choice named 'credit': possible are none"),
    ],
)
def test_choices_that_cannot_be_are_refused(choices, selection, says):
    with pytest.raises(ValueError, match=says):
        check_choices(choices, selection)


def test_an_option_is_neither_compared_nor_taken_for_true():
    """Both would be one value for all options: a branch that is never taken."""
    option = Option.from_names("grpo", OPTIONS)
    for read in (lambda: option == "grpo", lambda: option != "grpo", lambda: bool(option), lambda: "grpo" in [option]):
        with pytest.raises(TypeError, match="select"):
            read()
