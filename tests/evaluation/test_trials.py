"""What a policy is worth beside scripts: each of its games, counted by hand.

The long case compiles two games twice.
"""

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.teams.team_tasks import PioneerObserver
from jaxmarl_llm.evaluation.trials import points_in_games
from jaxmarl_llm.methods.several_games import one_vocabulary
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.training.setup import tiny

ROUNDS = 6
GAMES = {"kuhn": KuhnPoker(), "sums": PioneerObserver(Arithmetic(3, "+"), exchange="never")}


@pytest.mark.long
def test_a_policy_earns_what_its_seat_earns_in_each_game(monkeypatch):
    words = one_vocabulary(None, games=tuple(GAMES.values()))
    policy_set = PolicySet(words, ("me",), tiny(words.vocab_size))
    weights = {"me": {"params": decoder.init(policy_set.config, jax.random.key(1))}}
    jit, played = jax.jit, []
    with monkeypatch.context() as within:
        within.setattr(jax, "jit", lambda play, **how: lambda *given: played.append(1) or jit(play, **how)(*given))
        evaluate = points_in_games(policy_set, GAMES, {"kuhn": ("random", "always_bet")}, ROUNDS)
    key = jax.random.key(0)
    found = evaluate(weights, key)
    assert set(found) == {"kuhn", "kuhn, always_bet", "sums"}
    for script, name in (("random", "kuhn"), ("always_bet", "kuhn, always_bet"), (None, "sums")):
        game, points = GAMES[name.split(",")[0]], []
        pairs = [("me", "random"), ("random", "me"), ("me", "always_bet"), ("always_bet", "me")]
        pairs = [("me", "me")] if script is None else pairs
        play = jax.jit(Rollout(game, {"me": policy_set}, Lineup(tuple(pairs) * ROUNDS, 1), 1))
        reward = np.asarray(play(weights, key).episodes.reward, np.float64)  # [B, T, A, C]
        for b in range(len(reward)):
            pair = pairs[b % len(pairs)]
            if script is None or script in pair:
                points += [reward[b, :, seat].sum() for seat in range(2) if pair[seat] == "me"]
        assert found[name] == pytest.approx(np.mean(points), abs=1e-6)
    assert found["kuhn"] != found["kuhn, always_bet"]
    other = jax.tree.map(lambda x: 8 * x, weights)
    assert evaluate(other, key) != found and evaluate(weights, key) == found
    assert len(played) == 2 * len(GAMES)  # equal weights are tried once with a key
    assert evaluate(weights, jax.random.key(1)) != found and len(played) == 3 * len(GAMES)
