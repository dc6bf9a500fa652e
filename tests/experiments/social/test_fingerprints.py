"""What is measured of the study's games, against loops.

The long case compiles two updates of four policies; the short ones compute tables.
"""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import fingerprints as study
from jaxmarl_llm.environments.around.opponents import MEMORY_ONE
from jaxmarl_llm.environments.social.matrix_games import SETTINGS
from jaxmarl_llm.training.setup import for_pretrained
from jaxmarl_llm.training.step import only_play
from jaxmarl_llm.training.trainer import Trainer

GAMES = 2


def moves():
    """Always defecting against the six, and taking turns in self-play; what the six do is a coin's where they would."""
    draw, found = np.random.default_rng(0), np.zeros((study.GROUPS * GAMES, study.ROUNDS, 2), int)
    for g, chances in enumerate(np.repeat(study.ZOO, 3, 0)):
        kind = g % 3
        for game in range(GAMES):
            for t in range(study.ROUNDS):
                row = found[g * GAMES + game]
                if kind == 0:
                    row[t] = (t % 2, t % 2)
                    continue
                learner = kind - 1
                last = row[t - 1] if t else None
                case = 0 if t == 0 else 1 + 2 * last[1 - learner] + last[learner]
                row[t, learner], row[t, 1 - learner] = 1, int(draw.random() >= chances[case])
    return found


@pytest.mark.parametrize("name", ["prisoners_dilemma", "battle_of_the_sexes"])
def test_behaviour_against_loops(name):
    played, payoff = moves(), np.array(SETTINGS[name]["payoff"])
    found = {key: float(x) for key, x in study.behaviour(jnp.asarray(played), jnp.asarray(payoff)).items()}
    assert found["alternation/sum"] == found["alternation/count"] == 6 * GAMES * (study.ROUNDS - 1)
    assert found["coordination/sum"] == found["coordination/count"] == 6 * GAMES * study.ROUNDS
    assert found["retaliation/count"] == 0 and found["provocability/sum"] == found["provocability/count"] > 0
    assert found["points"] == pytest.approx(np.mean([payoff[0, 0].mean(), payoff[1, 1].mean()]))
    short = np.zeros(6)
    for player, (who, chances) in enumerate(MEMORY_ONE.items()):
        for seat in range(2):
            own = payoff[..., 0] if seat == 0 else payoff[..., 1].T
            first = (3 * player + 1 + seat) * GAMES
            games = played[first : first + GAMES]
            earned = np.mean([[own[row[seat], row[1 - seat]] for row in game] for game in games])
            short[player] += (best(own, chances) / study.ROUNDS - earned) / 2
        if name == "prisoners_dilemma" and who in ("always_defect", "always_cooperate"):
            assert short[player] == pytest.approx(0, abs=1e-5)
    assert found["shortfall"] == pytest.approx(short.mean(), abs=1e-4)
    assert found["shortfall of fixed"] == pytest.approx(short[[0, 1, 5]].mean(), abs=1e-4)
    assert found["shortfall of answering"] == pytest.approx(short[[2, 3, 4]].mean(), abs=1e-4)


def test_what_a_policy_said_against_loops():
    """Of labels, in games in which every other group exchanges them, and of predictions, by those seats alone."""
    draw = np.random.default_rng(1)
    turns = draw.integers(0, 2, (study.GROUPS * GAMES, 2 * study.ROUNDS, 2))
    seats = {"cooperation": [], "first label": [], "foresight": []}
    for row, game in enumerate(turns):
        group = row // GAMES
        for seat in {0: (0, 1), 1: (0,), 2: (1,)}[group % 3]:
            for t in range(study.ROUNDS):
                move = game[2 * t + 1, seat]
                seats["cooperation"].append(move == 0)
                seats["first label"].append("AB"[move if group % 2 == 0 else 1 - move] == "A")
                seats["foresight"].append(game[2 * t, seat] == game[2 * t + 1, 1 - seat])
    wanted = {name: np.mean(x) for name, x in seats.items()}
    episodes = SimpleNamespace(
        action=jnp.asarray(turns), group=jnp.arange(study.GROUPS).repeat(GAMES), acted=jnp.ones(turns.shape, bool)
    )
    assert {name: float(x) for name, x in study.measure(episodes).items()} == pytest.approx(wanted)
    alone = study.measure(
        SimpleNamespace(action=jnp.asarray(turns[:, 1::2]), group=episodes.group, acted=episodes.acted)
    )
    assert {name: float(x) for name, x in alone.items()} == pytest.approx({k: wanted[k] for k in study.OF_TEXT[:2]})


def test_line_ups_of_a_pretrained_model_are_those_that_are_measured():
    """And each of them meets both labelings alike."""
    for recipe in map(for_pretrained, study.STUDY.extra.values()):
        recipe.check()
        assert recipe.seats == study.SEATS and recipe.groups == study.GROUPS and recipe.step is not None


def best(own, chances, left=study.ROUNDS, case=0):
    """By recursion over all that can happen; the other's situation has the roles exchanged."""
    if not left:
        return 0.0
    cooperates = chances[(0, 1, 3, 2, 4)[case]]
    return max(
        sum(
            p * (own[a, b] + best(own, chances, left - 1, 1 + 2 * a + b))
            for b, p in ((0, cooperates), (1, 1 - cooperates))
            if p
        )
        for a in (0, 1)
    )


@pytest.mark.long
def test_a_policy_that_is_only_measured_stays_as_it_is():
    """The games and their metrics are those of the step that learns from them."""
    recipe = replace(study.ARMS["chicken"], group_size=2, updates=1)
    found = []
    for arm in (recipe, replace(recipe, step=only_play)):
        trainer = Trainer(arm, [arm.all_hparams], [3], "tiny")
        before = trainer.init()
        weights = jax.device_get(trainer.weights(before, 0))
        after, metrics = trainer.update(before, 0)
        same = jax.tree.map(np.array_equal, weights, jax.device_get(trainer.weights(after, 0)))
        found.append(
            (all(jax.tree.leaves(same)), {name: np.asarray(metrics[name]) for name in ("points", "shortfall")})
        )
    (learned, one), (stayed, other) = found
    assert stayed and not learned
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one, other)
