"""Metrics that an update reports of what was played."""

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
    """The recipe's metrics of what was played, the estimator's own, and those of every recipe: invalid answers,
    utilisation, length and repetition, advantages by seat."""
    episodes = experience.episodes
    wrong = (episodes.acted & ~episodes.valid).sum()
    metrics = {"invalid": wrong / jnp.maximum(episodes.acted.sum(), 1)}
    metrics |= {f"utilisation/{name}": share for name, share in trajectory.utilisation.items()}
    if parts.rollout.messages.max_said:
        cut = trajectory.truncated_message_tokens
        metrics |= {f"truncated_message_tokens/{name}": count for name, count in cut.items()}
    for learner in parts.learners:
        name = parts.policy_set_of[learner]
        own = trajectory.rows[name].policy == parts.policy_sets[name].policies.index(learner)
        sampled = experience.sampled[name]
        metrics |= {f"{n}/{learner}": x.value for n, x in speech(sampled, sampled.mask & own[:, None]).items()}
        if sampled.sampler_logp is not None:
            found = mismatch(sampled.behaviour_logp, sampled.sampler_logp, sampled.mask & own[:, None])
            metrics |= {f"{n}/{learner}": x for n, x in found.items()}
    if not isinstance(advantages.advantage, dict):
        found = advantage_metrics(advantages.advantage, episodes.acted, episodes.group, parts.recipe.groups)
        for name, values in found.items():
            metrics |= {f"{name}/seat_{seat}": values[seat] for seat in range(len(values))}
    return {**parts.recipe.measure(episodes), **metrics, **experience.left_out, **advantages.metrics}
