"""What an update is played with: deal data, horizons, a snapshot; and players that are a learner as it was.

The long cases compile whole updates; `test_contract` traces every study that arranges, and the short ones check each
refusal. The slow cases compile past selves of two learners, and one update twice.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmarl_llm.environments.teams.team_signals import SixState, SixTurns
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training import past, step
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Snapshots, TinySize
from jaxmarl_llm.training.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Cued(SixTurns):
    """The colour of every turn is what training says, if it says so."""

    def reset(self, key, group, given=None):
        state, view = super().reset(key, group)
        if given is None:
            return state, view
        state = SixState(jnp.full((self.turns,), given, jnp.int32), state.turn)
        return state, self.view(state)


def cues(episodes):
    """The colour that was told in every group's first turn: names are equal where texts are."""
    return {"first": episodes.told[0, 0, 0].astype(jnp.float32), "length": episodes.acted.sum((1, 2)).mean()}


RECIPE = Recipe(
    Cued(turns=4),
    seats=(("a", "b"),),
    advantage=estimator(advantages.rloo, per_agent=True),
    groups=2,
    group_size=4,
    updates=4,
    size=TinySize(layers=1),
)


def run(recipe: Recipe, updates: int = 2, seeds=(3,)):
    trainer = Trainer(recipe, [recipe.all_hparams] * len(seeds), seeds)
    states, found = [trainer.init()], []
    for number in range(updates):
        state, metrics = trainer.update(jax.tree.map(jnp.copy, states[-1]), number)
        states.append(state)
        found.append(jax.tree.map(np.asarray, metrics))
    return trainer, states, found


def same(one, other) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.slow
def test_what_stands_in_the_recipe_may_as_well_be_arranged():
    """All turns, and no deal data: the bits of a recipe that arranges nothing."""
    whole = lambda hparams, state, key, number: Arranged(turns=jnp.full(2, 4))
    _, states, _ = run(dataclasses.replace(RECIPE, arrange=whole))
    _, plain, _ = run(RECIPE)
    assert same(states[-1].learners, plain[-1].learners)


@pytest.mark.long
def test_each_group_is_dealt_what_was_arranged_and_the_estimator_sees_it():
    def arrange(hparams, state, key, number):
        return Arranged(deal=jnp.stack([number % 4, 3 - number % 4]), turns=jnp.array([1, 3]) + state)

    def advantage(experience, hparams, state):
        deal = experience.arranged.deal.astype(jnp.float32)
        found = RECIPE.advantage(experience, hparams, state)
        named = experience.episodes.told[:, 1, 1].reshape(2, 4)  # the second turn's colour
        constant = (named == named[:, :1]).all()
        return found._replace(state=state + 1, metrics={"deal": deal @ jnp.array([1.0, 10.0]), "constant": constant})

    def lengths(episodes):
        acts = episodes.acted.sum((1, 2)).reshape(2, 4)
        return {"short": acts[0].max(), "long": acts[1].min(), "cut": episodes.truncated.mean()}

    changes = {"arrange": arrange, "advantage": advantage, "measure": lengths}
    recipe = dataclasses.replace(RECIPE, **changes, init_state=lambda parts, key: jnp.int32(0))
    trainer, states, found = run(recipe, 3)
    assert [float(x["deal"][0]) for x in found] == [30, 21, 12]
    assert [(int(x["short"][0]), int(x["long"][0])) for x in found] == [(1, 3), (2, 4), (3, 4)]
    assert [float(x["cut"][0]) for x in found] == [1, 0.5, 0.5] and all(x["constant"][0] for x in found)
    examined = trainer.examine(states[1], (0,), 1)  # the viewer's games are arranged as those of that update
    assert examined.start.cues[0, :, 0].tolist() == [1, 2]
    assert np.asarray(examined.trajectory.episodes.acted).sum((2, 3)).tolist() == [[2] * 4 + [4] * 4]
    games, _, _ = trainer.replay_update(states[1], 1)
    assert np.asarray(games.episodes.acted).sum((2, 3)).tolist() == [[2] * 4 + [4] * 4]


@pytest.mark.long
def test_a_horizon_may_follow_a_schedule():
    horizon = lambda hparams, state, key, number: Arranged(turns=hparams["turns"].astype(jnp.int32))
    grows = {"turns": optax.linear_schedule(1, 4, 3)}
    _, _, found = run(dataclasses.replace(RECIPE, arrange=horizon, hparams=grows, measure=cues), 4)
    assert [float(x["length"][0]) for x in found] == [1, 2, 3, 4]


@pytest.mark.parametrize("wrong", [Arranged(deal=jnp.zeros(3)), Arranged(turns=jnp.zeros(8, int))])
def test_an_arrangement_that_is_not_by_group_is_refused(wrong):
    recipe = dataclasses.replace(RECIPE, arrange=lambda *of: wrong)
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    with pytest.raises(ValueError, match="every leaf needs 2 entries, one a group"):
        trainer.update(trainer.abstract(), 0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (None, "returns Arranged"),
        (Arranged(turns=jnp.float32(2.5)), "turns are whole numbers"),
        (Arranged(snapshot=jnp.int32(0)), "the recipe keeps none"),
    ],
)
def test_what_is_no_arrangement_is_one_sentence(wrong, says):
    recipe = dataclasses.replace(RECIPE, arrange=lambda *of: wrong)
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    with pytest.raises(ValueError, match=says):
        trainer.update(trainer.abstract(), 0)


def weights_of(run_state, name):
    return jax.tree.map(lambda x: x[0], run_state.learners.weights[name])


@pytest.mark.slow
def test_each_learner_has_past_selves_of_its_own():
    """Snapshots of two learners are of one moment; the first is before training, an average is what a loop says."""
    pairs = (("a", "snapshot/b"), ("snapshot/a", "b"), ("initial/a", "b"), ("a", "average/b"))
    recipe = dataclasses.replace(
        RECIPE, seats=pairs, groups=4, snapshots=Snapshots(3, every=1), hparams={"average": 0.75}
    )
    assert recipe.learners == ("a", "b") and recipe.past["snapshot/b"] == ("snapshot", "b")
    trainer, states, _ = run(recipe, 3)
    assert set(trainer.policy_sets) == {"a", "b", *recipe.past}
    last = jax.tree.map(lambda x: x[0], states[3])
    assert set(last.snapshots) == {"a", "b"} and set(last.averages) == {"b"} and set(last.initial) == {"a"}
    for slot, of in ((1, 1), (2, 2), (0, 3)):  # the newest stands in place of the oldest
        for name in "ab":
            assert same(jax.tree.map(lambda x, at=slot: x[at], last.snapshots[name]), weights_of(states[of], name))
    average = weights_of(states[0], "b")
    for state in states[1:]:
        average = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, average, weights_of(state, "b"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), last.averages["b"], average)
    plays = past.weights(recipe, last, 2)
    assert same(plays["snapshot/a"], weights_of(states[2], "a")) and same(plays["average/b"], last.averages["b"])
    assert same(plays["initial/a"], {"policy": weights_of(states[0], "a")["policy"]})
    now = past.present(recipe, last)
    assert same(now["snapshot/a"], now["a"]) and same(now["initial/a"], plays["initial/a"])


@pytest.mark.long
def test_a_past_self_plays_by_its_own_weights_and_is_not_trained():
    """The log-probabilities of its rows are those that its weights give, not the learner's."""
    recipe = dataclasses.replace(RECIPE, seats=(("a", "initial/a"),))
    trainer, states, found = run(recipe, 1)
    one = jax.tree.map(lambda x: x[0], states[1])

    @jax.jit
    def look(one):
        frozen = past.weights(recipe, one, None)
        trajectory = step.play(trainer.parts, one.learners.weights | frozen, jax.random.key(0))
        experience = step.make_experience(trainer.parts, one, trajectory, jax.random.key(0), frozen)
        own, learner = (
            experience.score("initial/a", weights={"initial/a": weights}).logp
            for weights in (frozen["initial/a"], one.learners.weights["a"])
        )
        behaviour = experience.sampled["initial/a"].behaviour_logp
        return jnp.abs(own - behaviour).max(), jnp.abs(learner - behaviour).max(), experience.learns

    own, learner, learns = look(one)
    assert float(own) < 1e-5 and float(learner) > 1e-4
    assert np.asarray(learns).tolist() == [[True, False]] * 8
    assert "gradient_norm/a" in found[0] and "gradient_norm/initial/a" not in found[0]


@pytest.mark.long
def test_the_snapshot_that_was_arranged_plays():
    """A snapshot drawn from the estimator's state: here the first one always, which is before training."""
    first = lambda hparams, state, key, number: Arranged(snapshot=jnp.int32(0))
    recipe = dataclasses.replace(RECIPE, seats=(("a", "snapshot"),), snapshots=Snapshots(4, every=1), arrange=first)
    _, states, _ = run(recipe, 3)
    alike = dataclasses.replace(RECIPE, seats=(("a", "initial"),))
    _, others, _ = run(alike, 3)
    pairs = zip(*(jax.tree.leaves(run[-1].learners.weights) for run in (states, others)), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, atol=1e-4)  # as the policy sets are ordered, so sums are
    assert not same(weights_of(states[-1], "a"), weights_of(states[0], "a"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seats": (("a", "snapshot"),)}, "snapshots is None, but the line-ups are"),
        ({"snapshots": Snapshots(2)}, "but the line-ups are"),
        ({"seats": (("a", "snapshot/c"),), "snapshots": Snapshots(2)}, "'snapshot/c' is in a line-up, but a learn"),
        ({"seats": (("a", "b"), ("a", "initial")), "groups": 2}, "'initial' is in a line-up, but a, b learn"),
        ({"seats": (("a", "snapshot"),), "snapshots": Snapshots(0)}, "At least one snapshot is kept"),
        ({"seats": (("a", "average"),)}, "needs the hparam 'average'"),
    ],
)
def test_past_selves_that_cannot_be_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(RECIPE, **changes).check()


@pytest.mark.long
def test_an_estimator_may_learn_what_to_deal_by_what_was_won():
    """State goes from outcome to arrangement: each update deals the colour of the lowest score so far."""

    def arrange(hparams, state, key, number):
        return Arranged(deal=jnp.full(2, jnp.argmin(state)))

    def advantage(experience, hparams, state):
        score = experience.episodes.reward[..., 0].sum((1, 2)).mean()
        dealt = experience.arranged.deal[0]
        found = RECIPE.advantage(experience, hparams, state)
        return Advantages(found.advantage, state=state.at[dealt].add(score), metrics={"dealt": dealt, "score": score})

    recipe = dataclasses.replace(RECIPE, arrange=arrange, advantage=advantage, init_state=lambda *of: jnp.zeros(4))
    _, _, found = run(recipe, 6)
    scores = np.zeros(4)
    for metrics in found:
        assert int(metrics["dealt"][0]) == scores.argmin()
        scores[scores.argmin()] += metrics["score"][0]
