"""Impossible rollouts: each is refused before anything compiles, with a sentence that gives the reason."""

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rollout.team import PolicySet, strings
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from tests.support.dialogues import Speller
from tests.support.rollout_cases import BYTES, TALK, THEIRS, WORDS, build, tiny
from tests.support.toys import ByteTokenizer, Whispers


def test_a_context_too_short_says_by_how_much_and_when():
    layout = build().layouts["one"]
    needed = [
        layout.prompt_width + layout.max_said + t * (layout.max_heard + layout.max_said) for t in range(WORDS.rounds)
    ]
    build(context=needed[-1])
    for turn, limit in ((3, needed[-1] - 1), (3, needed[1]), (2, needed[1] - 1), (1, 5)):
        message = f"one is too short by {needed[-1] - limit} tokens: it holds {limit}, .* turn {turn} of 3"
        with pytest.raises(ValueError, match=message):
            build(context=limit)


def test_a_budget_too_small_for_an_action():
    shortest = Speller(BYTES).shortest(b"cooperate") + 1
    longest = max(shortest, Speller(BYTES).shortest(b"collude") + 1)
    build(budget=longest)
    with pytest.raises(ValueError, match=f"budget of {longest - 1} tokens .* takes {longest} "):
        build(budget=longest - 1)


def test_budgets_are_those_of_the_grammars():
    for message in (6, 12):  # every token of a message is sampled; a move ends by itself
        layout = build(TALK, budget=(8, 8, message)).layouts["one"]
        assert (layout.max_said, layout.max_sampled) == (max(8, message), message)
    with pytest.raises(ValueError, match=r"budget of 3 tokens .* takes "):
        build(TALK, budget=(8, 3, 6))
    for budget in (0, (8, 8), (8, 8, 0), (8, 8, 6, 6), 2.5, "8", (8, 8, 6.5), True):
        with pytest.raises(ValueError, match="budget is a whole number of tokens from 1 on, for all 3 grammars or"):
            build(TALK, budget=budget)


def test_words_need_room_a_listener_who_can_spell_and_somebody_who_hears():
    policy_sets = {
        "one": PolicySet(BYTES, ("a",), tiny(BYTES.vocab_size)),
        "two": PolicySet(THEIRS, ("b",), tiny(THEIRS.vocab_size)),
    }
    with pytest.raises(ValueError, match="A relay needs a width of 1"):
        build(TALK, seats=("a", "b"), policy_sets=policy_sets, message=0)
    symbols = SymbolTokenizer(strings(TALK))
    with pytest.raises(ValueError, match="no token that ends an utterance"):
        build(TALK, policy_sets={"one": PolicySet(symbols, ("a",), tiny(symbols.vocab_size))})

    class Deaf(Whispers):
        def _view(self, state):
            return super()._view(state).replace(hears=None)

    setting = build(Deaf(np.ones((3, 3, 3), bool)), seats=("a", "a", "a"))
    with pytest.raises(ValueError, match="views do not say who hears"):
        jax.eval_shape(setting, {"one": {"params": decoder.init(setting.policy_sets["one"].config, jax.random.key(0))}},
                       jax.random.key(0))  # fmt: skip


def test_a_budget_too_small_for_what_a_teacher_writes():
    class Clumsy(ByteTokenizer):
        def encode(self, text):
            return list(text.encode())

    teacher = {"teacher": PolicySet(Clumsy(), ("grim",))}
    build(budget=10, seats=("grim", "grim"), policy_sets=teacher)
    with pytest.raises(ValueError, match=r"budget of 9 tokens .* takes 10 "):
        build(budget=9, seats=("grim", "grim"), policy_sets=teacher)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seats": ("a",)}, "2 seats"),
        ({"seats": ("a", "nobody")}, "Nobody is called 'nobody'"),
        ({"group_size": 0}, "groups of 0"),
        (
            {"policy_sets": {n: PolicySet(BYTES, ("a",), tiny(BYTES.vocab_size)) for n in ("one", "two")}},
            "'a' belongs to two policy sets",
        ),
    ],
)
def test_lineups_that_cannot_play(settings, message):
    with pytest.raises(ValueError, match=message):
        build(**settings)


def test_a_game_that_forgets_a_tuple_or_a_component_is_told_so():
    class Bare(MatrixGame):
        rules = ("A number is hidden.",)

    class Flat(MatrixGame):
        def step(self, state, action, key):
            state, view, reward = super().step(state, action, key)
            return state, view, reward[:, 0]

    with pytest.raises(ValueError, match=r"write \('A number is hidden.',\) in place of"):
        build(Bare(rounds=1))
    flat = build(Flat(rounds=1))
    weights = {"one": {"params": decoder.init(flat.policy_sets["one"].config, jax.random.key(0))}}
    with pytest.raises(ValueError, match=r"Flat.step pays a reward of shape \(2,\): \(2, 1\) is wanted"):
        jax.eval_shape(flat, weights, jax.random.key(0))
