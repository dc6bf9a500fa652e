"""SmolLM2-135M plays the prisoner's dilemma against itself and learns from the points of each seat.

python -m experiments demo

A game is one round: both say A or B at once, and in half of the games the letters mean the opposite. Defection pays
more whatever the other does, so that both learn it, and both end with less. The same command continues a demo that was
stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from experiments.social import social_dilemma
from jaxmarl_llm.devices import distributed
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.studies import program, runner
from jaxmarl_llm.studies.cli import execute
from jaxmarl_llm.studies.registry import Entry
from jaxmarl_llm.studies.settings import Settings
from jaxmarl_llm.studies.study import ANY, Study
from jaxmarl_llm.text.arguments import read_arguments
from jaxmarl_llm.text.plots import plot

ARM, MODEL = "naive", "smollm2"
RECIPE = replace(
    social_dilemma.NAIVE,
    pretrained={
        "game": MatrixGame(rounds=1),
        "updates": 20,
        "groups": 4,
        "group_size": 16,
        "measure": partial(social_dilemma.self_play, alone=4),
        "hparams": {"learning_rate": 3e-4, "entropy": 0.05},
    },
)


@dataclass(frozen=True)
class Options:
    seed: int = 0
    out: Path = Path("runs/demo")
    """Run directory."""


def study() -> Study:
    """The demo as a study of one arm. It judges nothing."""
    return Study(
        question="Does a language model that plays itself, and learns from the points of each seat, learn to defect?",
        claim="Cooperation falls.",
        arms={ARM: RECIPE},
        method=ARM,
        metrics=("cooperation", "points"),
        scope=ANY,
    )


def run(options: Options, stop: threading.Event, console: Console) -> bool:
    """Trains and shows the curve; False if a signal stopped it."""
    updates = RECIPE.pretrained["updates"]
    console.print(
        f"SmolLM2-135M plays the prisoner's dilemma against itself, 64 games an update, {updates} updates, and learns "
        "from the points of each seat: expect cooperation to fall from about one half to nearly 0. That takes two to "
        "four minutes on two cores.",
        highlight=False,
    )
    settings = Settings(
        "demo", seeds=1, first_seed=options.seed, model=MODEL, checkpoint_every=5, games=32, out=options.out.resolve()
    )
    entry = Entry("demo", __name__, study())
    if not runner.run(entry, settings, stop, console):
        return False
    if distributed.is_main_process():
        console.print(escape(tell(options.out, options.seed, updates)), highlight=False, soft_wrap=True)
    return True


def tell(out: Path, seed: int, updates: int) -> str:
    """The curve of cooperation, and a sentence on how it ended."""
    curves = program.read_curves(out, ARM, (seed,), updates, True)
    cooperation, points = (curves[name][0].tolist() for name in ("cooperation", "points"))
    shown = max(1, round(updates / 10))  # as in the table above it
    mean = lambda values: sum(values) / len(values)
    began, ended = mean(cooperation[:shown]), mean(cooperation[-shown:])
    how = "fell" if ended < began - 0.1 else "hardly changed:" if abs(ended - began) <= 0.1 else "rose"
    lines = ["Cooperation by update", *plot(cooperation, 0.0, 1.0)]
    lines += [
        f"Cooperation {how} from {began:.2f} to {ended:.2f}, and the points of both from {mean(points[:shown]):.2f} to "
        f"{mean(points[-shown:]):.2f} a game (means of the first and the last tenth of the updates; the table has the "
        "last). "
        f"Games before and after: {out / 'games.html'}"
    ]
    return "\n".join(lines)


def command(package: str, arguments: Sequence[str]) -> None:
    """The command `demo` of a package of studies."""
    description = "\n\n".join(part for part in str(__doc__).split("\n\n") if not part.startswith("python"))
    options = read_arguments(Options, f"python -m {package} demo", description, arguments)
    execute(lambda stop, console: run(options, stop, console))
