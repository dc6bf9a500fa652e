"""Games in plain Python as a recipe's game: trained, continued, shown, and refused in a sentence.

The long cases train two seeds or compile the step twice; the short ones play the same games with untrained weights.
"""

import dataclasses
import reprlib
import string
from decimal import Decimal
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.bridges.python_games import PythonGame, Turn
from jaxmarl_llm.keys import UPDATE, key_for
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.python_game import finite_reward
from jaxmarl_llm.rollout.team import words
from jaxmarl_llm.serving.python_rollout import PythonRollout
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training import step
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.host_games import together
from jaxmarl_llm.training.left_out import leave_out
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.view import records

LETTERS = "abc"


class Echo:
    """Two seats in turn: the first is told a letter and pays both 1 if it repeats it; the second says what it likes."""

    agents = 2

    def reset(self, seed):
        self.letter, self.turn = LETTERS[seed % 3], 0
        return ["r", "w"], Turn({0: self.letter}, (0,))

    def step(self, said):
        self.turn += 1
        if self.turn == 2:
            return Turn(done=True)
        right = said[0] == self.letter
        return Turn({1: said[0] or "?"}, (1,), {0: float(right), 1: float(right)}, invalid=() if said[0] else (0,))


def symbols(game):
    return SymbolTokenizer([*LETTERS, *"rw?"], ends=True)


RECIPE = Recipe(
    PythonGame(Echo, turns=3, scripts={"quiet": lambda seen: ""}),
    seats=(("me", "me"), ("me", "quiet")),
    advantage=estimator(advantages.rloo, per_agent=True),
    hparams={"learning_rate": 3e-2},
    tokenizer=symbols,
    budget=2,
    updates=18,
    groups=6,
    group_size=12,
)


@pytest.fixture(scope="module")
def trained():
    trainer = Trainer(RECIPE, [RECIPE.all_hparams] * 2, [0, 1])
    state, returns = trainer.init(), []
    for number in range(RECIPE.updates):
        state, metrics = trainer.update(state, number)
        returns.append(np.asarray(metrics["return"]))
    return trainer, state, np.array(returns)


def test_runs_of_two_seeds_have_a_state():
    state = Trainer(RECIPE, [RECIPE.all_hparams] * 2, [0, 1]).abstract()
    assert {leaf.shape[0] for leaf in jax.tree.leaves(state)} == {2}


@pytest.mark.long
def test_policies_of_two_seeds_learn_side_by_side(trained):
    _, _, returns = trained
    assert (returns[:2].mean(0) < 0.4).all() and (returns[-3:].mean(0) > 0.8).all(), returns


@pytest.mark.long
def test_an_update_is_that_of_the_step_on_the_same_games():
    """Play on the host and `step.learn`, run by run, are what `update` does to both at once.

    The gradient is compared, in the moments of Adam's first step, and the step that these moments make: Adam divides a
    gradient by its size, so that where it is nearly 0 its rounding decides the step.
    """
    trainer = Trainer(RECIPE, [RECIPE.all_hparams] * 2, [0, 1])
    state = trainer.init()
    kept = jax.tree.map(np.asarray, state)
    after, _ = trainer.update(state, 3)
    for run in range(2):
        own = jax.tree.map(lambda x, run=run: jnp.asarray(x[run]), kept)
        key = key_for(trainer.keys[run], UPDATE, 3)
        played = trainer.rollout(step.rollout_weights(trainer.parts, own.learners.weights), key)
        hparams = {name: x[run] for name, x in trainer.hparams_at(3).items()}
        wanted, _ = step.learn(trainer.parts, own, hparams, played, key, {})
        adam = [learners.optimiser["me"][1] for learners in (wanted.learners, after.learners)]
        for a, b in zip(*(jax.tree.leaves((one.mu, one.nu)) for one in adam), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b[run]), atol=1e-6)
        leaves = (kept.learners.weights, after.learners.weights, {"me": adam[1].mu}, {"me": adam[1].nu})
        for begun, ended, mu, nu in zip(*map(jax.tree.leaves, leaves), strict=True):
            stepped = begun[run] - 3e-2 * (mu[run] / 0.1) / (np.sqrt(nu[run] / 0.001) + 1e-8)
            np.testing.assert_allclose(ended[run], stepped, atol=2e-5)


@pytest.mark.long
def test_its_games_are_shown(trained, tmp_path):
    trainer, state, _ = trained
    (games,) = records.recorder(trainer)(state, {0: {"study": "echo", "arm": "a", "seed": 0, "update": 25}}, 8)
    assert len(games) == 8
    right = 0
    for game in games:
        messages = game["seats"][0]["messages"]
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        assert messages[0]["content"].startswith("r") and len(said) == 1
        right += messages[0]["content"][-1] == said[0]
        tokens = game["seats"][0]["answers"][0]["tokens"]
        assert all(token["logp"] <= 0 and len(token["top"]) > 1 for token in tokens if "logp" in token)
    assert right >= 6
    page = records.save_games(trainer, state, tmp_path, 25)
    assert '"content":"r' in page.read_text()
    trajectory, batches, _ = trainer.replay_update(state, 25)
    assert trajectory.episodes.reward.shape[:2] == (2, 72) and not batches


def test_a_symbol_tokenizer_of_its_texts_is_refused_with_one_that_serves():
    """The default tokenizer of tiny policies, and that of a game's words, read a game's phrases."""
    for tokenizer in (Recipe.tokenizer, partial(words, letters="ab")):
        with pytest.raises(
            ValueError, match=r"with Recipe.tokenizer=lambda game: SymbolTokenizer\(\[\*string.printable"
        ):
            Trainer(dataclasses.replace(RECIPE, tokenizer=tokenizer), [RECIPE.all_hparams], [0])
    Trainer(
        dataclasses.replace(RECIPE, tokenizer=lambda game: SymbolTokenizer([*string.printable], ends=True)),
        [RECIPE.all_hparams],
        [0],
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Echo(), "make is a class or a function that makes an environment for each game"),
        ("KuhnPoker-v0", "and not 'KuhnPoker-v0'"),
        (lambda: Echo, r"make\(\) is .*Echo.*: a text environment has agents, a number, reset and step"),
        (lambda: None, r"make\(\) is None"),
        (lambda: RECIPE.game, r"make\(\) is PythonGame"),
        (type("Named", (Echo,), {"agents": ["a", "b"]}), "agents, a number"),
    ],
)
def test_no_maker_of_environments_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        Trainer(
            dataclasses.replace(RECIPE, game=PythonGame(make, 2, {"quiet": lambda seen: ""})), [RECIPE.all_hparams], [0]
        )


def test_trees_of_other_widths_are_put_together():
    wide, narrow = (
        {"x": jnp.arange(6).reshape(2, 3), "n": jnp.float32(1)},
        {"x": jnp.ones((2, 1), int), "n": jnp.float32(2)},
    )
    both = together([wide, narrow])
    np.testing.assert_array_equal(both["x"][0], wide["x"])
    np.testing.assert_array_equal(both["x"][1], [[1, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(both["n"], [1, 2])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seats": (("me", "initial/me"),)}, "cannot have past selves"),
        ({"budget": (2, 3)}, "a budget for each grammar"),
        ({"masked": False}, "not masked"),
        ({"tokenizer": lambda game: SymbolTokenizer([*string.printable])}, "no token that ends"),
    ],
)
def test_what_games_on_the_host_cannot_have_is_said(changes, said):
    with pytest.raises(ValueError, match=said):
        Trainer(dataclasses.replace(RECIPE, **changes), [RECIPE.all_hparams], [0])
    with pytest.raises(ValueError, match="without a rollout mesh"):
        Trainer(RECIPE, [RECIPE.all_hparams], [0], mesh="data=1", rollout_mesh="data=1")


class PaysWrongly(Echo):
    """Pays `value` where the letter is c."""

    value: object

    def step(self, said):
        turn = super().step(said)
        if turn.done or self.letter != "c":
            return turn
        return turn._replace(reward=self.value if isinstance(self.value, list) else {1: self.value})


WRONG = [float("nan"), float("inf"), 1e300, 3e38, 10**400, "1", [1.0, 0.0], [[1], [2, 3]], np.ones(2), np.ones((1,))]
WRONG += [None, 1j, {"a": 1}, np.ma.masked, Decimal("sNaN")]


@pytest.fixture(scope="module")
def untrained():
    trainer = Trainer(RECIPE, [RECIPE.all_hparams], [0])
    return trainer, trainer.init()


@pytest.mark.parametrize("value", WRONG, ids=reprlib.repr)
def test_a_reward_that_is_no_finite_number_names_its_game_and_its_episode_is_left_out(untrained, value):
    trainer, state = untrained
    game = dataclasses.replace(RECIPE.game, make=type("PaysWrongly", (PaysWrongly,), {"value": value}))
    spoilt = PythonRollout(game.make, trainer.policy_sets, trainer.rollout.lineup, 3, 2, None, game.scripts)
    with pytest.warns(UserWarning, match="PaysWrongly paid seat . of episode") as told:
        played = spoilt(trainer.weights(state, 0), jax.random.key(1))
    sentence = str(told[0].message)
    assert f"{reprlib.repr(value)} in turn 0, after seat 0 said '" in sentence and len(sentence) < 400
    assert "a reward is a number up to 1e30." in sentence
    bad = ~np.isfinite(played.episodes.reward).all((1, 2, 3))
    assert 0 < bad.sum() < len(bad) and f"Episodes left out: {bad.sum()}." in sentence
    assert played.episodes.truncated[bad].all() and played.episodes.terminated[~bad].all()
    kept, metrics = leave_out(played)
    assert metrics["left_out"] == bad.sum() and not kept.episodes.acted[bad].any()
    assert all((own.loss_mask.any(1) == ~bad[own.episode]).all() for own in kept.rows.values())


def test_of_several_seeds_each_that_pays_wrongly_is_named(untrained):
    one, state = untrained
    game = dataclasses.replace(RECIPE.game, make=type("PaysWrongly", (PaysWrongly,), {"value": float("nan")}))
    recipe = dataclasses.replace(RECIPE, game=game)
    trainer = Trainer(recipe, [recipe.all_hparams] * 2, [7, 568406])
    trainer.weights = lambda state, run: one.weights(state, 0)
    trainer.rollout.wrong_rewards.tell = (told := []).append
    wrong = np.isnan(trainer.play(state).episodes.reward).any((1, 2, 3, 4))
    seeds = [seed for seed, bad in zip(trainer.seeds, wrong, strict=True) if bad]
    assert 568406 in seeds
    assert [text.split(" paid ")[0] for text in told] == [f"In a game of seed {n}, PaysWrongly" for n in seeds]


@pytest.mark.parametrize(
    "value", [1, True, 0.5, np.float32(0.5), np.ones(()), jnp.ones(()), Fraction(1, 2), Decimal("1.5"), -1e30], ids=repr
)
def test_every_finite_number_is_a_reward(value):
    assert finite_reward(value) == np.float32(float(value))
