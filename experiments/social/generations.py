"""Do generations that copy their best members learn to give? Cultural evolution in the donor game.

Twelve agents meet in pairs. The donor gives 0, 1/4, 1/2, 3/4 or all of its resources, and the recipient receives twice
the gift. The donor sees a trace of up to three steps. The first step is its recipient's last gift, and the next one is
the last gift that the receiver of this gift had made before. In twelve rounds each agent meets each member of the other
half twice, once in each role. A generation plays two games; the second exchanges all roles. An agent's score is its
final resources of both games. Half of the agents survive, and noisy copies of them replace the other half.

An agent is a network with one hidden layer, from the trace to a share. The first generation is random. No gradient
is used, and the arms need no language model. A seed is a history.

  trace_3, trace_1, trace_0   the better half survives; donors see three steps, one or none
  random                      three steps; a random half survives
  fine                        as trace_3; a donor may pay a tenth of its resources to take a fifth of the recipient's

`wealth` is the mean of the resources after a game, 10 at its start. `given` is the mean share. Both are means over the
last tenth of the generations.

  python -m experiments generations --seeds 10

Paper: Cultural Evolution of Cooperation among LLM Agents (Vallinder & Hughes) 2024, https://arxiv.org/abs/2412.10270.
There the agents are language models that write strategies. Its release selects by twice the score of the second game;
here both games count.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.methods.generations import next_generation
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.tabular import donors

GENERATIONS = 200


def history(key: jax.Array, hparams: Mapping[str, Any], *, steps: int = 3, selection: Any = "top") -> dict:
    """Curves over the generations, {metric: [generations]}."""
    start_key, key = jax.random.split(key)
    first = jnp.asarray(donors.meetings())

    def generation(nets: dict, key: jax.Array) -> tuple[dict, dict]:
        first_key, second_key, select = jax.random.split(key, 3)
        owned, given = jax.vmap(donors.play_game, (None, 0, 0, None, None))(
            nets, jnp.stack([first, first[:, :, ::-1]]), jnp.stack([first_key, second_key]), steps, hparams["fine"]
        )
        how: dict = {"survivors": donors.AGENTS // 2, "noise": hparams["noise"], "selection": selection}
        new, _ = next_generation(nets, owned.sum(0), select, **how)
        return new, {"wealth": owned.mean(), "given": given.mean()}

    _, curves = jax.lax.scan(generation, donors.random_networks(start_key), jax.random.split(key, GENERATIONS))
    return curves


NUMBERS = {"noise": 0.1, "fine": 0.0}
SEEN = {f"trace_{steps}": Computed(partial(history, steps=steps), NUMBERS, GENERATIONS) for steps in (3, 1, 0)}
STUDY = Study(
    paper=Paper(
        "Cultural Evolution of Cooperation (Vallinder & Hughes)",
        "https://arxiv.org/abs/2412.10270",
        2024,
        checked="release",
    ),
    question="Do generations that copy their best learn to give?",
    claim="With traces and selection by success agents end richer than without either; a fine makes them richer still.",
    arms=SEEN
    | {
        "random": Computed(partial(history, selection="random"), NUMBERS, GENERATIONS),
        "fine": Computed(history, {**NUMBERS, "fine": 1.0}, GENERATIONS),
    },
    method="trace_3",
    metrics=("wealth", "given"),
    predictions=(
        Higher(
            "wealth",
            "trace_3",
            than="trace_0",
            source="theory",
            where="Without a trace a gift earns no reputation, so selection by wealth removes giving at once.",
        ),
        Higher(
            "wealth",
            "trace_3",
            than="random",
            source="theory",
            where="Inference: giving to those that gave pays only if wealth selects. The notes derive the reverse: a "
            "gift costs its donor.",
        ),
        Higher(
            "wealth",
            "trace_3",
            than="trace_1",
            source="theory",
            where="One step of the trace does not tell a justified refusal from greed.",
        ),
        Higher(
            "wealth",
            "fine",
            than="trace_3",
            source="theory",
            where="Inference: fines of agents that keep all make keeping costly. The abstract reports a gain for one "
            "of three language models.",
        ),
    ),
    x="generation",
)
