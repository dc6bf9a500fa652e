"""Environments written with verifiers' own classes, played and learnt by policies of random weights.

Their rewards are recomputed from the texts.
"""

import importlib.util
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.bridges.agent_programs import AgentProgram
from jaxmarl_llm.environments.bridges.verifiers_games import verifiers_game
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer

installed = importlib.util.find_spec("verifiers") is not None
needs_verifiers = pytest.mark.skipif(not installed, reason="verifiers is not installed")
SYMBOLS = [*"abcrw?"]


@pytest.fixture
def environments(monkeypatch):
    """The folder of the environments is on the path: verifiers imports a taskset by its id."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "support" / "verifiers_environments")


def trainer_of(game: AgentProgram, groups: int = 3, group_size: int = 4, updates: int = 1) -> Trainer:
    recipe = Recipe(
        game,
        seats=(("me", "you")[: len(game.seats)],),
        advantage=estimator(advantages.rloo, per_agent=True),
        hparams={"learning_rate": 3e-2},
        tokenizer=lambda game: SymbolTokenizer(SYMBOLS, ends=True),
        budget=2,
        updates=updates,
        groups=groups,
        group_size=group_size,
    )
    return Trainer(recipe, [recipe.all_hparams], [0])


def play(trainer: Trainer, state: Any = None) -> Any:
    """The trajectory of a batch, of untrained policies without a state."""
    weights = trainer.weights(trainer.init() if state is None else state, 0)
    return jax.device_get(trainer.rollout(weights, jax.random.key(3)))


def said_in(trajectory: Any, seat: int) -> list[list[tuple[str, str]]]:
    """By episode the seat's answers: (the last symbol that was heard, what was said)."""
    tokenizer = SymbolTokenizer(SYMBOLS, ends=True)
    result: dict[int, list[tuple[str, str]]] = {}
    for rows in trajectory.rows.values():
        for row in np.flatnonzero(rows.seat == seat):
            prompt = rows.prompts.tokens[row, : rows.prompts.length[row]].tolist()
            tokens, mask = rows.tokens[row, : rows.length[row]].tolist(), rows.loss_mask[row]
            heard, said, answers = prompt, [], []
            for token, own in [*zip(tokens, mask.tolist(), strict=False), (-1, False)]:
                if own:
                    said.append(token)
                    continue
                if said:
                    text = "".join(SYMBOLS[t] for t in said if t != tokenizer.end)
                    answers.append(([SYMBOLS[t] for t in heard if t < len(SYMBOLS)][-1], text))
                    heard, said = [], []
                heard = [*heard, token]
            result.setdefault(int(rows.episode[row]), []).extend(answers)
    return [result[episode] for episode in sorted(result)]


@pytest.mark.skipif(installed, reason="verifiers is installed")
def test_without_the_package_it_says_what_to_install():
    with pytest.raises(ValueError, match=r"further packages: pip install 'jaxmarl_llm\[verifiers\]'"):
        verifiers_game("repeat-letters")


@needs_verifiers
@pytest.mark.long
def test_a_group_shares_a_task_and_a_trace_is_paid_its_weighted_scores(environments, recwarn):
    trainer = trainer_of(verifiers_game("repeat-letters", turns=2), groups=6)
    trajectory = play(trainer)
    answers = said_in(trajectory, 0)
    assert [len(said) for said in answers] == [1] * 24
    tasks = [said[0][0] for said in answers]
    groups = [set(tasks[at : at + 4]) for at in range(0, 24, 4)]
    assert all(len(group) == 1 for group in groups) and len(set(tasks)) > 1
    expected = [float(said == heard) + 0.5 for [(heard, said)] in answers]
    np.testing.assert_array_equal(trajectory.episodes.reward[:, 0, 0, 0], expected)
    assert {*expected} == {0.5, 1.5} and trajectory.episodes.terminated.all()
    assert not [warning for warning in recwarn if "failed" in str(warning.message)]


@needs_verifiers
@pytest.mark.long
def test_two_roles_speak_with_two_policies_and_both_learn(environments):
    game = verifiers_game("pass-letters", turns=3)
    assert game.seats == ("reader", "writer")
    trainer = trainer_of(game, groups=5, group_size=12, updates=8)
    trajectory = play(trainer)
    reader, writer = said_in(trajectory, 0), said_in(trajectory, 1)
    assert all(len(r) == 2 and len(w) == 1 for r, w in zip(reader, writer, strict=True))
    assert all(w[0][0] == (r[1][1] or "?") and r[1][0] == "c" for r, w in zip(reader, writer, strict=True))
    reward = trajectory.episodes.reward[..., 0]  # [episode, turn, seat]
    np.testing.assert_array_equal(reward[:, 1, 0], [float(r[1][1] == "a") for r in reader])
    np.testing.assert_array_equal(
        reward[:, 2, 1], [float(w[0][1] == r[1][1]) for r, w in zip(reader, writer, strict=True)]
    )
    assert reward.sum() == reward[:, 1, 0].sum() + reward[:, 2, 1].sum()
    state = trainer.init()
    for number in range(trainer.recipe.updates):
        state, _ = trainer.update(state, number)
    learnt = play(trainer, state).episodes.reward[..., 0]
    before, after = (paid.sum(1).mean(0) for paid in (reward, learnt))  # by seat
    assert (before < 0.6).all() and (after > 0.8).all(), (before, after)


@needs_verifiers
@pytest.mark.long
def test_what_training_refuses_fails_its_episodes_in_a_sentence(environments):
    import verifiers.v1 as vf

    config = vf.resolve_env_config({"taskset": {"id": "pass-letters"}})
    agent = vf.AgentConfig
    cases = {
        "This seat is trained with": {"writer": agent(sampling={"temperature": 0.5})},
        "response_format is not supported": {"reader": agent(sampling={"response_format": {"type": "json_object"}})},
        "chat completions require n=1": {"reader": agent(sampling={"n": 2})},
        "The environment does not train its role writer: give": {"train_writer": False},
        "exceeded its 1e-09s deadline": {"timeout": {"episode": 1e-9}},
    }
    for sentence, changes in cases.items():
        made = type(config).model_validate({**config.model_dump(), **changes})
        with pytest.warns(UserWarning, match=f"{sentence}.*Episodes that failed: 12 of 12"):
            trajectory = play(trainer_of(verifiers_game(made, turns=3)))
        assert trajectory.episodes.truncated.all() and not np.nansum(np.abs(trajectory.episodes.reward)), sentence


@needs_verifiers
def test_an_environment_that_trains_nobody_is_refused(environments):
    import verifiers.v1 as vf

    fixed = vf.AgentConfig(client=vf.EvalClientConfig(base_url="http://127.0.0.1:1/v1", api_key_var="NONE"))
    config = vf.resolve_env_config({"taskset": {"id": "pass-letters"}})
    both = config.model_copy(update={"reader": fixed, "writer": fixed})
    with pytest.raises(ValueError, match="Every role of the environment has a client of its own"):
        verifiers_game(both)
    assert verifiers_game(config.model_copy(update={"writer": fixed})).seats == ("reader",)
    with pytest.raises(ValueError, match="The environment has no tasks"):
        verifiers_game("repeat-letters", tasks=0)
