"""Trains a model on questions of one's own, with rewards from Python.

python -m experiments prompts --data questions.jsonl --reward number --model smollm2
python -m experiments prompts --data questions.jsonl --reward mine=rewards:score format=regex:[0-9]+ --model smollm2

Without --model a tiny policy with random weights is trained, which knows no language: it shows that all parts work.

The same command continues a run that was stopped. The run directory is that of a study, with metrics, games and trained
policies. A share of the questions is held out, and answered before and after training.
"""

from __future__ import annotations

import math
import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape

from jaxmarl_llm.devices import distributed
from jaxmarl_llm.environments.bridges.prompt_rewards import Exact, Number, Pattern, Reward
from jaxmarl_llm.environments.bridges.prompts import Prompts, letters
from jaxmarl_llm.evaluation.statistics import paired_interval
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies import program, runner
from jaxmarl_llm.studies.cli import execute
from jaxmarl_llm.studies.pages.format import count
from jaxmarl_llm.studies.registry import Entry
from jaxmarl_llm.studies.settings import Settings, select_arms
from jaxmarl_llm.studies.study import ANY, Paper, Study
from jaxmarl_llm.text.arguments import read_arguments
from jaxmarl_llm.text.own_code import import_object
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.host_games import held_out
from jaxmarl_llm.training.recipe import Recipe, component_returns, mean_return
from jaxmarl_llm.training.setup import for_pretrained

ARM = "rloo"
HELD_OUT = "held_out/return"
TOLD = 10  # held-out questions that the last words name
FEW = 5  # from this number of held-out questions on an interval means something; fewer are told one by one
PAPER = Paper(
    "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
    "https://arxiv.org/abs/2402.14740",
    2024,
    "abstract",
)
BOX: dict[str, Callable[[str], Reward]] = {"exact": Exact, "number": Number}
KINDS = "exact, exact:FIELD, number, number:FIELD, regex:PATTERN or MODULE:FUNCTION"


@dataclass(frozen=True)
class Options:
    """The questions and the rewards; the other options are those of every study."""

    data: Path
    """The questions, a JSON object a line: "prompt", a text, or "messages"; rewards read the further fields."""
    reward: tuple[str, ...]
    """exact, number, exact:FIELD, number:FIELD (of the field "answer"), regex:PATTERN, or MODULE:FUNCTION. Several are
    added up. NAME=... gives a reward its name."""
    run: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=partial(Settings, "prompts", seeds=1))
    held_out: str = "0.2"
    """The share of the questions that is never trained, or a file of its own; 0: none."""
    system: str = ""
    """A system message for questions without one."""
    budget: int = 32
    """The most tokens of an answer, its end included."""
    slots: int = 16
    """Answers that are computed at a time."""
    grad_accumulation: int = 1
    """Parts of an update's batch that are computed one after another, for less memory."""
    entropy: float = 0.0
    """The weight of an entropy bonus, which acts also where no rewards differ."""
    eval_every: int = 10
    """Updates between two evaluations of the held-out questions."""


def measure(episodes: Episodes, components: tuple[str, ...]) -> dict[str, jax.Array]:
    """Mean return, and with several rewards `return/NAME` of each."""
    parts = {f"return/{name}": index for index, name in enumerate(components)} if len(components) > 1 else {}
    return mean_return(episodes) | component_returns(episodes, **parts)


def reward_of(word: str) -> tuple[str, Reward, str]:
    """(name, reward, module or "") of a word of --reward. Raises ValueError for a word that names none."""
    match = re.fullmatch(r"(?:(\w+)=)?(.+)", word, re.DOTALL)
    name, spec = (match[1], match[2]) if match else (None, word)
    kind, colon, rest = spec.partition(":")
    if kind in BOX and bool(colon) == bool(rest):
        return name or kind, BOX[kind](rest or "answer"), ""
    if kind == "regex" and rest:
        return name or kind, Pattern(rest), ""
    if not re.fullmatch(r"[\w.]+:\w+", spec):
        raise ValueError(f"--reward takes {KINDS}, or NAME= before one of these: got {word!r}.")
    return name or rest, import_object(spec, "--reward"), kind


def study_of(options: Options) -> Entry:
    """The study of these questions: one arm, held-out returns before and after. Raises ValueError for wrong options."""
    if not options.reward:
        raise ValueError(f"--reward takes {KINDS}, and was given none.")
    if not 0 <= options.entropy < math.inf:
        raise ValueError(f"entropy must be finite and not negative, got {options.entropy}.")
    words = [reward_of(word) for word in options.reward]
    rewards = {name: reward for name, reward, _ in words}
    if len(rewards) < len(words):
        raise ValueError(f"Two rewards have one name: write NAME=... before one of them, {' '.join(options.reward)}.")
    try:
        share: Any = float(options.held_out)
    except ValueError:
        share = options.held_out
    game = Prompts(options.data, rewards, options.system, share, options.run.first_seed, slots=options.slots)
    evaluate = held_out if game.testing else None
    recipe = Recipe(
        game,
        seats=(("policy",),),
        advantage=estimator(advantages.rloo),
        hparams={"learning_rate": 3e-3, "entropy": options.entropy},
        tokenizer=letters,
        budget=options.budget,
        grad_accumulation=options.grad_accumulation,
        measure=partial(measure, components=game.components),
        evaluate=evaluate,
        eval_every=options.eval_every,
        pretrained={
            "groups": 8,
            "group_size": 4,
            "updates": 30,
            "evaluate": evaluate,
            "grad_accumulation": options.grad_accumulation,
        },
    )
    parts = [f"held_out/{name}" for name in game.components] * (len(rewards) > 1)
    study = Study(
        paper=PAPER,
        question="Does training raise the reward of questions that were never trained?",
        claim="The reward of held-out questions rises." if evaluate else "The reward of the questions rises.",
        arms={ARM: recipe},
        method=ARM,
        metrics=("return", *([HELD_OUT, *parts] if evaluate else ())),
        scope=ANY,
    )
    return Entry("prompts", __name__, study, tuple(module for *_, module in words if module))


def run(options: Options, stop: threading.Event, console: Console) -> bool:
    """Trains and evaluates; False if a signal stopped it."""
    settings = options.run
    if settings.study != "prompts":
        raise ValueError(f"The word {settings.study!r} belongs to no option: questions are --data FILE.")
    if settings.frozen:
        raise ValueError("These questions have no frozen table: leave out --frozen.")
    out = settings.out or Path("runs") / f"prompts-{options.data.stem}-{Path(settings.label).name}"
    settings = replace(settings, out=out)
    entry = study_of(options)
    if distributed.is_main_process():
        for sentence in cautions(settings, entry.study.recipes[ARM]):
            print(sentence, file=sys.stderr, flush=True)
    if not runner.run(entry, settings, stop, console):
        return False
    if not settings.profile and distributed.is_main_process():
        console.print(escape(compare(settings, out, entry.study)), highlight=False, soft_wrap=True)
    return True


def cautions(settings: Settings, recipe: Recipe) -> list[str]:
    """Sentences on settings that work and that one may not have meant."""
    result, count_of = [], len(recipe.game.training)
    if settings.tiny:
        result.append(
            "Note: without --model a tiny policy with random weights is trained, which knows no language: --model "
            "smollm2 takes a pretrained one."
        )
    groups = settings.groups or (recipe if settings.tiny else for_pretrained(recipe)).groups
    if groups > count_of:
        result.append(
            f"Warning: an update asks {groups} groups, and there are {count(count_of, 'question')} to train on: "
            f"questions repeat within an update, and --groups {count_of} asks each once."
        )
    return result


def compare(settings: Settings, out: Path, study: Study) -> str:
    """Sentences on the held-out questions before and after training, with an interval over questions and a verdict, or
    with the values of FEW questions; for each arm of a sweep.

    Raises ValueError if the reward failed for all answers.
    """
    game, arms = study.recipes[ARM].game, select_arms(settings, study)
    seeds, alone = range(settings.first_seed, settings.first_seed + settings.seeds), not settings.tiny
    if not game.testing:
        for arm, recipe in arms.items():
            assert isinstance(recipe, Recipe)  # no arm is computed
            check_measured(program.read_curves(out, arm, seeds, recipe.updates, alone)["return"])
        return "No question was held out: --held-out 0.2 holds out a fifth."
    some, more = [question.place.rstrip(",") for question in game.testing[:TOLD]], len(game.testing) - TOLD
    lines = [f"Held out: {'; '.join(some)}{f'; and {more} more' if more > 0 else ''}."]
    for arm in arms:
        before, after = (
            program.read_games(out, file, arm, seeds, alone)[HELD_OUT] for file in (program.BEFORE, program.AFTER)
        )
        check_measured(before, after)
        lines.append(
            f"{f'{arm}: ' if len(arms) > 1 else ''}Held-out return, mean of {count(len(game.testing), 'question')} "
            f"with {game.answers} answers each{f', {settings.seeds} seeds' if settings.seeds > 1 else ''}: "
            f"{judge(before, after)}"
        )
    return "\n".join(lines)


def check_measured(*parts: np.ndarray) -> None:
    """Raises ValueError if a part, one alone or those before and after training, has no finite value."""
    failed = [not np.isfinite(part).any() for part in parts]
    if any(failed):
        when = "" if all(failed) else " before training" if failed[0] else " after training"
        raise ValueError(f"The reward failed for all answers{when}: nothing was measured{' then' * bool(when)}.")


def judge(before: np.ndarray, after: np.ndarray) -> str:
    """The means of values [seeds, questions], their difference, and its interval or the values of few questions."""
    both = np.isfinite(before) & np.isfinite(after)
    first, last = (mean_of_seeds(np.where(both, values, np.nan)) for values in (before, after))
    difference, low, high = paired_interval(last, first)
    verdict = "The reward rose." if low > 0 else "The reward fell." if high < 0 else "No rise or fall is shown."
    spread = f", 95% interval over questions {with_sign(low)} to {with_sign(high)}. {verdict}"
    if len(first) < FEW:
        pairs = (f"{a:.2f} to {b:.2f}" for a, b in zip(first, last, strict=True))
        spread = f". Question by question: {', '.join(pairs)}; so few have no interval."
    means = f"{np.nanmean(first):.2f} before training, {np.nanmean(last):.2f} after"
    return f"{means}; difference {with_sign(difference)}{spread}"


def mean_of_seeds(values: np.ndarray) -> np.ndarray:
    """The mean of values [seeds, questions] over the seeds that have one; NaN for a question that no seed has."""
    known = ~np.isnan(values)
    return np.where(known.any(0), np.nansum(values, 0) / np.maximum(known.sum(0), 1), np.nan)


def with_sign(x: float) -> str:
    """A number with its sign, zero without one."""
    text = f"{x:+z.2f}"
    return text.lstrip("+") if float(text) == 0 else text


def command(package: str, arguments: Sequence[str]) -> None:
    """The command `prompts` of a package of studies."""
    about = "\n\n".join(part for part in str(__doc__).split("\n\n") if not part.startswith("python"))
    options = read_arguments(Options, f"python -m {package} prompts", about, arguments)
    execute(lambda stop, console: run(options, stop, console))
