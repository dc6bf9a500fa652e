"""An agent program with `tools` and a template that shows them: a call comes back parsed, and its result is heard.

Policies of random weights call no tool, so the words of the first answer are read as a call.
"""

import json
from itertools import cycle

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.bridges.agent_programs import AgentProgram
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.serving import service as services
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer
from tests.support.serving import tokenizer_of

TOOL = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "calc", "arguments": {"sum": "2+3"}}\n</tool_call>'


@pytest.mark.long
def test_a_program_calls_a_tool_and_hears_its_result(monkeypatch):
    called = []

    async def play(episode):
        client, messages = episode.client("solver"), [{"role": "user", "content": "2+3?"}]
        ask = lambda: client.chat.completions.create(model="-", messages=messages, tools=[TOOL])
        (choice,) = (await ask()).choices
        (call,) = choice.message.tool_calls
        called.append((call.function.name, json.loads(call.function.arguments)))
        result = {"role": "tool", "tool_call_id": call.id, "content": "five"}
        messages += [choice.message, result]
        (choice,) = (await ask()).choices
        return float(choice.message.content == "5")

    say, calls = services.text_of, cycle((True, False))  # an episode's first answer, and its second
    monkeypatch.setattr(services, "text_of", lambda *given: CALL if next(calls) else say(*given))
    recipe = Recipe(
        AgentProgram(play, seats=("solver",), turns=2, context=512, at_once=1),
        seats=(("me",),),
        advantage=estimator(advantages.rloo, per_agent=True),
        tokenizer=lambda game: tokenizer_of("files"),
        budget=4,
        groups=1,
        group_size=2,
    )
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    game = jax.device_get(trainer.rollout(trainer.weights(trainer.init(), 0), jax.random.key(1)))
    assert called == [("calc", {"sum": "2+3"})] * 2 and game.episodes.terminated.all()

    (rows,), decode = game.rows.values(), tokenizer_of("files").decode
    assert len(rows.length) == 2  # each episode is one row: its call was found, and not encoded again
    for row, length in enumerate(rows.length):
        tokens, said = rows.tokens[row, :length], rows.loss_mask[row, :length]
        prompt = decode(rows.prompts.tokens[row, : rows.prompts.length[row]])
        assert json.dumps(TOOL) in prompt and "five" not in prompt
        assert "<tool_response>\nfive" in decode(tokens[~said]) and not rows.logp[row, :length][~said].any()
        assert np.count_nonzero(np.diff(said.astype(int)) == 1) == 1 and said[0]  # two answers
