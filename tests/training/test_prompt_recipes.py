"""Recipes of questions: policies learn, held-out rewards rise, and a run that was stopped ends with the same bits.

The long cases compile an update.
"""

import dataclasses

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.bridges.prompt_rewards import Exact
from jaxmarl_llm.environments.bridges.prompts import Prompts, letters
from jaxmarl_llm.environments.bridges.python_games import PythonGame
from jaxmarl_llm.rl import advantages, losses, returns
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.host_games import held_out
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Advantages
from jaxmarl_llm.training.setup import Model
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.view import records


def short(completions):
    return [0.1 * (len(text) == 1) for text in completions]


def by_critic(experience, hparams, state):
    return Advantages(*returns.gae(experience.episodes.total_reward, experience.turn_value, experience.episodes.acted))


GAME = Prompts(
    [{"prompt": f"{a}{b}", "answer": a} for a in "abcd" for b in "wxyz"],
    {"first": Exact(), "short": short},
    held_out=0.25,
    answers=8,
)
RECIPE = Recipe(
    GAME,
    seats=(("me",),),
    advantage=estimator(advantages.rloo),
    hparams={"learning_rate": 1e-2},
    tokenizer=letters,
    budget=3,
    updates=40,
    groups=8,
    group_size=8,
    evaluate=held_out,
)


def trainer_of(recipe=RECIPE, **options) -> Trainer:
    return Trainer(recipe, [recipe.all_hparams], [0], **options)


@pytest.fixture(scope="module")
def trained():
    """(trainer, held-out means before, states and metrics after every update)."""
    trainer = trainer_of()
    evaluate = held_out(trainer.parts)
    means = lambda state: {
        name: values.mean() for name, values in evaluate(trainer.weights(state, 0), jax.random.key(0)).items()
    }
    state, metrics = trainer.init(), []
    before, kept = means(state), []
    for number in range(RECIPE.updates):
        state, measured = trainer.update(state, number)
        metrics.append(jax.tree.map(np.asarray, measured))
        if number in (1, 4):
            kept.append(jax.tree.map(np.asarray, state))
    return trainer, state, kept, metrics, before, means(state)


@pytest.mark.long
def test_a_tiny_policy_learns_and_answers_questions_that_it_never_saw(trained):
    *_, metrics, before, after = trained
    returns = [measured["return"].item() for measured in metrics]
    assert np.mean(returns[:2]) < 0.2 and np.mean(returns[-3:]) > 0.9, returns
    assert before["held_out/first"] < 0.2 and after["held_out/first"] > before["held_out/first"] + 0.3
    assert after["held_out/return"] == pytest.approx(after["held_out/first"] + after["held_out/short"])
    assert all(abs(measured["ratio/me"].item() - 1) < 1e-3 for measured in metrics)  # sampled and scored again


@pytest.mark.long
def test_a_run_that_goes_on_in_another_process_has_the_same_bits(trained):
    """Another trainer, with engines of its own, goes on from a copy of the arrays."""
    _, _, (early, late), metrics, *_ = trained
    trainer, state = trainer_of(), jax.tree.map(jax.numpy.asarray, early)
    for number in range(2, 5):
        state, measured = trainer.update(state, number)
        for name, values in measured.items():
            np.testing.assert_array_equal(values, metrics[number][name], err_msg=name)
    for here, there in zip(jax.tree.leaves(state), jax.tree.leaves(late), strict=True):
        np.testing.assert_array_equal(here, there)


@pytest.mark.long
def test_its_games_are_shown_with_their_rewards(trained, tmp_path):
    trainer, state, *_ = trained
    page = records.save_games(trainer, state, tmp_path, RECIPE.updates)
    games = [game for game in records.page.read(tmp_path / "games.jsonl")]
    assert len(games) == 16 and '"short":' in page.read_text()
    for game in games:
        (seat,) = game["seats"]
        *heard, said = seat["messages"]
        asked = "".join(message["content"] for message in heard)
        assert asked in {question.prompt for question in GAME.training} and said["role"] == "assistant"
        right, brief = seat["components"].values()
        assert right == float(said["content"].strip() == asked[0])
        assert brief == pytest.approx(0.1 * (len(said["content"]) == 1))


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"advantage": estimator(advantages.grpo), "loss": losses.ppo, "epochs": 2, "minibatches": 2},
        {"advantage": by_critic, "critic": True, "reference": True},
        {"seats": (("me",), ("you",)), "models": {"me": Model("tiny_base"), "you": Model("tiny_base")}},
    ],
    ids=["ppo", "critic", "adapters"],
)
def test_other_estimators_losses_and_adapters_take_a_step(changes):
    models = changes.pop("models", "tiny")
    trainer = trainer_of(dataclasses.replace(RECIPE, **changes), models=models)
    state = trainer.init()
    before = jax.tree.map(np.asarray, state.learners.weights)
    state, metrics = trainer.update(state, 0)
    assert metrics["skipped"].item() == 0 and all(np.isfinite(np.asarray(value)).all() for value in metrics.values())
    for name, weights in before.items():
        moved = jax.tree.map(lambda a, b: (a != np.asarray(b)).any(), weights, state.learners.weights[name])
        assert any(jax.tree.leaves(moved)), name


def test_a_recipe_that_cannot_work_is_refused():
    with pytest.raises(ValueError, match="cannot have past selves"):
        trainer_of(dataclasses.replace(RECIPE, seats=(("me",), ("initial/me",))))
    with pytest.raises(ValueError, match=r"plays as Recipe.game .* with Recipe.tokenizer=letters, which is in"):
        trainer_of(dataclasses.replace(RECIPE, tokenizer=Recipe.tokenizer))
    with pytest.raises(ValueError, match="No question is held out"):
        held_out(trainer_of(dataclasses.replace(RECIPE, game=Prompts(GAME.data, Exact()))).parts)
    other = dataclasses.replace(RECIPE, game=PythonGame(object, 1))
    with pytest.raises(ValueError, match="Only Prompts hold out questions, and the game is PythonGame"):
        held_out(dataclasses.replace(trainer_of().parts, recipe=other, rollout=None))
