"""inspect-ai evaluates a served policy: a real server on loopback, asked by the package's own provider."""

import threading
import time

import openai
import pytest
import uvicorn

from jaxmarl_llm.serving.app import create
from tests.support import inspect_program
from tests.support.serving import service_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not inspect_program.installed(), reason="inspect-ai is not installed"),
]


@pytest.fixture
def address():
    server = uvicorn.Server(uvicorn.Config(create(service_of()), port=0, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    server.should_exit = True
    thread.join()


def test_tasks_are_scored_and_answers_are_those_that_openai_s_client_gets(address, tmp_path):
    forced, free = inspect_program.run("evaluate", address, str(tmp_path))
    assert [log["status"] for log in (forced, free)] == ["success"] * 2
    assert forced["results"]["scores"][0]["metrics"]["accuracy"]["value"] == pytest.approx(2 / 3)
    assert [sample["output"]["completion"] for sample in forced["samples"]] == ["yes"] * 3
    with openai.OpenAI(base_url=address, api_key="-") as client:
        for question, sample in zip(inspect_program.QUESTIONS, free["samples"], strict=True):
            messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
            settings = {**inspect_program.CONFIG, **inspect_program.FREE}
            (direct,) = client.chat.completions.create(model="tiny", messages=messages, **settings).choices
            (said,) = sample["output"]["choices"]
            assert said["message"]["content"] == direct.message.content
            logprobs = [token["logprob"] for token in said["logprobs"]["content"]]
            assert logprobs == pytest.approx([token.logprob for token in direct.logprobs.content], abs=2e-4)
    assert len({sample["output"]["completion"] for sample in free["samples"]}) == 3  # they depend on the question
