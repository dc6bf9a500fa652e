"""One seat for a whole team: the states, texts and rewards of the team game, told once, and answers played again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.as_one import AsOne, Replayed
from jaxmarl_llm.environments.around.one_by_one import OneByOne
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.teams.team_search import RouterSearch
from jaxmarl_llm.environments.teams.team_tasks import SolverVerifier
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from tests.support.team_plays import written

TEAM = SolverVerifier(Arithmetic(4, "+"), loops=2)
GAMES = {"verifier": TEAM, "search": RouterSearch(keys=3, values=3), "at once": OneByOne(MatrixGame(rounds=2))}


def play(game, n=24):
    """Random games of a team, and the same answers in the game of one seat: records [games, turns, ...]."""
    one = AsOne(game)

    def run(key):
        (state, view), (alone, seen) = game.reset(key, jnp.int32(0)), one.reset(key, jnp.int32(0))

        def turn(carry, t):
            state, view, alone, seen = carry
            over, event = view.terminated, jax.random.fold_in(key, t)
            logits = jnp.where(view.legal, 0.0, -jnp.inf)
            noise = jax.random.categorical(jax.random.fold_in(event, 1), jnp.where(view.acting[:, None], logits, 0.0))
            answer = noise[jnp.argmax(view.acting)][None]
            after = (*game.step(state, noise, event)[:2], *one.step(alone, answer, event)[:2])
            paid = game.step(state, noise, event)[2].mean(0), one.step(alone, answer, event)[2][0]
            paid = jax.tree.map(lambda x: jnp.where(over, 0, x), paid)
            carry = jax.tree.map(lambda new, old: jnp.where(over, old, new), after, carry)
            return carry, {"carry": carry, "before": (view, seen), "over": over, "paid": paid}

        record = jax.lax.scan(turn, (state, view, alone, seen), jnp.arange(game.turns))[1]
        return record | {"prompt": (game.prompt(state), one.prompt(alone))}

    keys = jax.random.split(jax.random.key(0), n)
    return one, jax.device_get(jax.jit(jax.vmap(run))(keys))


@pytest.mark.parametrize("name", GAMES)
def test_states_texts_and_rewards_are_those_of_the_team(name):
    game = GAMES[name]
    one, record = play(game)
    state, _, alone, _ = record["carry"]
    jax.tree.map(np.testing.assert_array_equal, state, alone.game)
    np.testing.assert_allclose(*record["paid"])
    team, single = record["before"]
    lines = 0
    for g, t in np.argwhere(~record["over"]):
        (seat,) = np.flatnonzero(team.acting[g, t])
        assert single.acting[g, t].all() and single.role[g, t, 0] == team.role[g, t, seat]
        assert single.grammar[g, t, 0] == team.grammar[g, t, seat]
        np.testing.assert_array_equal(single.legal[g, t, 0], team.legal[g, t, seat])
        told = [written(game.observation, row) for row in team.phrases[g, t]]
        order = [*(a for a in range(game.agents) if a != seat and told[a]), seat]
        blocks = [f"Seat {a + 1}: {told[a]}" if told[a] else f"Seat {a + 1}." for a in order]
        assert written(one.observation, single.phrases[g, t, 0]) == " ".join(blocks)
        lines += 1
    assert lines > 24


def test_the_rules_of_all_seats_stand_once():
    one, record = play(TEAM)
    for told, single in zip(*record["prompt"], strict=True):
        text, (solver, verifier) = written(one.rules, single[0]), (written(TEAM.rules, row) for row in told)
        question = solver[solver.index(" What is") :]
        assert verifier.endswith(question) and text.count(question) == 1
        wanted = f" Seat 1 is told: {solver} Seat 2 is told: {verifier.removesuffix(question)}"
        assert text == "You answer for the seats 1, 2, and get the mean of their points." + wanted


def test_without_listening_rows_have_room_for_the_acting_seat_alone():
    narrow, wide = AsOne(TEAM, listening=False), AsOne(TEAM)
    assert len(narrow.observation) == 2 and len(wide.observation) == 6
    seen = [game.reset(jax.random.key(0), jnp.int32(0))[1].phrases for game in (narrow, wide)]
    np.testing.assert_array_equal(seen[0], seen[1][:, -2:])


@pytest.mark.parametrize("script", ("correct", "random"))
def test_recorded_answers_play_the_same_games(script):
    game, key, groups = TEAM, jax.random.key(1), 12

    @jax.jit
    def both():
        team = Rollout(game, {}, Lineup(((script,) * 2,) * groups, 1))({}, key).episodes
        answers = jnp.where(team.acted, team.action, 0).sum(2)
        line_up = Lineup((("recorded",),) * groups, 1)
        return team, Rollout(Replayed(AsOne(game)), {}, line_up)({}, key, answers).episodes

    team, again = both()
    np.testing.assert_array_equal(team.acted.sum(2), again.acted[..., 0])
    np.testing.assert_array_equal(jnp.where(team.acted, team.action, 0).sum(2), again.action[..., 0])
    np.testing.assert_allclose(team.reward.mean(2), again.reward[:, :, 0])
    assert (again.action[..., 0] >= 0).all() and again.terminated.all()


def test_the_contract_and_refusals():
    one = AsOne(TEAM)
    check_game(one)
    states, chance = one.initial_states()
    assert len(states.seat) == 16 and chance.sum() == pytest.approx(1)
    with pytest.raises(ValueError, match="asks 2 seats at once"):
        AsOne(MatrixGame(rounds=2))
    with pytest.raises(ValueError, match="hear no free words"):
        AsOne(MatrixGame(talk=True))
    with pytest.raises(ValueError, match="they are its deal"):
        Replayed(one).reset(jax.random.key(0), jnp.int32(0))
