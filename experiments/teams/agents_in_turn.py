"""Should the agents of a team learn one at a time? MARFT's agent-by-agent updates in a relay.

Three policies pass numbers on (`Relay`, mod 3). The sender knows one of two numbers. The adder hears the sender and
knows the other number. The receiver hears the adder and must say the sum. The team earns 1 or 0 at the end. Training is
PPO with GAE from agent to agent (lambda 0.95), after imitation of dialogues of which a third is right.

  simultaneous  every agent learns from every batch
  each_1        one agent learns from a batch, the next agent from the next batch
  each_10       one agent learns from ten batches, then the next one
  each_1_fast   each_1 at three times the rate: as much movement as in simultaneous, for equal gradients
  one_policy    one policy plays all three seats and learns from every batch, with as many tokens

All arms except `one_policy` share a program: a waiting agent learns at rate 0. `fall` is the peak of success less its
final value. `over all` is the mean success over all updates.

  python -m experiments agents_in_turn --seeds 10

Paper: MARFT (Liao et al.) 2025, https://arxiv.org/abs/2504.16129, which proposes both ways. Its release trains one
adapter at a time for an interval. Its single-agent baseline acts without a team, which a relay does not allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from jaxmarl_llm.environments.teams.team_signals import Relay
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.studies.curves import fall_from_peak, mean_over_updates
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Experience

TEAM, RATE = ("sender", "adder", "receiver"), 1e-3


def through_agents(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GAE from agent to agent, whitened over all agents."""
    reward = experience.episodes.reward[..., 0]
    return Advantages(*advantages.sequential_agents(reward, *experience.acts, value=experience.turn_value, lam=0.95))


SIMULTANEOUS = Recipe(
    Relay(3),
    seats=(TEAM,),
    advantage=through_agents,
    hparams={f"learning_rate/{name}": RATE for name in TEAM},
    critic=True,
    warm_start=(("correct",) * 3, ("random",) * 3, ("random",) * 3),
    warm_start_updates=60,
    budget=1,
    updates=150,
    groups=8,
    epochs=2,
    measure=partial(component_returns, success=0),
    pretrained={"budget": 2},
)


def in_turn(interval: int, rate: float = RATE) -> Recipe:
    """A recipe in which one agent learns from `interval` batches, then the next agent."""

    def schedule(seat: int) -> Callable[[int], float]:
        return lambda number: rate if number // interval % len(TEAM) == seat else 0.0

    return SIMULTANEOUS.with_hparams(**{f"learning_rate/{name}": schedule(seat) for seat, name in enumerate(TEAM)})


ALL, FALL = "over all", "fall"
STUDY = Study(
    paper=Paper("MARFT (Liao et al.)", "https://arxiv.org/abs/2504.16129", 2025, checked="release"),
    question="Should the agents of a team learn one at a time?",
    claim="One at a time, success falls less below its peak; three policies end above one that says all parts.",
    arms={
        "simultaneous": SIMULTANEOUS,
        "each_1": in_turn(1),
        "each_10": in_turn(10),
        "each_1_fast": in_turn(1, 3 * RATE),
        "one_policy": replace(SIMULTANEOUS, seats=(("learner",) * 3,), hparams={"learning_rate": RATE}),
    },
    method="each_1",
    metrics=("success", ALL, FALL),
    predictions=(
        Lower(
            FALL,
            "each_1",
            than="simultaneous",
            source="theory",
            where="An agent that learns alone faces partners that stand still. The abstract compares no ways of "
            "updating.",
        ),
        Lower(
            FALL,
            "each_1_fast",
            than="simultaneous",
            source="theory",
            where="Partners that stand still, at equal movement: three times the rate in a third of the batches.",
        ),
        *(
            Higher(
                "success",
                team,
                than="one_policy",
                source="theory",
                where="Three policies need not share weights among three parts. The paper's single agent acts without "
                "a team.",
            )
            for team in ("simultaneous", "each_1")
        ),
        Higher(
            ALL,
            "simultaneous",
            than="each_1",
            source="theory",
            where="A waiting agent learns at rate 0, so each agent moves a third as often.",
        ),
    ),
    derived={ALL: partial(mean_over_updates, metric="success"), FALL: partial(fall_from_peak, metric="success")},
)
