"""Conditions and choices that all lanes share: what `vmap` makes of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.devices.lanes import any_lane, most_of_lanes


def count_down(limit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A loop that leaves a lane alone once it has reached its limit."""

    def body(carry):
        step, total = carry
        running = step < limit
        return jnp.where(running, step + 1, step), jnp.where(running, total + (step + 1) ** 2, total)

    return jax.lax.while_loop(lambda carry: any_lane(carry[0] < limit), body, (limit * 0, limit * 0))


def the_loop(jaxpr):
    return next(equation for equation in jaxpr.eqns if equation.primitive.name == "while")


def test_a_vmapped_loop_keeps_one_condition_and_selects_no_carry():
    limits = jnp.array([3, 0, 7, 5])
    with_any_lane = the_loop(jax.make_jaxpr(jax.vmap(count_down))(limits).jaxpr)
    assert with_any_lane.params["cond_jaxpr"].out_avals[0].shape == ()

    def selects(function) -> int:
        body = the_loop(jax.make_jaxpr(function)(limits).jaxpr).params["body_jaxpr"].jaxpr
        return str(body).count("select_n")

    assert selects(jax.vmap(count_down)) == selects(count_down)  # the two that the body itself holds


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_lanes_of_a_vmapped_loop_equal_lanes_run_alone(wrap):
    limits = jnp.array([[3, 0, 7], [5, 1, 2]])
    alone = [[count_down(limit) for limit in row] for row in limits]
    together = wrap(jax.vmap(jax.vmap(count_down)))(limits)
    for field in (0, 1):
        np.testing.assert_array_equal(together[field], [[lane[field] for lane in row] for row in alone])
    np.testing.assert_array_equal(wrap(jax.vmap(count_down, in_axes=1))(limits)[0], limits.T)


def test_any_lane_sees_every_lane_and_is_any_without_vmap():
    x = jnp.zeros((2, 3, 4), bool)
    nested = jax.vmap(jax.vmap(any_lane, out_axes=None), out_axes=None)  # out_axes=None refuses a batched output
    assert not nested(x)
    assert nested(x.at[1, 2, 3].set(True))
    assert any_lane(jnp.array([False, True])) and not any_lane(jnp.array(False))


def test_a_vmapped_switch_computes_one_branch_for_all_lanes():
    wide_enough = lambda x, need: jax.lax.switch(most_of_lanes(need), [jnp.sin, jnp.cos, jnp.exp], x)
    x, need = jnp.arange(4.0).reshape(2, 2), jnp.array([[0, 1], [1, 0]])
    vmapped = jax.vmap(wide_enough)
    np.testing.assert_array_equal(vmapped(x, need), jnp.cos(x))
    assert "select_n" not in str(jax.make_jaxpr(vmapped)(x, need))
    nested = jax.vmap(jax.vmap(most_of_lanes, out_axes=None), out_axes=None)
    assert nested(jnp.arange(24).reshape(2, 3, 4)) == 23
