"""Every space of gymnasium's as the actions of a PettingZoo environment: played by its own members, or refused."""

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
pettingzoo = pytest.importorskip("pettingzoo")
from gymnasium.spaces import (  # noqa: E402
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)

from jaxmarl_llm.environments.bridges import pettingzoo_games  # noqa: E402
from jaxmarl_llm.environments.bridges.action_spaces import member, read_action  # noqa: E402
from jaxmarl_llm.environments.bridges.pettingzoo_games import written_out  # noqa: E402
from jaxmarl_llm.rollout.team import Lineup  # noqa: E402
from jaxmarl_llm.serving.python_rollout import PythonRollout  # noqa: E402


class Once(pettingzoo.ParallelEnv):
    """Two agents act at once in a space, three times. Masks stand in the observation, in infos, or in neither."""

    def __init__(self, space, masks=(None, None), in_infos=False, observation=1):
        self.possible_agents, self.space, self.masks, self.in_infos = ["a", "b"], space, masks, in_infos
        self.observation, self.played = observation, []

    def action_space(self, agent):
        return self.space

    def _given(self):
        masks = {
            a: {} if m is None else {"action_mask": m} for a, m in zip(self.possible_agents, self.masks, strict=True)
        }
        told = {a: self.observation if self.in_infos else {"observation": self.observation, **masks[a]} for a in masks}
        return told, masks if self.in_infos else {a: {} for a in masks}

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return self._given()

    def step(self, actions):
        assert set(actions) == {"a", "b"} and all(self.space.contains(action) for action in actions.values())
        self.played.append(actions)
        self.agents = self.agents if len(self.played) < 3 else []
        told, infos = self._given()
        no = dict.fromkeys(told, False)
        return told, dict.fromkeys(told, 1.0), no, no, infos


class InTurn(pettingzoo.AECEnv):
    """One agent, whose mask is in infos."""

    def __init__(self, mask):
        self.possible_agents, self.mask, self.played = ["a"], mask, []

    def action_space(self, agent):
        return Discrete(3, start=1)

    def observe(self, agent):
        return np.array([4, 2])

    def reset(self, seed=None, options=None):
        self.agents, self.agent_selection, self.rewards = ["a"], "a", {"a": 0.0}
        self.terminations, self.truncations = {"a": False}, {"a": False}
        self.infos = {"a": {"action_mask": np.array(self.mask, np.int8)}}

    def step(self, action):
        self.played.append(action)


def game_of(env, **settings):
    return pettingzoo_games.pettingzoo(lambda: env, **settings)()


BOX = Box(np.array([[0.5, -1]], np.float32), np.array([[2, np.inf]], np.float32))


@pytest.mark.parametrize(
    ("space", "answers", "refused"),
    [
        (Discrete(3), {"0": 0, " 2\n": 2, "+1": 1, "01": 1}, ("3", "-1", "1_0", "٢", "१", "１", "1.0", "1 2", "", "²")),
        (Discrete(3, start=1), {"1": 1, "3": 3}, ("0", "4")),
        (Discrete(4, start=-2), {"-2": -2, "1": 1}, ("2", "-3", "\N{MINUS SIGN}2", "--1")),
        (Discrete(200, start=-100, dtype=np.int16), {"99": 99}, ("100", "9" * 5000)),
        (MultiDiscrete([2, 3]), {"1 2": [1, 2], "0,\n0": [0, 0]}, ("1", "1 2 0", "2 0", "1_ 0", "1 ٢", "1;2")),
        (MultiDiscrete([[2], [3]], start=[[5], [-1]]), {"6, -1": [[6], [-1]]}, ("0 0", "7 0")),
        (MultiBinary(3), {"0 1 1": [0, 1, 1]}, ("2 0 0", "011", "256 0 0", "0 1")),
        (MultiBinary([1, 2]), {"0 1": [[0, 1]]}, ("0",)),
        (BOX, {"1 -0.5": [[1, -0.5]], ".5, 3e2": [[0.5, 300]]}, ("0.4 0", "1 nan", "1 inf", "1 1e99", "1 1_0", "1 e")),
        (Box(-np.inf, np.inf, ()), {"-1.25": -1.25}, ("infinity", "1,", "٢", "0x1")),
        (Box(2, 9, (2,), np.uint8), {"2 9": [2, 9]}, ("1 2", "2.0 3", "300 3", "-254 3")),
        (Text(3, charset="ab"), {"ab": "ab"}, ("", "abc", "abab", "٢")),
    ],
)
def test_spaces_of_numbers_and_texts_are_played_by_their_members(space, answers, refused):
    """An answer is one action or none, and another member of the space is played for one that is none."""
    for text, action in answers.items():
        env = Once(space)
        game = game_of(env)
        game.reset(0)
        assert game.step({0: text, 1: refused[0]}).invalid == (1,)
        np.testing.assert_array_equal(env.played[0]["a"], action)
    for text in refused:
        env = Once(space)
        game = game_of(env)
        game.reset(0)
        assert game.step({0: text, 1: text}).invalid == (0, 1), text
    if not isinstance(space, Text):
        assert not space.contains(np.zeros(space.shape, space.dtype)) or not np.any(member(space))


def test_a_space_that_a_later_gymnasium_adds_has_to_be_looked_at():
    seen = {Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple}
    every = [getattr(gymnasium.spaces, name) for name in gymnasium.spaces.__all__]
    spaces = {kind for kind in every if isinstance(kind, type) and issubclass(kind, gymnasium.Space)}
    assert spaces - {gymnasium.Space} == seen


@pytest.mark.parametrize(
    "space",
    [
        Tuple((Discrete(2), Text(2))),
        Dict(move=Discrete(2, start=1), speed=BOX),
        Sequence(Discrete(2)),
        Graph(Discrete(2), None),
        OneOf((Discrete(2), MultiBinary(2))),
    ],
    ids=repr,
)
def test_other_spaces_are_refused_before_anything_is_built_and_played_with_a_reader(space):
    make, lineup = pettingzoo_games.pettingzoo(lambda: Once(space)), Lineup((("a", "a"),), 1)
    with pytest.raises(ValueError, match=r"^'a' acts in .*, and only Discrete, .* are read from an answer: give read="):
        PythonRollout(make, {}, lineup, turns=1, scripts={"a": lambda seen: "0"})
    env, drawn = Once(space), member(space)

    def read(agent, text):
        if text != "draw":
            raise ValueError("no")
        return drawn

    game = game_of(env, read=read)
    game.reset(0)
    assert game.step({0: "draw", 1: "0"}).invalid == (1,)  # Once itself checks what is played


@pytest.mark.parametrize("in_infos", [False, True])
def test_masks_of_both_places_say_what_is_legal(in_infos):
    env = Once(Discrete(3, start=1), (np.array([0, 1, 1], np.int8), np.array([True, False, False])), in_infos)
    game = game_of(env)
    _, turn = game.reset(0)
    assert turn.told == {0: "1 Legal actions: 2 3.", 1: "1 Legal actions: 1."} and turn.acting == (0, 1)
    assert game.step({0: "1", 1: "0"}).invalid == (0, 1)
    assert game.step({0: "3", 1: "1"}).invalid == () and env.played == [{"a": 2, "b": 1}, {"a": 3, "b": 1}]


def test_masks_of_an_environment_in_turn_say_what_is_legal():
    env = InTurn([0, 0, 1])
    game = game_of(env)
    assert game.reset(0)[1].told == {0: "[4 2] Legal actions: 3."}
    assert [game.step({0: text}).invalid for text in ("1", "3")] == [(0,), ()] and env.played == [3, 3]


def test_an_agent_with_nothing_legal_is_not_asked_where_another_is():
    env = Once(Discrete(3, start=1), (np.zeros(3, np.int8), np.ones(3, np.int8)))
    game = game_of(env)
    _, turn = game.reset(0)
    assert turn.acting == (1,) and turn.told[0] == "1"
    assert game.step({1: "3"}).invalid == () and env.played == [{"a": 1, "b": 3}]


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (Once(Discrete(2), (np.zeros(2), np.zeros(2))), r"leave 'a' and 'b' no legal action"),
        (InTurn([0, 0, 0]), "leave 'a' no legal action"),
        (Once(Discrete(2), (np.ones(3), None)), r"mask of 'a' is array.*n zeros and ones for Discrete\(n\) is read"),
        (Once(Discrete(2), (None, np.array([0, -np.inf])), True), "mask of 'b' is"),
        (Once(Discrete(2), ([0.5, 0.5], None)), "mask of 'a' is"),
        (Once(MultiDiscrete([2, 2]), ((np.ones(2), np.ones(2)), None)), "its action space is MultiDiscrete"),
        (Once(Box(0, 1), (np.ones(2), None)), "mask of 'a' is"),
    ],
)
def test_other_masks_are_refused_before_the_first_turn(env, says):
    with pytest.raises(ValueError, match=says):
        game_of(env).reset(0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Once(Discrete(2)), "make is a function that makes an environment"),
        (lambda: Once(None), "action space of 'a' is no space of gymnasium's: None"),
        (object, "no PettingZoo environment that lists its possible_agents"),
    ],
)
def test_makers_of_anything_else_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        pettingzoo_games.pettingzoo(make)()


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"board": np.eye(2, dtype=int), "left": 3, "action_mask": np.ones(2)}, "board: [[1 0] [0 1]], left: 3"),
        ({"observation": {"x": [1, 2]}, "action_mask": None}, "x: [1 2]"),
        ("your turn", "your turn"),
        (12345678, "12345678"),
        (np.array([0.5, np.nan, 2]), "[0.5 nan 2]"),
        ((1, "go", np.array([True, False])), "(1, go, [1 0])"),
        (None, "None"),
        (Graph(Discrete(9), None, seed=0).sample(num_nodes=2), "nodes: [6 1], edges: None, edge_links: None"),
        (np.zeros(1200, np.int8), f"[{' '.join('0' * 1200)}]"),
    ],
)
def test_whole_observations_are_written_out(observation, text):
    assert written_out("a", observation) == text


def test_a_number_that_a_type_cannot_hold_is_no_action():
    with pytest.raises(ValueError, match=r"'300 1' has a number that .* cannot hold"):
        read_action(Box(0, 9, (2,), np.uint8), "300 1")
