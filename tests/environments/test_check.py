"""A game that breaks the contract is told so in a sentence, before anything compiles."""

import sys
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments import REGISTRY, make_game
from jaxmarl_llm.environments.around.foresight import Foreseen
from jaxmarl_llm.environments.around.one_by_one import OneByOne
from jaxmarl_llm.environments.around.retry import Retry
from jaxmarl_llm.environments.around.subgoals import Subgoals
from jaxmarl_llm.environments.around.thoughts import Thoughts
from jaxmarl_llm.environments.around.wrappers import Around, Formatted, Illegal
from jaxmarl_llm.environments.bridges.python_games import PythonGame, Turn
from jaxmarl_llm.environments.bridges.table import Table
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.matrix_games import PRISONERS_DILEMMA, MatrixGame
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.methods.pretraining import reading
from jaxmarl_llm.methods.several_games import imitation_recipe, together
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, strings
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer


@pytest.mark.parametrize("name", REGISTRY)
def test_every_game_of_the_package_passes(name):
    check_game(REGISTRY[name]())


@pytest.mark.parametrize(
    ("words", "game"),
    [
        ("kuhn_poker", KuhnPoker()),
        ("prisoners_dilemma:rounds=10", MatrixGame(rounds=10)),
        ("prisoners_dilemma:rounds=3,talk=True", MatrixGame(rounds=3, talk=True)),
        ("prisoners_dilemma:labels=('A','B'),rounds=2", MatrixGame(labels=("A", "B"), rounds=2)),
        ("prisoners_dilemma:payoff=(((3,3),(0,5)),((5,0),(1,1)))", MatrixGame(payoff=PRISONERS_DILEMMA)),
        ("lock_chain:alphabet=XYZ", LockChain(alphabet="XYZ")),
    ],
)
def test_a_game_is_named_with_its_settings(words, game):
    assert make_game(words) == game


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("kuhn", "No game is called 'kuhn'. Did you mean kuhn_poker"),
        ("prisoners_dilemma:round=10", "has no setting 'round'. Did you mean rounds? Its settings are payoff, "),
        ("prisoners_dilemma:", "is NAME:FIELD=VALUE,..., e.g. NAME:rounds=3, got 'prisoners_dilemma:'"),
        ("prisoners_dilemma:rounds", "is NAME:FIELD=VALUE,..."),
        ("prisoners_dilemma:rounds=3)", "is NAME:FIELD=VALUE,..."),
        ("prisoners_dilemma:**{'rounds':3}", "is NAME:FIELD=VALUE,..."),
        ("prisoners_dilemma:rounds={[1]:2}", "{[1]: 2} is no int"),
        ("kuhn_poker:grammars=(1,)", "has no setting 'grammars'"),
        ("solver_verifier:tasks=sums", "has no setting 'tasks'"),
        ("rooms:smaller=(1,)", "rooms:smaller=(1,) is no game: "),
        ("prisoners_dilemma:rounds=ten", "rounds of prisoners_dilemma is 5, and ten is no int"),
        ("prisoners_dilemma:rounds=1.5", "1.5 is no int"),
        ("prisoners_dilemma:talk=yes", "yes is no bool"),
        ("prisoners_dilemma:rounds=0", "prisoners_dilemma:rounds=0 is no game: "),
        ("prisoners_dilemma:labels=('A','A')", "is no game: "),
    ],
)
def test_a_game_with_wrong_settings_is_told_in_a_sentence(words, says):
    with pytest.raises(ValueError) as error:
        make_game(words)
    assert says in str(error.value)


OWN = """
import dataclasses
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.matrix_games import MatrixGame

@dataclasses.dataclass(frozen=True)
class Mine(MatrixGame):
    rounds: int = 2

ready = KuhnPoker()

class Needs:
    def __init__(self, deck): ...

class Other:
    pass
"""


def test_a_game_of_ones_own_is_named_by_its_module(tmp_path, monkeypatch):
    name = "a_module_of_games"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert make_game(f"{name}:Mine").rounds == 2
    mine = make_game(f"{name}:Mine:rounds=3,talk=True")
    assert (type(mine).__name__, mine.rounds, mine.talk) == ("Mine", 3, True)
    assert make_game(f"{name}:ready") == KuhnPoker()
    for words, says in {
        name: f"{name} is a module here: name its game, {name}:CLASS.",
        f"{name}:Mind": f"The module {name} has no Mind. Did you mean Mine?",
        f"{name}:Mine:round=3": f"{name}:Mine has no setting 'round'. Did you mean rounds?",
        f"{name}:Needs": f"{name}:Needs makes no game without arguments: TypeError: ",
        f"{name}:Other": "Other has no agents",
        "no_module_at_all:Game": "The module no_module_at_all of the game no_module_at_all:Game cannot be imported: ",
    }.items():
        with pytest.raises(ValueError) as error:
            make_game(words)
        assert str(error.value).startswith(says) and "\n" not in str(error.value)


class Broken(KuhnPoker):
    """Kuhn poker, of which one function's result is changed."""

    def step(self, state, action, key):
        state, view, reward = super().step(state, action, key)
        return self.changed(state, view, reward)


def of(changed):
    return type("Spoilt", (Broken,), {"changed": lambda self, *result: changed(*result)})()


@pytest.mark.parametrize(
    ("game", "says"),
    [
        (of(lambda s, v, r: (s.replace(history=s.history * 1.0), v, r)), r"\.history as float32\[\], and reset"),
        (of(lambda s, v, r: (s.replace(cards=s.cards[:1]), v, r)), r"\.cards as int32\[1\], and reset gave"),
        (of(lambda s, v, r: ((s, 0), v, r)), "built otherwise"),
        (of(lambda s, v, r: (s, v.replace(legal=v.legal[:, :1]), r)), r"view.legal bool\[2, 1\]: \(2, 2\) is wanted"),
        (
            of(lambda s, v, r: (s, v.replace(phrases=v.phrases[:1]), r)),
            r"step gives view.phrases int32\[1, 1\]: \(2, 1\) is wanted, a phrase for each seat and field of the obs",
        ),
        (
            type("Spoilt", (KuhnPoker,), {"actions": 3})(),
            r"^Spoilt.actions is 3, and 2 is wanted: one more than the largest action of its grammars, 1\.$",
        ),
        (type("Spoilt", (KuhnPoker,), {"actions": 1})(), "Spoilt.actions is 1, and 2 is wanted"),
        (type("Spoilt", (KuhnPoker,), {})(grammars=()), "Spoilt.grammars is a tuple of at least one tuple of parts"),
        (of(lambda s, v, r: (s, v, r[:, 0])), r"reward of shape \(2,\): \(2, 1\) is wanted"),
        (type("Spoilt", (KuhnPoker,), {"prompt": lambda self, state: jnp.zeros((2, 5), jnp.int32)})(), "Spoilt.prompt"),
        (
            type("Spoilt", (type(of(lambda s, v, r: (s, v.replace(measured=None), r))),), {"measures": ("folds",)})(),
            r"names the measures folds, and its view.measured is of shape None: \(2, 1\)",
        ),
        (of(lambda s, v, r: (s, v.replace(measured=jnp.zeros((2, 1))), r)), r"no measures, and its view.measured is"),
        (
            type("Spoilt", (type(of(lambda s, v, r: (s, v.replace(measured=jnp.zeros((2, 1), int)), r))),),
                 {"measures": ("folds",)})(),
            "gives view.measured as int32: float32 is wanted",
        ),
        (type("Spoilt", (KuhnPoker,), {"measures": (1,)})(), r"Spoilt.measures is a tuple of names.*got \(1,\)"),
        (type("Spoilt", (KuhnPoker,), {"measures": "folds"})(), r"Spoilt.measures is a tuple of names.*got 'folds'"),
        (type("Spoilt", (KuhnPoker,), {"measures": ("points",)})(), r"each different and none of a component"),
        (object(), "object has no agents"),
    ],
)  # fmt: skip
def test_a_broken_game_is_named_with_what_is_wrong(game, says):
    with pytest.raises(ValueError, match=says):
        check_game(game)
    with pytest.raises(ValueError, match=says):
        Table(game, 0)


MISSPELT = {"seat_turnz": "seat_turns", "measure": "measures", "voice": "voices"}


@pytest.mark.parametrize("given", MISSPELT)
def test_a_misspelt_optional_attribute_is_refused(given):
    game = type("Spoilt", (KuhnPoker,), {given: 1})()
    for made in (check_game, OneByOne, lambda game: Rollout(game, {}, Lineup((("random",) * 2,), 1))):
        with pytest.raises(ValueError, match=f"Spoilt has an attribute {given}, .* write {MISSPELT[given]}, or rename"):
            made(game)


def test_a_trainer_checks_its_game():
    game = of(lambda s, v, r: (s.replace(history=s.history * 1.0), v, r))
    recipe = Recipe(game, seats=(("a", "a"),), advantage=estimator(advantages.rloo, per_agent=True))
    with pytest.raises(ValueError, match=r"Spoilt.step returns the state's \.history as float32"):
        Trainer(recipe, [recipe.all_hparams], [0])


def test_a_phrase_that_is_not_in_the_table_is_named():
    game = of(lambda s, v, r: (s, v.replace(phrases=v.phrases + 40), r))
    table = Table(game, 0)
    with pytest.raises(ValueError, match=r"Spoilt tells phrase \d+ of field 0 of its observation, which has \d+"):
        table.play(jnp.ones(2, jnp.int32), {})


class Plain:
    """An environment in plain Python."""

    agents = 1

    def reset(self, seed):
        return ["Speak."], Turn(acting=(0,))

    def step(self, said):
        return Turn(done=True)


RLOO = estimator(advantages.rloo, per_agent=True)
ENTRIES = {
    "recipe": lambda game: Recipe(game, (("a", "a"),), RLOO),
    "table": lambda game: Table(game, 0),
    "rollout": lambda game: Rollout(game, {}, Lineup((("random", "random"),), 1)),
    "tree": solve.tree,
    "vocabulary": strings,
    **{wrapper.__name__: wrapper for wrapper in (Formatted, Illegal, OneByOne, Foreseen, Retry, Subgoals, Thoughts)},
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (KuhnPoker, r"^KuhnPoker makes a game and is none: give the game itself, KuhnPoker\(...\)\.$"),
        (lambda: KuhnPoker(), "makes a game and is none"),
        (PythonGame, r"give the game itself, PythonGame\(...\)\.$"),
        (Plain, r"Plain is no game that compiles: give PythonGame\(make, turns\), where make is Plain\.$"),
        (Plain(), r"give PythonGame\(make, turns\), where make is its class or a function"),
        ("kuhn_pokr", r"'kuhn_pokr' is a text and no game: write REGISTRY\['kuhn_poker'\]\(\)"),
        ([KuhnPoker()], "a list is given: give one of its games, or train in all of them by .*together"),
        (REGISTRY, "a dict is given"),
        (None, "NoneType has no agents: the docstring of environments/base.py"),
        (jnp, "numpy has no agents"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_no_game_in_place_of_a_game_is_refused_where_games_enter(given, says, entry):
    with pytest.raises(ValueError, match=says):
        ENTRIES[entry](given)


@pytest.mark.parametrize("entry", [name for name in ENTRIES if name != "recipe"])
def test_a_game_in_plain_python_enters_by_a_recipe_alone(entry):
    ENTRIES["recipe"](PythonGame(Plain, turns=1))
    with pytest.raises(ValueError, match=r"PythonGame has no phrases .* plays as Recipe.game and unwrapped"):
        ENTRIES[entry](PythonGame(Plain, turns=1))


@pytest.mark.parametrize(
    "given",
    [ENTRIES["recipe"](KuhnPoker()), [ENTRIES["recipe"](KuhnPoker())], {"kuhn": KuhnPoker()}, {}, "kuhn_poker", None],
    ids=lambda given: type(given).__name__,
)
@pytest.mark.parametrize("several", [together, imitation_recipe, lambda games: reading(games, 8)])
def test_no_recipes_in_place_of_several_are_refused(several, given):
    with pytest.raises(ValueError, match=r"Several games are given as their recipes, \{name: Recipe\}"):
        several(given)
    with pytest.raises(ValueError, match="PythonGame has no phrases"):
        several({"plain": ENTRIES["recipe"](PythonGame(Plain, turns=1))})


@dataclass(frozen=True)
class Pays(Around):
    """A game that pays `reward` whatever happens."""

    reward: Any

    def __hash__(self) -> int:
        return id(self)

    def step(self, state, action, key):
        return *self.game.step(state, action, key)[:2], self.reward


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (1.0, "Pays.step pays a float: a reward is an array of numbers"),
        ([[1.0], [0.0]], "Pays.step pays a list"),
        ("1", "Pays.step pays a str"),
        (None, "Pays.step pays a NoneType"),
        ({0: 1.0}, "Pays.step pays a dict"),
        (np.zeros((2, 1), complex), "Pays.step pays an array of complex128"),
        (np.array([["a"], ["b"]]), "Pays.step pays an array of <U1"),
        (np.zeros(2), r"Pays.step pays a reward of shape \(2,\): \(2, 1\) is wanted"),
        (jnp.zeros((2, 3)), r"Pays.step pays a reward of shape \(2, 3\)"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_is_no_reward_is_refused_by_the_name_of_its_game(reward, message):
    with pytest.raises(ValueError, match=message):
        check_game(Pays(MatrixGame(rounds=1), reward))
    with pytest.raises(ValueError, match=message):
        Table(Pays(MatrixGame(rounds=1), reward), 0).play(np.zeros(2, int), {})


@pytest.mark.parametrize("reward", [np.zeros((2, 1)), jnp.ones((2, 1)), np.zeros((2, 1), int), np.ones((2, 1), bool)])
def test_arrays_of_numbers_are_rewards(reward):
    check_game(Pays(MatrixGame(rounds=1), reward))


def test_an_unknown_name_names_the_nearest_game():
    with pytest.raises(KeyError, match=r"No game is called 'kuhn'\. Did you mean kuhn_poker"):
        REGISTRY["kuhn"]
    assert REGISTRY.get("kuhn") is None and "kuhn" not in REGISTRY
