"""When a learning curve reaches a bound."""

import numpy as np

from jaxmarl_llm.studies.curves import updates_to


def test_ninety_per_cent_is_reached_by_five_updates_together():
    share = np.full((3, 40), 0.5)
    share[0, 10:] = 1.0  # the fifth of five at 1 is update 14, and 4 of 5 average to 0.9: their window starts at 9
    share[1, 20] = 1.0  # once is not reached
    share[2] = 0.95
    assert updates_to({"right": share}, of="right").tolist() == [10, 40, 1]
