"""The compiled program of a rollout: the same games with and without jit, for one seat or all rows, for any turns.

The long cases compile two or three rollouts of a game, the slow ones those of further games; the short ones compile
one.
"""

from dataclasses import dataclass, field, replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.environments.around.subgoals import Subgoals
from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.solo.rooms import Rooms
from jaxmarl_llm.keys import DEAL, batch_keys
from jaxmarl_llm.models import decoder, packing
from jaxmarl_llm.models.attention import MANY
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.rollout.policy import Sampling, allowed
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.rollout.trajectory import gather_sampled
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from tests.support.rollout_cases import BYTES, FAST, LORA, WORDS, Case, build, tiny
from tests.support.toys import Relay


@dataclass(frozen=True)
class Everybody(Around):
    """A game that does not say that its seats alternate."""

    alternating = False

    @property
    def seat_turns(self) -> int:
        return self.game.turns


SLOW = [pytest.param(game, marks=pytest.mark.slow) for game in ("kuhn_poker", "simple_negotiation", "mini_hanabi")]


@pytest.mark.long
@pytest.mark.parametrize("game", ["whispers", *SLOW])
def test_the_seat_that_acts_alone_plays_as_all_rows_would(game):
    environment = REGISTRY[game]()
    names = tuple("abc"[: environment.agents])
    ways = tuple(Sampling(0.5 + i) for i in range(len(names)))
    policy_sets = {"lora": PolicySet(BYTES, names, tiny(BYTES.vocab_size, 4096, layers=1), LORA, sampling=ways)}
    lineup = Lineup((names, names[::-1], names[:1] * len(names)), 2)
    one, all_rows = (Case(each, policy_sets, lineup, 28) for each in (environment, Everybody(environment)))
    assert [each.rollout.layouts["lora"].alternating_seats for each in (one, all_rows)] == [environment.agents, 1]
    alone, together = (jax.jit(each.rollout)(each.weights(0), jax.random.key(2)) for each in (one, all_rows))
    jax.tree.map(np.testing.assert_array_equal, alone.episodes, together.episodes)
    few, many = alone.rows["lora"], together.rows["lora"]
    width = few.tokens.shape[1]
    less = game != "mini_hanabi"  # there all hear all
    assert few.length.max() <= width <= many.tokens.shape[1] - less
    assert one.rollout.max_sampled_tokens("lora") <= all_rows.rollout.max_sampled_tokens("lora") - less
    for name in ("tokens", "loss_mask", "turn", "grammar_state", "tokens_left"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:, :width], err_msg=name)
    np.testing.assert_array_equal(few.length, many.length)
    np.testing.assert_allclose(few.logp, many.logp[:, :width], atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "game", ["whispers", *(pytest.param(game, marks=pytest.mark.slow) for game in ("leduc_poker", "router_search"))]
)
def test_rows_packed_play_as_all_rows_would(game, monkeypatch):
    environment = REGISTRY[game]()
    names = tuple("abc"[: environment.agents])
    ways = tuple(Sampling(0.5 + i) for i in range(len(names)))
    policy_sets = {"lora": PolicySet(BYTES, names, tiny(BYTES.vocab_size, 4096, layers=1), LORA, sampling=ways)}
    lineup = Lineup((names, names[::-1], names[:1] * len(names)), 6)
    keys = jax.random.split(jax.random.key(2), 2)
    played = []
    for heavy in (2**18, 0):
        monkeypatch.setattr(packing, "HEAVY", heavy)
        setting = Case(environment, policy_sets, lineup, 28)
        both = jax.jit(jax.vmap(setting.rollout, (None, 0)))(setting.weights(0), keys)
        played.append(both)
        if not heavy:  # alone as in the same program beside another
            alone = jax.jit(setting.rollout)(setting.weights(0), keys[0])
            np.testing.assert_array_equal(alone.rows["lora"].tokens, both.rows["lora"].tokens[0])
    plain, packed = played
    jax.tree.map(np.testing.assert_array_equal, plain.episodes, packed.episodes)
    one, other = plain.rows["lora"], packed.rows["lora"]
    for name in ("tokens", "length", "loss_mask", "turn", "grammar_state", "tokens_left"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    np.testing.assert_allclose(one.logp, other.logp, atol=1e-5)
    assert (packed.utilisation["lora"] > plain.utilisation["lora"]).all()


def test_trained_tokens_of_a_script_had_an_alternative():
    game = Subgoals(Rooms(2, 2, 2, budget=6, reminds=True))  # after "keep" only one subgoal can be named
    teacher = PolicySet(SymbolTokenizer(strings(game)), ("follower",))
    setting = Case(game, {"teacher": teacher}, Lineup((("follower",),), 8), 1)
    played, layout = jax.jit(setting.rollout)(setting.weights(0), jax.random.key(2)), setting.rollout.layouts["teacher"]
    rows = played.rows["teacher"]
    sampled = gather_sampled(rows, played.episodes.legal, setting.rollout.max_sampled_tokens("teacher"))
    several = allowed(layout.tables, sampled.grammar_state, sampled.legal, sampled.tokens_left).sum(-1) > 1
    assert several[sampled.mask].all()
    acted = played.episodes.acted  # a token an answer
    choices = int((acted & (played.episodes.legal.sum(-1) > 1)).sum())
    assert 0 < int(sampled.mask.sum()) == choices < int(acted.sum())


@pytest.mark.slow
def test_jit_changes_nothing():
    game = MatrixGame(rounds=2)
    symbols = SymbolTokenizer(strings(game))
    config = Config(symbols.vocab_size, 8, 8, 1, 1, 1, 8, 32)
    setting = Case(game, {"full": PolicySet(symbols, ("a",), config)}, Lineup((("a", "tit_for_tat"),), 1), 1)
    weights, key = setting.weights(0), jax.random.key(2)
    fast = jax.jit(setting.rollout)(weights, key)
    with jax.disable_jit():
        slow = setting.rollout(weights, key)
    chex.assert_trees_all_close(fast, slow, atol=1e-5)


def test_a_secret_stays_with_the_seat_that_was_told():
    config = Config(BYTES.vocab_size, 8, 8, 1, 1, 1, 8, 1024)
    policy_set = {"full": PolicySet(BYTES, ("a",), config)}
    lineup = Lineup((("fixed", "a", "a"),), 4)
    weights, key = Case(Relay(), policy_set, lineup, 9).weights(0), jax.random.key(7)

    @FAST
    def play(shift):
        game = Relay(shift=shift)
        state, _ = game.reset(batch_keys(key, DEAL, jnp.int32(0))[0], jnp.int32(0))
        return Rollout(game, policy_set, lineup, 9)(weights, key), game.prompt(state)

    (a, told), (b, other) = play(0), play(1)
    assert (told[0] != other[0]).any() and (told[1:] == other[1:]).all()
    assert not np.array_equal(a.episodes.reward, b.episodes.reward)  # the secret is another, points say so
    chex.assert_trees_all_equal(a.rows, b.rows)


@dataclass(frozen=True)
class Counted(Relay):
    """Tells the host of every step that is played."""

    steps: list = field(default_factory=list, compare=False)

    def step(self, state, action, key):
        jax.debug.callback(lambda turn: self.steps.append(int(turn)), state.turn)
        return super().step(state, action, key)


def test_turns_stop_when_every_game_is_over():
    game = Counted(turns=30)
    game = replace(game, steps=[])
    rollout = Rollout(game, {}, Lineup((("lucky", "fixed", "lucky"), ("fixed", "lucky", "lucky")), 2))
    trajectory = jax.device_get(FAST(rollout)({}, jax.random.key(0)))
    jax.effects_barrier()
    acted = trajectory.episodes.acted.any(2)
    length = acted.sum(1)
    assert (acted == (np.arange(30)[None] < length[:, None])).all()
    assert len(game.steps) == 4 * length.max() < 4 * 30
    assert (
        not trajectory.episodes.reward[~acted].any()
        and not trajectory.episodes.role[~acted.any(0)[None] & ~acted].any()
    )


def test_the_program_does_not_grow_with_the_turns():
    caches: list[bool] = []  # whether they are long, and so read in blocks

    def size(rounds: int) -> int:
        rollout = build(replace(WORDS, rounds=rounds), context=4096)
        params = jax.eval_shape(partial(decoder.init, tiny(BYTES.vocab_size)), jax.random.key(0))
        caches.append(rollout.layouts["one"].slots > MANY)
        return str(jax.make_jaxpr(rollout)({"one": {"params": params}}, jax.random.key(0))).count(" = ")

    assert size(2) == size(5) > 100 and size(12) == size(40) > 100
    assert caches == [False, False, True, True]
