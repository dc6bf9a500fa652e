"""Chunks join to the whole answer: no part of a stop or of a call is sent before it is sure."""

import json

import pytest

from jaxmarl_llm.serving.calls import Answer, Candidates
from jaxmarl_llm.serving.dialogues import Message, read_answer
from jaxmarl_llm.serving.openai import Asked
from jaxmarl_llm.serving.replies import Writer, error, finish, ready
from jaxmarl_llm.serving.service import Choice, Refused, Request
from tests.support.serving import tokenizer_of

TOOL = ({"type": "function", "function": {"name": "f"}},)
CALLS = 'Let me see. \n<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call> Done.'


def asked_for(stop=(), tools=(), chat=True, logprobs=None) -> Asked:
    request = Request((), "m", tools=tools, stop=stop)
    return Asked(request, chat, True, logprobs=logprobs, token_ids=True)


def stream(text: str, asked: Asked, size: int) -> tuple[list[dict], Choice]:
    """The chunks of a text that is said `size` letters at a time, and the whole choice."""
    tokenizer = tokenizer_of("toy")
    writer, tokens = Writer(asked, "m", tokenizer), tokenizer.encode(text)
    chunks = []
    for count in range(size, len(tokens), size):
        said = b"".join(tokenizer.token_bytes[token] for token in tokens[:count]).decode(errors="replace")
        part = Choice(Message("assistant", said.rstrip("\ufffd")), [1], Answer(tokens[:count], [-1.0] * count))
        chunks.append(writer.chunk(0, part, ended=False))
    at = min((at for at in (text.find(stop) for stop in asked.request.stop) if at >= 0), default=len(text))
    whole = Choice(
        read_answer(text[:at], bool(asked.request.tools)), [1], Answer(tokens, [-1.0] * len(tokens), finish="end")
    )
    chunks.append(writer.chunk(0, whole, ended=True))
    return [chunk for chunk in chunks if chunk], whole


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("one two three", asked_for()),
        ("one two three END", asked_for(stop=("END", "two th!"))),
        ("é漢🙂 é", asked_for()),
        (CALLS, asked_for(tools=TOOL)),
        ("  spaces kept  ", asked_for(tools=TOOL)),
        ("  " + CALLS, asked_for(tools=TOOL)),
        ("a <tool_call>{no call}</tool_call> b", asked_for(tools=TOOL)),
        ("ends with <tool", asked_for(tools=TOOL)),
        ("a completion", asked_for(chat=False)),
    ],
)
def test_chunks_join_to_the_answer(text, asked, size):
    chunks, whole = stream(text, asked, size)
    parts = [chunk["choices"][0] for chunk in chunks]
    said = [part["delta"].get("content", "") if asked.chat else part["text"] for part in parts]
    assert "".join(said) == whole.message.text
    assert [token for part in parts for token in part["token_ids"]] == whole.answer.tokens
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [[1]] + [None] * (len(chunks) - 1)
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [finish(whole)]
    if asked.chat:
        assert [part["delta"].get("role") for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
        calls = [call["function"] for part in parts for call in part["delta"].get("tool_calls", [])]
        assert calls == [{"name": call.name, "arguments": call.arguments} for call in whole.message.calls]
        assert json.loads(json.dumps(chunks)) == chunks
    if size == 1 and len(text) > 30:
        assert len(chunks) > 3 or asked.request.tools  # it is a stream


def test_what_may_begin_a_stop_is_held_back():
    assert ready("one EN", asked_for(stop=("END",))) == "one "
    assert ready("one ENE", asked_for(stop=("END",))) == "one EN"
    assert ready("aab", asked_for(stop=("abab", "bc"))) == "a"
    assert ready("so <tool_", asked_for(tools=TOOL)) == "so"


def test_log_probabilities_name_the_tokens_and_their_bytes():
    tokenizer = tokenizer_of("toy")
    tokens = [*tokenizer.encode("cooper"), tokenizer.encode("é")[0], tokenizer.end]
    top = [Candidates((token, 0, 1), (-0.5, -1.5, -1e30)) for token in tokens]
    choice = Choice(Message("assistant", "x"), [1], Answer(tokens, [-0.5, -0.25, 0.0], top, "end"))
    whole = Writer(asked_for(logprobs=3), "m", tokenizer).whole([choice])
    first, half, end = whole["choices"][0]["logprobs"]["content"]
    assert (first["token"], first["logprob"], bytes(first["bytes"])) == ("cooper", -0.5, b"cooper")
    assert len(first["top_logprobs"]) == 2  # a token that cannot be said is not listed
    assert bytes(half["bytes"]) == b"\xc3" and (end["token"], end["bytes"]) == ("<|im_end|>", None)
    plain = Writer(asked_for(logprobs=1, chat=False), "m", tokenizer).whole([choice])["choices"][0]["logprobs"]
    assert plain["tokens"] == ["cooper", r"bytes:\xc3", "<|im_end|>"] and plain["text_offset"] == [0, 6, 7]
    assert plain["top_logprobs"][0] == {"cooper": -0.5} and plain["token_logprobs"] == [-0.5, -0.25, 0.0]


def test_an_error_is_openais_record():
    record = error(Refused("No.", 429, "rate_limit_exceeded", "n"))
    assert record == {
        "error": {"message": "No.", "type": "rate_limit_error", "param": "n", "code": "rate_limit_exceeded"}
    }
