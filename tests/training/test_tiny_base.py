"""Many tiny policies as adapters of one base: one policy set, one program, each its own.

The long cases compile updates, the slow ones of further games; the short one compiles nothing.
"""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.models import decoder, layers, lora
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.policy_files import load_policy
from jaxmarl_llm.studies.program import save_policies
from jaxmarl_llm.training import step
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe, always, component_returns, mean_return
from jaxmarl_llm.training.records import TinySize
from jaxmarl_llm.training.setup import TINY_BASE, Model
from jaxmarl_llm.training.trainer import Trainer

NAMES = tuple(f"policy_{i}" for i in range(8))
RECIPE = Recipe(
    LockChain(1, turns=1),
    seats=tuple((name,) for name in NAMES),
    advantage=estimator(advantages.rloo),
    arrange=partial(always, deal=1),
    hparams={"learning_rate": 5e-3},
    measure=partial(component_returns, solved=0),
    budget=1,
    groups=len(NAMES),
    group_size=16,
    size=TinySize(layers=1),
)


def test_the_base_itself_does_not_learn():
    with pytest.raises(ValueError, match="give its policies adapters"):
        Trainer(RECIPE, [RECIPE.all_hparams], [0], dict.fromkeys(NAMES, Model(TINY_BASE, None)))


@pytest.mark.long
def test_policies_of_one_tiny_base_learn_each_for_itself_and_can_play_elsewhere(tmp_path):
    trainer = Trainer(RECIPE, [RECIPE.all_hparams], [0], dict.fromkeys(NAMES, Model(TINY_BASE, Lora(8, 16.0))))
    ((_, policy_set),) = trainer.policy_sets.items()
    assert policy_set.policies == NAMES and len(trainer.base) == 1
    before = jax.tree.map(np.array, trainer.base)
    state = start = trainer.init()
    first = np.asarray(jax.device_get(start).learners.weights[NAMES[0]]["policy"]["q_proj"]["a"])
    for number in range(30):
        state, metrics = trainer.update(state, number)
        if number == 0:
            assert metrics["solved"][0] < 0.5
    assert metrics["solved"][0] > 0.8
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.array, trainer.base))
    ends = [np.asarray(state.learners.weights[name]["policy"]["q_proj"]["a"]) for name in NAMES]
    assert len({end.tobytes() for end in ends}) == len(NAMES) and (ends[0] != first).any()

    save_policies(trainer, state, 0, tmp_path / "policies")
    adapters = [jax.tree.map(lambda x: x[0], state.learners.weights[name]["policy"]) for name in NAMES]
    rows = np.arange(3 * len(NAMES), dtype=np.int32).reshape(-1, 3) % 7
    joined = lora.concatenate(adapters, policy_set.loras)
    (base,) = trainer.base.values()
    spoken, _ = decoder.forward(policy_set.config, base, rows, adapters=joined, policy=np.arange(len(NAMES)))
    for name, row, said in zip(NAMES[:3], rows, spoken, strict=False):
        alone = load_policy(tmp_path / "policies" / name)
        assert alone.adapter is None and alone.tokenizer.strings == policy_set.tokenizer.strings
        hidden, _ = decoder.forward(alone.model.config, alone.model.params, row[None])
        np.testing.assert_allclose(hidden[0], said, atol=2e-4)
    line_ups = ((NAMES[0],), (f"policy/{tmp_path}/policies/{NAMES[1]}",))
    other = dataclasses.replace(RECIPE, seats=line_ups, groups=2)
    played = Trainer(other, [other.all_hparams], [0])
    assert played.update(played.init(), 0)[1]["solved"].shape == (1,)


@pytest.mark.parametrize(
    ("game", "first"),  # each policy as often, or one of them more often
    [
        (KuhnPoker(), 4),
        (LockChain(2, turns=2), 5),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (KuhnPoker(), 5),
                (LockChain(2, turns=2), 4),
                (MatrixGame(rounds=2), 4),
                (MatrixGame(rounds=2), 5),
            )
        ),
    ],
)
@pytest.mark.long
def test_own_adapters_play_and_learn_as_all_ranks_behind_a_mask(game, first, monkeypatch):
    names = NAMES[:4]
    seats = tuple(tuple(names[(i + a) % 4] for a in range(game.agents)) for i in range(first) for _ in range(2))
    recipe = dataclasses.replace(
        RECIPE, game=game, seats=seats, advantage=estimator(advantages.rloo), measure=mean_return, arrange=None,
        groups=len(seats), group_size=4,
    )  # fmt: skip

    trainer = Trainer(recipe, [recipe.all_hparams], [0], dict.fromkeys(names, Model(TINY_BASE, Lora(2, 4.0))))
    run = jax.tree.map(lambda x: np.asarray(x[0]), trainer.init())
    move = lambda x: x + 0.3 * np.sin(np.arange(x.size, dtype=np.float32)).reshape(x.shape)
    run = run.replace(learners=run.learners.replace(weights=jax.tree.map(move, run.learners.weights)))

    def played(several: int) -> tuple:
        """The games and the metrics of an update, in one program."""
        monkeypatch.setattr(layers, "SEVERAL", several)

        @jax.jit
        def update(run, key):
            parts, hparams = trainer.parts, {name: x[0] for name, x in trainer.hparams_at(0).items()}
            trajectory = step.play(parts, run.learners.weights, key)
            return trajectory, step.learn(parts, run, hparams, trajectory, key, {})[1]

        return update(run, jax.random.key(0))

    (own, metrics), (masked, expected) = played(4), played(99)
    for rows, others in zip(own.rows.values(), masked.rows.values(), strict=True):
        np.testing.assert_array_equal(rows.tokens, others.tokens)
        np.testing.assert_allclose(rows.logp, others.logp, atol=1e-5)
    assert all(np.allclose(metrics[name], expected[name], rtol=1e-4, atol=1e-5) for name in expected)
