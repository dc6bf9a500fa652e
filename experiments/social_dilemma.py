"""A language model plays a social dilemma against itself and learns from it.

Two copies of one policy play the iterated prisoner's dilemma (3/1/5/0). What they learn depends on the credit alone:

  naive      each seat's return-to-go against the other episodes of its group, round by round
  sum        the same with both seats' rewards added up
  alignment  advantage alignment (Duque et al.): a seat also values what its past gains make of the other's

Stated before any run. Tiny policies start from a cooperative prior, P(C) = 0.7. Naive ones end in mutual defection: at
most 1.2 points a round in self-play. With alignment they keep cooperating, at least 2.4 points of 3 in the last tenth
of the updates, and answer an unconditional defector so that it earns at most 1.6. SmolLM2's cooperation under naive
learning falls, whichever of the labels A and B it bears.

  python -m experiments.social_dilemma --model tiny --method naive --seeds 10       # 300 updates, 5 minutes
  python -m experiments.social_dilemma --model tiny --method alignment --seeds 10   # 600 updates, 10 minutes
  make demo                                                                        # SmolLM2-135M, naive, 24 updates

Times are for two CPU cores.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from jaxmarl_llm import adapters, credit, losses, model, policy, rewards, sharding, weights
from jaxmarl_llm.adapters import Lora
from jaxmarl_llm.checkpoint import Checkpoints
from jaxmarl_llm.environment import EVALUATE, POOL, START, UPDATE, key_for
from jaxmarl_llm.environments.matrix_games import COOPERATE, PRISONERS_DILEMMA, MatrixGame
from jaxmarl_llm.evaluate import summarise
from jaxmarl_llm.log import RunLog
from jaxmarl_llm.masked import Mean
from jaxmarl_llm.model import Remat
from jaxmarl_llm.rollout import Rollout
from jaxmarl_llm.team import Family, Lineup, strings
from jaxmarl_llm.tokens import HFTokenizer, SymbolTokenizer
from jaxmarl_llm.train import stop_on_signals, train
from jaxmarl_llm.trajectory import Trajectory, per_token, spoken
from jaxmarl_llm.update import Learners, Optimiser, update

OUTCOMES = ("CC", "CD", "DC", "DD")  # own move first


Method = Literal["naive", "sum", "alignment"]
Model = Literal["tiny", "smollm2"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The defaults depend on the method and the model: see `defaults`."""

    method: Method = "naive"
    """Credit: own reward, joint reward, or advantage alignment."""
    model: Model = "tiny"
    """A two-layer policy with a token for each phrase, or SmolLM2-135M-Instruct with LoRA."""
    seeds: int = 1
    """Independent runs: side by side in one program (tiny), one after the other (smollm2)."""
    first_seed: int = 0
    updates: int = 300
    games: int = 256
    """Episodes an update."""
    groups: int = 4
    """Groups that the games are divided into; the labels are exchanged from one group to the next."""
    rounds: int = 10
    learning_rate: float = 3e-4
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
    payoff: tuple[tuple[tuple[float, ...], ...], ...] = PRISONERS_DILEMMA
    """[seat 0's action][seat 1's action][seat]."""
    labels: tuple[str, str] = ("A", "B")
    """What the moves are called; exchanged between groups."""
    pool: int = 30
    """Past selves kept; in half of the games one of them, drawn anew each update, has the other seat. 0: none."""
    snapshot_every: int = 10
    separate: bool = False
    """An adapter for each seat, instead of one policy for both (smollm2 only)."""
    rank: int = 32
    alpha: float = 64.0
    accumulate: int = 1
    """Micro-batches an update."""
    remat: Remat = "none"
    """What the backward pass computes again: nothing, all but matrix products, or everything."""
    evaluation_games: int = 64
    """Games against each scripted player and itself, before and after."""
    devices: int = 1
    """Devices on the data axis."""
    out: Path = Path("runs/social_dilemma")
    """Run directory."""
    resume: bool = False
    """Continue the run in `out`."""
    checkpoint_every: int = 100

    def __post_init__(self):
        counts = ("seeds", "updates", "games", "groups", "rounds", "evaluation_games", "snapshot_every")
        for name in (*counts, "checkpoint_every", "accumulate", "rank", "devices"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("learning_rate", "cap", "clip", "reward_scale", "alpha"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a positive number, got {getattr(self, name)}.")
        for name in ("entropy", "kl", "beta", "pool", "first_seed"):
            if not 0 <= getattr(self, name) < 2**31:
                raise ValueError(f"{name} must be at least 0 and below 2^31, got {getattr(self, name)}.")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie between 0 and 1, got {self.gamma}.")
        if self.games % self.groups:
            raise ValueError(f"{self.games} games do not divide into {self.groups} groups: choose a multiple.")
        if self.games // self.groups < 2:
            raise ValueError(
                f"{self.games} games in {self.groups} groups make groups of one, and the baseline is the mean of the "
                "group's other games: choose at least twice as many games as groups."
            )
        balanced = 4 if self.pool else 2
        if self.groups % balanced:
            raise ValueError(
                f"groups must be a multiple of {balanced}, so that both labelings are played equally often in self-play"
                f"{' and against past selves' if self.pool else ''}, got {self.groups}."
            )
        if self.separate and (self.model == "tiny" or self.pool):
            raise ValueError("Separate seats need adapters and no pool: --model smollm2 --pool 0.")


def defaults(method: Method, model: Model) -> Settings:
    """The settings of a method on a model, before the command line changes any."""
    settings = Settings(method, model, out=Path(f"runs/social_dilemma-{method}-{model}"))
    if model == "tiny":
        return dataclasses.replace(settings, updates=300 if method == "naive" else 600)
    return dataclasses.replace(
        settings,
        updates=24,
        games=64,
        rounds=3,
        pool=0,
        accumulate=2,
        remat="dots",
        evaluation_games=16,
        checkpoint_every=5,
    )


PRIOR = 0.7  # share of cooperation in the dialogues that a tiny policy is first trained on


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
            self.config = tiny_config(self.tokenizer.vocab_size)
            self.lora: Lora | None = None
            self.families = {name: Family(self.tokenizer, (name,), self.config) for name in (*self.learners, *past)}
            self.base: dict | None = None
        else:
            loaded = weights.load("smollm2")
            self.tokenizer = HFTokenizer(loaded.directory, loaded.config.vocab_size)
            self.config, self.lora = loaded.config, Lora(settings.rank, settings.alpha)
            self.families = {"smollm2": Family(self.tokenizer, (*self.learners, *past), self.config, self.lora)}
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
        for side in self.rollout.sides.values():
            sharding.check_groups(self.mesh, len(side.places))
        self.opponents = {"self": own[1], **{name: name for name in self.game.scripts}}
        pairs = tuple((own[0], name) for name in self.opponents.values() for _ in range(2))  # both labelings
        judged = {name: family for name, family in self.families.items() if name != "past"}
        self.judge = Rollout(self.game, judged, Lineup(pairs, -(-settings.evaluation_games // 2)))
        self.keys = jax.vmap(jax.random.key)(jnp.arange(settings.seeds) + settings.first_seed)
        names = ("learning_rate", "gamma", "beta", "entropy", "kl", "cap")
        self.scalars = {name: jnp.float32(getattr(settings, name)) for name in names}

    def seeds(self, function: Callable, *trees: Any) -> Any:
        """function(*trees of one seed) for every seed: tiny policies side by side, real ones one after the other."""
        if self.lora is None:
            return jax.vmap(function)(*trees)
        return jax.lax.map(lambda each: function(*each), trees)

    @partial(jax.jit, static_argnums=0)
    def begin(self, keys: jax.Array) -> dict:
        """The states [seeds] before training."""
        return self.seeds(lambda key: self.start(key_for(key, START)), keys)

    @partial(jax.jit, static_argnums=0, donate_argnums=2)
    def advance(self, base: dict | None, state: dict, number: jax.Array) -> tuple[dict, dict[str, jax.Array]]:
        """One update of every seed: the new states, and the metrics [seeds]."""
        return self.seeds(lambda one, key: self.step(base, one, key, number)[:2], state, self.keys)

    @partial(jax.jit, static_argnums=0)
    def play(self, base: dict | None, state: dict) -> Trajectory:
        """The games of `judge`, leaves [seeds, ...]."""
        event = partial(key_for, purpose=EVALUATE)
        return self.seeds(
            lambda one, key: self.judge(self.weights(base, one["learners"].weights), event(key)), state, self.keys
        )

    # what a policy's weights are, and how a team is put together from them

    def start(self, key: jax.Array) -> dict:
        """The state of one seed: what training changes, and what a checkpoint holds."""
        base = None
        if self.lora is None or self.base is None:
            base = imitate(self.game, self.tokenizer, self.config, key)
            learned = {name: base for name in self.learners}
        else:
            learned = {
                name: adapters.init(jax.random.fold_in(key, i), self.base, self.lora)
                for i, name in enumerate(self.learners)
            }
        state: dict[str, Any] = {"learners": self.optimiser.init(learned)}
        if base is not None:
            state["base"] = base  # the policy before training: the reference of the divergence
        if self.settings.pool:
            first = learned[self.learners[0]]
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

    def step(
        self, base: dict | None, state: dict, key: jax.Array, number: jax.Array
    ) -> tuple[dict, dict[str, jax.Array], Trajectory]:
        """Plays, credits, learns: the state after one update of one seed, its metrics, and the trajectory."""
        settings, learners, past = self.settings, state["learners"], None
        event = key_for(key, UPDATE, number)
        if settings.pool:
            taken = jnp.clip(1 + number // settings.snapshot_every, 1, settings.pool)
            at = jax.random.randint(key_for(event, POOL), (), 0, taken)
            past = jax.tree.map(lambda x: x[at], state["pool"])
        trajectory = self.rollout(self.weights(base, learners.weights, past), event)
        learners, metrics = self.learn(base, state, past, trajectory, event)
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

    def learn(
        self, base: dict | None, state: dict, past: Any, trajectory: Trajectory, key: jax.Array
    ) -> tuple[Learners, dict[str, jax.Array]]:
        """Credit and update of one seed on what was played."""
        rows = trajectory.rows[self.trained]
        said = spoken(rows, trajectory.episodes.legal, self.rollout.most_spoken(self.trained))
        batch = {"rows": rows, "said": said, "advantage": per_token(self.credit(trajectory), rows, said)}
        if self.settings.kl:
            with_base = self.score(base if self.lora else state["base"], None, batch, past, reference=True)
            batch["reference"] = with_base.logp
        loss, rate = partial(self.loss, base, past), self.scalars["learning_rate"]
        return update(self.optimiser, loss, state["learners"], batch, self.openings, rate, key)

    def credit(self, trajectory: Trajectory) -> jax.Array:
        episodes, groups = trajectory.episodes, self.settings.groups
        reward = rewards.weigh(episodes.reward, jnp.ones(1)) / self.settings.reward_scale
        if self.settings.method == "sum":
            reward = rewards.team_sum(reward)
        if self.settings.method == "alignment":
            return credit.advantage_alignment(
                reward, episodes.acted, episodes.group, groups, gamma=self.scalars["gamma"], beta=self.scalars["beta"]
            )
        return credit.round_leave_one_out(reward, episodes.acted, episodes.group, groups, gamma=self.scalars["gamma"])

    def score(self, params: Any, learned: Any, batch: dict, past: Any, reference: bool = False) -> policy.Scores:
        family, side = self.families[self.trained], self.rollout.sides[self.trained]
        rows, joined, which = batch["rows"], None, None
        if self.lora and not reference:
            everyone = learned | ({} if past is None else {"past": jax.lax.stop_gradient(past)})
            joined = adapters.concatenate([everyone[name] for name in family.policies], self.lora)
            which = rows.policy if len(family.policies) > 1 else None
        return policy.score(
            self.config,
            params,
            rows,
            batch["said"],
            side.tables,
            joined,
            which,
            family.temperature,
            remat=self.settings.remat,
        )

    def loss(self, base: dict | None, past: Any, learned: dict, batch: dict) -> tuple[Mean, dict[str, Mean]]:
        scalars = self.scalars
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
    """Supervised training of a random policy on scripted dialogues: a format, and cooperation of about PRIOR."""
    game = dataclasses.replace(game, cooperation=PRIOR)
    family = Family(tokenizer, ("random",))
    teacher = Rollout(game, {"teacher": family}, Lineup((("random", "random"),) * 2, 16))
    tables, optimiser = teacher.sides["teacher"].tables, Optimiser()

    def loss(weights, batch):
        rows, said = batch
        scores = policy.score(config, weights["student"], rows, said, tables)
        return losses.cross_entropy(scores.logp, said.where)

    def step(learners: Learners, number: jax.Array):
        event = key_for(key, UPDATE, number)
        played = teacher({"teacher": {}}, event)
        rows = played.rows["teacher"]
        batch = rows, spoken(rows, played.episodes.legal, teacher.most_spoken("teacher"))
        rate = 3e-3 * (1 - number / updates)
        learners, metrics = update(optimiser, loss, learners, batch, len(rows.openings.tokens), rate, event)
        return learners, metrics["cross_entropy"]

    learners = optimiser.init({"student": model.init(config, key_for(key, START))})
    learners, _ = jax.lax.scan(step, learners, jnp.arange(updates))
    return learners.weights["student"]


def report(experiment: Experiment, trajectory: Trajectory) -> dict[str, Any]:
    """What the table holds, of the games of `judge`: points a round by opponent, cooperation by what came before."""
    episodes = jax.device_get(trajectory.episodes)
    seeds, settings = experiment.settings.seeds, experiment.settings
    games = episodes.reward.shape[1] // len(experiment.opponents)
    points = episodes.reward[..., 0].mean(2).reshape(seeds, len(experiment.opponents), games, 2)
    result: dict[str, Any] = {
        name: {"ours": summarise(points[:, i, :, 0]), "theirs": summarise(points[:, i, :, 1])}
        for i, name in enumerate(experiment.opponents)
    }
    cooperates = episodes.action == COOPERATE  # [seeds, B, T, 2]
    ours, before = cooperates[..., 0], np.where(cooperates[:, :, :-1], "C", "D")
    outcome = np.full(ours.shape, "start", dtype="<U5")
    outcome[:, :, 1:] = np.char.add(before[..., 0], before[..., 1])
    labeling = np.broadcast_to((episodes.group % 2)[:, :, None], ours.shape)
    cases = {name: outcome == name for name in ("start", *OUTCOMES)}
    cases |= {f"as_{label}": labeling == i for i, label in enumerate(settings.labels)}
    with np.errstate(invalid="ignore"):
        rates = {name: (ours & case).sum(2) / case.sum(2) for name, case in cases.items()}
    return result | {"cooperation": {name: summarise(rate) for name, rate in rates.items()}}


def verdict(settings: Settings, before: dict, after: dict) -> dict[str, Any]:
    """Whether what was stated before the run came true, beyond both intervals."""
    direction, pick = STATED[settings.method]
    changes = {name: (pick(before, name), pick(after, name)) for name in (f"as_{label}" for label in settings.labels)}
    sign = -1 if "falls" in direction else 1
    holds = {
        name: None not in (old["low"], new["low"])
        and (new["high"] < old["low"] if sign < 0 else new["low"] > old["high"])
        for name, (old, new) in changes.items()
    }
    return {"direction": direction, "beyond_the_intervals": holds}


STATED = {
    "naive": ("cooperation falls, whichever label it bears", lambda block, name: block["cooperation"][name]),
    "sum": ("cooperation rises, whichever label it bears", lambda block, name: block["cooperation"][name]),
    "alignment": (
        "what always-defect earns from the policy falls",
        lambda block, name: block["always_defect"]["theirs"],
    ),
}


def show(experiment: Experiment, before: dict, after: dict, over: str) -> Table:
    settings = experiment.settings
    table = Table(title=f"{settings.method}, {settings.model}, {settings.updates} updates", title_justify="left")
    table.caption, table.caption_justify = f"mean ± half of the 95% Student-t interval over {over}", "left"
    table.add_column("points a round")
    for when in ("before", "after"):
        for who in ("ours", "theirs"):
            table.add_column(f"{who}\n{when}", justify="right", no_wrap=True)
    for name in experiment.opponents:
        table.add_row(name, *(span(block[name][who]) for block in (before, after) for who in ("ours", "theirs")))
    table.add_section()
    names = {"start": "first round", **{outcome: f"after {outcome}" for outcome in OUTCOMES}}
    names |= {f"as_{label}": f"called {label}" for label in settings.labels}
    for name, text in names.items():
        cells = (span(block["cooperation"][name]) for block in (before, after))
        table.add_row(escape(f"P(cooperate), {text}"), next(cells), "", next(cells), "")
    return table


def span(cell: dict[str, Any]) -> str:
    if cell["mean"] is None:
        return "never met"
    return f"{cell['mean']:.2f}" + ("" if cell["low"] is None else f" ±{(cell['high'] - cell['low']) / 2:.2f}")


def transcript(experiment: Experiment, trajectory: Trajectory) -> str:
    """Markdown of one game of self-play, as each seat read it, chat markers included."""
    rows = jax.tree.map(lambda x: np.asarray(x[0]), trajectory.rows[experiment.trained])
    texts = []
    for row in np.flatnonzero(rows.episode == 0):
        opening = rows.openings.tokens[rows.opening[row]][: rows.openings.length[rows.opening[row]]]
        text = experiment.tokenizer.decode([*opening.tolist(), *rows.tokens[row][: rows.length[row]].tolist()])
        texts.append(f"Seat {rows.seat[row]}\n\n```\n{text}\n```\n")
    return "\n".join(texts)


def last_tenth(path: Path, settings: Settings) -> dict[str, Any]:
    """Self-play in training: the mean over the last tenth of the updates, a value for each seed."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    first = settings.updates - max(1, settings.updates // 10)
    result = {}
    for name in ("points", "cooperation"):
        values = [
            [line[name] for line in lines if line["seed"] == s and line["step"] >= first] for s in range(settings.seeds)
        ]
        result[name] = summarise(np.array([[np.mean(v)] for v in values]))
    return result


def run(settings: Settings, stop: threading.Event, console: Console) -> None:
    """Trains, judges before and after, writes the run directory. Raises ValueError for settings that cannot work."""
    out = settings.out
    identity = json.loads(json.dumps(dataclasses.asdict(settings), default=str))
    may_differ = ("out", "resume", "updates", "devices", "checkpoint_every")
    checkpoints = Checkpoints(out / "checkpoints", identity, resume=settings.resume, may_differ=may_differ)
    if checkpoints.steps() and checkpoints.steps()[-1] > settings.updates:
        raise ValueError(
            f"{out} holds a run at update {checkpoints.steps()[-1]}, but updates is {settings.updates}: ask for more."
        )
    experiment = Experiment(settings)
    over = "seeds" if settings.seeds > 1 else "games (one seed)"
    console.print(f"Stated before the run: {STATED[settings.method][0]}. Run directory: {escape(str(out))}")
    with RunLog(out, settings.seeds, identity) as log, sharding.use(experiment.mesh):
        base = experiment.base and sharding.replicate(experiment.base, experiment.mesh)
        with console.status("Setting up and judging the policy before training"):
            state = sharding.replicate(experiment.begin(experiment.keys), experiment.mesh)
            begun = out / "before.json"
            if not (checkpoints.steps() and begun.exists()):  # one left by a run without checkpoints may be another's
                played = experiment.play(base, state)
                begun.with_suffix(".partial").write_text(json.dumps(report(experiment, played)))
                begun.with_suffix(".partial").replace(begun)
                log.text(0, "self-play/before", transcript(experiment, played))
        before = json.loads(begun.read_text())
        start, state = checkpoints.restore(state) or (0, state)
        log.truncate(start)
        with progress(console, settings, start) as on_step:
            state, finished = train(
                lambda number, state: experiment.advance(base, state, jnp.int32(number)),
                state,
                start=start,
                steps=settings.updates,
                log=log,
                checkpoints=checkpoints,
                every=settings.checkpoint_every,
                on_step=on_step,
                stop=stop,
            )
        if not finished:
            saved = checkpoints.steps()
            what = (
                f"saved at update {saved[-1]}: the same command with --resume goes on"
                if saved
                else "nothing to save yet"
            )
            console.print(f"Stopped; {what}.")
            return
        with console.status("Judging the policy after training"):
            played = experiment.play(base, state)
            after = report(experiment, played)
            text = transcript(experiment, played)
            log.text(settings.updates, "self-play/after", text)
    (out / "transcript.md").write_text(text)
    stated = verdict(settings, before, after)
    summary = {
        "method": settings.method,
        "model": settings.model,
        "seeds": settings.seeds,
        "updates": settings.updates,
        "interval_over": over.split()[0],
        "stated": stated,
        "before": before,
        "after": after,
        "last_tenth": last_tenth(out / "metrics.jsonl", settings),
    }
    skipped = sum(json.loads(line)["skipped"] for line in (out / "metrics.jsonl").read_text().splitlines())
    if skipped:
        console.print(f"{skipped} updates were left out because a loss, a gradient or the new weights were not finite.")
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    console.print(show(experiment, before, after, over))
    tenth = summary["last_tenth"]["points"]
    console.print(f"Self-play over the last tenth of the updates: {span(tenth)} points a round; by seed "
                  f"{', '.join(f'{x:.2f}' for x in tenth['per_seed'])}.")  # fmt: skip
    holds = all(stated["beyond_the_intervals"].values())
    console.print(
        f"Stated: {stated['direction']}. {'It does, beyond the intervals.' if holds else 'Not shown by this run.'}"
    )


@contextlib.contextmanager
def progress(console: Console, settings: Settings, start: int) -> Iterator[Callable]:
    """A bar with the time left; without a terminal, a line now and then that says the same."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    began = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=settings.updates, completed=start)

        def on_step(step: int, metrics: Mapping[str, Any]) -> None:
            text = f"{np.mean(metrics['points']):.2f} points, cooperation {np.mean(metrics['cooperation']):.2f}"
            bar.update(task, completed=step + 1, description=text)
            done = step + 1 - start
            if not console.is_terminal and (done == 1 or (step + 1) % max(1, settings.updates // 10) == 0):
                left = (time.monotonic() - began) / done * (settings.updates - step - 1)
                console.print(f"update {step + 1} of {settings.updates}: {text}, about {left / 60:.1f} minutes left")

        yield on_step


@dataclasses.dataclass(frozen=True)
class Choice:
    """What the defaults of the other settings depend on."""

    method: Method = "naive"
    model: Model = "tiny"


def parse(arguments: list[str]) -> Settings:
    """The settings on a command line; the method and the model are read first, because the defaults depend on them."""
    rest = [argument for argument in arguments if argument not in ("-h", "--help")]
    choice, _ = tyro.cli(Choice, args=rest, return_unknown_args=True)
    return tyro.cli(Settings, args=arguments, default=defaults(choice.method, choice.model), description=__doc__)


def main() -> None:
    """The command. Ends with 2 and one sentence where the settings cannot work, with 0 where a signal stopped it."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # a second start compiles nothing again
        jax.config.update("jax_compilation_cache_dir", str(weights.cache_directory() / "xla"))
    try:
        with stop_on_signals() as stop:
            run(parse(sys.argv[1:]), stop, Console())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
