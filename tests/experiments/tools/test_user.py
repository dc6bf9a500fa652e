"""Users of each arm's batches, questions against a loop, and words of users and tools, which are never trained."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tools.user import ASKED, GROUPS, SERVED, STUDY, TAUGHT, choose_users, measure_served
from jaxmarl_llm.environments.teams.help_desk import DYNAMIC, RECORDED, STATIC
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.losses import Batch, Scores
from tests.support.recipe_plays import differences, games

HALF = [DYNAMIC, STATIC] * (GROUPS // 2)
USERS = {"dynamic": [DYNAMIC] * GROUPS, "static": [STATIC] * GROUPS, "recorded": [RECORDED] * GROUPS, "mixed": HALF}


def test_users_of_a_batch_and_one_program():
    for name, arm in STUDY.arms.items():
        deal = choose_users(arm.traced_hparams, (), jax.random.key(0), jnp.int32(3)).deal
        assert deal.dtype == jnp.int32 and deal.tolist() == USERS.get(name, USERS["dynamic"])
        assert differences(TAUGHT, arm) <= {"hparams", "selection"}, name


@pytest.mark.long
def test_only_words_of_the_assistant_are_trained():
    """Of the random assistant's games, the gradient at each token of a row: 0 at all that users and tools say."""
    played = games(replace(TAUGHT, groups=4, group_size=4), rows=True)
    episodes, rows, sampled = played.episodes, played.rows["assistant"], played.sampled["assistant"]
    found = jax.jit(measure_served)(episodes)
    questions = [(episodes.acted[b, :, 0] & (episodes.action[b, :, 0] < 3)).sum() for b in range(16)]
    assert found[ASKED] == pytest.approx(np.mean(questions)) and 0 <= found[SERVED] <= 1
    assert (played.learns == [True, False]).all() and not np.asarray(rows.seat).any()
    empty = dict.fromkeys(("turn", "value_target", "old_value", "episode", "seat", "policy", "role"))
    advantage = jnp.ones(sampled.mask.shape)
    batch = Batch(**empty, token=sampled.token, behaviour_logp=sampled.behaviour_logp, mask=sampled.mask,
                  advantage=advantage)  # fmt: skip

    @jax.jit
    @jax.grad
    def slope(logp):
        scores = Scores(jnp.take_along_axis(logp, sampled.at, 1), jnp.zeros(sampled.mask.shape))
        return losses.ppo(scores, batch, TAUGHT.traced_hparams)[0].sum

    tokens, vocabulary = np.asarray(rows.tokens), TAUGHT.tokenizer(TAUGHT.game)
    words = [int(vocabulary.encode(text)[0]) for _, text in TAUGHT.game.grammars[0][0].options]
    said = np.isin(tokens, words) & (np.arange(tokens.shape[1]) < np.asarray(rows.length)[:, None])
    np.testing.assert_array_equal(np.asarray(slope(rows.logp)) != 0, said)
    assert said.sum() == np.asarray(episodes.acted)[..., 0].sum() < np.asarray(rows.length).sum()
