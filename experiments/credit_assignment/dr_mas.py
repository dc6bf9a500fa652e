"""Whose statistics: Dr. MAS normalises the advantage of each agent by its own calls.

A router calls a searcher or an answerer (`RouterSearch`): three policies, one reward for the team. A solver and a
verifier loop until approval (`SolverVerifier`). The published comparison changes two things at once: whose statistics,
and what one sample is. This study has three arms of each game:

  episode     one mean and deviation for all agents of a question; each episode and agent is a sample
  step        the same; each call is a sample
  agent_wise  mean and deviation of the calls of the same agent

  search  all three are taught by imitation of scripted games, of which one in five is played well and the others by a
          router that answers at once: at first a fifth of the questions is looked up
  rare    the same, and the router learns at a tenth of the others' rate: the searcher stays rarely called for long
  verify  solver and verifier begin untaught

Predicted, before the run on seeds 10 to 19, which no tuning has seen: with agent-wise statistics the searching team
learns the game (success of 0.9), and the tail (99th percentile over the updates) of the searcher's gradient norm is
lower than with the others; a solver and a verifier succeed more. No difference is claimed in the success of the search:
on seeds 100 to 102 every arm learnt it.

  python -m experiments dr_mas --seeds 10 --first-seed 10
  python -m experiments dr_mas --model smollm2 --seeds 1

Paper: Feng et al. 2026, Dr. MAS, https://arxiv.org/abs/2602.08847. The formula of the agent-wise advantage was read in
the released code. The release keeps the raw score of a group of one call; here it gets 0.
"""

from collections.abc import Mapping
from dataclasses import replace

import jax
import numpy as np

from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.teams.team_search import RouterSearch
from jaxmarl_llm.environments.teams.team_tasks import SolverVerifier
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, Paper, Study
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe


def team(episodes: Episodes) -> dict[str, jax.Array]:
    """Share of episodes that end with the right answer, and calls of each seat an episode."""
    calls = episodes.acted.sum(1).mean(0)
    return {"success": episodes.reward[:, :, 0, 0].sum(1).mean()} | {f"calls/seat_{i}": n for i, n in enumerate(calls)}


STATISTICS = {
    "episode": estimator(advantages.grpo, weight="episode"),
    "step": estimator(advantages.grpo, weight="turn"),
    "agent_wise": estimator(advantages.agent_wise),
}
SEARCH = Recipe(
    RouterSearch(keys=6, values=6),
    seats=(("router", "searcher", "answerer"),),
    advantage=STATISTICS["episode"],
    warm_start=(("hasty", "random", "random"),) * 4 + (("correct", "correct", "correct"),),
    hparams={"learning_rate": 3e-3, "entropy": 0.03},
    groups=16,
    group_size=5,
    updates=100,
    measure=team,
)
VERIFY = replace(
    SEARCH,
    game=SolverVerifier(Arithmetic(4, "+"), loops=3),
    seats=(("solver", "verifier"),),
    warm_start=(),
)
OTHERS, TAIL = ("episode", "step"), "p99 gradient norm of the least called"


def tail(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """The 99th percentile over all updates of the searcher's gradient norm, or of the verifier's."""
    name = "searcher" if "gradient_norm/searcher" in curves else "verifier"
    return np.nanquantile(curves[f"gradient_norm/{name}"], 0.99, axis=1)


GAMES = {"search": SEARCH, "rare": SEARCH.with_hparams(**{"learning_rate/router": 3e-4}), "verify": VERIFY}
STUDY = Study(
    paper=Paper("Dr. MAS (Feng et al.)", "https://arxiv.org/abs/2602.08847", 2026, checked="release"),
    question="Do each agent's own statistics calm the gradient of a rarely called agent?",
    claim="In a team that learns, agent-wise statistics lower the 99th percentile over the updates of the rarely "
    "called searcher's gradient norm, against both episode-wise and step-wise statistics of all agents, and a solver "
    "and a verifier succeed more with them.",
    arms={
        f"{game}/{name}": replace(recipe, advantage=how)
        for game, recipe in GAMES.items()
        for name, how in STATISTICS.items()
    },
    method="search/agent_wise",
    metrics=(TAIL, "success"),
    predictions=(
        *(AtLeast("success", f"{game}/agent_wise", 0.9) for game in ("search", "rare")),
        *(Lower(TAIL, f"{game}/agent_wise", than=f"{game}/{other}") for game in ("search", "rare") for other in OTHERS),
        *(Higher("success", "verify/agent_wise", than=f"verify/{other}") for other in OTHERS),
    ),
    derived={TAIL: tail},
)
