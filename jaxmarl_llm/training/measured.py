"""Metrics of the games of an update."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.bridges.python_games import HostGame
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rl.statistics import advantage_metrics, mismatch
from jaxmarl_llm.rollout.trajectory import SampledTokens, Trajectory
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.records import Advantages, Experience


def measure(
    parts: Parts, experience: Experience, trajectory: Trajectory, advantages: Advantages
) -> dict[str, jax.Array]:
    """The recipe's metrics of the games, the estimator's own, and metrics common to all recipes. Those are invalid
    answers, utilisation, length and repetition of speech, and advantages by seat. Games on the host have the share that
    was cut off, too."""
    episodes = experience.episodes
    wrong = (episodes.acted & ~episodes.valid).sum()
    metrics = {"invalid": wrong / jnp.maximum(episodes.acted.sum(), 1)}
    metrics |= {f"utilisation/{name}": share for name, share in trajectory.utilisation.items()}
    if isinstance(parts.recipe.game, HostGame):
        metrics["cut_off"] = episodes.truncated.mean()
    if parts.rollout.messages.max_said:
        cut = trajectory.truncated_message_tokens
        metrics |= {f"truncated_message_tokens/{name}": count for name, count in cut.items()}
    for learner in parts.learners:
        name = parts.policy_set_of[learner]
        mine = trajectory.rows[name].policy == parts.policy_sets[name].policies.index(learner)
        sampled = experience.sampled[name]
        said = speech(sampled, sampled.mask & mine[:, None], parts.policy_sets[name].tokenizer.end)
        metrics |= {f"{n}/{learner}": x.value for n, x in said.items()}
        if sampled.sampler_logp is not None:
            statistics = mismatch(sampled.behaviour_logp, sampled.sampler_logp, sampled.mask & mine[:, None])
            metrics |= {f"{n}/{learner}": x for n, x in statistics.items()}
    if not isinstance(advantages.advantage, dict):
        statistics = advantage_metrics(advantages.advantage, episodes.acted, episodes.group, parts.recipe.groups)
        for name, values in statistics.items():
            metrics |= {f"{name}/seat_{seat}": values[seat] for seat in range(len(values))}
    return {**parts.recipe.measure(episodes), **metrics, **experience.left_out, **advantages.metrics}


def speech(sampled: SampledTokens, where: jax.Array, end: int | None) -> dict[str, Mean]:
    """Metrics of the length and repetition of utterances; `where` bool [R, M] holds whole utterances.

    An utterance is the sampled tokens of a row in one turn. `end` is the token that ends answers, None if there is
    none: the last place of a budget holds only the end, which is then not sampled.

        length    sampled tokens an utterance
        full      the share of utterances that used their whole budget before they ended
        repeated  the share of bigrams that occurred before in the same utterance
    """
    same = where[:, 1:] & where[:, :-1] & (sampled.turn[:, 1:] == sampled.turn[:, :-1])  # as the token before
    ends = where & jnp.pad(~same, ((0, 0), (0, 1)), constant_values=True)
    utterances = ends.sum(dtype=jnp.float32)
    full = sampled.tokens_left <= 1 if end is None else (sampled.tokens_left <= 2) & (sampled.token != end)
    pairs = jnp.where(same, sampled.turn[:, 1:], -1), sampled.token[:, :-1], sampled.token[:, 1:]
    turn, *pair = jax.lax.sort(pairs, dimension=1, num_keys=3)
    again = (turn[:, 1:] >= 0) & (turn[:, 1:] == turn[:, :-1])
    for token in pair:
        again &= token[:, 1:] == token[:, :-1]
    return {
        "length": Mean(where.sum(dtype=jnp.float32), utterances),
        "full": Mean((ends & full).sum(dtype=jnp.float32), utterances),
        "repeated": Mean(again.sum(dtype=jnp.float32), same.sum(dtype=jnp.float32)),
    }
