"""What policies is credited, against a loop; its surrogate and the cross-entropy; its demonstrations by plain rules.

The long case plays whole demonstrations.
"""

import dataclasses
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.long_horizon.policies import (
    IMITATED,
    PPO,
    STUDY,
    demonstrate,
    estimate_advantages,
    own_prompts,
    surrogate,
)
from jaxmarl_llm.devices import sharding
from jaxmarl_llm.models import loading
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.losses import Scores
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.setup import setup

B, T, MEMBERS = 12, 5, 3


def by_hand(name, points, value, acted):
    """Advantage [B, T] of what was played."""
    found = np.zeros((B, T))
    for b in range(B):
        later, following = 0.0, 0.0
        for t in reversed(range(acted[b].sum())):
            later = points[b, t] + following - value[b, t] + 0.95 * later
            found[b, t], following = later, value[b, t]
    if name == "ppo":
        return np.where(acted, (found - found[acted].mean()) / found[acted].std(), 0)
    for b in range(B):
        group = points[b // MEMBERS * MEMBERS :][:MEMBERS].sum(1)
        if name == "rloo":
            found[b] = acted[b] * (group[b % MEMBERS] - np.delete(group, b % MEMBERS).mean())
        else:
            found[b] = acted[b] * (group[b % MEMBERS] - group.mean()) / (group.std() + 1e-6)
    return found


@jax.jit
def credited_of(points, value, acted, hparams):
    episodes = SimpleNamespace(acted=acted[..., None], reward=points[:, :, None, None])
    acts = episodes.acted, jnp.repeat(jnp.arange(B // MEMBERS), MEMBERS), B // MEMBERS
    return estimate_advantages(SimpleNamespace(episodes=episodes, turn_value=value[..., None], acts=acts), hparams, ())


@pytest.mark.parametrize("name", ["ppo", "rloo", "grpo"])
@pytest.mark.parametrize("imitates", [True, False])
def test_credit(name, imitates):
    rng, hparams = np.random.default_rng(0), STUDY.arms[f"{name}/50"].traced_hparams
    acted = np.arange(T)[None] < rng.integers(1, T + 1, B)[:, None]
    points, value = acted * (rng.random((B, T)) < 0.4) / 2, rng.normal(size=(B, T))
    for cost in (1.0, 4.0):
        found = credited_of(points, value, acted, {**hparams, "cost": cost, "imitates": imitates})
        wanted = acted if imitates else by_hand(name, points, value, acted)
        np.testing.assert_allclose(np.where(acted, found.advantage[..., 0], 0), wanted, atol=1e-3)
        rows = B / cost if imitates else B
        assert (np.asarray(found.trained[..., 0]) == acted & (np.arange(B) < rows)[:, None]).all()
        for x, other in IMITATED.items():
            assert float(found.hparams[x]) == pytest.approx(other if imitates else float(hparams[x]))


def test_the_surrogate_of_what_is_imitated_has_the_gradient_of_cross_entropy():
    logp, mask = -jax.random.uniform(jax.random.key(0), (4, 6)), jax.random.bernoulli(jax.random.key(1), 0.5, (4, 6))
    rest = dict.fromkeys(("token", "turn", "value_target", "old_value", "episode", "seat", "policy", "role"), mask)
    batch = losses.Batch(behaviour_logp=logp * 0, mask=mask, advantage=mask * 1.0, reference_logp=None, **rest)
    hparams = {**PPO.all_hparams, "entropy": 0.0, "value": 0.0}
    own = jax.grad(lambda x: surrogate(Scores(x, x * 0), batch, hparams)[0].value)(logp)
    np.testing.assert_allclose(own, jax.grad(lambda x: losses.cross_entropy(x, mask)[0].value)(logp), atol=1e-6)


def explored(place, order):
    """Actions of who walks to the wanted thing if it has seen where that lies, else to the nearest new room."""
    at, seen, said = 1, {1}, []
    for thing in order:
        while at != place[thing]:
            goal = (
                place[thing] if place[thing] in seen else min({0, 1, 2} - seen, key=lambda room: (abs(room - at), room))
            )
            said.append(0 if goal < at else 1)
            at += -1 if goal < at else 1
            seen.add(at)
        said.append(2 + thing)
    return said


@pytest.fixture(scope="module")
def games():
    """A batch of the learner's, and one of demonstrations."""
    parts = setup(dataclasses.replace(PPO, groups=4, group_size=8), "tiny", sharding.mesh(), loading.load)
    key = jax.random.key(1)

    @jax.jit
    def play():
        run = begin.init_run(parts, jax.random.key(0))
        played = step.play(parts, run.learners.weights, key)
        rows = {name: own_prompts(rows) for name, rows in played.rows.items()}
        return played.replace(rows=rows), demonstrate(parts, key)

    return play()


@pytest.mark.long
def test_demonstrations_are_games_of_the_explorer_each_another(games):
    played, shown = games
    of = lambda tree: (jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)])
    assert of(played.replace(episodes=None)) == of(shown.replace(episodes=None))
    every = [
        explored(*deal)
        for deal in itertools.product(itertools.product(range(3), repeat=3), itertools.permutations(range(3), 2))
    ]
    length = np.asarray(shown.episodes.acted.sum((1, 2)))
    said = [row[:n].tolist() for row, n in zip(np.asarray(shown.episodes.action[..., 0]), length, strict=True)]
    assert all(one in every for one in said) and len({*map(tuple, said)}) > 16
    assert (np.asarray(shown.episodes.measured[..., 0].sum((1, 2))) == 1).all()
    assert max(map(len, every)) <= PPO.game.budget and sum(map(len, every)) / len(every) == pytest.approx(40 / 9)


def test_a_prompt_of_its_own_for_each_row_changes_no_token(games):
    rows = games[0].rows["learner"]
    prompts = np.asarray(rows.prompts.tokens)
    assert len(prompts) == len(rows.prompt) == 32
    assert all((prompts[i] == prompts[i // 8 * 8]).all() for i in range(32))


def test_the_arms_differ_in_numbers_alone():
    assert len({repr(dataclasses.replace(arm, hparams={}, selection={})) for arm in STUDY.arms.values()}) == 1
