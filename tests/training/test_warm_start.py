"""Pretrained policies imitate scripted play before they learn: their own seats, their adapters only.

The long cases compile imitation and play, a slow one for adapters of several seats; the short ones check who is
imitated.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.teams.panel import Member, Panel, draw_minds
from jaxmarl_llm.keys import START, UPDATE, key_for
from jaxmarl_llm.models.loading import Loaded
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.training import begin, setup, step, warm_start
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Common, TinySize
from jaxmarl_llm.training.setup import Model, for_pretrained
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.training.warm_start import common_deal, scripted_games, teacher_of, tiny_lessons
from tests.support.families import CONFIG as SMALL
from tests.support.families import weights
from tests.support.toys import ByteTokenizer

CONFIG = replace(SMALL, vocab_size=ByteTokenizer().vocab_size, max_position_embeddings=1024, num_hidden_layers=1)
UPDATES = 25


def near_the_start(scores, batch, hparams):
    total, metrics = losses.ppo(scores, batch, hparams)
    drift, more = losses.kl_penalty(scores.logp, batch.reference_logp, batch.mask)
    return Mean(total.sum + 0.1 * drift.sum, total.count), metrics | more


RECIPE = Recipe(
    KuhnPoker(),
    seats=(("first", "second"),),
    advantage=estimator(advantages.rloo, per_agent=True),
    loss=near_the_start,
    reference=True,
    pretrained={"warm_start": (("always_bet", "honest"),), "warm_start_updates": UPDATES, "groups": 4},
    size=TinySize(layers=1),
)


def trainer_of(recipe: Recipe, monkeypatch, **own) -> Trainer:
    """Of a random transformer in place of a pretrained model."""
    monkeypatch.setattr(setup, "HFTokenizer", lambda *_, **__: ByteTokenizer())
    params = weights(CONFIG)
    models = {name: Model("random", lora=own.get(name, Lora(8, 16.0, ("*",)))) for name in recipe.learners}
    load = lambda *_, **__: Loaded(CONFIG, params, "")
    return Trainer(recipe, [recipe.all_hparams], [0], models, load=load)


@pytest.mark.slow
def test_each_adapter_imitates_the_scripts_of_its_seats(monkeypatch):
    monkeypatch.setattr(warm_start, "ADAPTER_RATE", 2e-2)
    trainer = trainer_of(for_pretrained(RECIPE), monkeypatch)
    base = jax.tree.map(np.array, trainer.base)
    seen: list[dict[str, float]] = []
    state = trainer.init(lambda number, metrics: seen.append({name: float(x[0]) for name, x in metrics.items()}))
    assert len(seen) == UPDATES and all(metrics["skipped"] == 0 for metrics in seen)

    # at first that of the untaught policy on what the scripts said in its seat
    ((home, policy_set),) = trainer.policy_sets.items()
    recipe = trainer.recipe
    teacher = teacher_of(recipe, policy_set.tokenizer, policy_set.policies, recipe.groups, recipe.group_size)
    games = jax.jit(lambda key: scripted_games(teacher, key))
    rows, sampled = jax.device_get(games(key_for(key_for(jax.random.key(0), START), UPDATE, 0)))
    logp = np.asarray(trainer.parts.scorer(home)(base[home], rows, sampled).logp, np.float64)
    for seat, name in enumerate(recipe.learners):
        own = np.asarray(sampled.mask) & (rows.seat == seat)[:, None]
        np.testing.assert_allclose(seen[0][f"cross_entropy/{name}"], -logp[own].mean(), rtol=1e-5)

    # then that of the script: no more than what it draws by chance
    assert seen[-1]["cross_entropy/first"] < 0.35 * seen[0]["cross_entropy/first"]
    opened = np.asarray(trainer.play(state).episodes.action[0, :, 0, 0])
    assert (opened == 1).mean() > 0.7
    jax.tree.map(np.testing.assert_array_equal, base, jax.tree.map(np.array, trainer.base))

    # learning by reinforcement starts anew from here: no moments, and a KL divergence of 0
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(state.learners.optimiser))
    assert set(state.initial) == set(recipe.learners)
    _, metrics = trainer.update(state, 0)
    assert all(abs(float(metrics[f"kl/{name}"][0])) < 1e-6 for name in recipe.learners)


def test_seats_that_nobody_takes_are_not_imitated(monkeypatch):
    recipe = for_pretrained(replace(RECIPE, seats=(("first", "honest"),)))
    ((_, policy_set),) = trainer_of(recipe, monkeypatch).policy_sets.items()
    teacher = teacher_of(recipe, policy_set.tokenizer, policy_set.policies, 4, 2)
    assert {name: own.policies for name, own in teacher.policy_sets.items()} == {
        "teacher": ("always_bet",),
        "": ("honest",),
    }
    assert teacher.layouts["teacher"].seat.tolist() == [0] * 8


def test_a_warm_start_names_scripts(monkeypatch):
    recipe = for_pretrained(replace(RECIPE, pretrained={"warm_start": (("nobody", "honest"),)}))
    with pytest.raises(ValueError, match="'nobody' is none of the game's: random, equilibrium, always_bet, honest"):
        trainer_of(recipe, monkeypatch).init()


@pytest.mark.long
def test_an_arm_begins_where_another_recipe_ended(monkeypatch):
    """Where three updates of the standard step lead, without their moments."""
    first = replace(
        RECIPE, loss=losses.ppo, reference=False, pretrained={}, groups=2, group_size=2, updates=3, epochs=2,
        hparams={"learning_rate": 1e-2},
    )  # fmt: skip
    begun = replace(first, warm_start=first, epochs=1, groups=4, minibatches=4, hparams={"learning_rate": 1e-3})
    alone, later = (Trainer(recipe, [recipe.all_hparams], [0]) for recipe in (first, begun))
    own = begin.init_run(alone.parts, key_for(jax.random.key(0), START))
    hparams = {name: np.float32(x) for name, x in first.all_hparams.items()}
    one = jax.jit(partial(step.on_policy_step, alone.parts))
    for number in range(3):
        own, _ = one(own, hparams, key_for(jax.random.key(0), START), number)
    start = jax.tree.map(lambda x: x[0], jax.device_get(later.init()))
    for name in first.learners:
        ended, begins = (run.learners.weights[name]["policy"] for run in (own, start))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-3), ended, begins)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(start.learners.optimiser))
    against = replace(begun, seats=(("first", "second"), ("first", "initial/second")), minibatches=1)
    assert Trainer(against, [begun.all_hparams], [0]).init() is not None
    with pytest.raises(ValueError, match="no warm start of another"):
        Trainer(replace(begun, warm_start=replace(against, warm_start=())), [begun.all_hparams], [0])
    other = replace(first, seats=(("first", "third"),))
    with pytest.raises(ValueError, match="other learners begin"):
        Trainer(replace(begun, warm_start=other), [begun.all_hparams], [0])
    with pytest.raises(ValueError, match="Only tiny policies begin"):
        trainer_of(begun, monkeypatch)


@pytest.mark.long
def test_learners_begin_as_copies_of_one_that_imitates_what_all_take():
    """As a single policy in all seats would, whose key is the first learner's."""
    of = replace(RECIPE, reference=False, loss=losses.ppo, pretrained={}, warm_start_updates=3)
    copies = replace(of, warm_start=Common((("always_bet", "honest"),), 2))
    alone = replace(copies, seats=(("first", "first"),))
    runs = {}
    for name, recipe in {"copies": copies, "alone": alone}.items():
        runs[name] = jax.device_get(Trainer(recipe, [recipe.all_hparams], [0]).init()).learners.weights
    first, second = (runs["copies"][name]["policy"] for name in ("first", "second"))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-6)  # two programs
    jax.tree.map(close, first, runs["alone"]["first"]["policy"])


def test_a_deal_for_a_warm_start_without_games_is_refused():
    for other in (Path("dialogues.jsonl"), RECIPE):
        with pytest.raises(ValueError, match="warm_start_deal deals games of scripts, and this warm start plays none"):
            replace(RECIPE, warm_start=other, warm_start_deal=draw_minds)


@pytest.mark.long
def test_all_scripted_games_of_a_warm_start_have_the_deal_of_their_run():
    game = Panel(Arithmetic(5, "+"), 1, members=(Member("misled", 0.0, sure=1.0),))
    recipe = Recipe(
        game, (("one",),), estimator(advantages.rloo), hparams={"learning_rate": 0.0, "entropy": 0.0},
        warm_start=(("misled",),), warm_start_updates=2, warm_start_deal=draw_minds, budget=1, groups=64, group_size=2,
        size=TinySize(layers=1),
    )  # fmt: skip
    trainer = Trainer(recipe, [recipe.all_hparams] * 2, [0, 1])
    minds = [int(common_deal(recipe, key_for(key, START))) for key in trainer.keys]
    assert minds[0] != minds[1]

    lessons = tiny_lessons(recipe, next(iter(trainer.policy_sets.values())), ("one",))
    rows, other, again = (
        jax.jit(lessons.draw)(jax.random.key(3), jnp.int32(deal))[0] for deal in (minds[0], minds[1], minds[0])
    )
    np.testing.assert_array_equal(rows.prompts.tokens, other.prompts.tokens)
    np.testing.assert_array_equal(rows.tokens, again.tokens)
    assert (rows.tokens != other.tokens).any(1).mean() > 0.2

    weights = trainer.init().learners.weights["one"]["policy"]
    for deal, same in ((minds[0], True), (minds[1], False)):
        fixed = replace(recipe, warm_start_deal=lambda key, deal=deal: jnp.int32(deal))
        alone = Trainer(fixed, [recipe.all_hparams] * 2, [0, 1]).init().learners.weights["one"]["policy"]
        pairs = zip(*map(jax.tree.leaves, (weights, alone)), strict=True)
        assert all(np.allclose(x[0], y[0], atol=1e-5) for x, y in pairs) == same
