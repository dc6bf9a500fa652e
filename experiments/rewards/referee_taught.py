"""Does one model as player and referee beat a frozen referee if it trains more on judging? URPO, a second setting.

In a former table of `referee` a frozen referee taught open sums better than the policy's own scores did. Here a batch
has four rankings for each open game instead of one, so that the referee may learn faster than the player drifts. All
other settings are those of `referee`.

  unified  one policy plays and scores
  frozen   the referee is the initial policy

`judge` is Kendall's tau of the referee's scores with the truth in new rankings; `hidden` is the accuracy in new open
games. The prediction was written after three tuning seeds: hidden ends higher with unified than with frozen. Check:
judge does so too, since the frozen referee never changes.

  python -m experiments referee_taught --seeds 20

Paper: URPO (Lu et al.) 2025, https://arxiv.org/abs/2507.17515. There the baseline's frozen referee is a reward model
that was trained separately. Here it is the initial policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from experiments.rewards.referee import ME, PLAYERS, URPO
from jaxmarl_llm.environments.judged.refereed import LABELLED, OPEN, RANKED
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.training.recipe import Parts


def judge(episodes: Episodes) -> dict[str, jax.Array]:
    return {"judge": episodes.measured[:, :, PLAYERS, 1].sum(1)}


def evaluate(parts: Parts) -> Callable[[dict, jax.Array], dict[str, Any]]:
    assert URPO.evaluate is not None
    hidden, ranked = URPO.evaluate(parts), in_fresh_games(parts, measure=judge, deal=RANKED, games=128)
    return lambda weights, key: hidden(weights, key) | ranked(weights, key)


KINDS = (LABELLED, *(RANKED,) * 4, OPEN)
LABELLED_ONES: Any = URPO.measure  # takes the number of kinds
UNIFIED = replace(
    URPO,
    game=replace(URPO.game, game=replace(URPO.game.game, kinds=KINDS)),
    groups=2 * len(KINDS),
    measure=partial(LABELLED_ONES, kinds=len(KINDS)),
    evaluate=evaluate,
    eval_every=30,
    pretrained={"budget": 4, "groups": len(KINDS)},
)
STUDY = Study(
    paper=Paper("URPO (Lu et al.)", "https://arxiv.org/abs/2507.17515", 2025, checked="abstract"),
    question="Does one model as player and referee beat a frozen referee if it is taught more to judge?",
    claim="With four rankings for each open game a policy's own scores teach it more than a frozen referee's.",
    arms={"unified": UNIFIED, "frozen": replace(UNIFIED, seats=((*(ME,) * PLAYERS, f"initial/{ME}"),))},
    method="unified",
    metrics=("hidden", "judge", "accuracy", "self-score"),
    predictions=(
        Higher(
            "hidden",
            "unified",
            than="frozen",
            source="paper",
            where="Abstract: AlpacaEval 42.24 to 44.84 against a separate reward model. Seeds 100 to 102 showed it "
            "here, after `referee` had contradicted it.",
        ),
    ),
    checks=(Higher("judge", "unified", than="frozen"),),
)
