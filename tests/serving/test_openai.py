"""A request is read into what the engine needs, or refused in one sentence that names the field."""

import json
import re

import numpy as np
import pytest

from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.serving import openai
from jaxmarl_llm.serving.calls import FREE
from jaxmarl_llm.serving.dialogues import Message, ToolCall
from jaxmarl_llm.serving.openai import read_chat, read_completion, read_json
from jaxmarl_llm.serving.service import Refused
from jaxmarl_llm.text.grammar import Choice

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def chat(**fields):
    return read_chat(read_json(json.dumps({"model": "m", "messages": HELLO, **fields}).encode()))


def test_fields_are_read():
    asked = chat(
        n=3, temperature=0.5, top_p=0.9, top_k=-1, min_p=0, max_completion_tokens=7, stop=["a", "b"], seed=-5,
        logprobs=True, top_logprobs=4, stream=True, stream_options={"include_usage": True}, return_token_ids=True,
        tools=[TOOL], tool_choice="auto", parallel_tool_calls=True, user="u", metadata={}, store=True, logit_bias={},
        frequency_penalty=0.0, response_format={"type": "text"}, presence_penalty=None, audio=None,
    )  # fmt: skip
    request = asked.request
    assert (request.model, request.messages, request.n) == ("m", (Message("user", "hello"),), 3)
    assert request.sampling == Sampling(0.5, 0, 0.9, 0) and (request.budget, request.seed) == (7, -5)
    assert request.stop == ("a", "b") and request.top and request.grammar is FREE and request.tools == (TOOL,)
    assert (asked.stream, asked.usage, asked.logprobs, asked.token_ids) == (True, True, 4, True)
    plain = chat()
    assert plain.request.sampling is None and plain.request.budget is None and plain.logprobs is None
    assert chat(tools=[TOOL], tool_choice="none").request.tools == ()
    assert chat(stop="x").request.stop == ("x",) and chat(max_tokens=3).request.budget == 3
    choice = chat(structured_outputs={"choice": ["yes", "no", "yes"]})
    assert choice.request.grammar == (Choice(((0, "yes"), (1, "no"))),)


def test_messages_are_read():
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
        {"role": "assistant", "content": "", "tool_calls": None},
    ]
    assert chat(messages=messages).request.messages == (
        Message("system", "a\nb"),
        Message("assistant", "", (ToolCall("look", "{}"),)),
        Message("tool", "3"),
        Message("assistant", ""),
    )


def test_a_completion_is_read():
    asked = read_completion({"model": "m", "prompt": ["once"], "logprobs": 0, "best_of": 1})
    assert (asked.request.plain, asked.request.budget, asked.logprobs, asked.chat) == ("once", 16, 0, False)
    for fields in ({"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"prompt": ""}, {}, {"prompt": "a", "best_of": 2}):
        with pytest.raises(Refused, match=r"^(prompt|best_of): possible is"):
            read_completion({"model": "m", **fields})
    with pytest.raises(Refused, match=r"^echo is not supported: leave it out, or give false\.$"):
        read_completion({"model": "m", "prompt": "a", "echo": True})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": HELLO * 1001}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "name": "bob"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "function": {}}]}]},
            "tool_calls[0].function.name",
        ),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 2.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": 3}, "stop"),
        ({"seed": 2**64}, "seed"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"x": 1}}, "stream_options"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"3": 1}}, "logit_bias"),
        ({"frequency_penalty": 0.1}, "frequency_penalty"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": True}}]}, "tools[0].function.strict"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"functions": [{}]}, "functions"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["x" * 1001]}}, "structured_outputs"),
        ({"x" * 5000: 1}, "x" * 100),
    ],
)
def test_a_field_that_is_wrong_or_not_supported_is_one_sentence(fields, param):
    with pytest.raises(Refused) as refused:
        chat(**fields)
    assert refused.value.param == param and refused.value.status == 400
    assert re.fullmatch(r"[^\n]{20,300}[.}]", refused.value.sentence), refused.value.sentence


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "is no JSON"),
        (b"[]", "is a JSON object"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": 1', "is no JSON"),
        (b'{"a": "\xff"}', "is no JSON"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b'{"a": ' + b"1" * 5000 + b"}", "is no JSON"),
        (b"[" * 101, "nested more than 100 deep"),
        (b'{"a":' * 200_000, "nested more than 100 deep"),
        (b'{"a": "' + b"x" * 4_000_000 + b'"}', "at most 4000000 are read"),
    ],
)
def test_a_body_that_is_no_request_is_one_sentence(body, says):
    with pytest.raises(Refused, match=says):
        read_json(body)


def test_the_depth_is_that_of_the_json_and_not_of_its_texts():
    deepest = lambda depth: b'{"a": ' + b"[" * depth + b'"' + rb"[\"[" * 300 + b'"' + b"]" * depth + b"}"
    assert read_json(deepest(openai.MOST_DEPTH - 1))
    with pytest.raises(Refused, match="nested more"):
        read_json(deepest(openai.MOST_DEPTH))
    generator = np.random.default_rng(0)
    for _ in range(200):
        text = bytes(generator.choice(list(rb'[]{}"\,:a1 '), 40).tolist())
        try:
            read_json(text)
        except Refused as refused:
            assert refused.sentence.endswith(".")
