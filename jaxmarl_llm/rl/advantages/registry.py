"""All estimators by name, in one form: each takes named inputs, as its signature says, and returns advantages of acts.

    inputs = {"reward": reward, "acted": acted, "group": group, "num_groups": 8, "value": value}
    advantage = apply(ESTIMATORS["gae"], inputs)

ESTIMATORS holds every preset under its own name, then settings of presets, then estimators with a critic. Inputs
besides those of every preset:

    components [B,T,A,C], weights [C]   the components of the reward, and their weights
    correct [B,T,A]                     a reward whose sum over an episode is in [0, 1]
    role [B,T,A], num_roles, state      roles, and the state of ``role_baseline``
    observation, action [B,T,A] int     numbers of observations, below num_observations, and of actions
    probability [B,T,A,N]               the policy's probability of every action where the seat acts
    answer [B] int                      the final answer of an episode
    value, team_value [B,T,A]           the expected return before an act: of the seat, and the mean over seats
    action_value [B,T,A]                Q of an act: the seat's expected return after it
    log_ratio [B,T,A]                   log pi - log mu of an act, 0 on-policy
    gamma, beta                         discount; in `advantage_alignment` the weight of the other seat's advantage
    exact [B,T,A]                       the exact advantages, where they are known
    joint [n,G,...,G,A]                 one simultaneous turn: rewards of joint actions, see `joint.cross_joint`
    alternatives [B,1,A,N]              likewise: the seat's reward for each of its actions, the others' fixed
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.advantages.hierarchical import hierarchical
from jaxmarl_llm.rl.masked import keep

Estimate = Callable[..., Any]
"""A function of named inputs that returns advantages [B,T,A], alone or first in a tuple."""


def required_inputs(estimator: Estimate) -> tuple[str, ...]:
    """The required inputs of an estimator: the parameters of its signature without a default."""
    by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = inspect.signature(estimator).parameters.values()
    return tuple(
        parameter.name
        for parameter in parameters
        if parameter.kind in by_name and parameter.default is inspect.Parameter.empty
    )


def apply(estimator: Estimate, inputs: Mapping[str, Any]) -> Array:
    """The advantages [B,T,A] of an estimator, called with the inputs that it requires.

    Raises ValueError if an input is missing.
    """
    names = required_inputs(estimator)
    if missing := [name for name in names if name not in inputs]:
        raise ValueError(f"The estimator needs {', '.join(missing)}: the inputs are {', '.join(inputs)}.")
    result = estimator(**{name: inputs[name] for name in names})
    return result[0] if isinstance(result, tuple) else result


def _decoupled_advantage(components: Array, acted: Array, group: Array, num_groups: int, weights: Array) -> Array:
    return advantages.decoupled_grpo(components, acted, group, num_groups, weights=weights)


def _beta_advantage(correct: Array, acted: Array, group: Array, num_groups: int) -> Array:
    return advantages.beta_normalised(correct, acted, group, num_groups)


def _consistency_advantage(
    correct: Array, acted: Array, group: Array, num_groups: int, answer: Array, **options: bool
) -> Array:
    return advantages.consistency(correct, acted, group, num_groups, answer=answer, **options)


def _sequential_targets(
    reward: Array, acted: Array, group: Array, num_groups: int, team_value: Array, **options: Any
) -> returns.Targets:
    return advantages.sequential_agents(reward, acted, group, num_groups, value=team_value, **options)


def _critic_advantage(
    reward: Array, value: Array, acted: Array, *, estimator: Callable[..., returns.Targets], **options: Any
) -> Array:
    return estimator(reward, value, acted, **options).advantage


def _v_trace_advantage(reward: Array, value: Array, log_ratio: Array, acted: Array) -> Array:
    return returns.v_trace(reward, value, log_ratio, acted).advantage


def _joint_advantage(reward: Array, value: Array, acted: Array) -> Array:
    """GAE with the sum of rewards and the sum of the seats' latest values: all seats of a turn have one advantage."""
    team = returns.gae(reward.sum(2), returns.joint_value(value, acted), acted.any(2)).advantage
    return keep(jnp.broadcast_to(team[..., None], acted.shape), acted)


def _token_advantage(
    reward: Array, value: Array, acted: Array, *, estimator: Callable[..., returns.Targets], **options: Any
) -> Array:
    """Token-level estimators for games whose acts are single tokens: each seat of each episode is a row."""
    episodes, turns, seats = acted.shape
    rows = lambda x: jnp.moveaxis(x, 2, 1).reshape(-1, turns)
    turn = jnp.broadcast_to(jnp.arange(turns)[None], (episodes * seats, turns))
    advantage = estimator(rows(reward), rows(value), turn, rows(acted), **options).advantage
    return jnp.moveaxis(advantage.reshape(episodes, seats, turns), 1, 2)


def _utterance_advantage(action_value: Array, value: Array) -> Array:
    """The advantage of ArCHer: Q - V of an utterance critic."""
    return action_value - value


def _crossed_advantage(joint: Array, acted: Array) -> Array:
    return keep(advantages.cross_joint(joint).reshape(acted.shape), acted)


def _counterfactual_advantage(alternatives: Array, probability: Array, action: Array, acted: Array) -> Array:
    return keep(advantages.counterfactual(alternatives, probability, action), acted)


def _exact_advantage(exact: Array) -> Array:
    return exact


ESTIMATORS: dict[str, Estimate] = {
    **advantages.PRESETS,
    "decoupled_grpo": _decoupled_advantage,
    "sequential_agents": _sequential_targets,
    "beta_normalised": _beta_advantage,
    "consistency": _consistency_advantage,
    "consistency_as_released": partial(_consistency_advantage, discount=False, right_only=True),
    "hierarchical": hierarchical,
    "reinforce_to_go": partial(advantages.reinforce, returns="to_go"),
    "dr_grpo": partial(advantages.grpo, scale="none"),
    "grpo_per_agent": partial(advantages.grpo, per_agent=True),
    "rloo_per_agent": partial(advantages.rloo, per_agent=True),
    "turn_wise_to_go": partial(advantages.turn_wise, returns="to_go"),
    "role_and_turn": partial(advantages.turn_level, centre=None, by=("role", "turn"), whitened=False),
    "gae_lambda_1": partial(_critic_advantage, estimator=returns.gae),
    "gae_lambda_0.95": partial(_critic_advantage, estimator=returns.gae, lam=0.95),
    "gae_lambda_0": partial(_critic_advantage, estimator=returns.gae, lam=0.0),
    "two_steps": partial(_critic_advantage, estimator=returns.n_step, n=2),
    "v_trace": _v_trace_advantage,
    "gae_by_token": partial(_token_advantage, estimator=returns.gae_by_token, lam=0.95),
    "gae_bi_level": partial(_token_advantage, estimator=returns.gae_bi_level, lam=0.95),
    "gae_joint_value": _joint_advantage,
    "gae_through_agents": partial(_sequential_targets, whitened=False),
    "utterance_critic": _utterance_advantage,
    "fitted_critic": returns.fitted_critic,
    "crossed": _crossed_advantage,
    "counterfactual": _counterfactual_advantage,
    "exact": _exact_advantage,
}
"""{name: estimator}. Tables and tests of all estimators read this dict, which includes PRESETS."""
