"""A language model plays a social dilemma against itself and learns from it.

Two copies of one policy play the iterated prisoner's dilemma (3/1/5/0). What they learn depends on the credit alone:

  naive      each seat's return-to-go against the other episodes of its group, round by round
  sum        the same with both seats' rewards added up
  alignment  advantage alignment (Duque et al.): a seat also values what its past gains make of the other's

Claim, stated before any run. Naive learners end in mutual defection, about 1 point a round. With alignment they keep
cooperating (at least 2.4 points a round, of 3) and answer an unconditional defector so that it earns at most 1.6.

  python -m experiments.social_dilemma --model tiny --method naive --seeds 10       # 300 updates
  python -m experiments.social_dilemma --model tiny --method alignment --seeds 10   # 1,000 updates
  make demo                                                                        # SmolLM2-135M, naive
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from jaxmarl_llm import adapters, credit, losses, model, policy, rewards, sharding
from jaxmarl_llm.adapters import Lora
from jaxmarl_llm.checkpoint import Checkpoints
from jaxmarl_llm.environment import POOL, key_for
from jaxmarl_llm.environments.matrix_games import COOPERATE, PRISONERS_DILEMMA, MatrixGame
from jaxmarl_llm.evaluate import summarise
from jaxmarl_llm.log import RunLog
from jaxmarl_llm.masked import Mean
from jaxmarl_llm.rollout import Rollout
from jaxmarl_llm.team import Family, Lineup, strings
from jaxmarl_llm.tokens import HFTokenizer, SymbolTokenizer
from jaxmarl_llm.train import stop_on_signals, train
from jaxmarl_llm.trajectory import Trajectory, per_token, spoken
from jaxmarl_llm.update import Learners, Optimiser, update

OUTCOMES = ("CC", "CD", "DC", "DD")  # own move first


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is None takes the value that suits the model: see DEFAULTS."""

    method: Literal["naive", "sum", "alignment"] = "naive"
    """Credit: own reward, joint reward, or advantage alignment."""
    model: Literal["tiny", "smollm2"] = "tiny"
    """A two-layer policy with a token for each phrase, or SmolLM2-135M-Instruct with LoRA."""
    seeds: int = 1
    """Independent runs: side by side in one program (tiny), one after the other (smollm2)."""
    first_seed: int = 0
    updates: int | None = None
    games: int | None = None
    """Episodes an update."""
    groups: int | None = None
    """Groups that the games are divided into; the labels are exchanged from one group to the next."""
    rounds: int | None = None
    learning_rate: float | None = None
    gamma: float = 0.9
    """Discount a round."""
    beta: float = 0.5
    """Weight of the alignment term."""
    entropy: float = 0.01
    kl: float = 0.0
    """Weight of the divergence (k2) from the policy before training."""
    cap: float = 2.0
    """Bound of the importance weight."""
    clip: float = 1.0
    """Bound of the gradient's norm."""
    reward_scale: float = 5.0
    """Points are divided by this."""
    payoff: tuple[tuple[tuple[float, float], tuple[float, float]], tuple[tuple[float, float], tuple[float, float]]] = (
        PRISONERS_DILEMMA
    )
    labels: tuple[str, str] = ("A", "B")
    pool: int | None = None
    """Past selves kept; in half of the games one of them, drawn anew each update, has the other seat. 0: none."""
    snapshot_every: int = 10
    separate: bool = False
    """An adapter for each seat, instead of one policy for both (smollm2 only)."""
    rank: int = 32
    alpha: float = 64.0
    accumulate: int = 1
    """Micro-batches an update."""
    evaluation_games: int | None = None
    """Games against each scripted player and itself, before and after."""
    devices: int = 1
    """Devices on the data axis."""
    out: Path | None = None
    """Run directory; default runs/social_dilemma-METHOD-MODEL."""
    resume: bool = False
    """Continue the run in `out`."""
    checkpoint_every: int | None = None


DEFAULTS: dict[str, dict[str, Any]] = {
    "tiny": dict(
        games=256, groups=4, rounds=10, learning_rate=3e-4, pool=30, evaluation_games=64, checkpoint_every=100
    ),
    "smollm2": dict(
        games=32, groups=4, rounds=5, learning_rate=3e-4, pool=0, evaluation_games=8, checkpoint_every=5, updates=10
    ),
}
PRIOR = 0.7  # share of cooperation in the dialogues that a tiny policy is first trained on


def complete(settings: Settings) -> Settings:
    """Fills in the defaults of the model and checks what can be checked without it; raises ValueError."""
    values = {"updates": 300 if settings.method == "naive" else 1000, **DEFAULTS[settings.model]}
    values = {k: v for k, v in values.items() if getattr(settings, k) is None}
    settings = dataclasses.replace(settings, **values)
    if settings.out is None:
        settings = dataclasses.replace(settings, out=Path("runs") / f"social_dilemma-{settings.method}-{settings.model}")
    for name in ("seeds", "updates", "games", "groups", "rounds", "evaluation_games", "snapshot_every"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(settings, name)}.")
    if settings.games % settings.groups:
        raise ValueError(f"{settings.games} games do not divide into {settings.groups} groups: choose a multiple.")
    if settings.games // settings.groups < 2:
        raise ValueError(
            f"{settings.games} games in {settings.groups} groups make groups of one, and the baseline is the mean of "
            "the group's other games: choose at least twice as many games as groups."
        )
    if settings.pool and settings.groups % 2:
        raise ValueError(f"Half of the groups meet a past self, so groups must be even with a pool, got {settings.groups}.")
    if settings.separate and (settings.model == "tiny" or settings.pool):
        raise ValueError("Separate seats need adapters and no pool: --model smollm2 --pool 0.")
    return settings


class Experiment:
    """Everything that is fixed by the settings: the game, the team, the compiled programs."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.game = MatrixGame(settings.payoff, settings.rounds, settings.labels)
        self.learners = ("seat_0", "seat_1") if settings.separate else ("learner",)
        self.mesh = sharding.data_mesh(settings.devices)
        past = ("past",) if settings.pool else ()
        if settings.model == "tiny":
            self.tokenizer: Any = SymbolTokenizer(strings(self.game))
            config = tiny_config(self.tokenizer.vocab_size)
            self.lora = None
            self.families = {name: Family(self.tokenizer, (name,), config) for name in (*self.learners, *past)}
            self.base: dict | None = None
        else:
            from jaxmarl_llm import weights

            loaded = weights.load("smollm2")
            self.tokenizer = HFTokenizer(loaded.directory, loaded.config.vocab_size)
            self.lora = Lora(settings.rank, settings.alpha)
            self.families = {"smollm2": Family(self.tokenizer, (*self.learners, *past), loaded.config, self.lora)}
            self.base = loaded.params
        self.trained = next(iter(self.families))  # the family whose rows are trained
        own = (self.learners[0], self.learners[-1])
        seats = [own] * settings.groups
        if past:
            seats = [own] * (settings.groups // 2) + [(self.learners[0], "past")] * (settings.groups // 2)
        self.rollout = Rollout(self.game, self.families, Lineup(tuple(seats), settings.games // settings.groups))
        self.optimiser = Optimiser(clip=settings.clip, accumulate=settings.accumulate)
        self.openings = len(self.rollout.sides[self.trained].places)
        self.optimiser.check([self.openings])
        sharding.check_groups(self.mesh, self.openings)
        self.opponents = {"self": own[1], **{name: name for name in self.game.scripts}}
        pairs = tuple((own[0], name) for name in self.opponents.values() for _ in range(2))  # both labelings
        judged = {name: family for name, family in self.families.items() if name != "past"}
        self.judge = Rollout(self.game, judged, Lineup(pairs, -(-settings.evaluation_games // 2)))
        self.many = jax.vmap if settings.model == "tiny" else lambda f: partial(jax.lax.map, f)
        self.keys = jax.vmap(jax.random.key)(jnp.arange(settings.seeds) + settings.first_seed)

    # what a policy's weights are, and how a team is put together from them

    def start(self, key: jax.Array) -> dict:
        """The state of one seed: what training changes, and what a checkpoint holds."""
        base = None
        if self.lora is None:
            config = self.families[self.trained].config
            base = imitate(self.game, self.tokenizer, config, key)
            weights = {name: base for name in self.learners}
        else:
            weights = {
                name: adapters.init(jax.random.fold_in(key, i), self.base, self.lora)
                for i, name in enumerate(self.learners)
            }
        state: dict[str, Any] = {"learners": self.optimiser.init(weights)}
        if base is not None:
            state["base"] = base  # the policy before training: the reference of the divergence
        if self.settings.pool:
            first = weights[self.learners[0]]
            state["pool"] = jax.tree.map(lambda x: jnp.repeat(x[None], self.settings.pool, 0), first)
        return state

    def weights(self, base: dict | None, learned: dict, past: Any = None) -> dict[str, dict]:
        """What a rollout plays with, from what is learned and a past self."""
        everyone = learned | ({} if past is None else {"past": past})
        if self.lora is None:
            return {name: {"params": tree} for name, tree in everyone.items()}
        return {self.trained: {"params": base, "adapters": tuple(everyone[name] for name in self._names(past))}}

    def _names(self, past: Any) -> tuple[str, ...]:
        return self.learners + (() if past is None else ("past",))

    # one update

    def step(self, base: dict | None, scalars: dict, state: dict, key: jax.Array, number: jax.Array):
        """Plays, credits, learns: the state after one update of one seed, its metrics, and the trajectory."""
        settings, learners, past = self.settings, state["learners"], None
        event = jax.random.fold_in(key, number)
        if settings.pool:
            taken = jnp.clip(1 + number // settings.snapshot_every, 1, settings.pool)
            at = jax.random.randint(key_for(event, POOL), (), 0, taken)
            past = jax.tree.map(lambda x: x[at], state["pool"])
        trajectory = self.rollout(self.weights(base, learners.weights, past), event)
        advantage = self.credit(trajectory, scalars)
        rows = trajectory.rows[self.trained]
        said = spoken(rows, trajectory.episodes.legal, self.rollout.most_spoken(self.trained))
        batch = {"rows": rows, "said": said, "advantage": per_token(advantage, rows, said)}
        if settings.kl:
            with_base = self.score(base if self.lora else state["base"], None, batch, past, reference=True)
            batch["reference"] = with_base.logp
        loss = partial(self.loss, base, scalars, past)
        learners, metrics = update(
            self.optimiser, loss, learners, batch, self.openings, scalars["learning_rate"], event
        )
        state = {**state, "learners": learners}
        if settings.pool:
            slot = (1 + number // settings.snapshot_every) % settings.pool
            due = (number + 1) % settings.snapshot_every == 0
            state["pool"] = jax.tree.map(
                lambda pool, new: pool.at[slot].set(jnp.where(due, new, pool[slot])),
                state["pool"],
                learners.weights[self.learners[0]],
            )
        return state, metrics | self.measures(trajectory), trajectory

    def credit(self, trajectory: Trajectory, scalars: dict) -> jax.Array:
        episodes, groups = trajectory.episodes, self.settings.groups
        reward = rewards.weigh(episodes.reward, jnp.ones(1)) / self.settings.reward_scale
        if self.settings.method == "sum":
            reward = rewards.team_sum(reward)
        if self.settings.method == "alignment":
            return credit.advantage_alignment(
                reward, episodes.acted, episodes.group, groups, gamma=scalars["gamma"], beta=scalars["beta"]
            )
        return credit.round_leave_one_out(
            reward, episodes.acted, episodes.group, groups, gamma=scalars["gamma"]
        )

    def score(self, params: Any, learned: Any, batch: dict, past: Any, reference: bool = False) -> policy.Scores:
        family, side = self.families[self.trained], self.rollout.sides[self.trained]
        rows, joined, which = batch["rows"], None, None
        if self.lora and not reference:
            everyone = learned | ({} if past is None else {"past": jax.lax.stop_gradient(past)})
            joined = adapters.concatenate([everyone[name] for name in family.policies], self.lora)
            which = rows.policy if len(family.policies) > 1 else None
        return policy.score(
            family.config, params, rows, batch["said"], side.tables, joined, which, family.temperature, remat=bool(self.lora)
        )

    def loss(self, base: dict | None, scalars: dict, past: Any, learned: dict, batch: dict):
        params = base if self.lora else learned[self.learners[0]]
        scores = self.score(params, learned, batch, past)
        said = batch["said"]
        where = said.where & (batch["rows"].policy < len(self.learners))[:, None]
        total, metrics = losses.alignment(
            scores.logp, said.behaviour, batch["advantage"], scores.entropy, where,
            cap=scalars["cap"], entropy_weight=scalars["entropy"],
        )  # fmt: skip
        if self.settings.kl:
            drift, more = losses.kl_penalty(scores.logp, batch["reference"], where)
            total, metrics = Mean(total.sum + scalars["kl"] * drift.sum, total.count), metrics | more
        return total, metrics

    def measures(self, trajectory: Trajectory) -> dict[str, jax.Array]:
        """Points and cooperation of self-play, a scalar each."""
        episodes = trajectory.episodes
        count = self.settings.groups // 2 if self.settings.pool else self.settings.groups
        alone = episodes.group < count
        cooperated = (episodes.action == COOPERATE).mean((1, 2))
        mean = lambda x, where: jnp.sum(jnp.where(where, x, 0)) / jnp.maximum(where.sum(), 1)  # noqa: E731
        points = mean(episodes.reward.mean((1, 2, 3)), alone)
        measures = {"points": points, "cooperation": mean(cooperated, alone)}
        if count > 1:
            for label in range(2):
                where = alone & (episodes.group % 2 == label)
                measures[f"cooperation/as_{self.settings.labels[label]}"] = mean(cooperated, where)
        return measures | {f"utilisation/{name}": share for name, share in trajectory.utilisation.items()}


def tiny_config(vocabulary: int) -> model.Config:
    return model.Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        max_position_embeddings=256,
    )


def imitate(game: MatrixGame, tokenizer: Any, config: model.Config, key: jax.Array, updates: int = 200) -> dict:
    """Supervised training of a random policy on scripted dialogues: the format, and cooperation with probability PRIOR."""
    game = dataclasses.replace(game, cooperation=PRIOR)
    family = Family(tokenizer, ("random",))
    teacher = Rollout(game, {"teacher": family}, Lineup((("random", "random"),) * 2, 16))
    tables, optimiser = teacher.sides["teacher"].tables, Optimiser()

    def loss(weights, batch):
        rows, said = batch
        scores = policy.score(config, weights["student"], rows, said, tables)
        return losses.cross_entropy(scores.logp, said.where)

    def step(learners: Learners, number: jax.Array):
        event = jax.random.fold_in(key, number)
        played = teacher({"teacher": {}}, event)
        rows = played.rows["teacher"]
        batch = rows, spoken(rows, played.episodes.legal, teacher.most_spoken("teacher"))
        rate = 3e-3 * (1 - number / updates)
        learners, metrics = update(optimiser, loss, learners, batch, len(rows.openings.tokens), rate, event)
        return learners, metrics["cross_entropy"]

    learners = optimiser.init({"student": model.init(config, key)})
    learners, _ = jax.lax.scan(step, learners, jnp.arange(updates))
    return learners.weights["student"]
