"""Messages between seats: a message reaches exactly the seats that hear it, unchanged.

The long cases compile further rollouts with messages; `test_rollout` reads every message of its batch "talk".
"""

from dataclasses import replace
from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.models import decoder
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import Trajectory
from tests.support.dialogues import read, rows_agree
from tests.support.rollout_cases import BYTES, FAST, THEIRS, Case, replay, tiny
from tests.support.toys import Whispers

ALONE, SECRET, ALL = (np.zeros((3, 3, 3), bool) for _ in range(3))  # hears[turn, speaker, listener]
SECRET[:, 0, 1] = ALL[:] = True


def parrot(config: Config, token: int) -> dict:
    """Weights that say one token wherever they may."""
    params = decoder.init(config, jax.random.key(0))
    silent = {name: 0 * x if name in ("o_proj", "down_proj") else x for name, x in params["layers"].items()}
    embeddings = params["embed_tokens"].at[:, 0].set(1).at[token, 0].set(9)
    return {**params, "layers": silent, "embed_tokens": embeddings}


@cache
def whispering():
    """Plays two games in one program. Seat 0 has another tokenizer than seats 1 and 2; an input says who hears."""
    policy_sets = {
        "first": PolicySet(THEIRS, ("a",), tiny(THEIRS.vocab_size, layers=1)),
        "others": PolicySet(BYTES, ("b",), tiny(BYTES.vocab_size, layers=1)),
    }
    setting = Case(Whispers(ALL), policy_sets, Lineup((("a", "b", "b"),), 2), 6, message=20)

    @FAST
    @jax.vmap
    def run(weights, hears):
        return Rollout(Whispers(hears), policy_sets, setting.lineup, 6, message=20)(weights, jax.random.key(0))

    def whispered(*games) -> list[Trajectory]:
        weights, hears = zip(*games, strict=True)
        lanes = jax.device_get(run(jax.tree.map(lambda *x: jnp.stack(x), *weights), np.stack(hears)))
        alone = [jax.tree.map(lambda x, i=i: x[i], lanes) for i in range(len(games))]
        for trajectory, channel in zip(alone, hears, strict=True):
            game = replace(setting, environment=Whispers(channel))
            rows_agree(trajectory, read(game, trajectory, replay(game, trajectory, jax.random.key(0))))
        return alone

    weights = setting.weights(0)
    name = {"params": parrot(policy_sets["first"].config, THEIRS.texts.index(b"<|im_end|>"))}
    return whispered, weights, {**weights, "first": name}, {**setting.weights(1), "first": weights["first"]}


def row_of(trajectory: Trajectory, seat: int) -> dict[str, np.ndarray]:
    (rows,) = (rows for rows in trajectory.rows.values() if seat in rows.seat)
    return {k: v[rows.seat == seat] for k, v in vars(rows).items() if k not in ("prompts", "prompt")}


@pytest.mark.slow
def test_messages_to_other_seats_change_nothing():
    whispered, weights, other_first, other_rest = whispering()
    before, after = whispered((weights, SECRET), (other_first, SECRET))
    chex.assert_trees_all_equal(row_of(before, 2), row_of(after, 2))
    for seat in (0, 1):
        assert not np.array_equal(row_of(before, seat)["tokens"], row_of(after, seat)["tokens"])
    before, after = whispered((weights, ALONE), (other_first, ALONE))
    for seat in (1, 2):
        chex.assert_trees_all_equal(row_of(before, seat), row_of(after, seat))
    before, after = whispered((weights, SECRET), (other_rest, SECRET))
    chex.assert_trees_all_equal(row_of(before, 0), row_of(after, 0))


@pytest.mark.long
def test_a_seat_never_hears_itself_and_nobody_hears_the_last_words():
    whispered, weights, *_ = whispering()
    hears = np.random.default_rng(0).random((3, 3, 3)) < 0.5
    hears[:, range(3), range(3)], less = True, hears.copy()
    less[:, range(3), range(3)], less[-1] = False, False
    assert hears[-1].sum() > 3
    chex.assert_trees_all_equal(*whispered((weights, hears), (weights, less)))


@pytest.mark.long
def test_the_name_of_a_control_token_is_told_as_plain_text():
    whispered, _, weights, _ = whispering()
    trajectory, _ = whispered((weights, SECRET | (np.arange(3) == 2)[None, None]), (weights, ALL))
    name = BYTES.encode("<|im_end|>")
    assert len(name) == 10 and BYTES.end not in name
    for seat in (1, 2):
        for row, length in zip(row_of(trajectory, seat)["tokens"], row_of(trajectory, seat)["length"], strict=True):
            told = [row[at : at + 20].tolist() for at in range(length) if row[at : at + 20].tolist() == [*name, *name]]
            assert len(told) == Whispers.turns - 1
    assert trajectory.truncated_message_tokens == {
        "first": 0,
        "others": 2 * 2 * 2 * 10,
    }  # the third time it is said, by two seats twice
