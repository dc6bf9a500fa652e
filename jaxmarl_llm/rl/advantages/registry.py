"""All estimators by name, each given what it needs: a mapping of named inputs, from which its signature picks.

    inputs = {"reward": reward, "acted": acted, "group": group, "num_groups": 8, "value": value}
    advantage = apply(ESTIMATORS["gae"], inputs)

Every preset stands in ESTIMATORS under its own name, then settings of presets, then what needs a critic, in forms that
return the advantage of acts. The names that an estimator may ask for, beside those of every preset:

    components [B,T,A,C], weights [C]   the reward before it is weighed and added
    correct [B,T,A]                     the reward, where the sums of episodes are from 0 to 1
    role [B,T,A], num_roles, state      roles, and the state of ``role_baseline``
    observation, action [B,T,A] int     what a seat saw, by numbers below num_observations, and what it did
    probability [B,T,A,N]               the policy's of every action where the seat acts
    answer [B] int                      what an episode came to
    value, team_value [B,T,A]           of the rest of the episode before an act: the seat's, and the mean over seats'
    action_value [B,T,A]                what an act was worth: Q of the seat, of the rest of the episode
    log_ratio [B,T,A]                   log pi - log mu of an act, 0 for games of the policy itself
    gamma, beta                         discount; of two seats, the weight of the other's advantage
    exact [B,T,A]                       the advantages themselves, where they are known
    joint [n,G,...,G,A]                 where all act once and at once: `joint.crossed`'s rewards of joint actions
    alternatives [B,1,A,N]              likewise: what the seat is paid for each of its actions, the others' staying
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
"""Of named inputs; returns advantages [B,T,A], alone or first in a tuple."""


def needs(of: Estimate) -> tuple[str, ...]:
    """The inputs that an estimator cannot do without: the parameters of its signature that have no default."""
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    taken = inspect.signature(of).parameters.values()
    return tuple(one.name for one in taken if one.kind in named and one.default is inspect.Parameter.empty)


def apply(of: Estimate, inputs: Mapping[str, Any]) -> Array:
    """The advantages [B,T,A] of an estimator, given those of the inputs that it needs.

    Raises ValueError if one is missing.
    """
    wanted = needs(of)
    if missing := [name for name in wanted if name not in inputs]:
        raise ValueError(f"The estimator needs {', '.join(missing)}: the inputs are {', '.join(inputs)}.")
    found = of(**{name: inputs[name] for name in wanted})
    return found[0] if isinstance(found, tuple) else found


def _decoupled(components: Array, acted: Array, group: Array, num_groups: int, weights: Array) -> Array:
    return advantages.decoupled(components, acted, group, num_groups, weights=weights)


def _beta_normalised(correct: Array, acted: Array, group: Array, num_groups: int) -> Array:
    return advantages.beta_normalised(correct, acted, group, num_groups)


def _consistency(correct: Array, acted: Array, group: Array, num_groups: int, answer: Array, **options: bool) -> Array:
    return advantages.consistency(correct, acted, group, num_groups, answer=answer, **options)


def _through_agents(
    reward: Array, acted: Array, group: Array, num_groups: int, team_value: Array, **options: Any
) -> returns.Targets:
    return advantages.sequential_agents(reward, acted, group, num_groups, value=team_value, **options)


def _critic(reward: Array, value: Array, acted: Array, *, of: Callable[..., returns.Targets], **options: Any) -> Array:
    return of(reward, value, acted, **options).advantage


def _v_trace(reward: Array, value: Array, log_ratio: Array, acted: Array) -> Array:
    return returns.v_trace(reward, value, log_ratio, acted).advantage


def _joint(reward: Array, value: Array, acted: Array) -> Array:
    """One advantage for all who act in a turn: of the sums of rewards and of the seats' latest values."""
    one = returns.gae(reward.sum(2), returns.joint_value(value, acted), acted.any(2)).advantage
    return keep(jnp.broadcast_to(one[..., None], acted.shape), acted)


def _by_token(
    reward: Array, value: Array, acted: Array, *, of: Callable[..., returns.Targets], **options: Any
) -> Array:
    """Critics of tokens, where an act is one token: each seat of each episode is a row."""
    episodes, turns, seats = acted.shape
    rows = lambda x: jnp.moveaxis(x, 2, 1).reshape(-1, turns)  # noqa: E731
    turn = jnp.broadcast_to(jnp.arange(turns)[None], (episodes * seats, turns))
    found = of(rows(reward), rows(value), turn, rows(acted), **options).advantage
    return jnp.moveaxis(found.reshape(episodes, seats, turns), 1, 2)


def _utterance_critic(action_value: Array, value: Array) -> Array:
    """ArCHer's advantage, Q - V of an utterance critic."""
    return action_value - value


def _crossed(joint: Array, acted: Array) -> Array:
    return keep(advantages.crossed(joint).reshape(acted.shape), acted)


def _counterfactual(alternatives: Array, probability: Array, action: Array, acted: Array) -> Array:
    return keep(advantages.counterfactual(alternatives, probability, action), acted)


def _exact(exact: Array) -> Array:
    return exact


ESTIMATORS: dict[str, Estimate] = {
    **advantages.PRESETS,
    "decoupled": _decoupled,
    "sequential_agents": _through_agents,
    "beta_normalised": _beta_normalised,
    "consistency": _consistency,
    "consistency_as_released": partial(_consistency, discount=False, right_only=True),
    "hierarchical": hierarchical,
    "reinforce_to_go": partial(advantages.reinforce, returns="to_go"),
    "dr_grpo": partial(advantages.grpo, scale="none"),
    "grpo_per_agent": partial(advantages.grpo, per_agent=True),
    "rloo_per_agent": partial(advantages.rloo, per_agent=True),
    "turn_wise_to_go": partial(advantages.turn_wise, returns="to_go"),
    "role_and_turn": partial(advantages.turn_level, centre=None, by=("role", "turn"), whitened=False),
    "gae_lambda_1": partial(_critic, of=returns.gae),
    "gae_lambda_0.95": partial(_critic, of=returns.gae, lam=0.95),
    "gae_lambda_0": partial(_critic, of=returns.gae, lam=0.0),
    "two_steps": partial(_critic, of=returns.n_step, n=2),
    "v_trace": _v_trace,
    "gae_by_token": partial(_by_token, of=returns.gae_by_token, lam=0.95),
    "gae_bi_level": partial(_by_token, of=returns.gae_bi_level, lam=0.95),
    "gae_joint_value": _joint,
    "gae_through_agents": partial(_through_agents, whitened=False),
    "utterance_critic": _utterance_critic,
    "fitted_critic": returns.fitted_critic,
    "crossed": _crossed,
    "counterfactual": _counterfactual,
    "exact": _exact,
}
"""{name: estimator}. One that is put in here, or in PRESETS, is in every table that goes through all of them."""
