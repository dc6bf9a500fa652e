"""How many games are imitated, and what is played with what is left."""

import pytest

from experiments.long_horizon.policies import BATCHES, STUDY


@pytest.mark.parametrize("percent", [25, 50, 75])
def test_a_share_is_imitated_and_the_rest_played(percent):
    """An update imitates 8 groups of 8 games, which is what one of training plays."""
    arm = STUDY.arms[f"imitate_{percent}"]
    assert arm.warm_start_updates == BATCHES * percent / 100 and arm.warm_start_updates + arm.updates == BATCHES
    assert (arm.groups, arm.group_size) == (8, 8)
    assert STUDY.arms["long/ppo"].updates == BATCHES and not STUDY.arms["long/ppo"].warm_start


def test_who_imitates_all_learns_nothing_else():
    arm = STUDY.arms["imitate_100"]
    assert (arm.warm_start_updates, arm.updates, arm.hparams["learning_rate"]) == (BATCHES, 1, 0.0)
