"""Programs of a study: which arms share one, and which begin alike."""

from experiments.rewards.search_self_play import CO_TRAINED
from experiments.rewards.search_self_play import STUDY as SSP
from jaxmarl_llm.studies.lanes import programs
from jaxmarl_llm.training.warm_start import warm_start_of


def test_which_arms_of_a_study_share_one():
    arms = SSP.recipes
    plan = programs(arms, (0,), alone=False)
    assert [sorted(one.arms) for one in plan] == [["co_trained", "no_baseline"], ["frozen"], ["uniform"], ["no_gate"]]
    begins = {name: warm_start_of(arm) for name, arm in arms.items()}
    assert begins["frozen"] == begins["co_trained"] == warm_start_of(CO_TRAINED)
    assert begins["uniform"] != begins["co_trained"] != begins["no_gate"]  # another seat, another game
