"""Do each agent's own advantage statistics calm the gradient of a rarely called agent? Dr. MAS on two teams.

In `search` and `rare` a router calls a searcher or an answerer (`RouterSearch`): three policies and one team reward. In
`verify` a solver and a verifier loop until the verifier approves (`SolverVerifier`). The published comparison changes
two things at once: the set of samples that are normalised together, and the unit of a sample. This study separates
them with three arms for each game:

  episode     one mean and deviation for all agents of a question; a sample is an agent in an episode
  step        one mean and deviation for all agents of a question; a sample is a call
  agent_wise  one mean and deviation for each agent; a sample is a call

Games:

  search  All three policies first imitate scripted games. One game in five is played well; in the others the router
          answers at once. Training begins with a fifth of the questions searched.
  rare    as `search`; the router's learning rate is a tenth of the others', so that the searcher is rarely called for
          long
  verify  solver and verifier begin with random weights

Condition: with agent-wise statistics, `search` and `rare` reach a success of 0.9.

Predicted, against `episode` in all three games, as in the paper:

- With agent-wise statistics, the 99th percentile over updates of the gradient norm is lower. The norm is the
  searcher's; in `verify` it is the verifier's.
- With agent-wise statistics, success is higher. On seeds 100 to 102 every arm learned the search.

Ours: against `step`, that norm is lower in `search` and `rare`, and success is higher in `verify`.

  python -m experiments dr_mas --seeds 10 --first-seed 10
  python -m experiments dr_mas --model smollm2 --seeds 1

Paper: Feng et al. 2026, Dr. MAS, https://arxiv.org/abs/2602.08847. The formula of the agent-wise advantage was read in
the released code. The release keeps the raw score of a group with one call; here its advantage is 0.
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
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Recipe


def team(episodes: Episodes) -> dict[str, jax.Array]:
    """Share of episodes that end with the right answer, and calls of each seat per episode."""
    calls = mean_of_kept(episodes, episodes.acted.sum(1), axis=0)
    success = mean_of_kept(episodes, episodes.reward[:, :, 0, 0].sum(1))
    return {"success": success} | {f"calls/seat_{i}": n for i, n in enumerate(calls)}


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
TAIL = "p99 gradient norm of the least called"


def tail(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """99th percentile [seeds] over updates of the searcher's gradient norm; in `verify`, of the verifier's."""
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
        f"{game}/{name}": replace(recipe, advantage=estimate)
        for game, recipe in GAMES.items()
        for name, estimate in STATISTICS.items()
    },
    method="search/agent_wise",
    metrics=(TAIL, "success"),
    predictions=(
        *(
            AtLeast(
                "success",
                f"{game}/agent_wise",
                0.9,
                source="theory",
                where="A router that never searches succeeds in a sixth of episodes; 0.9 needs a learned search. "
                "The level was chosen after seeds 100 to 102.",
                condition=True,
            )
            for game in ("search", "rare")
        ),
        *(
            Lower(
                TAIL,
                f"{game}/agent_wise",
                than=f"{game}/episode",
                source="paper",
                where="Abstract: 'largely eliminating gradient spikes', against vanilla GRPO.",
            )
            for game in GAMES
        ),
        *(
            Higher(
                "success",
                f"{game}/agent_wise",
                than=f"{game}/episode",
                source="paper",
                where="Abstract: 'clear gains over vanilla GRPO', +15.2% avg@16 on search.",
            )
            for game in ("search", "rare")
        ),
        Higher(
            "success",
            "verify/agent_wise",
            than="verify/episode",
            source="paper",
            where="Abstract: 'clear gains over vanilla GRPO', +5.6% avg@16 on math. Added after a table of seeds 0 to "
            "9 (0.91 against 0.32).",
        ),
        *(
            Lower(
                TAIL,
                f"{game}/agent_wise",
                than=f"{game}/step",
                source="theory",
                where="Mean square advantage of agent k: 1 with own statistics, (sd_k^2 + (mean_k - mean)^2) / sd^2 "
                "with shared ones.",
            )
            for game in ("search", "rare")
        ),
        Higher(
            "success",
            "verify/agent_wise",
            than="verify/step",
            source="pilot",
            where="Seeds 0 to 9, an earlier setting: 0.91 with agent-wise statistics, 0.32 without.",
        ),
    ),
    derived={TAIL: tail},
)
