"""What wrappers add to a game's texts stands apart from them; `test_base` says so of the games themselves.

The long cases compile further wrappers; the short ones take two of them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxmarl_llm.environments.around.announced import Announced, Announcement
from jaxmarl_llm.environments.around.foresight import Foreseen
from jaxmarl_llm.environments.around.forgetful import Forgetful
from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.around.one_by_one import OneByOne
from jaxmarl_llm.environments.around.oracle import Oracle
from jaxmarl_llm.environments.around.retry import Retry
from jaxmarl_llm.environments.around.wrappers import Formatted, Illegal
from jaxmarl_llm.environments.social.contributions import Contributions, Terms
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.social.public_goods import PublicGoods
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.environments.solo.rooms import Rooms
from jaxmarl_llm.environments.teams.team_search import RouterSearch
from tests.support.told import neighbours, played, run_together


class Told(Announced):
    """Every seat is told the first phrase of each field."""

    def reset(self, key: jax.Array, group: jax.Array, given: Any = None) -> tuple[Any, Any]:
        return super().reset(key, group, Announcement(jnp.zeros((self.agents, len(self.fields)), jnp.int32)))


GIVING = Contributions(agents=3, terms=Terms(partial=True))
GAMES = {
    "announced": Told(GIVING, ((" You meet strangers.",), (" They learn.",))),
    "predictions": Foreseen(MatrixGame(rounds=2)),
    "a plan": Oracle(GIVING, "plan", "always_give"),
    "the state": Oracle(Rooms(), "state"),
    "attempts": Retry(LockChain(locks=3, turns=4), 2),
    "attempts of a team": Retry(RouterSearch(), 2),
    "one by one": OneByOne(PublicGoods()),
    "forgetful": Forgetful(GIVING),
    "noisy": Noisy(GIVING, (Errs("clumsy", "always_give", 0.5),)),
    "retried answers in a format": Illegal(Formatted(GIVING, "boxed"), "retry"),
}
QUICK = ("announced", "a plan")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name not in QUICK)) for name in GAMES])
def test_texts_of_a_wrapper_read_as_sentences(name):
    pairs = neighbours(GAMES[name], *played(GAMES[name], 12)[:2])
    assert pairs and not [pair for pair in pairs if run_together(*pair)]


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ("Player 1 gave 2.", "How many?", True),
        ("They bet", "Your turn.", True),
        ("They say: ", " Choose.", True),
        ("(3 left)", "Choose.", True),
        ("They asked", '"why"', True),
        ("Player 1 gave 2.", " How many?", False),
        ("Player 1 gave 2.\n", "How many?", False),
        ("Player 1 gave ", "2", False),
        ("Player 1 gave 2", ".", False),
        ("words", "\nChoose.", False),
    ],
)
def test_two_texts_run_together_without_a_space_or_with_two(before, after, wrong):
    assert run_together(before, after) == wrong
