"""Merges of specialists: what `gain` is, and every arm and metric against NumPy where training is known vectors."""

from dataclasses import replace
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.methods import merging
from jaxmarl_llm.methods.several_games import from_teacher
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Common

UPDATES, BASE = 8, np.array([0.5, -0.25, 1.0, 0.0])
LEARNT = {"a": np.array([1.0, 0, 0, 0.25]), "b": np.array([0, 1.0, 0, 0.125]), "c": np.array([0, -0.5, 1.0, 0])}
TOGETHER, TAUGHT = np.array([3.0, 1, 1, 0]), np.array([0.0, 1, 2, 0])
CHAIN = Recipe(
    LockChain(1, turns=1), seats=(("me",),), advantage=estimator(advantages.rloo), warm_start=Common((("random",),)),
    budget=1,
)  # fmt: skip
GAMES = {name: replace(CHAIN, game=LockChain(1, turns=1, shift=n)) for n, name in enumerate(LEARNT)}


def test_gain_is_the_mean_over_games_of_what_specialists_gain():
    base, best = {"kuhn": 0.1, "tic_tac_toe": 0.0}, {"kuhn": 0.5, "tic_tac_toe": 0.8}
    arm = {"kuhn": 0.3, "tic_tac_toe": 0.9}
    wanted = ((0.3 - 0.1) / (0.5 - 0.1) + (0.9 - 0.0) / (0.8 - 0.0)) / 2
    assert merging.gain(arm, base, best) == pytest.approx(wanted)
    assert merging.gain(base, base, best) == 0 and merging.gain(best, base, best) == 1
    assert merging.gain({**base, "kuhn": 0.5}, base, best) == pytest.approx(1 / 2)  # as good as the base elsewhere


def test_arms_and_metrics_where_what_is_learnt_is_known(monkeypatch):
    quarters = np.arange(1, 5)[:, None] / 4

    def trained(parts, recipe, weights, key, stages, state):
        np.testing.assert_allclose(weights["me"]["w"], BASE)
        taught = recipe.games
        pupil = all(one.advantage is from_teacher for one in taught.values())
        assert recipe.updates == (UPDATES // 2 if pupil else UPDATES)
        if pupil:  # a teacher of each game, as it ended
            for name, own in state.items():
                np.testing.assert_allclose(own["me"]["w"], BASE + LEARNT[name])
        change = TAUGHT if pupil else LEARNT[next(iter(taught))] if len(taught) == 1 else TOGETHER
        return {"me": {"w": jnp.asarray(BASE + quarters * change, jnp.float32)}}

    def points_won(parts, games, key, episodes, weights):
        return {name: weights["me"]["w"] @ jnp.asarray(LEARNT[name], jnp.float32) + 2 for name in games}

    monkeypatch.setattr(merging, "train_stages", trained)
    monkeypatch.setattr(merging, "points_won", points_won)
    monkeypatch.setattr(merging, "where_ended", lambda parts, key: {"me": {"w": jnp.asarray(BASE, jnp.float32)}})
    found = merging.compare_merges(jax.random.key(0), {}, games=GAMES, updates=UPDATES, within={"pair": ("b", "c")})
    assert {*found} == {*merging.arms_of(GAMES)}

    total = sum(LEARNT.values())
    changes = {"base": 0 * total, "together": TOGETHER, **LEARNT, "average": total / 3, "sum/half": total / 2}
    changes |= {"sum": total, "distilled": TAUGHT}
    points = lambda change, game: (BASE + quarters * change) @ LEARNT[game] + 2
    best = {game: points(own, game)[-1] for game, own in LEARNT.items()}
    before = {game: BASE @ LEARNT[game] + 2 for game in GAMES}
    gained = lambda change, game: (points(change, game) - before[game]) / (best[game] - before[game])
    own = {arm: {game: points(change, game) for game in GAMES} for arm, change in changes.items()}
    own["specialists"] = {game: points(change, game) for game, change in LEARNT.items()}
    for arm, change in changes.items():
        own[arm]["gain"] = np.mean([gained(change, game) for game in GAMES], 0)
        own[arm]["gain, pair"] = np.mean([gained(change, game) for game in ("b", "c")], 0)
    own["specialists"]["gain"] = np.mean([gained(LEARNT[game], game) for game in GAMES], 0)
    own["specialists"]["gain, pair"] = np.mean([gained(LEARNT[game], game) for game in ("b", "c")], 0)
    cosine = lambda a, b: LEARNT[a] @ LEARNT[b] / np.linalg.norm(LEARNT[a]) / np.linalg.norm(LEARNT[b])
    own["specialists"]["cosine"] = np.full(4, np.mean([cosine(a, b) for a, b in combinations(LEARNT, 2)]))
    own["specialists"]["cosine, pair"] = np.full(4, cosine("b", "c"))
    own["specialists"]["overlap, pair"], own["specialists"]["against, pair"] = np.full(4, 1 / 3), np.ones(4)
    measured = [UPDATES // 4 * k - 1 for k in (1, 2, 3, 4)]
    for arm, metrics in own.items():
        for name, wanted in metrics.items():
            curve = np.asarray(found[arm][name])
            np.testing.assert_allclose(curve[measured], wanted, atol=1e-4, err_msg=f"{arm} {name}")
            assert curve.shape == (UPDATES,) and np.isnan(np.delete(curve, measured)).all()


def test_updates_without_quarters_are_refused():
    with pytest.raises(ValueError, match="multiple of 8, got 12"):
        merging.compare_merges(jax.random.key(0), {}, games=GAMES, updates=12)
