"""Several games in one update: each as it would be alone, and one gradient of all tokens.

The long cases compile updates of each game alone beside the joint one; the short ones check the counts and points of
the joint one.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker, LeducPoker
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.keys import GAME, UPDATE, key_for
from jaxmarl_llm.methods.several_games import from_teacher, imitation_recipe, one_vocabulary, points_won, together
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Advantages, Common, TinySize
from jaxmarl_llm.training.setup import parts_of
from jaxmarl_llm.training.trainer import Trainer

SELF = (("me", "me"),)
SMALL = {"budget": 1, "groups": 4, "group_size": 4, "size": TinySize(layers=1)}
KUHN = Recipe(KuhnPoker(), SELF, estimator(advantages.rloo, per_agent=True), **SMALL)


def counted(experience, hparams, state):
    """Leave-one-out advantages, a running count in the state, and the number of the game as it is told."""
    found = KUHN.advantage(experience, hparams, ())
    return found._replace(state=state + 1, metrics={"game": experience.episodes.game.astype(jnp.float32).mean()})


DILEMMA = dataclasses.replace(
    KUHN,
    game=MatrixGame(rounds=3),
    advantage=counted,
    init_state=lambda parts, key: jnp.float32(0),
    groups=2,
    group_size=6,
    measure=lambda episodes: {"cooperates": (episodes.action == 0).mean()},
)
GAMES = {"kuhn": KUHN, "dilemma": DILEMMA}


def trainer_of(recipe, seeds=(0,)):
    return Trainer(recipe, [recipe.all_hparams] * len(seeds), list(seeds))


@pytest.mark.long
def test_one_game_is_the_standard_step_bit_for_bit():
    same = dataclasses.replace(DILEMMA, tokenizer=partial(one_vocabulary, games=(DILEMMA.game,)))
    states = []
    for recipe in (same, together({"dilemma": DILEMMA})):
        trainer = trainer_of(recipe, (0, 1))
        state = trainer.init()
        for number in range(3):
            state, metrics = trainer.update(state, number)
        states.append((state, metrics))
    (alone, plain), (joint, found) = states
    jax.tree.map(np.testing.assert_array_equal, alone.learners, joint.learners)
    np.testing.assert_array_equal(alone.state, joint.state["dilemma"])
    assert set(found) >= {f"dilemma/{name}" for name in ("cooperates", "invalid", "entropy/me")}
    np.testing.assert_array_equal(plain["cooperates"], found["dilemma/cooperates"])


def test_the_tokens_of_an_update_are_those_of_all_games():
    alone = [begin.tokens_of(trainer_of(recipe).parts) for recipe in GAMES.values()]
    assert begin.tokens_of(trainer_of(together(GAMES)).parts) == sum(alone) > max(alone)


@pytest.fixture(scope="module")
def joint():
    """The trainer, a state, the state and metrics one update later."""
    trainer = trainer_of(together(GAMES))
    state = trainer.init()
    kept = jax.tree.map(lambda x: jnp.array(x[0]), state)
    return trainer, kept, *trainer.update(state, 0)


def batches_alone(trainer, run, hparams):
    """What each game plays alone, with its key, and its batches."""
    key, found = key_for(trainer.keys[0], UPDATE, 0), {}
    for i, (name, recipe) in enumerate(GAMES.items()):
        parts = parts_of(trainer.parts, recipe)
        own, own_run = key_for(key, GAME, i) if i else key, run.replace(state=run.state[name])

        @jax.jit
        def batches(weights, parts=parts, own_run=own_run, own=own):
            played = step.play(parts, weights, own)
            experience = step.make_experience(parts, own_run, played, own)
            return played, step.make_batches(parts, experience, step.estimate(parts, own_run, hparams, experience))

        found[name] = parts, *batches(run.learners.weights)
    return found


@pytest.mark.long
def test_each_game_is_played_as_it_would_be_alone_and_the_gradient_is_of_all_tokens(joint):
    trainer, run, after, metrics = joint
    hparams = {name: x[0] for name, x in trainer.hparams_at(0).items()}
    alone = batches_alone(trainer, run, hparams)
    kuhn, dilemma = alone["kuhn"][1].episodes, alone["dilemma"][1].episodes
    np.testing.assert_allclose(metrics["kuhn/return"][0], kuhn.reward.sum((1, 3)).mean(), atol=1e-6)
    np.testing.assert_allclose(metrics["dilemma/cooperates"][0], (dilemma.action == 0).mean(), atol=1e-6)
    assert metrics["dilemma/game"][0] == 1 and after.state == {"kuhn": (), "dilemma": 1}

    total, tokens = None, 0
    for parts, _, batches in alone.values():

        def summed(weights, parts=parts, batches=batches):
            losses, _ = step.joint_loss(parts, hparams, {}, weights, batches)
            return losses["me"].sum, losses["me"].count

        gradient, count = jax.jit(jax.grad(summed, has_aux=True))(run.learners.weights)
        tokens += int(batches[parts.learner_sets[0]].batch.mask.sum())
        total = gradient if total is None else jax.tree.map(jnp.add, total, gradient)
        assert count == batches[parts.learner_sets[0]].batch.mask.sum()
    gradient = jax.tree.map(lambda x: x / tokens, total)
    np.testing.assert_allclose(metrics["gradient_norm/me"][0], optax.tree.norm(gradient), rtol=1e-4)
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(hparams["learning_rate"]))
    changes, _ = rule.update(gradient, rule.init(run.learners.weights))
    wanted = optax.apply_updates(run.learners.weights, changes)
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(after.learners.weights), strict=True):
        np.testing.assert_allclose(a, b[0], atol=3e-5)


def test_a_policy_speaks_in_games_that_it_was_never_trained_in():
    trainer = trainer_of(together(GAMES, also=(LeducPoker(),)))
    state = trainer.init()
    leduc = parts_of(trainer.parts, dataclasses.replace(KUHN, game=LeducPoker()))
    weights = jax.tree.map(lambda x: x[0], state.learners.weights)
    episodes = jax.jit(partial(step.play, leduc))(weights, jax.random.key(0)).episodes
    assert episodes.acted.any() and (episodes.valid == episodes.acted).all()
    assert (
        trainer_of(together(GAMES)).policy_sets["me"].tokenizer.vocab_size
        < trainer.policy_sets["me"].tokenizer.vocab_size
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seats": (("other", "other"),)}, "have the same learners: dilemma has"),
        ({"seats": (("me", "initial"),)}, "no past selves"),
        ({"critic": True}, "a critic and a reference only where the first has them"),
        ({"choices": {"credit": ("turn", "episode")}}, "take the same options: dilemma has {'credit': 'turn'}"),
    ],
)
def test_games_that_do_not_go_together_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        together({"kuhn": KUHN, "dilemma": dataclasses.replace(DILEMMA, **changes)})


def test_what_an_estimator_says_wrongly_is_told():
    wrong = dataclasses.replace(DILEMMA, advantage=lambda experience, hparams, state: Advantages(jnp.zeros((2, 2))))
    trainer = trainer_of(together({"kuhn": KUHN, "dilemma": wrong}))
    with pytest.raises(ValueError, match=r"is \[episodes, turns, seats\], here \[12, 3, 2\]"):
        trainer.update(trainer.abstract(), 0)


@pytest.mark.long
def test_one_policy_imitates_scripts_of_all_games():
    """The loss is the mean over the tokens of both games, and what is imitated is soon said."""
    games = {
        "kuhn": dataclasses.replace(KUHN, warm_start=Common((("honest", "honest"),))),
        "dilemma": dataclasses.replace(DILEMMA, warm_start=Common((("grim", "grim"),))),
    }
    trainer = trainer_of(imitation_recipe(games, updates=40))
    state, first = trainer.update(trainer.init(), 0)
    entropy = {name: float(first[f"{name}/cross_entropy"][0]) for name in games}
    assert min(entropy.values()) < float(first["loss"][0]) < max(entropy.values())
    for number in range(1, 40):
        state, last = trainer.update(state, number)
    assert all(float(last[f"{name}/cross_entropy"][0]) < 0.1 for name in games)

    begun = trainer_of(together(GAMES, warm_start=imitation_recipe(games, updates=40)))
    weights = jax.tree.map(lambda x: x[0], begun.init().learners.weights)
    parts = parts_of(begun.parts, DILEMMA)
    episodes = jax.jit(partial(step.play, parts))(weights, jax.random.key(1)).episodes
    assert (episodes.action == 0).mean() > 0.9  # grim begins with cooperation and keeps to it
    with pytest.raises(ValueError, match="dilemma names no scripts to imitate"):
        imitation_recipe({"kuhn": games["kuhn"], "dilemma": DILEMMA})
    with pytest.raises(ValueError, match="One policy imitates in all games"):
        imitation_recipe({"kuhn": dataclasses.replace(games["kuhn"], seats=(("me", "you"),))})


@pytest.mark.long
def test_points_are_those_of_the_line_ups_and_components():
    """Weights of 0 answer at random: one key of four fits, and poker pays nothing."""
    chain = dataclasses.replace(
        KUHN, game=LockChain(1, turns=2), seats=(("me",),), advantage=estimator(advantages.rloo, components=(3.0,))
    )
    games = {"kuhn": dataclasses.replace(KUHN, seats=(("me", "random"), ("random", "me"))), "chain": chain}
    trainer = trainer_of(together(games))
    even = jax.tree.map(lambda x: jnp.zeros(x.shape[1:]), trainer.abstract().learners.weights["me"]["policy"])
    points = jax.jit(partial(points_won, trainer.parts, games, jax.random.key(0), 1024))({"me": even})
    assert points["chain"] == pytest.approx(3 * (1 - 0.75**2), abs=0.15)
    assert abs(points["kuhn"]) < 0.15


@pytest.mark.long
def test_a_teacher_pays_for_what_it_would_say():
    """Distillation from a player that always cooperates, by the log-probabilities of its tokens alone."""
    taught = dataclasses.replace(DILEMMA, warm_start=Common((("always_cooperate",) * 2,)))
    parts = trainer_of(together({"dilemma": DILEMMA})).parts
    key, start = jax.random.key(0), jax.random.key(1)
    first = begin.init_tiny(parts, start)
    teacher = jax.tree.map(
        lambda x: x[-1], begin.train_stages(parts, imitation_recipe({"dilemma": taught}, updates=30), first, key)
    )
    pupil = together({"dilemma": dataclasses.replace(DILEMMA, advantage=from_teacher)}, updates=40)
    pupil = pupil.with_hparams(learning_rate=3e-3, entropy=0.0)
    stages = begin.train_stages(parts, pupil, first, key, stages=2, state={"dilemma": teacher})
    own = parts_of(parts, DILEMMA)

    def cooperation(weights):
        episodes = jax.jit(partial(step.play, own))({"me": {"policy": weights["me"]}}, key).episodes
        return float((episodes.action == 0).mean())

    half, end = (jax.tree.map(lambda x, i=i: x[i], stages) for i in range(2))
    assert cooperation(teacher) > 0.95
    assert cooperation(first) < cooperation(half) < cooperation(end) + 0.05 and cooperation(end) > 0.9
