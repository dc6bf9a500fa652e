"""The command that serves: policies by name from all sources, errors in a sentence, and a line that works.

The cases of commands start it as a user does; the short ones read the same files.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import uvicorn

from jaxmarl_llm import serve
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.models import loading, lora
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.policy_files import save_policy
from jaxmarl_llm.rollout.team import PolicySet, strings
from jaxmarl_llm.serve import Settings
from jaxmarl_llm.serving.app import create
from jaxmarl_llm.serving.service import Service
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from tests.support import openai_program
from tests.support.families import CONFIG, weights
from tests.support.serving import call_of, config_of, policies, tokenizer_of
from tests.support.tokenizer_files import QWEN_TOOLS, qwen, written

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A run of two arms with a tiny policy each; a run whose two policies adapt one base."""
    home = tmp_path_factory.mktemp("runs")
    tokenizer = SymbolTokenizer(strings(KuhnPoker()))
    config = replace(CONFIG, vocab_size=tokenizer.vocab_size)
    tiny = PolicySet(tokenizer, ("learner",), config)
    for arm in ("rloo", "ablation/none"):
        save_policy(home / "tiny" / arm / "policies/learner", tiny, 0, weights(config), "")
    loading.save(home / "base", config, weights(config))
    symbols = {"symbols": list(tokenizer.strings), "heard": list(tokenizer.heard), "ends": False}
    (home / "base/symbols.json").write_text(json.dumps(symbols))
    loras = Lora(2, 4.0), Lora(1, 3.0, ("q_proj",))
    adapted = PolicySet(tokenizer, ("seat_0", "seat_1"), config, loras)
    for index, name in enumerate(adapted.policies):
        adapter = jax.tree.map(lambda x: x + 0.3, lora.init(jax.random.key(index), weights(config), loras[index]))
        save_policy(home / "adapted/naive-0/policies" / name, adapted, index, adapter, str(home / "base"))
    return home


def names(source: Path, *adapters: str) -> tuple[list, dict]:
    whole, adapted = serve.directories(Settings(str(source), adapters=adapters))
    return [*whole], {base: [*group] for base, group in adapted.items()}


def test_policies_have_the_names_of_their_directories(files):
    base = str(files / "base")
    assert names(files / "base") == (["base"], {})
    assert names(files / "tiny") == (["ablation/none/learner", "rloo/learner"], {})
    assert names(files / "tiny/rloo") == (["learner"], {})
    assert names(files / "tiny/rloo/policies/learner") == (["learner"], {})
    assert names(files / "adapted") == ([], {base: ["seat_0", "seat_1"]})
    home = files / "adapted/naive-0/policies"
    assert names(home / "seat_1") == ([], {base: ["seat_1"]})
    given = names(files / "base", f"first={home / 'seat_1'}", f"second={home / 'seat_0'}")
    assert given == ([], {base: ["first", "second"]})
    assert names(Path("smollm2")) == (["smollm2"], {})


def test_adapters_of_a_base_share_an_engine_and_the_base_is_served_too(files):
    served = serve.load(Settings(str(files / "adapted"), slots=4, context=32))
    assert [*served] == ["base", "seat_0", "seat_1"] and len({id(policy.engine) for policy in served.values()}) == 1
    (alone,) = (serve.load(Settings(str(files / "adapted/naive-0/policies/seat_1"), slots=4, context=32)),)
    assert [*alone] == ["base", "seat_1"]
    (plain,) = serve.load(Settings(str(files / "base"), slots=4, context=32)).values()

    def logp_of(policy: serve.Served) -> float:
        call = call_of([1, 2, 3], budget=1, top=True, policy=policy.policy)
        return dict(zip(*policy.engine.run([call])[0].top[0], strict=True))[2]

    found = {name: logp_of(policy) for name, policy in served.items()}
    np.testing.assert_allclose(logp_of(alone["seat_1"]), found["seat_1"], atol=1e-5)
    np.testing.assert_allclose([logp_of(alone["base"]), logp_of(plain)], found["base"], atol=1e-5)
    assert len({round(value, 3) for value in found.values()}) == 3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings("x", host="0.0.0.0"), "Everybody who reaches 0.0.0.0 could ask the policies: give --api-key KEY"),
        (Settings("x", host="192.168.1.4"), "give --api-key KEY"),
        (Settings("x", host="example.org"), "host is an address of this computer"),
        (Settings("x", api_key=" "), "The API key is empty"),
        (Settings("x", port=70_000), "port is from 0 to 65535, got 70000"),
        (Settings("x", slots=6), "slots is a power of two, got 6"),
    ],
)
def test_settings_that_cannot_be_served_are_one_sentence(settings, says):
    with pytest.raises(ValueError, match=says):
        serve.check(settings)
    serve.check(replace(settings, host="::1", api_key="secret", port=0, slots=8))
    serve.check(Settings("x", host="0.0.0.0", api_key="secret"))


def test_a_folder_of_policies_is_served_by_their_names(files):
    """As `save_policies` writes it; a run holds such folders."""
    home = files / "adapted/naive-0/policies"
    whole, adapted = serve.directories(Settings(str(home)))
    names = {*whole, *(name for group in adapted.values() for name in group)}
    assert names == {path.name for path in home.iterdir()} and names


def test_sources_that_cannot_be_served_are_one_sentence(files, tmp_path):
    home = files / "adapted/naive-0/policies"
    for settings, says in (
        (Settings(str(tmp_path)), "is no model and holds no policies"),
        (Settings("nobody"), "Unknown model 'nobody'"),
        (Settings(str(files / "base"), adapters=("first",)), "adapters are NAME=DIRECTORY each, got 'first'"),
        (Settings(str(files / "base"), adapters=(f"a={tmp_path}",)), "holds no adapter"),
        (Settings(str(files / "base"), adapters=(f"a={home / 'seat_0'}",) * 2), "Two adapters are called 'a'"),
        (Settings(str(files / "base"), adapters=(f"base={home / 'seat_0'}",)), "are called 'base'"),
        (Settings(str(files / "base"), context=10**6), "context is from 2 tokens to the"),
        (Settings(str(files / "base"), slots=2**30), "slots of 64 tokens have caches of up to 65970.7 GB"),
    ):
        with pytest.raises(ValueError, match=says):
            serve.load(settings)
    with serve.listen("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(ValueError, match="give another --port"):
            serve.listen("127.0.0.1", taken.getsockname()[1])


def test_without_the_extra_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ValueError, match=r"Serving needs uvicorn: pip install 'jaxmarl_llm\[serve\]'\."):
        serve.main(Settings("smollm2"))


@pytest.mark.commands
def test_the_printed_command_is_answered(files):
    """It is run as it is printed, with a key; the server ends when it is interrupted."""
    command = [sys.executable, "-m", "jaxmarl_llm.serve", str(files / "tiny"), "--port", "0", "--api-key", "secret"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            told = [server.stdout.readline() for _ in range(4)]
            assert re.match(
                r"ablation/none/learner, rloo/learner: 16 slots of up to \d+ tokens, with caches of up to \S+ GB,\n",
                told[0],
            )
            asked = [told[3], told[3].replace('-H "Authorization: Bearer $API_KEY"', "")]
            run = lambda line: subprocess.run(
                line, shell=True, capture_output=True, env={**os.environ, "API_KEY": "secret"}
            )
            answer, refused = (json.loads(run(line).stdout) for line in asked)
            assert answer["model"] == "rloo/learner" and answer["choices"][0]["message"]["content"] in strings(
                KuhnPoker()
            )
            assert refused["error"]["code"] == "invalid_api_key"
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(60) in (0, 130)


@pytest.fixture
def chatty(tmp_path):
    """(directory of a model of random weights with a chat template, which shows tools; port of its server; service)."""
    tokenizer = tokenizer_of("files")
    loading.save(tmp_path / "chatty", config_of(tokenizer), policies("files")[1]["params"])
    written(tmp_path / "chatty", qwen(), QWEN_TOOLS, eos_token="<|im_end|>")
    with serve.listen("127.0.0.1", 0) as listener:
        service = Service(serve.load(Settings(str(tmp_path / "chatty"), slots=4)))
        server = uvicorn.Server(uvicorn.Config(create(service), log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield tmp_path / "chatty", listener.getsockname()[1], service
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.long
def test_the_snippets_of_the_guide_run(chatty, capsys):
    """A model of random weights answers in place of SmolLM2, over a real connection."""
    directory, port, service = chatty
    names: dict = {}
    for snippet in re.findall(r"```python\n(.*?)```", (ROOT / "docs/howto/serve.md").read_text(), re.DOTALL):
        here = snippet.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        here = here.replace('ask_many("smollm2")', f"ask_many({str(directory)!r})")
        exec(here.replace('model="smollm2"', 'model="chatty"'), names)
    choice = names["choice"]
    assert len(choice.token_ids) == len(choice.logprobs.content) == names["answer"].usage.completion_tokens <= 20
    assert names["vote"].choices[0].message.content in ("yes", "no") and names["chunk"].choices[0].finish_reason
    assert str(choice.token_ids) in capsys.readouterr().out and not service.engines[0].busy


@pytest.mark.long
@pytest.mark.skipif(not openai_program.installed(), reason="the later client is not installed")
def test_a_later_client_of_openai_hears_the_same(chatty):
    """Clients 2 and 3, each in a process: four answers, a stream, log-probabilities, a stop, tools, ids and errors."""
    address = f"http://127.0.0.1:{chatty[1]}/v1"
    present, later = (openai_program.run(address, later) for later in (False, True))
    assert (present["major"], later["major"]) == (2, 3)
    heard = present["heard"]
    np.testing.assert_allclose(heard.pop("logprobs"), later["heard"].pop("logprobs"), atol=1e-4)  # company rounds
    assert heard == later["heard"] and len(heard["texts"]) == 4
    assert heard["stream"] == heard["texts"][0] and heard["stopped"] == heard["before"]
    assert [heard[name][0] for name in ("lost", "wrong", "long")] == [404, 400, 400]


@pytest.mark.commands
def test_an_error_of_the_command_is_one_sentence():
    command = [sys.executable, "-m", "jaxmarl_llm.serve", "nobody", "--host", "0.0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.endswith("give --api-key KEY.\n") and "Traceback" not in done.stderr
