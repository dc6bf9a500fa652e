"""What makes two recipes share a program."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.studies.identity import describe
from jaxmarl_llm.studies.lanes import programs
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe, always, component_returns, measure_totals
from jaxmarl_llm.training.records import Common
from jaxmarl_llm.training.setup import for_pretrained
from jaxmarl_llm.training.step import only_play
from jaxmarl_llm.training.trainer import Trainer

RECIPE = Recipe(SixTurns(turns=2), seats=(("a", "b"),), advantage=estimator(advantages.rloo, per_agent=True))


def test_structure_leaves_out_numbers_alone():
    assert dataclasses.replace(RECIPE, hparams={"learning_rate": 1.0}).structure == RECIPE.structure
    assert dataclasses.replace(RECIPE, group_size=4).structure != RECIPE.structure
    assert dataclasses.replace(RECIPE, loss=partial(losses.ppo)).structure != RECIPE.structure


def test_hparams_are_changed_beside_the_others():
    recipe = dataclasses.replace(RECIPE, hparams={"learning_rate": 1.0, "decay": 2.0})
    assert recipe.with_hparams(decay=0.5, new=3.0).hparams == {"learning_rate": 1.0, "decay": 0.5, "new": 3.0}
    assert recipe.with_hparams(decay=0.5).structure == recipe.structure


CREDIT = dataclasses.replace(RECIPE, choices={"credit": ("rloo", "none")})


def test_a_choice_is_taken_by_name_and_is_no_part_of_the_structure():
    none = CREDIT.with_choice(credit="none").with_hparams(learning_rate=0.0)
    assert (CREDIT.all_choices, none.all_choices) == ({"credit": "rloo"}, {"credit": "none"})
    assert none.all_hparams == {**CREDIT.all_hparams, "learning_rate": 0.0, "credit": "none"}
    assert none.structure == CREDIT.structure != RECIPE.structure
    assert int(none.traced_hparams["credit"].index) == 1
    described = describe(none)
    assert described["choices"] == {"credit": "none"} and "selection" not in described
    assert "credit" not in described["hparams"] and describe(CREDIT)["choices"] == {"credit": "rloo"}


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"credits": "none"}, "There is no choice named 'credits': did you mean 'credit'"),
        (
            {"credit": "nnone"},
            "There is no option of 'credit' named 'nnone': did you mean 'none'. Possible are",
        ),
    ],
)
def test_an_unknown_choice_or_option_is_named_at_once(choice, says):
    with pytest.raises(ValueError, match=says):
        CREDIT.with_choice(**choice)
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(CREDIT, selection=choice).check()


def test_a_run_of_an_unknown_option_is_refused():
    with pytest.raises(ValueError, match="no option named 'non': did you mean 'none'"):
        Trainer(CREDIT, [CREDIT.all_hparams | {"credit": "non"}], [0])


def test_a_choice_is_no_hparam():
    with pytest.raises(ValueError, match="'credit' is a choice and an hparam"):
        CREDIT.with_hparams(credit=1.0).check()
    with pytest.raises(ValueError, match="'learning_rate/a' is a choice and an hparam"):
        dataclasses.replace(CREDIT, choices={"learning_rate/a": ("low", "high")}).check()


def test_arms_that_differ_in_numbers_and_choices_are_traced_once():
    """One program holds three arms and two seeds, and each run learns as its arm says."""

    def advantage(experience, hparams, state):
        found = RECIPE.advantage(experience, hparams, state)
        credit = select(hparams, "credit", rloo=found.advantage, none=0 * found.advantage)
        return found._replace(advantage=credit)

    traced = chex.assert_max_traces(advantage, n=1)
    few = {"seats": (("a", "a"),), "groups": 2, "group_size": 4, "updates": 2}
    base = dataclasses.replace(CREDIT, advantage=traced, **few).with_hparams(entropy=0.0)
    arms = {"rloo": base, "none": base.with_choice(credit="none"), "fast": base.with_hparams(learning_rate=0.1)}
    (program,) = programs(arms, (0, 1), alone=False)
    trainer = Trainer(
        program.recipe, [arms[arm].all_hparams for arm, _ in program.lanes], [s for _, s in program.lanes]
    )
    state = trainer.init()
    for number in range(2):
        state, metrics = trainer.update(state, number)
    norms = dict(zip(program.lanes, np.asarray(metrics["gradient_norm/a"]), strict=True))
    assert norms["none", 0] == norms["none", 1] == 0 and min(norms["rloo", 0], norms["fast", 0]) > 0


def test_returns_of_components_against_a_loop():
    reward = np.random.default_rng(0).normal(size=(3, 4, 2, 2)).astype(np.float32)
    got = component_returns(SimpleNamespace(reward=jnp.asarray(reward), acted=jnp.ones((3, 4, 2), bool)), second=1)
    want = np.mean([sum(reward[b, t, a, 1] for t in range(4)) for b in range(3) for a in range(2)])
    assert list(got) == ["second"]
    np.testing.assert_allclose(got["second"], want, rtol=1e-6)


def test_an_index_that_names_nothing_is_refused():
    """JAX reads the last entry where an index is too large."""
    acted = jnp.ones((3, 4, 2), bool)
    episodes = SimpleNamespace(reward=jnp.zeros((3, 4, 2, 2)), measured=jnp.ones((3, 4, 2, 1)), acted=acted)
    assert measure_totals(episodes, said=0) == {"said": 4}
    for made, says in ((component_returns, "won is at index 2, .* 2 components"), (measure_totals, "1 measures")):
        with pytest.raises(ValueError, match=says):
            made(episodes, won=2)
    with pytest.raises(ValueError, match="the game has 0 measures"):
        measure_totals(SimpleNamespace(measured=None), said=0)


def test_one_deal_for_always():
    arranged = always({}, (), None, jnp.int32(3), deal={"locks": 2})
    assert arranged.deal["locks"].shape == () and arranged.deal["locks"] == 2 and arranged.turns is None


def test_an_option_that_an_estimator_does_not_take_is_named_at_once():
    with pytest.raises(ValueError, match=r"grpo has no option 'sclae': it takes .*scale"):
        estimator(advantages.grpo, sclae="none")
    with pytest.raises(ValueError, match="grpo has no option 'lam'"):
        estimator(advantages.grpo, hparams=("lam",))


def test_an_hparam_that_a_loss_or_an_estimator_lacks_is_named():
    def loss(scores, batch, hparams):
        return losses.ppo(scores, batch, {**hparams, "entropy": hparams["strength"]})

    def advantage(experience, hparams, state):
        return RECIPE.advantage(experience, hparams, state)._replace(state=hparams["decay"])

    for recipe, name in (
        (dataclasses.replace(RECIPE, loss=loss), "strength"),
        (dataclasses.replace(RECIPE, advantage=advantage), "decay"),
    ):
        trainer = Trainer(dataclasses.replace(recipe, groups=2, group_size=2), [recipe.all_hparams], [0])
        with pytest.raises(ValueError, match=rf"no hparam '{name}', but .*value: put it into Recipe.hparams"):
            trainer.update(trainer.abstract(), 0)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (lambda total, metrics: total.value, "A loss returns"),
        (lambda total, metrics: total, "A loss returns"),
        (lambda total, metrics: (Mean(total.sum * jnp.ones(2), total.count), metrics), "A loss returns"),
        (lambda total, metrics: (total, {"mine": total.value}), "'mine' is none"),
    ],
)
def test_what_a_loss_returns_is_checked(returned, says):
    loss = lambda scores, batch, hparams: returned(*losses.ppo(scores, batch, hparams))
    trainer = Trainer(dataclasses.replace(RECIPE, groups=2, group_size=2, loss=loss), [RECIPE.all_hparams], [0])
    with pytest.raises(ValueError, match=says):
        trainer.update(trainer.abstract(), 0)


LINE_UPS = ["ab", ("a", "b"), ("ab", "ab"), (("a", "b"), "ab"), [["a", "b"]], (["a", "b"],), ((),), ((1, 2),), None]
LINE_UPS += [(("a", ""),)]


@pytest.mark.parametrize("line_ups", LINE_UPS)
def test_what_is_no_line_up_is_refused(line_ups):
    changes = [{"seats": line_ups}, {"warm_start": Common(line_ups)}]
    changes += [{"warm_start": line_ups}] if not isinstance(line_ups, str) else []  # a text is taken for a file's name
    for change in changes:
        with pytest.raises(ValueError, match=r"Line-ups are tuples of names, \(\('a', 'b'\),\)"):
            dataclasses.replace(RECIPE, **change)
    with pytest.raises(ValueError, match="needs a line-up"):
        dataclasses.replace(RECIPE, seats=())


def test_runs_have_the_recipe_s_hparams_and_a_seed_each():
    """Before, a second run was left out in silence, and so was a misspelt hparam."""
    hparams = CREDIT.all_hparams
    fewer = {name: x for name, x in hparams.items() if name != "credit"}
    for given, seeds, says in (
        ([hparams] * 2, [0], "got 2 hparams and 1 seeds"),
        ([hparams], [0, 1], "got 1 hparams and 2 seeds"),
        ([hparams | {"clipp": 0.1}], [0], "has the hparam 'clipp'"),
        ([hparams | {"learning_rate": -1e-2}], [0], "learning_rate must be finite and not negative, got -0.01"),
        ([fewer], [0], "lacks the hparam 'credit'"),
        (hparams, [0], r"A list with the hparams of each run is wanted, got one dict: \[hparams\]\.$"),
        ([hparams], 0, r"A list with the seed of each run is wanted, got 0: \[0\] is one run\.$"),
    ):
        with pytest.raises(ValueError, match=says):
            Trainer(CREDIT, given, seeds)


def test_a_function_of_arrays_is_no_estimator_of_a_recipe():
    with pytest.raises(ValueError, match=r"grpo is a function of arrays: advantage=estimator\(advantages\.grpo\)"):
        dataclasses.replace(RECIPE, advantage=advantages.grpo).check()


def test_a_misspelt_hparam_is_refused():
    with pytest.raises(ValueError, match="Nothing reads an hparam 'learningrate': did you mean 'learning_rate'"):
        dataclasses.replace(RECIPE, hparams={"learningrate": 1e-3}).check()
    dataclasses.replace(RECIPE, hparams={"learning_rate/a": 1e-3, "clip": 0.1}).check()


def test_components_are_weighed_by_the_estimator():
    """Six turns pays hits and a constant; without the constant, the advantages are those of hits alone."""
    hits = estimator(advantages.reinforce, components=(1.0, 0.0))
    reward = jnp.arange(16.0).reshape(2, 2, 2, 2)
    experience = SimpleNamespace(
        episodes=SimpleNamespace(reward=reward, total_reward=reward.sum(-1)),
        learning_acts=(jnp.ones((2, 2, 2), bool), jnp.zeros(2, int), 1),
    )
    found = hits(experience, {}, ()).advantage
    assert found.tolist() == estimator(advantages.reinforce).of(reward[..., 0], *experience.learning_acts).tolist()
    with pytest.raises(ValueError, match="pays 2 components, and 1 weights are given"):
        estimator(advantages.reinforce, components=(1.0,))(experience, {}, ())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"group_size": 1}, "rloo compares the games of a group: group_size must be at least 2"),
        ({"hparams": {"learning_rate/c": 1e-3}}, "'learning_rate/c' is of no policy that learns"),
        ({"seats": (("a", "correctt"),)}, "Is 'correctt' to learn, or is it 'correct', who is scripted"),
        ({"seats": (("a", "tit_for_tat"),)}, "'tit_for_tat' is a script of .*, and not of"),
        ({"hparams": {"learning_rate": "fast"}}, "The hparam 'learning_rate' is a number, .*: got 'fast'"),
        ({"hparams": {"entropy": None}}, "The hparam 'entropy' is a number"),
        ({"seats": (("random", "random"),)}, "Nobody learns: .* the scripts are .*random"),
        ({"hparams": {"learning_rate": -1e-3}}, "learning_rate must be finite and not negative, got -0.001"),
        ({"hparams": {"learning_rate/a": float("nan")}}, "learning_rate/a must be finite and not negative"),
        ({"advantage": None}, "needs an advantage estimator"),
        ({"hparams": {"learning_rat": 1e-3}}, "did you mean 'learning_rate'"),
        ({"games": {"plain": RECIPE}}, "The standard step plays the recipe's game alone"),
        ({"games": {"plain": RECIPE.game}, "step": only_play}, "Several games are given as their recipes"),
    ],
)
def test_settings_from_which_nothing_is_learnt_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(RECIPE, **changes).check()


def test_each_line_up_meets_each_labeling():
    pairs = ("a", "tit_for_tat"), ("tit_for_tat", "a")
    turns = Recipe(MatrixGame(rounds=2), seats=pairs, advantage=RECIPE.advantage, groups=4)
    with pytest.raises(ValueError, match="write every line-up 2 times in a row"):
        turns.check()
    dataclasses.replace(turns, seats=(pairs[0], pairs[0], pairs[1], pairs[1])).check()
    dataclasses.replace(turns, game=MatrixGame(rounds=2, exchange=False)).check()
    dataclasses.replace(turns, seats=pairs[:1]).check()
    assert for_pretrained(turns).seats == (pairs[0], pairs[0], pairs[1], pairs[1])
    for_pretrained(turns).check()


def test_an_adapter_is_no_number():
    with pytest.raises(ValueError, match="lora is a Lora"):
        dataclasses.replace(RECIPE, lora=4).check()


def test_a_model_has_several_tokens_for_a_symbol_and_one_for_the_end_of_a_long_answer():
    wanted = {1: 4, 2: 2, 8: 8, 16: 17, (1, 1): (1, 1)}
    assert {given: for_pretrained(dataclasses.replace(RECIPE, budget=given)).budget for given in wanted} == wanted
    assert for_pretrained(dataclasses.replace(RECIPE, budget=1, pretrained={"budget": 7})).budget == 7


@pytest.mark.parametrize(
    ("changes", "returns", "says"),
    [
        ({"critic": True}, lambda found: found, "learns nothing unless its estimator returns a value_target"),
        ({}, lambda found: found._replace(advantage=found.advantage[:, 0]), r"by turn is \[episodes, turns, seats\]"),
        ({}, lambda found: found._replace(state=jnp.zeros(2)), "An estimator's state keeps its shapes"),
        ({}, lambda found: found.advantage, "An estimator returns Advantages"),
    ],
)
def test_what_an_estimator_returns_is_checked(changes, returns, says):
    advantage = lambda *of: returns(RECIPE.advantage(*of))
    recipe = dataclasses.replace(RECIPE, groups=2, group_size=2, advantage=advantage, **changes)
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    with pytest.raises(ValueError, match=says):
        trainer.update(trainer.abstract(), 0)
