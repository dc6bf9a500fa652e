"""Our games as PettingZoo environments, by PettingZoo's own tests, and its environments as games of ours.

The long case trains; the short ones play the same environments.
"""

import warnings
from functools import partial

import numpy as np
import pytest

from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.environments.bridges.pettingzoo_games import GameAEC, pettingzoo, written_out
from jaxmarl_llm.environments.bridges.table import Table
from jaxmarl_llm.rollout.python_game import Game, WrongRewards
from jaxmarl_llm.text.grammar import Choice
from tests.support.python_learning import learn

classic = pytest.importorskip("pettingzoo.classic")
from gymnasium import spaces  # noqa: E402
from pettingzoo.classic import rps_v2, tictactoe_v3  # noqa: E402
from pettingzoo.test import api_test, parallel_api_test, seed_test  # noqa: E402
from pettingzoo.utils import aec_to_parallel  # noqa: E402


@pytest.mark.parametrize("name", ["kuhn_poker", "tic_tac_toe", "prisoners_dilemma_talk"])
def test_pettingzoos_own_test_passes(name):
    game = REGISTRY[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of observations in a dict, of zeros
        api_test(GameAEC(game), num_cycles=40)


def test_pettingzoos_parallel_and_seed_tests_pass():
    game = REGISTRY["prisoners_dilemma"]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel_api_test(aec_to_parallel(GameAEC(game, simultaneous=True)), num_cycles=20)
        seed_test(lambda: GameAEC(game), num_cycles=10)


def test_a_seat_is_told_and_paid_what_the_game_tells_and_pays():
    """The same moves at the table, with the same seed, give the same texts, legal actions and sums of rewards."""
    game = REGISTRY["trust_and_split"]()
    env, table = GameAEC(game), Table(game, 3)
    env.reset(seed=3)
    random, earned = np.random.default_rng(0), dict.fromkeys(range(game.agents), 0.0)  # since it last acted
    while not table.over:
        actions = np.zeros(game.agents, np.int32)
        for seat in np.flatnonzero(table.view.acting).tolist():
            assert env.agent_selection == f"seat_{seat}"
            observation, reward, *_, info = env.last()
            assert (reward, info["text"]) == (earned[seat], "\n".join(table.seen[seat]))
            earned[seat] = 0.0
            legal = np.asarray(table.view.legal[seat])
            np.testing.assert_array_equal(observation["action_mask"], legal)
            assert env.observation_space(env.agent_selection).contains(observation)
            actions[seat] = random.choice(np.flatnonzero(legal))
            env.step(int(actions[seat]))
        for seat, paid in enumerate(table.play(actions, {}).sum(1).tolist()):
            earned[seat] += paid
    assert any(earned.values())
    for agent in env.agent_iter():
        _, reward, over, _, _ = env.last()
        assert over and reward == earned[int(agent[-1])]
        env.step(None)
    assert not env.agents


def test_an_answer_in_words_is_an_action_and_an_illegal_one_is_refused():
    env = GameAEC(REGISTRY["tic_tac_toe"]())
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"seat_0 cannot answer 'fly' now: legal actions are \[0, 1, 2"):
        env.step("fly")
    by_number = GameAEC(REGISTRY["tic_tac_toe"]())
    by_number.reset(seed=0)
    answers = dict(next(part.options for part in env.game.grammars[0] if isinstance(part, Choice)))
    for wrong in (None, 1.0, np.array([1, 2])):
        with pytest.raises(ValueError, match=r"seat_0 cannot answer .* now"):
            env.step(wrong)
    env.step(answers[4])
    by_number.step(np.int8(4))
    assert env.infos == by_number.infos and env.agent_selection == "seat_1"
    with pytest.raises(ValueError, match="seat_1 cannot answer 4 now"):
        env.step(4)


def test_observations_are_written_out():
    assert written_out("a", np.array([[1, 0], [0.5, 2]])) == "[[1 0] [0.5 2]]"
    seen = {"observation": np.eye(2, dtype=np.int8), "action_mask": np.array([0, 1, 1], np.int8)}
    assert written_out("a", seen) == "[[1 0] [0 1]]"


def test_its_environments_are_played_as_they_are_played_alone():
    """Tic-tac-toe, in turn, beside the environment itself; an answer that is no number or no free square is flagged."""
    game, env = pettingzoo(tictactoe_v3.env, "Answer a square.")(), tictactoe_v3.env()
    rules, turn = game.reset(5)
    env.reset(seed=5)
    assert rules == ["Answer a square."] * 2 and turn.reward == {0: 0, 1: 0}
    told = "[[[0 0] [0 0] [0 0]] [[0 0] [0 0] [0 0]] [[0 0] [0 0] [0 0]]] Legal actions: 0 1 2 3 4 5 6 7 8."
    assert turn.told == {0: told}
    for i, (text, square) in enumerate([("0", 0), ("0", 1), ("no", 2), ("3", 3), ("5", 5), ("6", 6), ("8", 8)]):
        seat = i % 2
        assert turn.acting == (seat,) and turn.told[seat].startswith(written_out("", env.observe(env.agent_selection)))
        turn = game.step({seat: text})
        assert turn.invalid == (() if text == str(square) else (seat,))
        env.step(square)
        assert turn.reward == {s: env.rewards[f"player_{s + 1}"] for s in range(2)}
    assert turn.done and turn.reward == {0: 1, 1: -1}  # 2, 5, 8


@pytest.mark.long
def test_policies_learn_in_its_environments():
    """Rock, paper, scissors, at once, against rock: a tiny policy of few tokens learns to answer paper."""
    make = pettingzoo(partial(rps_v2.parallel_env, max_cycles=1))

    def zero_sum(episodes):
        assert np.allclose(episodes.reward.sum(2), 0)  # what one wins the other loses

    earned = learn(make, (("learner", "rock"),), turns=1, scripts={"rock": lambda seen: "0"}, check=zero_sum)
    assert earned[0] < 0.5 and np.mean(earned[-3:]) > 0.9, earned


@pytest.mark.parametrize("paid", [None, [1.0, 2.0], "win", {"player_1": None}, {"player_1": np.ones(2)}], ids=repr)
def test_rewards_of_every_kind_reach_the_rollout_as_they_are(paid):
    """There they are judged, as all Python games' are; the sentence names the environment."""

    class PaysOddly:
        possible_agents = agents = ["player_1"]  # noqa: RUF012 - PettingZoo's own names
        metadata = {"name": "oddly_v0"}  # noqa: RUF012
        action_space = staticmethod(lambda agent: spaces.Discrete(2))

        def reset(self, seed):
            return {"player_1": np.zeros(1)}, {}

        def step(self, actions):
            self.agents = []
            return {}, paid, {"player_1": True}, {"player_1": False}, {"player_1": None}

    game = Game(pettingzoo(PaysOddly), 0)
    game.step({0: "1"})
    wrong, told = WrongRewards(), []
    wrong.tell = told.append
    assert np.isnan(wrong.read(game, 3, 0, {0: "1"})[0])
    wrong.report()
    assert game.now.done and told[0].startswith("oddly_v0 paid seat 0 of episode 3 ")
