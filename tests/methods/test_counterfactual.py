"""Joint credit in a whole update: probabilities of all actions, advantages by the definitions, and what is refused.

All cases are long, as they share one whole update; `test_contract` traces the same step in the study of crossed
rewards.
"""

import dataclasses
import itertools
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.wrappers import Around, Illegal
from jaxmarl_llm.environments.helpers import choice
from jaxmarl_llm.environments.social.public_goods import PublicGoods
from jaxmarl_llm.methods.counterfactual import counterfactual, cross_joint_credit, joint_step
from jaxmarl_llm.rollout.team import strings
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training import begin
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Advantages
from jaxmarl_llm.training.trainer import Trainer

pytestmark = pytest.mark.long

SEATS, COINS, GROUPS, SIZE = 3, 2, 2, 2
KEY = jax.random.key(0)


def looked_into(experience, hparams, joint):
    """Crossed credit; as metrics, all that it and COMA's were made of."""
    found = cross_joint_credit(experience, hparams, joint)
    seen = {
        "crossed": found,
        "counterfactual": counterfactual(experience, hparams, joint),
        "probability": joint.probabilities(),
        "action": experience.episodes.action,
        "logp": experience.sampled["learner"].behaviour_logp[:, 0],
        "episode": experience.rows["learner"].episode,
        "seat": experience.rows["learner"].seat,
    }
    return Advantages(found, metrics=seen)


GAME = PublicGoods(agents=SEATS, multiplier=2.0, rounds=1, endowment=COINS)
RECIPE = Recipe(
    GAME,
    seats=(("learner", "learner", "random"),),
    advantage=None,
    step=partial(joint_step, credit=looked_into),
    budget=1,
    groups=GROUPS,
    group_size=SIZE,
)


def parts_of(recipe):
    return Trainer(recipe, [recipe.all_hparams], [0]).parts


@pytest.fixture(scope="module")
def updated():
    parts = parts_of(RECIPE)
    run = begin.init_run(parts, KEY)
    after, seen = jax.jit(lambda run: RECIPE.step(parts, run, RECIPE.all_hparams, KEY, jnp.int32(0)))(run)
    return run, after, {name: np.asarray(x) for name, x in seen.items()}


def payoff(gifts, seat):
    return COINS - gifts[seat] + 2.0 * sum(gifts) / SEATS


def test_probabilities_are_those_of_the_sampled_tokens_and_add_up_to_one(updated):
    *_, seen = updated
    probability, action = seen["probability"], seen["action"]
    taken = np.take_along_axis(probability, action[..., None], -1)[:, 0, :, 0]
    np.testing.assert_allclose(taken[seen["episode"], seen["seat"]], np.exp(seen["logp"]), rtol=1e-5)
    np.testing.assert_allclose(probability.sum(-1)[:, 0], np.array([[1, 1, 0]] * GROUPS * SIZE), atol=1e-6)


def test_advantages_are_those_of_the_definitions(updated):
    *_, seen = updated
    gifts, probability = seen["action"][:, 0], seen["probability"][:, 0]
    for episode in range(GROUPS * SIZE):
        first = episode // SIZE * SIZE
        group = gifts[first : first + SIZE]
        for seat in range(2):
            others = [s for s in range(SEATS) if s != seat]

            def with_gift(of, own, seat=seat):
                return payoff([own if s == seat else of[s] for s in range(SEATS)], seat)

            def value(own, seat=seat, others=others, group=group):
                pairs = [(i, j) for i in range(SIZE) for j in range(SIZE)]
                total = sum(
                    with_gift({others[0]: group[i][others[0]], others[1]: group[j][others[1]]}, own) for i, j in pairs
                )
                return total / len(pairs)

            wanted = value(gifts[episode, seat]) - value(group[1 - (episode - first), seat])
            np.testing.assert_allclose(seen["crossed"][episode, 0, seat], wanted, atol=1e-5)
            baseline = sum(probability[episode, seat, b] * with_gift(gifts[episode], b) for b in range(COINS + 1))
            np.testing.assert_allclose(
                seen["counterfactual"][episode, 0, seat], payoff(gifts[episode], seat) - baseline, atol=1e-5
            )
    assert not seen["crossed"][..., 2].any() and not seen["counterfactual"][..., 2].any()  # a script learns nothing


def test_the_step_learns_from_it(updated):
    run, after, seen = updated
    moved = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), run.learners.weights, after.learners.weights)
    assert max(jax.tree.leaves(moved)) > 0 and seen["skipped"] == 0


@dataclass(frozen=True)
class PaysNaN(Around):
    """A game in which one joint action pays NaN."""

    joint: tuple[int, ...]

    def step(self, state, action, key):
        state, view, reward = self.game.step(state, action, key)
        return state, view, jnp.where((action == jnp.array(self.joint)).all(), jnp.nan, reward)


def test_a_joint_action_that_nobody_played_and_that_pays_nan_leaves_its_group_out(updated):
    run, _, seen = updated
    gifts = seen["action"][:, 0].reshape(GROUPS, SIZE, SEATS)
    first, second = ({*itertools.product(*group.T.tolist())} for group in gifts)
    joint = min(first - second - {*map(tuple, gifts[0].tolist())})
    recipe = dataclasses.replace(RECIPE, game=PaysNaN(GAME, joint), step=partial(joint_step, credit=cross_joint_credit))
    parts = parts_of(recipe)
    after, metrics = jax.jit(lambda run: recipe.step(parts, run, recipe.all_hparams, KEY, jnp.int32(0)))(run)
    assert (metrics["left_out"], metrics["left_out_joint"], metrics["skipped"]) == (0, SIZE, 0)
    moved = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), run.learners.weights, after.learners.weights)
    assert max(jax.tree.leaves(moved)) > 0


def refused(recipe, credit, match):
    parts = parts_of(dataclasses.replace(recipe, step=partial(joint_step, credit=credit)))
    run = jax.eval_shape(partial(begin.init_run, parts), KEY)
    with pytest.raises(ValueError, match=match):
        jax.eval_shape(lambda run: joint_step(parts, run, recipe.all_hparams, KEY, jnp.int32(0), credit=credit), run)


ANSWERS = "aa", "ab", "ba", "bb"


class Spelt(PublicGoods):
    """Gifts of 0 to 3 as words that no single letter decides."""

    grammars = (choice(ANSWERS),)


def in_letters(game):
    return SymbolTokenizer([*(text for text in strings(game) if text not in ANSWERS), "a", "b"])


def test_what_has_no_joint_credit_is_said():
    several = dataclasses.replace(GAME, rounds=2)
    refused(dataclasses.replace(RECIPE, game=several), cross_joint_credit, "PublicGoods has up to 2 turns")
    alternating = dataclasses.replace(GAME, sequential=True)
    refused(dataclasses.replace(RECIPE, game=alternating), counterfactual, "up to 3 turns")
    game = Spelt(agents=SEATS, multiplier=2.0, rounds=1, endowment=3)
    spelt = dataclasses.replace(RECIPE, game=game, tokenizer=in_letters, budget=2)
    refused(spelt, counterfactual, "has no probability by itself")
    unmasked = dataclasses.replace(RECIPE, game=Illegal(GAME), masked=False)
    refused(unmasked, counterfactual, "unmasked")
    refused(dataclasses.replace(RECIPE, group_size=1), cross_joint_credit, "at least 2")
