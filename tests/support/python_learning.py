"""A tiny policy of few tokens learns in a game in plain Python, by REINFORCE against the other games of its group."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.models import decoder
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.losses import ppo_clip
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import gather_sampled, per_token
from jaxmarl_llm.serving.python_rollout import PythonRollout
from jaxmarl_llm.training.update import Optimiser, update
from tests.support.toys import ByteTokenizer


def learn(
    make: Callable[[], Any],
    seats: tuple[tuple[str, ...], ...],
    turns: int,
    scripts: Mapping[str, Callable] | None = None,
    check: Callable[[Any], None] = lambda episodes: None,
    updates: int = 25,
) -> list[float]:
    """What the policy "learner" in seat 0 earns a turn in each update."""
    tokenizer = ByteTokenizer((), bytes(set(range(256)) - set(b"\nsua012?")))
    config = Config(tokenizer.vocab_size, 16, 24, 1, 2, 1, 8, 128)
    sets = {"us": PolicySet(tokenizer, ("learner",), config)}
    rollout = PythonRollout(make, sets, Lineup(seats, 32), turns=turns, budget=2, scripts=scripts or {})
    scorer, optimiser = rollout.layouts["us"].scorer(), Optimiser()

    def loss(learners, batch):
        rows, sampled, advantage = batch
        scores = scorer(learners["us"], rows, sampled)
        return ppo_clip(scores.logp, sampled.behaviour_logp, advantage, sampled.mask)

    @jax.jit
    def step(learners, trajectory, key):
        rows, episodes = trajectory.rows["us"], trajectory.episodes
        sampled = gather_sampled(rows, episodes.legal, rollout.max_sampled_tokens("us"))
        advantage = advantages.rloo(episodes.reward[..., 0], episodes.acted, episodes.group, len(seats), per_agent=True)
        batch = rows, sampled, per_token(advantage, rows, sampled)
        return update(optimiser, loss, learners, batch, len(seats), jnp.float32(3e-2), key)[0]

    learners, earned = optimiser.init({"us": decoder.init(config, jax.random.key(0))}), []
    for number in range(updates):
        key = jax.random.key(number)
        trajectory = rollout({"us": {"params": learners.weights["us"]}}, key)
        check(trajectory.episodes)
        earned.append(float(trajectory.episodes.reward[:, :turns, 0, 0].mean()))
        learners = step(learners, jax.tree.map(jnp.asarray, trajectory), key)
    return earned
