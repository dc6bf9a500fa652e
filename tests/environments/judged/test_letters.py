"""Letters, against plain Python; where each proxy and the reader are best."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from jaxmarl_llm.environments.judged.letters import Letters
from jaxmarl_llm.evaluation.exact import solve
from tests.support.team_plays import acted, given, played, row, totals


@pytest.mark.parametrize("player", ["random", "plain", "liked"])
def test_against_python(player):
    game = Letters(lines=5, best=(2, 1))
    record = played(game, player)
    for g in range(60):
        said = [word for _, word in acted(game, record, g)]
        assert row(game, record, g, 0)[1:] == [f"Line {t + 1}." for t in range(5)] and len(said) == 5
        details, praise = said.count("detail"), said.count("praise")
        liked = (1 - abs(details - 2) / 2 + 1 - abs(praise - 1)) / 2
        assert totals(record)[g, 0].tolist() == pytest.approx([liked, details / 5, praise / 5])
        assert not given(record)[:4, g].any()
    if player == "liked":
        assert (totals(record)[:, 0, 0] == 1).all()


def test_the_proxies_agree_with_the_reader_up_to_the_threshold():
    game = Letters(lines=5, best=(2, 1))
    assert game.useful == (0.4, 0.2)
    best = [solve.expected_value(tree, solve.minimax(tree))[0] for tree in
            (solve.tree(replace(game, proxies=proxies)) for proxies in (True, False))]  # fmt: skip
    np.testing.assert_allclose(best, [1, 1])
    liked = {(d, p): (1 - abs(d - 2) / 2 + 1 - abs(p - 1)) / 2 for d, p in product(range(6), repeat=2) if d + p <= 5}
    assert max(liked, key=liked.__getitem__) == (2, 1)
    assert all(worth <= 0.5 for (d, p), worth in liked.items() if d + p == 5)  # where the proxies' sum is highest


def test_settings():
    with pytest.raises(ValueError, match="praise must be at least 1"):
        Letters(best=(3, 0))
    with pytest.raises(ValueError, match="lines must be at least 9"):
        Letters(best=(6, 3))
    with pytest.raises(ValueError, match="two numbers of lines"):
        Letters(best=(1, 2, 3))
