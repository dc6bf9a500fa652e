"""The registry of estimators: required inputs are read from signatures, and renamed critics do not change."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.advantages.registry import ESTIMATORS, apply, required_inputs
from tests.support.advantage_variants import GROUPS, ROLES, full

UNMOVED = ("grpo", "dr_grpo", "lite", "rloo", "grpo_per_agent", "rloo_per_agent", "agent_wise", "decoupled_grpo")


def inputs(seed: int, shift: float = 0.0) -> dict:
    x = full(seed)
    for name in ("reward", "components"):
        x[name][:, 0] += shift * (1 if name == "reward" else 0.5)
    return {name: jnp.asarray(field) for name, field in x.items()} | {
        "num_groups": GROUPS,
        "num_roles": ROLES,
        "team_value": jnp.asarray(x["value"]),
        "log_ratio": jnp.zeros(x["reward"].shape),
    }


def of(*names: str, given: dict) -> dict[str, np.ndarray]:
    numbers = {name: x for name, x in given.items() if isinstance(x, int)}
    rest = {name: x for name, x in given.items() if name not in numbers}
    return jax.jit(lambda x: {name: apply(ESTIMATORS[name], x | numbers) for name in names})(rest)


def test_every_estimator_has_its_name():
    """All exported estimators are registered; `consistency_parts` makes the parts of `consistency`."""
    first = list(inspect.signature(advantages.rloo).parameters)[:4]
    public = {name: getattr(advantages, name) for name in advantages.__all__}
    named = {
        name for name, of in public.items() if callable(of) and list(inspect.signature(of).parameters)[:4] == first
    }
    assert set(advantages.PRESETS) <= named <= {*ESTIMATORS, "consistency_parts"}


def test_parameters_without_a_default_are_required():
    assert required_inputs(advantages.rloo) == ("reward", "acted", "group", "num_groups")
    assert required_inputs(partial(advantages.advantage_alignment, beta=1.0)) == (
        *required_inputs(advantages.rloo),
        "gamma",
    )
    assert required_inputs(lambda value, acted, *more, lam=1.0, **options: value) == ("value", "acted")


def test_a_missing_input_is_named():
    with pytest.raises(ValueError, match="needs num_groups, observation: the inputs are reward, acted, group"):
        apply(ESTIMATORS["step_groups"], dict.fromkeys(("reward", "acted", "group")))


def test_an_estimator_is_given_what_it_asks_for_and_its_advantage_comes_back():
    given = inputs(0)
    found = of("rloo", "sequential_agents", "gae_lambda_0.95", given=given)
    np.testing.assert_allclose(
        found["rloo"], advantages.rloo(*(given[x] for x in required_inputs(advantages.rloo))), atol=1e-5
    )
    targets = returns.gae(given["reward"], given["value"], given["acted"], lam=0.95)
    np.testing.assert_allclose(found["gae_lambda_0.95"], targets.advantage, atol=1e-5)
    assert found["sequential_agents"].shape == given["acted"].shape


def test_critics_of_tokens_and_acts_agree_for_acts_of_one_token():
    found = of("gae_by_token", "gae_lambda_0.95", "v_trace", "gae_lambda_1", given=inputs(1))
    np.testing.assert_allclose(found["gae_by_token"], found["gae_lambda_0.95"], atol=1e-5)
    np.testing.assert_allclose(found["v_trace"], found["gae_lambda_1"], atol=1e-5)


def test_a_constant_reward_changes_no_estimator_with_a_baseline():
    still, moved = (of(*UNMOVED, "reinforce", given=inputs(2, shift)) for shift in (0.0, 3.0))
    for name in UNMOVED:
        np.testing.assert_allclose(moved[name], still[name], atol=2e-5, err_msg=name)
    acted = full(2)["acted"]
    np.testing.assert_allclose((moved["reinforce"] - still["reinforce"])[acted], 3, atol=1e-5)
