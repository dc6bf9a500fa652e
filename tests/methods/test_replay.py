"""The ring: what is kept and replaced, that kept rows score as they were sampled, and the loss of joined batches.

All cases are long, as they compile play and learning; `test_contract` traces the study that imitates its successes.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.methods import replay
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Advantages, TinySize
from jaxmarl_llm.training.scoring import score_policies
from jaxmarl_llm.training.trainer import Trainer

pytestmark = pytest.mark.long

KEPT = 3


def plain(experience, hparams, state):
    reward = experience.episodes.total_reward
    return Advantages(advantages.rloo(reward, *experience.acts, per_agent=True), state=state)


def keeping(parts, run, hparams, key, number):
    """The standard step, which keeps what it learnt from."""
    _, batches, _ = step.inspect(parts, run, hparams, key, number)
    after, metrics = step.on_policy_step(parts, run, hparams, key, number)
    return after.replace(state=replay.put(run.state, batches, number)), metrics


RECIPE = Recipe(
    SixTurns(turns=4),
    seats=(("a", "b"),),
    advantage=plain,
    init_state=partial(replay.empty, kept=KEPT),
    step=keeping,
    hparams={"learning_rate": 0.0},
    groups=2,
    group_size=4,
    updates=5,
    size=TinySize(layers=1),
)
LEARNING = RECIPE.all_hparams | {"learning_rate": 0.01}


@pytest.fixture(scope="module")
def both():
    """A trainer of a run that stays as it is and of one that learns, and all states."""
    trainer = Trainer(RECIPE, [RECIPE.all_hparams, LEARNING], [3, 4])
    states = [jax.device_get(trainer.init())]
    for number in range(5):
        state, _ = trainer.update(jax.tree.map(jnp.asarray, states[-1]), number)
        states.append(jax.device_get(state))
    return trainer, states


@pytest.fixture(scope="module")
def played(both):
    trainer, states = both
    return trainer, [jax.tree.map(lambda x: x[0], state) for state in states]


def test_the_newest_take_the_place_of_the_oldest(played):
    _, runs = played
    assert [run.state.number.tolist() for run in runs] == [
        [-1, -1, -1],
        [0, -1, -1],
        [0, 1, -1],
        [0, 1, 2],
        [3, 1, 2],
        [3, 4, 2],
    ]
    tokens = [run.state.batches["a"].batch.token for run in runs]
    np.testing.assert_array_equal(tokens[5][2], tokens[3][2])
    assert (tokens[4][0] != tokens[3][0]).any() and not tokens[0].any()


def test_kept_rows_score_as_they_were_sampled(played):
    """The weights do not change here: replayed rows scored afresh have the log-probabilities of their play."""
    trainer, runs = played
    run, parts = runs[5], trainer.parts
    batches = {name: jax.tree.map(lambda x: x[1], part) for name, part in run.state.batches.items()}
    fresh = jax.tree.map(jnp.zeros_like, batches)
    weigh = lambda part, number: (2.0 * part.batch.advantage, part.batch.advantage > 0)
    joined = jax.jit(partial(replay.join_batches, weight=weigh))(fresh, run.state)
    for name, part in joined.items():
        scores, _ = score_policies(parts, run.learners.weights, name, part.rows, part.sampled)
        mask, kept = np.asarray(part.batch.mask), run.state.batches[name].batch
        np.testing.assert_allclose(scores.logp[mask], part.batch.behaviour_logp[mask], atol=1e-5)
        positive = (kept.mask & (kept.advantage > 0)).reshape(-1, mask.shape[1])
        np.testing.assert_array_equal(mask, np.concatenate([np.zeros_like(mask[: len(mask) // 4]), positive]))
        np.testing.assert_allclose(part.batch.advantage[mask], 2 * kept.advantage.reshape(positive.shape)[positive])


def test_a_kept_part_is_drawn_among_those_that_are_there(played):
    _, runs = played
    ring = runs[5].state
    part = jax.tree.map(lambda x: x[2], ring.batches["a"])
    late = jax.tree.map(jnp.zeros_like, ring).replace(number=jnp.full(KEPT, -1))
    late = replay.put(late, {name: jax.tree.map(lambda x: x[2], own) for name, own in ring.batches.items()}, 5)
    for i in range(5):
        jax.tree.map(np.testing.assert_array_equal, replay.draw_update(late, "a", jax.random.key(i)), part)
    seen = {replay.draw_update(ring, "a", jax.random.key(i)).batch.token.tobytes() for i in range(40)}
    assert len(seen) == KEPT


def test_the_loss_of_joined_batches_is_that_of_both(played):
    trainer, runs = played
    run, parts = runs[5], trainer.parts
    hparams = {name: jnp.float32(x) for name, x in RECIPE.all_hparams.items()}
    fresh = {name: jax.tree.map(lambda x: x[0], part) for name, part in run.state.batches.items()}
    weigh = lambda part, number: (part.batch.advantage, part.batch.mask & (number == 2))
    joined = replay.join_batches(fresh, run.state, weigh)
    two = {name: jax.tree.map(lambda x: x[2], part) for name, part in run.state.batches.items()}
    of = lambda batches: step.joint_loss(parts, hparams, {}, run.learners.weights, batches)[0]
    both, one, other = of(joined), of(fresh), of(two)
    for name in ("a", "b"):
        np.testing.assert_allclose(both[name].sum, one[name].sum + other[name].sum, rtol=1e-4)
        assert both[name].count == one[name].count + other[name].count


def test_a_ring_keeps_something():
    with pytest.raises(ValueError, match="at least one update, not of 0"):
        replay.empty(Trainer(RECIPE, [RECIPE.all_hparams], [3]).parts, jax.random.key(0), kept=0)


def test_an_empty_ring_adds_nothing_and_runs_equal_each_alone(both):
    alone, (_, states) = Trainer(RECIPE, [LEARNING], [4]), both
    one = alone.init()
    for number in range(2):
        one, _ = alone.update(one, number)
    own, of_two = (jax.tree.leaves(jax.tree.map(lambda x, i=i: x[i], s.state)) for s, i in ((one, 0), (states[2], 1)))
    for a, b in zip(own, of_two, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    part = jax.tree.map(lambda x: x[0], one.state).batches["a"]
    nothing = replay.Ring({"a": part}, jnp.full(KEPT, -1))
    first = {"a": jax.tree.map(lambda x: x[0], part)}
    joined = replay.join_batches(first, nothing, lambda part, number: (part.batch.advantage, part.batch.mask))
    assert not joined["a"].batch.mask[len(first["a"].batch.mask) :].any()
