"""Which customs make Q-learners cooperate: choice of partners, fines by partners, fines by outsiders, reputations?

Five agents have a table each. In an episode each agent in turn plays ten rounds of the prisoner's dilemma (4, 3, 1 or
0 points) with a partner. A table sees the last actions of both players, in whatever game they were taken. Actions
follow Boltzmann's rule, and the temperature falls from 1 to 0.1. An arm is PAY/CUSTOMS, with the customs in its name:

  choose      an agent chooses its partner by the rewards of earlier games with it, or with agents of its reputation
  direct      after a round each player may fine the other 3 points
  third       after a round an outsider is drawn for each player and may fine it
  reputation  points: 1 for C, -1 for D, 2 for a fine of D, -3 for a fine of C; all see which have the mean or more
  bare        none of them
  paid/       a fine of D earns the fining agent 2, and a fine of C costs it 10, as in the release
  costly/     any fine costs the fining agent 1
  linear/     as paid/, with play values that are linear in the observation: similar situations share their lessons

The arms need no language model; a seed is a history. Metrics:

  cooperation, early cooperation  the second in the first fifth of the episodes
  reward                          a seat's points in a round, with its gains and losses by fines of the round
  fines                           number of fines a round
  distance                        between cooperation and that of the one-shot game's subgame-perfect equilibrium

  python -m experiments punishment --seeds 10

Paper: Investigating the Impact of Direct Punishment (Dasgupta & Musolesi) 2023, https://arxiv.org/abs/2301.08278. There
the agents are Q-networks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import compress, product
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.computed import side_by_side
from jaxmarl_llm.studies.study import AtMost, Higher, Paper, Study
from jaxmarl_llm.tabular.sanctions import Customs, Society, begin, outsiders, partners, play

AGENTS, ROUNDS, EPISODES, POINTS = 5, 10, 400, 100
PAYOFF = jnp.array([[3.0, 0.0], [4.0, 1.0]])  # [own action, other's action]; 0: cooperate, 1: defect
HOT = jnp.maximum(jnp.linspace(1.0, -0.1, EPISODES), 0.1)


def one_shot(customs: Customs) -> jax.Array:
    """Cooperation in the subgame-perfect equilibrium of one round, 0 or 1.

    Agents fine if and only if fining pays. Cooperation is optimal if the expected fine exceeds the gain from defecting.
    """
    fined = customs.fine * (customs.just > 0) * (customs.direct + customs.third)
    gain = PAYOFF[1] - fined - PAYOFF[0]  # D over C, against C and against D; a fine of C never pays
    return (gain.max() < 0).astype(jnp.float32)


def history(key: jax.Array, arm: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Curves of POINTS means over the episodes, {metric: [POINTS]}."""
    allowed = {name: select(arm, name, off=0.0, on=1.0) for name in CUSTOMS}
    customs = Customs(**allowed, **{name: arm[name] for name in ("just", "unjust", "fine")})
    start, key = jax.random.split(key)

    def episode(society: Society, at: tuple[jax.Array, jax.Array]) -> tuple[Society, dict[str, jax.Array]]:
        number, hot = at
        pick, keys = jax.random.split(jax.random.fold_in(key, number))
        chosen = partners(society, pick, customs, hot)

        def game(society: Society, number: jax.Array) -> tuple[Society, dict[str, jax.Array]]:
            draw, acts = jax.random.split(jax.random.fold_in(keys, number))
            pair = jnp.stack([number // ROUNDS, chosen[number // ROUNDS]])
            numbers: dict[str, Any] = {
                "payoff": PAYOFF,
                "customs": customs,
                "temperature": hot,
                "rate": 0.1,
                "discount": 0.9,
                "linear": select(arm, "values", table=0.0, linear=1.0),
            }
            return play(society, pair, outsiders(draw, pair, AGENTS), acts, **numbers)

        society, measured = jax.lax.scan(game, society, jnp.arange(AGENTS * ROUNDS))
        return society, jax.tree.map(jnp.mean, measured)

    society = begin(jax.random.randint(start, (AGENTS,), 0, 2))
    _, measured = jax.lax.scan(episode, society, (jnp.arange(EPISODES), HOT))
    curves = jax.tree.map(lambda x: x.reshape(POINTS, -1).mean(1), measured)
    return curves | {"distance": jnp.abs(curves["cooperation"] - one_shot(customs))}


def arm_name(allowed: Collection[str]) -> str:
    """The name of an arm with these customs."""
    return "_".join(name for name in CUSTOMS if name in allowed) or "bare"


CUSTOMS = ("choose", "direct", "third", "reputation")
CHOICES = {**dict.fromkeys(CUSTOMS, ("off", "on")), "values": ("table", "linear")}
PAY = {"paid": {"just": 2.0, "unjust": -10.0}, "costly": {"just": -1.0, "unjust": -1.0}}
ALLOWED = [set(compress(CUSTOMS, on)) for on in product((False, True), repeat=4)]
SETTINGS: dict[str, dict[str, Any]] = {
    f"{pay}/{arm_name(allowed)}": {**PAY[pay], "fine": 3.0, **dict.fromkeys(sorted(allowed), "on")}
    for pay in PAY
    for allowed in ALLOWED
}
SETTINGS |= {f"linear/{arm_name(on)}": {**SETTINGS[f"paid/{arm_name(on)}"], "values": "linear"} for on in ALLOWED}
ALL = arm_name(CUSTOMS)
PAIRED = ("choose_direct", "choose_third", "direct_third")
SECOND_HAND = "second-hand (summary at sciencestack.ai/paper/2301.08278), place not read"
STUDY = Study(
    paper=Paper("Direct Punishment (Dasgupta & Musolesi)", "https://arxiv.org/abs/2301.08278", 2023, checked="release"),
    question="Which customs make Q-learners cooperate: choosing partners, fines, reputations?",
    claim="Where who fines is paid, fines raise cooperation, strangers' fines more; partners' fines bring more reward; "
    "all customs together are fastest, also with linear values. Where fines cost who makes them, nobody fines.",
    arms=side_by_side(history, SETTINGS, POINTS, CHOICES),
    method="paid/choose_direct_third_reputation",
    metrics=("cooperation", "early cooperation", "reward", "fines", "distance"),
    derived={"early cooperation": lambda curves: curves["cooperation"][:, : POINTS // 5].mean(1)},
    x="4 episodes",
    predictions=(
        *(
            Higher(
                "cooperation",
                f"paid/{name}",
                than="paid/bare",
                source="theory",
                where="a fine of D earns 2 and costs 3, more than D gains: the one-shot equilibrium cooperates; "
                "without fines all defect",
                condition=True,
            )
            for name in ("direct", "third")
        ),
        *(
            Higher(
                "cooperation",
                f"paid/{name}",
                than="paid/bare",
                source="theory",
                where="a guess, not derived: choice of partners or reputations alone raise cooperation",
            )
            for name in ("choose", "reputation")
        ),
        Higher(
            "cooperation",
            "paid/third",
            than="paid/direct",
            source="paper",
            where=f"{SECOND_HAND}: third-party punishment yields higher equilibrium cooperation",
        ),
        Higher(
            "reward",
            "paid/direct",
            than="paid/third",
            source="paper",
            where=f"{SECOND_HAND}: direct punishment achieves higher global rewards",
        ),
        *(
            Higher(
                "early cooperation",
                f"{kind}/{ALL}",
                than=f"{kind}/{name}",
                source="paper",
                where=f"{SECOND_HAND}: both punishments with partner selection and reputation converge fastest",
            )
            for kind in ("paid", "linear")
            for name in PAIRED
        ),
        Higher(
            "early cooperation",
            f"linear/{ALL}",
            than=f"paid/{ALL}",
            source="pilot",
            where="seeds 100 to 103 of linear/, beside ten known seeds of paid/",
        ),
    ),
    checks=(
        *(AtMost("cooperation", f"costly/{name}", 0.1) for name in ("direct", "third", ALL)),
        AtMost("distance", f"paid/{ALL}", 0.05),
    ),
)
