"""The contract: whatever is a game for one rollout is a game for all of them."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import environments
from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.environments.around.subgoals import Subgoals
from jaxmarl_llm.environments.around.thoughts import Thoughts
from jaxmarl_llm.environments.around.wrappers import Formatted, Illegal
from jaxmarl_llm.environments.base import MessageFrom, phrases
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.solo.rooms import Rooms
from jaxmarl_llm.environments.teams.discussion import Discussion
from jaxmarl_llm.keys import CHANCE, DEAL, SAY, batch_keys, key_for
from jaxmarl_llm.text.grammar import Choice, Free, automaton, lift, pattern
from jaxmarl_llm.text.tokenizers import compile_phrases, widest
from tests.support.referees import REFEREES
from tests.support.told import neighbours, run_together, transcripts
from tests.support.toys import ByteTokenizer, Relay, play_out


def from_notebook() -> Any:
    """The game that the notebook writes in a cell."""
    (book,) = (Path(__file__).parents[2] / "notebooks").glob("*write_a_game.ipynb")
    cells = ["".join(cell["source"]) for cell in json.loads(book.read_text())["cells"]]
    names: dict[str, Any] = {"__name__": "notebook"}
    exec(next(cell for cell in cells if "class Signals" in cell), names)
    return names["Signals"]()


STAG_HUNT = (((4, 4), (0, 3)), ((3, 0), (2, 2)))
ENVIRONMENTS: dict[str, Any] = {
    **{name: make() for name, make in REGISTRY.items()},
    "formatted": Formatted(REGISTRY["leduc_poker"](), "boxed", think=True),
    "illegal": Illegal(MatrixGame(rounds=3), "retry"),
    "thoughts": Thoughts(REGISTRY["kuhn_poker"](), 2),
    "one round": MatrixGame(rounds=1, exchange=False),
    "words": MatrixGame(STAG_HUNT, rounds=3, labels=("cooperate", "collude"), moves=("hunt", "gather")),
    "talk": MatrixGame(rounds=2, talk=True),
    "subgoals": Subgoals(Rooms()),
    "subgoals of two seats": Subgoals(Rooms(), seats=2),
    "critiques": Discussion(rounds=1, critique=True),
    "toy": Relay(),
    "of the notebook": from_notebook(),
}
GROUPS, GROUP_SIZE = 24, 4
SILENT = (
    *("SixTurns", "TwentyQuestions", "Discussion", "LockChain", "Stairs", "Quiz", "Graded", "Advised", "Letters"),
    "Instruments",
)
"""Classes whose texts say nothing of rewards."""


SIZES = ("simple_hanabi", "full_hanabi", "prisoners_dilemma", "battle_of_the_sexes")  # of games that are here too


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SIZES)) for name in ENVIRONMENTS])
def name(request) -> str:
    return request.param


@cache
def played(name: str):
    """A compiled batch of games, and the prompts and record of one batch, whose key is 3."""
    run = jax.jit(lambda key: play_out(ENVIRONMENTS[name], key, GROUPS, GROUP_SIZE))
    return run, jax.device_get(run(jax.random.key(3)))


@cache
def compiled(name: str):
    """`reset` with its prompt, and `step`, of one game: compiled once for all tests."""
    environment = ENVIRONMENTS[name]

    def begin(key, group):
        state, view = environment.reset(key, group)
        return state, view, environment.prompt(state)

    return jax.jit(begin), jax.jit(environment.step)


def voices(environment) -> list[int]:
    """The seats whose words others can be told."""
    return [field.seat for field in environment.observation if isinstance(field, MessageFrom)]


def test_states_and_views_keep_their_types(name):
    environment = ENVIRONMENTS[name]
    state, view = jax.eval_shape(environment.reset, jax.random.key(0), jnp.int32(0))
    action = jax.ShapeDtypeStruct((environment.agents,), jnp.int32)
    after, told, reward = jax.eval_shape(environment.step, state, action, jax.random.key(0))
    prompt = jax.eval_shape(environment.prompt, state)
    described = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)
    assert described((state, view)) == described((after, told))
    agents, fields = environment.agents, len(environment.observation)
    shapes = {field: (x.shape, str(x.dtype)) for field, x in vars(view).items() if x is not None}
    hears = {"hears": ((agents, agents), "bool")} if voices(environment) else {}
    measures = Extras(environment).measures
    facts = {"measured": ((agents, len(measures)), "float32")} if measures else {}
    assert shapes == hears | facts | {
        "phrases": ((agents, fields), "int32"),
        "acting": ((agents,), "bool"),
        "role": ((agents,), "int32"),
        "grammar": ((agents,), "int32"),
        "legal": ((agents, environment.actions), "bool"),
        "terminated": ((), "bool"),
        "truncated": ((), "bool"),
    }
    assert (prompt.shape, prompt.dtype) == ((agents, len(environment.rules)), jnp.int32)
    assert (reward.shape, reward.dtype) == ((agents, len(environment.components)), jnp.float32)


def test_what_a_view_names_exists(name):
    environment = ENVIRONMENTS[name]
    prompt, record = played(name)[1]
    for texts, fields in ((prompt, environment.rules), (record["after"].phrases, environment.observation)):
        assert (texts >= -1).all() and (texts < np.array([len(field) for field in phrases(fields)])).all()
    for view in (record["view"], record["after"]):
        assert ((view.role >= 0) & (view.role < len(environment.roles))).all()
        assert ((view.grammar >= 0) & (view.grammar < len(environment.grammars))).all()
        assert not (view.terminated & view.truncated).any()


def test_who_acts_has_a_legal_action_that_its_grammar_can_say(name):
    environment = ENVIRONMENTS[name]
    sayable = np.zeros((len(environment.grammars), environment.actions), bool)
    for can, grammar in zip(sayable, environment.grammars, strict=True):
        reach = automaton(grammar).reach[0]
        can[: len(reach)] = reach
    assert sayable.any(0).all()
    view = played(name)[1][1]["view"]
    legal = view.legal[view.acting]
    assert legal.any(-1).all() and not (legal & ~sayable[view.grammar[view.acting]]).any()


def test_words_are_told_to_others_by_seats_that_can_speak_freely(name):
    environment = ENVIRONMENTS[name]
    talks = np.array([any(isinstance(part, Free) for part in grammar) for grammar in environment.grammars])
    record = played(name)[1][1]
    spoke = record["view"].acting & talks[record["view"].grammar] & ~record["over"][..., None]
    heard, game_goes_on = voices(environment), ~(record["after"].terminated | record["after"].truncated)
    assert len(set(heard)) == len(heard) and set(heard) <= set(range(environment.agents))
    if not heard:
        assert record["after"].hears is None
        return
    hears = record["after"].hears & game_goes_on[..., None, None]
    told = np.flatnonzero(hears.any((0, 1, 3))).tolist()
    assert told == sorted(heard)  # every field is used, and nobody else is heard
    itself = hears[..., range(environment.agents), range(environment.agents)]
    assert not itself.any()
    before = np.logical_or.accumulate(spoke, 0)
    assert before[hears.any(-1)].all()  # something may have been said
    assert hears.sum(-2).max() <= Extras(environment).voices


def test_free_words_and_spaces_neither_begin_nor_end_what_is_told_before_an_answer(name):
    """Else a chat template that strips texts would strip them, where `text.templates.check_edges` lets them pass."""
    if name == "toy":
        return  # of the tests, and tells bare words
    environment = ENVIRONMENTS[name]
    view, over = (played(name)[1][1][part] for part in ("view", "over"))
    acting = view.acting & ~over[..., None]
    first = last = none = np.full(acting.shape, -1)  # nothing is told; 1: words or a space, 0: a text
    for k, field in enumerate(environment.observation):
        if isinstance(field, MessageFrom):
            start = end = none if view.hears is None else np.where(view.hears[..., field.seat, :], 1, -1)
        else:
            text = view.phrases[..., k]
            told = (text >= 0) & np.array([phrase != "" for phrase in field])[text]
            start = np.where(told, 0, -1)
            end = np.where(told, np.array([phrase != phrase.rstrip() for phrase in field], int)[text], -1)
        first, last = np.where(first < 0, start, first), np.where(end < 0, last, end)
    assert (first[acting] < 1).all() and (last[acting] < 1).all()


def test_a_seat_takes_part_in_no_more_turns_than_its_game_says(name):
    environment = ENVIRONMENTS[name]
    record = played(name)[1][1]
    view = record["view"]
    part = view.acting | (view.phrases >= 0).any(-1) | (False if view.hears is None else view.hears.any(-2))
    assert (part & ~record["over"][..., None]).sum(0).max() <= Extras(environment).seat_turns <= environment.turns


def test_in_alternating_games_one_seat_acts_the_same_in_all_episodes_of_a_group(name):
    environment = ENVIRONMENTS[name]
    if not getattr(environment, "alternating", False):
        return
    record = played(name)[1][1]
    view, over = record["view"], record["over"]
    acting = (view.acting & ~over[..., None]).reshape(environment.turns, GROUPS, GROUP_SIZE, environment.agents)
    assert (acting.any(2).sum(-1) <= 1).all() and acting.sum() > environment.turns


def test_texts_told_one_after_the_other_read_as_sentences(name):
    if name == "toy":
        return  # of the tests, and tells bare words
    pairs = neighbours(ENVIRONMENTS[name], *played(name)[1])
    assert not [pair for pair in pairs if run_together(*pair)]


def test_games_end_in_time_and_nobody_acts_after_the_end(name):
    record = played(name)[1][1]
    assert (record["after"].terminated | record["after"].truncated)[-1].all()
    ended = record["after"].terminated | record["after"].truncated
    assert not record["after"].acting[ended].any()
    assert record["view"].acting[~record["over"]].any(-1).all()


def test_what_a_seat_does_out_of_turn_changes_nothing(name):
    environment = ENVIRONMENTS[name]
    if name == "illegal":
        return  # hears only who is asked, but keeps answers: tested with the wrapper
    reset, step = compiled(name)
    state, view, _ = reset(jax.random.key(3), jnp.int32(0))
    for turn in range(min(3, environment.turns)):
        chosen, acting = np.argmax(view.legal, -1).astype(np.int32), np.asarray(view.acting)
        others = [np.where(acting, chosen, (chosen + k) % environment.actions) for k in (0, 1)]
        one, two = (step(state, action.astype(np.int32), jax.random.key(turn)) for action in others)
        jax.tree.map(np.testing.assert_array_equal, one, two)
        state, view, _ = one
        if view.terminated | view.truncated:
            break


@pytest.mark.parametrize("name", REGISTRY)
def test_the_points_are_what_the_texts_say(name):
    """Recomputed from what the seats were told and said. A game that is silent about its rewards says so in its
    docstring, and its referee checks what can be known."""
    game = ENVIRONMENTS[name]
    for play in transcripts(game, *played(name)[1], games=range(0, 6 * GROUP_SIZE, GROUP_SIZE)):
        expected = REFEREES[type(game).__name__](play)
        np.testing.assert_allclose(np.stack([turn.reward for turn in play.turns]), expected, rtol=1e-5, atol=1e-6)


def test_a_game_that_is_silent_about_its_rewards_says_so():
    games = {type(game).__name__: game for game in (make() for make in REGISTRY.values())}
    assert set(games) == set(REFEREES)
    for name, game in games.items():
        assert ("silent about" in " ".join(type(game).__doc__.split())) == (name in SILENT), name
        points = any(word in " ".join(game.rules[0]) for word in ("point", "score", "win", "coins"))
        assert points or name in SILENT, name


def test_rewards_are_finite(name):
    assert np.isfinite(played(name)[1][1]["reward"]).all()


def test_scripted_players_do_what_is_legal(name):
    record = played(name)[1][1]
    acting = record["view"].acting
    assert record["scripted"]
    for script, action in record["scripted"].items():
        assert np.take_along_axis(record["view"].legal, action[..., None], -1)[..., 0][acting].all(), script


def test_the_same_key_is_the_same_game(name):
    run, first = played(name)
    again, other = jax.device_get((run(jax.random.key(3)), run(jax.random.key(4))))
    same = lambda a, b: all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))
    assert same(first, again) and not same(first, other)


def test_a_batch_equals_its_games_played_alone(name):
    """One game of `played`, with its keys and actions, turn by turn."""
    reset, step = compiled(name)
    prompts, record = played(name)[1]
    key, game = jax.random.key(3), 2 * GROUP_SIZE + 1
    of_game = lambda tree, turn: jax.tree.map(lambda x: x[turn, game], tree)
    state, view, prompt = reset(jax.random.fold_in(key, 2), jnp.int32(2))
    np.testing.assert_array_equal(prompt, prompts[game])
    for turn in range(int((~record["over"][:, game]).sum())):
        jax.tree.map(np.testing.assert_array_equal, view, of_game(record["view"], turn))
        chance = jax.random.fold_in(jax.random.fold_in(key, game), turn)
        state, view, reward = step(state, of_game(record["action"], turn).astype(np.int32), chance)
        np.testing.assert_array_equal(reward, record["reward"][turn, game])
        jax.tree.map(np.testing.assert_array_equal, view, of_game(record["after"], turn))


def test_grammars_accept_exactly_the_actions(name):
    for grammar in ENVIRONMENTS[name].grammars:
        machine, written = automaton(grammar), re.compile(pattern(grammar), re.DOTALL)
        options = next((part.options for part in grammar if isinstance(part, Choice)), ((0, ""),))
        free = any(isinstance(part, Free) for part in grammar)
        assert len({number for number, _ in options}) == len(options)
        for number, text in options:
            said_as = lambda part, text=text: text if isinstance(part, Choice) else getattr(part, "text", "")
            whole = "".join(map(said_as, grammar)).encode()
            for said in (whole, whole[:-1], whole + whole[:1], whole.swapcase()):
                state = 0
                for byte in said:
                    state = machine.next[state, byte] if state >= 0 else -1
                action = machine.accepts[state] if state >= 0 else -1
                found = written.fullmatch(said)
                named = (
                    {int(group[1:]) for group, part in found.groupdict().items() if part is not None} if found else ()
                )
                assert action == (-1 if not found else min(named, default=0))
                assert (action == number) == (said == whole or (free and found is not None))


def test_every_phrase_and_action_can_be_written(name):
    environment, tokenizer = ENVIRONMENTS[name], ByteTokenizer()
    lift(environment.grammars, tokenizer.token_bytes, tokenizer.end)  # raises for an action without tokens
    for fields in (environment.rules, environment.observation):
        empty = [isinstance(field, MessageFrom) for field in fields]
        np.testing.assert_array_equal(widest(compile_phrases(tokenizer, phrases(fields))) == 0, empty)


def test_no_game_imports_another_game():
    """Games share `base`, `helpers`, `fines` and `tasks`; a wrapper knows `base`, `helpers` and how wrappers are made;
    PettingZoo's two directions are a game at the table and a game in plain Python, as an OpenEnv server is. Modules
    that know `base` know `extras`, the optional part of the contract."""
    for path in Path(environments.__file__).parent.rglob("*.py"):
        imported = r"^from jaxmarl_llm\.environments\.(?:\w+\.)?(\w+) import"
        found = set(re.findall(imported, path.read_text(), re.MULTILINE))
        shared = {
            "base": set(),
            "wrappers": {"base", "check", "helpers"},
            "fines": {"base", "helpers"},
            "tasks": {"helpers"},
        }
        shared |= {"check": {"base", "python_games"}, "table": {"base", "check"}}
        shared |= {name: {"python_games"} for name in ("openenv_games", "agent_programs")}
        shared |= {"prompts": {"python_games", "prompt_rewards"}, "verifiers_games": {"agent_programs", "bridges"}}
        shared |= {"pettingzoo_games": {"action_spaces", "base", "python_games", "table"}}
        shared |= {
            wrapper: {"base", "helpers", "wrappers"}
            for wrapper in (
                "announced",
                "as_one",
                "forgetful",
                "guide",
                "noisy",
                "one_by_one",
                "opponents",
                "oracle",
                "retry",
                "shared_deals",
                "subgoals",
                "thoughts",
            )
        }
        shared["foresight"] = shared["announced"]
        shared["opponents"] |= {"matrix_games"}  # whose players it has
        shared["withheld"] = {"base", "helpers", "team_search"}  # whose answers it withholds
        shared["corpus"] = {"base", "helpers", "relation_chains"}  # of which its documents are
        if path.stem != "__init__":
            known = shared.get(path.stem, {"base", "helpers", "fines", "tasks"})
            assert found <= known | ({"extras"} if "base" in known else set()), path.stem


def test_keys_have_names():
    key = jax.random.key(0)
    data = lambda k: tuple(jax.random.key_data(k).ravel().tolist())
    named = {data(key_for(key, purpose, *at)) for purpose in (DEAL, CHANCE, SAY) for at in ((0, 1), (1, 0), (1, 1))}
    assert len(named) == 9
    assert data(key_for(key, SAY, 3, 2)) == data(
        jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, SAY), 3), 2)
    )


def test_keys_of_a_batch_are_the_named_keys():
    key, episode = jax.random.key(1), np.array([4, 0, 7])
    batch = batch_keys(key, SAY, episode, jnp.int32(2), jnp.array([1, 1, 0]))
    alone = [key_for(key, SAY, e, 2, a) for e, a in zip(episode, (1, 1, 0), strict=True)]
    np.testing.assert_array_equal(jax.random.key_data(batch), jax.random.key_data(jnp.stack(alone)))


@pytest.mark.parametrize("game", ["kuhn_poker", "trust_and_split", "solver_verifier", "mini_hanabi"])
def test_episodes_of_a_group_share_their_deal_unlike_those_of_one_process_wide_generator(game):
    """TextArena draws every deal anew, so that a group's baseline compares different games."""
    group = jnp.repeat(jnp.arange(6, dtype=jnp.int32), 4)
    state, _ = jax.jit(jax.vmap(ENVIRONMENTS[game].reset))(batch_keys(jax.random.key(0), DEAL, group), group)
    dealt = np.concatenate([np.asarray(leaf).reshape(24, -1) for leaf in jax.tree.leaves(state)], 1).reshape(6, 4, -1)
    assert (dealt == dealt[:, :1]).all() and len(np.unique(dealt[:, 0], axis=0)) > 1
