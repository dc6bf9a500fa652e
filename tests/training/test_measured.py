"""Metrics of speech, against utterances that are written out."""

import jax.numpy as jnp
import pytest

from jaxmarl_llm.rollout.trajectory import SampledTokens
from jaxmarl_llm.training.measured import speech

END = 9


@pytest.mark.parametrize(
    ("end", "left", "full"),
    [
        (END, [[4, 3, 2, 4, 3], [4, 3, 2, 2, 0]], 2 / 4),  # 1 2 3 | 1 end; 1 1 end | 1: the third ended by itself
        (None, [[3, 2, 1, 3, 2], [3, 2, 1, 2, 0]], 2 / 4),
    ],
)
def test_an_utterance_is_full_if_its_budget_ran_out_before_it_ended(end, left, full):
    token = jnp.array([[1, 2, 3, 1, END], [1, 1, END, 1, 0]])
    where = jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]], bool)
    turn = jnp.array([[0, 0, 0, 1, 1], [0, 0, 0, 1, 0]])
    blank = dict.fromkeys(("at", "behaviour_logp", "grammar_state", "legal", "sampler_logp"))
    said = speech(SampledTokens(**blank, token=token, mask=where, turn=turn, tokens_left=jnp.array(left)), where, end)
    assert {name: float(mean.value) for name, mean in said.items()} == {"length": 9 / 4, "full": full, "repeated": 0}
