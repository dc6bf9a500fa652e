"""The endpoint as OpenAI's own client meets it, in process."""

import openai
import pytest

from tests.support.serving import service_of, with_client

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def service():
    return service_of()


def test_a_chat_is_answered_whole_and_in_chunks(service):
    async def use(client: openai.AsyncOpenAI):
        options = {"model": "tiny", "messages": ASK, "max_tokens": 20, "seed": 3}
        whole = await client.chat.completions.create(**options)
        stream = await client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
        return whole, [chunk async for chunk in stream]

    whole, chunks = with_client(service, use)
    (choice,) = whole.choices
    assert choice.finish_reason in ("stop", "length") and choice.message.role == "assistant"
    parts = [x for chunk in chunks for x in chunk.choices]
    assert "".join(part.delta.content or "" for part in parts) == choice.message.content
    assert [part.finish_reason for part in parts if part.finish_reason] == [choice.finish_reason]
    assert chunks[-1].usage == whole.usage and whole.usage.completion_tokens <= 20
