"""Metrics of fresh games: the deal that is given, games that are no groups, the same ones at every call.

The case is long, as it compiles games with two kinds of deal; tests of studies take metrics of their own games.
"""

from functools import partial

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer


def counted(episodes):
    lengths = np.array([1, 2, 3])
    solved = episodes.reward[..., 0].sum((1, 2))
    progress = episodes.measured[..., 0].max((1, 2))  # 1 / length, if any lock was opened
    return {
        "solved": solved.mean(),
        "groups": episodes.group.max() + 1,
        **{f"of {n}": (abs(progress - 1 / n) < 1e-6).sum() for n in lengths},
    }


@pytest.mark.long
def test_games_have_the_deal_and_no_two_share_one():
    recipe = Recipe(
        LockChain(3, 12), seats=(("learner",),), advantage=estimator(advantages.rloo), budget=1, groups=2, group_size=2
    )
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    weights = trainer.weights(trainer.init(), 0)
    found = in_fresh_games(trainer.parts, measure=counted, deal=2, games=64)(weights, jax.random.key(0))
    assert found["groups"] == 64 and found["of 2"] > 50 and found["of 1"] == found["of 3"] == 0
    with pytest.raises(ValueError, match="got games=0"):
        in_fresh_games(trainer.parts, measure=counted, games=0)
    drawn = partial(in_fresh_games, measure=counted, games=64)(trainer.parts)
    key = jax.random.key(0)
    first = drawn(weights, key)
    assert min(first[f"of {n}"] for n in (1, 2, 3)) > 5
    assert drawn(weights, key) == first != drawn(weights, jax.random.key(1))
    assert drawn(jax.tree.map(lambda x: 1.5 * x, weights), key) != first
    named = lambda episodes: {"group": episodes.group, "told": episodes.told[:, 0, 0]}
    several = in_fresh_games(trainer.parts, measure=named, games=16, attempts=4)(weights, key)
    np.testing.assert_array_equal(several["group"], np.repeat(np.arange(16), 4))
    told = several["told"].reshape(16, 4)
    assert (told == told[:, :1]).all() and len({*told[:, 0]}) > 1  # attempts at one deal, and several deals
