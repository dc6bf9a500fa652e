"""Facts beside the reward: which games measure, what reads facts, and how wrappers pass them on."""

from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.environments.around.foresight import Foreseen
from jaxmarl_llm.environments.around.forgetful import Forgetful
from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.around.one_by_one import OneByOne
from jaxmarl_llm.environments.around.retry import Retry
from jaxmarl_llm.environments.around.wrappers import Illegal
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.environments.helpers import choice, make_view
from jaxmarl_llm.methods.population import seat_scores
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.trajectory import Episodes, Trajectory
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.left_out import leave_out
from jaxmarl_llm.training.recipe import component_returns, mean_return, measure_totals
from tests.support.team_plays import played

MEASURES = {
    "advised": ("followed", "judged"),
    "calls": ("posed",),
    "corpus": ("valid", "hops", "false", "replaced"),
    "discussion": ("correct", "judged"),
    "explanations": ("question",),
    "fact_memory": ("known",),
    "farm": ("progress",),
    "flow": ("step", "slip"),
    "graded": ("mentions", "single", "sure", "polite"),
    "handover": ("first", "fits"),
    "help_desk": ("asked",),
    "instruments": ("right",),
    "letters": ("details", "praise"),
    "lock_chain": ("progress",),
    "refereed": ("correct", "tau"),
    "rooms": ("won",),
    "sum_duel": ("right",),
    "team_graph": ("gain", "agents", "idle"),
}
PAID = {
    "advised": ("alone", "shift"),
    "calls": ("correct", "cost"),
    "corpus": ("correct", "proposal"),
    "discussion": ("solve", "evaluate", "format"),
    "explanations": ("similarity",),
    "fact_memory": ("coverage", "retrieved", "right"),
    "farm": ("outcome", "steps"),
    "flow": ("solved",),
    "graded": ("correct",),
    "handover": ("opened", "guided"),
    "help_desk": ("solved",),
    "instruments": ("solved",),
    "letters": ("liked",),
    "lock_chain": ("solved",),
    "refereed": ("rule", "judged", "rank"),
    "rooms": ("points",),
    "team_graph": ("accuracy", "cost"),
}
B, T = 4, 2


def advantage(of):
    def found(episodes):
        acts = episodes.acted, episodes.group, 2
        return estimator(of)(SimpleNamespace(episodes=episodes, learning_acts=acts), {}, ()).advantage

    return found


REWARDS = {
    "total_reward": lambda episodes: episodes.total_reward,
    "team_reward": lambda episodes: episodes.team_reward,
    "mean_return": mean_return,
    "component_returns": lambda episodes: component_returns(episodes, first=0),
    "seat_scores": seat_scores,
    "leave_out": lambda episodes: leave_out(Trajectory(episodes, {}, {}, {}))[1],
    **{of.__name__: advantage(of) for of in (advantages.grpo, advantages.rloo, advantages.reinforce_plus_plus)},
}


@cache
def readers(agents: int, components: int, measures: int) -> list[str]:
    """The functions of `REWARDS`, and `measure_totals`, whose program reads the facts of episodes of these sizes."""
    found = []
    for name, function in {**REWARDS, "measure_totals": lambda episodes: measure_totals(episodes, x=0)}.items():

        def of(measured, function=function):
            zeros = jnp.zeros((B, T, agents), jnp.int32)
            over = jnp.ones(B, bool)
            episodes = Episodes(
                jnp.ones((B, T, agents, components)), zeros == 0, zeros, (zeros == 0)[..., None], zeros == 0, zeros,
                zeros, jnp.repeat(jnp.arange(2), B // 2), jnp.zeros(B, jnp.int32), over, ~over, measured=measured,
            )  # fmt: skip
            return function(episodes)

        program = jax.make_jaxpr(of)(jnp.zeros((B, T, agents, measures))).jaxpr
        read = [x for equation in program.eqns for x in equation.invars] + program.outvars
        if any(x is program.invars[0] for x in read):
            found.append(name)
    return found


@pytest.mark.parametrize("name", REGISTRY)
def test_no_reward_and_no_estimator_reads_what_a_game_measures(name):
    game = REGISTRY[name]()
    measures = Extras(game).measures
    assert measures == MEASURES.get(name, ()) and game.components == PAID.get(name, game.components)
    assert readers(game.agents, len(game.components), max(1, len(measures))) == ["measure_totals"]


class State(struct.PyTreeNode):
    turn: jax.Array  # int32
    said: jax.Array  # int32 [2]


class Sums:
    """Two seats say 0 to 2 at once, twice; it pays nothing and measures what a seat said, times 10 in turn 1."""

    agents, turns, actions, roles = 2, 2, 3, ("player",)
    components, measures = ("points",), ("said",)
    rules, observation = (("Say.",),), (("Now.",),)
    grammars = (choice(("0", "1", "2")),)
    scripts = {  # noqa: RUF012
        "mine": lambda state, seat, key: 1 + seat,
        "none": lambda state, seat, key: jnp.int32(-1),
    }

    def reset(self, key, group):
        state = State(jnp.int32(0), jnp.zeros(2, jnp.int32))
        return state, self.view(state)

    def prompt(self, state):
        return jnp.zeros((2, 1), jnp.int32)

    def step(self, state, action, key):
        measured = (action * jnp.where(state.turn == 1, 10, 1)).astype(jnp.float32)[:, None]
        after = State(state.turn + 1, action)
        return after, self.view(after).replace(measured=measured), jnp.zeros((2, 1))

    def view(self, state):
        return make_view(self, [0], True, state.turn >= 2)


GAME = Sums()
WRAPPED = {
    "noisy": Noisy(GAME, (Errs("novice", "mine", 1.0),)),
    "foreseen": Foreseen(GAME),
    "one by one": OneByOne(GAME),
    "forgetful": Forgetful(GAME),
    "again": Retry(GAME, attempts=2),
    "illegal": Illegal(GAME, then="retry"),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapper_passes_each_fact_on_once(name):
    game = WRAPPED[name]
    check_game(game)
    facts = played(game, "mine", games=1)["measured"][:, 0].sum(0)[:, 0]
    times = 2 if name == "again" else 1
    want = [1, 10, 2, 20] if name == "forgetful" else [11 * times, 22 * times]
    np.testing.assert_array_equal(facts, want)


def test_nothing_is_measured_in_a_turn_in_which_a_seat_is_asked_again():
    assert not played(WRAPPED["illegal"], "none", games=1)["measured"].any()
    mixed = played(WRAPPED["illegal"], "mine", "none", games=1)["measured"]
    assert not mixed.any()
