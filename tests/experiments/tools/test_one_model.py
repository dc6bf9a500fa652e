"""A team's dialogues as rows of one model against the team's own rows, the loss on told tokens, and counts of games."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tools.one_model import APART, SINGLE, TEAM, clipped_loss, estimate_advantages
from jaxmarl_llm.devices import sharding
from jaxmarl_llm.methods.chain_of_agents import imitate_team, rows_as_one, train_side_by_side
from jaxmarl_llm.models import loading
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.losses import Batch, Scores
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.training.begin import init_run
from jaxmarl_llm.training.setup import TINY, setup
from tests.support.recipe_plays import games

GROUPS = 16


@pytest.fixture(scope="module")
def played():
    """Dialogues of two scripts, their rows, and the rows of one model."""
    tokenizer, single = TEAM.tokenizer(TEAM.game), SINGLE.tokenizer(SINGLE.game)
    policy_set = PolicySet(single, ("model",))
    team = Rollout(APART.game, {"team": PolicySet(tokenizer, ("novice",))}, Lineup((("novice",) * 2,) * GROUPS, 1), 1)

    @jax.jit
    def play(key):
        dialogues = team({"team": {}}, key)
        return dialogues, rows_as_one(SINGLE.game, policy_set, 1, dialogues, key)

    return tokenizer, single, *jax.device_get(play(jax.random.key(0)))


def test_the_row_of_one_model_has_both_seats_answers_in_turn(played):
    tokenizer, single, team, (rows, sampled) = played
    texts = lambda reader, tokens: [reader.token_bytes[token].decode() for token in tokens]
    lengths = set()
    for g in range(GROUPS):
        said = [[], []]
        for row in np.flatnonzero(team.rows["team"].episode == g):
            mine = team.rows["team"]
            said[mine.seat[row]] = texts(tokenizer, mine.tokens[row][mine.loss_mask[row]])
        alternately = [said[t % 2][t // 2] for t in range(sum(map(len, said)))]
        assert texts(single, rows.tokens[g][rows.loss_mask[g]]) == alternately
        assert texts(single, sampled.token[g][sampled.mask[g]]) == alternately
        told = texts(single, rows.tokens[g, : rows.length[g]][~rows.loss_mask[g, : rows.length[g]]])
        for answer in said[0]:
            assert any(f"They answer {answer}." in text for text in told)
        assert sum("Rejected" in text for text in told) == len(said[0]) - 1
        lengths.add(len(alternately))
    assert len(lengths) > 1


def test_told_tokens_have_a_gradient_of_exactly_zero(played):
    *_, (rows, sampled) = played

    def loss(table):
        logp = jnp.take_along_axis(table, sampled.at, 1)
        return losses.cross_entropy(logp, sampled.mask)[0].sum

    slope = jax.grad(loss)(jnp.full(rows.tokens.shape, -1.0))
    np.testing.assert_array_equal(slope != 0, rows.loss_mask)
    assert (~rows.loss_mask & (np.arange(rows.tokens.shape[1]) < rows.length[:, None])).sum() > GROUPS


@pytest.mark.parametrize("recipe", (TEAM, SINGLE), ids=("team", "one"))
def test_success_answers_tokens_and_silent_groups_against_loops(recipe):
    experience = games(replace(recipe, groups=24, group_size=3), rows=True)
    credit = jax.device_get(jax.jit(lambda hparams: estimate_advantages(experience, hparams, ()))({}))
    episodes = jax.device_get(experience.episodes)
    right = episodes.reward[:, :, 0, 0].sum(1)
    assert credit.metrics["success"] == pytest.approx(right.mean(), abs=1e-6) and 0 < right.mean() < 1
    answers = [(episodes.acted[b] & (episodes.role[b] == 0)).sum() for b in range(len(right))]
    assert credit.metrics["answers"] == pytest.approx(np.mean(answers), abs=1e-6)
    silent = np.array([len({*right[episodes.group == g]}) == 1 for g in range(24)])
    assert 0 < silent.sum() < 24
    np.testing.assert_array_equal(credit.trained, episodes.acted & ~silent[episodes.group][:, None, None])
    (rows,) = jax.device_get([*experience.rows.values()])
    said = rows.loss_mask.sum()
    share = len(rows.tokens) // len(rows.prompts.length)
    told = sum(rows.prompts.length[row // share] + rows.length[row] for row in range(len(rows.tokens))) - said
    assert credit.metrics["tokens said"] == pytest.approx(said / 72, rel=1e-5) and said == episodes.acted.sum()
    assert credit.metrics["tokens read"] == pytest.approx(told / 72, rel=1e-5)


def test_the_dual_clip_bounds_the_loss_of_grown_tokens_at_ten():
    empty = dict.fromkeys(("token", "turn", "value_target", "old_value", "episode", "seat", "policy", "role"))
    batch = Batch(
        **empty, behaviour_logp=jnp.full((1, 2), -6.0), advantage=-jnp.ones((1, 2)), mask=jnp.ones((1, 2)) > 0
    )
    total, _ = clipped_loss(
        Scores(jnp.array([[-6.0, 0.0]]), jnp.zeros((1, 2))), batch, dict.fromkeys(("clip_low", "clip_high"), 0.2)
    )
    assert total.sum == pytest.approx(1 + 10)


@pytest.mark.long
def test_runs_side_by_side_play_the_same_deals_and_imitation_leaves_the_team_as_it_is():
    small = {"groups": 4, "group_size": 4, "updates": 3, "minibatches": 1, "warm_start": ()}
    recipes = replace(TEAM, **small), replace(SINGLE, **small), replace(APART, groups=8, warm_start=())
    team, single, apart = (setup(x, TINY, sharding.mesh(), loading.load) for x in recipes)

    @jax.jit
    def run(key):
        taught, fresh = init_run(team, key), init_run(single, key)
        student = imitate_team(single, apart, taught.learners.weights, fresh, key, 20)
        again = train_side_by_side(single, (student, student, fresh), (0.0, 1e-2, 0.0), key)
        return fresh, student, again["success"], again["gradient_norm/model"]

    fresh, student, success, norm = jax.device_get(run(jax.random.key(0)))
    moved = jax.tree.map(lambda a, b: (a != b).any(), fresh.learners.weights, student.learners.weights)
    assert all(jax.tree.leaves(moved))
    assert success[0, 0] == success[1, 0] and norm[0, 0] == norm[1, 0]
    assert norm[0, 2] != norm[1, 2] and norm[0, 0] != norm[2, 0]
