"""A function of one's own stands in the rows of a game and in the medians, and unknown names are refused."""

import math

import pytest

from experiments.benchmarks import leaderboard
from jaxmarl_llm.evaluation.exact.estimators import METRICS
from jaxmarl_llm.rl.advantages.registry import ESTIMATORS


def twice_the_reward(reward, acted):
    return 2.0 * reward * acted


@pytest.mark.long
def test_an_estimator_of_ones_own_appears():
    added = leaderboard.load_estimator(f"{__name__}:twice_the_reward")
    costs: dict[str, float] = {}
    rows = leaderboard.rows_of_game("fork", {"reinforce": ESTIMATORS["reinforce"], "mine": added}, costs, batches=2)
    rows += leaderboard.medians(rows)
    places = {(name, game) for name in ("reinforce", "mine") for game in ("fork", "all")}
    assert {(row["estimator"], row["game"]) for row in rows} == places and len(rows) == 4
    assert set(costs) == {"reinforce", "mine"} and all(cost > 0 for cost in costs.values())
    assert all(math.isfinite(row[metric]) for row in rows for metric in METRICS)


@pytest.mark.parametrize(
    ("name", "error"), [("grpo", "MODULE:FUNCTION"), ("math:no_such", "no estimator math:no_such")]
)
def test_names_that_are_no_estimator(name, error):
    with pytest.raises(ValueError, match=error):
        leaderboard.load_estimator(name)


def test_unknown_games_are_refused():
    with pytest.raises(ValueError, match="There is no game chess"):
        leaderboard.main(leaderboard.Options(games=("chess",)))
