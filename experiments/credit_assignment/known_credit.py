"""What does every estimator of the package do to the gradient, if the credit of every act is known?

Four enumerable games, each with a tabular policy. Its logits are normal and drawn anew for each seed.

  turns   `SixTurns` with four turns and two seats; a turn's reward is paid in it and depends on it alone.
          The seats have unlike rewards.
  stairs  an answer counts if no wrong answer follows; everything is paid at the end
  fork    one answer of four matters; its consequence is partly luck, told in the next turn and paid at the end
  gifts   three seats give 0 to 3 coins; gifts are doubled and shared by all. The other seats' gifts are noise to a
          seat. The seats choose one after the other, unseen, so that the game has a tree.

An arm is an estimator of `rl.advantages.registry`. An estimator that takes a value has two arms. One gets the exact
value; `.../wrong_value` gets it with normal errors, whose size is the root mean square of the exact advantages. This
file names only the estimators of its predictions. An arm has no metrics of a game that lacks an input of the estimator.

A seed is 1,024 batches of 8 groups of 8 games. The metrics of `evaluation.exact.estimators`, for each game:

  bias           |m - g| / |g|, with m the mean gradient over batches and g the exact one
  direction      cosine of m and g
  noise          standard deviation of a batch's gradient over |m|
  cosine         cosine of a batch's gradient and g
  correlation    correlation of the advantages with the exact ones
  silent groups  share of groups whose advantages are all 0

  python -m experiments known_credit --seeds 10    # a minute on two cores

Paper: Zhang 2026, From Reasoning to Agentic, https://arxiv.org/abs/2604.09459, a survey of 47 methods of credit
assignment. Only its abstract was read. It asks for tasks with controlled forks to rank them on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.one_by_one import OneByOne
from jaxmarl_llm.environments.social.public_goods import PublicGoods
from jaxmarl_llm.environments.solo.fork import Fork
from jaxmarl_llm.environments.solo.stairs import Stairs
from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.evaluation.exact.estimators import METRICS, measure, variants
from jaxmarl_llm.evaluation.exact.exact_gradient import Tables, tables
from jaxmarl_llm.rl.advantages.registry import ESTIMATORS
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study

GIFTS = OneByOne(PublicGoods(agents=3, multiplier=2.0, rounds=1, endowment=3))
GAMES = {"turns": SixTurns(turns=4), "stairs": Stairs(), "fork": Fork(), "gifts": GIFTS}


@cache
def game(name: str) -> Tables:
    return tables(GAMES[name])


@jax.jit
def compute_metrics(key: jax.Array, hparams: Mapping[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
    """{estimator: {metric: value}} of one seed."""
    results: dict[str, dict[str, jax.Array]] = {name: {} for name in variants(ESTIMATORS)}
    for number, name in enumerate(GAMES):
        policy_key, games_key = jax.random.split(jax.random.fold_in(key, number))
        legal = game(name).tree.legal
        policy = jax.nn.softmax(jnp.where(legal, jax.random.normal(policy_key, legal.shape), -jnp.inf))
        for estimator, metrics in measure(game(name), policy, ESTIMATORS, games_key).items():
            results[estimator] |= {f"{metric}, {name}": x for metric, x in metrics.items()}
    return results


RIGHT, OFF = "gae_lambda_0", "gae_lambda_1/wrong_value"
PILOT = "The predictions were written from seeds 100 to 103 of the three games turns, stairs and fork."
JOINT = "Written from seeds 100 to 103 (commit 86c517f), before the first table that has this arm."
STUDY = Study(
    paper=Paper("Survey of credit assignment (Zhang)", "https://arxiv.org/abs/2604.09459", 2026, checked="abstract"),
    question="What does every estimator do to the gradient, where the credit is known?",
    claim="Credit by turn is nearer to the exact advantages than by episode where a turn's reward is its own; leaving "
    "one out and whole returns with any critic are unbiased, a group's deviation and a wrong bootstrap are not; credit "
    "from other joint actions is less noisy.",
    arms={name: Computed(compute_metrics, part=name) for name in variants(ESTIMATORS)},
    method="round_leave_one_out",
    metrics=tuple(f"{metric}, {name}" for name in GAMES for metric in METRICS),
    predictions=(
        *(
            Higher(metric, arm, than=other, source="pilot", where=PILOT)
            for metric, arm, other in (
                ("correlation, turns", "round_leave_one_out", "rloo_per_agent"),
                ("cosine, turns", "round_leave_one_out", "rloo_per_agent"),
                ("cosine, turns", "rloo_per_agent", "rloo"),
                ("correlation, stairs", "turn_wise", "rloo"),
                ("correlation, stairs", "shared_steps", "grpo"),
                ("cosine, fork", RIGHT, "gae_lambda_1"),
            )
        ),
        *(
            Lower(metric, arm, than=other, source="pilot", where=PILOT)
            for metric, arm, other in (
                ("cosine, stairs", "grpo", "rloo"),
                ("direction, stairs", "grpo", "rloo"),
                ("cosine, stairs", "turn_wise", "rloo"),
                ("cosine, stairs", f"{RIGHT}/wrong_value", OFF),
            )
        ),
        *(
            Higher(metric, arm, than=other, source="pilot", where=JOINT)
            for metric, arm, other in (
                ("cosine, gifts", "crossed", "rloo_per_agent"),
                ("cosine, gifts", "counterfactual", "crossed"),
                ("cosine, stairs", "fitted_critic", "rloo"),
            )
        ),
        *(
            Lower(metric, arm, than=other, source="pilot", where=JOINT)
            for metric, arm, other in (
                ("direction, stairs", "fitted_critic", "rloo"),
                ("cosine, stairs", "utterance_critic/wrong_value", OFF),
            )
        ),
    ),
    checks=(
        *(AtMost(f"bias, {name}", arm, 0.1) for name in GAMES for arm in ("reinforce", "rloo_per_agent", OFF)),
        *(AtMost("bias, gifts", arm, 0.1) for arm in ("crossed", "counterfactual")),
        AtLeast("bias, stairs", f"{RIGHT}/wrong_value", 0.2),
        AtMost("direction, fork", "turn_wise", 0.1),
        AtMost("direction, gifts", "gae_through_agents", 0.0),
    ),
)
