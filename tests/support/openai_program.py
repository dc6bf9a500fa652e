"""What OpenAI's client hears from a server, in a process of its own: a later client than the extra's asks the same.

    python -m tests.support.openai_program ADDRESS   prints the client's major version and the answers as JSON

`pip install --target build/inspect-ai inspect-ai 'openai>=3.4'` brings the later client.
"""

import json
import os
import subprocess
import sys

from tests.support.inspect_program import PACKAGES, ROOT, installed

__all__ = ["installed", "run"]
ASK = [{"role": "user", "content": "Name a colour."}]
TOOL = {"type": "function", "function": {"name": "paint", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_0", "type": "function", "function": {"name": "paint", "arguments": "{}"}}


def run(address: str, later: bool) -> dict:
    """What is heard at an address by the client of this environment, or by a later one."""
    path = os.pathsep.join([str(PACKAGES)] * later + [os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.support.openai_program", address]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main(address: str) -> None:
    import openai

    client = openai.OpenAI(base_url=address, api_key="-", max_retries=0)
    ask = lambda **options: client.chat.completions.create(
        **{"model": "chatty", "messages": ASK, "max_tokens": 12, "seed": 1} | options
    )
    several = ask(n=4, logprobs=True, top_logprobs=2)
    whole = several.choices[0]
    text = whole.message.content
    stop = next(text[i : i + 2] for i in range(1, len(text)) if text[i : i + 2].isascii())
    tool_turn = [*ASK, {"role": "assistant", "tool_calls": [CALL]}]
    tool_turn.append({"role": "tool", "tool_call_id": "call_0", "content": "blue"})
    heard = {
        "texts": [choice.message.content for choice in several.choices],
        "logprobs": [token.logprob for token in whole.logprobs.content],
        "stream": "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True)),
        "stopped": ask(stop=stop).choices[0].message.content,
        "before": text.partition(stop)[0],
        "tools": ask(messages=tool_turn, tools=[TOOL]).choices[0].message.content,
        "ids": ask(extra_body={"return_token_ids": True}).choices[0].token_ids,
        "models": [model.id for model in client.models.list()],
    }
    for name, options in {"lost": {"model": "huge"}, "wrong": {"n": 99}, "long": {"messages": ASK * 4000}}.items():
        try:
            ask(**options)
        except openai.APIStatusError as error:
            heard[name] = [error.status_code, error.body["message"]]
    print(json.dumps({"major": int(openai.__version__.partition(".")[0]), "heard": heard}))


if __name__ == "__main__":
    main(*sys.argv[1:])
