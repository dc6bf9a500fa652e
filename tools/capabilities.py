"""The table of options that work together, from constructing the smallest trainer with each pair of options.

A cell shows the trainer's error, if it raises one. Nothing is compiled, and no weights of a pretrained model are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.environments.around.wrappers import Illegal
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.models import loading
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.studies.pages.format import markdown
from jaxmarl_llm.training import step
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import SNAPSHOT, Recipe, mean_return
from jaxmarl_llm.training.records import Snapshots
from jaxmarl_llm.training.setup import LORA, Model
from jaxmarl_llm.training.trainer import Trainer

BASE = Recipe(MatrixGame(rounds=1), (("us", "random"),) * 2, estimator(advantages.rloo), groups=24, group_size=2)
INTRODUCTION = """
Each cell is made when this page is built: a trainer with both options is constructed, at the smallest size, in the
prisoner's dilemma of a policy against a script. ✓ means that it took them. A letter means that it refused them,
before anything compiled, with the sentence below. Options are numbered; the diagonal is an option alone. Policies are
tiny unless the pretrained model is one of the two options.
"""
Change = Callable[[Recipe, dict], tuple[Recipe, dict]]


def recipe(**fields: Any) -> Change:
    return lambda base, options: (replace(base, **fields), options)


def option(**fields: Any) -> Change:
    return lambda base, options: (base, options | fields)


def mesh(axis: str) -> Change:
    return lambda base, options: (base, options | {"mesh": ",".join(filter(None, (options.get("mesh"), axis)))})


def without_mask(base: Recipe, options: dict) -> tuple[Recipe, dict]:
    return replace(base, game=Illegal(base.game, "end"), masked=False), options


def messages(base: Recipe, options: dict) -> tuple[Recipe, dict]:
    return replace(base, game=MatrixGame(rounds=1, talk=True)), options


def with_pretrained(lora: Any) -> Change:
    return option(models=lambda base: {name: Model(pretrained_directory(), lora) for name in base.learners})


@cache
def pretrained_directory() -> str:
    return str(loading.locate("smollm2"))


FEATURES: dict[str, Change] = {
    "free messages": messages,
    "a pretrained model": with_pretrained(LORA),
    "all its weights, no adapter": with_pretrained(None),
    "answers that are not masked": without_mask,
    "several line-ups": lambda base, options: (replace(base, seats=(*base.seats, *(("random", "us"),) * 2)), options),
    "snapshots": lambda base, options: (
        replace(base, seats=(*base.seats, *(("us", SNAPSHOT),) * 2), snapshots=Snapshots(2)),
        options,
    ),
    "warm start": recipe(warm_start=(("random", "random"),)),
    "critic": recipe(critic=True),
    "reference policy": recipe(reference=True),
    "a step of its own": recipe(step=step.on_policy_step),
    "evaluation": recipe(evaluate=mean_return),
    "epochs and minibatches": recipe(epochs=2, minibatches=2),
    "gradient accumulation": recipe(grad_accumulation=2),
    "buckets": recipe(buckets=2),
    "rematerialisation": recipe(remat="full"),
    "mesh data=2": mesh("data=2"),
    "mesh fsdp=2": mesh("fsdp=2"),
    "mesh tensor=2": mesh("tensor=2"),
    "rollout mesh": option(rollout_mesh="data=2"),
}


def refusal(*changes: Change) -> str:
    """The error of constructing a trainer with these changes; "" if it succeeds."""
    base, options = BASE, {}
    for change in changes:
        base, options = change(base, options)
    models = options.pop("models", lambda base: "tiny")(base)
    try:
        with mock.patch.object(sharding, "place", lambda weights, mesh: weights):  # abstract weights cannot be moved
            Trainer(base, [base.all_hparams], [0], models, load=loading.abstract, **options)
    except ValueError as error:
        return re.sub(r"\s+", " ", str(error))
    return ""


def page() -> str:
    """Markdown of the page: the table of pairs, with single options on the diagonal, and the errors by letter."""
    sentences: dict[str, str] = {}
    names, rows = list(FEATURES), [("option", *map(str, range(1, len(FEATURES) + 1)))]
    for i, name in enumerate(names):
        cells = []
        for other in names[: i + 1]:
            said = refusal(*dict.fromkeys((FEATURES[other], FEATURES[name])))
            cells.append(f"**{sentences.setdefault(said, chr(97 + len(sentences)))}**" if said else "✓")
        rows.append((f"{i + 1} {name}", *cells, *[""] * (len(names) - 1 - i)))
    said = "\n".join(f"- **{mark}** {sentence}" for sentence, mark in sentences.items())
    return "\n\n".join(["# Which options work together", INTRODUCTION.strip(), markdown(rows), said]) + "\n"
