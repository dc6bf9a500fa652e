"""Language models play a social dilemma with each other and learn from it.

Two seats play the iterated prisoner's dilemma (3/1/5/0): one policy in both, or a model of its own in each (--seat0,
--seat1). What they learn depends on the credit alone:

  naive      each seat's return-to-go against the other episodes of its group, round by round
  sum        the same with both seats' rewards added up
  alignment  advantage alignment (Duque et al.): a seat also values what its past gains make of the other's

Stated before any run. Tiny policies start from a cooperative prior, P(C) = 0.7. Naive ones end in mutual defection: at
most 1.2 points a round in self-play. With alignment they keep cooperating, at least 2.4 points of 3 in the last tenth
of the updates, and answer an unconditional defector so that it earns at most 1.6. SmolLM2's cooperation under naive
learning falls, whichever of the labels A and B it bears.

  python -m experiments.social.social_dilemma --model tiny --method naive --seeds 10       # 300 updates, 5 minutes
  python -m experiments.social.social_dilemma --model tiny --method alignment --seeds 10   # 600 updates, 10 minutes
  make demo                                                                        # SmolLM2-135M, naive, 24 updates
  python -m experiments.social.social_dilemma --seat0 smollm2 --seat1 gemma3-270m         # 24 updates, about 20 minutes

Times are for two CPU cores.

Found (10 seeds of tiny policies): naive 1.09 points in every seed; alignment 2.83 (2.75 to 2.87), and always-defect
earns 1.43 of it. SmolLM2 against Gemma 3 (one seed, 24 updates): within seven updates SmolLM2 always says B and Gemma
always A, whatever the letter means, so that cooperation stays at one half (2.50 points each).

As a study, `python -m experiments social_dilemma --seeds 10` (400 updates of 128 games, 11 minutes) found: naive
ends at 1.06 points a round; sum at 2.99, and always-defect earns 4.96 of it; alignment at 2.71 (95% interval 2.51 to
2.92; nine seeds of ten above 2.4, one at 1.92), and always-defect earns 1.44 of it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape

from experiments.social.dilemma_report import STATED, last_tenth, report, show, verdict
from jaxmarl_llm.devices import distributed, sharding
from jaxmarl_llm.environments.matrix_games import COOPERATE, PRISONERS_DILEMMA, MatrixGame
from jaxmarl_llm.models.config import Remat
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import advantages, losses, rewards
from jaxmarl_llm.rl.masked import Mean, keep, mean_of
from jaxmarl_llm.rollout import policy
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.cli import execute, locked, progress, span
from jaxmarl_llm.studies.profiled import profile
from jaxmarl_llm.studies.study import AtLeast, AtMost, Paper, Study
from jaxmarl_llm.training.checkpoint import LAST_TWO, Checkpoints, Keep
from jaxmarl_llm.training.log import RunLog
from jaxmarl_llm.training.loop import train
from jaxmarl_llm.training.nonfinite import inspected
from jaxmarl_llm.training.recipe import SNAPSHOT, Advantages, Batch, Experience, Hparams, Recipe
from jaxmarl_llm.training.trainer import Model, Trainer, readable, resumed, transcript

Method = Literal["naive", "sum", "alignment"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The defaults depend on method and models: see `defaults`. A tuple is one value for both seats or one for each."""

    method: Method = "naive"
    """Credit: own reward, joint reward, or advantage alignment."""
    model: str = "tiny"
    """`tiny`, a two-layer policy with a token for each phrase; or smollm2, gemma3-270m, a directory, GGUF or hub id."""
    seat0: str = ""
    """Model of seat 0, where the seats are to learn apart; the default is `model`."""
    seat1: str = ""
    """Model of seat 1, likewise."""
    talk: bool = False
    """Both say one line before each move (not tiny)."""
    message: int = 24
    """Most tokens of such a line."""
    seeds: int = 1
    """Independent runs: side by side in one program (tiny), one after the other (real models)."""
    first_seed: int = 0
    updates: int = 300
    games: int = 256
    """Episodes an update."""
    groups: int = 4
    """Groups that the games are divided into; the labels are exchanged from one group to the next."""
    rounds: int = 10
    learning_rate: tuple[float, ...] = (3e-4,)
    temperature: tuple[float, ...] = (1.0,)
    top_k: tuple[int, ...] = (0,)
    """Samples from the k most probable tokens; 0: off."""
    top_p: tuple[float, ...] = (1.0,)
    """Samples from the most probable tokens that reach this mass; 1: off."""
    min_p: tuple[float, ...] = (0.0,)
    """Samples from tokens at least this many times as probable as the most probable; 0: off."""
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
    rank: tuple[int, ...] = (32,)
    """Of the adapter of a real model; 0: full weights."""
    alpha: tuple[float, ...] = (64.0,)
    targets: tuple[str, ...] = ("*",)
    """Linear maps that are adapted: names or patterns, e.g. q_* v_*."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of a real model's weights, products and cache."""
    attention: Literal["plain", "fused"] = "plain"
    """Of a real model: fused takes cuDNN's flash kernel on a GPU, with bfloat16."""
    accumulate: int = 1
    """Micro-batches an update."""
    remat: Remat = "none"
    """What the backward pass computes again: nothing, all but matrix products, or everything."""
    evaluation_games: int = 64
    """Games against each scripted player and itself, before and after."""
    mesh: str = ""
    """Devices by axis, e.g. data=2,fsdp=4,tensor=2; the default is one device."""
    rollout_mesh: str = ""
    """Further devices, by axis, that play the next games while these are learned from; without, play and update take
    turns."""
    out: Path = Path("runs/social_dilemma")
    """Run directory."""
    resume: bool = False
    """Continue the run in `out`."""
    checkpoint_every: int = 100
    keep: Keep = LAST_TWO
    max_skipped: int = 10
    """Ends the run when so many updates in a row were left out because something was not finite; 0: never."""
    profile: bool = False
    """Only shows where the time of one update goes, and leaves its trace in `out`/profile."""

    @property
    def policies(self) -> dict[str, str]:
        """What learns, and the model that it starts from."""
        if not (self.seat0 or self.seat1):
            return {"learner": self.model}
        return {"seat_0": self.seat0 or self.model, "seat_1": self.seat1 or self.model}

    def of(self, policy: str, name: str) -> Any:
        """A setting that may differ between the seats."""
        return getattr(self, name)[-1 if policy == "seat_1" else 0]

    def check(self) -> None:
        """Raises ValueError for settings that cannot work; not when they are made, or tyro would box the sentence."""
        counts = ("seeds", "updates", "games", "groups", "rounds", "evaluation_games", "snapshot_every", "message")
        for name in (*counts, "checkpoint_every", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        positive, natural = (
            ("cap", "clip", "reward_scale"),
            ("entropy", "kl", "beta", "pool", "first_seed", "max_skipped"),
        )
        for name in ("learning_rate", "alpha", "rank", "temperature", "top_k", "top_p", "min_p"):
            if not 1 <= len(getattr(self, name)) <= len(self.policies):
                raise ValueError(
                    f"{name} takes one value{', or one for each seat' * (len(self.policies) > 1)}, got "
                    f"{' '.join(map(str, getattr(self, name))) or 'none'}."
                )
        for name in (*positive, "learning_rate", "alpha"):
            for value in np.atleast_1d(getattr(self, name)).tolist():
                if not 0 < value < math.inf:
                    raise ValueError(f"{name} must be a positive number, got {value}.")
        for name in (*natural, "rank"):
            for value in np.atleast_1d(getattr(self, name)).tolist():
                if not 0 <= value < 2**31:
                    raise ValueError(f"{name} must be at least 0 and below 2^31, got {value}.")
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
        if len(self.policies) > 1 and self.pool:
            raise ValueError("Past selves (pool) are those of one policy for both seats: with two, give --pool 0.")
        if self.talk and "tiny" in self.policies.values():
            raise ValueError("A tiny policy has a token for each phrase and cannot talk: give a real model.")


RATES = {"gemma3-270m": 3e-5}  # at 3e-4 one update makes it say the same letter always


def defaults(choice: Choice) -> Settings:
    """The settings of a method on its models, before the command line changes any."""
    settings = Settings(choice.method, choice.model, choice.seat0, choice.seat1, pool=0)
    models = list(settings.policies.values())
    names = "-".join(Path(name).name for name in models)
    settings = dataclasses.replace(settings, out=Path(f"runs/social_dilemma-{choice.method}-{names}"))
    if set(models) == {"tiny"}:
        pool = Settings.pool if len(models) == 1 else 0
        return dataclasses.replace(settings, updates=300 if choice.method == "naive" else 600, pool=pool)
    return dataclasses.replace(
        settings,
        updates=24,
        games=64,
        rounds=3,
        learning_rate=tuple(RATES.get(name, Settings.learning_rate[0]) for name in models),
        accumulate=2,
        remat="dots",
        evaluation_games=16,
        checkpoint_every=5,
    )


METHODS = {"naive": (0, 0), "sum": (1, 0), "alignment": (0, 1)}  # weights of the other's reward and of alignment


def by_round(
    reward: jax.Array,
    acted: jax.Array,
    group: jax.Array,
    groups: int,
    *,
    turns: int,
    joint: jax.Array,
    gamma: jax.Array,
    beta: jax.Array,
) -> jax.Array:
    """Advantages [B, T, 2] by advantage alignment, counted in rounds of so many turns: what is said before a move
    shares in the credit of its round. A seat values `joint` times the other one's reward beside its own; with beta 0
    this is `credit.round_leave_one_out`. Other arguments as those of a preset of `credit.py`."""
    rounds = lambda x: x.reshape(len(x), -1, turns, x.shape[2])  # noqa: E731
    own = rounds(reward).sum(2)
    valued = own + joint * own[:, :, ::-1]
    credited = advantages.advantage_alignment(valued, rounds(acted).any(2), group, groups, gamma=gamma, beta=beta)
    return keep(jnp.repeat(credited, turns, axis=1), acted)


PRIOR = 0.7  # share of cooperation in the dialogues that a tiny policy is first trained on


def dilemma(played: Experience, hparams: Hparams, memory: tuple, *, turns: int = 1) -> Advantages:
    """`by_round`, of rewards divided by `reward_scale`."""
    reward = rewards.weigh(played.episodes.reward, jnp.ones(1)) / hparams["reward_scale"]
    joint, gamma, beta = (hparams[name] for name in ("joint", "gamma", "beta"))
    return Advantages(by_round(reward, *played.acts, turns=turns, joint=joint, gamma=gamma, beta=beta))


def truncated(scores: policy.Scores, batch: Batch, hparams: Hparams) -> losses.Loss:
    """The loss of all methods, `losses.alignment`; plus, if the batch has a reference, the divergence from it."""
    total, metrics = losses.alignment(
        scores.logp, batch.sampled.behaviour_logp, batch.advantage, scores.entropy, batch.mask,
        cap=hparams["cap"], entropy_weight=hparams["entropy"],
    )  # fmt: skip
    if batch.reference_logp is None:
        return total, metrics
    drift, more = losses.kl_penalty(scores.logp, batch.reference_logp, batch.mask)
    return Mean(total.sum + hparams["kl"] * drift.sum, total.count), metrics | more


def self_play(episodes: Episodes, *, alone: int, talk: bool, labels: tuple[str, str]) -> dict[str, jax.Array]:
    """Points a round and cooperation in the first `alone` groups, where no past self plays: of both seats and of each,
    and cooperation under each labeling."""
    move = slice(1, None, 2) if talk else slice(None)  # the turns that are no message
    points = episodes.reward[:, move, :, 0].mean(1)  # [B, 2]
    cooperated = (episodes.action[:, move] == COOPERATE).mean(1)
    where = jnp.broadcast_to((episodes.group < alone)[:, None], points.shape)
    measures = {"points": mean_of(points, where).value, "cooperation": mean_of(cooperated, where).value}
    for seat in range(2):
        measures[f"points/seat_{seat}"] = mean_of(points[:, seat], where[:, seat]).value
        measures[f"cooperation/seat_{seat}"] = mean_of(cooperated[:, seat], where[:, seat]).value
    for i, label in enumerate(labels if alone > 1 else ()):
        labeled = where & (episodes.group % 2 == i)[:, None]
        measures[f"cooperation/as_{label}"] = mean_of(cooperated, labeled).value
    return measures


def recipe(settings: Settings) -> Recipe:
    """A method with its settings."""
    names = tuple(settings.policies)
    own, alone = (names[0], names[-1]), settings.groups // 2 if settings.pool else settings.groups
    joint, aligned = METHODS[settings.method]
    rates = {"learning_rate": settings.learning_rate[0]}
    if len(names) > 1:
        rates = {f"learning_rate/{name}": settings.of(name, "learning_rate") for name in names}
    scalars = {name: getattr(settings, name) for name in ("gamma", "cap", "entropy", "reward_scale", "kl")}
    return Recipe(
        MatrixGame(settings.payoff, settings.rounds, settings.labels, talk=settings.talk, cooperation=PRIOR),
        seats=(own,) * alone + ((names[0], SNAPSHOT),) * (settings.groups - alone),
        advantage=partial(dilemma, turns=1 + settings.talk),
        loss=truncated,
        hparams={**scalars, **rates, "joint": float(joint), "beta": aligned * settings.beta},
        reference=settings.kl > 0,
        warm_start=(("random", "random"),),
        warm_start_updates=200,
        budget=(8, 8, settings.message) if settings.talk else 8,
        updates=settings.updates,
        groups=settings.groups,
        group_size=settings.games // settings.groups,
        grad_accumulation=settings.accumulate,
        max_grad_norm=settings.clip,
        remat=settings.remat,
        measure=partial(self_play, alone=alone, talk=settings.talk, labels=settings.labels),
        snapshots=settings.pool,
        snapshot_every=settings.snapshot_every,
    )


def models(settings: Settings) -> dict[str, Model]:
    """What each policy begins as."""
    result = {}
    for name, source in settings.policies.items():
        of = partial(settings.of, name)
        lora = Lora(of("rank"), of("alpha"), settings.targets) if of("rank") else None
        sampling = Sampling(*(of(field) for field in ("temperature", "top_k", "top_p", "min_p")))
        result[name] = Model(source, lora, sampling, settings.dtype, settings.attention)
    return result


def trainer_of(settings: Settings) -> Trainer:
    trained = recipe(settings)
    seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
    return Trainer(
        trained, [trained.all_hparams] * settings.seeds, seeds, models(settings), settings.mesh, settings.rollout_mesh
    )


def opponents(settings: Settings) -> dict[str, dict[str, str]]:
    """By policy, who it is judged against, by name; the other seat is its own where one policy has both."""
    names, scripts = tuple(settings.policies), {script: script for script in MatrixGame().scripts}
    other = "self" if len(names) == 1 else "each other"
    return {name: {other: rival, **scripts} for name, rival in zip(names, reversed(names), strict=True)}


def judgement(settings: Settings, trainer: Trainer) -> Rollout:
    """Games against every opponent, each policy in the seat that it is trained in, under both labelings."""
    first = trainer.learners[0]
    pairs = [
        (name, other)[:: 1 if name == first else -1]
        for name, others in opponents(settings).items()
        for other in others.values()
    ]
    judged = {name: policy_set for name, policy_set in trainer.policy_sets.items() if name != SNAPSHOT}
    lineup = Lineup(tuple(pair for pair in pairs for _ in range(2)), -(-settings.evaluation_games // 2))
    game = dataclasses.replace(trainer.recipe.game, cooperation=MatrixGame.cooperation)  # `random` is fair here
    return Rollout(game, judged, lineup, trainer.recipe.budget)


# The comparison of the methods as a study for `experiments`


def exploited(trainer: Trainer) -> Callable[[dict], dict[str, float]]:
    """Points a round of scripted players against the policy, and its own against them, under both labelings."""
    (name,), scripts, group_size = trainer.learners, ("always_defect", "tit_for_tat"), 32
    lineup = Lineup(tuple((name, script) for script in scripts for _ in range(2)), group_size)
    play = readable(Rollout(trainer.recipe.game, {name: trainer.policy_sets[name]}, lineup, trainer.recipe.budget))

    def evaluate(weights: dict) -> dict[str, float]:
        reward = play({name: weights[name]}, jax.random.key(0)).episodes.reward[..., 0].mean(1)  # [B, 2]
        ours, theirs = np.asarray(reward).reshape(len(scripts), -1, 2).mean(1).T.tolist()
        earned = {f"{script} earns": x for script, x in zip(scripts, theirs, strict=True)}
        return earned | {f"against {script}": x for script, x in zip(scripts, ours, strict=True)}

    return evaluate


NAIVE = dataclasses.replace(
    recipe(Settings(games=128, updates=400)),
    evaluate=exploited,
    eval_every=100,
    pretrained={"game": MatrixGame(rounds=3)},
)


def arms(naive: Recipe) -> dict[str, Recipe]:
    """The methods, by numbers alone."""
    weights = {method: {"joint": float(joint), "beta": on * Settings.beta} for method, (joint, on) in METHODS.items()}
    return {method: dataclasses.replace(naive, hparams={**naive.hparams, **own}) for method, own in weights.items()}


STUDY = Study(
    paper=Paper("Advantage Alignment (Duque et al.)", "https://arxiv.org/abs/2406.14662", 2025, checked="paper"),
    question="Does advantage alignment keep cooperation in the iterated prisoner's dilemma?",
    claim="Naive learners end in mutual defection, at most 1.2 points a round in self-play. With advantage alignment "
    "they end with 2.4 points or more, of which always-defect gets 1.6 at most; with the sum of rewards they end with "
    "2.4 or more too, but always-defect earns 3 or more from them.",
    arms=arms(NAIVE),
    method="alignment",
    metrics=("points", "always_defect earns", "against tit_for_tat"),
    predictions=(
        AtMost("points", "naive", 1.2),
        AtLeast("points", "sum", 2.4),
        AtLeast("always_defect earns", "sum", 3.0),
        AtLeast("points", "alignment", 2.4),
        AtMost("always_defect earns", "alignment", 1.6),
    ),
)


def run(settings: Settings, stop: threading.Event, console: Console) -> bool:
    """Trains, judges before and after, writes the run directory; False if it was stopped before the end.

    Raises ValueError for settings that cannot work.
    """
    settings.check()
    out = settings.out
    if settings.profile:
        profile(trainer_of(settings), out, console)
        return True
    identity = json.loads(json.dumps(dataclasses.asdict(settings), default=str)) | {
        "ahead": bool(settings.rollout_mesh)
    }
    may_differ = ("out", "resume", "updates", "mesh", "checkpoint_every", "keep", "max_skipped", "profile")
    checkpoints = Checkpoints(
        out / "checkpoints", identity, settings.keep, resume=settings.resume, may_differ=may_differ,
        beside=[out / "metrics.jsonl"],
    )  # fmt: skip
    if checkpoints.steps() and checkpoints.steps()[-1] > settings.updates:
        raise ValueError(
            f"{out} holds a run at update {checkpoints.steps()[-1]}, but updates is {settings.updates}: ask for more."
        )
    trainer = trainer_of(settings)
    judges, others = judgement(settings, trainer), opponents(settings)
    over = "seeds" if settings.seeds > 1 else "games (one seed)"
    console.print(f"Stated before the run: {STATED[settings.method][0]}. Run directory: {escape(str(out))}")
    tell = lambda said: console.print(escape(said))  # noqa: E731
    with (
        distributed.output_directory(out) as home,
        locked(home),
        RunLog(home, settings.seeds, identity, tell) as log,
        sharding.use(trainer.mesh),
    ):
        with console.status("Setting up and judging the policy before training"):
            begun = home / "before.json"
            start, state = resumed(trainer, checkpoints)
            if not (
                start and distributed.broadcast(begun.exists())
            ):  # one left by a run without checkpoints may be another's
                played = trainer.play(trainer.begin() if start else state, judges)
                begun.with_suffix(".partial").write_text(json.dumps(report(settings, others, played)))
                begun.with_suffix(".partial").replace(begun)
                log.text(0, "self-play/before", transcript(trainer, played))
        log.truncate(start)
        lanes = [f"seed {settings.first_seed + i}" for i in range(settings.seeds)]
        with progress(console, settings.updates, start, describe) as on_step, inspected(trainer, lanes, home):
            state, finished = train(
                lambda number, state: trainer.advance(state, number),
                state,
                start=start,
                steps=settings.updates,
                log=log,
                checkpoints=checkpoints,
                every=settings.checkpoint_every,
                on_step=on_step,
                stop=stop,
                patience=settings.max_skipped,
                streak=log.streak,
            )
        if not finished:
            saved = checkpoints.steps()
            what = (
                f"saved at update {saved[-1]}: the same command with --resume goes on"
                if saved
                else "nothing to save yet"
            )
            console.print(f"Stopped; {what}.")
            log.end("stopped", f"SIGTERM or SIGINT; {what}.")
            return False
        with console.status("Judging the policy after training"):
            played = trainer.play(state, judges)
            after = report(settings, others, played)
            text = transcript(trainer, played)
            log.text(settings.updates, "self-play/after", text)
    if not distributed.is_main_process():
        return True
    before = json.loads((out / "before.json").read_text())
    (out / "transcript.md").write_text(text)
    stated = verdict(settings, before, after)
    summary = {
        "method": settings.method,
        "models": settings.policies,
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
    console.print(show(settings, others, before, after, over))
    tenth = summary["last_tenth"]["points"]
    console.print(f"Self-play over the last tenth of the updates: {span(tenth)} points a round; by seed "
                  f"{', '.join(f'{x:.2f}' for x in tenth['per_seed'])}.")  # fmt: skip
    holds = all(stated["beyond_the_intervals"].values())
    console.print(
        f"Stated: {stated['direction']}. {'It does, beyond the intervals.' if holds else 'Not shown by this run.'}"
    )
    return True


def describe(metrics: Any) -> str:
    return f"{np.mean(metrics['points']):.2f} points, cooperation {np.mean(metrics['cooperation']):.2f}"


@dataclasses.dataclass(frozen=True)
class Choice:
    """What the defaults of the other settings depend on."""

    method: Method = "naive"
    model: str = "tiny"
    seat0: str = ""
    seat1: str = ""


def parse(arguments: list[str]) -> Settings:
    """The settings on a command line; method and models are read first, because the defaults depend on them."""
    rest = [argument for argument in arguments if argument not in ("-h", "--help")]
    choice, _ = tyro.cli(Choice, args=rest, return_unknown_args=True)
    return tyro.cli(Settings, args=arguments, default=defaults(choice), description=__doc__)


if __name__ == "__main__":
    execute(lambda stop, console: run(parse(sys.argv[1:]), stop, console))
