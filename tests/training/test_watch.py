"""The watch over skipped updates, and over steps without an update."""

import numpy as np
import pytest

from jaxmarl_llm.training.watch import NonFiniteError, Watch


def test_updates_that_are_skipped_in_a_row_end_a_training_and_games_without_an_update_do_not():
    watch = Watch(None, ["first", "second"], 2)
    for number, skipped in enumerate(([0, 1], [0, 0], [0, 1], [0, 2])):
        watch(number, {"skipped": np.array(skipped)}, None)
    with pytest.raises(NonFiniteError, match=r"step 3, updates of lanes \[1\]") as error:
        watch(4, {"skipped": np.array([0, 0])}, None)
    assert error.value.skipped == 2
    watch.begin()
    for number in range(5):
        watch(number, {"solved": np.zeros(2)}, None)
