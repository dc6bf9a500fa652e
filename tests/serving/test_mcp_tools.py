"""An agent program with a tool of a real MCP server: an answer asks for it, and its result is heard, not trained."""

import importlib.util
import string

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.bridges.agent_programs import AgentProgram
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer
from tests.support.toys import ByteTokenizer

installed = importlib.util.find_spec("mcp") is not None and importlib.util.find_spec("mcp.server.mcpserver") is not None
pytestmark = [pytest.mark.long, pytest.mark.skipif(not installed, reason="mcp 2 is not installed")]
SILENT = bytes(set(range(256)) - set(string.printable.encode()))


def test_a_tool_is_called_when_an_answer_asks_and_its_result_is_not_trained():
    from mcp.client import Client
    from mcp.server.mcpserver import MCPServer

    server, calls, talks = MCPServer("words"), [], {}

    @server.tool()
    def mirror(word: str) -> str:
        """Turns a word around."""
        calls.append(word)
        return f"It reads {word[::-1]}."

    async def play(episode):
        client = episode.client("asker")
        async with Client(server) as tools:
            (tool,) = (await tools.list_tools()).tools
            system = f"Say a digit, or begin with a letter to call the tool {tool.name}: {tool.description}"
            messages = [{"role": "system", "content": system}, {"role": "user", "content": "Begin."}]
            said = [(await client.chat.completions.create(model="-", messages=messages)).choices[0].message.content]
            if said[0][:1].isalpha():
                result = await tools.call_tool(tool.name, {"word": said[0]})
                messages += [{"role": "assistant", "content": said[0]}]
                messages += [{"role": "user", "content": result.content[0].text}]
                again = await client.chat.completions.create(model="-", messages=messages)
                said.append(again.choices[0].message.content)
        talks.setdefault(episode.seed, []).append((system, said))
        return float(said[-1] == said[0][::-1])

    recipe = Recipe(
        AgentProgram(play, seats=("asker",), turns=2),
        seats=(("me",),),
        advantage=estimator(advantages.rloo, per_agent=True),
        tokenizer=lambda game: ByteTokenizer((), SILENT),
        budget=4,
        groups=4,
        group_size=8,
    )
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    trajectory = jax.device_get(trainer.rollout(trainer.weights(trainer.init(), 0), jax.random.key(1)))
    assert trajectory.episodes.terminated.all()

    tokenizer, (rows,), heard_at_all = ByteTokenizer((), SILENT), trajectory.rows.values(), []
    talked = [talk for talks_of_seed in talks.values() for talk in talks_of_seed]
    assert sorted(calls) == sorted(said[0] for _, said in talked if len(said) == 2)
    assert 0 < sum(len(said) == 1 for _, said in talked) < len(talked) == len(rows.length) == 32
    for row, length in enumerate(rows.length):
        tokens, mask = rows.tokens[row, :length], rows.loss_mask[row, :length]
        answers = np.split(np.flatnonzero(mask), np.flatnonzero(np.diff(np.flatnonzero(mask)) > 1) + 1)
        said = [tokenizer.decode([t for t in tokens[at] if t != tokenizer.end]) for at in answers]
        prompt = tokenizer.decode(rows.prompts.tokens[row, : rows.prompts.length[row]])
        assert (talked[0][0], said) in talked and talked[0][0] in prompt and "Turns a word around" in prompt
        heard = tokenizer.decode(tokens[~mask])
        heard_at_all.append(heard)
        assert (f"It reads {said[0][::-1]}." in heard) == (len(said) == 2) == said[0][:1].isalpha()
        assert not rows.logp[row, :length][~mask].any()
    assert len({*heard_at_all}) > 2
