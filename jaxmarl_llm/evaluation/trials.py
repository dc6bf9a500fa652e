"""Points of a policy in several games of two seats: beside scripts in either seat, or with itself in both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.devices import compiling
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet


def points_in_games(
    policy_set: PolicySet, games: Mapping[str, Any], scripts: Mapping[str, Sequence[str]], rounds: int
) -> Callable[[dict, jax.Array], dict[str, float]]:
    """evaluate(weights by policy set, key): the mean points a game of the one policy, by game and script.

    NAME is beside the first of a game's `scripts`, "NAME, SCRIPT" beside each other one, with `rounds` games in either
    seat. A game without scripts is played in both seats, as many games. Deals and chance follow from the key: policies
    meet the same games, and equal weights play once. An answer is one token.
    """
    (me,), plays = policy_set.policies, {}
    for name, game in games.items():
        pairs = tuple(pair for script in scripts.get(name, ()) for pair in ((me, script), (script, me))) or ((me, me),)
        rollout = Rollout(game, {me: policy_set}, Lineup(pairs * rounds, 1), budget=1)
        plays[name] = jax.jit(rollout, compiler_options=compiling.options(compiling.OFTEN))

    known: dict[bytes, dict[str, float]] = {}

    def evaluate(weights: dict, key: jax.Array) -> dict[str, float]:
        leaves = [jax.random.key_data(key), *jax.tree.leaves(weights[me])]
        digest = hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).digest()
        if digest not in known:
            known[digest] = points(weights, key)
        return dict(known[digest])

    def points(weights: dict, key: jax.Array) -> dict[str, float]:
        result = {}
        for name, play in plays.items():
            won = np.asarray(play(weights, key).episodes.total_reward.sum(1))  # [games, seats]
            partners = scripts.get(name, ())
            if not partners:
                result[name] = float(won.mean())
                continue
            for i, mean in enumerate(won.reshape(rounds, len(partners), 2, 2).mean(0)):  # by script: [seat taken, seat]
                result[f"{name}, {partners[i]}" if i else name] = float(np.trace(mean)) / 2
        return result

    return evaluate
