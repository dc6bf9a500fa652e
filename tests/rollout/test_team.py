"""Line-ups: the assignment of policies to seats, and impossible line-ups."""

import numpy as np
import pytest

from jaxmarl_llm.environments.base import MessageFrom
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from tests.support.toys import Relay

CONFIG = Config(8, 8, 8, 1, 2, 1, 4, 64)
TOKENIZER = SymbolTokenizer(["a", "b"])
GAME = MatrixGame()
FAMILIES = {
    "one": PolicySet(TOKENIZER, ("new", "old"), CONFIG, Lora(2, 4.0)),
    "full": PolicySet(TOKENIZER, ("whole",), CONFIG),
    "teacher": PolicySet(TOKENIZER, ("grim",)),
}


def test_places_are_found_group_by_group():
    lineup = Lineup((("a", "b", "a"), ("c", "c", "b"), ("b", "x", "a")), group_size=2)
    assert lineup.episodes == 6
    expected = [[0, 0, 1], [0, 1, 0], [0, 2, 1], [1, 2, 0], [2, 0, 0], [2, 2, 1]]
    np.testing.assert_array_equal(lineup.assignments(("b", "a")), expected)
    assert lineup.assignments(("nobody",)).shape == (0, 3)


def test_policy_sets_and_scripts_can_be_mixed():
    lineup = Lineup((("new", "old"), ("whole", "tit_for_tat"), ("grim", "new")), group_size=3)
    lineup.check(GAME, FAMILIES)


@pytest.mark.parametrize(
    ("seats", "group_size", "message"),
    [
        ((("new",),), 2, r"has 2 seats, but the line-up \('new',\) has 1"),
        ((("new", "old"), ("new", "old", "grim")), 2, "has 2 seats.*has 3"),
        ((("new", "stranger"),), 2, "Nobody is called 'stranger': possible are always_cooperate, .*, whole, win_stay"),
        ((), 2, "0 groups of 2"),
        ((("new", "old"),), 0, "1 groups of 0"),
    ],
)
def test_lineups_that_cannot_play(seats, group_size, message):
    with pytest.raises(ValueError, match=message):
        Lineup(seats, group_size).check(GAME, FAMILIES)


def test_a_policy_belongs_to_one_policy_set():
    policy_sets = {**FAMILIES, "again": PolicySet(TOKENIZER, ("old",), CONFIG)}
    with pytest.raises(ValueError, match="'old' belongs to two policy sets"):
        Lineup((("old", "whole"), ("grim", "grim")), 1).check(GAME, policy_sets)


def test_a_policy_set_without_a_model_needs_scripts_to_write_down():
    policy_sets = {**FAMILIES, "teacher": PolicySet(TOKENIZER, ("grin",))}
    with pytest.raises(ValueError, match=r"'grin' has no model and is no scripted player: possible are .*grim"):
        Lineup((("new", "grin"), ("whole", "whole")), 1).check(GAME, policy_sets)


def test_a_policy_set_needs_a_seat():
    with pytest.raises(ValueError, match="'full' has no seat"):
        Lineup((("new", "grim"),), 1).check(GAME, FAMILIES)


def test_full_weights_are_one_policy():
    with pytest.raises(ValueError, match=r"\('a', 'b'\) cannot share full weights"):
        PolicySet(TOKENIZER, ("a", "b"), CONFIG)
    assert not PolicySet(TOKENIZER, ("a", "b")).merged


def test_rows_of_places_are_the_episodes_of_their_groups():
    lineup = Lineup((("a", "b", "a"), ("c", "a", "b")), group_size=2)
    places = lineup.assignments(("a",))
    episode, seat = lineup.rows(places)
    expected = [(0, 0), (1, 0), (0, 2), (1, 2), (2, 1), (3, 1)]
    assert list(zip(episode.tolist(), seat.tolist(), strict=True)) == expected
    for column in lineup.rows(lineup.assignments(("nobody",))):
        assert column.shape == (0,)


def test_settings_are_of_all_policies_or_one_for_each():
    small, large = Lora(1, 2.0, ("q_proj",)), Lora(4, 8.0)
    assert PolicySet(TOKENIZER, ("a", "b"), CONFIG, large).loras == (large, large)
    each = PolicySet(TOKENIZER, ("a", "b"), CONFIG, (small, large), (Sampling(0.5), Sampling(0)))
    assert each.loras == (small, large) and not each.merged
    assert PolicySet(TOKENIZER, ("a",), CONFIG, (small,)).merged and FAMILIES["full"].loras == ()
    for settings in ({"lora": (small,)}, {"lora": (small, large, small)}, {"lora": ()}):
        count = len(settings["lora"])
        with pytest.raises(
            ValueError, match=rf"lora holds {count} settings for policies \('a', 'b'\): give one for each"
        ):
            PolicySet(TOKENIZER, ("a", "b"), CONFIG, **settings)
    with pytest.raises(ValueError, match="sampling holds 2 settings for policies"):
        PolicySet(TOKENIZER, ("a",), CONFIG, sampling=(Sampling(), Sampling(0.5)))


def test_one_adapter_is_merged_into_its_base():
    assert PolicySet(TOKENIZER, ("a",), CONFIG, Lora(2, 4.0)).merged
    assert not FAMILIES["one"].merged and not FAMILIES["full"].merged


def test_every_text_of_a_game_is_a_symbol():
    found = strings(Relay())
    fields = [*Relay().rules, *(field for field in Relay().observation if not isinstance(field, MessageFrom))]
    assert set(found) == {
        *(text for field in fields for text in field),
        "<",
        ">",
        "zero",
        "one",
        "two",
        "stop",
        "low",
        "high",
    }
    assert set(strings(MatrixGame(labels=("Q", "Z")))) >= {"Q", "Z", "Choose.", "They chose Q."}
    SymbolTokenizer(found)
