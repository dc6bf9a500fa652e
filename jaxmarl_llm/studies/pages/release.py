"""Copies trained policies of finished runs, the first seed of each arm, into one folder for `play --against`.

Adapters are rounded to bfloat16.

python -m experiments release runs/small_model-smollm2 runs/exploitability-tiny --out policies
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.markup import escape
from safetensors.flax import load_file, save_file

from jaxmarl_llm.rollout.policy_files import POLICIES
from jaxmarl_llm.runs.log import writable_directory
from jaxmarl_llm.studies.lanes import run_name
from jaxmarl_llm.studies.pages import page, results
from jaxmarl_llm.studies.pages.format import markdown
from jaxmarl_llm.studies.pages.reached import counts_of
from jaxmarl_llm.text.arguments import read_arguments
from jaxmarl_llm.text.refusals import check_new

TENSORS = "adapter_model.safetensors"
TEXT = """# Trained policies

They are those of the first seed of an arm. Adapters are rounded to bfloat16; their model loads by the name that they
give. To play against one: `python -m jaxmarl_llm.play GAME --against FOLDER/NAME`. The numbers are means over all seeds
of the run, before → after training, as on the pages of results."""


@dataclasses.dataclass(frozen=True)
class Options:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of finished runs."""
    out: Path
    """A new folder; each policy has a folder in it."""
    arms: tuple[str, ...] = ()
    """Arms whose policies are copied; by default all."""
    megabytes: float = 20.0
    """Largest size of all policies together, in MB."""


def run(options: Options, console: Console) -> None:
    """Copies the policies of the first seed of each arm, and writes a README.md beside them.

    Raises ValueError before it writes: for a directory without a finished run or an arm, two policies of one name,
    policies larger than `megabytes` together, or an `out` with files.
    """
    policies: dict[str, tuple[Path, dict[str, Any], str]] = {}
    for directory in options.runs:
        told = results.load(directory / "results.json")
        if unknown := {*options.arms} - {*told["settings"]}:
            raise ValueError(f"{directory} has no arm {min(unknown)!r}: its arms are {', '.join(told['settings'])}.")
        for arm in options.arms or told["settings"]:
            home = directory / run_name(arm, told["seeds"][0], alone=told["model"] != "tiny") / POLICIES
            for policy in sorted(home.glob("*/")):
                name = "-".join([told["study"], arm.replace("/", "-").replace(" ", "_"), policy.name])
                if name in policies:
                    raise ValueError(f"{policies[name][0]} and {policy} are both called {name}: release one of them.")
                policies[name] = policy, told, arm
    if not policies:
        raise ValueError(f"There are no policies in {', '.join(map(str, options.runs))}: only finished runs have some.")
    size = sum(bytes_of(policy) for policy, _, _ in policies.values()) / 1e6
    if size > options.megabytes:
        raise ValueError(f"{', '.join(policies)} have {size:.1f} MB, more than {options.megabytes:g}: release fewer.")
    check_new(options.out)
    out = writable_directory(options.out)
    rows: list[Sequence[Any]] = [("name", "study", "arm", "model", "game", "MB", "main metrics")]
    for name, (policy, told, arm) in policies.items():
        copy(policy, out / name)
        metrics, *lines = page.arms(told, counts_of(told, {}))
        cells = next(line for line in lines if line[0] == arm)
        numbers = "; ".join(f"{metric} {cell}" for metric, cell in zip(metrics[1:], cells[1:], strict=True) if cell)
        game, taken = told["settings"][arm]["game"]["kind"], bytes_of(policy) / 1e6
        rows.append((f"`{name}`", told["study"], arm, told["model"], game, f"{taken:.1f}", numbers))
    (out / "README.md").write_text(f"{TEXT}\n\n{markdown(rows)}\n", encoding="utf-8")
    console.print(f"In {escape(str(out))}: {escape(', '.join(policies))}; {size:.1f} MB.")


def bytes_of(policy: Path) -> int:
    """The size of a policy's files after `copy`, in bytes: a tensor of an adapter has two bytes a number."""
    return sum(file.stat().st_size // (2 if file.name == TENSORS else 1) for file in policy.iterdir())


def copy(policy: Path, to: Path) -> None:
    """Copies the folder of a policy, with the tensors of an adapter in bfloat16."""
    shutil.copytree(policy, to)
    if (to / TENSORS).exists():
        small = {name: leaf.astype(jnp.bfloat16) for name, leaf in load_file(to / TENSORS).items()}
        save_file(small, to / TENSORS, {"format": "pt"})


def command(package: str, arguments: Sequence[str], console: Console) -> None:
    """The command `release`."""
    prog = f"python -m {package} release"
    run(read_arguments(Options, prog, str(__doc__), arguments), console)
