"""Metrics of the games of an update."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.statistics import advantage_metrics, mismatch
from jaxmarl_llm.rollout.trajectory import Trajectory, speech
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.records import Advantages, Experience


def measure(
    parts: Parts, experience: Experience, trajectory: Trajectory, advantages: Advantages
) -> dict[str, jax.Array]:
    """The recipe's metrics of the games, the estimator's own, and metrics common to all recipes: invalid answers,
    utilisation, length and repetition of speech, advantages by seat."""
    episodes = experience.episodes
    wrong = (episodes.acted & ~episodes.valid).sum()
    metrics = {"invalid": wrong / jnp.maximum(episodes.acted.sum(), 1)}
    metrics |= {f"utilisation/{name}": share for name, share in trajectory.utilisation.items()}
    if parts.rollout.messages.max_said:
        cut = trajectory.truncated_message_tokens
        metrics |= {f"truncated_message_tokens/{name}": count for name, count in cut.items()}
    for learner in parts.learners:
        name = parts.policy_set_of[learner]
        mine = trajectory.rows[name].policy == parts.policy_sets[name].policies.index(learner)
        sampled = experience.sampled[name]
        metrics |= {f"{n}/{learner}": x.value for n, x in speech(sampled, sampled.mask & mine[:, None]).items()}
        if sampled.sampler_logp is not None:
            statistics = mismatch(sampled.behaviour_logp, sampled.sampler_logp, sampled.mask & mine[:, None])
            metrics |= {f"{n}/{learner}": x for n, x in statistics.items()}
    if not isinstance(advantages.advantage, dict):
        statistics = advantage_metrics(advantages.advantage, episodes.acted, episodes.group, parts.recipe.groups)
        for name, values in statistics.items():
            metrics |= {f"{name}/seat_{seat}": values[seat] for seat in range(len(values))}
    return {**parts.recipe.measure(episodes), **metrics, **experience.left_out, **advantages.metrics}
