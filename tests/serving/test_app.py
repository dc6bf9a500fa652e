"""The endpoint as clients meet it: OpenAI's own in process, and hostile ones.

The long cases compile further settings, ask 200 dialogues, send damaged requests and go away; the slow ones ask 200
of a model with a template, and ten thousand times.
"""

import asyncio
import gc
import json
from collections import Counter
from functools import partial
from itertools import count

import numpy as np
import openai
import pytest

from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.serving import app
from jaxmarl_llm.serving import service as services
from jaxmarl_llm.serving.app import create
from jaxmarl_llm.serving.calls import FREE
from jaxmarl_llm.serving.service import running
from jaxmarl_llm.text.grammar import Choice
from tests.support.serving import Said, http_client, rescore, service_of, tokenizer_of, with_client

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 3}}\n</tool_call>'
EXACT = {"logprobs": True, "extra_body": {"return_token_ids": True}}


@pytest.fixture(scope="module")
def service():
    return service_of(adapters=2)


def test_a_chat_is_answered_whole_and_in_chunks(service):
    async def use(client: openai.AsyncOpenAI):
        options = {"model": "tiny", "messages": ASK, "max_tokens": 20, "seed": 3}
        whole = await client.chat.completions.create(**options)
        stream = await client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
        return whole, [chunk async for chunk in stream], await client.models.list()

    whole, chunks, models = with_client(service, use)
    (choice,) = whole.choices
    assert choice.finish_reason in ("stop", "length") and choice.message.role == "assistant"
    parts = [x for chunk in chunks for x in chunk.choices]
    assert "".join(part.delta.content or "" for part in parts) == choice.message.content
    assert [part.finish_reason for part in parts if part.finish_reason] == [choice.finish_reason]
    assert chunks[-1].usage == whole.usage and whole.usage.completion_tokens <= 20
    assert [model.id for model in models.data] == ["adapter0", "adapter1", "tiny"]


@pytest.mark.long
def test_several_answers_differ_and_equal_seeds_agree(service):
    async def use(client: openai.AsyncOpenAI):
        ask = lambda **options: client.chat.completions.create(model="adapter1", messages=ASK, max_tokens=12, **options)
        same = await asyncio.gather(ask(n=4, seed=7), ask(n=4, seed=7), ask(n=4, seed=8), ask(n=4))
        return same, await client.completions.create(model="tiny", prompt="once", n=2, max_tokens=5, logprobs=2, seed=1)

    chats, completion = with_client(service, use)
    texts = [[choice.message.content for choice in chat.choices] for chat in chats]
    assert texts[0] == texts[1] and len({*map(tuple, texts)}) == 3 and len({*texts[0]}) == 4
    assert [choice.index for choice in chats[0].choices] == [0, 1, 2, 3]
    for choice in completion.choices:
        assert len(choice.logprobs.tokens) == len(choice.logprobs.top_logprobs) <= 5
        assert all(len(top) == 2 for top in choice.logprobs.top_logprobs)


def test_a_stop_ends_an_answer_across_the_edges_of_tokens(service):
    """The stop is cut from an answer that was given without it: its letters lie in several tokens."""

    async def use(client: openai.AsyncOpenAI):
        options = {"model": "tiny", "messages": ASK, "max_tokens": 40, "seed": 5}
        choice = ["The answer is nine, or so"]
        forced = {"extra_body": {"structured_outputs": {"choice": choice}, "return_token_ids": True}}
        plain = await client.chat.completions.create(**options, **forced)
        stopped = await client.chat.completions.create(**options, **forced, stop=["nope", "is ni"])
        stream = await client.chat.completions.create(**options, **forced, stop=["nope", "is ni"], stream=True)
        return plain, stopped, [chunk async for chunk in stream]

    plain, stopped, chunks = with_client(service, use)
    (whole,), (cut,) = plain.choices, stopped.choices
    assert whole.message.content == "The answer is nine, or so" and cut.message.content == "The answer "
    assert cut.finish_reason == "stop" and cut.token_ids == whole.token_ids[: len(cut.token_ids)]
    assert len(whole.token_ids) - len(cut.token_ids) >= 2
    assert "".join(part.delta.content or "" for chunk in chunks for part in chunk.choices) == "The answer "


def test_tools_go_round(service):
    """The grammar makes a policy of random weights call the tool."""

    async def use(client: openai.AsyncOpenAI):
        ask = {"model": "tiny", "tools": [TOOL], "max_tokens": 90, **EXACT}
        calling = {**ask, "extra_body": {**EXACT["extra_body"], "structured_outputs": {"choice": [CALL]}}}
        stream = await client.chat.completions.create(messages=ASK, **calling, stream=True)
        deltas = [part.delta async for chunk in stream for part in chunk.choices]
        first = await client.chat.completions.create(messages=ASK, **calling)  # the last of equal answers is found
        said = first.choices[0].message
        result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "three"}
        again = await client.chat.completions.create(messages=[*ASK, said, result], **ask)
        return first, deltas, again

    first, deltas, again = with_client(service, use)
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"at": 3}
    called = [call for delta in deltas for call in delta.tool_calls or []]
    assert [call.function.name for call in called] == ["look"] and not any(delta.content for delta in deltas)
    row = [*first.prompt_token_ids, *choice.token_ids]
    assert again.prompt_token_ids[: len(row)] == row  # never encoded again
    decode = tokenizer_of("files").decode
    assert '{"type": "function", "function": {"name": "look"' in decode(first.prompt_token_ids)
    assert "<tool_response>\nthree" in decode(again.prompt_token_ids)


def ask_many(service, kind: str, dialogues: int, turns: int, clients: int, seed: int = 0) -> list[Said]:
    """Random dialogues with all settings, by so many clients at once; checks that rows are extended."""
    generator, said = np.random.default_rng(seed), []
    names = [("tiny", -1), ("adapter0", 0), ("adapter1", 1)]
    settings = [{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 7}, {"min_p": 0.03}, {"temperature": 0}]
    grammar = (Choice(((0, "cooperate"), (1, "defect"), (2, "two words"))),)
    plans = [generator.integers(0, 2**31, 4).tolist() for _ in range(dialogues)]

    async def talk(client: openai.AsyncOpenAI, plan: list[int], limit: asyncio.Semaphore) -> None:
        name, policy = names[plan[0] % 3]
        messages = [{"role": "system", "content": "Play."}] * (plan[1] % 2)
        row: list[int] = []
        for turn in range(turns):
            options, forced = settings[(plan[2] + turn) % 5], (plan[3] + turn) % 4 == 0
            extra = {name: value for name, value in options.items() if name in ("top_k", "min_p")}
            extra["return_token_ids"] = True
            if forced:
                extra["structured_outputs"] = {"choice": texts_of(grammar)}
            budget = 14 if forced else 4 + plan[2] % 9
            messages.append({"role": "user", "content": f"turn {turn} of {plan[3]} é"})
            async with limit:
                answer = await client.chat.completions.create(
                    model=name, messages=messages, max_tokens=budget, seed=plan[3] % 2**20, logprobs=True,
                    extra_body=extra, **{name: value for name, value in options.items() if name not in extra},
                )  # fmt: skip
            (choice,) = answer.choices
            assert answer.prompt_token_ids[: len(row)] == row
            assert len(choice.logprobs.content) == len(choice.token_ids) == answer.usage.completion_tokens
            row = [*answer.prompt_token_ids, *choice.token_ids]
            messages.append({"role": "assistant", "content": choice.message.content})
            logp = [token.logprob for token in choice.logprobs.content]
            spoken = Sampling(**options), grammar if forced else FREE, budget, policy
            said.append((Said(answer.prompt_token_ids, choice.token_ids, *spoken), logp))

    async def use(client: openai.AsyncOpenAI):
        limit = asyncio.Semaphore(clients)
        await asyncio.gather(*(talk(client, plan, limit) for plan in plans))

    with_client(service, use)
    scored = rescore(kind, 2, [fact for fact, _ in said])
    apart = [np.abs(np.array(logp) - b) for (_, logp), b in zip(said, scored, strict=True)]
    assert max(x.max() for x in apart) <= 2e-4 and np.median(np.concatenate(apart)) < 1e-5
    return [fact for fact, _ in said]


def texts_of(grammar) -> list[str]:
    return [text for _, text in grammar[0].options]


def test_probabilities_of_many_clients_are_the_scorers(service):
    assert len(ask_many(service, "files", dialogues=8, turns=2, clients=8)) == 16


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["toy", "files"])
def test_probabilities_of_200_dialogues_are_the_scorers(kind):
    """And each is what a single client hears with the same seed, but where rounding turned a draw."""
    ask = partial(ask_many, kind=kind, dialogues=100, turns=3, seed=1)
    together, alone = ask(service_of(kind, adapters=2), clients=16), ask(service_of(kind, adapters=2), clients=1)
    assert len(together) == len(alone) == 300
    heard = Counter((tuple(said.prompt), tuple(said.tokens)) for said in together)
    heard.subtract((tuple(said.prompt), tuple(said.tokens)) for said in alone)
    turned = sum(count for count in heard.values() if count > 0)
    assert turned <= 3, f"{turned} of 300 answers differ"


def test_an_error_is_raised_by_openais_client(service):
    async def use(client: openai.AsyncOpenAI):
        ask = client.chat.completions.create
        with pytest.raises(openai.NotFoundError, match="There is no model 'huge': possible are adapter0"):
            await ask(model="huge", messages=ASK)
        with pytest.raises(openai.BadRequestError, match="together they may have 512") as error:
            await ask(model="tiny", messages=ASK, max_tokens=600)
        assert error.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="512 tokens of the context can hold"):
            await ask(model="tiny", messages=[{"role": "user", "content": "x" * 100_000}])
        with pytest.raises(openai.BadRequestError, match="n: possible is a whole number from 1 to 16; got 99") as error:
            await ask(model="tiny", messages=ASK, n=99, stream=True)
        assert error.value.param == "n"
        with pytest.raises(openai.NotFoundError, match="There is no POST /v1/embeddings here"):
            await client.embeddings.create(model="tiny", input="x")

    with_client(service, use)


def test_keys_limits_and_counters(service, monkeypatch):
    async def use():
        async with running(service), http_client(service, api_key="secret") as http:
            ask = {"model": "tiny", "messages": ASK, "max_tokens": 3}
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                refused = await http.post("/v1/chat/completions", json=ask, headers=headers)
                assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
            assert (await http.get("/health")).json() == {"status": "ok"}
            http.headers["Authorization"] = "Bearer secret"
            assert (await http.post("/v1/chat/completions", json=ask)).status_code == 200
            assert (await http.post("/v1/chat/completions", content=json.dumps(ask))).status_code == 415
            assert (await http.get("/v1/chat/completions")).status_code == 405
            told = (await http.get("/metrics")).text
            monkeypatch.setattr(services, "MOST_WAITING", 0)
            busy = await http.post("/v1/chat/completions", json=ask)
            assert busy.status_code == 429 and busy.json()["error"]["code"] == "rate_limit_exceeded"
            return told

    told = asyncio.run(use())
    values = dict(line.rsplit(" ", 1) for line in told.splitlines() if not line.startswith("#"))
    engine = service.engines[0]
    assert float(values['jaxmarl_llm_tokens_said_total{engine="tiny"}']) == engine.tokens_said > 0
    assert values['jaxmarl_llm_waiting{engine="tiny"}'] == "0" and len(values) == 6


def test_a_body_that_does_not_come_is_refused(service, monkeypatch):
    async def use():
        async def stall():
            yield b'{"model": '
            await asyncio.sleep(1)
            yield b'"tiny"}'

        monkeypatch.setattr(app, "SECONDS_TO_READ", 0.02)
        async with running(service), http_client(service) as http:
            headers = {"Content-Type": "application/json"}
            return await http.post("/v1/chat/completions", content=stall(), headers=headers)

    answer = asyncio.run(use())
    assert answer.status_code == 408 and "did not come within" in answer.json()["error"]["message"]


async def vanish(application, body: dict, chunks: int) -> int:
    """Sends a request as a server does, and goes away after so many chunks: the number of chunks that came."""
    sent, gone = [], asyncio.Event()
    text, scope_path = json.dumps(body).encode(), "/v1/chat/completions"
    messages = iter([{"type": "http.request", "body": text, "more_body": False}])

    async def receive():
        if (message := next(messages, None)) is not None:
            return message
        if chunks == 0:
            await asyncio.sleep(0.02)
        else:
            await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if sum(bool(message.get("body")) for message in sent) >= chunks > 0:
            gone.set()
            await asyncio.sleep(0)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": scope_path, "raw_path": scope_path.encode(), "headers": headers}
    scope |= {"query_string": b"", "root_path": "", "scheme": "http", "asgi": {"spec_version": "2.3"}}
    await application(scope, receive, send)
    return sum(bool(message.get("body")) for message in sent)


def going_away(service, clients: int) -> None:
    """Clients that go away while they wait, read or are streamed to: their slots are free, others are answered."""
    engine = service.engines[0]

    async def use():
        application, said = create(service), engine.tokens_said
        async with running(service):
            body = {"model": "tiny", "messages": ASK, "max_tokens": 400, "min_p": 0.2}
            ways = [(index % 3, index % 3 > 0) for index in range(clients)]
            came = await asyncio.gather(*(vanish(application, {**body, "stream": stream}, n) for n, stream in ways))
            async with http_client(service) as http:
                answer = await http.post("/v1/chat/completions", json={**body, "max_tokens": 5})
            assert answer.status_code == 200 and all(n <= 4 for n in came)
            for _ in range(400):
                if not engine.busy:
                    break
                await asyncio.sleep(0.01)
            assert not engine.busy and not engine.waiting
        assert engine.tokens_said - said < clients * 400 / 2

    asyncio.run(use())


def test_a_client_that_goes_away_frees_its_slot(service):
    going_away(service, 6)


@pytest.mark.long
def test_a_hundred_clients_that_go_away_free_their_slots(service):
    going_away(service, 100)


def damaged(generator: np.random.Generator) -> tuple[bytes, dict[str, str]]:
    """A request that is malformed, too large, too deep, or has a wrong value somewhere."""
    whole = {
        "model": "tiny", "messages": [*ASK], "max_tokens": 3, "n": 1, "stop": ["x"], "tools": [TOOL], "seed": 1,
        "temperature": 1.0, "top_p": 0.9, "logprobs": True, "top_logprobs": 2, "stream": False, "user": "u",
    }  # fmt: skip
    odd = [
        None,
        -1,
        10**400,
        1e308,
        "",
        "x" * 99_999,
        [],
        {},
        [[]] * 50,
        True,
        "\ud800",
        "<|im_end|>",
        {"a": "\x00"},
        2.5,
    ]
    headers = {"Content-Type": "application/json"}
    which = int(generator.integers(9))
    pick = lambda values: values[int(generator.integers(len(values)))]
    if which <= 3:
        whole[pick([*whole, "x", "logit_bias", "response_format"])] = pick(odd)
    elif which == 4:
        whole["messages"] = [{**ASK[1], pick(["role", "content", "name", "tool_calls"]): pick(odd)}] * pick(
            [1, 3, 2000]
        )
    elif which == 5:
        depth = pick([99, 101, 10_000])
        return b'{"messages":' + b"[" * depth + b"]" * pick([0, depth]) + b"}", headers
    elif which == 6:
        return b'{"model": "' + b"x" * pick([10, 3_999_000, 5_000_000]) + pick([b'"}', b""]), headers
    text = json.dumps(whole).encode()
    if which == 7:
        return text[: int(generator.integers(len(text)))], headers
    if which == 8:
        at = int(generator.integers(len(text)))
        return text[:at] + bytes(generator.integers(0, 256, 3).tolist()) + text[at:], {
            **headers,
            **pick([{}, {"Content-Type": "text/plain"}]),
        }
    return text, headers


@pytest.mark.long
def test_300_hostile_requests_get_a_sentence_each(service):
    async def use():
        generator = np.random.default_rng(0)
        async with running(service), http_client(service) as http:
            found = []
            for _ in range(300):
                body, headers = damaged(generator)
                answer = await http.post("/v1/chat/completions", content=body, headers=headers)
                found.append(answer.status_code)
                if answer.status_code != 200:
                    sentence = answer.json()["error"]["message"]
                    assert answer.status_code in (400, 404, 413, 415), (body[:200], sentence)
                    assert len(sentence) < 400 and "\n" not in sentence and sentence.endswith((".", "}", '"')), sentence
            assert found.count(200) < 150 and {200, 400, 413} <= {*found}
            for path in ("/v1/episodes/a/b/chat/completions", "/v1/episodes//chat/completions", "/" + "x" * 5000):
                answer = await http.post(path, json={"model": "tiny", "messages": ASK})
                assert answer.status_code == 404 and answer.json()["error"]["message"].endswith(".")
        assert not service.engines[0].busy

    asyncio.run(use())


@pytest.mark.slow
def test_ten_thousand_requests_leave_nothing_behind(service):
    async def use():
        number = count()
        async with running(service), http_client(service) as http:

            async def ask_some(total: int) -> None:
                for _ in range(total):
                    n = next(number)
                    messages = [{"role": "user", "content": f"request {n}"}]
                    body = {
                        "model": ("tiny", "adapter0", "adapter1")[n % 3],
                        "messages": messages,
                        "max_tokens": 1 + n % 9,
                    }
                    answer = await http.post("/v1/chat/completions", json=body)
                    assert answer.status_code == 200

            await asyncio.gather(*(ask_some(125) for _ in range(16)))
            objects, memory = left_over()
            await asyncio.gather(*(ask_some(500) for _ in range(16)))
            more, grown = (after - before for after, before in zip(left_over(), (objects, memory), strict=True))
            assert more < 8_000 * 3 and grown < 150_000_000  # a program that is compiled late has 10,000 and 50 MB
            assert not service.engines[0].busy and len(asyncio.all_tasks()) < 5

    asyncio.run(use())


def left_over() -> tuple[int, int]:
    """(objects of Python, bytes of memory) of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return len(gc.get_objects()), int(file.read().split()[1]) * 4096
