"""The probe: one game a group with the deals of the update, and the state that it sets.

The case is long, as it compiles rollouts of two sizes.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from jaxmarl_llm.environments.solo.instruments import Instruments
from jaxmarl_llm.keys import UPDATE, key_for
from jaxmarl_llm.methods.probing import half_of_members, play_probe, probe_first
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.branching import by_entropy, first_by_probe
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, TinySize
from jaxmarl_llm.training.trainer import Trainer

REPLIES = np.arange(4) % 2 == 1


def credit(experience, hparams, state):
    return Advantages(advantages.rloo(experience.episodes.reward[..., 0], *experience.acts), state=state)


@pytest.mark.long
def test_a_probe_has_the_deals_of_the_update_and_sets_the_members_that_begin():
    recipe = Recipe(
        Instruments(rounds=2, values=5),
        seats=(("me",),),
        advantage=credit,
        arrange=lambda hparams, state, *_: Arranged(
            branch=Partial(by_entropy, first=state, base=1.0, weight=0.0, due=REPLIES)
        ),
        step=partial(probe_first, replies=REPLIES),
        init_state=half_of_members,
        budget=1,
        groups=6,
        group_size=8,
        size=TinySize(layers=1),
    )
    parts = Trainer(recipe, [recipe.all_hparams], [0]).parts
    key, hparams = jax.random.key(0), recipe.traced_hparams

    @jax.jit
    def both(key):
        run = begin.init_run(parts, key)
        again = key_for(key, UPDATE, 3)
        probe = play_probe(parts, run, again)
        after, _ = probe_first(parts, run, hparams, key, jnp.int32(3), replies=REPLIES)
        return probe, after.state, step.collect_experience(parts, run.replace(state=after.state), hparams, again, 3)[0]

    probe, first, played = both(key)
    episodes = played.episodes
    known = set()
    for b, g in enumerate(np.asarray(episodes.group)):
        if episodes.action[b, 0, 0] == probe.action[g, 0, 0]:  # the same instrument is read
            assert episodes.told[b, 1, 0] == probe.told[g, 1, 0]
            known.add(int(probe.told[g, 1, 0]))
    assert len(known) > 2 and (probe.branches.entropy > 0).all() and not probe.branches.branched.any()
    entropy = np.asarray(probe.branches.entropy)[..., 0]
    np.testing.assert_array_equal(first, first_by_probe(entropy[:, 0], entropy[:, REPLIES].mean(1), 8))
    members = np.asarray(episodes.branches.origin)[:, 0].reshape(6, 8)
    assert [len({*row}) for row in members.tolist()] == np.asarray(first)[:, 0].tolist()  # every other member is a copy
