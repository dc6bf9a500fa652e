"""Policies by name and the seats of episodes: what is trained is what was said, and failures end no service."""

import asyncio

import numpy as np
import openai
import pytest

from jaxmarl_llm.rollout.policy import PLAIN, Sampling
from jaxmarl_llm.serving import engine as engines
from jaxmarl_llm.serving.dialogues import Dialogues, Message
from jaxmarl_llm.serving.service import Episode, Refused, Request, Seat, running
from tests.support.serving import Said, http_client, rescore, service_of, with_client

ASK = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def service():
    return service_of("toy", adapters=2)


def episode_of(service, seed: int = 0, turns: int = 3, sampling: Sampling = PLAIN) -> Episode:
    tokenizer = service.engines[0].tokenizer
    models = {"planner": "adapter0", "solver": "adapter1"}
    seats = {
        name: Seat(model, (0, seed), 0, number, sampling, 12, Dialogues(tokenizer, kept=None))
        for number, (name, model) in enumerate(models.items())
    }
    return Episode(seats, turns)


async def chat(http, name: str, seat: str, messages: list[dict], **options) -> dict:
    body = {"model": "any", "messages": messages, "return_token_ids": True, "logprobs": True, **options}
    return (await http.post(f"/v1/episodes/{name}/{seat}/chat/completions", json=body)).json()


def play(service, name: str, seed: int) -> tuple[dict, list[dict]]:
    """Two answers of the planner in one dialogue, and one of the solver: (rows by seat, answers)."""

    async def use():
        async with running(service), http_client(service) as http:
            service.open_episode(name, episode_of(service, seed))
            first = await chat(http, name, "planner", ASK)
            said = first["choices"][0]["message"]["content"]
            other = await chat(http, name, "solver", ASK)
            later = [*ASK, {"role": "assistant", "content": said}, *ASK]
            again = await chat(http, name, "planner", later)
            late = await chat(http, name, "planner", later)
            assert "has had its 3 answers" in late["error"]["message"]
            return service.close_episode(name), [first, other, again]

    return asyncio.run(use())


def test_rows_of_an_episode_hold_its_answers_and_their_probabilities(service):
    rows, (first, other, again) = play(service, "one", seed=4)
    (planner,), (solver,) = rows["planner"], rows["solver"]
    assert [span.turn for span in planner.spans] == [0, 2] and [span.turn for span in solver.spans] == [1]
    for row, span, answer, policy in (
        (planner, planner.spans[0], first, 0),
        (solver, solver.spans[0], other, 1),
        (planner, planner.spans[1], again, 0),
    ):
        (choice,) = answer["choices"]
        tokens = row.tokens[span.start : span.start + len(span.logp)]
        assert tokens == choice["token_ids"] and len(tokens) <= 11 and answer["model"] == f"adapter{policy}"
        assert [token["logprob"] for token in choice["logprobs"]["content"]] == pytest.approx(list(span.logp))
        assert row.tokens[: span.start] == answer["prompt_token_ids"]
    assert not service.episodes
    said = Said(planner.tokens[: planner.spans[1].start], again["choices"][0]["token_ids"], budget=11, policy=0)
    np.testing.assert_allclose(rescore("toy", 2, [said])[0], planner.spans[1].logp, atol=2e-4)
    assert play(service, "two", seed=4)[1][2]["choices"][0]["token_ids"] == again["choices"][0]["token_ids"]
    assert play(service, "three", seed=5)[1][0]["choices"][0]["token_ids"] != first["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    ("seat", "options", "says"),
    [
        ("judge", {}, "has no seat 'judge': possible are planner, solver"),
        ("planner", {"temperature": 0.5}, "This seat is trained with"),
        ("planner", {"n": 2}, "one answer at a time"),
        ("planner", {"structured_outputs": {"choice": ["a"]}}, "speaks freely"),
        ("planner", {"messages": [*ASK, *ASK]}, "user and assistant in turn"),
        ("planner", {"messages": [{"role": "user", "content": "x" * 505}]}, "together they may have 512"),
    ],
)
def test_a_request_that_a_seat_refuses_is_no_turn(service, seat, options, says):
    async def use():
        async with running(service), http_client(service) as http:
            service.open_episode("refused", episode_of(service))
            answer = await chat(http, "refused", seat, **{"messages": ASK, **options})
            current = service.episodes["refused"]
            service.close_episode("refused")
            return answer, current

    answer, current = asyncio.run(use())
    assert says in answer["error"]["message"] and current.answered == 0 and current.spoke == []


def test_openais_client_speaks_for_a_seat(service):
    async def use(client: openai.AsyncOpenAI):
        service.open_episode("by client", episode_of(service))
        await client.chat.completions.create(model="any", messages=ASK, stream=False)
        models = await client.models.list()
        with pytest.raises(ValueError, match="There is an episode 'by client' already"):
            service.open_episode("by client", episode_of(service))
        return service.close_episode("by client"), models

    rows, models = with_client(service, use, "/v1/episodes/by%20client/solver")
    assert [model.id for model in models.data] == ["adapter1"] and len(rows["solver"]) == 1 and not rows["planner"]


def test_a_failure_is_one_answer_and_the_service_goes_on(service, monkeypatch, caplog):
    request = Request((Message("user", "hello"),), "tiny", budget=3)

    def fail(*arguments):
        raise RuntimeError("out of memory")

    async def use():
        async with running(service):
            with monkeypatch.context() as patch:
                patch.setattr(engines.arrays, "read", fail)
                with pytest.raises(Refused, match="The engine failed") as refused:
                    await service.answer(request)
            assert refused.value.status == 500
            return await service.answer(request)

    (choice,) = asyncio.run(use())
    assert choice.answer.tokens and "out of memory" in caplog.text
    with pytest.raises(Refused, match="does not run"):
        asyncio.run(service.answer(request))


def test_answers_that_wait_when_the_service_stops_end_with_an_error(service):
    request = Request((Message("user", "hello"),), "tiny", budget=400, n=8, seed=1)

    async def use():
        async with running(service):
            tasks = [asyncio.create_task(service.answer(request)) for _ in range(3)]
            await asyncio.sleep(0.05)
        return await asyncio.gather(*tasks, return_exceptions=True)

    ends = asyncio.run(use())
    assert not service.engines[0].busy
    assert all(isinstance(end, Refused) and end.status == 503 for end in ends), ends
